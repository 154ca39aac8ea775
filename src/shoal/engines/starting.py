"""What all engines do when they start: one spec for all envs, one error for all that failed, nothing left behind."""

from __future__ import annotations

import contextlib
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shoal.errors import EnvConstructError, Where
from shoal.spec import SpaceTree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.engines.base import EngineConfig
    from shoal.faults import Fault
    from shoal.spec import EnvSpec


def common_spec(specs: dict[int, EnvSpec], worker_of: Callable[[int], int | None]) -> EnvSpec:
    """The spec that all envs share.

    Raises:
        EnvConstructError: If one differs, saying which and how.
    """
    reference = specs[min(specs)]
    for env_id in sorted(specs):
        difference = reference.difference(specs[env_id])
        if difference:
            raise EnvConstructError(
                f"all envs of a pool must have the same spaces, but env {env_id} differs from env {min(specs)}: "
                f"{difference}",
                Where((env_id,), "construct", worker_of(env_id)),
            )
    # With its own copy of the spaces: sampling from a pool's must not use up the numbers that an env would have drawn.
    return replace(
        reference,
        observation=SpaceTree(deepcopy(reference.observation.space), "observation"),
        action=SpaceTree(deepcopy(reference.action.space), "action"),
    )


def construction_error(faults: Sequence[Fault]) -> EnvConstructError:
    """One error for everything that failed while the envs were built; the first fault is its cause."""
    first, *_ = ordered = sorted(faults, key=lambda fault: fault.where.env_ids)
    ids = tuple(i for fault in ordered for i in fault.where.env_ids)
    alike: dict[tuple[str, int | None], Where] = {}
    for fault in ordered:
        key = fault.summary, fault.where.worker
        before = alike[key].env_ids if key in alike else ()
        alike[key] = replace(fault.where, env_ids=before + fault.where.env_ids)
    reasons = [f"{where}: {summary}" for (summary, _), where in alike.items()]
    error = EnvConstructError(
        f"{len(ids)} env(s) could not be built: {'; '.join(reasons[:8])}"
        + (f"; and {len(reasons) - 8} more reasons" if len(reasons) > 8 else ""),
        Where(ids, "construct", first.where.worker, first.where.pid),
        first.traceback,
    )
    error.__cause__ = first.to_error() if first.cause is None else first.cause
    return error


def spared(config: EngineConfig, faults: Sequence[Fault]) -> dict[int, Fault]:
    """The envs that a pool starts without, and their faults.

    Raises:
        EnvConstructError: If the pool may not start without them, or would have no env left.
    """
    missing = {i: fault for fault in faults for i in fault.where.env_ids}
    if missing and not (config.spares_failed_builds and len(missing) < config.num_envs):
        raise construction_error(faults)
    return missing


@contextlib.contextmanager
def closing_on_error(close: Callable[[], None]) -> Any:
    """Run ``close`` if the block fails: a start that fails leaves nothing behind."""
    try:
        yield
    except BaseException:
        close()
        raise
