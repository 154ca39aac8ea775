"""Transforms that remember the last observations: CatFrames and TimeMaxPool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from shoal.errors import ArgumentError, StateError
from shoal.faces.torchrl.env.keys import NestedKey, path_of
from shoal.faces.torchrl.env.masks import over
from shoal.faces.torchrl.specs import Bounded
from shoal.faces.torchrl.transforms.base import WrongArgument, put
from shoal.faces.torchrl.transforms.keyed import KeyTransform, unbounded
from shoal.faces.torchrl.transforms.rows import reset_mask, step_mask

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from shoal.faces.torchrl.specs import TensorSpec
    from shoal.faces.torchrl.transforms.base import Keys

    Frames = list[torch.Tensor]


class HistoryTransform(KeyTransform):
    """Computes something from the last observations of an episode.

    A reset forgets the observations of the rows that it resets, and a step that leaves rows out keeps theirs.

    Args:
        length: How many observations are remembered, the current one included.
        in_keys: The observations.
        out_keys: Where the results are written; in place by default.
    """

    def __init__(self, length: int, in_keys: Keys, out_keys: Keys | None) -> None:
        super().__init__(in_keys=in_keys, out_keys=out_keys)
        if length < 1:
            raise ArgumentError(f"{type(self).__name__}: at least one observation has to be remembered, got {length}")
        self.length = length
        self.__dict__["_frames"] = {}

    _frames: dict[NestedKey, Frames]

    def _made_of(self, frames: Frames) -> torch.Tensor:
        """The result for these observations, oldest first."""
        raise NotImplementedError

    def _before_first(self, first: torch.Tensor) -> torch.Tensor:
        """What stands in for the observations before the first one."""
        return first

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        mask = step_mask(tensordict)
        for key, out, value in self._read(next_tensordict):
            self._frames[key] = self._stepped(key, value, mask)
            put(next_tensordict, out, self._made_of(self._frames[key]))
        return next_tensordict

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._step(next_tensordict, next_tensordict)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        for key, out, value in self._read(tensordict_reset):
            mask = reset_mask(tensordict, key)
            self._frames[key] = self._begun(key, value, mask)
            put(tensordict_reset, out, self._made_of(self._frames[key]))
        return tensordict_reset

    def _read(self, td: TensorDictBase) -> list[tuple[NestedKey, NestedKey, torch.Tensor]]:
        found = []
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            value = td.get(key, None)
            if value is not None:
                found.append((key, out, value))
            elif not self.missing_tolerance:
                raise self._missing(key, td)
        return found

    def _fresh(self, value: torch.Tensor) -> Frames:
        return [self._before_first(value)] * (self.length - 1) + [value]

    def _begun(self, key: NestedKey, value: torch.Tensor, mask: torch.Tensor | None) -> Frames:
        fresh = self._fresh(value)
        if mask is None or key not in self._frames:
            return fresh
        rows = over(mask, value)
        return [torch.where(rows, new, old) for new, old in zip(fresh, self._same_rows(key, value), strict=True)]

    def _stepped(self, key: NestedKey, value: torch.Tensor, mask: torch.Tensor | None) -> Frames:
        if key not in self._frames:
            return self._fresh(value)
        frames = self._same_rows(key, value)
        moved = [*frames[1:], value]
        if mask is None:
            return moved
        rows = over(mask, value)
        return [torch.where(rows, new, old) for new, old in zip(moved, frames, strict=True)]

    def _same_rows(self, key: NestedKey, value: torch.Tensor) -> Frames:
        frames = self._frames[key]
        if frames[-1].shape != value.shape:
            raise StateError(
                f"{type(self).__name__}: {key!r} has shape {tuple(value.shape)}, and the observations before it have "
                f"{tuple(frames[-1].shape)}; reset the env to go on with another batch"
            )
        return frames if frames[-1].device == value.device else [frame.to(value.device) for frame in frames]

    def clone(self) -> Self:
        """A detached copy that remembers nothing."""
        twin = super().clone()
        twin.__dict__["_frames"] = {}
        return twin


class TimeMaxPool(HistoryTransform):
    """The elementwise maximum of the last observations.

    Args:
        in_keys: The observations, ``"observation"`` by default.
        out_keys: Where the results are written; in place by default.
        T: How many observations.
        reset_key: Not used: the env knows where the mask of partial resets is.

    Example:
        >>> from shoal.faces.torchrl import GymEnv, TimeMaxPool
        >>> env = GymEnv("CartPole-v1").append_transform(TimeMaxPool(T=3))
        >>> env.rollout(5)["observation"].shape
        torch.Size([5, 4])
    """

    def __init__(
        self,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        T: int = 1,
        reset_key: NestedKey | None = None,
    ) -> None:
        super().__init__(T, ["observation"] if in_keys is None else in_keys, out_keys)
        self.reset_key = reset_key

    def _made_of(self, frames: Frames) -> torch.Tensor:
        return torch.stack(frames).amax(0) if len(frames) > 1 else frames[0]

    def _apply_to_spec(self, leaf: TensorSpec) -> TensorSpec:
        return leaf.clone()

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Refuse: the transform has no meaning outside an env."""
        raise NotImplementedError("TimeMaxPool follows an env from step to step: it has no meaning outside one")


