"""What the threads of a ``Crew`` do, written to be compiled: they need no Python, and no GIL.

A board of words is all that they share. The words that several threads write have a cache line each, and two rings of
one word per simulation follow them: no simulation is in a ring twice, so none can overflow. Then come flags: whether
each simulation was posted, and nobody has seen yet that it was stepped.

    board[CLAIMED]   how many simulations of the first ring were claimed by a thread
    board[POSTED]    how many were put there
    board[MOVED]     how many places of the second ring were given away
    board[ASLEEP]    threads that sleep, or are about to, and were not called since
    board[FAILED]    how many steps have failed
    board[STOPPING]  whether the threads are to end

Each thread has a seat: its own simulation of one, and the rows that it copies to it from all simulations, and back.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from shoal.engines.kernel.intrinsics import (
    add_to_word,
    array_at,
    call_c,
    copy_bytes,
    data_of,
    read_word,
    replace_word,
    write_word,
)
from shoal.envs.mujoco.crew_layout import (
    ASLEEP,
    BATCH,
    BOTH_WAYS,
    CLAIMED,
    ERROR,
    FAILED,
    MOVED,
    NUM_CALLBACKS,
    POSTED,
    REGIONS,
    RINGS,
    SEAT_WORDS,
    STEP,
    STOPPING,
    SUBSTEPS,
    TEXT_BYTES,
    TEXTS,
)

_inlined = numba.njit(error_model="numpy", forceinline=True)

# In the second ring, a number is in the lower half of a word, and its turn, of which so many bits are kept, above it.
_NUMBER, _TURNS = 2**32 - 1, 2**31 - 1
_POLITE_AFTER = 20_000  # looks, after which a thread lets others have its core between two of them


def post(dtype: np.dtype[Any]) -> Any:
    """A function that puts simulations up to be stepped, with controls of this dtype."""

    def post_all(
        board_at: Any,
        size: int,
        ids_at: Any,
        count: int,
        action_at: Any,
        ctrl_at: Any,
        state_bytes: int,
        nu: int,
        callbacks_at: Any,
        semaphore_at: Any,
        wake_at: Any,
    ) -> int:
        """Give simulations their controls, put them up, and call threads that sleep.

        Arrays of ids and actions are given as objects. Returns 0 if nothing was done, because of callbacks, and -1 if
        nothing was done, because some of these simulations are under way.
        """
        for callback in array_at(callbacks_at, (NUM_CALLBACKS, 2), np.uint64):
            if array_at(callback[0], (1,), np.uint64)[0] != callback[1]:
                return 0
        board = array_at(board_at, (RINGS + 3 * size,), np.int64)
        actions = array_at(data_of(action_at), (size, nu), dtype)
        ids = array_at(data_of(ids_at), (count,), np.int32)
        for i in ids:
            if read_word(board, RINGS + 2 * size + i):
                return -1
        posted = read_word(board, POSTED)
        for i in ids:
            ctrl = array_at(ctrl_at + np.uint64(i) * np.uint64(state_bytes), (nu,), np.float64)
            for j in range(nu):
                ctrl[j] = actions[i, j]
            write_word(board, RINGS + 2 * size + i, 1)
            write_word(board, RINGS + posted % size, np.int64(i))
            posted += 1
        # An addition, since nothing that follows may be done before it: a thread that goes to sleep looks at this word
        # after it has said so.
        add_to_word(board, POSTED, count)
        for _ in range(count):
            if not _take_one(board, ASLEEP):
                break
            call_c(wake_at, (semaphore_at,))
        return 1

    return post_all


def serve(board_at: Any, size: int, seat_at: Any, looks: int, semaphore_at: Any, sleep_at: Any) -> None:
    """Step simulations until the crew is to end; sleep whenever there was nothing to do for some time."""
    board = array_at(board_at, (RINGS + 3 * size,), np.int64)
    seat = array_at(seat_at, (SEAT_WORDS,), np.uint64)
    left = looks
    while not read_word(board, STOPPING):
        if _move_one(board, size, seat, seat_at):
            left = looks
            continue
        left -= 1
        if left <= 0:
            add_to_word(board, ASLEEP, 1)
            # Whoever has posted something since did not see this thread asleep, unless it has called it.
            is_idle = read_word(board, CLAIMED) >= _read_now(board, POSTED) and not _read_now(board, STOPPING)
            if is_idle or not _take_one(board, ASLEEP):
                while np.int32(call_c(sleep_at, (semaphore_at,))):
                    pass  # a signal
            left = looks


def lend_a_hand(
    board_at: Any, size: int, seat_at: Any, seen: int, wanted: int, most: int, looks: int, yield_at: Any
) -> int:
    """Step simulations until, besides those that were ``seen``, as many have been stepped as are ``wanted``.

    Returns how many there are. It ends early after ``most`` own steps, and if it has looked for too long for others'.
    """
    board = array_at(board_at, (RINGS + 3 * size,), np.int64)
    seat = array_at(seat_at, (SEAT_WORDS,), np.uint64)
    looked = found = 0
    while True:
        while found < size:
            word = read_word(board, RINGS + size + (seen + found) % size)
            if word >> 32 != (seen + found) & _TURNS:
                break
            write_word(board, RINGS + 2 * size + (word & _NUMBER), 0)
            found += 1
        if found >= wanted or looked >= looks:
            return found
        if most > 0 and _move_one(board, size, seat, seat_at):
            most -= 1
            continue
        if most <= 0:
            looks = 0  # and one more look at what has been done
        looked += 1
        if looked > _POLITE_AFTER and looked % 64 == 0:
            call_c(yield_at, (np.uint64(0),))


@_inlined
def _take_one(board: Any, place: int) -> bool:
    """Lower a count that is not zero."""
    while True:
        count = _read_now(board, place)
        if count <= 0:
            return False
        if replace_word(board, place, count, count - 1):
            return True


@_inlined
def _read_now(board: Any, place: int) -> Any:
    """Read a word after everything that this thread has written is there for all to see."""
    return add_to_word(board, place, 0)


@_inlined
def _move_one(board: Any, size: int, seat: Any, seat_at: Any) -> bool:
    """Step the next simulation of the ring, if there is one."""
    while True:
        claimed = read_word(board, CLAIMED)
        if claimed >= read_word(board, POSTED):
            return False
        i = read_word(board, RINGS + claimed % size)
        if replace_word(board, CLAIMED, claimed, claimed + 1):
            break
    regions = array_at(seat_at + np.uint64(8 * SEAT_WORDS), (np.int64(seat[REGIONS]), 3), np.uint64)
    for k in range(np.int64(seat[BOTH_WAYS])):
        copy_bytes(regions[k, 0], regions[k, 1] + np.uint64(i) * regions[k, 2], np.int64(regions[k, 2]))
    text = array_at(seat[TEXTS] + np.uint64(i) * np.uint64(TEXT_BYTES), (TEXT_BYTES,), np.uint8)
    text[0] = 0
    nothing = np.uint64(0)
    if np.int32(call_c(seat[STEP], (seat[BATCH], nothing, np.uint64(1), seat[SUBSTEPS], nothing))):
        _keep_text(seat, text)
        add_to_word(board, FAILED, 1)
    for k in range(len(regions)):
        copy_bytes(regions[k, 1] + np.uint64(i) * regions[k, 2], regions[k, 0], np.int64(regions[k, 2]))
    moved = add_to_word(board, MOVED, 1)
    write_word(board, RINGS + size + moved % size, (moved & _TURNS) << 32 | i)
    return True


@_inlined
def _keep_text(seat: Any, text: Any) -> None:
    """Copy the text of an error, which the next step of this thread overwrites."""
    source = array_at(call_c(seat[ERROR], (seat[BATCH], np.uint64(0))), (TEXT_BYTES,), np.uint8)
    k = 0
    while k < TEXT_BYTES - 1 and source[k]:
        text[k] = source[k]
        k += 1
    text[k] = 0
