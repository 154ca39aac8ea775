"""``shoal replay``: reproduce a recorded fault, here and now."""

from __future__ import annotations

import faulthandler
import json
import os
import pdb
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

import shoal
from shoal.cli.common import env_from, exit_codes, results_alone_on_stdout
from shoal.cli.recordings import is_of, plain, print_list, recordings_in
from shoal.doctor.diagnosis import plural
from shoal.errors import ArgumentError, EnvTimeout, FaultError, WorkerDied
from shoal.recording import Recording, is_recording
from shoal.replaying import Outcome, reason_against, summary_of
from shoal.replaying import replay as replay_recording

_NOT_REPRODUCED = 1
_REFRESH_S = 0.1
_LINE_EVERY_S = 5.0
_GRACE_S = 1.0
_OWN = os.path.dirname(shoal.__file__) + os.sep
_OWN_ENVS = tuple(os.path.join(_OWN, name) for name in ("testing", "envs"))
_STYLES = {"reproduced": "bold green", "another fault": "bold yellow", "no fault": "bold yellow"}

# Typer's rich text keeps every line break, so this is not a docstring.
REPLAY_HELP = """Have a recorded fault again, in this process.

A pool with [cyan]fault_dir=[/] records what each env was told up to a fault. This tells one env the same.
Nothing that a recording names is imported: an env of your own is given with [cyan]--env[/].
The exit code is 0 if the fault is reproduced, 1 if there is another one or none, and 2 if it could not be tried.
A crash takes this process along, so the exit code is then its own: 139 after a segmentation fault, for example.
A hang that Python cannot interrupt ends the process once it is reproduced: with 0, or 1 if that code holds the GIL.

[bold]What is recorded in a folder[/]
[green]shoal replay faults/[/]

[bold]One of them[/]
[green]shoal replay faults/20260801-120000-pid4121-001-env7-EnvStepError --env my_envs:MazeEnv[/]

[bold]In the debugger, where the env failed[/]
[green]shoal replay faults/20260801-... --env my_envs:MazeEnv --pdb[/]
"""


def replay(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A recording, or a folder of them, which are then listed.")
    ],
    env: Annotated[
        str | None,
        typer.Option(
            help="What makes the env: [cyan]module:callable[/], a Gymnasium id, or [cyan]module:MyEnv-v0[/]. "
            "If it has the recorded name it gets the recorded arguments, otherwise none."
        ),
    ] = None,
    use_pdb: Annotated[bool, typer.Option("--pdb", help="Enter the debugger where the env fails.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds for a reset or step, if the recorded fault is a hang.")
    ] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error of shoal's own.")] = False,
) -> None:
    """Reproduce a recorded fault in this process."""
    with exit_codes(debug=debug):
        if use_pdb and as_json:
            raise ArgumentError("--pdb and --json: one of them, not both, since the debugger writes to stdout")
        if not is_recording(folder):
            print_list(folder, recordings_in(folder), as_json=as_json)
            return
        recording = Recording.load(folder)
        screen = sys.stdout
        # What the env prints is not part of the result. A debugger needs the terminal, hence the real descriptor.
        with redirect_stdout(sys.stderr) if use_pdb else results_alone_on_stdout():
            factory = None if env is None else env_from(env, "--env")
            if factory is None and (reason := reason_against(recording.origin)):
                raise ArgumentError(_request_for_env(recording, reason))
            debugger = partial(_enter_debugger, screen) if use_pdb else None
            outcome = _told_of(_run(recording, factory, timeout, debugger, quiet=quiet or as_json), recording, factory)
        if as_json:
            print(json.dumps(_as_dict(folder, recording, outcome)))
        else:
            _print_outcome(recording, outcome)
        if not _is_as_recorded(recording, outcome):
            raise typer.Exit(_NOT_REPRODUCED)


def _request_for_env(recording: Recording, reason: str) -> str:
    origin = recording.origin
    module, _, name = origin.name.rpartition(":")
    if origin.wrappers or origin.lost:
        advice = "--env module:callable, where the callable makes it in full"
    elif module == "__main__" or "<" in name or not module:
        advice = f"--env module:{name}" if "<" not in name else "--env module:callable"
        advice += ", with the module that has it"
    else:
        advice = f"--env {origin.name}"
    return plain(f"the env was {origin}, and {reason}. Say what makes it: {advice}")


