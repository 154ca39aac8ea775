"""Envs with a Gym-like ``reset`` and ``step``, in TorchRL's dialect.

A step puts four translations around the env's own: the action comes out of a TensorDict; the observation, the reward
and the flags go into one. Each is a method that a subclass may replace:

    read_action        tensor -> what ``step`` takes
    _output_transform  what ``step`` returned -> (obs, reward, terminated, truncated, done, info)
    read_obs           observation -> entries
    read_reward        reward -> tensor
    read_done          flags -> tensors
    _reset_output_transform   what ``reset`` returned -> (obs, info)

By default these methods follow the specs of the env. ``GymWrapper`` follows the spaces instead, which is faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import from_numpy

from shoal.errors import ArgumentError, SpecError, StateError, TensorEnvError
from shoal.faces.torchrl.codecs import array_of, entry, numpy_dtype
from shoal.faces.torchrl.env_wrapper import EnvWrapper
from shoal.faces.torchrl.fast_td import build
from shoal.faces.torchrl.info_readers import BaseInfoDictReader, default_info_dict_reader
from shoal.faces.torchrl.specs import Composite, NonTensor

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from tensordict import TensorDictBase

    from shoal.faces.torchrl.env.keys import NestedKey

    InfoReader = BaseInfoDictReader | Callable[[Any, TensorDictBase], TensorDictBase | None]

_BOOLS = (bool, np.bool_)
_FLAG = np.dtype(np.bool_)


class Layout(NamedTuple):
    """What a step needs from the specs."""

    action: NestedKey | None  # the key of a lone action
    reward: NestedKey
    reward_shape: tuple[int, ...]
    reward_dtype: np.dtype[Any]
    is_scalar_reward: bool
    flags: tuple[str, ...]  # the done flags at the root
    flag_shape: tuple[int, ...]
    lone_observation: NestedKey


class GymLikeEnv(EnvWrapper):
    """An env whose ``step`` returns a tuple, like Gym's; see the module's docstring for what a subclass provides.

    Args:
        frame_skip: How many times each action is applied; rewards are added up, and the end of an episode stops it.
        **kwargs: See ``EnvWrapper``.

    Attributes:
        frame_skip: How many times each action is applied.
        wrapper_frame_skip: How many times it is applied here; 1 if the env itself repeats it.
        info_dict_reader: The readers of infos, in the order in which they are called.
    """

    def __init__(self, *args: Any, frame_skip: int = 1, **kwargs: Any) -> None:
        if isinstance(frame_skip, bool) or not isinstance(frame_skip, int) or frame_skip < 1:
            raise ArgumentError(f"frame_skip: expected an integer of at least 1, got {frame_skip!r}")
        own = self.__dict__
        own["frame_skip"] = own["wrapper_frame_skip"] = frame_skip
        own["_info_readers"] = []
        super().__init__(*args, **kwargs)

    # ------------------------------------------------------------------ what a subclass may replace

    def _output_transform(self, step_outputs: Any) -> tuple[Any, Any, Any, Any, Any, Any]:
        """``(obs, reward, terminated, truncated, done, info)`` from what ``step`` returned."""
        raise NotImplementedError

    def _reset_output_transform(self, reset_outputs: Any) -> tuple[Any, Any]:
        """``(obs, info)`` from what ``reset`` returned."""
        raise NotImplementedError

    def read_action(self, action: Any) -> Any:
        """The action that ``step`` takes, from the tensor of the action, or a TensorDict of several."""
        return self.action_spec.to_numpy(action)

    def read_obs(self, observations: Any) -> dict[str, Any]:
        """Entries from an observation: a mapping is read key by key, anything else has the key of the spec."""
        if isinstance(observations, Mapping):
            named = dict(observations)
            if "state" in named and "observation" not in named:
                named["observation"] = named.pop("state")
        else:
            key = self._layout.lone_observation
            named = {key if isinstance(key, str) else key[0]: observations}
        spec = self.observation_spec
        return {key: _owned(value, spec[key].encode(value, ignore_device=True)) for key, value in named.items()}

    def read_reward(self, reward: Any) -> torch.Tensor:
        """A reward as a tensor; None counts as 0."""
        layout = self._layout
        if layout.is_scalar_reward and reward.__class__ is float:
            return from_numpy(np.array((reward,), layout.reward_dtype))
        if reward is None:
            return from_numpy(np.zeros(layout.reward_shape, layout.reward_dtype))
        array = array_of(reward, "reward") if isinstance(reward, torch.Tensor) else reward
        try:
            return from_numpy(np.array(array, layout.reward_dtype, order="C").reshape(layout.reward_shape))
        except (TypeError, ValueError) as error:
            raise SpecError(f"{self}: reward {reward!r:.60} does not fit {layout.reward_shape}: {error}") from error

    def read_done(
        self, terminated: Any = None, truncated: Any = None, done: Any = None
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, bool]:
        """The tensors of the three flags (None stays None), and whether anything has ended."""
        if done is None:
            done = terminated if truncated is None else terminated | truncated
        elif terminated is None:
            terminated = done if truncated is None else done & ~np.asarray(truncated)
        if done.__class__ in _BOOLS:
            return _flag(terminated), None if truncated is None else _flag(truncated), _flag(done), bool(done)
        shape = self._layout.flag_shape
        flags = [None if flag is None else _flags(flag, shape) for flag in (terminated, truncated, done)]
        return flags[0], flags[1], flags[2], bool(flags[2].any())  # type: ignore[union-attr]

    # ------------------------------------------------------------------ reset and step

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = self._action_in(tensordict)
        if self._convert_actions_to_numpy:
            action = self.read_action(action)
        obs, reward, terminated, truncated, done, info = self._output_transform(self._env.step(action))
        for _ in range(self.wrapper_frame_skip - 1):
            if self.read_done(terminated, truncated, done)[3]:
                break
            obs, more, terminated, truncated, done, info = self._output_transform(self._env.step(action))
            reward = more if reward is None else reward if more is None else reward + more
        entries = self.read_obs(obs)
        return self._stepped_to(entries, reward, (terminated, truncated, done), info)

    def _stepped_to(
        self, entries: dict[str, Any], reward: Any, ends: tuple[Any, Any, Any], info: Any
    ) -> TensorDictBase:
        """The TensorDict that a step returns: the observed entries, the reward and the flags."""
        ended, cut, over, _ = self.read_done(*ends)
        entries["done"] = over
        entries["terminated"] = ended
        if cut is not None:
            entries["truncated"] = cut
        key, value = self._layout.reward, self.read_reward(reward)
        if isinstance(key, str):
            entries[key] = value
            return self._finished(entries, info)
        return self._finished(entries, info).set(key, value)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        if tensordict is not None:
            mask = tensordict.get("_reset", None)
            if mask is not None and not bool(mask.all()):
                raise TensorEnvError(f"{self}: one env cannot be reset in parts; '_reset' must be True throughout")
        obs, info = self._reset_output_transform(self._env.reset(**kwargs))
        return self._begun(self.read_obs(obs), info)

    def _begun(self, entries: dict[str, Any], info: Any) -> TensorDictBase:
        """The TensorDict of the first entries of an episode: nothing has ended."""
        layout = self._layout
        for flag in layout.flags:
            entries[flag] = from_numpy(np.zeros(layout.flag_shape, _FLAG))
        return self._finished(entries, info)

    def _finished(self, entries: dict[str, Any], info: Any) -> TensorDictBase:
        """The TensorDict of entries, with what readers find in the info, on the env's device."""
        device = self.device
        out: TensorDictBase = build(entries, self.batch_size)
        if self._info_readers:
            for reader in self._info_readers:
                read = reader({} if info is None else info, out)
                out = out if read is None else read
        return out if device is None else out.to(device)

    def _action_in(self, tensordict: TensorDictBase) -> Any:
        key = self._layout.action
        if isinstance(key, str):
            return entry(tensordict, key, "step")
        return tensordict.select(*self.action_keys) if key is None else tensordict.get(key)

    @property
    def _layout(self) -> Layout:
        kept: Layout | None = self.__dict__["_kept"].get("gym_layout")
        return self._keep("gym_layout", self._lay_out) if kept is None else kept

    def _lay_out(self) -> Layout:
        actions, reward_keys = self.action_keys, self.reward_keys
        reward = self.full_reward_spec[reward_keys[0]] if reward_keys else None
        shape = (*self.batch_size, 1) if reward is None else tuple(reward.shape)
        read = {key for reader in self._info_readers for key in (getattr(reader, "info_spec", None) or {})}
        observed = [key for key in self.observation_keys if key not in read]
        return Layout(
            action=actions[0] if len(actions) == 1 else None,
            reward=reward_keys[0] if reward_keys else "reward",
            reward_shape=shape,
            reward_dtype=numpy_dtype(torch.float32 if reward is None else reward.dtype),
            is_scalar_reward=shape == (1,),
            flags=tuple(key for key in self.done_keys if isinstance(key, str)),
            flag_shape=tuple(self.full_done_spec[self.done_keys[0]].shape),
            lone_observation=observed[0] if observed else "observation",
        )

    def _set_seed(self, seed: int | None) -> None:
        self._env.reset(seed=seed)

    # ------------------------------------------------------------------ infos

    @property
    def info_dict_reader(self) -> list[InfoReader]:
        """The readers of infos."""
        readers: list[InfoReader] = self._info_readers
        return readers

    def set_info_dict_reader(self, info_dict_reader: InfoReader | None = None, ignore_private: bool = True) -> Self:
        """Add a reader of infos.

        Args:
            info_dict_reader: Any ``callable(info, tensordict)``; by default one that reads everything. One that does
                not know its keys yet learns them from a reset and a step made for it, after which the env is reset.
            ignore_private: Whether the default reader leaves out keys that begin with an underscore.

        Returns:
            The env itself.

        Example:
            >>> from shoal.faces.torchrl import GymEnv
            >>> env = GymEnv("FrozenLake-v1").set_info_dict_reader()
            >>> sorted(env.observation_spec.keys())
            ['observation', 'prob']
        """
        reader = (
            default_info_dict_reader(ignore_private=ignore_private) if info_dict_reader is None else info_dict_reader
        )
        if isinstance(reader, default_info_dict_reader):
            if reader.is_searching:
                reader.discover(self._seen_infos(), self.batch_size)
            else:
                reader.attach(self.batch_size)
        self._info_readers.append(reader)
        if isinstance(reader, BaseInfoDictReader) and reader.info_spec is not None:
            spec = self.observation_spec.clone()
            for key, leaf in reader.info_spec.items():
                spec[key] = leaf if self.device is None else leaf.to(self.device)
            self.observation_spec = spec
        self.empty_cache()
        return self

    def auto_register_info_dict(
        self, ignore_private: bool = True, *, info_dict_reader: InfoReader | None = None
    ) -> Self:
        """Read everything in the infos, and check that the specs declare it.

        Args:
            ignore_private: Whether to leave out keys that begin with an underscore.
            info_dict_reader: Another reader.

        Returns:
            The env itself.

        Raises:
            StateError: If there is a reader already.
            AssertionError: If the form of the infos varies.
        """
        from shoal.faces.torchrl.checking import check_env_specs

        if self._info_readers:
            raise StateError(f"{self} has a reader of infos already")
        self.set_info_dict_reader(info_dict_reader, ignore_private)
        check_env_specs(self)
        return self

    def _seen_infos(self) -> list[Mapping[str, Any]]:
        """The infos of a step and a reset: an env may say less at a reset."""
        seen: list[Mapping[str, Any]] = []
        self._info_readers.append(lambda info, td: seen.append(dict(info)))
        try:
            self.rand_step(self.reset())
            self.reset()
        finally:
            self._info_readers.pop()
        return [seen[1], seen[0]]

    # ------------------------------------------------------------------ others

    def fast_encoding(self, mode: bool = True) -> None:
        """Cache what is needed to encode observations and rewards, so that it is not worked out at every step.

        Args:
            mode: Whether to cache it, or to stop doing so.
        """
        for spec in (*self.observation_spec.values(True, True), *self.full_reward_spec.values(True, True)):
            if spec is not None and not isinstance(spec, (Composite, NonTensor)):
                spec.memoize_encode(mode)


def _owned(given: Any, read: Any) -> Any:
    """What a spec made of a value; cloned if it is the env's own tensor, which the env may go on writing to."""
    return read.clone() if read is given else read


def _flag(value: Any) -> torch.Tensor:
    flag = np.zeros(1, _FLAG)
    if value:
        flag[0] = True
    return from_numpy(flag)


def _flags(value: Any, shape: tuple[int, ...]) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.to(torch.bool, copy=True).reshape(shape)
    return from_numpy(np.array(value, _FLAG).reshape(shape))
