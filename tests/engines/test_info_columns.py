"""Infos that an env declares in ``info_columns`` come as columns, on every engine that runs Python envs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from shoal.spec import Field

if TYPE_CHECKING:
    from collections.abc import Callable

    import shoal


class Telling(gym.Env[Any, Any]):
    """Counts; tells the count in two columns, and a word beside them when it is odd."""

    observation_space = spaces.Box(0, 9, (1,), np.int64)
    action_space = spaces.Discrete(2)
    info_columns = (Field("count", np.dtype(np.int32), ()), Field("pair", np.dtype(np.float32), (2,)))

    def __init__(self, length: int = 3) -> None:
        self.count, self.length = 0, length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self._obs(), self._info()

    def step(self, action: Any) -> Any:
        self.count += 1
        return self._obs(), 1.0, self.count == self.length, False, self._info()

    def _obs(self) -> Any:
        return np.array([self.count])

    def _info(self) -> dict[str, Any]:
        odd = {"word": "odd"} if self.count % 2 else {"pair": np.full(2, self.count)}
        return {"count": self.count, **odd}


class Falling(Telling):
    """Tells nothing after its first step."""

    def _info(self) -> dict[str, Any]:
        return super()._info() if self.count < 2 else {}


class Misspelt(Telling):
    """Means something else by the name."""

    info_columns = ("count",)  # type: ignore[assignment]


def test_what_is_told_no_more_is_zero(make_pool: Callable[..., shoal.Pool], engine: str) -> None:
    pool = make_pool(Falling, 2, engine=engine, env_kwargs={"length": 9})
    pool.reset(seed=0)
    told = [pool.step(np.zeros(2, int)).fields["count"].tolist() for _ in range(4)]
    assert told == [[1, 1], [0, 0], [0, 0], [0, 0]]


def test_columns_and_the_rest(make_pool: Callable[..., shoal.Pool], engine: str) -> None:
    pool = make_pool(Telling, 2, engine=engine, num_workers=2)
    batch = pool.reset(seed=0)
    assert (batch.fields["count"].dtype, batch.fields["count"].tolist()) == (np.int32, [0, 0])
    batch = pool.step(np.zeros(2, int))
    assert batch.fields["count"].tolist() == [1, 1]
    assert batch.fields["pair"].tolist() == [[0.0, 0.0]] * 2, "what is not told is zero"
    assert [info for _, info in batch.infos] == [{"word": "odd"}] * 2
    batch = pool.step(np.zeros(2, int))
    assert batch.fields["pair"].tolist() == [[2.0, 2.0]] * 2
    assert not batch.infos


def test_the_last_info_of_an_episode(make_pool: Callable[..., shoal.Pool], engine: str) -> None:
    pool = make_pool(Telling, 2, engine=engine, num_workers=2, autoreset="same_step")
    pool.reset(seed=0)
    for _ in range(3):
        batch = pool.step(np.zeros(2, int))
    assert batch.fields["count"].tolist() == [0, 0]
    assert [batch.finals[row][1]["count"] for row in range(2)] == [3, 3]


@pytest.mark.parametrize("kind", [Misspelt])
def test_other_envs_may_use_the_name(make_pool: Callable[..., shoal.Pool], kind: type) -> None:
    batch = make_pool(kind, 2, engine="serial").reset(seed=0)
    assert not batch.fields
    assert [info["count"] for _, info in batch.infos] == [0, 0]
