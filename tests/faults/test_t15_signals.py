"""T15 to T18: a signal ends the trainer, and nothing of it is left.

No worker outlives it by two seconds, the exit code is the conventional one, and Ctrl-C prints the user's traceback
alone.
"""

from __future__ import annotations

import os
import signal
from textwrap import dedent
from typing import TYPE_CHECKING

import psutil
import pytest
from trainer_processes import METHODS, program

if TYPE_CHECKING:
    from collections.abc import Callable

CLOSE_S = 0.3

# Two workers. What tells the test that they are where it wants them: the trainer prints their pids, and an env that
# is about to hang, or to take its time to be built, prints its own.
TRAINER = dedent("""
    import ctypes, os, sys, time
    import shoal
    from shoal.testing import CountingEnv

    method, state = sys.argv[1:]

    def tell():
        os.write(1, b"%d\\n" % os.getpid())

    class Stuck(CountingEnv):
        def __init__(self):
            super().__init__()
            if state == "building":
                tell()
                time.sleep(60)

        def step(self, action):
            if state == "hung":
                tell()
                ctypes.PyDLL(None).sleep(60)  # C code that keeps the interpreter lock
            return super().step(action)

    options = dict(engine="process", num_workers=2, start_method=method, close_timeout=CLOSE_S)
    pool = shoal.make_pool(Stuck, 2, **options)
    pool.reset(seed=0)
    if state == "hung":
        pool.step([0, 0])
    if state == "stepping":
        pool.step([0, 0])
    print(*pool.engine.pids, flush=True)
    if state == "idle":
        time.sleep(60)
    while True:
        pool.step([0, 0])
""").replace("CLOSE_S", str(CLOSE_S))

STATES = ["idle", "stepping", "hung", "building"]
LINES = {"hung": 2, "building": 2}


def every_state(quick: str) -> pytest.MarkDecorator:
    """Every start method in every state; one of them, with forked workers, in every run of the tests."""
    cases = [
        pytest.param(method, state, marks=() if (method, state) == ("fork", quick) else pytest.mark.slow)
        for method in METHODS
        for state in STATES
        if state != "building" or method == "forkserver"
    ]
    return pytest.mark.parametrize(("method", "state"), cases)


def end_by(number: signal.Signals, method: str, state: str, send: Callable[[int, int], None] = os.kill) -> str:
    """Send a trainer a signal, see that it dies of it and that nothing is left; what it has printed."""
    with program(TRAINER, method, state, lines=LINES.get(state, 1)) as trainer:
        assert len(trainer.pids) == 2
        assert trainer.pids <= {member.pid for member in trainer.family}
        send(trainer.process.pid, number)
        ended = trainer.end()
    assert ended.code == -number
    return ended.stderr


@every_state(quick="stepping")
def test_t15_ctrl_c_in_the_terminal_ends_everything_with_one_traceback(method: str, state: str) -> None:
    stderr = end_by(signal.SIGINT, method, state, os.killpg)
    assert stderr.count("Traceback") == 1
    assert stderr.endswith("KeyboardInterrupt\n")


@every_state(quick="idle")
def test_t16_an_interrupt_of_the_trainer_alone_ends_its_workers_too(method: str, state: str) -> None:
    stderr = end_by(signal.SIGINT, method, state)
    assert stderr.count("Traceback") == 1
    assert stderr.endswith("KeyboardInterrupt\n")


@every_state(quick="idle")
def test_t17_sigterm_ends_everything_in_silence(method: str, state: str) -> None:
    assert end_by(signal.SIGTERM, method, state) == ""


@every_state(quick="hung")
def test_t18_sigkill_ends_everything_in_silence(method: str, state: str) -> None:
    assert end_by(signal.SIGKILL, method, state) == ""


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_t17_a_trainer_that_turns_sigterm_into_an_exit_closes_its_pool(method: str) -> None:
    exits = "import signal, sys; signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))"
    code = f"{exits}\n{TRAINER}"
    with program(code, method, "hung", lines=2) as trainer:
        os.kill(trainer.process.pid, signal.SIGTERM)
        ended = trainer.end()
    assert (ended.code, ended.stderr) == (128 + signal.SIGTERM, "")


@pytest.mark.slow
def test_t15_a_second_ctrl_c_while_the_pool_closes_leaves_nothing_either() -> None:
    # The envs are hung, so the close that the first one starts takes its whole deadline.
    code = TRAINER.replace(f"close_timeout={CLOSE_S}", "close_timeout=30")
    with program(code, "forkserver", "hung", lines=2) as trainer:
        os.killpg(trainer.process.pid, signal.SIGINT)
        # It sleeps in the wait for its workers as soon as it has left the wait for rows, and no event shows that:
        # any further Ctrl-C must end it, whenever it comes.
        while psutil.pid_exists(trainer.process.pid) and trainer.process.poll() is None:
            os.killpg(trainer.process.pid, signal.SIGINT)
        ended = trainer.end()
    assert ended.code in (-signal.SIGINT, 1)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_t15_ctrl_c_while_the_program_closes_its_pool_leaves_nothing_either(method: str) -> None:
    code = dedent("""
        import os, signal, sys, time
        import shoal
        from shoal.testing import CountingEnv

        class Hung(CountingEnv):
            def __init__(self, trainer):
                super().__init__()
                self.trainer = trainer

            def close(self):
                os.kill(self.trainer, signal.SIGINT)
                time.sleep(3600)

        options = dict(engine="process", num_workers=1, start_method=sys.argv[1], close_timeout=CLOSE_S)
        pool = shoal.make_pool(Hung, 2, env_kwargs={"trainer": os.getpid()}, **options)
        pool.reset(seed=0)
        print(*pool.engine.pids, flush=True)
        pool.close()
    """).replace("CLOSE_S", str(CLOSE_S))
    with program(code, method) as trainer:
        ended = trainer.end()
    assert ended.code == -signal.SIGINT
    assert ended.num_tracebacks == 1
