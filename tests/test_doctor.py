"""What the doctor finds about this machine and about envs that are well, ill, or dangerous."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import signal
import threading
from functools import partial
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from parallel_envs import Party
from trainer_processes import run_program

from shoal.contract.compare import difference
from shoal.doctor import Diagnosis, env, examine_env, examine_machine, limits, machine, race
from shoal.doctor.diagnosis import examined, size
from shoal.doctor.race import Race, judge_auto, judge_rates
from shoal.doctor.rehearsal import rehearse
from shoal.doctor.trial import try_workers
from shoal.engines.process.descriptors import FDS_PER_WORKER
from shoal.errors import ArgumentError
from shoal.testing import DictTupleEnv, GraphEnv, SleepyEnv, TextEnv

if TYPE_CHECKING:
    from collections.abc import Callable


class Calm(gym.Env[np.ndarray, int]):
    """An env that does everything right."""

    observation_space = gym.spaces.Box(0, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self.draw(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self.draw(), 0.0, bool(self.np_random.random() < 0.1), False, {}

    def draw(self) -> np.ndarray:
        return self.np_random.random(3).astype(np.float32)


class Drifting(Calm):
    """Draws from a generator that nobody seeds."""

    def draw(self) -> np.ndarray:
        return np.full(3, random.random(), np.float32)


class Reseeding(Calm):
    """Seeds the generator that all envs of a process share."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        if seed is not None:
            np.random.seed(seed)
        return self.draw(), {}

    def draw(self) -> np.ndarray:
        return np.random.rand(3).astype(np.float32)


