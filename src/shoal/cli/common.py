"""What every command does alike: find the env that was typed, and end with an exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from shoal.cli.actions import import_here, load_callable
from shoal.errors import ArgumentError, FaultError, ShoalError

FAILED = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells report it

ENV_HELP = (
    "A Gymnasium id ([cyan]CartPole-v1[/], [cyan]module:MyEnv-v0[/]), or [cyan]module:callable[/], "
    "where the callable is a class or function that makes an env."
)


def env_from(name: str) -> Any:
    """A callable for ``module:callable``, otherwise a Gymnasium id, which ``module`` may have registered."""
    module_name, colon, attribute = name.partition(":")
    if not colon:
        return name
    try:
        module = import_here(module_name, "ENV")
    except ArgumentError:
        raise
    except Exception as error:
        # The module is there and fails while it is imported, by a slip of its author's most of the time.
        reason = f"{type(error).__name__}: {error}"
        raise ArgumentError(f"ENV: {module_name!r} fails when it is imported ({reason})") from error
    return load_callable(name, "ENV") if hasattr(module, attribute.partition(".")[0]) else attribute


@contextmanager
def exit_codes(*, debug: bool) -> Iterator[None]:
    """Errors of shoal as one paragraph on stderr, and Ctrl-C without a traceback."""
    try:
        yield
    except ShoalError as error:
        if debug:
            traceback.print_exc()
        else:
            more = " (--debug shows the traceback)" if isinstance(error, FaultError) else ""
            print(f"shoal: {' '.join(str(error).split())}{more}", file=sys.stderr)
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        print("shoal: interrupted", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
