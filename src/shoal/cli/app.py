"""The commands of ``shoal``."""

from __future__ import annotations

from typing import Annotated

import typer

import shoal
from shoal.cli.check import CHECK_HELP, check
from shoal.cli.collect import COLLECT_HELP, collect
from shoal.cli.doctor import DOCTOR_HELP, doctor
from shoal.cli.replay import REPLAY_HELP, replay
from shoal.cli.run import RUN_HELP, run

app = typer.Typer(
    help="Run many reinforcement-learning environments as one.",
    no_args_is_help=True,
    add_completion=False,
    # A traceback, of shoal or of an env, is best read as Python prints it.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"shoal {shoal.__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Run many reinforcement-learning environments as one."""


app.command(help=RUN_HELP, no_args_is_help=True)(run)
app.command(help=COLLECT_HELP, no_args_is_help=True)(collect)
app.command(help=CHECK_HELP, no_args_is_help=True)(check)
app.command(help=DOCTOR_HELP)(doctor)
app.command(help=REPLAY_HELP, no_args_is_help=True)(replay)
