"""Interleaved measurement: every contender runs a short slice in turn, many rounds, in one run.

A noisy machine changes speed by the minute. Contenders that are measured one after another see different machines;
slices of a third of a second, in a new random order each round, see the same one. So figures are medians over
slices, and a ratio is the median of the ratios within a round. And two processes that run the same code differ by up to
a tenth, by where in memory it happens to lie, for as long as they live. So in each act all contenders start anew.

    act 1    round 1:  B  A  C      round 2:  C  B  A      round 3: ...
              │  └ frozen (SIGSTOP) while the others run: even a runner that busy-waits disturbs nobody
              └ thawed for its slice
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import selectors
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from contenders import Contender
    from loads import Load

try:
    import psutil
except ImportError:
    psutil = None

HOST_SCRIPT = Path(__file__).with_name("host.py")
ANSWER_TIMEOUT_S = 180.0
CLOSE_TIMEOUT_S = 20.0


class HostError(Exception):
    """The contender failed; the message says how."""


class Skipped(HostError):
    """The contender's library cannot be imported."""


class Host:
    """A contender in its own process group, running or frozen.

    Raises:
        Skipped: from the constructor, when the library is not installed.
        HostError: from any command that the contender does not survive; the process is then gone.
    """

    def __init__(self, contender: Contender, python: str = sys.executable) -> None:
        self.contender = contender
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the host)
        # A group in our session and not a session of its own: if we are killed, the kernel wakes and hangs up a
        # stopped group that nobody is left to continue.
        self._process = subprocess.Popen(
            [python, str(HOST_SCRIPT), contender.key],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            process_group=0,
        )
        self._answers = _LineReader(self._process)
        self._members: list[Any] = []
        answer = self._answer(ANSWER_TIMEOUT_S)
        if "skipped" in answer:
            self.quit()
            raise Skipped(answer["skipped"])
        self.version: str = answer["version"]

    def open(self, load: Load, turns_per_us: float, num_envs: int | None = None) -> float:
        """Build and reset the pool; return the seconds that this took."""
        answer = self._command("open", load=load.key, turns_per_us=turns_per_us, num_envs=num_envs)
        open_s: float = answer["open_s"]
        self._members = _process_tree(self._process.pid)
        return open_s

    def slice(self, seconds: float) -> Slice:
        cpu_before = self.cpu_s()
        answer = self._command("slice", seconds=seconds)
        cpu_s = None if cpu_before is None else (self.cpu_s() or 0.0) - cpu_before
        return Slice(**answer, cpu_s=cpu_s)

    def close(self) -> None:
        """Close the pool and keep the process for the next load."""
        self._command("close", timeout_s=CLOSE_TIMEOUT_S)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the contender's processes; some may have groups of their own."""
        os.killpg(self._process.pid, number)
        for member in self._members[1:]:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.send_signal(number)

    def cpu_s(self) -> float | None:
        """User and system seconds of the contender's processes so far; None without psutil."""
        return _sum_over(self._members, lambda process: sum(process.cpu_times()[:2]))

    def pss_mb(self) -> float | None:
        """Memory of the contender's processes, shared pages counted once; None without psutil."""
        total = _sum_over(_process_tree(self._process.pid), lambda process: process.memory_full_info().pss)
        return None if total is None else total / 2**20

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def quit(self) -> None:
        """End the process and whatever it started."""
        try:
            self._signal(signal.SIGCONT)
            self._signal(signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.communicate()
        self._stderr.close()

    def _command(self, name: str, timeout_s: float = ANSWER_TIMEOUT_S, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": name, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure("has died") from None
        answer = self._answer(timeout_s)
        if "error" in answer:
            self.quit()
            raise HostError(answer["error"])
        return answer

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        line = self._answers.read(timeout_s)
        if line is None:
            raise self._failure(f"gave no answer within {timeout_s:.0f} s")
        if not line:
            raise self._failure("has died")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failure(self, what: str) -> HostError:
        self._stderr.seek(0)
        last_words = self._stderr.read().decode(errors="replace").strip().splitlines()[-1:]
        self.quit()
        return HostError(": ".join([f"the process {what}", *last_words]))


class _LineReader:
    """Lines from a child's stdout with a deadline: a worker that outlives its host keeps the pipe open."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self._fd = process.stdout.fileno()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._fd, selectors.EVENT_READ)
        self._process = process
        self._buffer = b""

    def read(self, timeout_s: float) -> bytes | None:
        """The next line; b"" when there will be none, None at the deadline."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            if self._selector.select(timeout=0.5):
                chunk = os.read(self._fd, 65536)
                if not chunk:
                    return b""
                self._buffer += chunk
            elif self._process.poll() is not None:
                return b""
            elif time.monotonic() > deadline:
                return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


def _process_tree(pid: int) -> list[Any]:
    if psutil is None:
        return []
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def _sum_over(processes: list[Any], value: Callable[[Any], float]) -> float | None:
    if psutil is None:
        return None
    total = 0.0
    for process in processes:
        try:
            total += value(process)
        except psutil.NoSuchProcess:
            continue
    return total


@dataclass(frozen=True, slots=True)
class Slice:
    """What one contender did in one round."""

    steps: int
    calls: int
    wall_s: float
    warm_up_steps: int
    """Made before the clock started; `cpu_s` has their cost in it."""
    cpu_s: float | None

    @property
    def steps_per_s(self) -> float:
        return self.steps / self.wall_s


@dataclass(slots=True)
class Result:
    """All slices of one contender on one load, by round."""

    contender: Contender
    slices: dict[int, Slice] = field(default_factory=dict)

    @property
    def steps_per_s(self) -> float:
        return statistics.median(part.steps_per_s for part in self.slices.values())

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a part of the median."""
        rates = [part.steps_per_s for part in self.slices.values()]
        if len(rates) < 2:
            return 0.0
        low, middle, high = statistics.quantiles(rates, n=4, method="inclusive")
        return (high - low) / 2 / middle

    @property
    def us_per_call(self) -> float:
        return statistics.median(part.wall_s / part.calls for part in self.slices.values()) * 1e6

    @property
    def cpu_us_per_step(self) -> float | None:
        """Over all slices together: the kernel counts CPU time in ticks too coarse for one."""
        spent = [part.cpu_s for part in self.slices.values() if part.cpu_s is not None]
        if not spent:
            return None
        return sum(spent) / sum(part.steps + part.warm_up_steps for part in self.slices.values()) * 1e6

    def ratio_to(self, other: Result) -> float | None:
        """How many times the rate of `other`, from the rounds that both ran."""
        shared = self.slices.keys() & other.slices.keys()
        if not shared:
            return None
        return statistics.median(self.slices[turn].steps_per_s / other.slices[turn].steps_per_s for turn in shared)


@dataclass(frozen=True, slots=True)
class Plan:
    """How long to measure: so many rounds in each act, and all processes are started anew for each."""

    rounds: int
    slice_s: float
    acts: int = 1


@dataclass(slots=True)
class LoadReport:
    """What came out for one load: results by contender key, and why others have none."""

    load: Load
    results: dict[str, Result] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


class Stage:
    """The hosts of a run: reused from load to load, started anew for each act, and frozen unless it is their turn."""

    def __init__(self, pythons: dict[str, str], turns_per_us: float) -> None:
        self._pythons = pythons
        self._turns_per_us = turns_per_us
        self._hosts: dict[str, Host] = {}
        self._missing: dict[str, str] = {}
        self.versions: dict[str, str] = {}

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self._quit_hosts()

    def _quit_hosts(self) -> None:
        for host in self._hosts.values():
            host.quit()
        self._hosts.clear()

    def measure(self, load: Load, contenders: Sequence[Contender], plan: Plan) -> LoadReport:
        """Open every contender, run the rounds, close them; and that for each act."""
        report = LoadReport(load)
        rng = random.Random(0)
        for act in range(plan.acts):
            if act:
                self._quit_hosts()
            hosts = self._open(load, [each for each in contenders if each.key not in report.skipped], report)
            self._run_rounds(hosts, act, plan, rng, report)
            for key, host in hosts.items():
                if key not in report.skipped:
                    self._close(host)
        return report

    def _run_rounds(self, hosts: dict[str, Host], act: int, plan: Plan, rng: random.Random, report: LoadReport) -> None:
        # Round 0 warms caches and branch predictors and is not kept.
        for turn in range(plan.rounds + 1):
            order = [host for key, host in hosts.items() if key not in report.skipped]
            rng.shuffle(order)
            for host in order:
                if turn % host.contender.every == 0 or turn <= 1:
                    number = act * plan.rounds + turn if turn else None
                    self._run_slice(host, number, plan.slice_s, report)

    def _open(self, load: Load, contenders: Sequence[Contender], report: LoadReport) -> dict[str, Host]:
        opened = {}
        for contender in contenders:
            try:
                host = self._host(contender)
                host.thaw()
                host.open(load, self._turns_per_us)
                host.freeze()
            except HostError as error:
                report.skipped[contender.key] = str(error)
                report.results.pop(contender.key, None)
            else:
                opened[contender.key] = host
                report.results.setdefault(contender.key, Result(contender))
        return opened

    def _host(self, contender: Contender) -> Host:
        if contender.library in self._missing:
            raise Skipped(self._missing[contender.library])
        host = self._hosts.get(contender.key)
        if host is None or not host.is_alive:
            try:
                host = self._hosts[contender.key] = start_host(contender, self._pythons)
            except Skipped as error:
                self._missing[contender.library] = str(error)
                raise
            self.versions[contender.library.split(".")[0]] = host.version
        return host

    def _run_slice(self, host: Host, number: int | None, seconds: float, report: LoadReport) -> None:
        """Run one slice, and keep it under its number, if it has one."""
        key = host.contender.key
        try:
            host.thaw()
            part = host.slice(seconds)
            host.freeze()
        except HostError as error:
            report.skipped[key] = str(error)
            report.results.pop(key, None)
            return
        if number is not None:
            report.results[key].slices[number] = part

    def _close(self, host: Host) -> None:
        host.thaw()
        try:
            host.close()
            host.freeze()
        except HostError:
            # It measured well but cannot close: the next load gets a new process.
            host.quit()


def start_host(contender: Contender, pythons: dict[str, str]) -> Host:
    """A host in the Python that has the contender's library."""
    return Host(contender, pythons.get(contender.library.split(".")[0], sys.executable))
