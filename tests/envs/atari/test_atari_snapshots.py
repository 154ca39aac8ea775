"""Games put back: the console, its chance, and all that is kept around it go on as they would have."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("ale_py")
import shoal
from shoal.envs.atari.env import AtariEnv
from shoal.errors import ArgumentError, StateError

if TYPE_CHECKING:
    from shoal.batch import Batch

SMALL: dict[str, Any] = {"img_height": 20, "img_width": 20}
# Breakout ends often, and with a life; without idle frames and FIRE, the next episode begins with the last screen.
OPTIONS: dict[str, dict[str, Any]] = {
    "pong": {"task": "pong", "repeat_action_probability": 0.25},
    "lives": {"task": "breakout", "episodic_life": True, "max_episode_steps": 400, "noop_max": 9},
    "same-screen": {"task": "breakout", "episodic_life": True, "noop_max": 0, "use_fire_reset": False},
    "every-frame": {"task": "breakout", "frame_skip": 1, "gray_scale": False, "repeat_action_probability": 0.25},
}


def play(env: AtariEnv, steps: int, seed: int) -> list[Any]:
    """Random play, resets included; what is returned is a copy."""
    rng = np.random.default_rng(seed)
    rows: list[Any] = []
    for _ in range(steps):
        obs, reward, terminated, truncated, info = env.step(int(rng.integers(4)))  # no game has fewer
        rows.append((obs.tobytes(), reward, terminated, truncated, info["ram"].tobytes(), {**info, "ram": None}))
        if terminated or truncated:
            obs, info = env.reset()
            rows.append((obs.tobytes(), info["ram"].tobytes(), {**info, "ram": None}))
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_game_put_back_goes_on_as_it_would_have(options: dict[str, Any]) -> None:
    env, fresh = AtariEnv(**options, **SMALL), AtariEnv(**options, **SMALL)

    @settings(max_examples=8, deadline=None, derandomize=True, database=None)
    @given(seed=st.integers(0, 99), before=st.integers(0, 100), after=st.integers(1, 120))
    def law(seed: int, before: int, after: int) -> None:
        env.reset(seed=seed)
        play(env, before, seed)
        state = pickle.loads(pickle.dumps(env.snapshot()))
        expected = play(env, after, seed + 1)
        fresh.restore(state)
        assert play(fresh, after, seed + 1) == expected
        # And once more, where it comes from, with another one in between.
        env.restore(state)
        env.restore(pickle.loads(pickle.dumps(env.snapshot())))
        assert play(env, after, seed + 1) == expected

    law()


def test_the_reset_after_a_lost_life_begins_with_the_screen_of_the_snapshot() -> None:
    """No frame is played for it, and the emulator does not keep its screen."""
    env, other = (AtariEnv(**OPTIONS["same-screen"], **SMALL) for _ in range(2))
    env.reset(seed=1)
    env.step(1)
    while not env.step(1)[2]:
        pass
    state = env.snapshot()
    expected = env.reset()[0].copy()
    other.restore(state)
    np.testing.assert_array_equal(other.reset()[0], expected)
    assert expected[-1].any()


@pytest.mark.slow
def test_render_shows_the_screen_of_the_snapshot() -> None:
    env, other = (AtariEnv(task="pong", render_mode="rgb_array", **SMALL) for _ in range(2))
    env.reset(seed=1)
    play(env, 30, 1)
    screen, state = env.render(), env.snapshot()
    other.restore(state)
    np.testing.assert_array_equal(other.render(), screen)
    for each in (env, other):
        each.step(2)
    np.testing.assert_array_equal(other.render(), env.render())
    blind = AtariEnv(task="pong", **SMALL)
    blind.restore(state)
    other.restore(blind.snapshot())
    np.testing.assert_array_equal(other.render(), screen)
    blind.step(2)
    other.restore(blind.snapshot())
    with pytest.raises(StateError, match="without render_mode"):
        other.render()


def test_what_cannot_be_kept_or_put_back() -> None:
    env = AtariEnv(task="pong", **SMALL)
    with pytest.raises(StateError, match="before the first reset"):
        env.snapshot()
    env.reset(seed=1)
    with pytest.raises(ArgumentError, match=r"breakout.*pong"):
        AtariEnv(task="breakout", **SMALL).restore(env.snapshot())


def columns_of(batch: Batch) -> list[Any]:
    flags = (batch.terminated, batch.truncated, batch.first)
    return [batch.obs, batch.reward, *flags, batch.elapsed_step, *batch.fields.values()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "autoreset"), [("serial", "same_step"), ("thread", "next_step"), ("process", "next_step")]
)
def test_pools_of_games(engine: str, autoreset: str) -> None:
    options = {"episodic_life": True, **SMALL}
    with shoal.make_pool(
        "Breakout-v5", 4, engine=engine, num_workers=2, env_kwargs=options, autoreset=autoreset
    ) as pool:

        def go_on(steps: int) -> list[Any]:
            rng = np.random.default_rng(steps)
            batches = [pool.step(rng.integers(0, 4, 4)) for _ in range(steps)]
            return [[column.tobytes() for column in columns_of(batch)] for batch in batches]

        pool.reset(seed=1)
        go_on(70)
        episodes, snapshot, expected = pool.stats().episodes, pool.snapshot(), go_on(120)
        assert pool.stats().episodes > episodes
        go_on(13)
        pool.restore(snapshot)
        assert go_on(120) == expected
        pool.restore(pool.snapshot([2]))
        obs = pool.step(np.full(4, 2)).obs
        assert (obs == obs[0]).all()
