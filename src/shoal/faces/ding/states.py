"""What a manager says of each env."""

from __future__ import annotations

from enum import IntEnum


class EnvState(IntEnum):
    """Where an env is in its life.

    VOID ──launch──▶ INIT ──▶ RESET ──▶ RUN ──▶ DONE         its episodes are used up
                               ▲         │
                               ├─────────┤                   an episode has ended, and it is reset by itself
                               │         ├──▶ NEED_RESET    ... or waits for ``reset({id: ...})``
                               │         └──▶ ERROR         it failed, or said that its timestep is abnormal
                               └── any, by ``reset``
    """

    VOID = 0
    INIT = 1
    RUN = 2
    RESET = 3
    DONE = 4
    ERROR = 5
    NEED_RESET = 6
