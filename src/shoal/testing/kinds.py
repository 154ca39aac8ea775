"""The kinds of fault, and for each the one small function that causes it.

*Acts* happen before the real call and mostly instead of it: raise, exit, die, hang, disturb. *Spoils* let the real call
happen and damage one part of what it returns: the observation, the reward, the flags or the info. A new fault is a new
member of `Fault` and a new entry in one of the tables at the end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

Place: TypeAlias = Literal["init", "reset", "step", "close"]
_Act: TypeAlias = "Callable[[_Host], object]"
_Spoil: TypeAlias = "tuple[str, Callable[[Any], Any]]"

BIG_INFO_BYTES = 50 * 2**20
LEAK_BYTES = 10 * 2**20
EXIT_CODE = 3
DROPPED = object()
"""Stands for a part of the result that is to be left out."""

_SPAM_LINES = 4096
_FOREVER_S = 3600


class Fault(StrEnum):
    """The kinds of fault; `FAULT_FAMILIES` sorts them. A plain string of the same value will do as well."""

    RAISE = "raise"
    RAISE_TWO_ARGS = "raise_two_args"
    RAISE_UNPICKLABLE = "raise_unpicklable"
    SYS_EXIT = "sys_exit"
    KEYBOARD_INTERRUPT = "keyboard_interrupt"
    EXIT = "exit"
    KILL = "kill"
    SEGV = "segv"
    BUS = "bus"
    ABORT = "abort"
    HANG = "hang"
    HANG_GIL = "hang_gil"
    SLOW = "slow"
    PRINT_SPAM = "print_spam"
    CLOSE_STDOUT = "close_stdout"
    LEAK_MEMORY = "leak_memory"
    LEAVE_THREAD = "leave_thread"
    LEAVE_CHILD = "leave_child"
    BAD_SHAPE = "bad_shape"
    SCALAR_OBS = "scalar_obs"
    NONE_OBS = "none_obs"
    LIST_OBS = "list_obs"
    BAD_DTYPE = "bad_dtype"
    COMPLEX_OBS = "complex_obs"
    STR_OBS = "str_obs"
    OVERFLOW = "overflow"
    NAN_OBS = "nan_obs"
    MISSING_KEY = "missing_key"
    EXTRA_KEY = "extra_key"
    BAD_NESTING = "bad_nesting"
    REWARD_NONE = "reward_none"
    REWARD_STR = "reward_str"
    REWARD_NAN = "reward_nan"
    REWARD_INF = "reward_inf"
    REWARD_ARRAY = "reward_array"
    FLAG_INT = "flag_int"
    FLAG_NONE = "flag_none"
    FOUR_TUPLE = "four_tuple"
    INFO_UNPICKLABLE = "info_unpicklable"
    INFO_LAMBDA = "info_lambda"
    INFO_BIG = "info_big"
    INFO_NONE = "info_none"


class InjectedFault(RuntimeError):
    """What "raise" raises."""


class TwoArgFault(RuntimeError):
    """What "raise_two_args" raises: pickles, but does not unpickle, since its class needs two arguments."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(f"injected fault {code}: {detail}")


