"""One game: what its options do, where its episodes begin and end, and that it looks as it does elsewhere."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("ale_py")
import ale_py

from shoal.envs.atari.console import game_of
from shoal.envs.atari.env import AtariEnv
from shoal.errors import ArgumentError

FIRE, NOOP = 1, 0


def play(env: AtariEnv, steps: int, seed: int = 0) -> list[tuple[Any, ...]]:
    """Random play; rows of copies."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(steps):
        obs, *rest, info = env.step(int(rng.integers(env.action_space.n)))
        rows.append((obs.copy(), *rest, {**info, "ram": info["ram"].copy()}))
        if rest[1] or rest[2]:
            env.reset()
    return rows


def assert_same(left: Any, right: Any) -> None:
    for (obs, *rest, info), (other, *others, other_info) in zip(left, right, strict=True):
        np.testing.assert_array_equal(obs, other)
        assert rest == others
        np.testing.assert_equal(info, other_info)


@pytest.fixture(scope="module")
def breakout() -> AtariEnv:
    """One for all tests that do not mind what was played before: to load a game takes a tenth of a second."""
    env = AtariEnv(task="breakout", noop_max=1)
    env.reset(seed=1)
    return env


# ---------------------------------------------------------------------- observations and infos


def test_an_episode_begins_with_one_picture(breakout: AtariEnv) -> None:
    obs, info = breakout.reset(seed=3)
    assert breakout.observation_space.contains(obs)
    assert (obs == obs[-1]).all()
    assert obs.any()
    assert (info["lives"], info["reward"], info["terminated"]) == (5, 0.0, 0)
    assert info["ram"].shape == (128,)


def test_pictures_move_up_one_place_per_step(breakout: AtariEnv) -> None:
    before = breakout.reset(seed=3)[0].copy()
    for _ in range(3):
        obs = breakout.step(FIRE)[0]
        np.testing.assert_array_equal(obs[:-1], before[1:])
        before = obs.copy()


def test_colour_and_size() -> None:
    env = AtariEnv(gray_scale=False, stack_num=2, img_height=40, img_width=50, full_action_space=True)
    assert (env.observation_space.shape, env.action_space.n) == ((6, 40, 50), 18)
    obs, _ = env.reset(seed=1)
    np.testing.assert_array_equal(obs[:3], obs[3:])
    assert (obs[0] != obs[2]).any()


@pytest.mark.slow
def test_render_shows_the_screen() -> None:
    env = AtariEnv(render_mode="rgb_array")
    assert env.render().shape == (210, 160, 3)
    with pytest.raises(ArgumentError, match="render_mode"):
        AtariEnv().render()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"task": "ping"}, "task"),
        ({"stack_num": 0}, "stack_num"),
        ({"frame_skip": 0}, "frame_skip"),
        ({"noop_max": -1}, "noop_max"),
        ({"img_width": 0}, "img_width"),
        ({"mode": 77}, "mode"),
        ({"difficulty": 77}, "difficulty"),
        ({"repeat_action_probability": 1.5}, "repeat_action_probability"),
        ({"render_mode": "human"}, "render_mode"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ArgumentError, match=word):
        AtariEnv(**options)


@pytest.mark.slow
def test_mode_and_difficulty_reach_the_game() -> None:
    game = game_of("breakout")
    plain = AtariEnv(task="breakout", noop_max=0)
    other = AtariEnv(task="breakout", noop_max=0, mode=game.modes[-1], difficulty=game.difficulties[-1])
    assert (plain.reset(seed=1)[1]["ram"] != other.reset(seed=1)[1]["ram"]).any()


# ---------------------------------------------------------------------- chance


@pytest.mark.parametrize("sticky", [pytest.param(0.0, marks=pytest.mark.slow), 0.25])
def test_a_seed_says_everything(sticky: float) -> None:
    used, fresh = (AtariEnv(repeat_action_probability=sticky) for _ in range(2))
    used.reset(seed=1)
    play(used, 30)
    rows = []
    for env in (used, fresh):
        obs, info = env.reset(seed=7)
        rows.append([(obs.copy(), {**info, "ram": info["ram"].copy()}), *play(env, 30, seed=2)])
    np.testing.assert_array_equal(rows[0][0][0], rows[1][0][0])
    assert_same(rows[0][1:], rows[1][1:])


@pytest.mark.slow
def test_sticky_actions_are_drawn_from_the_seed() -> None:
    env = AtariEnv(repeat_action_probability=0.5, noop_max=0)
    rams = []
    for seed in (1, 2):
        env.reset(seed=seed)
        rams.append([row[-1]["ram"].tobytes() for row in play(env, 30)])
    assert rams[0] != rams[1]


@pytest.mark.slow
def test_episodes_begin_after_a_random_number_of_frames() -> None:
    env = AtariEnv()
    env.reset(seed=1)
    assert len({env.reset()[1]["ram"].tobytes() for _ in range(8)}) > 3


