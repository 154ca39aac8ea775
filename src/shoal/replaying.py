"""Replaying the commands of one env, in this process, until it fails as it did.

    Recording ──▶ env, on the serial engine ──▶ its resets and steps, in order ──▶ Outcome

A recording is data: nothing that it names is imported. The env is made by its id, if that is registered, or by a
factory that the caller gives.
"""

from __future__ import annotations

import contextlib
import re
import signal
import traceback
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal

import gymnasium as gym

from shoal.build import make_pool
from shoal.engines.process.codec import encode
from shoal.envs import TASKS
from shoal.errors import ArgumentError, EnvTimeout, FaultError, NotReset, SpecError, Where
from shoal.faults import fault_from
from shoal.nan_watch import NanWatch
from shoal.recording import Origin, Recording, Told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal.batch import Batch
    from shoal.pool import Pool

_FRAME = re.compile(r'^\s*File "(.+)", line (\d+), in ', re.MULTILINE)
_UNKNOWN = (
    "nothing is missing from the recording, so the env depends on something else: the clock, a generator that its seed "
    "does not reach, other envs of its process, or what it did before its last reset with a seed (shoal check looks "
    "for such things)"
)


@dataclass(frozen=True)
class Outcome:
    """What became of a replay.

    Attributes:
        verdict: Whether the env failed, and if so, whether as recorded.
        steps: Steps taken, including the one that failed.
        error: The fault, if there was one; the env's own exception is its ``__cause__``.
        notes: What differs from the recording, and what may be the reason.
    """

    verdict: Literal["reproduced", "another fault", "no fault"]
    steps: int
    error: FaultError | None = None
    notes: tuple[str, ...] = ()


class Hang(BaseException):
    """Raised inside an env that takes too long; not an ``Exception``, lest the env take it for one of its own."""


def replay(
    recording: Recording,
    factory: Any = None,
    on_progress: Callable[[int], None] | None = None,
    *,
    on_fault: Callable[[FaultError], None] | None = None,
    timeout_s: float | None = None,
) -> Outcome:
    """Replay a recording.

    If the recording ends with the death of a worker process, this process is about to die in the same way.

    Args:
        recording: What to replay.
        factory: What makes the env: an id, or a callable. If its name is the recorded one, it gets the recorded
            arguments; otherwise it has to know them. Needed where ``reason_against`` gives a reason.
        on_progress: Called before each command with the number of commands done so far.
        on_fault: Called with the error while the env is still as the fault left it, for a debugger.
        timeout_s: Seconds that a command may take before it counts as hung. Works in the main thread only.

    Raises:
        ArgumentError: If the env cannot be made from the recording alone, or takes other actions.

    Example:
        >>> story = Recording(0, Origin("id", "CartPole-v1"), "next_step", None, [["reset", 7, None]], [])
        >>> replay(story).verdict
        'no fault'
    """
    done, error = 0, None
    with contextlib.ExitStack() as stack, _alarm(timeout_s) as wind:
        try:
            wind(timeout_s)
            pool = stack.enter_context(open_pool(recording, factory))
            rows, row = play(recording, pool), None
            for done in range(1, recording.num_commands + 1):
                wind(0.0)  # what the caller does with the news is not the env's time
                if on_progress is not None:
                    on_progress(done - 1)
                wind(timeout_s)
                row = next(rows)
            _look_for_nan(recording, pool)
            _look_at_border(recording, row)
        except (FaultError, Hang) as fault:
            wind(0.0)
            error = _told_as_hang(fault)
            if on_fault is not None:
                on_fault(error)
        except NotReset:
            notes = ("an episode ended where the recorded one was sent a further step", *_reasons(recording))
            return Outcome("no fault", recording.steps_among(done), notes=notes)
    return judge(recording, recording.steps_among(done), error)