def _told_of(outcome: Outcome, recording: Recording, factory: Any) -> Outcome:
    """The outcome, with a note if the env has another id: that explains more than anything in the recording."""
    if outcome.verdict == "reproduced" or not isinstance(factory, str) or is_of(factory, recording.origin):
        return outcome
    note = f"{factory} is not the env that was recorded: that is {recording.origin}"
    return replace(outcome, notes=(note,) if outcome.error is None else (*outcome.notes, note))


def _is_as_recorded(recording: Recording, outcome: Outcome) -> bool:
    return outcome.verdict == ("no fault" if recording.fault is None else "reproduced")


# ---------------------------------------------------------------------- doing it


def _run(
    recording: Recording, factory: Any, timeout_s: float, debugger: Callable[[FaultError], None] | None, *, quiet: bool
) -> Outcome:
    kind = "" if recording.fault is None else recording.fault["kind"]
    is_grave = kind in (EnvTimeout.__name__, WorkerDied.__name__)
    watch = _Watch(recording, timeout_s)
    with _progress(recording.num_commands, quiet=quiet) as bar:

        def show(done: int) -> None:
            bar.show(done)
            if is_grave and done == recording.num_commands - 1:
                bar.stop()
                watch.begin()

        def stop(error: FaultError) -> None:
            bar.stop()
            watch.end()
            if debugger is not None:
                debugger(error)

        try:
            if is_grave and recording.fault is not None and recording.fault["phase"] == "construct":
                bar.stop()
                watch.begin()
            return replay_recording(
                recording,
                factory,
                show,
                on_fault=stop,
                timeout_s=timeout_s if kind == EnvTimeout.__name__ else None,
            )
        finally:
            watch.end()


class _Watch:
    """Stands by while the process may die or hang, and says so beforehand.

    ``replay`` itself ends a hang in Python. It cannot end one in compiled code, so this ends the process: after a grace
    period with a Python thread or, if the code holds the interpreter's lock, with one of faulthandler's.
    """

    def __init__(self, recording: Recording, timeout_s: float) -> None:
        self._recording = recording
        self._hangs = recording.fault is not None and recording.fault["kind"] == EnvTimeout.__name__
        self._timer = threading.Timer(timeout_s + _GRACE_S, self._give_up)
        self._timer.daemon = True
        self._timeout_s = timeout_s
        self._has_begun = False

    def begin(self) -> None:
        """Begin to watch: the next command is the one that ended badly when it was recorded."""
        fault = self._recording.fault
        if self._has_begun or fault is None:
            return
        self._has_begun = True
        what = "what comes next, building the env," if fault["phase"] == "construct" else f"the next {fault['phase']}"
        told, fate = ("ended its process", "This process may end too")
        if self._hangs:
            told, fate = ("hung", f"It has {self._timeout_s:g} s now")
        _say(f"{what} {told} when it was recorded: {summary_of(fault)}. {fate}.")
        sys.stdout.flush()
        if not faulthandler.is_enabled():
            faulthandler.enable(sys.__stderr__ or 2)
        if self._hangs:
            self._timer.start()
            faulthandler.dump_traceback_later(self._timeout_s + 2 * _GRACE_S, exit=True, file=sys.__stderr__ or 2)

    def end(self) -> None:
        """Stop watching: the command has returned."""
        if self._has_begun and self._hangs:
            self._timer.cancel()
            faulthandler.cancel_dump_traceback_later()

    def _give_up(self) -> None:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        stack = traceback.extract_stack(frame)
        while any(_is_ours(summary.filename) for summary in stack):
            stack.pop(0)
        print("".join(traceback.format_list(stack)), end="", file=sys.stderr)
        _say(f"reproduced: it hangs there, in code that Python cannot interrupt; no answer after {self._timeout_s:g} s")
        os._exit(0)


