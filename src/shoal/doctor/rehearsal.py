"""A first try of an env in a worker process, where a crash or a hang does no harm to the caller."""

from __future__ import annotations

import os
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from shoal.build import make_pool, own_recipe
from shoal.doctor.rows import Record, record
from shoal.errors import EnvTimeout, FaultError, WorkerDied
from shoal.recipes import Recipe, recipe_for

if TYPE_CHECKING:
    from shoal.spec import EnvSpec

STEPS = 200
_LONGEST_S = 1.0
_HOUSE = os.path.dirname(os.path.dirname(__file__))


def recipe_of(env: Any) -> Recipe:
    """How one env of this kind is built to run as Python.

    Raises:
        ArgumentError: If no env can be made from ``env``.
    """
    return own_recipe(env, "serial", 1, None, None, None) or recipe_for(env, 1)


@dataclass
class Rehearsal:
    """What became of an env in a worker.

    Attributes:
        spec: The env's spec, if it could be built.
        rows: What it returned, if all went well.
        ready_s: Time until it was built, with its process.
        error: What went wrong, if anything did.
    """

    spec: EnvSpec | None = None
    rows: Record | None = None
    ready_s: float = 0.0
    error: Exception | None = None

    @property
    def danger(self) -> FaultError | None:
        """The fault that would end or hang the caller's process too; an exception of the env's does neither."""
        return self.error if isinstance(self.error, FaultError) and is_dangerous(self.error) else None


def rehearse(env: Any, steps: int = STEPS) -> Rehearsal:
    """Build an env in a worker and play it there with random actions, for so many steps or about a second.

    Example:
        >>> from shoal.doctor.rehearsal import rehearse
        >>> len(rehearse("CartPole-v1", 10).rows)
        11
    """
    rehearsal, start = Rehearsal(), perf_counter()
    try:
        with make_pool(env, 1, engine="process", num_workers=1) as pool:
            rehearsal.ready_s = perf_counter() - start
            rehearsal.spec = pool.spec
            rehearsal.rows = record([pool], steps, _LONGEST_S)[0]
    except Exception as error:
        rehearsal.error = error
    return rehearsal


def is_dangerous(error: FaultError) -> bool:
    """Whether the process of an env ended or stood still."""
    # An env that cannot be built has a cause of its own for that.
    return any(isinstance(fault, (EnvTimeout, WorkerDied)) for fault in (error, error.__cause__))


def raised_by_env(error: FaultError) -> BaseException | None:
    """The exception that the env itself raised, if that is what happened and it could be carried over."""
    return None if isinstance(error.__cause__, FaultError) else error.__cause__


def place_in_env(error: FaultError) -> str:
    """Where in the env's own code it happened, after a blank; empty if the traceback does not say."""
    traceback = error.remote_traceback
    lines = [line.strip() for line in traceback.splitlines() if line.strip().startswith('File "')]
    own = [line for line in lines if _HOUSE not in line]
    # The stack of a hung process comes in reverse order.
    last = own[:1] if "most recent call first" in traceback else own[-1:]
    return f" ({last[0]})" if last else ""
