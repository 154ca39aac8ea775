"""The counting and scripted envs say what they promise to say."""

from __future__ import annotations

import pickle
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.testing import CountingEnv, Ending, Row, ScriptedEnv, SleepyEnv, WrappedBufferEnv, read_row


def play(env: gymnasium.Env[Any, Any], steps: int, seed: int | None = 0) -> list[tuple[Any, ...]]:
    """Everything an env returns in so many steps, with resets where they are due."""
    obs, info = env.reset(seed=seed)
    log: list[tuple[Any, ...]] = [(np.array(obs), info)]
    for number in range(steps):
        obs, reward, terminated, truncated, info = env.step(number % 5)
        log.append((np.array(obs), reward, terminated, truncated, info))
        if terminated or truncated:
            obs, info = env.reset()
            log.append((np.array(obs), info))
    return log


def assert_same(left: list[tuple[Any, ...]], right: list[tuple[Any, ...]]) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        assert one[1:] == other[1:]


@pytest.mark.parametrize("env_class", [CountingEnv, SleepyEnv])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_envs_pass_gymnasiums_own_checks(env_class: type[CountingEnv]) -> None:
    # The check cannot imagine an episode of one step.
    check_env(env_class(episode_length=5), skip_render_check=True)


def test_rows_and_rewards_count_every_step() -> None:
    log = play(CountingEnv(tag=7, infos=True), 200)
    rows = [read_row(entry[0]) for entry in log]
    assert {row.tag for row in rows} == {7}
    serials = [row.total + row.episode for row in rows]
    assert serials == list(range(len(rows)))
    for entry, row in zip(log, rows, strict=True):
        assert entry[-1] == {"t": row.step, "episode": row.episode}
        if len(entry) == 5:
            assert entry[1] == row.total
            assert row.action == (row.total - 1) % 5
        else:
            assert (row.step, row.action) == (0, -1)


def test_episodes_vary_in_length_and_ending() -> None:
    steps = [entry for entry in play(CountingEnv(), 500) if len(entry) == 5]
    ends = [(read_row(obs).step, (terminated, truncated)) for obs, _, terminated, truncated, _ in steps]
    ends = [(length, flags) for length, flags in ends if any(flags)]
    assert {length for length, _ in ends} == set(range(1, 10))
    assert {flags for _, flags in ends} == {(True, False), (False, True), (True, True)}


def test_equal_seeds_give_equal_runs_and_others_do_not() -> None:
    env = CountingEnv(infos=True)
    first = play(env, 60, seed=3)
    assert_same(first, play(env, 60, seed=3))
    assert_same(first, play(CountingEnv(infos=True), 60, seed=3))
    assert read_row(play(env, 1, seed=4)[0][0]).draw != read_row(first[0][0]).draw


def test_a_reset_without_a_seed_goes_on_counting() -> None:
    env = CountingEnv(episode_length=4)
    env.reset(seed=0)
    env.step(2)
    obs, info = env.reset(options={"x": 1})
    row = read_row(obs)
    assert row == Row(tag=0, episode=1, step=0, total=1, action=-1.0, draw=row.draw)
    assert info == {}
    assert env.last_options == {"x": 1}
    assert env.total_steps == 1


@pytest.mark.parametrize(
    ("ending", "flags"), [("terminated", (True, False)), ("truncated", (False, True)), ("both", (True, True))]
)
def test_length_and_ending_can_be_fixed(ending: Ending, flags: tuple[bool, bool]) -> None:
    env = CountingEnv(episode_length=3, ending=ending)
    env.reset(seed=0)
    assert [env.step(0)[2:4] for _ in range(3)] == [(False, False), (False, False), flags]


@pytest.mark.parametrize(
    ("shape", "dtype"), [(8, "float64"), ((3, 4), "float32"), ((2, 2, 500), "int64"), (9, "int32")]
)
def test_rows_fit_their_space(shape: int | tuple[int, ...], dtype: str) -> None:
    env = CountingEnv(obs_shape=shape, dtype=dtype)
    assert all(entry[0] in env.observation_space for entry in play(env, 20))
    assert read_row(env.reset(seed=1)[0]).tag == 0


def test_actions_of_any_numeric_space_are_echoed() -> None:
    env = CountingEnv(action_space=spaces.Box(-1, 1, (2,), np.float32))
    env.reset(seed=0)
    assert read_row(env.step(np.array([0.25, 0.5], np.float32))[0]).action == 0.75


