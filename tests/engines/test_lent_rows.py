"""Envs that keep their observation in their row: nobody can tell, and only they write there."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from kernel_kinds import MODES, assert_same, go_on, rows_of
from places import PLACES
from wandering import Pair

from shoal.errors import EnvStepError
from shoal.recovery import Restart
from shoal.seeding import generator_of, give_generator
from shoal.spec import Field

if TYPE_CHECKING:
    from collections.abc import Callable

    import shoal


class Apart(gym.Env[Any, Any]):
    """Shows its last three pictures, in one and the same array.

    Args:
        length: Steps of an episode.
        goes_on: Whether the pictures of an episode stay when the next one begins.
        fails_at: The step of its life that fails, when its picture is half made.
    """

    observation_space = spaces.Box(0, 255, (3, 2, 4), np.uint8)
    action_space = spaces.Discrete(5)
    info_columns: tuple[Field, ...] = (Field("count", np.dtype(np.int32), ()),)

    def __init__(self, length: int = 5, goes_on: bool = True, fails_at: int | None = None) -> None:
        self.stack = np.zeros((3, 2, 4), np.uint8)
        self.count, self.length, self.goes_on = 0, length, goes_on
        self.age, self.fails_at = 0, fails_at

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if seed is not None or not self.goes_on:
            self.stack[:] = 0
        self.count = 0
        self._show(0)
        return self.stack, {"count": self.count}

    def step(self, action: Any) -> Any:
        self.count += 1
        self.age += 1
        self._show(int(action))
        return self.stack, float(action), self.count == self.length, False, {"count": self.count}

    def _show(self, action: int) -> None:
        self.stack[:-1] = self.stack[1:].copy()
        if self.age == self.fails_at and self.count:
            raise RuntimeError("as ordered")
        self.stack[-1] = self.np_random.integers(0, 250, (2, 4)) + action

    def snapshot(self) -> Any:
        return self.stack.copy(), self.count, generator_of(self)

    def restore(self, state: Any) -> None:
        self.stack[:], self.count, generator = state
        give_generator(self, generator)


class InRow(Apart):
    """Has the method that this is about."""

    def move_observation(self, old: Any, new: Any) -> bool:
        if old is not self.stack:
            return False
        new[:] = old
        self.stack = new
        return True

    def close(self) -> None:
        self.stack = self.stack.copy()


class Plain(InRow):
    """Its rows go the short way."""

    info_columns = ()

    def move_observation(self, old: Any, new: Any) -> bool:
        return super().move_observation(old, new)


class Child(InRow):
    """Does not have the method itself."""


class Negative(gym.ObservationWrapper[Any, Any, Any]):
    """Shows something else than what the env keeps."""

    info_columns = InRow.info_columns

    def observation(self, observation: Any) -> Any:
        return 255 - observation


class SeenThrough:
    """Passes for its env, but for what it shows."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def step(self, action: Any) -> Any:
        obs, *rest = self.env.step(action)
        return (255 - obs, *rest)


def is_in_row(pool: shoal.Pool, env: Apart, env_id: int = 0) -> bool:
    column: Any = pool.engine.rows.obs[0]
    return np.shares_memory(env.stack, column[:, env_id])


def pool_of_one(make_pool: Callable[..., shoal.Pool], env: Any, **options: Any) -> shoal.Pool:
    """A serial pool of this very env, some rows on."""
    pool = make_pool(lambda: env, 1, **{"engine": "serial", **options})
    pool.reset(seed=1)
    pool.step([1])
    return pool


# ---------------------------------------------------------------------- who keeps it there


def test_the_observation_is_in_the_row(make_pool: Callable[..., shoal.Pool]) -> None:
    env = InRow()
    pool = pool_of_one(make_pool, env)
    assert is_in_row(pool, env)
    batch = pool.step([2])
    before = batch.obs.copy()
    pool.step([2])
    np.testing.assert_array_equal(batch.obs, before)


