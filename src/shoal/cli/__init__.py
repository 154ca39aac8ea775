"""The ``shoal`` command: a thin layer that parses, calls the library and prints.

app         the commands
run         ``shoal run``
collect     ``shoal collect``
check       ``shoal check``
doctor      ``shoal doctor``
replay      ``shoal replay``
recordings  the recordings that ``shoal replay`` lists
common      what all commands share: find the env, keep stdout for the result, end with an exit code
display     progress and tables, on a terminal or as plain lines
codes       exit codes
streams     stdout that is closed or full, or whose encoding lacks letters
drive       the loop that steps a pool and counts what happens; no printing, usable from Python
actions     where the loop gets its actions
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from shoal.cli.codes import INTERRUPTED

_NEEDED = ("typer", "rich")


def main() -> None:
    """Run the command line; exit with 1 and the name of the extra if a library that it needs is not installed."""
    try:
        with _warnings_in_one_line():
            _run()
    except KeyboardInterrupt:  # before a command has begun; from then on it knows what to do itself
        print("shoal: interrupted", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None


def _run() -> None:
    from shoal.cli.streams import watched_stdout, write_what_the_encoding_lacks

    write_what_the_encoding_lacks()
    try:
        from shoal.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        print(f"shoal: the command line needs {error.name}: pip install 'shoal[cli]'", file=sys.stderr)
        raise SystemExit(1) from None
    with watched_stdout():
        app(prog_name="shoal")


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Show warnings without the line of code that they come from: it would be one of these modules."""

    def in_one_line(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        return f"shoal: warning: {' '.join(str(message).split())}\n"

    usual = warnings.formatwarning
    warnings.formatwarning = in_one_line
    try:
        yield
    finally:
        warnings.formatwarning = usual
