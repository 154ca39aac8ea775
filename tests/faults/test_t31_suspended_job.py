"""T31: a job that was suspended as a whole goes on as before: time that nobody lived through is no delay."""

from __future__ import annotations

from textwrap import dedent
from time import sleep

import psutil
import pytest
from trainer_processes import Program, program, wait_until

pytestmark = pytest.mark.slow

DEADLINE_S = 0.8
SUSPENDED_S = 1.2

# Envs announce the first step or constructor that takes its time, so the job is stopped in the middle of it.
TRAINER = dedent("""
    import os, sys, time
    import shoal
    from shoal.testing import CountingEnv

    engine, method, place = sys.argv[1:]

    class Slow(CountingEnv):
        def __init__(self):
            super().__init__(episode_length=1000)
            self.rest("construct")

        def reset(self, **options):
            self.rest("reset")
            return super().reset(**options)

        def step(self, action):
            self.rest("step")
            return super().step(action)

        def rest(self, where):
            if where == place:
                os.write(1, b"%d\\n" % os.getpid())
                for _ in range(10):
                    time.sleep(0.02)

    workers = dict(engine=engine, num_workers=2, start_method=None if method == "-" else method)
    with shoal.make_pool(Slow, 2, **workers, **{f"{place}_timeout": DEADLINE_S}) as pool:
        before = getattr(pool.engine, "pids", [])
        pool.reset(seed=0)
        totals = [pool.step([0, 0]).reward.tolist() for _ in range(2)]
        assert totals == [[1.0, 1.0], [2.0, 2.0]], totals
        assert pool.stats().faults == 0
        assert getattr(pool.engine, "pids", []) == before
    os.write(1, b"done\\n")
""").replace("DEADLINE_S", str(DEADLINE_S))


def members(trainer: Program) -> list[psutil.Process]:
    return [psutil.Process(trainer.process.pid), *trainer.family]


def suspend(trainer: Program, resumed: str) -> None:
    """Stop the job for longer than any deadline, and let it go on."""
    if resumed == "by its shell":  # which knows of the trainer only: workers have groups of their own
        everyone = [psutil.Process(trainer.process.pid)]
    else:  # on waking from sleep, processes get a core in any order
        everyone = members(trainer) if resumed == "trainer first" else members(trainer)[::-1]
    for one in everyone:
        one.suspend()
    wait_until(lambda: all(one.status() == psutil.STATUS_STOPPED for one in everyone), what="all to be stopped")
    sleep(SUSPENDED_S)
    for one in everyone:
        one.resume()


CASES = [
    ("process", "fork", "step", "trainer first"),
    ("process", "forkserver", "step", "workers first"),
    ("process", "forkserver", "step", "by its shell"),
    ("process", "forkserver", "construct", "trainer first"),
    ("thread", "-", "step", "trainer first"),
]


@pytest.mark.parametrize(("engine", "method", "place", "resumed"), CASES)
def test_t31_a_suspended_job_does_not_look_like_hanging_envs(
    engine: str, method: str, place: str, resumed: str
) -> None:
    with program(TRAINER, engine, method, place, lines=2) as trainer:
        suspend(trainer, resumed)
        ended = trainer.end(20.0)
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.stdout.endswith("done\n")


def test_t31_an_env_that_really_hangs_is_still_found_after_a_suspension() -> None:
    code = TRAINER.replace("for _ in range(10)", "while True")
    with program(code, "process", "forkserver", "step", lines=2) as trainer:
        suspend(trainer, "trainer first")
        ended = trainer.end(20.0)
    assert ended.code == 1
    assert "EnvTimeout" in ended.stderr
