"""A single env of a native simulator as a Gymnasium env, for engines that run one env at a time."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from shoal.native import Columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.native import Errors, NativeEnv

_ONLY = np.zeros(1, np.int32)
_UNASKED: Any = object()  # nobody has asked for the reset: it is due because an episode has ended


class PlainNativeEnv(gym.Env[Any, Any]):
    """One env of a kind, in a simulator of its own.

    Attributes:
        kind: What it runs.
    """

    def __init__(self, kind: NativeEnv) -> None:
        self.kind = kind
        spec = kind.describe(type(kind).__name__)
        self.observation_space = spec.observation.space
        self.action_space = spec.action.space
        self.metadata = spec.metadata
        self.render_mode = kind.render_mode
        self._fields = spec.info
        self._obs, self._action = spec.observation, spec.action
        self._sim = kind.simulate(1, 1)
        if fields := getattr(self._sim, "own_fields", ()):
            warnings.warn(
                f"{type(kind).__name__}.prepare gives {', '.join(fields)} to each env of its simulator, and here every "
                "env has a simulator of its own, so they may all be alike; engine='native' runs them in one",
                stacklevel=2,
            )
        self._columns = Columns(
            [np.zeros((1, *leaf.shape), leaf.dtype) for leaf in spec.observation.leaves],
            np.zeros(1),
            np.zeros(1, np.bool_),
            np.zeros(1, np.bool_),
            {field.name: np.zeros((1, *field.shape), field.dtype) for field in spec.info},
        )

    def reset(
        self, *, seed: int | None = _UNASKED, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; without arguments, the one that follows the last."""
        go_on = getattr(self._sim, "next_episode", None)
        if seed is _UNASKED and options is None and go_on is not None:
            self._raise(go_on(_ONLY, self._columns))
        else:
            seeds = {} if seed is None or seed is _UNASKED else {0: seed}
            self._raise(self._sim.reset(_ONLY, seeds, {0: options} if options else {}, self._columns))
        return self._observation(), self._info(is_first=True)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step; there is no time limit here: enforcing one is left to whoever runs the env."""
        leaves = [np.asarray(leaf)[None] for leaf in self._action.flatten(action)]
        self._raise(self._sim.step(None, leaves, self._columns))
        flags = bool(self._columns.terminated[0]), bool(self._columns.truncated[0])
        return self._observation(), float(self._columns.reward[0]), *flags, self._info(is_first=False)

    def render(self) -> Any:
        """A picture of the env."""
        return self._sim.view(0).render()

    def close(self) -> None:
        """End the simulator."""
        self._sim.close()

    @property
    def np_random(self) -> Any:
        """The generator of the env."""
        return self._sim.view(0).np_random

    @np_random.setter
    def np_random(self, value: np.random.Generator) -> None:
        self._sim.view(0).np_random = value

    @property
    def _np_random(self) -> Any:  # type: ignore[override]
        return self.np_random

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute of the env in the simulator."""
        setattr(self._sim.view(0), name, value)
        return True

    def __getattr__(self, name: str) -> Any:
        sim = self.__dict__.get("_sim")
        if sim is None or name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(sim.view(0), name)

    def _raise(self, errors: Errors) -> None:
        if errors:
            raise errors[0]

    def _observation(self) -> Any:
        return self._obs.unflatten([column[0].copy() for column in self._columns.obs])

    def _info(self, *, is_first: bool) -> dict[str, Any]:
        columns = self._columns.info
        told = [field for field in self._fields if field.at_reset or not is_first]
        return {field.name: np.copy(columns[field.name][0])[()] for field in told}
