"""Gymnasium's envs as the measure: the same seeds and actions, row by row, over episodes and their resets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import iterate

import shoal
from shoal.envs import TASKS

if TYPE_CHECKING:
    from collections.abc import Mapping

# Engines whose rows are compared with Gymnasium's.
ENGINES = ["serial", "kernel"]

NUM_ENVS = 3
TOLERANCE = 1e-6
# Keys that shoal adds to every info.
OWN_KEYS = {"env_id", "elapsed_step", "first"}


@dataclass(frozen=True)
class Row:
    """What one env answered."""

    obs: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class Twins:
    """Single envs of Gymnasium, each reset in the step after its episode ended."""

    def __init__(self, gymnasium_id: str, num_envs: int, **kwargs: Any) -> None:
        self.envs = [gym.make(gymnasium_id, disable_env_checker=True, **kwargs) for _ in range(num_envs)]
        self.is_over = [False] * num_envs

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> list[Row]:
        seeds = [None if seed is None else seed + i for i in range(len(self.envs))]
        starts = [env.reset(seed=own, options=options) for env, own in zip(self.envs, seeds, strict=True)]
        self.is_over = [False] * len(self.envs)
        return [Row(obs, 0.0, False, False, info) for obs, info in starts]

    def step(self, actions: list[Any]) -> list[Row]:
        return [self._step(i, action) for i, action in enumerate(actions)]

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _step(self, i: int, action: Any) -> Row:
        if self.is_over[i]:
            obs, info = self.envs[i].reset()
            row = Row(obs, 0.0, False, False, info)
        else:
            row = Row(*self.envs[i].step(action))
        self.is_over[i] = row.terminated or row.truncated
        return row


class Ours:
    """Envs of shoal, asked in the same way."""

    def __init__(self, task: str, engine: str, limit: int | None, kwargs: Mapping[str, Any]) -> None:
        known = TASKS[task]
        self.envs = shoal.make_vec(
            known.load(),
            NUM_ENVS,
            engine=engine,
            env_kwargs={**known.kwargs, **kwargs},
            max_episode_steps=limit or known.max_episode_steps,
        )
        self.batch: tuple[Any, dict[str, Any]] = (None, {})

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> list[Row]:
        self.batch = self.envs.reset(seed=seed, options=options)
        nothing = np.zeros(NUM_ENVS)
        return self._rows(self.batch[0], nothing, nothing, nothing, self.batch[1])

    def step(self, actions: list[Any]) -> list[Row]:
        obs, *rest, infos = self.envs.step(np.array(actions, self.envs.single_action_space.dtype))
        self.batch = obs, infos
        return self._rows(obs, *rest, infos)

    def close(self) -> None:
        self.envs.close()

    def _rows(self, obs: Any, reward: Any, terminated: Any, truncated: Any, infos: dict[str, Any]) -> list[Row]:
        each = list(iterate(self.envs.observation_space, obs))
        keys = [key for key in infos if not key.startswith("_") and key not in OWN_KEYS]
        return [
            Row(each[i], reward[i], terminated[i], truncated[i], {key: infos[key][i] for key in keys})
            for i in range(NUM_ENVS)
        ]


def at_random(rng: np.random.Generator, space: Any, batch: tuple[Any, dict[str, Any]]) -> list[Any]:
    """Any action."""
    if isinstance(space, gym.spaces.Box):
        return [rng.uniform(space.low, space.high).astype(np.float32) for _ in range(NUM_ENVS)]
    return [int(rng.integers(0, space.n)) for _ in range(NUM_ENVS)]


def downhill(rng: np.random.Generator, space: Any, batch: tuple[Any, dict[str, Any]]) -> list[Any]:
    """With the car's velocity: it then leaves the valley."""
    signs = np.sign(batch[0][:, 1] + 1e-9)
    if isinstance(space, gym.spaces.Box):
        return [np.array([rng.uniform(0.7, 1.0) * sign], np.float32) for sign in signs]
    return [int(1 + sign) for sign in signs]


