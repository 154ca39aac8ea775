"""Whatever the engine, the autoreset mode, the epochs and the pace: the transitions are those of a plain loop."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from shoal.testing import CountingEnv, FaultEnv, SampleEnv, read_row

if TYPE_CHECKING:
    from collections.abc import Callable

MODES = ["next_step", "same_step", "disabled"]
ENGINES: dict[str, dict[str, Any]] = {
    "serial": {"engine": "serial"},
    "thread": {"engine": "thread"},
    "process": {"engine": "process", "num_workers": 2},
}
Transition = tuple[Any, ...]


def fns(count: int = 3) -> list[Callable[[], Any]]:
    """Envs with episodes of different lengths, some of which terminate and some of which are truncated."""
    return [partial(CountingEnv, tag=i, episode_length=2 + 2 * i) for i in range(count)]


def policy(obs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Depends on the observation alone, so that it acts alike in a loop and in a batch."""
    return (obs[:, 0].astype(np.int64) * 3 + obs[:, 1].astype(np.int64)) % 5


def by_hand(env_fn: Callable[[], Any], seed: int, steps: int) -> list[Transition]:
    """The first transitions of one env, in a loop that anyone would write."""
    env = env_fn()
    obs, _ = env.reset(seed=seed)
    found = []
    for _ in range(steps):
        action = int(policy(obs[None])[0])
        new, reward, terminated, truncated, _ = env.step(action)
        found.append(key(obs, action, reward, new, terminated, truncated))
        obs = new
        if terminated or truncated:
            obs, _ = env.reset()
    return found


def key(obs: Any, action: Any, reward: Any, new: Any, terminated: Any, truncated: Any) -> Transition:
    return (tuple(np.ravel(obs)), int(action), float(reward), tuple(np.ravel(new)), bool(terminated), bool(truncated))


def streams(epochs: list[shoal.collect.Epoch]) -> dict[int, list[Transition]]:
    """The transitions of each env, in order."""
    found: dict[int, list[Transition]] = {}
    for epoch in epochs:
        data = epoch.transitions()
        rows = zip(
            data.obs, data.action, data.reward, data.next_obs, data.terminated, data.truncated, data.env_id, strict=True
        )
        for *row, env_id in rows:
            found.setdefault(int(env_id), []).append(key(*row))
    return found


def assert_as_by_hand(found: dict[int, list[Transition]], env_fns: list[Callable[[], Any]], seed: int) -> None:
    for i, mine in found.items():
        assert mine == by_hand(env_fns[i], seed + i, len(mine)), f"env {i}"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("batch_size", [None, 1, 2])
def test_transitions_are_those_of_a_loop(engine: str, mode: str, batch_size: int | None) -> None:
    with shoal.make_pool(fns(), autoreset=mode, batch_size=batch_size, **ENGINES[engine]) as pool:
        collector = shoal.Collector(pool, policy, seed=5)
        epochs = [collector.collect(steps) for steps in (1, 7, 3, 20)]
        found = streams(epochs)
        assert sum(map(len, found.values())) == sum(epoch.num_steps for epoch in epochs)
        assert_as_by_hand(found, fns(), 5)


@settings(deadline=None, max_examples=40)
@given(parts=st.lists(st.integers(1, 9), min_size=1, max_size=6), mode=st.sampled_from(MODES), seed=st.integers(0, 99))
def test_epochs_together_are_one_long_run(parts: list[int], mode: str, seed: int) -> None:
    with shoal.make_pool(fns(), engine="serial", autoreset=mode) as pool:
        collector = shoal.Collector(pool, policy, seed=seed)
        found = streams([collector.collect(steps) for steps in parts])
    with shoal.make_pool(fns(), engine="serial", autoreset=mode) as pool:
        whole = streams([shoal.Collector(pool, policy, seed=seed).collect(sum(parts))])
    assert found == whole


@pytest.mark.parametrize("mode", MODES)
def test_a_segment_has_the_rows_before_and_after(mode: str) -> None:
    with shoal.make_pool(fns(), engine="serial", autoreset=mode) as pool:
        collector = shoal.Collector(pool, policy, seed=5)
        one, two = collector.collect(6).segment, collector.collect(4).segment
    assert one.obs.shape[:2] == (7, 3)
    assert one.action.shape[:2] == one.reward.shape == (6, 3)
    assert np.array_equal(two.obs[0], one.obs[-1])
    assert np.array_equal(two.first[0], one.first[-1])
    assert one.first[0].all()
    assert one.executed.all() == (mode != "next_step")
    over = one.terminated | one.truncated
    assert over.any()
    # The last observation of an episode is there in every mode.
    lasts = [read_row(obs).step for obs in one.next_obs[over]]
    assert lasts == [2 + 2 * n for n in np.argwhere(over)[:, 1]]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch_size", [None, 2])
def test_an_epoch_may_last_until_every_env_is_done(mode: str, batch_size: int | None) -> None:
    with shoal.make_pool(fns(), engine="serial", autoreset=mode, batch_size=batch_size) as pool:
        collector = shoal.Collector(pool, policy, seed=5)
        for _ in range(3):
            epoch = collector.collect()
            ends = [(segment.terminated | segment.truncated).any(0) for segment in epoch.segments]
            assert np.concatenate(ends).all()
            assert sorted(i for segment in epoch.segments for i in segment.env_id.tolist()) == list(
                range(pool.num_envs)
            )


