"""A Ctrl-C at any point of shoal's code.

for point in count():
    if not interrupt_at(point, lambda: pool.step(actions)):
        break                                   # there are no more points
    ...                                         # and now the pool has to be in order
"""

from __future__ import annotations

import gc
import sys
from itertools import count
from linecache import getline
from pathlib import Path
from typing import TYPE_CHECKING, Any

import shoal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    import pytest

ROOT = str(Path(shoal.__file__).parent)


def interrupt_at(point: int, call: Callable[[], Any]) -> bool:
    """Make a call, and raise KeyboardInterrupt at one of the points of shoal's code where Python looks for signals.

    These are the entries of functions, the returns of functions written in C, and the jumps back to the head of a loop.

    Returns:
        False if there were fewer points.
    """
    points: Iterator[int] = count()
    latest: dict[FrameType, int] = {}
    is_cut = False

    def is_own(frame: FrameType) -> bool:
        return not is_cut and frame.f_code.co_filename.startswith(ROOT)

    def pass_by() -> None:
        nonlocal is_cut
        if next(points) == point:
            is_cut = True
            raise KeyboardInterrupt

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_return") and is_own(frame):
            pass_by()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if not is_own(frame):
            return None
        if event == "line":
            before, latest[frame] = latest.get(frame, 0), frame.f_lineno
            text = getline(frame.f_code.co_filename, frame.f_lineno).strip()
            if frame.f_lineno < before and text.startswith(("for ", "while ")):
                pass_by()
        return trace

    # Garbage is not this call's: what is raised in the finalizer of some earlier pool reaches nobody.
    gc.disable()
    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        call()
    except KeyboardInterrupt:
        assert is_cut
    finally:
        sys.setprofile(None)
        sys.settrace(None)
        gc.enable()
    return is_cut


def interrupt_once(patch: pytest.MonkeyPatch, owner: Any, name: str, *, after: bool) -> None:
    """Have the next call of a function end in a Ctrl-C, after it has done its work or in place of that."""
    function = getattr(owner, name)

    def be_interrupted(*args: Any) -> None:
        patch.undo()
        if after:
            function(*args)
        raise KeyboardInterrupt

    patch.setattr(owner, name, be_interrupted)
