"""An env that misbehaves once, in a chosen way, at a chosen call.

    FaultEnv("kill", where="step", at=3)        the third step ends the process with SIGKILL

`Fault` lists the ways, `FAULT_FAMILIES` sorts them. Faults that end or freeze the process do just that to the process
the env runs in: use them with envs in other processes. A "hang" in a thread of your own process can be ended with
`release_hangs`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from gymnasium import spaces

from shoal.testing.envs import CountingEnv
from shoal.testing.kinds import (
    ACTS,
    DROPPED,
    FAULT_FAMILIES,
    SPOILS,
    Fault,
    InjectedFault,
    Place,
    TwoArgFault,
    UnpicklableFault,
    fault_places,
    release_hangs,
)

if TYPE_CHECKING:
    import subprocess

__all__ = [
    "FAULT_FAMILIES",
    "Fault",
    "FaultEnv",
    "InjectedFault",
    "Place",
    "TwoArgFault",
    "UnpicklableFault",
    "fault_places",
    "release_hangs",
]


class FaultEnv(CountingEnv):
    """A `CountingEnv` with one fault in it.

    Calls are counted over the env's life, from 1, whatever the seeds. The faults that need a particular space bring
    it: for "overflow" observations are float32, for "missing_key", "extra_key" and "bad_nesting" they are
    `{"row": <the row>, "step": <int>}`.

    Args:
        fault: What goes wrong.
        where: In which method.
        at: In which call of it. "init" and "close" happen once, so there the first call counts whatever `at` says.
        once_file: Fault only if this file does not exist, and create it first, so that of an env, its copies and its
            restarts, only one faults.
        delay_s: How long "slow" sleeps.
        repeat: Whether every call from `at` on faults, rather than that one alone.
        **counting: Settings of `CountingEnv`.

    Attributes:
        leaked: What "leak_memory" holds on to, 10 MiB a time.
        left_child: The process "leave_child" started; it sleeps for an hour.

    Raises:
        ValueError: There is no such fault, or it cannot happen there: a reward can be bad only in a step.
    """

    def __init__(
        self,
        fault: Fault | str = Fault.RAISE,
        *,
        where: Place = "step",
        at: int = 3,
        once_file: str | os.PathLike[str] | None = None,
        delay_s: float = 0.1,
        repeat: bool = False,
        **counting: Any,
    ) -> None:
        _check_choice("fault", fault, tuple(kind.value for kind in Fault))
        _check_choice(f"where of {fault!s}", where, fault_places(fault))
        self.fault = Fault(fault)
        if self.fault is Fault.OVERFLOW:
            counting.setdefault("dtype", np.float32)
        super().__init__(**counting)
        self.where = where
        self.at = at if where in ("reset", "step") else 1
        self.once_file = once_file
        self.delay_s = delay_s
        self.repeat = repeat
        self.leaked: list[bytearray] = []
        self.left_child: subprocess.Popen[bytes] | None = None
        self._calls = dict.fromkeys(get_args(Place), 0)
        self._has_dict_obs = self.fault in FAULT_FAMILIES["dict_obs"]
        if self._has_dict_obs:
            self.observation_space = spaces.Dict({"row": self._row_layout, "step": _step_space()})
        self._call("init")

    @property
    def story(self) -> str:
        """Where the fault is, in words; the text of the exceptions it raises."""
        return f"injected fault in {self.where}, call {self._calls[self.where]} of env {self.tag}, pid {os.getpid()}"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start the next episode, or fault."""
        is_due = self._call("reset")
        obs, info = super().reset(seed=seed, options=options)
        return self._finish({"obs": obs, "info": info}, is_due)

    def step(self, action: Any) -> Any:
        """Count one step, or fault."""
        is_due = self._call("step")
        names = ("obs", "reward", "terminated", "truncated", "info")
        return self._finish(dict(zip(names, super().step(action), strict=True)), is_due)

    def close(self) -> None:
        """Note that the env was closed, or fault."""
        self._call("close")
        super().close()

    def _call(self, place: Place) -> bool:
        """Count a call, do the act if it is due, and say whether the fault was due."""
        self._calls[place] += 1
        calls = self._calls[place]
        is_due = place == self.where and (calls == self.at or (self.repeat and calls > self.at))
        is_due = is_due and (self.once_file is None or _claim(self.once_file))
        if is_due and self.fault in ACTS:
            ACTS[self.fault](self)
        return is_due

    def _finish(self, parts: dict[str, Any], is_due: bool) -> tuple[Any, ...]:
        if self._has_dict_obs:
            parts["obs"] = {"row": parts["obs"], "step": np.array(self._step, dtype=np.int64)}
        if is_due and self.fault in SPOILS:
            name, spoil = SPOILS[self.fault]
            parts[name] = spoil(parts[name])
        return tuple(part for part in parts.values() if part is not DROPPED)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}")


def _step_space() -> spaces.Box:
    return spaces.Box(0, np.iinfo(np.int64).max, (), np.int64)


def _claim(path: str | os.PathLike[str]) -> bool:
    """Create the file; False if it was there already. Exclusive creation lets one of many processes win."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True
