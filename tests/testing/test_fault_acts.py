"""The faults that happen instead of a call: raising, exiting, dying, hanging, leaving things behind."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, get_args

import pytest

from shoal.testing import (
    FAULT_FAMILIES,
    Fault,
    FaultEnv,
    InjectedFault,
    Place,
    TwoArgFault,
    UnpicklableFault,
    release_hangs,
)

if TYPE_CHECKING:
    from multiprocessing.context import ForkProcess
    from pathlib import Path

PLACES: tuple[Place, ...] = get_args(Place)
FORK = multiprocessing.get_context("fork")
HAS_GIL = getattr(sys, "_is_gil_enabled", lambda: True)()

# Forking beside the threads of a parallel test run is safe here: the children only run an env, and then die.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def visit_all_places(fault: str, where: Place, **settings: Any) -> None:
    env = FaultEnv(fault, where=where, at=1, **settings)
    env.reset(seed=0)
    env.step(0)
    env.close()


def start(fault: str, where: Place, **settings: Any) -> ForkProcess:
    def run() -> None:
        faulthandler.disable()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        visit_all_places(fault, where, **settings)

    process = FORK.Process(target=run)
    process.start()
    return process


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("raise", InjectedFault),
        ("raise_two_args", TwoArgFault),
        ("raise_unpicklable", UnpicklableFault),
        ("sys_exit", SystemExit),
        ("keyboard_interrupt", KeyboardInterrupt),
    ],
)
def test_raising(fault: str, error: type[BaseException], where: Place) -> None:
    with pytest.raises(error) as caught:
        visit_all_places(fault, where, tag=5)
    if fault != "sys_exit":
        assert f"in {where}, call 1 of env 5, pid {os.getpid()}" in str(caught.value)


def test_the_awkward_exceptions_are_awkward_in_their_own_way() -> None:
    pickled = pickle.dumps(TwoArgFault(3, "x"))
    with pytest.raises(TypeError, match="detail"):
        pickle.loads(pickled)
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(UnpicklableFault("x"))


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("exit", 3),
        ("kill", -signal.SIGKILL),
        ("segv", -signal.SIGSEGV),
        ("bus", -signal.SIGBUS),
        ("abort", -signal.SIGABRT),
    ],
)
def test_dying(fault: str, code: int, where: Place) -> None:
    process = start(fault, where)
    process.join(20)
    assert process.exitcode == code
    process.close()


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("fault", FAULT_FAMILIES["hang"])
def test_hanging(fault: Fault, where: Place) -> None:
    process = start(fault, where)
    process.join(0.3)
    assert process.is_alive()
    process.kill()
    process.join(20)
    assert process.exitcode == -signal.SIGKILL
    process.close()


@pytest.mark.slow
@pytest.mark.skipif(not HAS_GIL, reason="there is no lock to hold")
@pytest.mark.parametrize(("fault", "beats"), [("hang", True), ("hang_gil", False)])
def test_only_hang_gil_stops_other_threads(fault: str, beats: bool) -> None:
    reader, writer = FORK.Pipe(duplex=False)

    def run() -> None:
        threading.Thread(target=beat, daemon=True).start()
        visit_all_places(fault, "step")

    def beat() -> None:
        # Long enough for the main thread to be inside its hang when this one would go on.
        time.sleep(0.5)
        writer.send(b"beat")

    process = FORK.Process(target=run)
    process.start()
    assert reader.poll(1.5) is beats
    process.kill()
    process.join()
    process.close()
    reader.close()
    writer.close()


def test_a_hang_in_a_thread_can_be_released_and_the_next_one_hangs_again() -> None:
    for _ in range(2):
        thread = threading.Thread(target=visit_all_places, args=("hang", "step"))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        release_hangs()
        thread.join(10)
        assert not thread.is_alive()


def test_init_and_close_fault_at_once_whatever_at_says() -> None:
    with pytest.raises(InjectedFault):
        FaultEnv("raise", where="init", at=3)
    env = FaultEnv("raise", where="close", at=3)
    with pytest.raises(InjectedFault):
        env.close()
    env.close()
    assert env.is_closed


def test_with_a_once_file_a_restarted_env_lives(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    codes = []
    for _ in range(2):
        process = start("exit", "step", once_file=mark)
        process.join(20)
        codes.append(process.exitcode)
        process.close()
    assert codes == [3, 0]
    assert mark.exists()


def test_stdout_is_closed() -> None:
    code = "import os; from shoal.testing import FaultEnv; FaultEnv('close_stdout', where='init'); os.fstat(1)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "Bad file descriptor" in result.stderr


def test_memory_is_held() -> None:
    env = FaultEnv("leak_memory", at=1, repeat=True, episode_length=9)
    env.reset(seed=0)
    for _ in range(3):
        env.step(0)
    assert [len(block) for block in env.leaked] == [10 * 2**20] * 3


def test_a_left_child_lives_on() -> None:
    env = FaultEnv("leave_child", where="init")
    assert env.left_child is not None
    assert env.left_child.poll() is None
    env.left_child.kill()
    env.left_child.wait()


@pytest.mark.slow
def test_a_left_thread_keeps_the_interpreter_from_ending() -> None:
    code = "from shoal.testing import FaultEnv; FaultEnv('leave_thread', where='init'); print('end', flush=True)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "end\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.kill()


def test_a_left_thread_can_be_released() -> None:
    FaultEnv("leave_thread", where="init")
    assert any("left-thread" in thread.name for thread in threading.enumerate())
    release_hangs()
