"""Words that two threads of compiled code talk through, without the GIL and without sleeping.

Waking a thread that sleeps takes longer than a batch of a thousand cheap envs. So a helper that has just worked
watches its bell for a moment before it goes to sleep, in compiled code, and the next batch reaches it in a fraction
of a microsecond.

    bell[POSTED]  raised by the caller when there is work     bell[DONE]  set to it by the helper when that is done
    bell[TABLE], bell[IDS], bell[SIZE], bell[START], bell[STOP]           what the work is
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

POSTED, DONE, TABLE, TABLE_SIZE, IDS, SIZE, START, STOP = range(8)
BELL_WORDS = 8  # one cache line, so that two helpers do not share one
# What the loop that serves a bell has to know.
NAMES = ("POSTED", "DONE", "TABLE", "TABLE_SIZE", "IDS", "SIZE", "START", "STOP", "read_word", "write_word")


def _word(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """The address of ``array[index]``."""
    array = arrayobj.make_array(signature.args[0])(context, builder, args[0])
    return builder.gep(array.data, [args[1]])


@intrinsic
def read_word(_: Any, array: Any, index: Any) -> Any:
    """``array[index]``, read anew each time and before anything that follows."""

    def read(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_word(context, builder, signature, args), "acquire", 8, typ=cgutils.ir.IntType(64))

    return types.int64(array, types.intp), read


@intrinsic
def write_word(_: Any, array: Any, index: Any, value: Any) -> Any:
    """``array[index] = value``, after everything that went before."""

    def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[2], _word(context, builder, signature, args), "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.int64), write


@numba.njit(nogil=True, cache=True)
def await_done(bells: Any, looks: int) -> bool:
    """Wait until every helper is done; False if that takes more than so many looks."""
    for k in range(len(bells)):
        bell = bells[k]
        while read_word(bell, DONE) != read_word(bell, POSTED):
            looks -= 1
            if looks < 0:
                return False
    return True


def new_bells(count: int) -> np.ndarray[Any, Any]:
    """Bells for so many helpers, each at the start of a cache line."""
    words = np.zeros((count + 1) * BELL_WORDS, np.int64)
    start = (-words.ctypes.data // 8) % BELL_WORDS
    return words[start : start + count * BELL_WORDS].reshape(count, BELL_WORDS)
