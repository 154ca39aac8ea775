"""Bells: a cache line each, and a wait that ends when all have answered or patience has."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from shoal.engines.kernel.bells import BELL_WORDS, DONE, POSTED, new_bells
from shoal.engines.kernel.loading import own_function

LINE = 64


def await_done(bells: np.ndarray[Any, Any], looks: int) -> bool:
    return own_function("await_done")(bells.ctypes.data, len(bells), looks) == 1


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_every_bell_is_a_cache_line_of_zeros(count: int) -> None:
    # Kept, so that no two lie in the same place.
    made = [new_bells(count) for _ in range(50)]
    for bells in made:
        assert (bells.shape, bells.dtype) == ((count, BELL_WORDS), np.int64)
        assert bells.flags.c_contiguous
        assert [bell.ctypes.data % LINE for bell in bells] == [0] * count
        assert not bells.any()
    assert BELL_WORDS * made[0].itemsize == LINE


def test_a_bell_is_the_callers_to_write_to() -> None:
    bells = new_bells(3)
    bells[1] = range(BELL_WORDS)
    assert bells.tolist() == [[0] * BELL_WORDS, [*range(BELL_WORDS)], [0] * BELL_WORDS]


@pytest.mark.parametrize("looks", [0, 1, 1000])
def test_waiting_ends_when_nobody_answers(looks: int) -> None:
    bells = new_bells(1)
    bells[0, POSTED] = 1
    assert await_done(bells, looks) is False
    assert bells[0].tolist() == [1] + [0] * (BELL_WORDS - 1)


@pytest.mark.parametrize("silent", [0, 1, 2])
def test_all_have_to_answer(silent: int) -> None:
    bells = new_bells(3)
    bells[:, POSTED] = 5
    bells[:, DONE] = 5
    bells[silent, DONE] = 4
    assert await_done(bells, 1000) is False
    bells[silent, DONE] = 5
    assert await_done(bells, 0) is True


def test_there_is_nothing_to_wait_for_when_nothing_was_asked() -> None:
    assert await_done(new_bells(0), 0) is True
    assert await_done(new_bells(4), 0) is True


def test_an_answer_of_another_thread_is_seen() -> None:
    bells = new_bells(2)
    bells[:, POSTED] = 1
    bells[0, DONE] = 1
    answering = threading.Thread(target=lambda: bells[1].__setitem__(DONE, 1), daemon=True)
    answering.start()
    # Either this waits for the thread in compiled code, without the GIL, or the thread was first.
    assert any(await_done(bells, 1_000_000) for _ in range(1000))
    answering.join()
