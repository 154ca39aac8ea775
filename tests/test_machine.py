"""What the system says of cores and memory: control groups as the kernel writes them, nested and of both versions."""

from __future__ import annotations

import os
import resource
import subprocess
from typing import TYPE_CHECKING

import pytest

from shoal import cgroups, machine
from shoal.doctor import machine as doctor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, dict[str, str]], None]:
    """Makes control groups of files: what the process is in, and what the files say."""
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path / "cgroup")
    monkeypatch.setattr(cgroups, "_OWN", tmp_path / "own")

    def make(own: str, files: dict[str, str]) -> None:
        (tmp_path / "own").write_text(own)
        for name, text in files.items():
            file = tmp_path / "cgroup" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text + "\n")

    return make


def test_version_2_with_a_limit_further_up(groups: Callable[..., None]) -> None:
    groups(
        "0::/slurm/job_7/step_0\n",
        {
            "slurm/job_7/cpu.max": "150000 100000",
            "slurm/job_7/memory.max": "1000",
            "slurm/job_7/memory.current": "400",
            "slurm/job_7/step_0/cpu.max": "max 100000",
            "slurm/job_7/step_0/memory.max": "max",
            "slurm/job_7/step_0/memory.current": "300",
            "slurm/job_7/step_0/memory.events": "low 0\noom 3\noom_kill 2",
            "slurm/job_7/step_0/memory.swap.current": "50",
            "slurm/job_7/step_0/pids.max": "100",
            "slurm/job_7/step_0/pids.current": "93",
        },
    )
    assert (cgroups.cpu_quota(), cgroups.memory_limit_bytes(), cgroups.memory_left_bytes()) == (1.5, 1000, 600)
    assert (cgroups.oom_kills(), cgroups.swapped_bytes(), cgroups.tasks_left()) == (2, 50, 7)


def test_version_2_in_a_container_that_sees_its_own_group_as_the_root(groups: Callable[..., None]) -> None:
    groups("0::/../host/path\n", {"cpu.max": "50000 100000", "memory.max": "max", "memory.events": "oom_kill 0"})
    assert (cgroups.cpu_quota(), cgroups.memory_limit_bytes(), cgroups.oom_kills()) == (0.5, None, 0)


def test_version_1(groups: Callable[..., None]) -> None:
    groups(
        "4:memory:/job\n1:cpu,cpuacct:/job\n0::/\n",
        {
            "cpu,cpuacct/job/cpu.cfs_quota_us": "300000",
            "cpu,cpuacct/job/cpu.cfs_period_us": "100000",
            "cpu,cpuacct/cpu.cfs_quota_us": "-1",
            "cpu,cpuacct/cpu.cfs_period_us": "100000",
            "memory/job/memory.limit_in_bytes": "2000",
            "memory/job/memory.usage_in_bytes": "500",
            "memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1",
            "memory/job/memory.stat": "cache 10\nswap 5",
            "memory/memory.limit_in_bytes": "9223372036854771712",
            "memory/memory.usage_in_bytes": "700",
        },
    )
    assert (cgroups.cpu_quota(), cgroups.memory_limit_bytes(), cgroups.memory_left_bytes()) == (3.0, 2000, 1500)
    assert (cgroups.oom_kills(), cgroups.swapped_bytes(), cgroups.tasks_left()) == (1, 5, None)


def test_no_control_groups(groups: Callable[..., None]) -> None:
    groups("", {})
    assert (cgroups.cpu_quota(), cgroups.memory_limit_bytes(), cgroups.oom_kills()) == (None, None, None)


def test_cores_and_memory_are_cut_down_to_what_an_outer_group_allows(groups: Callable[..., None]) -> None:
    groups(
        "0::/slurm/job_7/step_0\n",
        {
            "slurm/cpu.max": "70000 100000",
            "slurm/job_7/memory.max": "1000",
            "slurm/job_7/memory.current": "400",
            "slurm/job_7/step_0/cpu.max": "max 100000",
            "slurm/job_7/step_0/memory.max": "max",
        },
    )
    assert (machine.usable_cores(), machine.available_memory_bytes()) == (1, 600)


def test_a_group_that_has_used_more_than_it_may_has_nothing_left(groups: Callable[..., None]) -> None:
    groups("0::/job\n", {"job/memory.max": "1000", "job/memory.current": "1400"})
    assert machine.available_memory_bytes() == 0


def test_the_doctor_tells_of_a_quota_and_of_kills(groups: Callable[..., None]) -> None:
    groups("0::/\n", {"cpu.max": "10000 100000", "memory.events": "oom_kill 4"})
    found = doctor._cores().found
    assert found.startswith("1 usable")
    assert "cgroup quota 0.1" in found
    assert doctor._memory_kills().verdict == "warning"


def test_without_a_free_descriptor_nobody_is_known_to_have_descendants() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        assert machine.descendants(os.getpid()) == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_who_follows_a_process_is_known_beyond_its_end() -> None:
    shell = "sleep 600 & echo $!; wait"
    with subprocess.Popen(["sh", "-c", shell], stdout=subprocess.PIPE, text=True, process_group=0) as leader:
        assert leader.stdout is not None
        child = int(leader.stdout.readline())
        try:
            assert machine.followers(leader.pid, is_alive=True) == [child]
            assert machine.followers(leader.pid, is_alive=False) == [], "the number has a new owner"
            leader.kill()
            leader.wait()
            assert machine.descendants(leader.pid) == []
            assert machine.followers(leader.pid, is_alive=False) == [child]
        finally:
            os.kill(child, 9)