@given(seed=st.integers(0, 1000), steps=st.integers(1, 30), cut=st.integers(1, 19))
@settings(max_examples=50, deadline=None)
def test_a_torn_row_is_refused_wherever_it_is_torn(seed: int, steps: int, cut: int) -> None:
    log = play(CountingEnv(obs_shape=20), steps, seed)
    old, new = log[-2][0], log[-1][0]
    torn = np.concatenate([new[:cut], old[cut:]])
    with pytest.raises(AssertionError, match="torn row"):
        read_row(torn)


def test_too_short_a_row_is_refused() -> None:
    with pytest.raises(AssertionError, match="at least 8"):
        read_row(np.zeros(3))


@pytest.mark.parametrize("env", [CountingEnv(episode_length=1), ScriptedEnv([(0.0, True, False, {})])])
def test_stepping_without_a_reset_raises(env: gymnasium.Env[Any, Any]) -> None:
    with pytest.raises(ResetNeeded):
        env.step(0)
    env.reset(seed=0)
    env.step(0)
    with pytest.raises(ResetNeeded):
        env.step(0)


@pytest.mark.parametrize(
    "bad",
    [
        {"obs_shape": 7},
        {"dtype": "uint32"},
        {"dtype": "int16"},
        {"dtype": "float16"},
        {"episode_length": 0},
        {"ending": "sometimes"},
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|needs"):
        CountingEnv(**bad)


def test_rendering_and_closing_can_be_seen() -> None:
    env = CountingEnv(render_mode="rgb_array", episode_length=9)
    env.reset(seed=0)
    env.step(0)
    assert (env.render() == np.ones((4, 4, 3))).all()
    assert CountingEnv().render() is None
    assert not env.is_closed
    env.close()
    assert env.is_closed


def test_an_env_survives_pickling_mid_episode() -> None:
    env = CountingEnv(episode_length=9)
    play(env, 4)
    copy = pickle.loads(pickle.dumps(env))
    np.testing.assert_array_equal(env.step(1)[0], copy.step(1)[0])


def test_sleeping_takes_the_mean_time_and_leaves_the_rows_alone() -> None:
    start = time.monotonic()
    sleepy = play(SleepyEnv(mean_s=0.002, sigma=0.5), 50)
    assert 0.05 < time.monotonic() - start < 2
    assert_same(sleepy, play(CountingEnv(), 50))


def test_sleeping_times_follow_from_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    monkeypatch.setattr(time, "sleep", naps.append)
    env = SleepyEnv(mean_s=2.0, sigma=1.0)
    play(env, 1000, seed=5)
    play(env, 1000, seed=5)
    assert naps[:1000] == naps[1000:]
    assert 1.6 < float(np.mean(naps)) < 2.5


def test_the_wrapped_buffer_is_one_object_with_the_usual_rows() -> None:
    env = WrappedBufferEnv(episode_length=5)
    first, _ = env.reset(seed=0)
    second = env.step(1)[0]
    assert second is first
    assert read_row(first).step == 1
    assert_same(play(env, 20), play(CountingEnv(episode_length=5), 20))


flags = st.booleans()
scripts = st.lists(
    st.tuples(st.floats(allow_nan=False), flags, flags, st.dictionaries(st.text(), st.integers())), min_size=1
)


@given(script=scripts, steps=st.integers(0, 30), seed=st.integers(0, 2**31))
def test_the_script_is_played_in_order_and_again(script: list[Any], steps: int, seed: int) -> None:
    log = play(ScriptedEnv(script), steps, seed)
    lines = [entry[1:] for entry in log if len(entry) == 5]
    assert lines == [script[number % len(script)] for number in range(steps)]
    positions = [int(entry[0][0]) for entry in log if len(entry) == 5]
    assert positions == list(range(1, steps + 1))
    assert_same(log, play(ScriptedEnv(script), steps, seed))


def test_the_script_cannot_be_changed_through_an_info() -> None:
    env = ScriptedEnv([(0.0, False, False, {"list": [1]})])
    env.reset(seed=0)
    env.step(0)[4]["list"].append(2)
    assert env.step(0)[4] == {"list": [1]}


def test_an_empty_script_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        ScriptedEnv([])
