"""Every exception that shoal raises.

    ShoalError
    ├── SpecError             an env broke its declared contract (spaces, reward, flags, step tuple)
    │   └── EnvCheckFailed    an env breaks a convention of DI-engine's dialect
    ├── ArgumentError         an argument of a call makes no sense (seed, options, batch size, engine name)
    │   ├── WrongSetting      a setting makes no sense, where DI-engine or EnvPool would fail an assertion
    │   │   ├── UnknownKind   nothing is registered under this name
    │   │   └── UnknownTask   no task has this id
    │   ├── MissingSetting    a config of DI-engine's dialect lacks a key
    │   ├── WrongType         an argument has the wrong type, or an unknown name
    │   ├── WrongSeed         what was given as a seed is not one
    │   ├── WrongMask         what was given as a mask of envs is not one
    │   └── UnknownEnv        a manager has no env with this id
    ├── ActionError           what was sent cannot be an action for those envs; nothing has moved
    │   ├── WrongDtype        an array has another dtype than its spec, where nothing is cast
    │   ├── WrongShape        an array has another shape than its spec
    │   ├── MissingAction     a dict of actions lacks a key
    │   ├── WrongActionType   an action has a type that an env of DI-engine's dialect does not accept
    │   └── AgentActionError  an agent of BBRL's dialect found actions in the workspace that no env can take
    ├── WorkspaceError        a workspace or an agent of BBRL's dialect was asked for something it cannot give
    │   └── UnknownVariable   a workspace has no variable of this name
    ├── TensorEnvError        a TensorDict or a spec does not fit an env of TorchRL's dialect
    ├── StateError            the call does not fit the state of the pool
    │   ├── ClosedPool        the pool is closed
    │   ├── BusyPool          another thread is inside the pool
    │   ├── NotReset          an env was stepped before its reset, or after its episode ended without autoreset
    │   ├── ManagerState      a manager of DI-engine's dialect is closed, or one of its envs is not running
    │   └── NothingInFlight   recv was called, but nothing was sent
    ├── RecvTimeout           recv(timeout=...) ran out; nothing is lost, call recv again
    ├── FaultError            an env or its worker failed
    │   ├── EnvConstructError
    │   ├── EnvResetError
    │   ├── EnvStepError
    │   ├── EnvCallError      call, get_attr, set_attr or render failed inside an env
    │   │   └── MissingAttribute  the env has no such attribute, or its own code ran into a missing one
    │   ├── EnvTimeout        an env did not answer before its deadline
    │   └── WorkerDied        the process that ran the env is gone
    ├── PolicyFailed          the policy of a command raised an exception
    ├── ShippingError         an env factory cannot be sent to a worker
    ├── ResourceError         the machine cannot give what the pool needs
    └── BackendUnavailable    an optional dependency is missing
        └── XlaUnavailable    ... for EnvPool's xla()

Where Python has a built-in class for the same idea, the shoal class derives from it too, so that
``except ValueError`` or ``except TimeoutError`` in existing code keeps working.

    >>> import shoal
    >>> try:
    ...     shoal.make_vec("CartPole-v1", num_envs=0)
    ... except shoal.errors.ArgumentError as error:
    ...     print(error)
    num_envs: expected an int of at least 1, got 0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class ShoalError(Exception):
    """Base class of all errors raised by shoal."""


class SpecError(ShoalError, ValueError):
    """An env returned something that its spaces or the step contract do not allow."""


class EnvCheckFailed(SpecError, AssertionError):
    """An env breaks a convention of DI-engine's dialect."""


class ArgumentError(ShoalError, ValueError):
    """An argument of a call makes no sense."""


class WrongSetting(ArgumentError, AssertionError):
    """Settings of a manager in DI-engine's dialect, or of a pool in EnvPool's, make no sense."""


class UnknownKind(WrongSetting, KeyError):
    """Nothing is registered under this name."""

    __str__ = Exception.__str__  # a KeyError shows its text as a repr


class MissingSetting(ArgumentError, AttributeError):
    """A config of DI-engine's dialect lacks a key."""


class WrongType(ArgumentError, TypeError):
    """An argument has the wrong type, or an unknown name."""


class WrongSeed(ArgumentError, TypeError):
    """What was given as a seed is not one."""


class WrongMask(ArgumentError, TypeError):
    """What was given as a mask of envs is not one."""


class UnknownEnv(ArgumentError, KeyError, RuntimeError):
    """A manager has no env with this id."""

    __str__ = Exception.__str__  # a KeyError shows its text as a repr


class UnknownTask(WrongSetting, KeyError):
    """No task has this id."""

    __str__ = Exception.__str__  # a KeyError shows its text as a repr


class ActionError(ShoalError, ValueError):
    """What was sent cannot be an action for those envs; raised before any env moves."""


class WrongDtype(ActionError, RuntimeError):
    """An array in a dict of actions has another dtype than its spec."""


class WrongShape(ActionError, RuntimeError):
    """An array of actions has another shape than its spec."""


class MissingAction(ActionError, KeyError):
    """A dict of actions, or a TensorDict, lacks a key."""

    __str__ = Exception.__str__  # a KeyError shows its text as a repr


