"""Where Gymnasium has an env too, the same seed and the same actions give the same episodes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
from gymnasium_twins import ENGINES, Case, along_the_cliff, compare, downhill, for_hire

from shoal.envs import TASKS

# What an id is called in Gymnasium, if not the same.
ELSEWHERE = {
    "CartPole-v0": "CartPole-v1",
    "Pendulum-v0": "Pendulum-v1",
    "Taxi-v3": "Taxi-v4",
    "CliffWalking-v0": "CliffWalking-v1",
}
SHOALS_ALONE = {"Catch-v0", "NChain-v0"}

# Two starts, not square, with a hole next to the goal.
LAKE = ["SFFFS", "FHFFF", "FFHGF"]
LONG_ODDS = {"success_rate": 0.7, "reward_schedule": (5, -2, -0.25)}

# Cases in which some episode has to end by itself.
ENDING = [
    Case("CartPole-v0", twin="CartPole-v1"),
    Case("CartPole-v1"),
    Case("CartPole-v1", kwargs={"sutton_barto_reward": True}),
    Case("CartPole-v1", reset_options={"low": -0.2, "high": 0.1}),
    Case("CartPole-v1", reset_options={"high": 0.2}),
    Case("MountainCar-v0", policy=downhill),
    Case("MountainCar-v0", kwargs={"goal_velocity": 0.02}, policy=downhill),
    Case("MountainCarContinuous-v0", policy=downhill),
    Case("MountainCarContinuous-v0", kwargs={"goal_velocity": 0.02}, policy=downhill),
    Case("Acrobot-v1", reset_options={"low": -2.5, "high": 2.5}, limit=20, extra=("state",)),
    Case("FrozenLake-v1"),
    Case("FrozenLake-v1", kwargs={"is_slippery": False}),
    Case("FrozenLake-v1", kwargs={"desc": LAKE}),
    Case("FrozenLake-v1", kwargs={"desc": LAKE, **LONG_ODDS}),
    Case("FrozenLake8x8-v1"),
    Case("Taxi-v4", policy=for_hire),
    Case("Taxi-v4", kwargs={"is_rainy": True}, policy=for_hire),
    Case("Taxi-v4", kwargs={"is_rainy": True, "rainy_probability": 0.3}, policy=for_hire),
    Case("Taxi-v4", kwargs={"fickle_passenger": True, "fickle_probability": 0.9}, policy=for_hire),
    Case("Taxi-v4", kwargs={"is_rainy": True, "fickle_passenger": True}, policy=for_hire),
    Case("CliffWalking-v0", twin="CliffWalking-v1", policy=along_the_cliff),
    Case("CliffWalking-v1", policy=along_the_cliff),
    Case("CliffWalkingSlippery-v1", policy=along_the_cliff),
    Case("CliffWalking-v1", kwargs={"is_slippery": True}, policy=along_the_cliff),
    Case("Blackjack-v1", steps=400),
    Case("Blackjack-v1", kwargs={"sab": False}, steps=400),
    Case("Blackjack-v1", kwargs={"sab": False, "natural": True}, steps=400),
]
# Cases in which the time limit may be what ends episodes.
ENDLESS = [
    Case("Pendulum-v1"),
    Case("Pendulum-v1", kwargs={"g": 9.81}),
    Case("Pendulum-v1", reset_options={"x_init": 0.5, "y_init": 0.1}),
    Case("MountainCar-v0", limit=50),
    Case("MountainCar-v0", reset_options={"low": -1.2, "high": 0.3}),
    Case("MountainCarContinuous-v0", limit=150),
    Case("MountainCarContinuous-v0", reset_options={"low": -1.2, "high": -1.1}),
    Case("Acrobot-v1", extra=("state",), steps=520),
    Case("Taxi-v3", twin="Taxi-v4"),
    Case("CliffWalking-v1", limit=40),
]


def on_each_engine(cases: list[Case]) -> list[Any]:
    """Every case on every engine. Those with options wait for the second stage: some are compiled anew."""
    return [
        pytest.param(
            case,
            engine,
            id=f"{case}-{engine}",
            marks=[pytest.mark.slow] if case.kwargs or case.reset_options else [],
        )
        for case in cases
        for engine in ENGINES
    ]


@pytest.mark.parametrize(("case", "engine"), on_each_engine(ENDING))
def test_same_rows_up_to_the_end(case: Case, engine: str) -> None:
    assert compare(case, engine) > 0


@pytest.mark.parametrize(("case", "engine"), on_each_engine(ENDLESS))
def test_same_rows_up_to_the_limit(case: Case, engine: str) -> None:
    compare(case, engine)


@pytest.mark.parametrize("task", [task for task in TASKS if task not in SHOALS_ALONE])
def test_spaces_are_gymnasiums(task: str) -> None:
    kind = TASKS[task].load()(**TASKS[task].kwargs)
    twin = gym.make(ELSEWHERE.get(task, task), disable_env_checker=True)
    assert kind.observation_space == twin.observation_space
    assert kind.action_space == twin.action_space
    twin.close()


@pytest.mark.parametrize("task", [task for task in TASKS if task in gym.registry])
def test_limits_and_thresholds_are_gymnasiums(task: str) -> None:
    registered: Any = gym.registry[task]
    assert TASKS[task].max_episode_steps == registered.max_episode_steps
    assert TASKS[task].reward_threshold == registered.reward_threshold
