"""TrajCounter and EndOfLifeTransform: number episodes, and notice lost lives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch
from tensordict import TensorDict

from shoal.adapters.shared_tensors import SharedTensors
from shoal.errors import ArgumentError, StateError
from shoal.faces.torchrl.env.keys import NestedKey, path_of
from shoal.faces.torchrl.specs import Bounded, Categorical, Composite, Unbounded
from shoal.faces.torchrl.transforms.levels import LevelTransform

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from shoal.faces.torchrl.env.done import DoneLevel


class TrajCounter(LevelTransform):
    """Gives each episode a number, unique across all envs that share the counter.

    Clones of a transform share its counter, and so do all envs of one `EnvCreator`, whichever process they are in.

    Args:
        out_key: Where the number is written, beside done flags that decide on resets.
        repeats: Accepted for compatibility: it has no effect.

    Example:
        >>> from shoal.faces.torchrl import GymEnv, StepCounter, TrajCounter
        >>> env = GymEnv("Pendulum-v1").append_transform(StepCounter(2)).append_transform(TrajCounter())
        >>> env.rollout(6, break_when_any_done=False)["next", "traj_count"].flatten().tolist()
        [0, 0, 1, 1, 2, 2]
    """

    def __init__(self, out_key: NestedKey = "traj_count", *, repeats: int | None = None) -> None:
        super().__init__(out_keys=[out_key])
        self.repeats = repeats
        self.__dict__["_counter"] = SharedTensors(TensorDict({"next": torch.zeros((), dtype=torch.int64)}, []))
        self.__dict__["_current"] = None

    _counter: SharedTensors
    _current: torch.Tensor | None

    @property
    def _level(self) -> DoneLevel:
        path = path_of(self.out_keys[0])[:-1]
        for level in self.levels:
            if level.path == path:
                return level
        raise ArgumentError(f"TrajCounter: no done flags beside {self.out_keys[0]!r} decide about resets")

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        level = self._level
        shape = torch.Size((*self.lead(tensordict_reset), *level.shape))
        mask = tensordict.get(level.reset_key, None)
        begun = torch.ones(shape, dtype=torch.bool) if mask is None else mask.reshape(shape).cpu()
        count = self._numbers(begun).to(level.device)
        before = self._current
        if mask is not None and before is not None and before.shape == shape:
            count = torch.where(mask.reshape(shape), count, before)
        self.__dict__["_current"] = count
        return tensordict_reset.set(self.out_keys[0], count)

    def _numbers(self, begun: torch.Tensor) -> torch.Tensor:
        """A unique number for each flag that is True."""
        places = begun.reshape(-1).long().cumsum(0).reshape(begun.shape) - 1
        with self._counter.locked() as shared:
            first = int(shared["next"])
            shared["next"].fill_(first + int(begun.sum()))
        return torch.where(begun, places + first, torch.zeros_like(places))

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        key = self.out_keys[0]
        current = tensordict.get(key, None)
        if current is None:
            current = self._current
        if current is None:
            raise StateError("TrajCounter: no episode has begun; reset the env")
        return next_tensordict.set(key, current)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The observation spec with what the transform adds."""
        level = self._level
        largest = torch.iinfo(torch.int64).max
        number = Bounded(0, largest, shape=level.shape, dtype=torch.int64, device=level.device)
        self._declare_beside(observation_spec, level, path_of(self.out_keys[0])[-1], number)
        return observation_spec

    def clone(self) -> Self:
        """A detached copy that shares the counter."""
        twin = super().clone()
        twin.__dict__["_current"] = None
        return twin

    def get_extra_state(self) -> Any:
        """The counter."""
        return self._counter.tensors

    def set_extra_state(self, state: Any) -> None:
        """Adopt a counter: the tensor itself if it is mapped from a file, otherwise its value."""
        self._counter.take(state)


class EndOfLifeTransform(LevelTransform):
    """Flags the loss of a life in a game that has several.

    Args:
        eol_key: Where the flag is written: True at the step that costs a life, or ends the game.
        lives_key: Where the number of lives is written.
        done_key: The done flag of the game, whose shape the new flag takes.
        eol_attribute: The attribute of the env that holds its lives: a number, or a function that returns one.
    """

    def __init__(
        self,
        eol_key: NestedKey = "end-of-life",
        lives_key: NestedKey = "lives",
        done_key: NestedKey = "done",
        eol_attribute: str = "unwrapped.ale.lives",
    ) -> None:
        super().__init__(in_keys=[done_key], out_keys=[eol_key, lives_key])
        self.eol_key = eol_key
        self.lives_key = lives_key
        self.done_key = done_key
        self.eol_attribute = eol_attribute
        self.__dict__["_last"] = None

    _last: torch.Tensor | None

    def _lives(self) -> torch.Tensor:
        below = self.below
        found: Any = below
        for name in self.eol_attribute.split("."):
            found = [getattr(one, name) for one in found] if isinstance(found, list) else getattr(found, name)
        found = [one() for one in found] if isinstance(found, list) and callable(found[0]) else found
        found = found() if callable(found) else found
        return torch.as_tensor(found, dtype=torch.int64, device=below.device).reshape(below.batch_size)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        lives = self._lives()
        self.__dict__["_last"] = lives
        done = tensordict_reset.get(self.done_key)
        tensordict_reset.set(self.eol_key, torch.zeros_like(done, dtype=torch.bool))
        return tensordict_reset.set(self.lives_key, lives)

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        lives, before = self._lives(), tensordict.get(self.lives_key, None)
        before = self._last if before is None else before
        done = next_tensordict.get(self.done_key)
        lost = done.clone().bool()
        if before is not None:
            lost = lost | (lives < before).reshape(*lives.shape, *(1,) * (done.ndim - lives.ndim))
        self.__dict__["_last"] = lives
        next_tensordict.set(self.eol_key, lost)
        return next_tensordict.set(self.lives_key, lives)

    def clone(self) -> Self:
        """A detached copy."""
        twin = super().clone()
        twin.__dict__["_last"] = None
        return twin

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The observation spec with what the transform adds."""
        flag = self.below.full_done_spec[self.done_key]
        size = self.below.batch_size
        observation_spec[self.eol_key] = Categorical(2, shape=flag.shape, dtype=torch.bool, device=flag.device)
        observation_spec[self.lives_key] = Unbounded(size, dtype=torch.int64, device=flag.device)
        return observation_spec
