"""What an env may do wrong in the serial, thread and process engines: every fault is named, and harms nobody else."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from gymnasium import spaces

from shoal import errors
from shoal.testing import CountingEnv, FaultEnv, read_row

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import shoal

FAULTY = 1
NEIGHBOURS = [0, 2, 3]
NEVER = 10**9
ZEROS = [0] * 4
CLOSE_LIMIT_S = 5.0
ERROR_OF = {"reset": errors.EnvResetError, "step": errors.EnvStepError}


def envs_with(fault: str, where: str, at: int = 1, **settings: Any) -> list[Any]:
    """Four envs of the same spaces; only env 1 is faulty."""
    settings = {"episode_length": 50, **settings}
    if where in ("init", "close"):
        fns = [partial(CountingEnv, tag=i, **settings) for i in range(4)]
    else:
        fns = [partial(FaultEnv, fault, where=where, at=NEVER, tag=i, **settings) for i in range(4)]
    fns[FAULTY] = partial(FaultEnv, fault, where=where, at=at, tag=FAULTY, **settings)
    return fns


def options_of(engine: str) -> dict[str, Any]:
    return {"engine": engine, "num_workers": 2 if engine == "process" else None}


def provoke(pool: shoal.Pool, where: str) -> errors.FaultError:
    """The error that the first reset, or the first step after it, raises."""
    if where == "step":
        pool.reset(seed=0)
    call = partial(pool.reset, seed=0) if where == "reset" else partial(pool.step, ZEROS)
    with pytest.raises(ERROR_OF[where]) as caught:
        call()
    return caught.value


def rows_of(batch: shoal.Batch) -> list[Any]:
    return [read_row(obs) for obs in (batch.obs["row"] if isinstance(batch.obs, dict) else batch.obs)]


@pytest.mark.parametrize("fault", ["slow", "leak_memory"])
@pytest.mark.parametrize("where", ["init", "reset", "step", "close"])
def test_a_nuisance_is_no_fault(fault: str, where: str, engine: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(envs_with(fault, where), **options_of(engine))
    pool.reset(seed=0)
    assert [row.step for row in rows_of(pool.step(ZEROS))] == [1] * 4


def test_several_faults_in_one_batch_are_all_told(engine: str, make_pool: Callable[..., shoal.Pool]) -> None:
    fns = envs_with("raise", "step")
    fns[3] = partial(FaultEnv, "raise", at=1, tag=3, episode_length=50)
    pool = make_pool(fns, **options_of(engine))
    error = provoke(pool, "step")
    assert error.env_ids == (FAULTY,)
    assert any("failed in env 3" in note for note in error.__notes__)
    assert pool.recv(timeout=10).env_id.tolist() == [0, 2]


def test_a_fault_in_an_asynchronous_pool_comes_once_and_the_others_go_on(
    engine: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(envs_with("raise", "step"), batch_size=1, **options_of(engine))
    pool.reset(seed=0)
    pool.send(ZEROS)
    came, faults = [], []
    for _ in range(4):
        try:
            came += pool.recv(timeout=10).env_id.tolist()
        except errors.EnvStepError as error:
            faults += error.env_ids
    assert (sorted(came), faults) == (NEIGHBOURS, [FAULTY])
    with pytest.raises(errors.NothingInFlight):
        pool.recv(timeout=0)


def test_a_fault_under_same_step_in_the_reset_that_follows_the_end_is_a_step_fault(
    engine: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(envs_with("raise", "reset", at=2, episode_length=1), autoreset="same_step", **options_of(engine))
    pool.reset(seed=0)
    with pytest.raises(errors.EnvStepError, match="injected fault in reset") as caught:
        pool.step(ZEROS)
    assert caught.value.env_ids == (FAULTY,)
    batch = pool.recv(timeout=10)
    assert batch.env_id.tolist() == NEIGHBOURS
    assert sorted(batch.finals) == [0, 1, 2]


@pytest.mark.parametrize("space", [spaces.Discrete(3), None], ids=["another", "none"])
def test_an_env_that_is_built_anew_with_spaces_that_will_not_do_is_closed(
    space: Any, engine: str, tmp_path: Path, make_pool: Callable[..., shoal.Pool]
) -> None:
    class Changing(CountingEnv):
        def __init__(self) -> None:
            super().__init__()
            self.number = len(list(tmp_path.glob("built-*")))
            (tmp_path / f"built-{self.number}").touch()
            if self.number:
                self.observation_space = space

        def close(self) -> None:
            (tmp_path / f"closed-{self.number}").touch()

    pool = make_pool([Changing], engine=engine)
    pool.reset(seed=0)
    with pytest.raises(errors.EnvConstructError):
        pool.restart()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["built-0", "built-1", "closed-0", "closed-1"]
