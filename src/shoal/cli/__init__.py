"""The ``shoal`` command. Thin: it parses, calls the library and prints.

app         what can be typed
run         ``shoal run``
collect     ``shoal collect``
check       ``shoal check``
doctor      ``shoal doctor``
replay      ``shoal replay``
recordings  what it lists
common      what these do alike: find the env, keep stdout for the result, end with an exit code
display     progress and tables, on a terminal or as plain lines
streams     stdout that is closed or full, or knows few letters
drive       the loop that steps a pool and counts what happens; no printing, usable from Python
actions     where the loop takes its actions from
"""

from __future__ import annotations

import sys

_NEEDED = ("typer", "rich")


def main() -> None:
    """Run the command line. Exits with 1 and the name of the extra if what it needs is not installed."""
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
