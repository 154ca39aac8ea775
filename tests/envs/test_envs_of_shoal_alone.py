"""Rules of the envs that Gymnasium does not have: Catch, NChain and the first version of Pendulum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium_twins import ENGINES

import shoal
from shoal.envs import TASKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Make = Callable[..., shoal.ShoalVectorEnv]

LEFT, STAY, RIGHT = 0, 1, 2
FORWARD, BACK = 0, 1


@pytest.fixture(params=ENGINES)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Envs of a task, closed when the test ends."""
    opened = []

    def make(task: str, num_envs: int, **kwargs: Any) -> shoal.ShoalVectorEnv:
        known = TASKS[task]
        opened.append(
            shoal.make_vec(
                known.load(),
                num_envs,
                engine=request.param,
                env_kwargs={**known.kwargs, **kwargs},
                max_episode_steps=known.max_episode_steps,
            )
        )
        return opened[-1]

    yield make
    for envs in opened:
        envs.close()


def places(board: np.ndarray[Any, Any]) -> tuple[tuple[int, int], int]:
    """Where the ball is, and the column of the paddle; for boards on which the ball is not in the bottom row."""
    (row,), (column,) = np.nonzero(board[:-1])
    (paddle,) = np.flatnonzero(board[-1])
    assert set(np.unique(board)) <= {0.0, 1.0}
    return (int(row), int(column)), int(paddle)


def test_catch_starts_with_the_ball_on_top_and_the_paddle_in_the_middle(make: Make) -> None:
    obs, _ = make("Catch-v0", 64).reset(seed=1)
    assert obs.shape == (64, 10, 5)
    assert obs.dtype == np.float32
    starts = [places(board) for board in obs]
    assert all(row == 0 and paddle == 2 for (row, _), paddle in starts)
    assert {column for (_, column), _ in starts} == {0, 1, 2, 3, 4}


def test_catch_falls_a_row_per_step_and_pays_at_the_bottom(make: Make) -> None:
    envs = make("Catch-v0", 16)
    obs, _ = envs.reset(seed=1)
    columns = [places(board)[0][1] for board in obs]
    for row in range(1, 9):
        obs, reward, terminated, truncated, _ = envs.step(np.full(16, LEFT))
        assert [places(board) for board in obs] == [((row, column), max(2 - row, 0)) for column in columns]
        assert not reward.any()
        assert not (terminated | truncated).any()
    obs, reward, terminated, truncated, _ = envs.step(np.full(16, STAY))
    assert terminated.all()
    assert not truncated.any()
    assert list(reward) == [1.0 if column == 0 else -1.0 for column in columns]
    assert [set(np.flatnonzero(board[-1])) for board in obs] == [{0, column} for column in columns]
    assert not obs[:, :-1].any()


def test_catch_is_won_by_following_the_ball(make: Make) -> None:
    envs = make("Catch-v0", 8, height=6, width=7)
    obs, _ = envs.reset(seed=3)
    assert obs.shape == (8, 6, 7)
    for _ in range(5):
        spots = [places(board) for board in obs]
        obs, reward, terminated, _, _ = envs.step(
            np.array([int(np.sign(column - paddle)) + 1 for (_, column), paddle in spots])
        )
    assert terminated.all()
    assert (reward == 1.0).all()


def test_catch_keeps_the_paddle_on_the_board(make: Make) -> None:
    envs = make("Catch-v0", 2)
    envs.reset(seed=0)
    for _ in range(6):
        obs, *_ = envs.step(np.array([LEFT, RIGHT]))
    assert [places(board)[1] for board in obs] == [0, 4]


def test_nchain_without_slips(make: Make) -> None:
    envs = make("NChain-v0", 1, slip=0.0)
    envs.reset(seed=0)
    answers = []
    for action in [FORWARD] * 6 + [BACK, FORWARD, BACK]:
        obs, reward, *_ = envs.step(np.array([action]))
        answers.append((int(obs[0]), float(reward[0])))
    forward = [(1, 0.0), (2, 0.0), (3, 0.0), (4, 0.0), (4, 10.0), (4, 10.0)]
    assert answers == [*forward, (0, 2.0), (1, 0.0), (0, 2.0)]


def test_nchain_always_slipping_is_the_other_action(make: Make) -> None:
    envs = make("NChain-v0", 1, slip=1.0, n=2, small=3.0, large=7.0)
    envs.reset(seed=0)
    answers = []
    for action in [BACK, BACK, FORWARD]:
        obs, reward, *_ = envs.step(np.array([action]))
        answers.append((int(obs[0]), float(reward[0])))
    assert answers == [(1, 0.0), (1, 7.0), (0, 3.0)]


def test_nchain_slips_one_time_in_five_and_ends_by_the_clock(make: Make) -> None:
    envs = make("NChain-v0", 4)
    envs.reset(seed=0)
    slips = 0
    for step in range(1, 1001):
        _, reward, terminated, truncated, _ = envs.step(np.full(4, BACK))
        slips += int((reward != 2.0).sum())
        assert not terminated.any()
        assert truncated.all() == (step == 1000)
    assert 0.17 < slips / 4000 < 0.23


def test_pendulum_v0_turns_by_the_speed_before_its_limit(make: Make) -> None:
    before, after = (make(task, 1) for task in ("Pendulum-v0", "Pendulum-v1"))
    for envs in (before, after):
        envs.reset(seed=5)
        envs.set_attr("angle", 1.5)
        envs.set_attr("speed", 7.9)
        envs.step(np.array([[2.0]], np.float32))
    raw = 7.9 + (15.0 * np.sin(1.5) + 3.0 * 2.0) * 0.05
    assert raw > 8.0
    assert before.get_attr("speed") == after.get_attr("speed") == (8.0,)
    assert before.get_attr("angle")[0] == pytest.approx(1.5 + raw * 0.05)
    assert after.get_attr("angle")[0] == pytest.approx(1.5 + 8.0 * 0.05)


def test_acrobot_reports_its_angles(make: Make) -> None:
    envs = make("Acrobot-v1", 3)
    obs, infos = envs.reset(seed=0)
    for _ in range(20):
        angles = infos["state"]
        assert np.stack(list(angles)).dtype == np.float32
        turned = np.stack([np.cos(angles[:, 0]), np.sin(angles[:, 0]), np.cos(angles[:, 1]), np.sin(angles[:, 1])], 1)
        np.testing.assert_allclose(obs[:, :4], turned, atol=1e-6)
        obs, _, _, _, infos = envs.step(envs.action_space.sample())
