"""T05: the process of an env dies, in its constructor, reset, step or close.

Envs 0 and 1 share the first of two workers, envs 2 and 3 the second. Env 1 is the one that brings its worker down.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from fault_cases import FAULTY, NEIGHBOURS, SEED, ZEROS, close_in_time, envs_with
from twins import Twins, fault_of

from shoal import Restart, errors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import shoal

HOW_IT_ENDED = {
    "exit": "exited with code 3",
    "kill": "killed by SIGKILL",
    "segv": "killed by SIGSEGV",
    "bus": "killed by SIGBUS",
    "abort": "killed by SIGABRT",
}
# What faulthandler can still say of a death that comes as a signal which it can catch.
LAST_WORDS = {
    "segv": "Fatal Python error: Segmentation fault",
    "bus": "Fatal Python error: Bus error",
    "abort": "Fatal Python error: Aborted",
}
PROCESSES: dict[str, Any] = {"engine": "process", "num_workers": 2}
AT_ONCE = Restart(backoff_s=0.0)
CALLS = ("reset", "step")

# One way to die is enough for the first stage: the others differ in what is said, not in what is done.
deaths = pytest.mark.parametrize(
    "death", [pytest.param(death, marks=[pytest.mark.slow] * (death != "segv")) for death in HOW_IT_ENDED]
)
slow_reset = pytest.mark.parametrize("where", [pytest.param("reset", marks=pytest.mark.slow), "step"])


def once_in_the_making(fault: str, folder: Path) -> list[Any]:
    """Four envs, of which env 1 can be built at the second try."""
    fns = envs_with(fault, "init")
    fns[FAULTY] = partial(fns[FAULTY], once_file=folder / "once")
    return fns


def assert_explained(error: errors.FaultError, death: str) -> None:
    assert HOW_IT_ENDED[death] in str(error)
    assert LAST_WORDS.get(death, "") in error.remote_traceback


@deaths
@slow_reset
def test_t05_a_death_is_explained_and_the_pool_closes(
    death: str, where: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(envs_with(death, where, at=2), **PROCESSES)
    pool.reset(seed=SEED)
    if where == "step":
        pool.step(ZEROS)
    pid = pool.engine.pids[0]
    with pytest.raises(errors.WorkerDied) as caught:
        _ = pool.reset(seed=SEED) if where == "reset" else pool.step(ZEROS)
    error = caught.value
    assert_explained(error, death)
    assert (error.env_ids, error.where.worker, error.where.pid, error.where.phase) == ((0, 1), 0, pid, where)
    assert "(env 1 was at work)" in str(error)
    assert pool.recv(timeout=10).env_id.tolist() == [2, 3]
    close_in_time(pool)


@deaths
def test_t05_a_death_in_a_constructor_is_explained(death: str, make_pool: Callable[..., shoal.Pool]) -> None:
    with pytest.raises(errors.EnvConstructError) as caught:
        make_pool(envs_with(death, "init"), **PROCESSES)
    assert_explained(caught.value, death)
    assert caught.value.env_ids == (FAULTY,)


@deaths
def test_t05_a_death_in_close_is_nobodys_business(death: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(envs_with(death, "close"), **PROCESSES)
    pool.reset(seed=SEED)
    close_in_time(pool)


# ---------------------------------------------------------------------- with restart


@pytest.mark.slow
@pytest.mark.parametrize("death", HOW_IT_ENDED)
@pytest.mark.parametrize("where", CALLS)
@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_t05_a_dead_worker_is_replaced_and_the_others_notice_nothing(
    death: str, where: str, autoreset: str, tmp_path: Path, make_pool: Callable[..., shoal.Pool]
) -> None:
    fns = envs_with(death, where, at=2, once_file=tmp_path / "once", episode_length=5)
    pool = make_pool(fns, on_fault=AT_ONCE, autoreset=autoreset, **PROCESSES)
    twins = Twins(4, SEED, autoreset, episode_length=5)
    twins.take_reset(pool.reset(seed=SEED), SEED)
    for turn in range(12):
        actions = [turn % 5] * 4
        twins.take(pool.step(actions), actions)
    # Env 0 fell with its neighbour, and both have told so once; envs 2 and 3 have nothing to tell.
    assert sorted(told["env_id"] for told in twins.told) == [0, 1]
    assert {told["kind"] for told in twins.told} == {"WorkerDied"}
    for told in twins.told:
        assert HOW_IT_ENDED[death] in told["message"]
        assert LAST_WORDS.get(death, "") in told["traceback"]
        assert "(env 1 was at work)" in told["message"]
        assert (told["incarnation"], told["attempts"]) == (1, 1)
    assert (pool.stats().faults, pool.stats().restarts) == (2, 2)
    close_in_time(pool)


def test_t05_a_worker_that_dies_is_replaced_once_for_all_its_envs(make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(envs_with("kill", "step", at=2), on_fault=AT_ONCE, **PROCESSES)
    twins = Twins(4, SEED, "next_step", episode_length=50)
    twins.take_reset(pool.reset(seed=SEED), SEED)
    first = list(pool.engine.pids)
    for _ in range(3):
        twins.take(pool.step(ZEROS), ZEROS)
    now = list(pool.engine.pids)
    assert (now[0] != first[0], now[1] == first[1]) == (True, True)
    assert [told["env_id"] for told in twins.told] == [0, 1]
    close_in_time(pool)


@pytest.mark.parametrize("engine", ["serial", "thread", "process"])
@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_t05_an_exception_costs_nobody_but_its_env_a_row(
    engine: str, autoreset: str, tmp_path: Path, make_pool: Callable[..., shoal.Pool]
) -> None:
    fns = envs_with("raise", "step", at=3, once_file=tmp_path / "once", episode_length=None)
    options = PROCESSES if engine == "process" else {"engine": engine, "num_workers": 2}
    pool = make_pool(fns, on_fault=AT_ONCE, autoreset=autoreset, **options)
    twins = Twins(4, SEED, autoreset, episode_length=None)
    twins.take_reset(pool.reset(seed=SEED), SEED)
    for turn in range(20):
        actions = [turn % 5] * 4
        twins.take(pool.step(actions), actions)
    (told,) = twins.told
    assert (told["env_id"], told["kind"], told["phase"], told["incarnation"]) == (FAULTY, "EnvStepError", "step", 1)
    assert "InjectedFault: injected fault in step, call 3 of env 1" in told["message"]
    assert "testing/kinds.py" in told["traceback"]


@pytest.mark.parametrize("engine", ["serial", "thread", "process"])
def test_t05_a_reset_that_fails_is_tried_again_and_tells_of_it(
    engine: str, tmp_path: Path, make_pool: Callable[..., shoal.Pool]
) -> None:
    fns = envs_with("raise", "reset", at=2, once_file=tmp_path / "once")
    pool = make_pool(fns, engine=engine, num_workers=2, on_fault=AT_ONCE)
    twins = Twins(4, SEED, "next_step", episode_length=50)
    twins.take_reset(pool.reset(seed=SEED), SEED)
    twins.take_reset(pool.reset(seed=7), 7)
    (told,) = twins.told
    assert (told["kind"], told["phase"], told["attempts"]) == ("EnvResetError", "reset", 1)
    twins.take(pool.step(ZEROS), ZEROS)
    twins.take_reset(pool.reset())
    assert pool.stats().resets == 12


@pytest.mark.parametrize("engine", ["serial", "thread", "process"])
def test_t05_a_pool_starts_without_an_env_that_cannot_be_built_and_builds_it_at_the_first_reset(
    engine: str, tmp_path: Path, make_pool: Callable[..., shoal.Pool]
) -> None:
    fns = once_in_the_making("raise", tmp_path)
    pool = make_pool(fns, engine=engine, num_workers=2, on_fault=AT_ONCE, seed=SEED)
    assert pool.stats().faults == 1
    twins = Twins(4, SEED, "next_step", episode_length=50)
    batch = pool.reset()
    twins.take_reset(batch, SEED)
    told = fault_of(batch, FAULTY)
    assert told is not None
    assert (told["kind"], told["phase"], told["attempts"]) == ("EnvConstructError", "construct", 1)
    assert all(fault_of(batch, i) is None for i in NEIGHBOURS)
    twins.take(pool.step(ZEROS), ZEROS)


@pytest.mark.slow
@pytest.mark.parametrize("death", ["kill", "exit"])
def test_t05_a_pool_starts_without_the_envs_of_a_worker_that_died_while_building(
    death: str, tmp_path: Path, make_pool: Callable[..., shoal.Pool]
) -> None:
    fns = once_in_the_making(death, tmp_path)
    pool = make_pool(fns, on_fault=AT_ONCE, seed=SEED, **PROCESSES)
    twins = Twins(4, SEED, "next_step", episode_length=50)
    twins.take_reset(pool.reset(), SEED)
    assert [(told["env_id"], told["phase"]) for told in twins.told] == [(0, "construct"), (1, "construct")]
    twins.take(pool.step(ZEROS), ZEROS)
    close_in_time(pool)


@pytest.mark.parametrize("engine", ["serial", "thread", "process"])
def test_t05_a_pool_without_a_single_env_does_not_start(engine: str, make_pool: Callable[..., shoal.Pool]) -> None:
    faulty = envs_with("raise", "init")[FAULTY]
    with pytest.raises(errors.EnvConstructError, match=r"2 env\(s\) could not be built"):
        make_pool([faulty] * 2, engine=engine, num_workers=2, on_fault="restart")


def test_t05_a_call_builds_the_env_that_died(make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(envs_with("kill", "step", at=1), on_fault=AT_ONCE, **PROCESSES)
    twins = Twins(4, SEED, "next_step", episode_length=50)
    twins.take_reset(pool.reset(seed=SEED), SEED)
    twins.take(pool.step(ZEROS), ZEROS)
    assert pool.get_attr("tag") == (0, 1, 2, 3)
    twins.take(pool.step(ZEROS), ZEROS)
    assert pool.stats().restarts == 2


@pytest.mark.parametrize("policy", ["raise", "restart", "drop"])
def test_t05_restart_brings_back_envs_that_died(policy: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(envs_with("kill", "step", at=1), on_fault=policy, **PROCESSES)
    pool.reset(seed=SEED)
    if policy == "raise":
        with pytest.raises(errors.WorkerDied):
            pool.step(ZEROS)
        pool.recv(timeout=10)
    else:
        pool.step(ZEROS)
    batch = pool.restart(env_id=[1, 0], seed=[5, 6])
    assert (batch.env_id.tolist(), batch.first.tolist(), batch.truncated.tolist()) == ([1, 0], [True] * 2, [False] * 2)
    reference = Twins(4, SEED, "next_step", episode_length=50)
    for twin, seed in zip(reference.twins[:2], (6, 5), strict=True):
        twin.reset(seed)
    assert (batch.obs[0] == reference.twins[1].last).all()
    assert (batch.obs[1] == reference.twins[0].last).all()
    assert (pool.get_attr("tag"), pool.stats().dropped) == ((0, 1, 2, 3), 0)
