"""Many envs behind one wrapper: masks, rows that have ended, and episodes that began in the same step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shoal.errors import TensorEnvError
from shoal.faces.torchrl.codecs import Codec, DictCodec, codec_for
from shoal.faces.torchrl.env.masks import select

if TYPE_CHECKING:
    import numpy.typing as npt
    from tensordict import TensorDictBase

    from shoal.faces.torchrl.gym import GymWrapper
    from shoal.faces.torchrl.vector_sources import Rows, Source


class VectorGym:
    """Steps and resets the envs of a source for a wrapper.

    Args:
        wrapper: The wrapper whose specs and readers are used.
        source: The envs.
    """

    def __init__(self, wrapper: GymWrapper, source: Source) -> None:
        self.source = source
        self._wrapper = wrapper
        self._single: Codec | None = None
        # The first observations of episodes that began in the last step (in columns of all rows), and which rows.
        self._begun: dict[str, Any] | None = None
        self._begun_rows = np.zeros(source.num_envs, np.bool_)
        self._begun_infos: dict[str, Any] | None = None
        # Rows that are stepped for nothing, between an episode and the next reset.
        self._idle = np.zeros(source.num_envs, np.bool_)

    def step(self, td: TensorDictBase) -> TensorDictBase:
        """One step of all envs, or of those in ``"_step"``; the rows of the others mean nothing."""
        wrapper = self._wrapper
        mask = _rows(td.get("_step", None), self.source.num_envs, "_step")
        if mask is not None and mask.all():
            mask = None
        action = wrapper._action_in(td)
        if wrapper._convert_actions_to_numpy:
            action = wrapper.read_action(action)
        rows = self._stepped(action, self._without_idle(mask))
        entries = wrapper.read_obs(rows.obs)
        self._note_begun(entries, rows)
        ends = (rows.terminated, rows.truncated, rows.terminated | rows.truncated)
        return wrapper._stepped_to(entries, rows.reward, ends, rows.infos)

    def _without_idle(self, mask: npt.NDArray[np.bool_] | None) -> npt.NDArray[np.bool_] | None:
        """The mask of a step, or None where rows that are left out may be stepped as well.

        They may if their episode has ended and their env has begun the next one, which nobody has seen: their next
        reset is then a true one. Envs that can only be stepped together can wait for each other in this way.
        """
        if mask is None:
            self._idle[:] = False
            return None
        ended = self._idle if self._begun is None else self._idle | self._begun_rows
        if self.source.steps_some or not (mask | ended).all():
            return mask
        self._idle = ~mask
        return None

    def _stepped(self, action: Any, mask: npt.NDArray[np.bool_] | None) -> Rows:
        """Apply an action as often as the wrapper says, or until any env ends: they are stepped together."""
        with_infos = bool(self._wrapper._info_readers)
        rows = self.source.step(action, mask, with_infos)
        for _ in range(self._wrapper.wrapper_frame_skip - 1):
            if rows.terminated.any() or rows.truncated.any():
                break
            before = rows.reward.copy()  # the next step may write to the same memory
            rows = self.source.step(action, mask, with_infos)
            rows.reward = before + rows.reward
        return rows

    def reset(self, td: TensorDictBase | None, seed: Any = None, options: Any = None, **kwargs: Any) -> TensorDictBase:
        """Reset all envs, or those in ``"_reset"``; of the latter, one that has just begun an episode stays in it."""
        if kwargs:
            raise TypeError(f"{self._wrapper}: reset of a vector env takes seed and options, not {sorted(kwargs)}")
        mask = None if td is None else _rows(td.get("_reset", None), self.source.num_envs, "_reset")
        if mask is not None and not mask.any():
            return self._wrapper.full_observation_spec.zero()
        begun, infos = self._begun, self._begun_infos
        if mask is None or begun is None or seed is not None or options:
            return self._truly_reset(mask, seed, options)
        waiting = mask & self._begun_rows
        owing = mask & ~waiting
        self._begun_rows &= ~mask
        first = self._wrapper._begun({key: value.clone() for key, value in begun.items()}, infos)
        if not owing.any():
            return first
        fresh = self._truly_reset(owing, None, None)
        chosen: TensorDictBase = select(torch.from_numpy(owing).to(fresh.device or "cpu"), fresh, first)
        return chosen

    def _truly_reset(self, mask: npt.NDArray[np.bool_] | None, seed: Any, options: Any) -> TensorDictBase:
        wrapper = self._wrapper
        if mask is None or mask.all():
            mask, self._begun = None, None
            self._idle[:] = False
        else:
            self._begun_rows &= ~mask
            self._idle &= ~mask
        obs, infos = self.source.reset(mask, seed, options, bool(wrapper._info_readers))
        return wrapper._begun(wrapper.read_obs(obs), infos)

    def _note_begun(self, entries: dict[str, Any], rows: Rows) -> None:
        """Put last observations in place of first ones, and keep the first for the reset that will ask for them."""
        self._begun = None
        finals = {row: obs for row, obs in rows.finals.items() if not self._idle[row]}
        if not finals:
            return
        self._begun = {key: value.clone() for key, value in entries.items()}
        self._begun_infos = rows.first_infos
        self._begun_rows = np.zeros(self.source.num_envs, np.bool_)
        codec, key = self._codec_of_one(), self._wrapper._observation_key
        for row, obs in finals.items():
            self._begun_rows[row] = True
            if codec is None:
                continue
            last = codec.entries(obs) if isinstance(codec, DictCodec) else {key: codec.read(obs)}
            for name, value in last.items():
                entries[name][row] = value

    def _codec_of_one(self) -> Codec | None:
        """The codec of a single observation, made when it is first needed."""
        wrapper = self._wrapper
        if self._single is None and wrapper._observation_codec is not None:
            space = self.source.observation_space
            self._single = codec_for(space, wrapper._spec_of(space, ()), "observation")
        return self._single


def _rows(mask: Any, count: int, name: str) -> npt.NDArray[np.bool_] | None:
    """A mask with one bool per env; None for all envs."""
    if mask is None:
        return None
    array: npt.NDArray[np.bool_] = mask.detach().cpu().numpy().astype(np.bool_)
    if array.size != count:
        raise TensorEnvError(f"{name}: expected one bool per env, {count} in all, got shape {array.shape}")
    return array.reshape(count)
