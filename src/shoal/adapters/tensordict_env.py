"""Envs of TensorDicts (TorchRL's ``EnvBase``, and shoal's own) as envs of a pool.

    pool's side                                     env's side
     │  a row of bytes: what to do, action, state    │
     │ ─────────────────────────────────────────────▶│  env.step(td), or env.step_and_maybe_reset(td)
     │  a row of bytes: observations, reward, flags  │
     │ ◀─────────────────────────────────────────────│
     │  info: what has no fixed shape

If a new episode has begun after the step, its first row comes along: after that of the step if rows are short, which
costs nothing, and in the info if they are long.

To the slot, such an env never ends: its flags are data, and what to do about them is its caller's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from gymnasium import Space, spaces
from tensordict import NonTensorData, TensorDict, is_leaf_nontensor

from shoal.adapters.byte_rows import ALIGNMENT, ByteRow, Key, RowBuffer, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HEADER_BYTES = 1
LOOSE, NEXT_ROW, NEXT_LOOSE = "loose", "next_row", "next_loose"
APPLY, PACE = "__shoal_apply__", "__shoal_pace__"
_PLAIN_RESET: Mapping[str, Any] = {}
_NOTHING: frozenset[Key] = frozenset()


class Wish(IntEnum):
    """What kind of step is wanted, in the first byte of its row."""

    STEP = 0
    STEP_AND_MAYBE_RESET = 1


_FUSED = int(Wish.STEP_AND_MAYBE_RESET)


class AnyObject(Space[Any]):
    """A space that holds every object: a place beside the row for what has no fixed shape."""

    def __init__(self) -> None:
        super().__init__((), None)

    def contains(self, x: Any) -> bool:
        """True for everything."""
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyObject)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Crossing:
    """How the data of one env crosses to its pool and back.

    Attributes:
        inputs: Actions and states, as a row.
        outputs: Observations, rewards and flags, as a row.
        input_bytes: The length of input rows in all envs of the pool, at least that of this env's own.
        output_bytes: The same for output rows.
        loose_inputs: Inputs that have no fixed shape, or are not tensors: they go beside the row.
        loose_outputs: Outputs of that kind.
        own_inputs: Those of ``loose_inputs`` that nobody returns, such as the numbers of a pool's envs: the env that
            reads them knows better, so they may be missing.
        only_at_step: Outputs that a reset does not return: rewards.
        carries_next: Whether the first row of the next episode follows that of the step, in all envs of the pool.
        takes_all: Whether everything that the env returns goes beside the row, whatever its specs say.
    """

    inputs: ByteRow
    outputs: ByteRow
    input_bytes: int
    output_bytes: int
    loose_inputs: tuple[Key, ...] = ()
    loose_outputs: tuple[Key, ...] = ()
    own_inputs: frozenset[Key] = frozenset()
    only_at_step: frozenset[Key] = frozenset()
    carries_next: bool = False
    takes_all: bool = False

    @property
    def row_bytes(self) -> int:
        """Bytes of all that a step returns."""
        return self.next_start + self.output_bytes if self.carries_next else self.output_bytes

    @property
    def next_start(self) -> int:
        """Where the next episode's first row is, if rows carry it; the byte before says whether there is one."""
        return self.output_bytes + ALIGNMENT


class ArrayEnv(Protocol):
    """What an env may offer so that it can be stepped without TensorDicts; keys and shapes are those of its specs."""

    def reset_arrays(self, outputs: Mapping[Key, np.ndarray[Any, Any]]) -> None:
        """Begin an episode, and write what ``reset`` would return."""

    def step_arrays(
        self, inputs: Mapping[Key, np.ndarray[Any, Any]], outputs: Mapping[Key, np.ndarray[Any, Any]]
    ) -> bool:
        """Step, and write what ``step`` would return as ``"next"``; returns whether the episode is done."""


