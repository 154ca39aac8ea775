"""Rows of robots, written by compiled code (``row_code``) in place of the robots' own methods, and without numba."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.engines.kernel.installed import FLOATS, has_numba

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.engines.kernel.machine_code import Function
    from shoal.envs.mujoco.env import MujocoEnv
    from shoal.native import Array, Columns, Ids
    from shoal.spec import SpaceTree

_IDS, _ACTION, _OBS, _REWARD, _TERMINATED, _COUNT = range(2, 8)  # words in the block of a call
_METHODS = frozenset({"is_healthy", "observe", "report", "reward", "terminated", "track"})
_PLAIN = frozenset({bool, float, int})  # a number of numpy's own would have numpy compute in another precision
_LOOKED_AT = 3  # positions of a robot that the code takes for granted
_MOST_SUMMED = 128  # numpy adds longer rows up in another order


@dataclass(frozen=True)
class RowCode:
    """Compiled code for the rows of a robot.

    Attributes:
        function: Its name in ``row_code``.
        numbers: The robot's options, in the order in which the function reads them.
        told: The info field for each number that the function reports; None for what this robot does not report.
        width: Numbers in an observation.
        fields: The derived fields that the function reads.
    """

    function: str
    numbers: tuple[float, ...]
    told: tuple[str | None, ...]
    width: int
    fields: tuple[str, ...] = ()


def code_for(kind: MujocoEnv, observation: SpaceTree) -> RowCode | None:
    """The code that does the same as the methods of a kind; None if there is none, or numba is not installed."""
    code = None if _has_own_methods(type(kind)) or kind.nq < _LOOKED_AT else kind.row_code()
    if code is None or not observation.is_single or not has_numba():
        return None
    leaf, declared = observation.leaves[0], {**kind.info, **kind.step_info}
    is_expected = (
        leaf.shape == (code.width,)
        and leaf.dtype == np.float64
        and action_dtype(kind) in FLOATS
        and all(declared.get(name) is np.float64 for name in code.told if name is not None)
        and {*code.fields} <= {*kind.fields}
        and all(type(number) in _PLAIN for number in code.numbers)
        and max(kind.compiled.nu, 6 * kind.compiled.nbody) <= _MOST_SUMMED
    )
    return code if is_expected else None


def action_dtype(kind: MujocoEnv) -> np.dtype[Any]:
    """The dtype that actions really have: a subclass may have a space of its own."""
    return kind.describe("").action.leaves[0].dtype


def in_a_row(action: Array, dtype: np.dtype[Any]) -> Array:
    """Actions as compiled code reads them; usually they are like that already."""
    is_readable = action.dtype is dtype and action.flags.c_contiguous
    return action if is_readable else np.ascontiguousarray(action, dtype)


def _has_own_methods(cls: type) -> bool:
    """Whether a subclass of a robot has changed what the code was written after."""
    for base in cls.__mro__:
        if "row_code" in vars(base):
            return False
        if not _METHODS.isdisjoint(vars(base)):
            return True
    return True


@cache
def _function(name: str, dtype: np.dtype[Any]) -> Function:
    from shoal.engines.kernel.loading import load_function

    return load_function("shoal.envs.mujoco.row_code", name, dtype)


class CompiledRows:
    """Writes the rows of a batch of simulations after a step; one thread at a time may use it.

    Args:
        code: Which code.
        kind: The robot.
        arrays: The fields of the simulations, one row per env.
        tracked: What the robot tracks, one row per env.
    """

    def __init__(self, code: RowCode, kind: MujocoEnv, arrays: Mapping[str, Array], tracked: Array) -> None:
        qpos, qvel, ctrl = (arrays[name] for name in ("qpos", "qvel", "ctrl"))
        derived = [arrays[name] for name in code.fields]
        self._told = code.told
        self._action_dtype = action_dtype(kind)
        self._everyone = np.arange(len(qpos), dtype=np.int32)
        self._unread = np.zeros(len(qpos))  # where numbers go that this robot does not report
        self._fields = np.array([array.ctypes.data for array in derived] + [0, 0], np.uint64)
        self._numbers = np.array(code.numbers, np.float64)
        self._columns = np.zeros(len(code.told), np.uint64)
        self._kept = (qpos, qvel, derived, tracked)  # the code knows them only by their addresses
        tables = [array.ctypes.data for array in (self._fields, tracked, self._numbers, self._columns)]
        sizes = (qpos.shape[1], qvel.shape[1], ctrl.shape[1], code.width)
        state = (qpos.ctypes.data, qvel.ctypes.data, qpos.strides[0])
        self._call = _function(code.function, self._action_dtype).bind(0, 0, 0, 0, 0, 0, *state, *tables, *sizes)
        self._out: Columns | None = None

    def write(self, ids: Ids | None, action: Array, out: Columns) -> None:
        """Write observation, reward, flag and info of these envs, or of all; ``action`` has a row for every env."""
        if out is not self._out:
            self._turn_to(out)
        action = in_a_row(action, self._action_dtype)
        if ids is None:
            ids = self._everyone
        block = self._call.block
        block[_IDS], block[_ACTION], block[_COUNT] = id(ids), id(action), len(ids)
        self._call()

    def _turn_to(self, out: Columns) -> None:
        self._out = None  # in case that an interrupt leaves this half done
        for k, name in enumerate(self._told):
            self._columns[k] = (self._unread if name is None else out.info[name]).ctypes.data
        block = self._call.block
        block[_OBS], block[_REWARD], block[_TERMINATED] = id(out.obs[0]), id(out.reward), id(out.terminated)
        self._out = out  # kept: the code knows its arrays only by their addresses