def open_pool(recording: Recording, factory: Any = None) -> Pool:
    """A pool of one env, under the rules of a recording.

    Raises:
        ArgumentError: If the env cannot be made from the recording alone, or takes other actions.
        EnvConstructError: If it cannot be built.
    """
    env, kwargs = _maker(recording.origin, factory)
    pool = make_pool(
        env,
        1,
        engine="serial",
        autoreset=recording.autoreset,
        env_kwargs=kwargs,
        max_episode_steps=recording.max_episode_steps,
        check=recording.check,
        on_nan="raise" if recording.finite_rewards else "pass",
        bounded_actions=recording.bounded_actions,
    )
    recorded = [(leaf.shape[1:], leaf.dtype) for leaf in recording.actions]
    taken = [(leaf.shape, leaf.dtype) for leaf in pool.spec.action.leaves]
    if recording.num_steps and recorded != taken:
        pool.close()
        raise ArgumentError(f"{pool.spec.id} is not the env that was recorded: it takes other actions")
    return pool


def play(recording: Recording, pool: Pool) -> Iterator[Batch | None]:
    """Give the env of ``open_pool`` its commands one by one, and yield the row of each.

    Where the recording goes on with a reset, the env may fail, as it may have done then; that yields None.

    Raises:
        FaultError: If the env fails anywhere else.
        NotReset: If its episode ends where the recorded one was sent a further step, and autoreset is disabled.
    """
    for command, following in pairwise(chain(recording.commands(), [None])):
        if command is None:
            return
        try:
            row = _carry_out(command, pool)
        except FaultError:
            if following is None or not following.is_reset:
                raise
            row = None
        yield row


def _carry_out(command: Told, pool: Pool) -> Batch:
    if command.is_reset:
        return pool.reset(None if command.seed is None else [command.seed], command.options)
    return pool.step(pool.spec.action.unflatten(command.action))


def _look_for_nan(recording: Recording, pool: Pool) -> None:
    """Raise if a NaN ended the recording, in a pool that lets NaN pass or truncates the episode."""
    if recording.finite_rewards or recording.fault is None:
        return
    phase = recording.fault["phase"]
    for fault in NanWatch(pool.engine, "raise").faults(0, [0], [0] if phase == "reset" else []).values():
        error = fault.to_error()
        if _is_same(recording.fault, error):
            raise error


def _look_at_border(recording: Recording, row: Batch | None) -> None:
    """Raise if what ended the recording was that something in the last row could not leave its worker process."""
    if recording.fault is None or row is None:
        return
    last_obs, last_info = row.finals.get(0, (None, None))
    parts = {"info": dict(row.infos).get(0), "observation": row.obs, "final_info": last_info, "final_obs": last_obs}
    for path, part in parts.items():
        try:
            encode(part, path)
        except SpecError as refusal:
            error = fault_from(refusal, env_id=0, phase=recording.fault["phase"]).to_error()
            if _is_same(recording.fault, error):
                raise error from refusal


# ---------------------------------------------------------------------- making the env


def reason_against(origin: Origin) -> str | None:
    """Why an env cannot be made from its recording alone; None if it can."""
    if origin.lost:
        return f"a recording cannot hold all its arguments (missing: {', '.join(origin.lost)})"
    if origin.wrappers:
        return f"a recording cannot hold its wrappers ({', '.join(origin.wrappers)})"
    if origin.kind == "id" and origin.name not in gym.registry:
        return "its id is not registered here"
    if origin.kind == "callable" and _shipped(origin.name) is None:
        return "a recording names code, but does not run it"
    return None


def _maker(origin: Origin, factory: Any) -> tuple[Any, dict[str, Any]]:
    """What makes the env, and the arguments for it."""
    if factory is not None:
        return factory, origin.kwargs if _name(factory) == _own_name(origin.name) else {}
    if reason := reason_against(origin):
        raise ArgumentError(f"the env was {origin}, and {reason}: say what makes it")
    return (origin.name if origin.kind == "id" else _shipped(origin.name)), origin.kwargs


def _shipped(place: str) -> Any:
    """The compiled env at this place, if it is one of shoal's."""
    return next((task.load() for task in TASKS.values() if task.home == place), None)


def _name(factory: Any) -> str:
    if callable(factory):
        return _own_name(Origin.of(factory).name)
    return _own_name(getattr(factory, "id", factory))