def _enter_debugger(screen: TextIO, error: FaultError) -> None:
    cause = error.__cause__
    trace = None if cause is None else _of_the_env(cause.__traceback__)
    _say(f"{type(error).__name__}: {error}")
    if trace is None:
        _say("there is no frame to enter: the env had returned already, and what it returned is not allowed")
        return
    with redirect_stdout(screen):
        pdb.post_mortem(trace)


def _of_the_env(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from its first frame outside shoal on; all of it if there is none."""
    own = trace
    while own is not None and _is_ours(own.tb_frame.f_code.co_filename):
        own = own.tb_next
    return own or trace


def _is_ours(filename: str) -> bool:
    return filename.startswith(_OWN) and not filename.startswith(_OWN_ENVS)


# ---------------------------------------------------------------------- showing it


class _Nothing:
    def show(self, done: int) -> None:
        """Show how many commands are done."""

    def stop(self) -> None:
        """Leave the screen to others."""


class _Lines(_Nothing):
    def __init__(self, total: int) -> None:
        self._total = total
        self._due_s = time.monotonic() + _LINE_EVERY_S

    def show(self, done: int) -> None:
        if (now_s := time.monotonic()) >= self._due_s:
            self._due_s = now_s + _LINE_EVERY_S
            print(f"{done:,} of {self._total:,} resets and steps", file=sys.stderr, flush=True)


class _Bar(_Nothing):
    def __init__(self, console: Console, total: int) -> None:
        columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bars = Bars(*columns, console=console, transient=True)
        self._task = self._bars.add_task("", total=total)
        self._due_s = time.monotonic() + _REFRESH_S
        self._bars.start()

    def show(self, done: int) -> None:
        if (now_s := time.monotonic()) >= self._due_s:
            self._due_s = now_s + _REFRESH_S
            self._bars.update(self._task, completed=done)

    def stop(self) -> None:
        self._bars.stop()


@contextmanager
def _progress(total: int, *, quiet: bool) -> Iterator[_Nothing]:
    """A bar on a terminal, a line now and then elsewhere, on stderr."""
    console = Console(stderr=True)
    bar = _Nothing() if quiet else _Bar(console, total) if console.is_terminal else _Lines(total)
    try:
        yield bar
    finally:
        bar.stop()


def _print_outcome(recording: Recording, outcome: Outcome) -> None:
    """Print the env's traceback, then the verdict, then notes about it, to stdout."""
    console = Console(highlight=False)
    error = outcome.error
    if error is not None:
        console.print(Text(plain(_told_by_env(error))), soft_wrap=True)
        console.print()
    verdict = Text(outcome.verdict, _STYLES[outcome.verdict])
    after = plural(outcome.steps, "step")
    found = "" if error is None else f": {type(error).__name__} after {after}"
    told = found or f" after {after}" + ("" if recording.fault else "; none was recorded")
    console.print(Text.assemble(verdict, told), soft_wrap=True)
    if outcome.verdict == "no fault" and recording.fault is not None:
        console.print(
            Text(plain(f"  recorded: {recording.fault['kind']}: {summary_of(recording.fault)}")), soft_wrap=True
        )
    for note in outcome.notes:
        console.print(Text(plain(f"  {note}")), soft_wrap=True)


def _told_by_env(error: FaultError) -> str:
    cause = error.__cause__
    if cause is None:
        return error.remote_traceback or str(error)
    return "".join(traceback.format_exception(type(cause), cause, _of_the_env(cause.__traceback__))).rstrip()


def _as_dict(folder: Path, recording: Recording, outcome: Outcome) -> dict[str, Any]:
    error = outcome.error
    found = None
    if error is not None:
        found = {"kind": type(error).__name__, "message": str(error), "traceback": _told_by_env(error)}
    return {
        "folder": str(folder),
        "env": str(recording.origin),
        "verdict": outcome.verdict,
        "steps": outcome.steps,
        "found": found,
        "recorded": recording.fault,
        "notes": list(outcome.notes),
    }


def _say(text: str) -> None:
    print(f"shoal: {plain(text)}", file=sys.stderr, flush=True)
