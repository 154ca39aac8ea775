"""Gymnasium envs stepped without TensorDicts, for callers that step many: the same data, written where it belongs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shoal.faces.torchrl.codecs import ArrayCodec, DictCodec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.faces.torchrl.gym import GymWrapper

    Arrays = Mapping[Any, np.ndarray[Any, Any]]

# What a subclass may replace; if it has replaced any of these, its step does more than is done here.
_METHODS = (
    "step",
    "reset",
    "_step",
    "_reset",
    "_stepped",
    "_finished",
    "_output_transform",
    "_reset_output_transform",
    "read_action",
    "read_obs",
    "read_reward",
    "read_done",
    "_action_in",
    "step_and_maybe_reset",
    "maybe_reset",
    "any_done",
)


class GymArrays:
    """A single Gymnasium env, stepped through the codecs of its wrapper.

    Args:
        wrapper: The wrapper of the env; see ``arrays_of`` for which ones can be stepped like this.
    """

    def __init__(self, wrapper: GymWrapper) -> None:
        self._wrapper = wrapper
        self._adopt()

    def _adopt(self) -> None:
        """Note how the wrapper's env is stepped."""
        wrapper = self._wrapper
        self._env = wrapper._env
        self._step, self._reset = wrapper._env.step, wrapper._env.reset
        self._key = wrapper._observation_key
        self._codec: Any = wrapper._observation_codec
        self._write_action = wrapper._action_codec.write
        self._is_box = isinstance(self._codec, ArrayCodec)

    def reset_arrays(self, outputs: Arrays) -> None:
        """Begin an episode, and write what ``reset`` would return."""
        if self._wrapper._env is not self._env:  # it has been rebuilt
            self._adopt()
        obs, _ = self._wrapper._reset_output_transform(self._reset())
        self._put_observation(obs, outputs)
        for flag in ("done", "terminated", "truncated"):
            outputs[flag][0] = False

    def step_arrays(self, inputs: Arrays, outputs: Arrays) -> bool:
        """Step, and write what ``step`` would return as ``"next"``; return whether the episode is done."""
        if self._wrapper._env is not self._env:
            self._adopt()
        result = self._step(self._write_action(torch.from_numpy(inputs["action"])))
        obs, reward, terminated, truncated, done, _ = self._wrapper._output_transform(result)
        self._put_observation(obs, outputs)
        outputs["reward"][...] = reward if reward.__class__ is float else self._wrapper.read_reward(reward)
        outputs["terminated"][0] = terminated
        outputs["truncated"][0] = truncated
        outputs["done"][0] = done
        return bool(done)

    def _put_observation(self, obs: Any, outputs: Arrays) -> None:
        if self._key is None:
            for name, value in self._codec.entries(obs, True).items():
                outputs[name][...] = value
            return
        place = outputs[self._key]
        if self._is_box and obs.__class__ is np.ndarray and obs.dtype == place.dtype and obs.shape == place.shape:
            place[...] = obs
        else:
            place[...] = self._codec.read(obs, True)


def arrays_of(wrapper: GymWrapper) -> GymArrays | None:
    """How to step the env of a wrapper without TensorDicts; None if the wrapper does more than read and write."""
    from shoal.faces.torchrl.gym import GymWrapper

    kind = type(wrapper)
    is_plain = (
        wrapper._many is None
        and wrapper._draw is None
        and not wrapper._info_readers
        and wrapper.wrapper_frame_skip == 1
        and wrapper._convert_actions_to_numpy
        and not wrapper.batch_size
        and (wrapper.device is None or wrapper.device.type == "cpu")
        and wrapper.action_keys == ["action"]
        and wrapper.reward_keys == ["reward"]
        and set(wrapper.done_keys) == {"done", "terminated", "truncated"}
        and not isinstance(wrapper._action_codec, DictCodec)
        and all(isinstance(key, str) for key in wrapper.observation_keys)
        and not wrapper.run_type_checks
        and "step_and_maybe_reset" not in wrapper.__dict__
    )
    if not is_plain or any(getattr(kind, name) is not getattr(GymWrapper, name) for name in _METHODS):
        return None
    return GymArrays(wrapper)