def _own_name(place: str) -> str:
    """What a thing is called within its module, since a script that was run is imported under another name."""
    return place.rpartition(":")[2]


# ---------------------------------------------------------------------- hangs


@contextlib.contextmanager
def _alarm(timeout_s: float | None) -> Iterator[Callable[[float | None], None]]:
    """An alarm clock that raises where the program is when it rings; yields a function that winds it (0 stops it)."""
    if timeout_s is None:
        yield lambda seconds: None
        return

    def ring(signum: int, frame: Any) -> None:
        raise Hang(f"no answer after {timeout_s:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield lambda seconds: None if seconds is None else _wind(seconds)
    finally:
        _wind(0.0)
        signal.signal(signal.SIGALRM, before)


def _wind(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _told_as_hang(fault: FaultError | Hang) -> FaultError:
    """The error for a hang, if the alarm has rung; otherwise the fault as it is."""
    hang = fault.__cause__ if isinstance(fault, FaultError) else fault
    if isinstance(fault, FaultError) and not isinstance(hang, Hang):
        return fault
    where = fault.where if isinstance(fault, FaultError) else Where((0,), "step")
    trace = None if hang is None else hang.__traceback__
    # The innermost frame is the alarm's; the env hangs in the one before it.
    while trace is not None and trace.tb_next is not None and trace.tb_next.tb_next is not None:
        trace = trace.tb_next
    if trace is not None:
        trace.tb_next = None
    error = EnvTimeout(f"{where.phase} failed in {where}: {hang}", where, "".join(traceback.format_exception(hang)))
    error.__cause__ = hang
    return error


# ---------------------------------------------------------------------- judging


def judge(recording: Recording, steps: int, error: FaultError | None) -> Outcome:
    """Compare what a replay has found with what was recorded."""
    fault = recording.fault
    if error is None:
        return Outcome("no fault", steps, notes=() if fault is None else _reasons(recording))
    if fault is None:
        return Outcome("another fault", steps, error, ("no fault was recorded",))
    if not _is_same(fault, error):
        return Outcome("another fault", steps, error, (f"recorded: {summary_of(fault)}", *recording.gaps))
    notes = []
    if not isinstance(error, EnvTimeout) and _parts(summary_of(fault)) != _parts(_summary(error)):
        notes.append(f"its text was: {summary_of(fault)}")
    if steps != recording.num_steps:
        notes.append(f"it came after {steps} steps; recorded: after {recording.num_steps}")
    return Outcome("reproduced", steps, error, tuple(notes))


def _reasons(recording: Recording) -> tuple[str, ...]:
    return recording.gaps or (_UNKNOWN,)


def summary_of(fault: dict[str, Any]) -> str:
    """Type and text of the exception in ``info["fault"]``."""
    message: str = fault["message"]
    return message.partition(": ")[2] or message


def _summary(error: FaultError) -> str:
    cause = error.__cause__
    return str(error) if cause is None else "".join(traceback.format_exception_only(cause)).strip()


def _is_same(fault: dict[str, Any], error: FaultError) -> bool:
    """Whether kind and exception type match, and so does the text or, failing that, the line that raised it.

    Texts often contain what changes from run to run, such as an address or a process id.
    """
    if fault["kind"] != type(error).__name__:
        return False
    if isinstance(error, EnvTimeout):
        return True
    (recorded_type, recorded_text), (found_type, found_text) = _parts(summary_of(fault)), _parts(_summary(error))
    line = _last_line(fault["traceback"])
    is_there = line is not None and line == _last_line(error.remote_traceback)
    return recorded_type == found_type and (recorded_text == found_text or is_there)


def _parts(summary: str) -> tuple[str, str]:
    """The name of an exception, without its module, which depends on how the code was imported, and its text."""
    name, _, text = summary.partition(":")
    return name.rpartition(".")[2], text.strip()


def _last_line(text: str) -> tuple[str, str] | None:
    """File and line of the innermost frame of a traceback."""
    frames = _FRAME.findall(text)
    return (PurePath(frames[-1][0]).name, frames[-1][1]) if frames else None