@pytest.mark.parametrize("noop_max", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_without_idle_frames_every_episode_begins_alike(noop_max: int) -> None:
    env = AtariEnv(noop_max=noop_max)
    env.reset(seed=1)
    assert len({env.reset()[0].tobytes() for _ in range(3)}) == 1


# ---------------------------------------------------------------------- rewards, lives, limits


def lose_a_life(env: AtariEnv) -> tuple[Any, ...]:
    lives = env.reset(seed=1)[1]["lives"]
    for k in range(600):
        row = env.step(FIRE if k % 5 == 0 else NOOP)
        if row[-1]["lives"] < lives:
            return row
    raise AssertionError("nobody lost a life")


def test_a_life_ends_an_episode_and_not_the_game() -> None:
    env = AtariEnv(task="breakout", episodic_life=True)
    obs, _, terminated, truncated, info = lose_a_life(env)
    assert (terminated, truncated, info["terminated"], info["lives"]) == (True, False, 0, 4)
    before, steps = obs.copy(), info["elapsed_step"]
    obs, info = env.reset()
    np.testing.assert_array_equal(obs[:-1], before[1:])  # the game goes on
    assert (info["lives"], info["elapsed_step"]) == (4, steps)
    assert env.step(NOOP)[-1]["elapsed_step"] == steps + 1
    obs, info = env.reset(seed=None)  # somebody has asked for it
    assert (info["lives"], info["elapsed_step"]) == (5, 0)
    assert (obs == obs[-1]).all()


@pytest.mark.slow
def test_without_episodic_life_a_life_is_only_told_of() -> None:
    _, _, terminated, _, info = lose_a_life(AtariEnv(task="breakout", zero_discount_on_life_loss=True))
    assert (terminated, info["lives"], info["discount"]) == (False, 4, 0.0)


@pytest.mark.slow
def test_the_limit_is_one_of_the_game_across_its_lives() -> None:
    env = AtariEnv(task="breakout", episodic_life=True, max_episode_steps=120)
    lose_a_life(env)
    env.reset()
    truncated, steps = False, 0
    while not truncated:
        *_, terminated, truncated, info = env.step(NOOP)
        steps += 1
        if terminated and not truncated:
            env.reset()
    assert info["elapsed_step"] == 120
    assert steps < 120
    assert env.reset()[1] | {"ram": None} == {
        "lives": 5, "reward": 0.0, "terminated": 0, "elapsed_step": 0, "ram": None,
    }  # fmt: skip


@pytest.mark.slow
def test_clipped_rewards_have_the_sign_of_true_ones() -> None:
    env = AtariEnv(task="ms_pacman", reward_clip=True)
    env.reset(seed=1)
    pairs = {(row[1], row[-1]["reward"]) for row in play(env, 150)}
    assert all(reward == np.sign(true) for reward, true in pairs)
    assert max(true for _, true in pairs) > 1


@pytest.mark.slow
def test_a_game_that_is_over_begins_anew() -> None:
    env = AtariEnv(task="breakout", episodic_life=True)
    env.reset(seed=1)
    over = [row for row in play(env, 900) if row[-1]["terminated"]]
    assert over
    assert all(row[2] and row[-1]["lives"] == 0 for row in over)


# ---------------------------------------------------------------------- the same as elsewhere

GAMES = [
    ("pong", "Pong"),
    pytest.param("breakout", "Breakout", marks=pytest.mark.slow),
    pytest.param("ms_pacman", "MsPacman", marks=pytest.mark.slow),
    pytest.param("space_invaders", "SpaceInvaders", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("task", "name"), GAMES)
@pytest.mark.parametrize("gray", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_pictures_and_rewards_are_those_of_gymnasiums_wrappers(task: str, name: str, gray: bool) -> None:
    pytest.importorskip("cv2")
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

    gym.register_envs(ale_py)
    raw = gym.make(f"ALE/{name}-v5", frameskip=1, repeat_action_probability=0.0)
    wrapped = AtariPreprocessing(raw, noop_max=0, grayscale_obs=gray)
    theirs = FrameStackObservation(wrapped, 4, padding_type="reset")
    ours = AtariEnv(task=task, noop_max=0, use_fire_reset=False, gray_scale=gray)

    def channels_first(obs: Any) -> Any:
        return obs if gray else np.moveaxis(obs, -1, 1).reshape(12, 84, 84)

    np.testing.assert_array_equal(channels_first(theirs.reset(seed=3)[0]), ours.reset(seed=3)[0])
    rng = np.random.default_rng(1)
    for _ in range(120):
        action = int(rng.integers(ours.action_space.n))
        obs, *rest, info = theirs.step(action)
        own, *own_rest, own_info = ours.step(action)
        assert rest == own_rest
        assert info["lives"] == own_info["lives"]
        if any(rest):  # they lay stale frames under the last one of a game
            break
        np.testing.assert_array_equal(channels_first(obs), own)
    theirs.close()


@pytest.mark.parametrize(("task", "name"), GAMES)
def test_pictures_and_rewards_are_those_of_ale_pys_vector_env(task: str, name: str) -> None:
    theirs = ale_py.AtariVectorEnv(
        task, 1, num_threads=1, noop_max=1, use_fire_reset=False, reward_clipping=False, stack_num=1
    )
    ours = AtariEnv(task=task, noop_max=0, use_fire_reset=False, stack_num=1)
    np.testing.assert_array_equal(theirs.reset(seed=3)[0][0], ours.reset(seed=3)[0])
    for action in np.random.default_rng(2).integers(0, ours.action_space.n, 120):
        obs, reward, terminated, _, info = theirs.step(np.array([action]))
        own, own_reward, own_terminated, _, own_info = ours.step(action)
        assert (reward[0], terminated[0], info["lives"][0]) == (own_reward, own_terminated, own_info["lives"])
        if own_terminated:
            break
        np.testing.assert_array_equal(obs[0], own)