def for_hire(rng: np.random.Generator, space: Any, batch: tuple[Any, dict[str, Any]]) -> list[Any]:
    """Mostly towards the passenger or the destination, now and then anything."""
    return [int(_fare(int(state)) if rng.random() < 0.8 else rng.integers(0, 6)) for state in batch[0]]


def _fare(state: int) -> int:
    row, column, passenger, destination = state // 100, state // 20 % 5, state // 4 % 5, state % 4
    stop = ((0, 0), (0, 4), (4, 0), (4, 3))[destination if passenger == 4 else passenger]
    if (row, column) == stop:
        return 5 if passenger == 4 else 4
    # The middle row is the one without walls.
    if column != stop[1] and row == 2:
        return 2 if column < stop[1] else 3
    return 0 if row < (2 if column != stop[1] else stop[0]) else 1


def along_the_cliff(rng: np.random.Generator, space: Any, batch: tuple[Any, dict[str, Any]]) -> list[Any]:
    """Mostly up, along the cliff, and down to the goal."""
    best = [0 if square == 36 else 2 if square % 12 == 11 else 1 for square in batch[0]]
    return [int(action if rng.random() < 0.9 else rng.integers(0, 4)) for action in best]


@dataclass(frozen=True)
class Case:
    """One comparison.

    Attributes:
        task: The id in shoal's table.
        twin: The id in Gymnasium, if it has another there.
        kwargs: Options of the env, for both.
        reset_options: Options of the first reset.
        policy: Where the actions come from.
        steps: How many.
        limit: A time limit other than the task's.
        extra: Info keys that only shoal has.
    """

    task: str
    twin: str = ""
    kwargs: dict[str, Any] = field(default_factory=dict)
    reset_options: dict[str, Any] | None = None
    policy: Any = at_random
    steps: int = 300
    limit: int | None = None
    extra: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [self.task, *self.kwargs, *(self.reset_options or {})]
        return "-".join(parts if self.policy is at_random else [*parts, self.policy.__name__])


def compare(case: Case, engine: str) -> int:
    """Run both side by side; how many episodes ended by themselves.

    Raises:
        AssertionError: At the first difference.
    """
    task = TASKS[case.task]
    ours = Ours(case.task, engine, case.limit, case.kwargs)
    twin_kwargs = {**task.kwargs, **case.kwargs}
    limit = case.limit or task.max_episode_steps
    if limit is not None:
        twin_kwargs["max_episode_steps"] = limit
    twins = Twins(case.twin or case.task, NUM_ENVS, **twin_kwargs)
    rng = np.random.default_rng(7)
    ended = 0
    try:
        assert_same(ours.reset(11, case.reset_options), twins.reset(11, case.reset_options), case.extra, "reset")
        for step in range(case.steps):
            actions = case.policy(rng, ours.envs.single_action_space, ours.batch)
            rows = twins.step(actions)
            assert_same(ours.step(actions), rows, case.extra, f"step {step}")
            ended += sum(row.terminated for row in rows)
    finally:
        ours.close()
        twins.close()
    return ended


def assert_same(ours: list[Row], twins: list[Row], extra: tuple[str, ...], when: str) -> None:
    for i, (own, twin) in enumerate(zip(ours, twins, strict=True)):
        where = f"env {i}, {when}"
        assert_close(own.obs, twin.obs, f"obs of {where}")
        assert_close(own.reward, twin.reward, f"reward of {where}")
        assert (own.terminated, own.truncated) == (twin.terminated, twin.truncated), f"flags of {where}"
        assert own.info.keys() - set(extra) == twin.info.keys(), f"infos of {where}"
        for key, value in twin.info.items():
            assert_close(own.info[key], value, f"info {key} of {where}")


def assert_close(own: Any, twin: Any, what: str) -> None:
    """Equal for integers, as good as equal for floats."""
    if isinstance(twin, tuple):
        assert isinstance(own, tuple), what
        for own_part, twin_part in zip(own, twin, strict=True):
            assert_close(own_part, twin_part, what)
        return
    if isinstance(twin, np.ndarray):
        assert own.dtype == twin.dtype, what
    exact = np.asarray(twin).dtype.kind != "f"
    np.testing.assert_allclose(own, twin, rtol=0, atol=0 if exact else TOLERANCE, err_msg=what)
