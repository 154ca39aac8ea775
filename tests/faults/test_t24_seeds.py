"""T24: what an env does depends on its seed and its actions, and on nothing else, also when envs are built anew."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fault_cases import SEED
from twins import Twins

from shoal import Restart
from shoal.seeding import restart_seed
from shoal.testing import CountingEnv, FaultEnv

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import shoal

NUM_ENVS = 7
FAULTY = 3
NUM_STEPS = 30
AT_ONCE = Restart(backoff_s=0.0)
WAYS: dict[str, dict[str, Any]] = {
    "serial": {"engine": "serial"},
    "thread-1": {"engine": "thread", "num_workers": 1},
    "thread-7": {"engine": "thread", "num_workers": 7},
    "process-1": {"engine": "process", "num_workers": 1},
    "process-2": {"engine": "process", "num_workers": 2},
    "process-7": {"engine": "process", "num_workers": 7},
    "process-2x2": {"engine": "process", "num_workers": 2, "threads_per_worker": 2},
}
slow_processes = pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.slow] * (way.startswith("process"))) for way in WAYS]
)


def envs(fault: str, folder: Path) -> list[Any]:
    fns: list[Any] = [partial(CountingEnv, tag=i) for i in range(NUM_ENVS)]
    fns[FAULTY] = partial(FaultEnv, fault, at=5, once_file=folder / "once", tag=FAULTY)
    return fns


def drawn(turn: int) -> list[int]:
    return np.random.default_rng(turn).integers(0, 5, NUM_ENVS).tolist()


def play(pool: shoal.Pool, autoreset: str) -> list[dict[str, Any]]:
    """Play and hold each row against the twins, which know no engine; returns the faults."""
    twins = Twins(NUM_ENVS, SEED, autoreset)
    twins.take_reset(pool.reset(), SEED)
    for turn in range(NUM_STEPS):
        actions = drawn(turn)
        twins.take(pool.step(actions), actions)
    return twins.told


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@slow_processes
def test_t24_an_env_that_failed_goes_on_alike_everywhere(
    way: str, autoreset: str, tmp_path: Path, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(envs("raise", tmp_path), seed=SEED, autoreset=autoreset, on_fault=AT_ONCE, **WAYS[way])
    (told,) = play(pool, autoreset)
    assert (told["env_id"], told["incarnation"]) == (FAULTY, 1)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 7])
def test_t24_envs_of_other_workers_go_on_alike_through_a_death(
    workers: int, tmp_path: Path, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(envs("kill", tmp_path), seed=SEED, engine="process", num_workers=workers, on_fault=AT_ONCE)
    told = play(pool, "next_step")
    fallen = {1: range(7), 2: range(4), 7: range(3, 4)}[workers]
    assert sorted(fault["env_id"] for fault in told) == list(fallen)


@slow_processes
def test_t24_envs_built_on_demand_go_on_alike_everywhere(way: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool([partial(CountingEnv, tag=i) for i in range(NUM_ENVS)], seed=SEED, **WAYS[way])
    twins = Twins(NUM_ENVS, SEED, "next_step")
    twins.take_reset(pool.reset(), SEED)
    twins.take(pool.step(drawn(0)), drawn(0))
    for twin in twins.twins[2:4]:
        twin.rebuild(1)
    twins.take_reset(pool.restart(env_id=[2, 3]))
    twins.take(pool.step(drawn(1)), drawn(1))


def test_t24_no_two_envs_share_a_stream() -> None:
    first = [SEED + i for i in range(100)]
    later = [restart_seed(SEED + i, i, incarnation) for i in range(100) for incarnation in range(1, 11)]
    assert len({*first, *later}) == len(first) + len(later)
    # Nor do envs that were given the same seed, once they are built anew.
    assert len({restart_seed(SEED, i, 1) for i in range(100)}) == 100


def test_t24_without_a_seed_no_two_pools_do_the_same(make_pool: Callable[..., shoal.Pool]) -> None:
    def draws_after_restart() -> list[float]:
        pool = make_pool(CountingEnv, 8, engine="serial")
        pool.reset()
        return pool.restart().obs[:, 6].tolist()

    first, second = draws_after_restart(), draws_after_restart()
    assert first != second
    assert len(set(first)) > 1


class GlobalDraws(CountingEnv):
    """An env that draws from the generators that all envs of a process share."""

    def draw(self) -> tuple[float, float]:
        import random

        return random.random(), float(np.random.random())

    def die(self) -> None:
        import os

        os._exit(1)


def draws_of(pool: shoal.Pool) -> list[tuple[float, float]]:
    return list(pool.call("draw"))


def local(env_class: type[Any]) -> type[Any]:
    """The class as one that travels to workers by value, since they cannot import the tests."""
    return type(env_class.__name__, env_class.__bases__, {**vars(env_class), "__module__": "__main__"})


@pytest.mark.slow
def test_t24_the_shared_generators_of_workers_differ_and_follow_the_seed(
    make_pool: Callable[..., shoal.Pool],
) -> None:
    def draws(seed: int | None) -> tuple[list[Any], list[Any]]:
        """What three workers draw, first and when the second of them was replaced."""
        fns = [local(GlobalDraws)] * 3
        pool = make_pool(fns, engine="process", num_workers=3, seed=seed, on_fault=AT_ONCE)
        pool.reset()
        before = draws_of(pool)
        with pytest.raises(Exception, match="worker process is gone"):
            pool.call("die", env_id=[1])
        pool.step([0, 0, 0])
        pool.step([0, 0, 0])
        return before, draws_of(pool)

    before, after = draws(SEED)
    assert len({*before, *after}) == 6
    assert draws(SEED) == (before, after)
    assert draws(SEED + 1)[0] != before
    assert draws(None)[0] != draws(None)[0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [np.int64(SEED), [SEED, 7], [None, SEED]], ids=["numpy's int", "list", "gap"])
def test_t24_every_kind_of_seed_reaches_the_shared_generators(seed: Any, make_pool: Callable[..., shoal.Pool]) -> None:
    def draws(seed: Any) -> list[Any]:
        return draws_of(make_pool([local(GlobalDraws)] * 2, engine="process", num_workers=2, seed=seed))

    assert draws(seed) == draws(SEED)
