"""PettingZoo envs for tests: players who come and go."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

NAMES = ("ann", "bob", "cid")
OBSERVED = spaces.Box(-1e6, 1e6, (3,), np.float32)
DONE = spaces.Discrete(4)


class Party(ParallelEnv[str, Any, Any]):
    """Guests come and go: ``came[k]`` and ``left[k]`` say at which step. Who is there at the end is cut short.

    A guest observes the step, its own last action and a number drawn from the env's generator. With ``drift``, who
    leaves when is drawn, so that envs fall out of step.
    """

    metadata = {"name": "party_v0", "render_modes": ["rgb_array"]}

    def __init__(
        self,
        came: tuple[int, ...] = (0, 0, 0),
        left: tuple[int, ...] = (9, 9, 9),
        length: int = 4,
        drift: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.possible_agents = list(NAMES)
        self.came = dict(zip(NAMES, came, strict=True))
        self.gone = dict(zip(NAMES, left, strict=True))
        self.length = length
        self.drift = drift
        self.render_mode = render_mode
        self.is_closed = False
        self.asked: list[dict[str, Any]] = []
        self.options: Any = None
        self._rng = np.random.default_rng(0)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return OBSERVED

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return DONE

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        if self.drift:
            self.gone = {name: int(self._rng.integers(1, 7)) for name in NAMES}
        self.options = options
        self.clock = 0
        self.agents = [name for name in NAMES if self.came[name] == 0]
        return self._seen(dict.fromkeys(self.agents, 0)), {name: {} for name in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        self.asked.append(actions)
        self.clock += 1
        here = [name for name in NAMES if name in self.agents or self.came[name] == self.clock]
        seen = self._seen({name: actions.get(name, 0) for name in here})
        rewards = {name: float(actions.get(name, 0)) + 10 * NAMES.index(name) for name in here}
        terminations = {name: self.gone[name] <= self.clock for name in here}
        truncations = {name: self.clock >= self.length and not terminations[name] for name in here}
        infos = {name: self._report() if name == "bob" else {} for name in here}
        self.agents = [name for name in here if not (terminations[name] or truncations[name])]
        return seen, rewards, terminations, truncations, infos

    def render(self) -> Any:
        return np.full((2, 2, 3), self.clock, np.uint8)

    def close(self) -> None:
        self.is_closed = True

    def state(self) -> Any:
        return np.array([self.clock])

    def _report(self) -> dict[str, Any]:
        return {"clock": self.clock}

    def _seen(self, actions: dict[str, Any]) -> dict[str, Any]:
        draw = int(self._rng.integers(1000))
        return {name: np.array([self.clock, action, draw], np.float32) for name, action in actions.items()}


class Masked(Party):
    """Observations come with the actions that are allowed, and the others are refused."""

    MASK: spaces.Space[Any] = spaces.MultiBinary(4)

    @functools.cache  # noqa: B019
    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Dict({"observation": OBSERVED, "action_mask": self.MASK})

    def step(self, actions: dict[str, Any]) -> Any:
        for name, action in actions.items():
            assert self._mask(name)[action], f"{name} may not do {action}"
        return super().step(actions)

    def _mask(self, name: str) -> Any:
        mask = np.zeros(4, np.int8)
        mask[(self.clock + NAMES.index(name)) % 4] = 1
        return mask

    def _seen(self, actions: dict[str, Any]) -> dict[str, Any]:
        return {
            name: {"observation": seen, "action_mask": self._mask(name)}
            for name, seen in super()._seen(actions).items()
        }