class WrongActionType(ActionError, TypeError):
    """An action has a type that an env of DI-engine's dialect does not accept."""


class AgentActionError(ActionError, AssertionError):
    """The actions that an agent found in its workspace do not fit its envs; no env has moved."""


class WorkspaceError(ShoalError, AssertionError):
    """A workspace or an agent of BBRL's dialect was asked for something it cannot give."""


class UnknownVariable(WorkspaceError, KeyError):
    """A workspace has no variable of this name."""

    __str__ = Exception.__str__  # a KeyError shows its text as a repr


class TensorEnvError(ShoalError, RuntimeError):
    """A TensorDict or a spec does not fit an env of TorchRL's dialect, given to the env or returned by it."""


class StateError(ShoalError, RuntimeError):
    """The call does not fit the state of the pool."""


class ClosedPool(StateError):
    """The pool is closed."""


class BusyPool(StateError):
    """Another thread is inside the pool: one pool serves one thread at a time."""


class NotReset(StateError):
    """An env was stepped before its first reset, or past the end of its episode without autoreset."""


class ManagerState(StateError, AssertionError):
    """A manager of DI-engine's dialect is closed or open when it must not be, or one of its envs is not running."""


class NothingInFlight(StateError):
    """``recv`` was called, but nothing was sent whose result could arrive."""


class RecvTimeout(ShoalError, TimeoutError):
    """``recv`` ran into its own ``timeout``; nothing is lost, a later ``recv`` returns the rows."""


class PolicyFailed(ShoalError):
    """The policy of a command raised an exception, which is the cause of this one."""


class ShippingError(ShoalError, TypeError):
    """An env factory, or a value meant for an env, cannot be sent to a worker process."""


class ResourceError(ShoalError, OSError):
    """The machine cannot give what the pool needs (memory, file descriptors, processes)."""


class BackendUnavailable(ShoalError, ImportError):
    """A feature needs an optional dependency that is not installed."""


class XlaUnavailable(BackendUnavailable, RuntimeError):
    """``xla()`` needs JAX, which is not installed."""


@dataclass(frozen=True, slots=True)
class Where:
    """The place of a fault: which env, in which worker, doing what.

    Attributes:
        env_ids: The envs concerned: usually one, or all envs of a worker that died.
        phase: ``"construct"``, ``"reset"``, ``"step"``, ``"call"`` or ``"close"``.
        worker: Index of the worker, or None if the env runs in the caller's thread.
        pid: Process id of the worker.
        episode_step: Steps the env had taken in its episode.
        seed: The last seed the env was reset with, if any.
        incarnation: How often the env had been built anew.
    """

    env_ids: tuple[int, ...]
    phase: str
    worker: int | None = None
    pid: int | None = None
    episode_step: int | None = None
    seed: int | None = None
    incarnation: int = 0

    def __str__(self) -> str:
        """The place in one line: ``env 7, worker 2, pid 4121, step 318``."""
        ids = list(self.env_ids)
        parts = [f"env {ids[0]}" if len(ids) == 1 else f"envs {_ranges(ids)}"]
        parts += [
            f"{name} {value}"
            for name, value in (
                ("worker", self.worker),
                ("pid", self.pid),
                ("step", self.episode_step),
                ("seed", self.seed),
                ("incarnation", self.incarnation or None),
            )
            if value is not None
        ]
        return ", ".join(parts)


class FaultError(ShoalError, RuntimeError):
    """An env or its worker failed: ``where`` says which, ``remote_traceback`` is the traceback from its side.

    If the original exception could be carried over, it is the ``__cause__``.
    """

    def __init__(self, message: str, where: Where, remote_traceback: str = "") -> None:
        super().__init__(message)
        self.where = where
        self.remote_traceback = remote_traceback
        if remote_traceback:
            self.add_note("In the env:\n" + remote_traceback.rstrip())

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.where, self.remote_traceback)

    @property
    def env_id(self) -> int:
        """The env that failed (the first one, if a worker took several with it)."""
        return self.where.env_ids[0]

    @property
    def env_ids(self) -> tuple[int, ...]:
        """All envs concerned."""
        return self.where.env_ids


class EnvConstructError(FaultError):
    """An env could not be built."""


class EnvResetError(FaultError):
    """``reset`` failed inside an env."""


class EnvStepError(FaultError):
    """``step`` failed inside an env."""


class EnvCallError(FaultError):
    """A method call or attribute access failed inside an env."""


class MissingAttribute(EnvCallError, AttributeError):
    """A method call or attribute access failed inside an env, because there is no such attribute."""


class EnvTimeout(FaultError, TimeoutError):
    """An env did not answer before its deadline."""


class WorkerDied(FaultError):
    """The process that ran these envs is gone."""


FAULT_OF_PHASE: dict[str, type[FaultError]] = {
    "construct": EnvConstructError,
    "reset": EnvResetError,
    "step": EnvStepError,
    "call": EnvCallError,
    "close": FaultError,
}


def _ranges(ids: Sequence[int]) -> str:
    """``[0, 1, 2, 5]`` as ``0-2, 5``: error texts stay short with hundreds of envs."""
    runs: list[list[int]] = []
    for i in sorted(ids):
        if runs and i == runs[-1][1] + 1:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
