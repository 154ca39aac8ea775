"""What every test gets: a check that it leaves nothing behind, and pools that are closed for it."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import shoal
from shoal import testing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

leak_guard = pytest.fixture(autouse=True)(testing.leak_guard)

# A shell that runs the tests in the background has them ignore Ctrl-C, which many of them are about.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Files whose tests start processes and programs of their own, or compile every env there is, nearly all of them:
# together they would make the first stage twice as long. What they test is touched there by the tests of the pool, the
# engines and the laws.
SECOND_STAGE = {
    "test_bbrl_agents",
    "test_bbrl_envs",
    "test_check_command",
    "test_collect_command",
    "test_contract",
    "test_datasets",
    "test_ding_faults",
    "test_ding_managers",
    "test_ding_others",
    "test_dm_control_envs",
    "test_dm_control_native",
    "test_doctor",
    "test_doctor_command",
    "test_envpool_crashes",
    "test_envs_are_gymnasiums",
    "test_envs_of_shoal_alone",
    "test_faces_tell_of_faults",
    "test_kernel_engine",
    "test_kernel_faults",
    "test_kernel_random",
    "test_kernel_threads",
    "test_leak_checks",
    "test_minari_export",
    "test_process_faults",
    "test_process_life",
    "test_python_snapshots",
    "test_recycling",
    "test_replay_command",
    "test_replaying",
    "test_respawn",
    "test_shipping",
    "test_shoal_process",
    "test_soak",
    "test_start_methods",
    "test_stderr_relay",
    "test_t27_recycling",
    "test_t32_frames",
    "test_torchrl_async_processes",
    "test_torchrl_batched_parallel",
    "test_torchrl_bridge",
    "test_torchrl_gym_spaces",
    "test_torchrl_gym_vector",
    "test_torchrl_jax_envs",
    "test_torchrl_multithreaded",
    "test_torchrl_transforms_laws",
    "test_torchrl_transforms_processes",
}


def pytest_configure(config: pytest.Config) -> None:
    """Give every worker of pytest-xdist a folder for temporary files, so that no other's look like leftovers."""
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        # Among those that pytest clears away, and beside its own, which it makes anew.
        folder = Path(config.option.basetemp).with_name(f"tmp-{worker['workerid']}")
        folder.mkdir(exist_ok=True)
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have those files, and tests of faults that need a process, wait for the second stage."""
    for item in items:
        needs_process = any(word in item.name for word in ("process", "fork", "spawn"))
        if item.path.stem in SECOND_STAGE or (item.path.parent.name == "faults" and needs_process):
            item.add_marker("slow")


@pytest.fixture(params=["serial", "thread", "process"])
def engine(request: pytest.FixtureRequest) -> str:
    """The name of every engine in turn."""
    return str(request.param)


@pytest.fixture
def make_pool() -> Iterator[Callable[..., shoal.Pool]]:
    """``shoal.make_pool``, with every pool closed when the test ends, hung threads included."""
    with contextlib.ExitStack() as pools:
        # Last in, first out: hangs are released before the pools that wait for them are closed.
        pools.callback(testing.release_hangs)

        def make(*args: Any, **options: Any) -> shoal.Pool:
            pool = pools.enter_context(shoal.make_pool(*args, **options))
            pools.callback(testing.release_hangs)
            return pool

        yield make
