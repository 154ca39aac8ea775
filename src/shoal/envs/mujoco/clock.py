"""MuJoCo's clock, which stands still while there are simulators that have no use for it.

The Python module gives MuJoCo a clock, and MuJoCo reads it dozens of times in every substep, for ``MjData.timer``. A
batch shows these timers to nobody, and reading the clock takes a tenth of the time of a small robot.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import mujoco

from shoal.envs.mujoco.library import callback

if TYPE_CHECKING:
    from collections.abc import Callable

_lock = threading.RLock()  # a simulator that is collected as garbage may come in between
_users = 0
_clock = 0  # the one that was stopped


def stop_clock_for(user: object) -> Callable[[], object]:
    """Stop the clock until what is returned is called, or ``user`` is gone; one of the program's own goes on."""
    global _users, _clock
    pointer = callback("time")
    with _lock:
        _users += 1
        if pointer is not None and pointer.value and mujoco.get_mjcb_time() is None:
            _clock, pointer.value = pointer.value, None
    return weakref.finalize(user, _release)


def _release() -> None:
    global _users
    pointer: Any = callback("time")
    with _lock:
        _users -= 1
        if not _users and _clock and not pointer.value:
            pointer.value = _clock
