"""Gymnasium's envs in TorchRL's dialect.

    GymWrapper   an env that you have made: a single one, or a vector env
    GymEnv       an env by its id; with ``num_envs``, many of them on a pool

What is particular to many envs at once is in ``gym_vector``, how envs are made from ids in ``gym_making``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces

from shoal.errors import ArgumentError, SpecError
from shoal.faces.torchrl.codecs import Codec, DictCodec, codec_for
from shoal.faces.torchrl.env_wrapper import attribute_of
from shoal.faces.torchrl.gym_arrays import GymArrays, arrays_of
from shoal.faces.torchrl.gym_library import as_gymnasium, gym_backend, set_gym_backend
from shoal.faces.torchrl.gym_like import GymLikeEnv
from shoal.faces.torchrl.gym_making import ClassProperty, make_gym_env, make_gym_pool
from shoal.faces.torchrl.gym_vector import VectorGym
from shoal.faces.torchrl.spaces import gym_to_torchrl_spec_transform
from shoal.faces.torchrl.specs import Categorical, Composite, Unbounded
from shoal.faces.torchrl.vector_sources import source_of
from shoal.pool import Pool

if TYPE_CHECKING:
    from types import ModuleType

    from tensordict import TensorDictBase

    from shoal.faces.torchrl.specs import TensorSpec


class GymWrapper(GymLikeEnv):
    """A Gymnasium env that has already been made, single or vector.

    An observation that is an array is called ``"observation"``, or ``"pixels"`` if it is a picture; the entries of a
    dict keep their names, except that ``"state"`` becomes ``"observation"`` if there is none. The flags ``done``,
    ``terminated`` and ``truncated`` are always there. Attributes that are missing here are looked up on the env,
    however deeply it is wrapped.

    A vector env gives a batch of envs, and each can be reset on its own. ``next`` always has the last observation of an
    episode, and the root of the following step the first of the next one. Gymnasium's own vector envs have to be made
    with the autoreset mode ``DISABLED`` or ``SAME_STEP``; those from ``shoal.make_vec`` may have any.

    Args:
        env: The env.
        categorical_action_encoding: Whether discrete actions and observations are integers; otherwise they are one-hot.
        from_pixels: Whether to observe the pictures that the env draws, as ``"pixels"``. The env must have been made
            with ``render_mode="rgb_array"``.
        pixels_only: Whether these pictures take the place of the observation.
        frame_skip: How many times each action is applied.
        missing_obs_value: Accepted for compatibility: no observation is missing here.
        device: Where results are put.
        batch_size: For envs whose own spaces are batched.
        allow_done_after_reset: Whether a reset may return an episode that has already ended.
        convert_actions_to_numpy: Whether the env takes arrays; otherwise it gets tensors.

    Example:
        >>> import gymnasium as gym
        >>> from shoal.faces.torchrl import GymWrapper
        >>> env = GymWrapper(gym.make("Pendulum-v1"))
        >>> env.rollout(3)["next", "reward"].shape
        torch.Size([3, 1])
    """

    libname: str | None = "gym"
    git_url: str | None = "https://github.com/Farama-Foundation/Gymnasium"

    _many: VectorGym | None = None
    _names_pixels = True  # whether an observation that is a picture is called "pixels"

    def __init__(self, env: Any = None, categorical_action_encoding: bool = False, **kwargs: Any) -> None:
        self.__dict__["_is_categorical"] = bool(categorical_action_encoding)
        if env is not None:
            kwargs["env"] = env
        super().__init__(**kwargs)

    # ------------------------------------------------------------------ making one

    def _build_env(  # type: ignore[override]
        self,
        env: Any,
        from_pixels: bool = False,
        pixels_only: bool = False,
        missing_obs_value: Any = np.nan,
        **kwargs: Any,
    ) -> Any:
        if kwargs:
            raise TypeError(f"{type(self).__name__} does not know {sorted(kwargs)}")
        if not isinstance(env, Pool) and not (hasattr(env, "action_space") and hasattr(env, "step")):
            raise ArgumentError(f"env: expected an env of Gymnasium's, got {env!r:.80}")
        return self._adopt(env, from_pixels, pixels_only)

    def _adopt(self, env: Any, from_pixels: bool, pixels_only: bool) -> Any:
        """Make this the wrapped env: note its spaces, and how it is drawn."""
        own = self.__dict__
        source = source_of(env)
        own["_many"] = None if source is None else VectorGym(self, source)
        if source is not None and not self.batch_size:
            self.batch_size = torch.Size([source.num_envs])
        spaces_of = env if source is None else source
        own["_spaces"] = (as_gymnasium(spaces_of.observation_space), as_gymnasium(spaces_of.action_space))
        # An env whose observations are pictures need not be drawn.
        draws = from_pixels and not shows_pixels(self._spaces[0])
        if draws and (env.spec.render_mode if isinstance(env, Pool) else env.render_mode) is None:
            raise ArgumentError(f"from_pixels: {env} has no pictures; make it with render_mode='rgb_array'")
        if draws and source is not None and source.resets_in_step:
            raise ArgumentError("from_pixels: an env that resets itself draws no last picture; disable its autoreset")
        own["from_pixels"] = from_pixels
        own["pixels_only"] = pixels_only
        own["_draw"] = (env if source is None else source).render if draws else None
        own["_observes"] = not (draws and pixels_only)
        return env

    def _make_specs(self, env: Any) -> None:
        observation_space, action_space = self._spaces
        batch = self._batch
        self.action_spec = spec = self._spec_of(action_space, batch)
        # The parts of a Dict or a Tuple are separate actions, at the root.
        self.__dict__["_has_many_actions"] = isinstance(spec, Composite)
        self.observation_spec = self._make_observation_spec(observation_space, batch)
        self.reward_spec = self._make_reward_spec(env)
        flag = Categorical(2, shape=self._flag_shape, dtype=torch.bool, device=self.device)
        self.done_spec = Composite(
            {name: flag.clone() for name in ("done", "terminated", "truncated")},
            shape=self.batch_size,
            device=self.device,
        )

    def _spec_of(self, space: spaces.Space[Any], batch: tuple[int, ...]) -> TensorSpec:
        spec: TensorSpec = gym_to_torchrl_spec_transform(
            space, device=self.device, categorical_action_encoding=self._is_categorical
        )
        return spec.expand(torch.Size((*batch, *spec.shape))) if batch else spec

    def _make_observation_spec(self, space: spaces.Space[Any], batch: tuple[int, ...]) -> Composite:
        own = self.__dict__
        # An observation that is not a dict goes under a single key.
        own["_observation_key"] = key = None
        if self._observes and not isinstance(space, spaces.Dict):
            own["_observation_key"] = key = "pixels" if self._names_pixels and shows_pixels(space) else "observation"
        found = Composite(shape=self.batch_size, device=self.device)
        if self._observes:
            spec = self._spec_of(space, batch)
            if key is not None:
                found[key] = spec
            elif isinstance(spec, Composite):
                found = spec
        if self._draw is not None:
            frame = self._first_frame()
            found["pixels"] = Unbounded(shape=frame.shape, dtype=frame.dtype, device=self.device)
        return found

    @property
    def _batch(self) -> tuple[int, ...]:
        """The leading dims of data, which the spaces do not have."""
        return () if self._many is None else (self._many.source.num_envs,)

    # Codecs follow the specs that the env has now, since specs can be set.

    @property
    def _action_codec(self) -> Codec:
        kept: Codec | None = self._kept.get("action_codec")
        return self._keep("action_codec", self._make_action_codec) if kept is None else kept

    def _make_action_codec(self) -> Codec:
        spec = self.full_action_spec
        leaf = spec if self._has_many_actions else spec[self.action_keys[0]]
        return codec_for(self._spaces[1], leaf, "action", self._batch)

    @property
    def _observation_codec(self) -> Codec | None:
        if not self._observes:
            return None
        kept: Codec | None = self._kept.get("observation_codec")
        return self._keep("observation_codec", self._make_observation_codec) if kept is None else kept

    def _make_observation_codec(self) -> Codec:
        key, spec = self._observation_key, self.full_observation_spec
        return codec_for(self._spaces[0], spec if key is None else spec[key], "observation", self._batch)

    def _first_frame(self) -> torch.Tensor:
        """A frame, to learn its size; only an env that has been reset can draw one."""
        if self._many is None:
            self._env.reset()
        else:
            self._many.source.reset(None, None, None, False)
        return self._frame()

    @property
    def _flag_shape(self) -> tuple[int, ...]:
        """The shape of rewards and flags."""
        return (*self.batch_size, 1)

    def _make_reward_spec(self, env: Any) -> TensorSpec:
        try:
            space = attribute_of(env, "reward_space")
        except AttributeError:
            space = None
        if space is None or self._many is not None:
            return Unbounded(shape=self._flag_shape, device=self.device)
        spec: TensorSpec = gym_to_torchrl_spec_transform(space, device=self.device)
        return spec

    # ------------------------------------------------------------------ reset and step

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return super()._step(tensordict) if self._many is None else self._many.step(tensordict)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        if self._many is None:
            return super()._reset(tensordict, **kwargs)
        return self._many.reset(tensordict, **kwargs)

    def _set_seed(self, seed: int | None) -> None:
        if self._many is None:
            self._env.reset(seed=seed)
        else:
            self._many.reset(None, seed=seed)

    def _output_transform(self, step_outputs: Any) -> tuple[Any, Any, Any, Any, Any, Any]:
        if len(step_outputs) == 5:
            obs, reward, terminated, truncated, info = step_outputs
            return obs, reward, terminated, truncated, terminated | truncated, info
        # Gym up to 0.25 has one flag; whether it was the time limit is in the info.
        obs, reward, done, info = step_outputs
        truncated = bool(info.get("TimeLimit.truncated", False))
        return obs, reward, done and not truncated, truncated, done, info

    def _reset_output_transform(self, reset_outputs: Any) -> tuple[Any, Any]:
        if isinstance(reset_outputs, tuple) and len(reset_outputs) == 2 and isinstance(reset_outputs[1], dict):
            return reset_outputs
        return reset_outputs, {}

    def read_action(self, action: Any) -> Any:
        """The action that ``step`` takes: see ``GymLikeEnv``."""
        return self._action_codec.write(action)

    def read_obs(self, observations: Any) -> dict[str, Any]:
        """Entries from an observation: see ``GymLikeEnv``."""
        codec: Codec | None = self._observation_codec
        owned = self._many is not None and self._many.source.owns_results
        if self._observation_key is not None:
            entries = {self._observation_key: codec.read(observations, owned)}  # type: ignore[union-attr]
        else:
            entries = codec.entries(observations, owned) if isinstance(codec, DictCodec) else {}
        if self._draw is not None:
            entries["pixels"] = self._frame()
        return entries

    def _frame(self) -> torch.Tensor:
        array = np.array(self._draw(), order="C")
        if array.dtype != np.uint8:
            raise SpecError(f"pixels: expected a picture of uint8, got {array.dtype} of shape {array.shape}")
        return torch.from_numpy(array)

    def _action_in(self, tensordict: TensorDictBase) -> Any:
        if not self._has_many_actions:
            return super()._action_in(tensordict)
        if self._convert_actions_to_numpy:
            return tensordict
        return tensordict.select(*self.action_keys).to_dict()

    def _array_env(self) -> GymArrays | None:
        """A way to step this env without TensorDicts, for callers that run many; None if it cannot be done."""
        return arrays_of(self)

    # ------------------------------------------------------------------ the library

    @property
    def lib(self) -> ModuleType:
        """The library: Gymnasium, unless another one was chosen with ``set_gym_backend``."""
        return gym_backend()

    @ClassProperty
    def available_envs(cls) -> list[str]:
        """The ids that can be made."""
        return sorted(gym_backend("envs.registration").registry.keys())

    def _foreign_attribute(self, name: str) -> Any:
        return attribute_of(self._env, name) if self._many is None else self._many.source.attribute(name)


class GymEnv(GymWrapper):
    """A Gymnasium env, made from its id.

    Args:
        env_name: Its id.
        categorical_action_encoding: Whether discrete actions and observations are integers; otherwise they are one-hot.
        num_envs: How many of them to run as one batch, on a pool; 0 for a single env without batch dims.
        num_workers: With more than one, a ``ParallelEnv`` of that many such envs is made instead.
        backend: A library other than the chosen one; see ``set_gym_backend``.
        disable_env_checker: Whether Gymnasium should skip its own checks.
        from_pixels: Whether to observe the pictures that the env draws, as ``"pixels"``.
        pixels_only: Whether these pictures take the place of the observation.
        frame_skip: How many times each action is applied; by the env itself, if it takes a ``frameskip``.
        pool_kwargs: With ``num_envs``, arguments for ``shoal.make_pool``, such as ``{"engine": "process"}``.
        **kwargs: See ``GymWrapper``; arguments that it does not know are passed on to the env.

    Example:
        >>> from shoal.faces.torchrl import GymEnv
        >>> env = GymEnv("Pendulum-v1", g=9.81)
        >>> env.g, env.action_spec.shape
        (9.81, torch.Size([1]))
        >>> many = GymEnv("CartPole-v1", num_envs=16)
        >>> many.rollout(100, break_when_any_done=False).shape
        torch.Size([16, 100])
        >>> many.close()
    """

    def __new__(cls, *args: Any, num_workers: int = 1, **kwargs: Any) -> Any:  # noqa: D102  its arguments are above
        if num_workers > 1:
            from functools import partial

            from shoal.faces.torchrl.batched import ParallelEnv

            return ParallelEnv(num_workers, partial(cls, *args, **kwargs))
        return super().__new__(cls)

    def __init__(
        self, env_name: str, categorical_action_encoding: bool = False, *, num_workers: int = 1, **kwargs: Any
    ) -> None:
        if num_workers < 1:
            raise ArgumentError(f"num_workers: expected at least 1, got {num_workers}")
        super().__init__(categorical_action_encoding=categorical_action_encoding, env_name=env_name, **kwargs)

    @property
    def env_name(self) -> str:
        """The id."""
        name: str = self._constructor_kwargs["env_name"]
        return name

    def _check_kwargs(self, kwargs: dict[str, Any]) -> None:
        count = kwargs.get("num_envs", 0)
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ArgumentError(f"num_envs: expected an integer of at least 0, got {count!r}")
        if kwargs.get("pool_kwargs") and not count:
            raise ArgumentError("pool_kwargs: there is a pool only with num_envs")

    def _build_env(  # type: ignore[override]
        self,
        env_name: str,
        from_pixels: bool = False,
        pixels_only: bool = True,
        num_envs: int = 0,
        backend: str | None = None,
        disable_env_checker: bool = True,
        pool_kwargs: dict[str, Any] | None = None,
        missing_obs_value: Any = np.nan,
        **kwargs: Any,
    ) -> Any:
        kwargs["disable_env_checker"] = disable_env_checker
        if from_pixels:
            kwargs.setdefault("render_mode", "rgb_array")
        if num_envs:
            pool = make_gym_pool(env_name, num_envs, kwargs, self.frame_skip, pool_kwargs or {})
            self.wrapper_frame_skip = 1
            return self._adopt(pool, from_pixels, pixels_only)
        if backend is None:
            env, repeats = make_gym_env(self.lib, env_name, kwargs, self.frame_skip)
        else:
            with set_gym_backend(backend):
                env, repeats = make_gym_env(self.lib, env_name, kwargs, self.frame_skip)
        self.wrapper_frame_skip = repeats
        return self._adopt(env, from_pixels, pixels_only)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(env={self.env_name}, batch_size={self.batch_size}, device={self.device})"


def shows_pixels(space: spaces.Space[Any]) -> bool:
    """Whether observations are pictures: bytes with three colours in the last dim, or a dict with ``"pixels"``."""
    if isinstance(space, spaces.Dict):
        return "pixels" in space.spaces
    return (
        isinstance(space, spaces.Box)
        and space.dtype == np.uint8
        and len(space.shape) == 3
        and space.shape[-1] == 3
        and bool((space.low == 0).all() and (space.high == 255).all())
    )
