"""Threads that step simulations one by one, each as soon as it is there, while their caller does something else.

A call of ``mujoco.batch`` is over when the slowest of its threads is done, and its caller waits for it. The threads of
a crew wait for nobody, and write nothing but the rows of the simulation that they step: each has a batch of one
simulation, to which it copies a row of the large batch, and back. The caller is one of them while it waits for results.

None of that needs Python: the threads stay in compiled code for as long as they live (``crew_code``), and call MuJoCo
through its C interface, which is the one that ``mujoco.batch`` is made of.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import weakref
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np

from shoal.engines.kernel.installed import has_numba
from shoal.engines.process.wake import SEMAPHORE_BYTES, Semaphore
from shoal.envs.mujoco.compiled import in_a_row
from shoal.envs.mujoco.crew_layout import (
    BATCH,
    BOTH_WAYS,
    CALLBACKS,
    ERROR,
    FAILED,
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
from shoal.envs.mujoco.library import address_of, callback, library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mujoco.batch import Batch

    from shoal.engines.kernel.machine_code import Function
    from shoal.native import Array, Errors, Ids

_IDS, _COUNT, _ACTION = 4, 5, 6  # words in the block of ``post`` ...
_SEEN, _WANTED, _MOST = 5, 6, 7  # ... and of ``lend_a_hand``
_UNDER_WAY = 2**64 - 1  # -1, as an outcome of ``post``
_NO_LIMIT = 2**31
_LOOKS = 40_000  # how often a thread looks for work before it sleeps: 100 to 200 µs
_PATIENCE = 100_000  # how often the caller looks before Python may have a word
_PATIENCE_S = 5.0  # for the simulation that is being stepped when the program ends
_LOW_WORDS = slice(0 if sys.byteorder == "little" else 1, None, 2)
_NEEDED = ("sem_post", "sem_wait", "sched_yield")


class _BatchConfig(ctypes.Structure):
    _fields_ = [("nthread", ctypes.c_int), ("persistent", ctypes.c_uint8)]


class Crew:
    """Steps simulations of a batch whose models are all the same, and which keeps nothing but their rows.

    One thread at a time may post simulations, and one at a time wait for them.

    Args:
        batch: The simulations; nobody else may step those that are posted.
        fields: Derived fields that are to be up to date after a step.
        substeps: How many times a step calls ``mj_step``.
        num_threads: How many threads there are, the caller's included.
        action: The dtype of actions.
    """

    def __init__(
        self, batch: Batch, fields: Sequence[str], substeps: int, num_threads: int, action: np.dtype[Any]
    ) -> None:
        size = batch.nsim
        self._board = np.zeros(RINGS + 3 * size, np.int64)
        done = self._board[RINGS + size : RINGS + 2 * size]
        done[:] = -1
        self._words = self._board.data
        self._done = done.view(np.int32)[_LOW_WORDS]
        self._is_moving = self._board[RINGS + 2 * size :]
        self._texts = np.zeros((size, TEXT_BYTES), np.uint8)
        # How many results were seen, and those among them that nobody has asked for yet; together, so that an interrupt
        # cannot come between the two.
        self._progress: tuple[int, list[int]] = (0, [])
        seats = [_Seat(batch, fields, substeps, self._texts) for _ in range(num_threads)]
        place = np.zeros(SEMAPHORE_BYTES // 8, np.int64)
        callbacks = np.array([_callback(name) for name in CALLBACKS], np.uint64)
        board_at, semaphore_at = self._board.ctypes.data, place.ctypes.data
        semaphore = Semaphore(semaphore_at, create=True)
        wake_at, sleep_at, yield_at = (address_of(_libc(), name) for name in _NEEDED)
        mine, *others = (seat.address for seat in seats)
        ctrl = batch.bind("ctrl")
        controls = (ctrl.ctypes.data, batch.state.strides[0], ctrl.shape[1])
        wake = (callbacks.ctypes.data, semaphore_at, wake_at)
        self._action_dtype = action
        self._post = _function("post", action).bind(board_at, size, 0, 0, 0, *controls, *wake)
        self._lend = _function("lend_a_hand").bind(board_at, size, mine, 0, 0, 0, _PATIENCE, yield_at)
        serve = _function("serve")
        calls = [serve.bind(board_at, size, seat, _LOOKS, semaphore_at, sleep_at) for seat in others]
        threads = [threading.Thread(target=call.run, name="shoal-mujoco", daemon=True) for call in calls]
        # A crew that is dropped ends its threads, and so does a program that ends: until then, they use its memory,
        # which compiled code knows only by its addresses.
        kept = (self._texts, place, callbacks)
        self._end = weakref.finalize(self, _end, self._board, semaphore, threads, seats, kept)
        for thread in threads:
            thread.start()

    def post(self, ids: Ids, action: Array) -> bool:
        """Begin a step of these simulations, with their rows of ``action`` as controls.

        Returns False if somebody has installed callbacks: they may be in Python, for which only the batch is prepared.
        """
        if self._progress[1]:
            self.settle(ids)
        action = in_a_row(action, self._action_dtype)
        block = self._post.block
        block[_IDS], block[_COUNT], block[_ACTION] = id(ids), len(ids), id(action)
        outcome = self._post()
        if outcome == _UNDER_WAY:
            self.settle(ids)
            outcome = self._post()
        return outcome == 1

    def moved(self, wanted: int, wait_s: float | None) -> list[int]:
        """Simulations that were stepped, in this order: as many as are wanted, unless time is up or there are no more.

        Whoever waits here steps simulations, too.
        """
        end = None if wait_s is None else monotonic() + wait_s
        while len(self._progress[1]) < min(wanted, self._num_posted):
            self._look(wanted, _NO_LIMIT if end is None else 1)
            if end is not None and monotonic() >= end:
                break
        seen, ready = self._progress
        self._progress = (seen, [])
        return ready

    def settle(self, ids: Ids) -> None:
        """Wait until none of these simulations is being stepped, and forget their results.

        Usually none is. But an interrupt may have come before anybody could wait for them.
        """
        wanted = {*ids.tolist()}
        while self._num_posted:
            seen, ready = self._progress
            if not wanted.isdisjoint(ready):
                self._progress = (seen, [i for i in ready if i not in wanted])
            if not self._is_moving[ids].any():
                break
            self._look(len(ready) + 1, _NO_LIMIT)

    def errors(self, ids: Ids) -> Errors:
        """What went wrong in the last step of these simulations."""
        if not self._words[FAILED]:
            return {}
        failed = ids[self._texts[ids, 0] != 0].tolist()
        return {i: RuntimeError(bytes(self._texts[i]).partition(b"\0")[0].decode()) for i in failed}

    def close(self) -> None:
        """End the threads."""
        self._end()

    @property
    def _num_posted(self) -> int:
        """Simulations that were posted, and not handed out since."""
        seen, ready = self._progress
        return self._words[POSTED] - seen + len(ready)

    def _look(self, wanted: int, most: int) -> int:
        """Step simulations until there are as many results as are wanted; returns how many there are.

        There may be fewer, because there are none to come, others take long, or more than ``most`` would be stepped.
        """
        seen, ready = self._progress
        block = self._lend.block
        block[_SEEN], block[_WANTED], block[_MOST] = seen, wanted - len(ready), most
        found = self._lend()
        if found:
            start = seen % len(self._done)
            stop = start + found
            new = self._done[start:stop].tolist() + self._done[: max(0, stop - len(self._done))].tolist()
            self._progress = (seen + found, ready + new)
        return len(ready) + found


class _Seat:
    """A thread's simulation, and what it copies between that and the others.

    Attributes:
        address: Where compiled code finds all that.
    """

    def __init__(self, batch: Batch, fields: Sequence[str], substeps: int, texts: Array) -> None:
        mujoco_batch: Any = library()
        message = ctypes.create_string_buffer(TEXT_BYTES)
        config = _BatchConfig(1, 0)
        self._batch = mujoco_batch.mjb_makeBatch(batch.model._address, 1, ctypes.byref(config), message, TEXT_BYTES)
        if not self._batch:
            raise RuntimeError(message.value.decode())
        regions = [
            (mujoco_batch.mjb_state(self._batch), batch.state),
            (mujoco_batch.mjb_warning(self._batch), batch.warning),
            *((mujoco_batch.mjb_output(self._batch, name.encode(), None, None), batch.bind(name)) for name in fields),
        ]
        words = np.zeros(SEAT_WORDS + 3 * len(regions), np.uint64)
        words[BATCH], words[SUBSTEPS], words[TEXTS] = self._batch, substeps, texts.ctypes.data
        words[STEP], words[ERROR] = (address_of(mujoco_batch, name) for name in ("mjb_step", "mjb_error"))
        words[BOTH_WAYS], words[REGIONS] = 2, len(regions)
        words[SEAT_WORDS:] = [word for own, all in regions for word in (own, all.ctypes.data, all.nbytes // len(all))]
        self._words, self._arrays = words, [array for _, array in regions]
        self.address: int = words.ctypes.data

    def release(self) -> None:
        """Free the simulation."""
        mujoco_batch: Any = library()
        mujoco_batch.mjb_deleteBatch(self._batch)


_stuck: list[Any] = []  # memory of threads that did not end


def _end(board: Array, semaphore: Semaphore, threads: list[threading.Thread], seats: list[_Seat], kept: Any) -> None:
    board[STOPPING] = 1
    for _ in threads:
        semaphore.post()
    for thread in threads:
        if thread.ident is not None:
            thread.join(_PATIENCE_S)
    if any(thread.is_alive() for thread in threads):
        _stuck.append((board, seats, kept))
        return
    for seat in seats:
        seat.release()


def can_work(batch: Batch) -> bool:
    """Whether there can be a crew: with numba, on Linux, and with simulations that are nothing but their rows."""
    return has_numba() and not batch.persistent and batch.models is None and _has_all()


@cache
def _has_all() -> bool:
    has_functions = library() is not None and all(hasattr(_libc(), name) for name in _NEEDED)
    return sys.platform == "linux" and has_functions and hasattr(mujoco.MjModel, "_address")


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _callback(name: str) -> tuple[int, int]:
    """Where MuJoCo keeps a callback, and what is there when nobody has installed one."""
    pointer: Any = callback(name)
    is_own = getattr(mujoco, f"get_mjcb_{name}")() is None  # as the clock is that Python gives it
    return ctypes.addressof(pointer), (pointer.value or 0) if is_own else 0


@cache
def _function(name: str, dtype: np.dtype[Any] | None = None) -> Function:
    from shoal.engines.kernel.loading import load_function

    package = "shoal.envs.mujoco"
    return load_function(f"{package}.crew_code", name, dtype, numbers_of=f"{package}.crew_layout")