@pytest.mark.parametrize("options", [{"copy": False}, {"engine": "thread"}], ids=["views", "thread"])
def test_pools_in_which_rows_stay_apart(options: dict[str, Any], make_pool: Callable[..., shoal.Pool]) -> None:
    """The row is elsewhere each time, or may be somebody else's while the env still runs."""
    env = InRow()
    assert not is_in_row(pool_of_one(make_pool, env, **options), env)


@pytest.mark.parametrize("around", [Negative, SeenThrough, None])
@pytest.mark.parametrize("kind", [Apart, Plain, Child, InRow])
def test_envs_that_stay_apart(kind: Any, around: Any, make_pool: Callable[..., shoal.Pool]) -> None:
    env = kind()
    pool = pool_of_one(make_pool, env if around is None else around(env))
    assert is_in_row(pool, env) == (kind is InRow and around is None)


# ---------------------------------------------------------------------- nobody can tell


@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("place", PLACES)
def test_rows_are_those_of_envs_that_stay_apart(
    place: str, autoreset: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    options = {"autoreset": autoreset, "on_fault": Restart(budget=None, backoff_s=0.0, quiet_s=0.0)}
    settings = [{"length": 4}, {"length": 5, "fails_at": 8}, {"length": 3, "goes_on": False}, {"fails_at": 3}]
    in_row = make_pool([partial(InRow, **each) for each in settings], **options, **PLACES[place])
    apart = make_pool([partial(Apart, **each) for each in settings], **options, engine="serial")
    for pool in (in_row, apart):
        pool.reset(seed=3)
    for seed in range(2):
        for ids in (None, [3, 1], [2], None):
            got, expected = (columns_of(go_on(pool, 5, ids, seed)) for pool in (in_row, apart))
            assert_same(got, expected)
            assert_same(columns_of([rows_of(in_row.latest())]), columns_of([rows_of(apart.latest())]))
    assert in_row.stats().restarts == apart.stats().restarts > 2


def columns_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without the words of faults, which say where they were; last observations stay."""
    return [{**each, "infos": None, "finals": {k: obs for k, (obs, _) in each["finals"].items()}} for each in rows]


@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("around", [Negative, SeenThrough])
def test_a_wrapper_that_changes_what_it_shows(
    around: Any, autoreset: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    in_row, apart = (
        make_pool(lambda kind=kind: around(kind()), 2, engine="serial", autoreset=autoreset) for kind in (InRow, Apart)
    )
    for pool in (in_row, apart):
        pool.reset(seed=1)
    assert_same(go_on(in_row, 30), go_on(apart, 30))


def test_an_env_that_begins_to_show_something_else(make_pool: Callable[..., shoal.Pool]) -> None:
    """What it keeps stays as it was, and what it shows is what is in the row."""
    env, alone = InRow(length=99), Apart(length=99)
    pool = pool_of_one(make_pool, env)
    alone.reset(seed=1)
    alone.step(1)
    show, is_changed = env.step, False

    def step(action: Any) -> Any:
        obs, *rest = show(action)
        return (255 - obs if is_changed else obs, *rest)

    env.step = step  # type: ignore[method-assign]
    for turn in range(12):
        is_changed = turn % 4 > 1
        expected = alone.step(turn % 5)[0]
        np.testing.assert_array_equal(pool.step([turn % 5]).obs[0], 255 - expected if is_changed else expected)
        assert is_in_row(pool, env) is not is_changed


@pytest.mark.parametrize("place", PLACES)
def test_calls_do_not_change_rows(place: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(partial(InRow, length=99), 2, **PLACES[place])
    pool.reset(seed=1)
    last = pool.step([1, 2]).obs
    pool.call("step", 3)
    np.testing.assert_array_equal(pool.latest().obs, last)
    # The second of these pictures is the one that the pool did not see.
    np.testing.assert_array_equal(pool.step([1, 1]).obs[:, 0], last[:, 2])


@pytest.mark.parametrize("place", PLACES)
def test_snapshots_are_exact(place: str, make_pool: Callable[..., shoal.Pool]) -> None:
    options: dict[str, Any] = {"name": "pictures", "autoreset": "same_step"}
    pool = make_pool(InRow, 3, **options, **PLACES[place])
    # The rows of this one are older than its pictures.
    ahead = make_pool(Apart, 3, **options, engine="serial")
    for each in (pool, ahead):
        each.reset(seed=2)
        go_on(each, 7)
    ahead.call("step", 3)
    for source in (pool, ahead):
        snapshot, last = source.snapshot(), rows_of(source.latest())
        expected = go_on(source, 12)
        for _ in range(2):
            pool.restore(snapshot)
            assert_same(rows_of(pool.latest()), last)
            assert_same(go_on(pool, 12), expected)


# ---------------------------------------------------------------------- changes of place


@pytest.mark.parametrize("keeps_env", [False, True])
def test_an_env_built_anew_has_its_observation_in_its_row(
    keeps_env: bool, make_pool: Callable[..., shoal.Pool]
) -> None:
    built: list[InRow] = []

    def build() -> InRow:
        built.append(InRow(length=99, fails_at=None if built else 2))
        return built[-1]

    on_fault = Restart(keeps_env=keeps_env)
    pool = make_pool(build, 1, engine="serial", on_fault=on_fault)
    last = pool.reset(seed=1).obs
    last = pool.step([1]).obs
    broken = pool.step([1])
    assert broken.truncated[0]
    np.testing.assert_array_equal(broken.obs, last)
    for _ in range(3):
        pool.step([1])
    assert len(built) == 1 + (not keeps_env)
    assert is_in_row(pool, built[-1])
    assert keeps_env or not is_in_row(pool, built[0])


def test_an_env_built_anew_may_be_of_another_class(make_pool: Callable[..., shoal.Pool]) -> None:
    kinds = iter([InRow, Apart])
    pool = make_pool(lambda: next(kinds)(length=99, fails_at=3), 1, engine="serial", on_fault="restart")
    pool.reset(seed=1)
    ends = [bool(pool.step([1]).truncated[0]) for _ in range(6)]
    assert ends == [False, False, True, False, False, False]


def test_a_fault_that_is_raised(make_pool: Callable[..., shoal.Pool]) -> None:
    env = InRow(fails_at=2)
    pool = pool_of_one(make_pool, env)
    with pytest.raises(EnvStepError, match="as ordered"):
        pool.step([1])
    alone = Apart()
    np.testing.assert_array_equal(pool.reset(seed=4).obs[0], alone.reset(seed=4)[0])
    assert is_in_row(pool, env)


@pytest.mark.slow
@pytest.mark.parametrize("autoreset", MODES)
def test_rows_stay_the_same_while_a_worker_is_replaced(autoreset: str, make_pool: Callable[..., shoal.Pool]) -> None:
    fns, twin_fns = ([partial(kind, length=3 + i, goes_on=False) for i in range(4)] for kind in (InRow, Apart))
    pair = Pair(make_pool, fns, twin_fns=twin_fns, autoreset=autoreset)
    pair.until_recycled(2)
    pair.walk(15)


@pytest.mark.parametrize("place", ["serial", "inline"])
def test_a_closed_pool_leaves_the_env_its_observation(place: str, make_pool: Callable[..., shoal.Pool]) -> None:
    envs = [InRow(length=99), InRow(length=99)]
    pool = make_pool([partial(_itself, env) for env in envs], **PLACES[place])
    pool.reset(seed=1)
    last = pool.step([1, 1]).obs
    own = envs[1]  # with ``inline``, the first one is a copy in a worker
    assert is_in_row(pool, own, 1)
    column = pool.engine.rows.obs[0]
    pool.close()
    assert not np.shares_memory(own.stack, column)
    np.testing.assert_array_equal(own.stack, last[1])
    np.testing.assert_array_equal(own.step(1)[0][:2], last[1, 1:])


def _itself(env: InRow) -> InRow:
    return env
