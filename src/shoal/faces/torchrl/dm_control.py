"""dm_control's envs, and all others with dm_env's interface, in TorchRL's dialect.

The entries of an observation keep their names and dtypes. A step that is the last of its episode terminates it if its
discount is 0, and truncates it otherwise.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shoal.envs.dm_control.library import load_library
from shoal.errors import ArgumentError, SpecError
from shoal.faces.torchrl.gym_like import GymLikeEnv
from shoal.faces.torchrl.gym_making import ClassProperty
from shoal.faces.torchrl.specs import Bounded, Categorical, Composite, OneHot, Unbounded

if TYPE_CHECKING:
    from types import ModuleType

    from shoal.faces.torchrl.specs import TensorSpec


class DMControlWrapper(GymLikeEnv):
    """A dm_control env, or any other ``dm_env.Environment``.

    Args:
        env: The env.
        from_pixels: Whether to observe pictures, as ``"pixels"``. The env needs a ``physics``, like dm_control's.
        pixels_only: Whether these pictures take the place of the observation.
        render_kwargs: Arguments for ``physics.render``: ``height``, ``width``, ``camera_id``.
        camera_id: Which camera draws the pictures.
        categorical_action_encoding: Whether discrete actions are integers; otherwise they are one-hot.
        frame_skip: How many times each action is applied.
        **kwargs: See ``EnvWrapper``.

    Example:
        >>> from dm_control import suite  # doctest: +SKIP
        >>> env = DMControlWrapper(suite.load("cheetah", "run"))  # doctest: +SKIP
        >>> env.rollout(3)["position"].shape  # doctest: +SKIP
        torch.Size([3, 8])
    """

    libname = "dm_control"
    git_url = "https://github.com/google-deepmind/dm_control"

    def __init__(self, env: Any = None, *, categorical_action_encoding: bool = False, **kwargs: Any) -> None:
        self.__dict__["_is_categorical"] = bool(categorical_action_encoding)
        if env is not None:
            kwargs["env"] = env
        super().__init__(**kwargs)

    def _build_env(  # type: ignore[override]
        self,
        env: Any,
        from_pixels: bool = False,
        pixels_only: bool = False,
        render_kwargs: Mapping[str, Any] | None = None,
        camera_id: int | str = 0,
        **kwargs: Any,
    ) -> Any:
        if kwargs:
            raise TypeError(f"{type(self).__name__} does not know {sorted(kwargs)}")
        if not all(callable(getattr(env, name, None)) for name in ("reset", "step", "observation_spec", "action_spec")):
            raise TypeError(f"env: expected a dm_env.Environment, got {type(env).__name__}")
        if from_pixels and not hasattr(env, "physics"):
            raise ArgumentError(f"from_pixels: {type(env).__name__} has no physics that could be drawn")
        own = self.__dict__
        own["from_pixels"], own["pixels_only"] = from_pixels, pixels_only
        own["_render_kwargs"] = {"camera_id": camera_id, **(render_kwargs or {})}
        return env

    def _make_specs(self, env: Any) -> None:
        observed = env.observation_spec()
        self.__dict__["_is_mapping"] = is_mapping = isinstance(observed, Mapping)
        named = dict(observed) if is_mapping else {"observation": observed}
        spec = Composite(device=self.device)
        if not (self.from_pixels and self.pixels_only):
            for key, leaf in named.items():
                spec[key] = spec_of(leaf, self._is_categorical, self.device)
        if self.from_pixels:
            spec["pixels"] = Unbounded(shape=self._frame().shape, dtype=torch.uint8, device=self.device)
        self.observation_spec = spec
        self.action_spec = spec_of(env.action_spec(), self._is_categorical, self.device)
        reward = spec_of(env.reward_spec(), False, self.device)
        self.reward_spec = Unbounded(shape=reward.shape, dtype=reward.dtype, device=self.device)
        flag = Categorical(2, shape=(1,), dtype=torch.bool, device=self.device)
        self.done_spec = Composite(
            {name: flag.clone() for name in ("done", "truncated", "terminated")}, device=self.device
        )
        self.__dict__["_action_dtype"] = getattr(env.action_spec(), "dtype", None)

    def _frame(self) -> torch.Tensor:
        return torch.from_numpy(np.array(self._env.physics.render(**self._render_kwargs), order="C"))

    def read_action(self, action: Any) -> Any:
        """What ``step`` takes."""
        array = super().read_action(action)
        shape = getattr(self._env.action_spec(), "shape", None)
        if shape is None or not isinstance(array, (int, float, np.ndarray, np.generic)):
            return array
        # A copy: the env may keep or change its action.
        return np.array(array, self._action_dtype).reshape(shape)[()]

    def read_obs(self, observations: Any) -> dict[str, Any]:
        """Entries from an observation."""
        if not (self.from_pixels and self.pixels_only):
            named = observations if self._is_mapping else {"observation": observations}
            entries = super().read_obs(named)
        else:
            entries = {}
        if self.from_pixels:
            entries["pixels"] = self._frame()
        return entries

    def _output_transform(self, step_outputs: Any) -> tuple[Any, Any, Any, Any, Any, Any]:
        last = bool(step_outputs.last())
        terminated = last and step_outputs.discount == 0
        observed = step_outputs.observation
        return observed, step_outputs.reward, terminated, last and not terminated, last, {}

    def _reset_output_transform(self, reset_outputs: Any) -> tuple[Any, Any]:
        return reset_outputs.observation, {}

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
        if kwargs.get("seed") is not None:
            self._give_seed(kwargs["seed"])
        kwargs = {key: value for key, value in kwargs.items() if key not in ("seed", "options")}
        return super()._reset(tensordict, **kwargs)

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            self._give_seed(seed)
            self._env.reset()

    def _give_seed(self, seed: int) -> None:
        env = self._env
        if callable(getattr(env, "seed", None)):
            env.seed(seed)
        elif hasattr(getattr(env, "task", None), "_random"):
            env.task._random = np.random.RandomState(seed)
        else:
            warnings.warn(f"{type(env).__name__} takes no seed, so this one is dropped", UserWarning, stacklevel=4)

    @property
    def lib(self) -> ModuleType:
        """The library."""
        return _library()

    @ClassProperty
    def available_envs(cls) -> list[tuple[str, list[str]]]:
        """The domains of the suite, each with its tasks."""
        suite = _library().suite
        return [(domain, sorted(suite.TASKS_BY_DOMAIN[domain])) for domain in sorted(suite.TASKS_BY_DOMAIN)]


class DMControlEnv(DMControlWrapper):
    """A task of dm_control's suite.

    Args:
        env_name: The domain, such as ``"cheetah"``.
        task_name: The task, such as ``"run"``.
        **kwargs: See ``DMControlWrapper``; arguments that it does not know are passed on to the task.

    Example:
        >>> from shoal.faces.torchrl import DMControlEnv
        >>> env = DMControlEnv("cheetah", "run")  # doctest: +SKIP
    """

    def __init__(self, env_name: str, task_name: str, **kwargs: Any) -> None:
        super().__init__(env_name=env_name, task_name=task_name, **kwargs)

    def _check_kwargs(self, kwargs: dict[str, Any]) -> None:
        known = dict(type(self).available_envs)
        domain, task = kwargs["env_name"], kwargs["task_name"]
        if task not in known.get(domain, ()):
            raise ArgumentError(f"{domain!r} with task {task!r} is not in the suite: {known.get(domain, list(known))}")

    def _build_env(self, env_name: str, task_name: str, **kwargs: Any) -> Any:  # type: ignore[override]
        own = {name: kwargs.pop(name) for name in _OWN if name in kwargs}
        env = _library().suite.load(env_name, task_name, task_kwargs=kwargs)
        return super()._build_env(env, **own)

    def __repr__(self) -> str:
        given = self._constructor_kwargs
        return (
            f"{type(self).__name__}(env={given['env_name']}, task={given['task_name']}, batch_size={self.batch_size})"
        )


_OWN = ("from_pixels", "pixels_only", "render_kwargs", "camera_id")


def _library() -> ModuleType:
    load_library()
    return importlib.import_module("dm_control")


def spec_of(spec: Any, is_categorical: bool, device: Any) -> TensorSpec:
    """The spec for a dm_env spec, nested or not; scalars get one dim, except discrete values as integers."""
    if isinstance(spec, Mapping):
        return Composite({key: spec_of(child, is_categorical, device) for key, child in spec.items()}, device=device)
    if hasattr(spec, "num_values"):
        count = int(spec.num_values)
        return Categorical(count, device=device) if is_categorical else OneHot(count, dtype=torch.int64, device=device)
    shape = tuple(spec.shape) or (1,)
    try:
        dtype = torch.from_numpy(np.zeros((), spec.dtype)).dtype
    except TypeError:
        raise SpecError(f"dm_env spec {spec!r} has dtype {spec.dtype}, which no tensor can have") from None
    if hasattr(spec, "minimum"):
        low, high = (
            np.broadcast_to(np.asarray(bound, spec.dtype), shape).copy() for bound in (spec.minimum, spec.maximum)
        )
        if np.isfinite(low).any() or np.isfinite(high).any():
            return Bounded(
                low=torch.from_numpy(low), high=torch.from_numpy(high), shape=shape, dtype=dtype, device=device
            )
    return Unbounded(shape=shape, dtype=dtype, device=device)
