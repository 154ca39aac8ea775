"""What all commands share: find the env that was typed, keep stdout clean, and end with an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Annotated, Any

import typer

from shoal.cli.actions import import_here, load_callable
from shoal.cli.codes import FAILED, INTERRUPTED
from shoal.doctor.diagnosis import brief
from shoal.errors import ArgumentError, FaultError, PolicyFailed, ShoalError
from shoal.registry import find

_STDOUT, _STDERR = 1, 2  # the file descriptors, which workers inherit

ENV_HELP = (
    "A Gymnasium id ([cyan]CartPole-v1[/], [cyan]module:MyEnv-v0[/]), or [cyan]module:callable[/], "
    "where the callable is a class or function that makes an env."
)

# Options that several commands share.
NumEnvs = Annotated[int, typer.Option("--num-envs", "-n", min=1, help="How many envs.")]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        help="[cyan]serial[/], [cyan]thread[/], [cyan]process[/], [cyan]kernel[/] (compiled envs), [cyan]native[/] "
        "(simulators that run many), [cyan]envpool[/] (EnvPool's own envs) or [cyan]auto[/].",
    ),
]
NumWorkers = Annotated[int | None, typer.Option(min=1, help="Threads or processes. Left to the engine if not given.")]
PolicyName = Annotated[
    str,
    typer.Option(
        help="[cyan]random[/], or [cyan]module:callable[/] that takes a batch of observations and returns as many "
        "actions."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def env_from(name: str, what: str = "ENV") -> Any:
    """A callable for ``module:callable``, otherwise a Gymnasium id, which ``module`` may have registered.

    Raises:
        ArgumentError: If the module has neither. ``what`` names the argument.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon:
        return name
    module = import_here(module_name, what)
    if not attribute or hasattr(module, attribute.partition(".")[0]):
        return load_callable(name, what)
    try:
        find(attribute)
    except ArgumentError:
        raise ArgumentError(f"{what}: {module_name!r} has no {attribute!r}, and registers no env of that id") from None
    return attribute


@contextmanager
def results_alone_on_stdout() -> Iterator[None]:
    """Send whatever envs and libraries print meanwhile to stderr, in this process and in the workers it starts."""
    sys.stdout.flush()
    kept = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, _STDOUT)
        os.close(kept)


@contextmanager
def exit_codes(*, debug: bool) -> Iterator[None]:
    """Report shoal's errors and the machine's as one paragraph on stderr, and Ctrl-C without a traceback."""
    try:
        yield
    except (ShoalError, OSError, MemoryError, OverflowError) as error:
        if debug:
            traceback.print_exc()
        else:
            has_more = isinstance(error, (FaultError, PolicyFailed)) or not isinstance(error, ShoalError)
            text = str(error) if isinstance(error, ShoalError) else brief(error)
            print(f"shoal: {' '.join(text.split())}{' (--debug shows the traceback)' * has_more}", file=sys.stderr)
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        print("shoal: interrupted", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
