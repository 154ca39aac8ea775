"""Playing a pool, and judging what came of it: what the rules for engines are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.batch import Batch
    from shoal.errors import FaultError
    from shoal.pool import Pool

_E = TypeVar("_E", bound=BaseException)


def play(pool: Pool, num_steps: int) -> list[Batch]:
    """A seeded run with actions of every kind that the space has; ended envs are reset if the pool does not do it."""
    pool.spec.action.space.seed(1)
    batches = [pool.reset(seed=5)]
    for _ in range(num_steps):
        samples = [pool.spec.action.flatten(pool.spec.action.space.sample()) for _ in range(pool.num_envs)]
        batches.append(pool.step(pool.spec.action.unflatten([np.array(leaf) for leaf in zip(*samples, strict=True)])))
        over = np.flatnonzero(batches[-1].terminated | batches[-1].truncated).tolist()
        if over and pool.autoreset == "disabled":
            batches.append(pool.reset(env_id=over))
    return batches


def plain(batch: Batch) -> dict[str, Any]:
    """The parts of a batch by name, with its infos by row."""
    parts: dict[str, Any] = {name: getattr(batch, name) for name in batch.__slots__}
    parts["infos"] = dict(batch.infos)
    return parts


def rows_by_env(batches: Sequence[Batch]) -> dict[int, list[Any]]:
    """For each env its rows in order of arrival: observation, reward, flags, marks and info."""
    rows: dict[int, list[Any]] = {}
    for batch in batches:
        infos = dict(batch.infos)
        for row, env_id in enumerate(batch.env_id.tolist()):
            columns = (batch.obs, batch.reward, batch.terminated, batch.truncated, batch.elapsed_step, batch.first)
            rows.setdefault(env_id, []).append(([column[row] for column in columns], infos.get(row)))
    return dict(sorted(rows.items()))


def assert_same(mine: Any, theirs: Any, path: str) -> None:
    """Deep equality, types and dtypes included; the message gives the path to the first difference."""
    assert type(mine) is type(theirs), f"{path} is a {type(mine).__name__}, expected {type(theirs).__name__}"
    if isinstance(theirs, dict):
        assert mine.keys() == theirs.keys(), f"{path} has keys {sorted(mine)}, expected {sorted(theirs)}"
        for key in theirs:
            assert_same(mine[key], theirs[key], f"{path}[{key!r}]")
    elif isinstance(theirs, (list, tuple)) or (isinstance(theirs, np.ndarray) and theirs.dtype == object):
        assert len(mine) == len(theirs), f"{path} has {len(mine)} items, expected {len(theirs)}"
        for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            assert_same(a, b, f"{path}[{i}]")
    elif isinstance(theirs, np.ndarray):
        assert mine.dtype == theirs.dtype, f"{path} has dtype {mine.dtype}, expected {theirs.dtype}"
        assert np.array_equal(mine, theirs), f"{path} is {mine}, expected {theirs}"
    else:
        assert mine == theirs, f"{path} is {mine!r}, expected {theirs!r}"


def assert_ids(batch: Batch, ids: Sequence[int]) -> None:
    """The rows are those of these envs, in this order."""
    assert batch.env_id.tolist() == list(ids), f"rows came for envs {batch.env_id.tolist()}, expected {list(ids)}"


def assert_told(error: FaultError, env_id: int, phase: str, cause: type[BaseException], text: str) -> None:
    """The error says everything that helps to find the fault."""
    assert error.env_ids == (env_id,), f"the error names envs {error.env_ids}, expected {env_id}: {error}"
    assert error.where.phase == phase, f"the error names phase {error.where.phase!r}, expected {phase!r}: {error}"
    assert f"env {env_id}" in str(error), f"the text does not name env {env_id}: {error}"
    assert text in str(error), f"the text does not say {text!r}: {error}"
    assert isinstance(error.__cause__, cause), f"the cause is {error.__cause__!r}, expected a {cause.__name__}"
    assert "Traceback" in error.remote_traceback, f"there is no traceback of the env's side: {error.__notes__}"


def caught(kind: type[_E], call: Callable[[], Any]) -> _E:
    """The exception of this kind that the call raises."""
    try:
        result = call()
    except kind as error:
        return error
    except Exception as error:
        raise AssertionError(f"{type(error).__name__} came instead of {kind.__name__}: {error}") from error
    raise AssertionError(f"{kind.__name__} was not raised; the call returned {result!r:.200}")
