"""Snapshots of Python envs: who can tell what it is, can be put back to it, wherever it runs."""

from __future__ import annotations

import pickle
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_kinds import MODES, assert_same, go_on, rows_of

from shoal.errors import EnvCallError, EnvStepError, NotReset, StateError
from shoal.recovery import Restart
from shoal.seeding import generator_of, give_generator
from shoal.testing import CountingEnv, TextEnv

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal import Pool


class Kept(CountingEnv):
    """Walks about at random. Careless on purpose: it hands out its own array, and takes over what it is given."""

    def __init__(self, **counting: Any) -> None:
        super().__init__(**counting)
        self.walked = np.zeros(3)
        self.fails_to_restore = self.fails_to_step = False

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.fails_to_step:
            raise RuntimeError("no way")
        obs, _, terminated, truncated, info = super().step(action)
        self.walked += self.np_random.normal(size=3)
        return obs, float(self.walked.sum()), terminated, truncated, info

    def snapshot(self) -> dict[str, Any]:
        counts = (self._episode, self._step, self._total, self._draw, self._length, self._flags, self._has_ended)
        return {"walked": self.walked, "counts": counts, "generator": generator_of(self)}

    def restore(self, state: dict[str, Any]) -> None:
        if self.fails_to_restore:
            raise RuntimeError("not me")
        self.walked = state["walked"]
        (self._episode, self._step, self._total, self._draw, self._length, flags, self._has_ended) = state["counts"]
        self._flags = tuple(flags)
        give_generator(self, state["generator"])


class KeptText(TextEnv):
    """Observations that no column holds."""

    def snapshot(self) -> Any:
        return (self._episode, self._step, generator_of(self), self._source.np_random.bit_generator.state)

    def restore(self, state: Any) -> None:
        self._episode, self._step, generator, of_texts = state
        give_generator(self, generator)
        self._source.np_random.bit_generator.state = of_texts


# ---------------------------------------------------------------------- exactness


@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("limit", [None, 4])
def test_a_pool_put_back_repeats_itself(
    autoreset: str, limit: int | None, engine: str, make_pool: Callable[..., Pool]
) -> None:
    """On every engine; whatever happened in between; in a pool that was never reset as well; after a pickle."""
    env = partial(Kept, infos=True)
    pool = make_pool(env, 3, engine=engine, autoreset=autoreset, max_episode_steps=limit, num_workers=2)
    other = make_pool(env, 3, engine="serial", autoreset=autoreset, max_episode_steps=limit)

    @settings(max_examples=5, deadline=None, derandomize=True, database=None)
    @given(before=st.integers(0, 12), seed=st.integers(0, 10**6), after=st.integers(1, 15))
    def law(before: int, seed: int, after: int) -> None:
        pool.reset(seed=seed)
        go_on(pool, before)
        snapshot = pool.snapshot()
        last = rows_of(pool.latest())
        expected = go_on(pool, after)
        for each, kept in ((pool, snapshot), (pool, snapshot), (other, pickle.loads(pickle.dumps(snapshot)))):
            each.restore(kept)
            assert_same(rows_of(each.latest()), last)
            assert_same(go_on(each, after), expected)

    law()


def test_rows_go_to_the_envs_in_the_order_given(engine: str, make_pool: Callable[..., Pool]) -> None:
    pool, undisturbed = (make_pool(Kept, 4, engine=engine, num_workers=2) for _ in range(2))
    for each in (pool, undisturbed):
        each.reset(seed=3)
        go_on(each, 3)
    here, future = pool.snapshot([2, 0]), [rows["reward"] for rows in go_on(undisturbed, 8, [2, 0])]
    pool.restore(here, [0, 1])
    assert_same([rows["reward"] for rows in go_on(pool, 8, [0, 1])], future)
    assert_same(go_on(pool, 6, [3]), go_on(undisturbed, 6, [3]))


