"""T05 with ``on_fault="drop"``: an env that failed is out, and its rows say so for good."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fault_cases import FAULTY, NEIGHBOURS, SEED, ZEROS, envs_with
from twins import Twins, fault_of

from shoal import errors
from shoal.testing import FaultEnv

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import shoal

ENGINES = ["serial", "thread", "process"]
MODES = ["next_step", "same_step"]
engines = pytest.mark.parametrize("engine", ENGINES)


@engines
@pytest.mark.parametrize("autoreset", MODES)
def test_t05_a_dropped_env_stays_as_it_was(engine: str, autoreset: str, make_pool: Callable[..., shoal.Pool]) -> None:
    fns = envs_with("raise", "step", at=3, episode_length=5)
    pool = make_pool(fns, engine=engine, num_workers=2, autoreset=autoreset, on_fault="drop")
    twins = Twins(4, SEED, autoreset, policy="drop", episode_length=5)
    twins.take_reset(pool.reset(seed=SEED), SEED)
    for turn in range(10):
        actions = [turn % 5] * 4
        twins.take(pool.step(actions), actions)
    (told,) = twins.told
    assert (told["env_id"], told["kind"], told["incarnation"]) == (FAULTY, "EnvStepError", 0)
    stats = pool.stats()
    assert (stats.dropped, stats.faults, stats.restarts) == (1, 1, 0)
    # Its rows are cut short each time, and yet there was one episode.
    lengths = {"next_step": 6, "same_step": 5}
    assert stats.episodes == 1 + 3 * (10 // lengths[autoreset] + (autoreset == "next_step" and 10 % 6 >= 5))


@pytest.mark.parametrize("autoreset", [*MODES, "disabled"])
def test_t05_a_reset_of_all_envs_leaves_out_the_dropped_one(
    autoreset: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(envs_with("raise", "step", at=3), engine="serial", autoreset=autoreset, on_fault="drop")
    twins = Twins(4, SEED, autoreset, policy="drop", episode_length=50)
    twins.take_reset(pool.reset(seed=SEED), SEED)
    for _ in range(3):
        twins.take(pool.step(ZEROS), ZEROS)
    batch = pool.reset(seed=7)
    twins.take_reset(batch, 7)
    assert (batch.truncated.tolist(), len(batch.infos)) == ([False, True, False, False], 0)
    twins.take(pool.step(ZEROS), ZEROS)


def test_t05_without_autoreset_a_dropped_env_does_not_stop_the_others(make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(envs_with("raise", "step", at=2), engine="serial", autoreset="disabled", on_fault="drop")
    twins = Twins(4, SEED, "disabled", policy="drop", episode_length=50)
    twins.take_reset(pool.reset(seed=SEED), SEED)
    for _ in range(6):
        batch = pool.step(ZEROS)
        twins.take(batch, ZEROS)
        over = np.flatnonzero(batch.terminated | batch.truncated).tolist()
        if over:
            twins.take_reset(pool.reset(env_id=over))
    assert pool.stats().dropped == 1


@engines
def test_t05_an_env_that_fails_in_its_reset_is_dropped_with_a_row_of_its_own(
    engine: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(envs_with("raise", "reset", at=2), engine=engine, num_workers=2, on_fault="drop")
    twins = Twins(4, SEED, "next_step", policy="drop", episode_length=50)
    twins.take_reset(pool.reset(seed=SEED), SEED)
    twins.take(pool.step(ZEROS), ZEROS)
    batch = pool.reset(seed=SEED)
    assert (batch.reward[FAULTY], batch.first[FAULTY]) == (0, False)
    twins.take_reset(batch, SEED)
    twins.take(pool.step(ZEROS), ZEROS)
    assert pool.stats().episodes == 0


@engines
def test_t05_an_env_that_cannot_be_built_is_dropped_from_the_start(
    engine: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(envs_with("raise", "init"), engine=engine, num_workers=2, on_fault="drop")
    assert pool.stats().dropped == 1
    batch = pool.reset(seed=SEED)
    assert batch.truncated.tolist() == [False, True, False, False]
    assert not batch.obs[FAULTY].any()
    told = fault_of(batch, FAULTY)
    assert told is not None
    assert (told["kind"], told["phase"]) == ("EnvConstructError", "construct")
    assert pool.step(ZEROS).obs[:, 3].tolist() == [1, 0, 1, 1]


@engines
def test_t05_a_dropped_env_does_not_come_back_in_an_asynchronous_pool(
    engine: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(envs_with("raise", "step", at=2), engine=engine, num_workers=2, batch_size=2, on_fault="drop")
    twins = Twins(4, SEED, "next_step", policy="drop", episode_length=50)
    twins.take_reset(pool.reset(seed=SEED), SEED)
    pool.send(ZEROS)
    after: list[int] = []
    while len(after) < 20 or not set(NEIGHBOURS).issubset(after):
        batch = pool.recv(timeout=10)
        ids = batch.env_id.tolist()
        if twins.told:
            after += ids
        twins.take(batch, ZEROS)
        pool.send([0] * len(ids), ids)  # also to the dropped env, by a caller who does not look
    assert FAULTY not in after
    while not pool._dispatch.traffic.is_empty:
        assert FAULTY not in pool.recv(timeout=10).env_id
    pool.send([0], [FAULTY])
    with pytest.raises(errors.NothingInFlight):
        pool.recv(timeout=10)


@pytest.mark.parametrize("engine", ["serial", "process"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_t05_the_last_env_that_fails_raises(
    engine: str, asynchronous: bool, make_pool: Callable[..., shoal.Pool]
) -> None:
    fns = [partial(FaultEnv, "raise", at=2 + i, tag=i, episode_length=50) for i in range(3)]
    options: dict[str, Any] = {"engine": engine, "num_workers": 2, "batch_size": 1 if asynchronous else None}
    pool = make_pool(fns, on_fault="drop", **options)
    twins = Twins(3, SEED, "next_step", policy="drop", episode_length=50)
    twins.take_reset(pool.reset(seed=SEED), SEED)
    pool.send([0] * 3)

    def play() -> None:
        for _ in range(30):
            batch = pool.recv(timeout=10)
            twins.take(batch, [0] * 3)
            pool.send([0] * len(batch), batch.env_id)

    with pytest.raises(errors.EnvStepError) as caught:
        play()
    assert "every env of the pool has failed and was dropped" in caught.value.__notes__[-1]
    assert pool.stats().dropped == 3
    # Once more, for those who went on all the same.
    with pytest.raises(errors.ShoalError):
        pool.step([0] * 3)
    for going_on in (pool.reset, partial(pool.send, [0] * 3)):
        with pytest.raises(errors.StateError, match=r"every env .* was dropped: restart\(\) brings them back"):
            going_on()
    assert pool.restart(seed=SEED).first.all()
    assert pool.stats().dropped == 0


@engines
def test_t05_restart_brings_a_dropped_env_back(
    engine: str, tmp_path: Path, make_pool: Callable[..., shoal.Pool]
) -> None:
    fns = envs_with("raise", "step", at=1, once_file=tmp_path / "once")
    pool = make_pool(fns, engine=engine, num_workers=2, on_fault="drop")
    twins = Twins(4, SEED, "next_step", policy="drop", episode_length=50)
    twins.take_reset(pool.reset(seed=SEED), SEED)
    twins.take(pool.step(ZEROS), ZEROS)
    with pytest.raises(errors.StateError, match=r"envs \[1\] failed and were dropped: restart\(\)"):
        pool.get_attr("tag")
    twins.twins[FAULTY].rebuild(1)
    twins.take_reset(pool.restart(env_id=[FAULTY]))
    for _ in range(3):
        twins.take(pool.step(ZEROS), ZEROS)
    assert pool.get_attr("tag") == (0, 1, 2, 3)
    assert (pool.stats().dropped, pool.stats().restarts) == (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", "hang"])
def test_t05_envs_that_fell_with_a_worker_are_dropped_together(
    fault: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    fns = envs_with(fault, "step", at=2)
    pool = make_pool(fns, engine="process", num_workers=2, on_fault="drop", step_timeout=0.5)
    twins = Twins(4, SEED, "next_step", policy="drop", episode_length=50)
    twins.take_reset(pool.reset(seed=SEED), SEED)
    for _ in range(4):
        twins.take(pool.step(ZEROS), ZEROS)
    assert [told["env_id"] for told in twins.told] == [0, 1]
    assert pool.stats().dropped == 2
    batch = pool.restart(env_id=[0])
    assert batch.first.all()
    assert pool.stats().dropped == 1
    assert pool.step(ZEROS).obs[:, 3].tolist() == [1, 1, 5, 5]
