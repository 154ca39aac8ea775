"""T08: how often and how fast an env is built anew. In tests/test_recovery.py, the same to the tick of a clock."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest
from fault_cases import FAULTY, SEED, ZEROS, envs_with
from twins import Twins, fault_of

from shoal import Restart, errors

if TYPE_CHECKING:
    from collections.abc import Callable

    import shoal


def steps_until_it_raises(pool: shoal.Pool, most: int = 20) -> tuple[int, errors.FaultError]:
    for count in range(most):
        try:
            pool.step(ZEROS)
        except errors.FaultError as error:
            return count, error
    pytest.fail("it never raised")


def test_t08_a_fault_after_the_last_restart_raises_and_tells_the_history(
    engine: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(
        envs_with("raise", "step", at=2), engine=engine, num_workers=2, on_fault=Restart(budget=2, backoff_s=0.0)
    )
    pool.reset(seed=SEED)
    count, error = steps_until_it_raises(pool)
    # Two lives of a step, a fault and a first row each, then a step and the fault that is one too many.
    assert count == 7
    assert isinstance(error, errors.EnvStepError)
    assert error.env_ids == (FAULTY,)
    history = error.__notes__[-1]
    assert history.startswith("Env 1 has used up its 2 restarts. Its faults:\n")
    assert history.count("InjectedFault: injected fault in step, call 2 of env 1") == 3
    assert (pool.stats().faults, pool.stats().restarts) == (3, 2)
    # Nobody else has lost a row, and the env is one that has failed, until it is reset.
    assert pool.recv(timeout=10).env_id.tolist() == [0, 2, 3]
    with pytest.raises(errors.StateError, match=r"envs \[1\] failed earlier"):
        pool.step(ZEROS)
    batch = pool.reset(seed=SEED)
    assert (batch.first.all(), batch.truncated.any(), len(batch.infos)) == (True, False, 0)


def test_t08_without_any_restarts_the_first_fault_raises(make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(envs_with("raise", "step", at=1), engine="serial", on_fault=Restart(budget=0))
    pool.reset(seed=SEED)
    count, error = steps_until_it_raises(pool)
    assert count == 0
    assert "has used up its 0 restarts" in error.__notes__[-1]


@pytest.mark.parametrize("where", ["init", "reset"])
def test_t08_an_env_that_never_works_does_not_keep_its_pool_for_ever(
    where: str, engine: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(envs_with("raise", where), engine=engine, num_workers=2, on_fault=Restart(budget=3, backoff_s=0.0))
    if where == "reset":
        # Each new self fails in its first reset, as the first did.
        with pytest.raises(errors.EnvResetError) as caught:
            pool.reset(seed=SEED)
        faults = 4
    else:
        with pytest.raises(errors.EnvConstructError) as caught:
            pool.reset(seed=SEED)
        faults = 4
    assert "Env 1 has used up its 3 restarts" in caught.value.__notes__[-1]
    assert (pool.stats().faults, pool.stats().restarts) == (faults, 3)
    assert pool.recv(timeout=10).env_id.tolist() == [0, 2, 3]


def test_t08_no_restarts_at_all_and_an_env_that_cannot_be_built_is_no_pool(
    make_pool: Callable[..., shoal.Pool],
) -> None:
    with pytest.raises(errors.EnvConstructError) as caught:
        make_pool(envs_with("raise", "init"), engine="serial", on_fault=Restart(budget=0))
    assert "Env 1 has used up its 0 restarts" in caught.value.__notes__[-1]


@pytest.mark.parametrize("engine", ["serial", "thread"])
def test_t08_the_second_restart_in_a_row_waits_and_the_others_do_not_wait_with_it(
    engine: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    wait_s = 0.3
    pool = make_pool(
        envs_with("raise", "step", at=1, repeat=True),
        engine=engine,
        batch_size=1,
        on_fault=Restart(backoff_s=wait_s),
    )
    twins = Twins(4, SEED, "next_step", episode_length=50)
    twins.take_reset(pool.reset(seed=SEED), SEED)
    pool.send(ZEROS)
    fault_at: list[float] = []
    first_at: list[float] = []
    others = 0
    while len(first_at) < 2:
        batch = pool.recv(timeout=20)
        twins.take(batch, ZEROS)
        if batch.env_id[0] != FAULTY:
            others += 1
        else:
            (fault_at if fault_of(batch, FAULTY) else first_at).append(monotonic())
        pool.send([0], batch.env_id)
    assert first_at[0] - fault_at[0] < wait_s
    assert first_at[1] - fault_at[1] >= wait_s * 0.9
    assert others > 20


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_t08_a_pool_that_only_waits_for_a_restart_sleeps(autoreset: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(
        envs_with("raise", "step", at=1, repeat=True)[FAULTY : FAULTY + 1],
        engine="serial",
        autoreset=autoreset,
        on_fault=Restart(backoff_s=0.1, longest_s=0.1),
    )
    pool.reset(seed=SEED)
    start = monotonic()
    faults = [fault_of(pool.step([0]), 0) for _ in range(4)]
    assert [fault is not None for fault in faults] == ([True, False] * 2 if autoreset == "next_step" else [True] * 4)
    waits = 1 if autoreset == "next_step" else 3
    assert waits * 0.1 <= monotonic() - start < waits * 0.1 + 2.0


def test_t08_a_wait_can_be_cut_short_and_the_reset_still_waits(make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(
        envs_with("raise", "step", at=1, repeat=True),
        engine="serial",
        autoreset="same_step",
        on_fault=Restart(backoff_s=0.15, longest_s=0.15),
    )
    twins = Twins(4, SEED, "same_step", episode_length=50)
    twins.take_reset(pool.reset(seed=SEED), SEED)
    twins.take(pool.step(ZEROS), ZEROS)
    pool.send(ZEROS)
    with pytest.raises(errors.RecvTimeout):
        pool.recv(timeout=0.05)
    # The row that was to tell of the fault is not wanted any more: the reset tells of it, and begins an episode.
    batch = pool.reset(seed=3)
    twins.take_reset(batch, 3)
    assert fault_of(batch, FAULTY) is not None
    assert not batch.truncated.any()
    assert sum(told["attempts"] for told in twins.told) == pool.stats().faults == 2
    twins.take(pool.step(ZEROS), ZEROS)


SHARES: dict[str, Any] = {"engine": "process", "num_workers": 2}


@pytest.mark.slow
def test_t08_an_env_that_falls_with_its_neighbour_pays_nothing(make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(envs_with("kill", "step", at=1, repeat=True), on_fault=Restart(budget=3, backoff_s=0.0), **SHARES)
    pool.reset(seed=SEED)
    count, error = steps_until_it_raises(pool)
    assert count == 6
    assert isinstance(error, errors.WorkerDied)
    assert "Env 1 has used up its 3 restarts" in error.__notes__[-1]
    # Env 0 fell four times as well, and is built anew all the same.
    batch = pool.recv(timeout=10)
    assert batch.env_id.tolist() == [0, 2, 3]
    assert fault_of(batch, 0) is not None