class CatFrames(HistoryTransform):
    """The last observations concatenated along one dim, oldest first.

    Args:
        N: How many observations.
        dim: The dim, counted from the end.
        in_keys: The observations, ``"pixels"`` by default.
        out_keys: Where the results are written; in place by default.
        padding: What stands in for observations before the first: ``"same"`` for the first, ``"constant"`` for a value.
        padding_value: That value.
        reset_key: Not used: the env knows where the mask of partial resets is.
        done_key: The flag that separates episodes in data outside an env, ``"done"`` by default.

    Example:
        >>> from shoal.faces.torchrl import CatFrames, GymEnv
        >>> env = GymEnv("CartPole-v1").append_transform(CatFrames(3, -1, in_keys=["observation"]))
        >>> env.reset()["observation"].shape
        torch.Size([12])
    """

    def __init__(
        self,
        N: int,
        dim: int,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        padding: str = "same",
        padding_value: float = 0,
        reset_key: NestedKey | None = None,
        done_key: NestedKey | None = None,
    ) -> None:
        super().__init__(N, ["pixels"] if in_keys is None else in_keys, out_keys)
        if dim >= 0:
            raise ArgumentError(f"CatFrames: dim is counted from the end, so that it fits any batch size; got {dim}")
        if padding not in ("same", "constant"):
            raise WrongArgument(f"CatFrames: padding is 'same' or 'constant', got {padding!r}")
        self.N = N
        self.dim = dim
        self.padding = padding
        self.padding_value = padding_value
        self.reset_key = reset_key
        self.done_key = "done" if done_key is None else done_key

    def _before_first(self, first: torch.Tensor) -> torch.Tensor:
        return first if self.padding == "same" else torch.full_like(first, self.padding_value)

    def _made_of(self, frames: Frames) -> torch.Tensor:
        return torch.cat(frames, self.dim)

    def _apply_to_spec(self, leaf: TensorSpec) -> TensorSpec:
        if not isinstance(leaf, Bounded):
            return unbounded(leaf, lambda value: self._made_of(self._fresh(value)))
        low, high = leaf.low, leaf.high
        lows = [torch.minimum(low, self._before_first(low))] * (self.length - 1) + [low]
        highs = [torch.maximum(high, self._before_first(high))] * (self.length - 1) + [high]
        return Bounded(self._made_of(lows), self._made_of(highs), dtype=leaf.dtype, device=leaf.device)

    # -- data outside an env ------------------------------------------------------------------------------------------

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Concatenate the observations of rollouts, whose last batch dim is time.

        Episodes end where the done flag under ``"next"`` says so.
        """
        if not tensordict.ndim:
            raise ArgumentError("CatFrames: data outside an env needs a time, as its last batch dim")
        starts = self._starts(tensordict)
        found = {key: value for key, _, value in self._read(tensordict)}
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            value = found.get(key)
            if value is not None:
                path = path_of(key)
                root = tensordict.get(path[1:], None) if path[0] == "next" else None
                root = found.get(path[1] if len(path) == 2 else path[1:], root)
                tensordict.set(out, self._made_of(self._windows(value, root, starts, tensordict.ndim - 1)))
        return tensordict

    def _starts(self, td: TensorDictBase) -> torch.Tensor:
        """The time at which the episode of each step began."""
        time = torch.arange(td.shape[-1], device=td.device).expand(td.batch_size)
        done = td.get(("next", *path_of(self.done_key)), None)
        if done is None:
            return torch.zeros_like(time)
        ended = done.reshape(*td.batch_size, -1).any(-1)
        begins = torch.where(ended[..., :-1], time[..., 1:], torch.zeros_like(time[..., 1:]))
        return torch.cat([torch.zeros_like(time[..., :1]), begins], -1).cummax(-1).values

    def _windows(self, value: torch.Tensor, root: Any, starts: torch.Tensor, at: int) -> Frames:
        """The observations of each step and of those before it; those under ``"next"`` follow the ones at the root."""
        time = torch.arange(value.shape[at], device=value.device).expand(starts.shape)
        source, newest = (value, []) if root is None else (root, [value])
        back = self.length - 1 - len(newest)
        frames = [self._at(source, time - steps, starts, at) for steps in range(back, -1, -1)]
        return (frames + newest)[-self.length :]

    def _at(self, source: torch.Tensor, time: torch.Tensor, starts: torch.Tensor, at: int) -> torch.Tensor:
        index = torch.maximum(time, starts)
        spread = index.reshape(*index.shape, *(1,) * (source.ndim - at - 1)).expand(source.shape)
        taken = source.gather(at, spread)
        early = over(time < starts, taken)
        return taken if self.padding == "same" else taken.masked_fill(early, self.padding_value)
