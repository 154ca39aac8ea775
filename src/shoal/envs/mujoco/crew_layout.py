"""Where things are in the memory of a ``Crew``: numbers that Python and its compiled code agree on."""

from __future__ import annotations

_LINE = 8  # words

# The board. Each of these has a cache line of its own; two rings and the flags, a word per simulation each, follow.
CLAIMED, POSTED, MOVED, ASLEEP, FAILED, STOPPING, RINGS = range(0, 7 * _LINE, _LINE)

# A seat: the thread's batch of one, the functions of MuJoCo that it calls, and how many rows it copies, the first of
# them both ways. For each follow: the address of its own row, that of the first row of all, and bytes in a row.
BATCH, STEP, SUBSTEPS, ERROR, TEXTS, BOTH_WAYS, REGIONS, SEAT_WORDS = range(8)

TEXT_BYTES = 512  # kept of an error

# Which callbacks MuJoCo has: for each, where it is kept, and what is there when nobody has installed one.
CALLBACKS = ("passive", "control", "contactfilter", "sensor", "time", "act_bias", "act_gain", "act_dyn")
NUM_CALLBACKS = len(CALLBACKS)
