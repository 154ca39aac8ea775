"""The backends of AsyncEnvPool: threads of this process, and worker processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.build import make_pool
from shoal.errors import ArgumentError, FaultError
from shoal.faces.torchrl.async_pool.pool import AsyncEnvPool
from shoal.faces.torchrl.batched.remote import itself
from shoal.faces.torchrl.batched.slots import start_method_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.adapters.tensordict_env import Crossing
    from shoal.pool import Pool


class ThreadingAsyncEnvPool(AsyncEnvPool):
    """An ``AsyncEnvPool`` whose envs are in threads of this process; what an env raises is raised as it is."""

    _engine = "thread"

    def _make_pool(self, crossings: Sequence[Crossing], has_loose: bool) -> Pool:
        if self._affinity is not None:
            raise ArgumentError("worker_affinity: threads have no CPU of their own; use backend='multiprocessing'")
        return _pool(self, crossings, engine="thread")

    def _translated(self, error: FaultError) -> BaseException:
        cause = error.__cause__
        if cause is None:
            return super()._translated(error)
        if not any(note.startswith("In env ") for note in getattr(cause, "__notes__", ())):
            cause.add_note(f"In env {error.env_id} of the pool")
        return cause

    @property
    def backend(self) -> str:
        """``"threading"``."""
        return "threading"

    @property
    def envs(self) -> list[Any]:
        """The envs themselves."""
        return self._running().apply(self._ids, itself, [()] * len(self._ids))


class ProcessorAsyncEnvPool(AsyncEnvPool):
    """An ``AsyncEnvPool`` whose envs are in worker processes, ``envs_per_worker`` in each."""

    _engine = "process"

    def _make_pool(self, crossings: Sequence[Crossing], has_loose: bool) -> Pool:
        num_workers = -(-self.num_envs // self.envs_per_worker)
        return _pool(
            self,
            crossings,
            engine="process",
            num_workers=num_workers,
            threads_per_worker=self.envs_per_worker,
            start_method=start_method_of(None),
            affinity=_cpus(self._affinity, num_workers),
            allow_pickle=has_loose,
        )

    @property
    def backend(self) -> str:
        """``"multiprocessing"``."""
        return "multiprocessing"


def _pool(owner: AsyncEnvPool, crossings: Sequence[Crossing], **options: Any) -> Pool:
    patience = owner._patience_s
    return make_pool(
        owner._factories(crossings),
        # Rows are wanted as soon as each env is ready.
        batch_size=1,
        autoreset="disabled",
        on_nan="pass",
        construct_timeout=max(patience, 60.0),
        reset_timeout=patience,
        step_timeout=patience,
        bounded_actions=False,
        name=owner._metas[0].env_str.partition("(")[0] or "EnvBase",
        **options,
    )


def _cpus(affinity: Any, num_workers: int) -> list[int] | None:
    """One CPU per worker, from numbers, sets of one number, or a function that maps a worker's number to either."""
    if affinity is None:
        return None
    told = [affinity(worker) for worker in range(num_workers)] if callable(affinity) else list(affinity)
    if len(told) != num_workers:
        raise ArgumentError(f"worker_affinity: expected one CPU for each of {num_workers} workers, got {len(told)}")
    each = [[cpus] if isinstance(cpus, int) else list(cpus) for cpus in told]
    if any(len(cpus) != 1 for cpus in each):
        raise ArgumentError(f"worker_affinity: expected one CPU per worker, got {affinity!r}")
    return [cpus[0] for cpus in each]
