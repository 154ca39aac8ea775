"""Programs that use shoal, run as processes of their own, so that a test can end them as users and systems do.

    with program(CODE, "fork") as trainer:      # it has printed a line with the pids of its workers
        trainer.process.kill()
        ended = trainer.end()                   # and nothing of it is left

A program that has to wait for the test reads its standard input: `end` closes it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

METHODS = ["fork", "forkserver", "spawn"]
METHODS_HERE = ["fork!", "forkserver", "spawn"]
"""Start methods for pools of the test's own process: pytest's watchdog is a thread, so a fork has to be forced."""
GRACE_S = 2.0
"""How long a worker may outlive its trainer."""
SOON_S = 10.0
"""Long enough for anything that is going to happen at all."""

# A job that runs in the background inherits an ignored SIGINT, and a Python started so never sees Ctrl-C.
_PRELUDE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def wait_until(condition: Callable[[], bool], limit_s: float = SOON_S, what: str = "the condition") -> None:
    """Wait for a condition, or fail."""
    end = monotonic() + limit_s
    while not condition():
        if monotonic() > end:
            pytest.fail(f"waited {limit_s} s in vain for {what}")
        sleep(0.005)


def lives(process: psutil.Process) -> bool:
    """Whether a process runs; one that has ended but was not reaped does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def assert_gone(processes: list[psutil.Process], limit_s: float = GRACE_S) -> None:
    """Fail if one of these lives on, and end it."""
    end = monotonic() + limit_s
    while left := [process for process in processes if lives(process)]:
        if monotonic() > end:
            for process in left:
                process.kill()
            pytest.fail(f"still there after {limit_s} s: {left}")
        sleep(0.01)


@dataclass
class Ended:
    """How a program ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def num_tracebacks(self) -> int:
        """How many tracebacks it and its workers have printed."""
        return self.stderr.count("Traceback")


@dataclass
class Program:
    """A running program.

    Attributes:
        process: The program itself; it leads a session and a process group of its own.
        lines: What it has printed so far.
        temporary: Its folder for temporary files.
        family: All its descendants, once it had printed its lines.
    """

    process: subprocess.Popen[str]
    lines: list[str]
    temporary: Path
    family: list[psutil.Process] = field(default_factory=list)

    @property
    def pids(self) -> set[int]:
        """The numbers it has printed: pids of workers."""
        return {int(word) for line in self.lines for word in line.split() if word.isdigit()}

    def end(self, limit_s: float = SOON_S) -> Ended:
        """Let it end, and see that everything of it is gone two seconds later, temporary files included."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None
        # Before its output is read to the end, which would wait for whoever still holds the pipe.
        self.process.wait(limit_s)
        assert_gone(self.family)
        assert list(self.temporary.iterdir()) == []
        stdout, stderr = self.process.communicate(timeout=limit_s)
        return Ended(self.process.returncode, stdout, stderr)


@contextmanager
def program(code: str, *args: str, lines: int = 1, options: tuple[str, ...] = ()) -> Iterator[Program]:
    """Run Python code until it and its workers have printed so many lines."""
    command = [sys.executable, *options, "-c", _PRELUDE + code, *args]
    pipe = subprocess.PIPE
    with (
        TemporaryDirectory() as temporary,
        subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            start_new_session=True,
            env={**os.environ, "TMPDIR": temporary},
        ) as process,
    ):
        running = Program(process, [], Path(temporary))
        try:
            assert process.stdout is not None
            running.lines = [process.stdout.readline() for _ in range(lines)]
            assert all(running.lines), process.communicate()[1]
            running.family = psutil.Process(process.pid).children(recursive=True)
            yield running
        finally:
            process.kill()
            for member in running.family:
                if lives(member):
                    member.kill()
            process.communicate()


def run_program(code: str, *args: str, limit_s: float = 50.0, **options: object) -> Ended:
    """Run Python code to its end."""
    result = subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
        stdin=subprocess.DEVNULL,
        **options,  # type: ignore[call-overload]
    )
    return Ended(result.returncode, result.stdout, result.stderr)