class UnpicklableFault(RuntimeError):
    """What "raise_unpicklable" raises: does not pickle, since it holds a lock."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


_release = threading.Event()


def release_hangs() -> None:
    """Let every "hang" under way in this process return, late, as if nothing had happened."""
    global _release
    # A new event for the hangs to come: those under way hold the old one.
    held, _release = _release, threading.Event()
    held.set()


class _Host(Protocol):
    """What an act may know about the env it happens in."""

    delay_s: float
    leaked: list[bytearray]
    left_child: subprocess.Popen[bytes] | None

    @property
    def story(self) -> str: ...


def _raise(env: _Host) -> NoReturn:
    raise InjectedFault(env.story)


def _raise_two_args(env: _Host) -> NoReturn:
    raise TwoArgFault(EXIT_CODE, env.story)


def _raise_unpicklable(env: _Host) -> NoReturn:
    raise UnpicklableFault(env.story)


def _interrupt(env: _Host) -> NoReturn:
    raise KeyboardInterrupt(env.story)


def _kill(env: _Host) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    # The signal may take a moment to arrive, and the call must not return before it has.
    time.sleep(_FOREVER_S)


def _hang(env: _Host) -> None:
    release = _release
    while not release.wait(_FOREVER_S):
        pass


def _hang_gil(env: _Host) -> NoReturn:
    # PyDLL, unlike CDLL, keeps the interpreter lock during the call: no other Python thread of the process runs.
    libc = ctypes.PyDLL(None)
    while True:
        libc.sleep(_FOREVER_S)


def _print_spam(env: _Host) -> None:
    for fd, stream in ((1, sys.stdout), (2, sys.stderr)):
        for number in range(_SPAM_LINES):
            stream.write(f"{number} {env.story}\n")
        stream.flush()
        # C libraries write past Python's streams, so a protocol that only replaces those is not safe from them.
        os.write(fd, b"\x00\xff\n" * _SPAM_LINES)


def _close_stdout(env: _Host) -> None:
    with contextlib.suppress(OSError):
        os.close(1)


def _leak_memory(env: _Host) -> None:
    # Ones, not zeros: untouched zero pages take no memory.
    env.leaked.append(bytearray(b"\x01") * LEAK_BYTES)


def _leave_thread(env: _Host) -> None:
    threading.Thread(target=_hang, args=(env,), name="shoal-testing-left-thread", daemon=False).start()


def _leave_child(env: _Host) -> None:
    code = f"import time; time.sleep({_FOREVER_S})"
    null = subprocess.DEVNULL
    command = [sys.executable, "-S", "-c", code]
    env.left_child = subprocess.Popen(command, stdin=null, stdout=null, stderr=null)  # noqa: S603 - our own code


def _with_nan(obs: NDArray[Any]) -> NDArray[Any]:
    spoiled = obs.astype(np.result_type(obs.dtype, np.float16))
    spoiled.flat[0] = np.nan
    return spoiled


_ACT_FAMILIES: dict[str, dict[Fault, _Act]] = {
    "raise": {
        Fault.RAISE: _raise,
        Fault.RAISE_TWO_ARGS: _raise_two_args,
        Fault.RAISE_UNPICKLABLE: _raise_unpicklable,
    },
    "exit": {
        Fault.SYS_EXIT: lambda env: sys.exit(EXIT_CODE),
        Fault.KEYBOARD_INTERRUPT: _interrupt,
    },
    "die": {
        Fault.EXIT: lambda env: os._exit(EXIT_CODE),
        Fault.KILL: _kill,
        Fault.SEGV: lambda env: ctypes.string_at(0),
        Fault.BUS: lambda env: signal.raise_signal(signal.SIGBUS),
        Fault.ABORT: lambda env: os.abort(),
    },
    "hang": {
        Fault.HANG: _hang,
        Fault.HANG_GIL: _hang_gil,
    },
    "disturb": {
        Fault.SLOW: lambda env: time.sleep(env.delay_s),
        Fault.PRINT_SPAM: _print_spam,
        Fault.CLOSE_STDOUT: _close_stdout,
        Fault.LEAK_MEMORY: _leak_memory,
        Fault.LEAVE_THREAD: _leave_thread,
        Fault.LEAVE_CHILD: _leave_child,
    },
}

_SPOIL_FAMILIES: dict[str, dict[Fault, _Spoil]] = {
    "obs": {
        Fault.BAD_SHAPE: ("obs", lambda obs: np.append(obs, obs.flat[0])),
        Fault.SCALAR_OBS: ("obs", lambda obs: obs.dtype.type(7)),
        Fault.NONE_OBS: ("obs", lambda obs: None),
        Fault.LIST_OBS: ("obs", lambda obs: obs.tolist()),
        Fault.BAD_DTYPE: ("obs", lambda obs: obs.astype(object)),
        Fault.COMPLEX_OBS: ("obs", lambda obs: obs.astype(complex)),
        Fault.STR_OBS: ("obs", lambda obs: obs.astype(str)),
        Fault.OVERFLOW: ("obs", lambda obs: np.full(obs.shape, 1.5e300)),
        Fault.NAN_OBS: ("obs", _with_nan),
    },
    "dict_obs": {
        Fault.MISSING_KEY: ("obs", lambda obs: {"step": obs["step"]}),
        Fault.EXTRA_KEY: ("obs", lambda obs: {**obs, "extra": obs["step"]}),
        Fault.BAD_NESTING: ("obs", lambda obs: {**obs, "row": {"inner": obs["row"]}}),
    },
    "reward": {
        Fault.REWARD_NONE: ("reward", lambda reward: None),
        Fault.REWARD_STR: ("reward", str),
        Fault.REWARD_NAN: ("reward", lambda reward: float("nan")),
        Fault.REWARD_INF: ("reward", lambda reward: float("inf")),
        Fault.REWARD_ARRAY: ("reward", lambda reward: np.array([reward])),
    },
    "flags": {
        Fault.FLAG_INT: ("terminated", int),
        Fault.FLAG_NONE: ("terminated", lambda flag: None),
        Fault.FOUR_TUPLE: ("truncated", lambda flag: DROPPED),
    },
    "info": {
        Fault.INFO_UNPICKLABLE: ("info", lambda info: {**info, "lock": threading.Lock()}),
        Fault.INFO_LAMBDA: ("info", lambda info: {**info, "lambda": lambda: None}),
        Fault.INFO_BIG: ("info", lambda info: {**info, "blob": bytes(BIG_INFO_BYTES)}),
        Fault.INFO_NONE: ("info", lambda info: None),
    },
}

ACTS: Mapping[Fault, _Act] = {kind: act for acts in _ACT_FAMILIES.values() for kind, act in acts.items()}
SPOILS: Mapping[Fault, _Spoil] = {kind: spoil for spoils in _SPOIL_FAMILIES.values() for kind, spoil in spoils.items()}

FAULT_FAMILIES: Mapping[str, tuple[Fault, ...]] = MappingProxyType(
    {
        **{name: tuple(acts) for name, acts in _ACT_FAMILIES.items()},
        **{name: tuple(spoils) for name, spoils in _SPOIL_FAMILIES.items()},
    }
)
"""The faults by what they do: raise, exit, die, hang, disturb, or spoil obs, dict_obs, reward, flags, info."""


def fault_places(fault: Fault | str) -> tuple[Place, ...]:
    """The methods in which a fault can happen: all for an act, the ones that return that part for a spoil."""
    if Fault(fault) in ACTS:
        return ("init", "reset", "step", "close")
    part, _ = SPOILS[Fault(fault)]
    return ("reset", "step") if part in ("obs", "info") else ("step",)