class Rooted(Calm):
    """Depends on the process it is in."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self.draw(), float(os.getpid()), False, False, {}


class Unbuildable(Calm):
    def __init__(self) -> None:
        raise FileNotFoundError("level1.map")


class Incomplete(Calm):
    def __init__(self) -> None:
        import no_such_module  # noqa: F401


class Deadly(Calm):
    def step(self, action: int) -> Any:
        os.kill(os.getpid(), signal.SIGSEGV)


class TooLong(Calm):
    def step(self, action: int) -> Any:
        return np.zeros(4, np.float32), 0.0, False, False, {}


class Loaded(Calm):
    def __init__(self, cargo: bytes) -> None:
        self.cargo = cargo


class Huge(Calm):
    observation_space = gym.spaces.Box(0, 255, (512, 512), np.uint8)

    def draw(self) -> np.ndarray:
        return np.zeros((512, 512), np.uint8)


def capturing(lock: Any) -> Callable[[], Calm]:
    def make() -> Calm:
        with lock:
            return Calm()

    return make


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "_TURN_S", 0.01)
    monkeypatch.setattr(env, "_MEASURE_S", 0.02)
    monkeypatch.setattr(env, "_MOST_ENVS", 8)
    monkeypatch.setattr(env, "_MOST_WORKERS", 2)


def findings(kind: Any, num_envs: int = 3, **options: Any) -> dict[str, Diagnosis]:
    return {diagnosis.topic: diagnosis for diagnosis in examine_env(kind, num_envs, **options)}


# ------------------------------------------------------------------ envs


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [Calm, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (DictTupleEnv, GraphEnv, TextEnv, Party))],
    ids=lambda kind: kind.__name__,
)
def test_an_env_that_is_well(kind: Any) -> None:
    found = findings(kind)
    assert {d.verdict for d in found.values()} <= {"ok", "warning"}, found
    assert "agreed" in found["repeatable"].found
    assert "one in a worker" in found["repeatable"].found
    for engine in ("serial", "thread", "process"):
        assert engine in found["engines"].found


@pytest.mark.slow
def test_an_env_that_can_be_compiled_runs_on_the_kernel_engine_too() -> None:
    found = findings("Catch-v0")
    assert "takes kernel" in found["engine='auto'"].found
    assert "kernel" in found["engines"].found
    assert found["repeatable"].verdict == "ok"


@pytest.mark.slow
def test_an_env_that_waits_is_seen_to_wait() -> None:
    found = findings(partial(SleepyEnv, mean_s=0.002), 4)
    assert "takes thread" in found["engine='auto'"].found


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.slow) for kind in (Drifting, Reseeding)])
def test_an_env_that_does_not_repeat(kind: Any) -> None:
    told = findings(kind, called="mine:Env")["repeatable"]
    assert told.verdict == "problem"
    assert "part at step" in told.found
    assert "observation is 0." in told.found
    assert "self.np_random" in told.fix
    assert "shoal check mine:Env" in told.fix


@pytest.mark.slow
def test_an_env_that_depends_on_its_process() -> None:
    told = findings(Rooted)["repeatable"]
    assert told.verdict == "problem"
    assert f"step 1: reward is {os.getpid()}.0 and " in told.found
    assert "between processes" in told.fix


def test_an_env_that_cannot_be_sent_is_examined_in_this_process() -> None:
    found = findings(capturing(threading.Lock()))
    told = found["shipping"]
    assert told.verdict == "problem"
    assert "env_fn.closure.lock (lock)" in told.found
    assert len(told.fix.splitlines()) == 2
    assert "in a worker" not in found
    assert found["repeatable"].verdict == "ok"
    assert found["engine='auto'"].verdict == "ok"
    assert "takes serial: it has to stay in this process" in found["engine='auto'"].found
    assert "process" not in found["engines"].found


@pytest.mark.slow
def test_an_env_that_carries_much_along() -> None:
    told = findings(partial(Loaded, cargo=bytes(11 << 20)))["shipping"]
    # What the tests before this one have registered with Gymnasium goes along.
    assert (told.verdict, bool(re.search(r" as 11(\.[0-5])? MiB", told.found))) == ("warning", True), told.found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "found", "fix"),
    [
        (
            Unbuildable,
            r"cannot be built: FileNotFoundError: level1.map \(File .*test_doctor.py.*__init__",
            "shoal run me",
        ),
        (Incomplete, "No module named 'no_such_module'", "install no_such_module"),
        (TooLong, r"step fails: SpecError: observation: expected shape \(3,\)", "shoal check me"),
        (dict, "dict is no env", "shoal check me"),
    ],
    ids=["build", "import", "step", "no env"],
)
def test_an_env_that_fails(kind: Any, found: str, fix: str) -> None:
    told = findings(kind, called="me")
    assert told["in a worker"].verdict == told["in this process"].verdict == "problem"
    assert re.search(found, told["in a worker"].found), told
    assert told["in a worker"].fix.startswith(fix)
    assert told["in this process"].found == "the same"


@pytest.mark.slow
def test_an_env_that_crashes_does_not_take_the_doctor_along() -> None:
    found = findings(Deadly)
    assert "killed by SIGSEGV" in found["in a worker"].found
    assert "in this process" not in found
    assert "engines" not in found


@pytest.mark.slow
def test_a_pool_that_does_not_fit() -> None:
    found = findings(Huge, 10_000_000, num_workers=1_000_000)
    assert found["memory"].verdict == "problem"
    assert found["memory"].fix.startswith("at most ")
    assert found["open files"].verdict == "problem"
    assert "num_workers=" in found["open files"].fix
    assert "not 10000000" in found["engines"].found


class Unsendable(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("an exception that stays where it is")


class RaisesUnsendable(Calm):
    def step(self, action: Any) -> Any:
        raise Unsendable("no way")


@pytest.mark.parametrize(("kind", "is_danger"), [(Calm, False), (RaisesUnsendable, False), (Deadly, True)])
def test_only_an_env_that_ends_its_process_is_dangerous(kind: Any, is_danger: bool) -> None:
    assert (rehearse(kind, 5).danger is not None) is is_danger


def test_what_is_no_env_at_all_is_refused() -> None:
    with pytest.raises(ArgumentError, match="NoSuchEnv"):
        examine_env("NoSuchEnv-v0")


# ------------------------------------------------------------------ the comparison of engines


def test_auto_is_told_off_only_if_another_engine_is_clearly_faster() -> None:
    close = Race(8, "serial", "a reason", {"serial": 1000.0, "process": 1400.0})
    assert judge_rates(close, 8).verdict == "ok"
    far = Race(8, "serial", "a reason", {"serial": 1000.0, "process": 1600.0})
    assert judge_rates(far, 8) == Diagnosis(
        "engines",
        "warning",
        "process 1.6 k, serial 1 k env-steps/s in a bare loop of 8 envs",
        "try engine='process', 1.6 times as fast as 'serial'",
    )
    assert "(not 64" in judge_rates(far, 64).found
    assert judge_auto(far) == Diagnosis("engine='auto'", "ok", "takes serial: a reason")


def test_engines_that_fail_are_told() -> None:
    result = Race(2, failed={"process": "ResourceError: no room"})
    assert judge_rates(result, 2) == Diagnosis(
        "engines", "problem", "none can run it; process cannot: ResourceError: no room"
    )


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (np.array([1.0, np.nan]), np.array([1.0, np.nan]), True),
        (np.array([1.0, 2.0]), np.array([1.0, 3.0]), False),
        (np.float64("nan"), np.float64("nan"), True),
        ("a", "b", False),
        ((np.zeros(2), "x"), (np.zeros(2), "x"), True),
        ({"k": np.zeros(2)}, {"k": np.ones(2)}, False),
        ({"k": 1}, {"j": 1}, False),
        (np.array(["a", None], object), np.array(["a", None], object), True),
    ],
)
def test_same(a: Any, b: Any, expected: bool) -> None:
    assert (difference(a, b, "value") is None) is expected


# ------------------------------------------------------------------ the machine


@pytest.mark.slow
def test_this_machine() -> None:
    watched: list[str] = []
    diagnoses = examine_machine(watch=watched.append)
    topics = [diagnosis.topic for diagnosis in diagnoses]
    assert len(set(topics)) == len(topics) >= 14
    assert set(topics) <= set(watched)
    found = {diagnosis.topic: diagnosis for diagnosis in diagnoses}
    assert found["shared memory"].verdict == "ok"
    assert found["workers, forkserver"].verdict == "ok"
    assert all(diagnosis.found for diagnosis in diagnoses)
    assert all(diagnosis.fix for diagnosis in diagnoses if diagnosis.verdict != "ok")


def test_the_optional_packages_are_those_of_the_extras() -> None:
    optional = set(machine._optional_packages())
    assert {"numba", "pyarrow", "minari", "envpool", "ale-py", "typer"} <= optional
    assert optional.isdisjoint({"pytest", "ruff", "gymnasium", "numpy", "shoal"})


@pytest.mark.slow
def test_a_thorough_look_tries_every_start_method() -> None:
    # In a process of its own: when tests run side by side, a thread in each process listens to pytest.
    code = """
        import json
        from shoal.doctor import examine_machine

        print(json.dumps({diagnosis.topic: diagnosis.verdict for diagnosis in examine_machine(thorough=True)}))
    """
    found = json.loads(run_program(dedent(code)).stdout)
    assert found["workers, spawn"] == found["workers, fork"] == found["workers, forkserver"] == "ok"


@pytest.mark.slow
def test_fork_is_not_tried_while_other_threads_run() -> None:
    stop = threading.Event()
    other = threading.Thread(target=stop.wait, name="learner")
    other.start()
    try:
        found = {diagnosis.topic: diagnosis for diagnosis in examine_machine(thorough=True)}
    finally:
        stop.set()
        other.join()
    assert "not tried" in found["workers, fork"].found
    assert "learner" in found["threads"].found


@pytest.mark.slow
def test_the_number_of_descriptors_per_worker_is_right() -> None:
    assert try_workers("forkserver").fds_per_worker == FDS_PER_WORKER


def test_a_soft_limit_can_be_raised_by_the_user() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        told = limits.open_files(RuntimeError())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert told.verdict == "warning"
    assert told.fix == "ulimit -n 4096"


def test_an_examination_that_fails_is_a_finding() -> None:
    def examination() -> Diagnosis:
        raise PermissionError("/proc is hidden")

    assert examined("x", examination) == Diagnosis(
        "x", "problem", "could not be examined: PermissionError: /proc is hidden"
    )


@pytest.mark.parametrize(
    ("count", "told"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 20, "3 MiB"), (5 << 29, "2.5 GiB")]
)
def test_sizes_for_people(count: int, told: str) -> None:
    assert size(count) == told
