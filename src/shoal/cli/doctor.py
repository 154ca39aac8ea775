"""``shoal doctor``: examine the machine, and an env on it, and say what to do."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shoal.cli.common import ENV_HELP, AsJson, Debug, env_from, exit_codes, results_alone_on_stdout
from shoal.doctor import Diagnosis, examine_env, examine_machine
from shoal.doctor.diagnosis import Watch, no_watch, plural
from shoal.doctor.rehearsal import recipe_of

_PROBLEM_FOUND = 1
_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "problem": ("✗", "bold red")}
_LINE_EVERY_S = 3.0

# Typer's rich text keeps every line break, so this is not a docstring.
DOCTOR_HELP = """Look at this machine, and at an env on it, and say what to do about what is wrong.

Findings go to stdout, progress to stderr.
The exit code is 0 if there is no problem, whatever the warnings, 1 if there is one, and 2 if there is no such env.

[bold]This machine: limits, memory, worker processes[/]
[green]shoal doctor[/]

[bold]An env on it: can it run, does it repeat, which engine suits it[/]
[green]shoal doctor CartPole-v1[/]

[bold]An env of your own, as many as you want to run[/]
[green]shoal doctor my_envs:SlowEnv -n 256 --num-workers 32[/]

[bold]Everything, for a bug report[/]
[green]shoal doctor my_envs:SlowEnv --thorough --json[/]
"""


def doctor(
    env: Annotated[str | None, typer.Argument(metavar="ENV", help=ENV_HELP, show_default=False)] = None,
    num_envs: Annotated[int, typer.Option("--num-envs", "-n", min=1, help="How many envs you want to run.")] = 64,
    num_workers: Annotated[
        int | None, typer.Option(min=1, help="How many processes you want to run them in. One per core if not given.")
    ] = None,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Try every way to start worker processes, not only the default.")
    ] = False,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the findings.")] = False,
    debug: Debug = False,
) -> None:
    """Examine this machine, and an env on it, and say what to do about what is wrong."""
    with exit_codes(debug=debug):
        with results_alone_on_stdout(), _progress(quiet=quiet or as_json) as watch:
            made_of = None if env is None else env_from(env)
            if made_of is not None:
                recipe_of(made_of)  # a name that is none is told at once
            sections = {"machine": examine_machine(thorough=thorough, watch=watch)}
            if made_of is not None:
                sections["env"] = examine_env(made_of, num_envs, num_workers=num_workers, called=env or "", watch=watch)
        if as_json:
            print(json.dumps(_as_data(env, sections)))
        else:
            _print_findings(env, sections)
        if _count(sections, "problem"):
            raise typer.Exit(_PROBLEM_FOUND)


def _as_data(env: str | None, sections: dict[str, list[Diagnosis]]) -> dict[str, object]:
    found = {name: [diagnosis.as_dict() for diagnosis in diagnoses] for name, diagnoses in sections.items()}
    counts = {"problems": _count(sections, "problem"), "warnings": _count(sections, "warning")}
    return {"name": env, **counts, **found}


def _count(sections: dict[str, list[Diagnosis]], verdict: str) -> int:
    return sum(diagnosis.verdict == verdict for diagnoses in sections.values() for diagnosis in diagnoses)


# ------------------------------------------------------------------ what the user sees


def _print_findings(env: str | None, sections: dict[str, list[Diagnosis]]) -> None:
    console = Console(highlight=False)
    # Without a terminal there is no width to fold at, and one line per finding can be searched.
    show = _print_table if console.is_terminal else _print_lines
    width = max(len(diagnosis.topic) for diagnoses in sections.values() for diagnosis in diagnoses)
    for name, diagnoses in sections.items():
        console.print("This machine" if name == "machine" else env, style="bold", markup=False)
        show(console, diagnoses, width)
        console.print()
    console.print(_summary(sections), markup=False)
    if env is None:
        console.print("shoal doctor ENV looks at an env on this machine.", markup=False)
    elif any(diagnosis.topic == "in this process" for diagnosis in sections["env"]):  # not if that is dangerous
        console.print(f"shoal check {env} looks at whether the env keeps its contract.", markup=False, soft_wrap=True)


def _print_table(console: Console, diagnoses: list[Diagnosis], width: int) -> None:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, width=width)
    table.add_column(overflow="fold")
    for diagnosis in diagnoses:
        mark, style = _MARKS[diagnosis.verdict]
        found = Text(diagnosis.found, style="" if diagnosis.verdict == "ok" else style)
        table.add_row(Text(mark, style=style), diagnosis.topic, found)
        for way in diagnosis.fix.splitlines():
            table.add_row("", "", Padding(Text(f"fix: {way}", style="cyan"), (0, 0, 0, 2)))
    console.print(Padding(table, (0, 0, 0, 1)))


def _print_lines(console: Console, diagnoses: list[Diagnosis], width: int) -> None:
    for diagnosis in diagnoses:
        print(f"{_MARKS[diagnosis.verdict][0]} {diagnosis.topic:<{width}}  {diagnosis.found}")
        for way in diagnosis.fix.splitlines():
            print(f"  {'':<{width}}    fix: {way}")


def _summary(sections: dict[str, list[Diagnosis]]) -> str:
    problems, warnings = _count(sections, "problem"), _count(sections, "warning")
    if not problems and not warnings:
        return "No problem found."
    return f"{plural(problems, 'problem')}, {plural(warnings, 'warning')}."


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Watch]:
    """Say what is being examined: on a terminal in one line that is overwritten, elsewhere in a line now and then.

    Written by hand, since rich would start a thread to animate it, and the threads of this process are among the things
    to be examined.
    """
    if quiet:
        yield no_watch
        return
    stream, due_s = sys.stderr, monotonic() + _LINE_EVERY_S
    is_terminal = stream.isatty()

    def show(topic: str) -> None:
        nonlocal due_s
        if is_terminal:
            stream.write(f"\r\x1b[2Kexamining: {topic}")
        elif monotonic() >= due_s:
            due_s = monotonic() + _LINE_EVERY_S
            stream.write(f"examining: {topic}\n")
        stream.flush()

    try:
        yield show
    finally:
        if is_terminal:
            stream.write("\r\x1b[2K")
            stream.flush()