def test_epochs_of_any_length_together_are_one_long_run() -> None:
    def run(*parts: int | None) -> Any:
        with shoal.make_pool("CartPole-v1", 3, engine="serial") as pool:
            collector = shoal.Collector(pool, lambda obs: np.zeros(len(obs), np.int64), seed=5)
            epochs = [collector.collect(part) for part in parts]
            return [len(epoch.segment) for epoch in epochs], [epoch.transitions() for epoch in epochs]

    lengths, parts = run(None, 4, None, 100, None)
    ended, (whole,) = run(sum(lengths))
    assert ended == [sum(lengths)]
    assert len(lengths) == 5
    assert lengths[0] < 20, "no longer than it has to be"
    for name in ("obs", "reward", "next_obs", "terminated"):
        np.testing.assert_array_equal(np.concatenate([getattr(part, name) for part in parts]), getattr(whole, name))


def test_a_dropped_env_is_not_waited_for() -> None:
    fns = [partial(CountingEnv, episode_length=200), partial(FaultEnv, "raise", at=3, episode_length=500)]
    with shoal.make_pool(fns, engine="serial", on_fault="drop") as pool:
        assert len(shoal.Collector(pool, lambda obs: [0] * len(obs), seed=1).collect().segment) == 200


@pytest.mark.parametrize("steps", [0, -1, 2.5, "5"])
def test_numbers_of_steps_that_are_none_are_refused(steps: Any) -> None:
    with shoal.make_pool("CartPole-v1", 2, engine="serial") as pool, pytest.raises(shoal.errors.ArgumentError):
        shoal.Collector(pool).collect(steps)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch_size", [None, 2])
def test_episodes_are_whole(mode: str, batch_size: int | None) -> None:
    with shoal.make_pool(fns(), engine="serial", autoreset=mode, batch_size=batch_size) as pool:
        episodes = []
        for episode in shoal.Collector(pool, policy, seed=5).episodes(steps=3):
            episodes.append(episode)
            if len(episodes) == 9:
                break
    for episode in episodes:
        assert len(episode) == 2 + 2 * episode.env_id
        assert len(episode.obs) == len(episode) + 1
        assert len(episode.action) == len(episode.reward) == len(episode)
        assert [read_row(obs).step for obs in episode.obs] == list(range(len(episode) + 1))
        assert episode.terminated or episode.truncated
        assert episode.total == episode.reward.sum()


@pytest.mark.parametrize("mode", MODES)
def test_an_evaluation_gives_every_env_its_share(mode: str) -> None:
    with shoal.make_pool(fns(), engine="serial", autoreset=mode) as pool:
        collector = shoal.Collector(pool, policy, seed=5)
        result = collector.evaluate(7, seed=3)
        again = collector.evaluate(7, seed=3)
    assert Counter(result.env_id.tolist()) == {0: 3, 1: 2, 2: 2}
    assert len(result) == 7
    assert sorted(zip(result.env_id, result.returns, strict=True)) == sorted(
        zip(again.env_id, again.returns, strict=True)
    )
    assert result.mean == result.returns.mean()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch_size", [None, 2])
def test_what_happens_between_two_episodes_is_no_part_of_them(mode: str, batch_size: int | None) -> None:
    with shoal.make_pool(fns(), engine="serial", autoreset=mode, batch_size=batch_size) as pool:
        collector = shoal.Collector(pool, policy, seed=5)
        episodes, others = collector.episodes(steps=3), collector.episodes(steps=5)
        between = [
            lambda: collector.collect(1),
            lambda: collector.evaluate(2, seed=3),
            collector.reset,
            lambda: next(others),
        ]
        for turn in range(24):
            for episode in (next(episodes), next(episodes)):
                assert [read_row(obs).step for obs in episode.obs] == list(range(3 + 2 * episode.env_id))
                assert len({read_row(obs).episode for obs in episode.obs}) == 1
            between[turn % 4]()


def test_evaluations_with_one_seed_do_not_have_epochs_begin_alike() -> None:
    def starts(seed: int | None) -> list[bytes]:
        with shoal.make_pool("CartPole-v1", 3, engine="serial") as pool:
            collector = shoal.Collector(pool, seed=seed)
            begun = []
            for _ in range(4):
                begun.append(collector.collect(2).segment.obs[0].tobytes())
                collector.evaluate(3, seed=7)
            return begun

    assert len(set(starts(1))) == len(set(starts(None))) == 4
    assert starts(1) == starts(1)


def test_a_policy_may_write_to_what_it_is_shown() -> None:
    def meddling(obs: Any) -> Any:
        obs += 1.0
        return np.zeros(len(obs), np.int64)

    with (
        shoal.make_pool("CartPole-v1", 2, engine="serial") as one,
        shoal.make_pool("CartPole-v1", 2, engine="serial") as two,
    ):
        meddled = shoal.Collector(one, meddling, seed=1).collect(30).transitions()
        plain = shoal.Collector(two, lambda obs: np.zeros(len(obs), np.int64), seed=1).collect(30).transitions()
    np.testing.assert_array_equal(meddled.obs, plain.obs)
    np.testing.assert_array_equal(meddled.next_obs, plain.next_obs)


