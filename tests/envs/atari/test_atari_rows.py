"""Games that keep their pictures in the rows of a pool: each is copied once, and is what it would be otherwise."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from places import PLACES

pytest.importorskip("ale_py")
import shoal
from shoal.envs.atari.env import AtariEnv

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.batch import Batch

MODES = ("next_step", "same_step", "disabled")
# Played at random, a life of Breakout takes some 30 steps.
LIVES: dict[str, Any] = {"task": "breakout", "img_height": 20, "img_width": 20, "noop_max": 5, "episodic_life": True}


class Apart(AtariEnv):
    """Is not asked to keep anything in a row: that takes the very class."""


class Negative(gym.ObservationWrapper[Any, Any, Any]):
    """Shows something else than what the env keeps."""

    @property
    def info_columns(self) -> Any:
        return self.unwrapped.info_columns  # type: ignore[attr-defined]

    def observation(self, observation: Any) -> Any:
        return 255 - observation


def negative(kind: type[AtariEnv], **options: Any) -> Negative:
    return Negative(kind(**options))


def rows_of(batch: Batch) -> list[Any]:
    finals = {row: obs.tobytes() for row, (obs, _) in batch.finals.items()}
    flags = (batch.terminated, batch.truncated, batch.first, batch.elapsed_step)
    columns = (batch.obs, batch.reward, *flags, *batch.fields.values())
    return [*(column.tobytes() for column in columns), finals]


def play_both(one: shoal.Pool, other: shoal.Pool, steps: int) -> int:
    """Play the same in two pools and compare every row; returns the number of episodes that have ended."""
    rng = np.random.default_rng(0)
    assert rows_of(one.reset(seed=3)) == rows_of(other.reset(seed=3))
    for _ in range(steps):
        actions = rng.integers(0, 4, one.num_envs)
        batch = one.step(actions)
        assert rows_of(batch) == rows_of(other.step(actions))
        over = batch.env_id[batch.terminated | batch.truncated]
        if one.autoreset == "disabled" and len(over):
            assert rows_of(one.reset(env_id=over)) == rows_of(other.reset(env_id=over))
    return one.stats().episodes


def is_in_row(pool: shoal.Pool, env: Any) -> bool:
    column: Any = pool.engine.rows.obs[0]
    return np.shares_memory(env.unwrapped._stack, column)


@pytest.mark.parametrize(
    ("place", "autoreset"),
    [
        pytest.param(*each, marks=[] if each == ("serial", "same_step") else pytest.mark.slow)
        for each in product(PLACES, MODES)
    ],
)
def test_rows_are_those_of_games_that_keep_their_pictures_apart(
    place: str, autoreset: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    one, other = (
        make_pool(partial(kind, **LIVES), 2, autoreset=autoreset, **where)
        for kind, where in ((AtariEnv, PLACES[place]), (Apart, PLACES["serial"]))
    )
    assert play_both(one, other, 100) > 2


@pytest.mark.slow
@pytest.mark.parametrize("autoreset", MODES)
def test_a_wrapper_that_changes_the_pictures(autoreset: str, make_pool: Callable[..., shoal.Pool]) -> None:
    options = {"autoreset": autoreset, "engine": "serial"}
    one, other = (make_pool(partial(negative, kind, **LIVES), 2, **options) for kind in (AtariEnv, Apart))
    assert play_both(one, other, 100) > 2


@pytest.mark.parametrize("size", [{}, {"gray_scale": False, "stack_num": 1}], ids=["gray", "colours"])
@pytest.mark.parametrize(
    ("kind", "options", "is_there"),
    [
        (AtariEnv, {}, True),
        (AtariEnv, {"copy": False}, False),
        (AtariEnv, {"engine": "thread"}, False),
        (Apart, {}, False),
        (partial(negative, AtariEnv), {}, False),
    ],
    ids=["copies", "views", "thread", "subclass", "wrapper"],
)
def test_where_the_pictures_are(
    kind: Any, options: dict[str, Any], is_there: bool, size: dict[str, Any], make_pool: Callable[..., shoal.Pool]
) -> None:
    env = kind(**LIVES, **size)
    pool = make_pool(lambda: env, 1, **{"engine": "serial", **options})
    pool.reset(seed=1)
    obs = pool.step([1]).obs
    assert is_in_row(pool, env) is is_there
    assert not np.shares_memory(obs, env.unwrapped._stack)


@pytest.mark.parametrize(
    "door", ["make_gymnasium", *(pytest.param(door, marks=pytest.mark.slow) for door in ("make_vec", "make_dm"))]
)
def test_pictures_are_in_the_rows_behind_every_door(door: str) -> None:
    options = {"num_envs": 1, "engine": "serial"}
    with getattr(shoal, door)("Pong-v5", **options) as envs:
        envs.reset()
        env = envs.pool.engine.lane.slots[0].env
        assert type(env) is AtariEnv
        assert is_in_row(envs.pool, env)


def test_a_game_outlives_its_pool(make_pool: Callable[..., shoal.Pool]) -> None:
    env, alone = AtariEnv(**LIVES), AtariEnv(**LIVES)
    pool = make_pool(lambda: env, 1, engine="serial")
    pool.reset(seed=1)
    last = pool.step([1]).obs[0]
    column: Any = pool.engine.rows.obs[0]
    pool.close()
    assert not np.shares_memory(env._stack, column)
    np.testing.assert_array_equal(env._stack, last)
    for each in (env, alone):
        each.reset(seed=5)
    for action in (2, 3, 0, 2):
        np.testing.assert_array_equal(env.step(action)[0], alone.step(action)[0])


def test_a_snapshot_goes_where_the_pictures_are_elsewhere(make_pool: Callable[..., shoal.Pool]) -> None:
    """From rows to views and back: both go on in the same way."""
    one, other = (make_pool("Breakout-v5", 2, engine="serial", env_kwargs=LIVES, copy=copy) for copy in (True, False))
    one.reset(seed=1)
    one.step([1, 1])
    other.restore(one.snapshot())
    one.restore(other.snapshot())
    for actions in ([2, 3], [1, 1], [0, 2], [3, 3]):
        assert rows_of(one.step(actions)) == rows_of(other.step(actions))