def array_env_of(env: Any, crossing: Crossing) -> ArrayEnv | None:
    """How to step an env without TensorDicts; None if the env does not offer that, or its data do not allow it."""
    offer: Callable[[], ArrayEnv | None] | None = getattr(env, "_array_env", None)
    if offer is None or crossing.loose_inputs or crossing.loose_outputs:
        return None
    if any(field.numpy_dtype is None for row in (crossing.inputs, crossing.outputs) for field in row.fields):
        return None
    return offer()


class TensorDictEnv:
    """An env of TensorDicts with Gymnasium's interface.

    Args:
        env: The env.
        crossing: How its data crosses.

    Example:
        The pools behind ``shoal.faces.torchrl.ParallelEnv`` and ``AsyncEnvPool`` are made of these.
    """

    metadata: Mapping[str, Any] = {}
    render_mode = None
    spec = None

    def __init__(self, env: Any, crossing: Crossing) -> None:
        self.env = env
        self._crossing = crossing
        row = spaces.Box(0, 255, (crossing.input_bytes,), np.uint8)
        self.observation_space: Space[Any] = spaces.Box(0, 255, (crossing.row_bytes,), np.uint8)
        self.action_space: Space[Any] = spaces.Tuple((row, AnyObject())) if crossing.loose_inputs else row
        memory = np.zeros(crossing.next_start + crossing.output_bytes, np.uint8)
        self._output = RowBuffer(crossing.outputs, memory[: crossing.output_bytes])
        self._next = RowBuffer(crossing.outputs, memory[crossing.next_start :])
        self._begun = memory[crossing.next_start - 1 : crossing.next_start]
        self._returned = memory[: crossing.row_bytes]
        self._arrays = array_env_of(env, crossing)
        self._steps, self._stepping_s = 0, 0.0
        # What the next step starts from; an env may read it without saying so.
        self._root: Any = None
        self._places = [
            (field.key, field.start, field.stop, field.numpy_dtype, field.shape) for field in crossing.inputs.fields
        ]

    # ------------------------------------------------------------------ what a slot calls

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode. Options: ``entries`` for the TensorDict that the env's ``reset`` gets, and ``kwargs``.

        With ``{"as_is": True}``, the env is not touched: callers may step it without having reset it.
        """
        self._begun[0] = False
        if options and options.get("as_is"):
            return self._returned, {}
        if seed is not None:
            self.env.set_seed(seed)
        wishes = options or _PLAIN_RESET
        if self._arrays is not None and not wishes.get("kwargs"):
            # Envs that are stepped as arrays read no data at a reset.
            self._arrays.reset_arrays(self._output.arrays)
            for key in self._crossing.only_at_step:
                self._output.arrays[key].fill(0)
            return self._returned, {}
        given = wishes.get("entries")
        td = None if given is None else self._tensordict(given)
        first = self.env.reset(td, **wishes.get("kwargs", {}))
        info = self._put(first, self._output, is_first=True)
        self._root = first
        return self._returned, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step and, if that is asked for and the episode ends, the reset after it."""
        began = perf_counter()
        self._begun[0] = False
        info = self._stepped(action)
        self._steps += 1
        self._stepping_s += perf_counter() - began
        return self._returned, 0.0, False, False, info

    def _stepped(self, action: Any) -> dict[str, Any]:
        """Make a step, leave its data in the row, and return what does not fit there."""
        arrays = self._arrays
        if arrays is not None:
            inputs = {}
            for key, start, stop, dtype, shape in self._places:
                flat = action[start:stop].view(dtype)
                inputs[key] = flat if len(shape) == 1 else flat.reshape(shape)
            if arrays.step_arrays(inputs, self._output.arrays) and action.item(0) == _FUSED:
                arrays.reset_arrays(self._next.arrays)
                return self._following({})
            return {}
        row, loose = action if self._crossing.loose_inputs else (action, None)
        td = self._input(row, loose)
        if row.item(0) != _FUSED:
            last = self.env.step(td).get("next")
            info = self._put(last, self._output)
            self._root = last.exclude(*self._crossing.only_at_step)
            return info
        stepped, following = self.env.step_and_maybe_reset(td)
        info = self._put(stepped.get("next"), self._output)
        if self._begins_anew(stepped.get("next"), following):
            info |= self._following(self._put(following, self._next, is_first=True))
        self._root = following
        return info

    def _following(self, loose: dict[str, Any]) -> dict[str, Any]:
        """Pass on the first row of the next episode; returns what goes beside this one."""
        self._begun[0] = True
        if self._crossing.carries_next:
            return {}
        return {NEXT_ROW: self._next.bytes.copy(), NEXT_LOOSE: loose.get(LOOSE, {})}

    def close(self) -> None:
        """Close the env."""
        if not self.env.is_closed:
            self.env.close()

    # ------------------------------------------------------------------ attributes

    def get_wrapper_attr(self, name: str) -> Any:
        """An attribute of the env; under names that no env has, a way to apply a function to it, and its pace."""
        if name == PACE:
            return self._steps, self._stepping_s
        return self._apply if name == APPLY else getattr(self.env, name)

    def set_wrapper_attr(self, name: str, value: Any) -> None:
        """Set an attribute of the env."""
        setattr(self.env, name, value)

    def _apply(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(self.env, *args, **kwargs)

    # ------------------------------------------------------------------ data

    def _input(self, row: np.ndarray[Any, Any], loose: Mapping[Key, Any] | None) -> TensorDict:
        given = {**tensors_in(row, self._crossing.inputs.fields), **(loose or {})}
        root, self._root = self._root, None  # it belongs to the env from now on
        if root is not None and root.requires_grad:
            root = root.detach()  # or its graph would grow with every step
        return self._tensordict(given, root)

    def _tensordict(self, entries: Mapping[Any, Any], onto: Any = None) -> TensorDict:
        td = TensorDict({}, batch_size=self.env.batch_size, device=self.env.device) if onto is None else onto
        for key, value in entries.items():
            td.set(key, wrapped(value))
        return td

    def _put(self, td: Any, buffer: RowBuffer, *, is_first: bool = False) -> dict[str, Any]:
        """Write what the env returned to a row; returns what does not fit there, as an info."""
        crossing = self._crossing
        absent = crossing.only_at_step if is_first else _NOTHING
        buffer.write([None if field.key in absent else self._entry(td, field.key) for field in crossing.outputs.fields])
        if crossing.takes_all:
            found = td.keys(True, True, is_leaf=is_leaf_nontensor)
            return {LOOSE: {key: plain(td.get(key)) for key in found if key not in absent}}
        if not crossing.loose_outputs:
            return {}
        return {LOOSE: {key: plain(self._entry(td, key)) for key in crossing.loose_outputs if key not in absent}}

    def _entry(self, td: Any, key: Key) -> Any:
        value = td.get(key, None)
        if value is None:
            raise KeyError(f"{type(self.env).__name__} has {key!r} in its specs and did not return it")
        return value

    def _begins_anew(self, last: Any, first: Any) -> bool:
        """Whether a new episode has begun: a flag was up, so what follows the step is not what it led to."""
        return bool(self.env.any_done(last.select(*self.env.done_keys)))


def plain(value: Any) -> Any:
    """A leaf that goes beside the row, as data without TensorDict classes where possible."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy() if value.dtype in _NUMPY_READY else value.detach().cpu()
    if isinstance(value, NonTensorData):
        return value.data
    tolist = getattr(value, "tolist", None)
    return tolist() if tolist is not None else value


def wrapped(value: Any) -> Any:
    """What ``plain`` returned, as an entry of a TensorDict again."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    return value if isinstance(value, torch.Tensor) else NonTensorData(value)


_NUMPY_READY = frozenset(
    {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32}
    | {torch.float64, torch.complex64, torch.complex128}
)