def test_a_fault_is_no_transition() -> None:
    flaky = [partial(FaultEnv, "raise", at=4, tag=0, episode_length=50), partial(CountingEnv, tag=1, episode_length=50)]
    for mode in MODES:
        with shoal.make_pool(flaky, engine="serial", autoreset=mode, on_fault="restart") as pool:
            epoch = shoal.Collector(pool, policy, seed=5).collect(6)
        found = streams([epoch])
        # Three steps, then the fourth fails, and the env begins anew.
        steps = [row[3][0] for row in found[0]]
        assert steps[:3] == [1, 2, 3]
        assert steps[3:] == [1, 2, 3][: len(steps) - 3]
        assert [row[3][0] for row in found[1]] == [1, 2, 3, 4, 5, 6]


def test_an_env_that_was_dropped_gives_no_transitions() -> None:
    envs = [partial(FaultEnv, "raise", at=3, tag=0, episode_length=4), partial(CountingEnv, tag=1, episode_length=4)]
    for mode in MODES:
        with shoal.make_pool(envs, engine="serial", autoreset=mode, on_fault="drop") as pool:
            collector = shoal.Collector(pool, policy, seed=5)
            found = streams([collector.collect(9)])
            assert len(found[0]) == 2
            assert found[0][-1][5], "the fault has cut the episode after the last real step"
            assert set(collector.evaluate(4).env_id.tolist()) == {1}


@pytest.mark.timeout(10)  # it may take for ever
def test_an_env_that_was_dropped_does_not_keep_an_epoch_from_its_end() -> None:
    envs = [partial(FaultEnv, "raise", at=3, tag=0, episode_length=4), partial(CountingEnv, tag=1, episode_length=4)]
    with shoal.make_pool(envs, engine="serial", autoreset="disabled", on_fault="drop", batch_size=1) as pool:
        collector = shoal.Collector(pool, policy, seed=5)
        found = streams([collector.collect(9), collector.collect()])
    assert len(found[0]) == 2
    assert len(found[1]) > 9


@pytest.mark.parametrize("batch_size", [None, 1])
def test_a_policy_may_leave_the_bounds_of_a_pool_without_bounds(batch_size: int | None) -> None:
    env = partial(SampleEnv, spaces.Discrete(5), spaces.Box(-1, 1, (1,), np.float32))
    with shoal.make_pool(env, 2, engine="serial", bounded_actions=False, batch_size=batch_size) as pool:
        far = shoal.Collector(pool, lambda obs: np.full((len(obs), 1), 3.0, np.float32), seed=5).collect(4)
    assert set(far.transitions().action.ravel().tolist()) == {3.0}


def test_an_interrupted_epoch_leaves_no_gap() -> None:
    for batch_size in (None, 2):
        with shoal.make_pool(fns(), engine="serial", batch_size=batch_size) as pool:
            calls = iter(range(100))

            def stumbling(obs: np.ndarray[Any, Any], calls: Any = calls) -> np.ndarray[Any, Any]:
                if next(calls) == 4:
                    raise KeyboardInterrupt
                return policy(obs)

            collector = shoal.Collector(pool, stumbling, seed=5)
            with pytest.raises(KeyboardInterrupt):
                collector.collect(9)
            epoch = collector.collect(9)
            for segment in epoch.segments:
                assert segment.first[0].all()
            for mine in streams([epoch]).values():
                assert all(a[3] == b[0] or a[4] or a[5] for a, b in pairwise(mine))


def test_episodes_that_had_begun_before_are_left_out() -> None:
    for mode in MODES:
        with shoal.make_pool([partial(CountingEnv, episode_length=10)], engine="serial", autoreset=mode) as pool:
            collector = shoal.Collector(pool, policy, seed=5)
            collector.collect(5)
            episodes = collector.episodes(steps=5)
            assert [len(next(episodes)) for _ in range(3)] == [10, 10, 10]


def test_a_pool_that_somebody_else_has_used_is_noticed() -> None:
    with shoal.make_pool(fns(), engine="serial") as pool:
        mine, other = shoal.Collector(pool, policy, seed=5), shoal.Collector(pool, policy)
        mine.collect(3)
        other.evaluate(3)
        with pytest.raises(shoal.errors.StateError, match="somebody else"):
            mine.collect(3)
        mine.reset(seed=5)
        assert_as_by_hand(streams([mine.collect(3)]), fns(), 5)


def test_random_actions_follow_any_kind_of_seed() -> None:
    def actions(seed: Any) -> list[int]:
        with shoal.make_pool(fns(), engine="serial") as pool:
            return shoal.Collector(pool, seed=seed).collect(9).segment.action.ravel().tolist()

    assert actions(np.int64(3)) == actions(3)
    assert actions([1, 2, 3]) == actions([1, 2, 3])
    assert actions(3) != actions(4)
