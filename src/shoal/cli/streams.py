"""Standard streams that cannot take all that a command writes: closed, full, or with an encoding that lacks letters."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TextIO, cast

from shoal.cli.codes import FAILED

_NOBODY_READS = 1  # the exit code of click when a pipe is closed
_PLAIN = "shoal.plain"
_LOOKS_LIKE = {"×": "x", "±": "+-", "✓": "+", "✗": "x", "…": "...", "µ": "u", "━": "-", "╸": "-", "╺": "-"}


@contextmanager
def watched_stdout() -> Iterator[None]:
    """End with one line on stderr and code 2 if stdout is closed or cannot be written to."""
    stream = sys.stdout
    if stream is None:
        _end("stdout is closed, so there is nowhere to write the result to")
    sys.stdout = watched = cast("TextIO", _Watched(stream))
    try:
        yield
    finally:
        sys.stdout = stream
        watched.flush()  # now, and not when Python exits


class _Watched:
    """A stream that ends the process if it fails, since callers cannot tell its errors from those of other files."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._give_up(error)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> NoReturn:
        # What could not be written may still be in a buffer, and Python tries again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
        if error.errno == errno.EPIPE:
            raise SystemExit(_NOBODY_READS) from None
        _end(f"stdout cannot be written to ({error.strerror})")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def write_what_the_encoding_lacks() -> None:
    """Replace letters that an encoding such as ASCII lacks by something similar."""
    codecs.register_error(_PLAIN, _alike)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_PLAIN)


def _alike(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_LOOKS_LIKE.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


def _end(reason: str) -> NoReturn:
    if sys.stderr is not None:
        print(f"shoal: {reason}", file=sys.stderr)
    raise SystemExit(FAILED) from None
