"""T19: a pool that nobody closed: dropped, left by an exception, or still open when its program ends."""

from __future__ import annotations

from functools import partial
from textwrap import dedent
from time import monotonic
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from trainer_processes import GRACE_S, METHODS_HERE, assert_gone, program

import shoal
from shoal.testing import CountingEnv, FaultEnv, no_leftovers, release_hangs

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

CLOSE_S = 0.3
SOME_METHODS = [
    pytest.param(method, marks=pytest.mark.slow) if method == "spawn" else method for method in METHODS_HERE
]

# It waits for the test to have seen its workers before it ends.
PROGRAM = dedent("""
    import ctypes, os, sys
    import shoal
    from shoal.testing import CountingEnv

    method, state = sys.argv[1:]

    class Stuck(CountingEnv):
        def step(self, action):
            if state == "hung":
                os.write(1, b"%d\\n" % os.getpid())
                ctypes.PyDLL(None).sleep(60)
            return super().step(action)

    def make():
        options = dict(engine="process", num_workers=2, start_method=method, close_timeout=CLOSE_S)
        pool = shoal.make_pool(Stuck, 2, **options)
        pool.reset(seed=0)
        if state != "idle":
            pool.send([0, 0])
        if state != "hung":
            print(*pool.engine.pids, flush=True)
        sys.stdin.read()
        return pool
""").replace("CLOSE_S", str(CLOSE_S))

# How a program ends, its exit code, and how many tracebacks it prints.
ENDINGS = {
    "its end": ("pool = make()", 0, 0),
    "an exception": ("pool = make(); raise RuntimeError('of the user')", 1, 1),
    "an exception inside with": ("with make() as pool: raise RuntimeError('of the user')", 1, 1),
    "sys.exit": ("pool = make(); sys.exit(5)", 5, 0),
    "os._exit": ("pool = make(); os._exit(5)", 5, 0),
}
WAYS = [("fork", "under way"), ("fork", "hung"), ("forkserver", "under way"), ("spawn", "idle")]
QUICK = [("fork", "under way", "its end"), ("fork", "under way", "os._exit")]
CASES = [(*way, ending) for way in WAYS for ending in ENDINGS]


@pytest.mark.parametrize(
    ("method", "state", "ending"),
    [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in CASES],
)
def test_t19_a_program_that_does_not_close_its_pool_leaves_nothing(method: str, state: str, ending: str) -> None:
    statement, code, tracebacks = ENDINGS[ending]
    with program(PROGRAM + statement, method, state, lines=2 if state == "hung" else 1) as trainer:
        assert len(trainer.pids) == 2
        assert trainer.pids <= {member.pid for member in trainer.family}
        ended = trainer.end()
    assert (ended.code, ended.num_tracebacks) == (code, tracebacks)
    if tracebacks:
        assert ended.stderr.endswith("RuntimeError: of the user\n")
    else:
        assert ended.stderr == ""


@pytest.mark.slow
def test_t19_a_program_with_finalizers_of_its_own_ends_though_nobody_closed_the_pool() -> None:
    # A finalizer made before multiprocessing is imported puts weakref's exit handler behind multiprocessing's, which
    # waits for every child that still runs.
    early = "import tempfile; folder = tempfile.TemporaryDirectory()\n"
    with program(early + PROGRAM + "pool = make()", "forkserver", "idle") as trainer:
        ended = trainer.end(5.0)
    assert (ended.code, ended.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("state", ["idle", "under way", "hung"])
def test_t19_a_program_whose_envs_run_in_threads_ends_too(state: str) -> None:
    code = dedent("""
        import sys
        from functools import partial
        import shoal
        from shoal.testing import CountingEnv, FaultEnv

        state = sys.argv[1]
        first = partial(FaultEnv, "hang", at=1) if state == "hung" else CountingEnv
        pool = shoal.make_pool([first, CountingEnv], engine="thread", num_workers=2, close_timeout=0.2)
        pool.reset(seed=0)
        if state != "idle":
            pool.send([0, 0])
        print("ready", flush=True)
        sys.stdin.read()
    """)
    with program(code, state) as trainer:
        ended = trainer.end(5.0)
    assert (ended.code, ended.stderr) == (0, "")


# ---------------------------------------------------------------------- dropped


@pytest.fixture
def hangs() -> Iterator[None]:
    """Lets go of what hangs in a thread of the test's own process."""
    yield
    release_hangs()


def workers_of(pool: shoal.Pool) -> list[psutil.Process]:
    return [psutil.Process(pid) for pid in pool.engine.pids]


def make_two(method: str, **settings: Any) -> shoal.Pool:
    fault = partial(FaultEnv, **{"fault": "slow", "at": 1, "delay_s": 0.0, **settings})
    options = {"engine": "process", "num_workers": 2, "start_method": method, "close_timeout": CLOSE_S}
    return shoal.make_pool([fault, fault], **options)


@pytest.mark.parametrize("method", SOME_METHODS)
@pytest.mark.parametrize("under_way", [False, True], ids=["idle", "under way"])
def test_t19_dropping_the_last_reference_ends_the_workers(method: str, under_way: bool) -> None:
    with no_leftovers():
        pool = make_two(method)
        pool.reset(seed=0)
        if under_way:
            pool.send([0, 0])
        workers = workers_of(pool)
        del pool
        assert_gone(workers)


@pytest.mark.slow
def test_t19_dropping_a_pool_whose_envs_hang_takes_no_longer_than_its_close_deadline() -> None:
    with no_leftovers():
        pool = make_two("forkserver", fault="hang_gil")
        pool.reset(seed=0)
        pool.send([0, 0])
        workers = workers_of(pool)
        start = monotonic()
        del pool
        assert monotonic() - start < CLOSE_S + GRACE_S
        assert_gone(workers, 0.0)


def test_t19_a_batch_that_outlives_its_pool_does_not_keep_the_workers() -> None:
    with no_leftovers():
        pool = shoal.make_pool(CountingEnv, 2, engine="process", num_workers=2, copy=False)
        pool.reset(seed=0)
        batch = pool.step([0, 0])
        before = batch.obs.copy()
        workers = workers_of(pool)
        del pool
        assert_gone(workers)
        assert (batch.obs == before).all()
        del batch


@pytest.mark.parametrize("method", SOME_METHODS)
def test_t19_an_exception_inside_with_goes_through_and_ends_the_workers(method: str) -> None:
    workers: list[psutil.Process] = []

    def train() -> None:
        with make_two(method) as pool:
            pool.reset(seed=0)
            pool.send([0, 0])
            workers.extend(workers_of(pool))
            raise RuntimeError("of the user")

    with pytest.raises(RuntimeError, match="of the user") as caught:
        train()
    assert caught.value.__context__ is None
    assert_gone(workers, 0.0)


@pytest.mark.slow
def test_t19_a_pool_of_threads_that_is_dropped_ends_them_though_an_env_hangs(hangs: None) -> None:
    fns = [partial(FaultEnv, "hang", at=1), CountingEnv]
    pool = shoal.make_pool(fns, engine="thread", num_workers=2, close_timeout=CLOSE_S)
    pool.reset(seed=0)
    pool.send([0, 0])
    # An env that begins to hang after the hangs were released would hang for good.
    end = monotonic() + 10.0
    while "_hang" not in pool.engine._lanes[0].stack():
        assert monotonic() < end, "the env does not hang"
    start = monotonic()
    del pool
    assert monotonic() - start < CLOSE_S + GRACE_S
