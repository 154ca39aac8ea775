"""dm_env environments as Gymnasium envs."""

from __future__ import annotations

import inspect
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from shoal.adapters.plain_number import plain_number
from shoal.adapters.see_through import SeeThrough
from shoal.errors import SpecError
from shoal.spec import Field

TELLS_DISCOUNT = "tells_discount"  # the key in an env's metadata
_SEEDS = 2**32  # a RandomState takes seeds below this as they are


class DmEnvAdapter(SeeThrough, gym.Env[Any, Any]):
    """A ``dm_env.Environment`` with Gymnasium's interface.

    LAST with discount 0 is a termination, LAST with any other discount a truncation (the usual reading of dm_env).
    ``info["discount"]`` carries the discount of each step, and ``metadata`` says so: where a face has discounts, they
    are the env's own, even at the end of an episode. A seed reaches the env if it has a ``seed`` method, a
    ``reset(seed=)``, or, as in dm_control, a task with a ``random`` generator; if it has none of these, the seed is
    dropped with a warning. Other attributes are those of the env itself.
    """

    info_columns: ClassVar[tuple[Field, ...]] = (Field("discount", np.dtype(np.float64), (), at_reset=False),)

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space = space_of(env.observation_spec())
        self.action_space = space_of(env.action_spec())
        self._action_spec = env.action_spec()
        self._reset_takes_seed = "seed" in inspect.signature(env.reset).parameters
        self.metadata = {TELLS_DISCOUNT: True, **({"render_modes": ["rgb_array"]} if hasattr(env, "physics") else {})}
        self.render_mode = "rgb_array" if hasattr(env, "physics") else None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        if seed is not None and self._reset_takes_seed:
            return self._observation(self.env.reset(seed=seed)), {}
        if seed is not None:
            self._seed(seed)
        return self._observation(self.env.reset()), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step; the discount is in the info."""
        step = self.env.step(_as_spec(self._action_spec, action))
        discount = 1.0 if step.discount is None else plain_number(step.discount, "discount")
        last = bool(step.last())
        terminated = last and discount == 0.0
        reward = 0.0 if step.reward is None else plain_number(step.reward, "reward")
        return self._observation(step), reward, terminated, last and not terminated, {"discount": discount}

    def render(self) -> Any:
        """A frame from dm_control's physics."""
        return self.env.physics.render()

    def close(self) -> None:
        """Close the env."""
        self.env.close()

    def _seed(self, seed: int) -> None:
        if callable(getattr(self.env, "seed", None)):
            self.env.seed(seed)
        elif hasattr(getattr(self.env, "task", None), "_random"):
            self.env.task._random = random_state(seed)
        else:
            # Python shows the same warning from the same line only once, however many envs there are.
            warnings.warn(
                f"{type(self.env).__name__} takes no seed, so this one is dropped and its episodes will not repeat. "
                "A method seed(seed), an argument seed of reset, or a task with a _random generator would be used",
                stacklevel=2,
            )

    def _observation(self, step: Any) -> Any:
        return _cast(self.observation_space, step.observation)


def random_state(seed: int) -> np.random.RandomState:
    """``RandomState(seed)``, and a generator of that kind for seeds that are too large for it."""
    return np.random.RandomState(seed if seed < _SEEDS else np.random.MT19937(np.random.SeedSequence(seed)))


def _as_spec(spec: Any, value: Any) -> Any:
    """An action in the dtypes that the env's own spec asks for."""
    if isinstance(spec, dict):
        return {key: _as_spec(child, value[key]) for key, child in spec.items()}
    if isinstance(spec, (list, tuple)):
        make = getattr(spec, "_make", type(spec))  # a namedtuple takes its fields one by one
        return make(_as_spec(child, item) for child, item in zip(spec, value, strict=True))
    return np.asarray(value, spec.dtype)[()]


def _cast(space: spaces.Space[Any], value: Any) -> Any:
    """An observation as a value of the space. What has another structure stays as it is, for the pool to explain."""
    if isinstance(space, spaces.Dict):
        has_all = isinstance(value, Mapping) and value.keys() >= space.spaces.keys()
        return {key: _cast(child, value[key]) for key, child in space.spaces.items()} if has_all else value
    if isinstance(space, spaces.Tuple):
        has_all = isinstance(value, (tuple, list)) and len(value) == len(space.spaces)
        return tuple(map(_cast, space.spaces, value)) if has_all else value
    return np.asarray(value)


def space_of(spec: Any) -> spaces.Space[Any]:
    """The Gymnasium space of a dm_env spec, nested or not."""
    if isinstance(spec, dict):
        # In the env's own order: Gymnasium would sort the keys of a plain dict.
        return spaces.Dict(OrderedDict((key, space_of(child)) for key, child in spec.items()))
    if isinstance(spec, (list, tuple)):
        return spaces.Tuple([space_of(child) for child in spec])
    if hasattr(spec, "num_values"):
        return spaces.Discrete(int(spec.num_values))
    dtype = np.dtype(spec.dtype)
    if dtype.kind not in "fiub":
        raise SpecError(f"dm_env spec {spec!r} has dtype {dtype}, which no space can describe")
    low, high = _limits(spec, dtype)
    box = np.dtype(np.uint8) if dtype.kind == "b" else dtype
    return spaces.Box(
        np.broadcast_to(low, spec.shape).astype(box), np.broadcast_to(high, spec.shape).astype(box), dtype=box.type
    )


def _limits(spec: Any, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    if hasattr(spec, "minimum"):
        return spec.minimum, spec.maximum
    if dtype.kind == "f":
        return -np.inf, np.inf
    return (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