def test_one_env_can_become_many(engine: str, make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(partial(Kept, episode_length=9), 12, engine=engine, num_workers=2)
    pool.reset(seed=3)
    go_on(pool, 3)
    pool.restore(pool.snapshot([7]))
    for turn in range(4):
        rewards = pool.step(np.full(12, turn)).reward
        assert len(set(rewards.tolist())) == 1


def test_some_rows_of_a_pool_with_views(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(partial(Kept, episode_length=9), 3, engine="serial", copy=False)
    pool.reset(seed=1)
    pool.step([1, 1, 1])
    snapshot, before = pool.snapshot([1]), rows_of(pool.latest())
    view = pool.step([1, 1, 1]).obs
    after = view.copy()
    pool.restore(snapshot, [1])
    np.testing.assert_array_equal(view, after)
    np.testing.assert_array_equal(pool.latest().obs[1], before["obs"][1])
    np.testing.assert_array_equal(pool.latest().obs[[0, 2]], after[[0, 2]])


def test_observations_that_no_column_holds(engine: str, make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(KeptText, 3, engine=engine, num_workers=2)
    pool.reset(seed=1)
    go_on(pool, 2)
    snapshot, last = pool.snapshot(), rows_of(pool.latest())
    expected = go_on(pool, 9)
    pool.restore(snapshot)
    assert_same(rows_of(pool.latest()), last)
    assert_same(go_on(pool, 9), expected)
    pool.restore(pool.snapshot([1]))
    assert len(set(pool.latest().obs.tolist())) == 1


def test_gymnasiums_own_wrappers_are_part_of_an_env(make_pool: Callable[..., Pool]) -> None:
    def make() -> Any:
        env = wrappers.PassiveEnvChecker(Kept(episode_length=9))
        return wrappers.TimeLimit(wrappers.OrderEnforcing(env), 5)

    pool, fresh = make_pool(make, 2, engine="serial"), make_pool(make, 2, engine="serial")
    pool.reset(seed=1)
    go_on(pool, 3)
    snapshot = pool.snapshot()
    expected = go_on(pool, 9)
    assert expected[1]["truncated"].all()
    fresh.restore(snapshot)
    assert_same(go_on(fresh, 9), expected)


# ---------------------------------------------------------------------- faults


def test_an_env_that_failed_can_be_put_back_instead_of_reset(engine: str, make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(partial(Kept, episode_length=9), 3, engine=engine, num_workers=2)
    pool.reset(seed=1)
    snapshot = pool.snapshot()
    pool.set_attr("fails_to_step", True, env_id=[1])
    with pytest.raises(EnvStepError):
        pool.step([0, 0, 0])
    pool.recv()
    with pytest.raises(StateError, match="failed earlier"):
        pool.snapshot()
    pool.set_attr("fails_to_step", False, env_id=[1])
    pool.restore(snapshot)
    assert pool.step([0, 0, 0]).elapsed_step.tolist() == [1, 1, 1]


def test_what_a_fault_has_cut_short_is_no_past_of_an_env_that_was_put_back(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(partial(Kept, episode_length=9), 2, engine="serial", on_fault=Restart())
    pool.reset(seed=1)
    pool.step([0, 0])
    snapshot, last = pool.snapshot(), rows_of(pool.latest())
    pool.set_attr("fails_to_step", True, env_id=[1])
    assert pool.step([0, 0]).truncated.tolist() == [False, True]
    pool.restore(snapshot)
    assert_same(rows_of(pool.latest()), last)
    assert pool.step([0, 0]).elapsed_step.tolist() == [2, 2]


def test_an_env_that_failed_and_is_not_reset_yet_is_nothing_to_keep(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(partial(Kept, episode_length=9), 2, engine="serial", on_fault=Restart())
    pool.reset(seed=1)
    pool.set_attr("fails_to_step", True, env_id=[1])
    assert pool.step([0, 0]).truncated.tolist() == [False, True]
    with pytest.raises(StateError, match=r"envs \[1\] failed and wait for a reset"):
        pool.snapshot()
    assert len(pool.snapshot([0])) == 1
    assert pool.step([0, 0]).first.tolist() == [False, True]
    assert len(pool.snapshot()) == 2


def test_a_restore_that_fails_leaves_envs_that_wait_for_their_reset(
    engine: str, make_pool: Callable[..., Pool]
) -> None:
    pool = make_pool(Kept, 3, engine=engine, num_workers=2)
    pool.reset(seed=1)
    snapshot = pool.snapshot()
    pool.set_attr("fails_to_restore", True, env_id=[1])
    with pytest.raises(EnvCallError, match=r"env 1.*not me"):
        pool.restore(snapshot)
    with pytest.raises(StateError, match=r"envs \[0, 1, 2\] failed earlier .*not me.*: reset them first"):
        pool.step([0, 0, 0])
    pool.reset(seed=1)
    pool.step([0, 0, 0])


# ---------------------------------------------------------------------- refusals


def test_an_env_that_does_not_tell_what_it_is(engine: str, make_pool: Callable[..., Pool]) -> None:
    pool = make_pool([Kept, CountingEnv], engine=engine)
    pool.reset(seed=1)
    snapshot = pool.snapshot([0])
    expected = r"env 1 cannot take part .*CountingEnv has no snapshot\(\) and restore\(state\); .*engine='kernel'"
    with pytest.raises(StateError, match=expected):
        pool.snapshot()
    with pytest.raises(StateError, match=expected):
        pool.restore(snapshot, [1])
    pool.step([0, 0])


def test_a_wrapper_with_a_memory_of_its_own_has_to_speak_for_itself(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(lambda: wrappers.FrameStackObservation(Kept(), 2), 1, engine="serial")
    pool.reset(seed=1)
    with pytest.raises(StateError, match="FrameStackObservation has no snapshot"):
        pool.snapshot()


def test_a_wrapper_that_does_so_is_asked(make_pool: Callable[..., Pool]) -> None:
    class Speaking(gym.Wrapper[Any, Any, Any, Any]):
        def snapshot(self) -> Any:
            return self.unwrapped.snapshot()  # type: ignore[attr-defined]

        def restore(self, state: Any) -> None:
            self.unwrapped.restore(state)  # type: ignore[attr-defined]

    pool = make_pool(lambda: Speaking(Kept()), 2, engine="serial")
    pool.reset(seed=1)
    snapshot, expected = pool.snapshot(), go_on(pool, 9)
    pool.restore(snapshot)
    assert_same(go_on(pool, 9), expected)


def test_an_env_that_was_never_reset_is_nothing_to_keep(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Kept, 2, engine="serial")
    with pytest.raises(NotReset, match=r"envs \[0, 1\] were never reset"):
        pool.snapshot()


def test_envs_under_way_cannot_be_kept(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Kept, 2, engine="serial")
    pool.reset(seed=1)
    snapshot = pool.snapshot()
    pool.send([0], env_id=[1])
    with pytest.raises(StateError, match=r"envs \[1\] are under way"):
        pool.snapshot()
    with pytest.raises(StateError, match=r"envs \[1\] are under way"):
        pool.restore(snapshot)
    pool.recv()


@pytest.mark.parametrize("copy", [True, False])
def test_what_is_under_way_meanwhile_arrives(copy: bool, engine: str, make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Kept, 3, engine=engine, copy=copy)
    pool.reset(seed=1)
    state = pool.snapshot([1])
    pool.send([1], [0])
    pool.restore(state, [1])
    assert pool.recv().elapsed_step.tolist() == [1]
