"""Words through which two threads of compiled code talk, without the GIL and without sleeping.

Waking a thread that sleeps takes longer than a batch of a thousand cheap envs. So a helper that has just worked
watches its bell for a moment before it goes to sleep, in compiled code, and the next batch reaches it in a fraction
of a microsecond.

    bell[POSTED]  raised by the caller when there is work     bell[DONE]  set to POSTED by the helper when it is done
    bell[TABLE], bell[IDS], bell[START], bell[STOP]           what the work is; arrays by address
"""

from __future__ import annotations

from typing import Any

import numpy as np

POSTED, DONE, TABLE, IDS, START, STOP = range(6)
BELL_WORDS = 8  # one cache line, so that two helpers do not share one
# What the loop that serves a bell needs to know.
NAMES = ("POSTED", "DONE", "TABLE", "IDS", "START", "STOP", "BELL_WORDS")


def new_bells(count: int) -> np.ndarray[Any, Any]:
    """Bells for this many helpers, each at the start of a cache line."""
    words = np.zeros((count + 1) * BELL_WORDS, np.int64)
    start = (-words.ctypes.data // 8) % BELL_WORDS
    return words[start : start + count * BELL_WORDS].reshape(count, BELL_WORDS)
