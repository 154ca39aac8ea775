"""``shoal check``: does an env keep its contract?"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import groupby
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shoal.cli.common import ENV_HELP, AsJson, Debug, env_from, exit_codes, results_alone_on_stdout
from shoal.contract import RULES, Finding, Report, examine
from shoal.contract.examine import DEFAULT_STEPS
from shoal.doctor.diagnosis import plural
from shoal.doctor.rehearsal import place_in_env, recipe_of, rehearse
from shoal.errors import ArgumentError, FaultError

_BROKEN = 1
_PLAIN_WIDTH = 120
_REFRESH_S = 0.1
_LINE_EVERY_S = 5.0
_RULE_OF_PHASE = {"construct": "build", "reset": "reset", "close": "close"}
_STYLES = {
    "ok": "green",
    "note": "cyan",
    "warning": "yellow",
    "error": "bold red",
    "skipped": "dim",
    "ignored": "dim",
}

# Typer's rich text keeps every line break, so this is not a docstring.
CHECK_HELP = """Check whether an env keeps its contract, and say what to do where it does not.

Tries it in a worker process first, since an env may crash or hang. Then watches it here for some steps with random
actions, and plays a few short episodes again to compare seeds and instances.
The exit code is 0 if there are no errors, 1 if there are, and 2 if there is no such env.

[bold]A registered env[/]
[green]shoal check CartPole-v1[/]

[bold]An env of your own: a class, or a function that makes it[/]
[green]shoal check my_envs:MazeEnv[/]

[bold]For continuous integration: warnings count too, but for one that is meant so[/]
[green]shoal check my_envs:MazeEnv --strict --ignore other-seed[/]

[bold]A longer look, for scripts[/]
[green]shoal check my_envs:MazeEnv --steps 100_000 --seed 7 --json[/]
"""


def check(
    env: Annotated[str, typer.Argument(metavar="ENV", help=ENV_HELP)],
    steps: Annotated[int, typer.Option(min=1, help="Steps to watch; [cyan]100_000[/] may be written so.")] = (
        DEFAULT_STEPS
    ),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the env and of the actions.")] = 0,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings are errors.")] = False,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="Leave out a rule; may be given several times.")
    ] = None,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
    debug: Debug = False,
) -> None:
    """Check whether an env keeps its contract."""
    with exit_codes(debug=debug):
        ignored = _known_rules(ignore or [])
        with results_alone_on_stdout(), _progress(quiet=quiet or as_json) as show:
            report = _examine(env_from(env), seed, steps, show)
        report = _judged_by(report, ignored, strict=strict)
        if as_json:
            print(json.dumps(_as_dict(report, ignored, seed=seed, steps=steps)))
        else:
            _print_report(report, ignored)
        if any(finding.severity == "error" for finding in report.findings):
            raise typer.Exit(_BROKEN)


def _examine(env: Any, seed: int, steps: int, show: Callable[[str, int], None] | None) -> Report:
    name = recipe_of(env).name
    if show is not None:
        show("trying it in a worker process", 0)
    danger = rehearse(env, steps).danger
    if danger is None:
        return examine(env, seed=seed, steps=steps, on_progress=show)
    finding = _told_of(danger)
    return Report(name, (finding,), frozenset({finding.rule}))


def _told_of(danger: FaultError) -> Finding:
    message = f"in a worker process: {danger}{place_in_env(danger)}"
    hint = (
        "The env ended its process or stood still there, so it was not tried in this one. Look for crashes of compiled "
        "libraries, calls that exit, endless loops and waits."
    )
    return Finding("error", _RULE_OF_PHASE.get(danger.where.phase, "step"), " ".join(message.split()), hint)


def _known_rules(names: list[str]) -> frozenset[str]:
    unknown = [name for name in names if name not in RULES]
    if unknown:
        raise ArgumentError(f"--ignore: there is no rule {unknown[0]!r}; there are {', '.join(RULES)}")
    return frozenset(names)


def _judged_by(report: Report, ignored: frozenset[str], *, strict: bool) -> Report:
    findings = [finding for finding in report.findings if finding.rule not in ignored]
    if strict:
        findings = [replace(f, severity="error") if f.severity == "warning" else f for f in findings]
    return replace(report, findings=tuple(findings))


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[str, int], None] | None]:
    """Say on stderr what is being done: on a terminal a line that changes, elsewhere a line now and then."""
    console = Console(stderr=True)
    if quiet:
        yield None
    elif console.is_terminal:
        with console.status("building") as status:
            yield _now_and_then(status.update, _REFRESH_S)
    else:
        yield _now_and_then(lambda text: print(text, file=sys.stderr, flush=True), _LINE_EVERY_S)


def _now_and_then(write: Callable[[str], Any], every_s: float) -> Callable[[str, int], None]:
    due_s = time.monotonic() + every_s

    def show(doing: str, steps: int) -> None:
        nonlocal due_s
        now_s = time.monotonic()
        if now_s >= due_s:
            due_s = now_s + every_s
            write(f"{doing}, {steps:,} steps so far")

    return show


def _verdicts(report: Report, ignored: frozenset[str]) -> dict[str, str]:
    return {rule: "ignored" if rule in ignored else report.verdict(rule) for rule in RULES}


def _as_dict(report: Report, ignored: frozenset[str], *, seed: int, steps: int) -> dict[str, Any]:
    return {
        "env": report.env,
        "seed": seed,
        "steps": steps,
        "ok": all(finding.severity != "error" for finding in report.findings),
        "rules": _verdicts(report, ignored),
        "findings": [asdict(finding) for finding in report.findings],
    }


def _print_report(report: Report, ignored: frozenset[str]) -> None:
    """Print to stdout one line per rule, then the findings, then a summary."""
    console = Console()
    if console.is_terminal:
        _write_report(console, report, ignored)
        return
    plain = Console(width=_PLAIN_WIDTH)
    with plain.capture() as captured:
        _write_report(plain, report, ignored)
    # A table pads its lines with blanks, which nobody wants in a file.
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _write_report(console: Console, report: Report, ignored: frozenset[str]) -> None:
    table = Table.grid(padding=(0, 2))
    verdicts = _verdicts(report, ignored)
    for rule, verdict in verdicts.items():
        table.add_row(Text(verdict, _STYLES[verdict]), Text(rule, "bold"), Text(RULES[rule]))
    console.print(table)
    for (severity, rule), group in groupby(report.findings, lambda finding: (finding.severity, finding.rule)):
        console.print()
        console.print(Text.assemble((severity, _STYLES[severity]), "  ", (rule, "bold")))
        # Several findings often have the same remedy.
        for hint, same in groupby(group, lambda finding: finding.hint):
            # Text rather than markup, because messages are full of square brackets.
            for finding in same:
                console.print(Padding(Text(finding.message), (0, 0, 0, 2)))
            console.print(Padding(Text(hint, "italic"), (0, 0, 0, 4)))
    console.print()
    console.print(Text(_sum(report, list(verdicts.values()))))


def _sum(report: Report, verdicts: list[str]) -> str:
    severities = [finding.severity for finding in report.findings]
    told = [plural(n, word) for word in ("error", "warning", "note") if (n := severities.count(word))]
    if skipped := verdicts.count("skipped"):
        told.append(f"{plural(skipped, 'rule')} skipped")
    kept = plural(verdicts.count("ok"), "rule")
    return f"{report.env}: {', '.join(told)}" if told else f"{report.env}: {kept} kept"
