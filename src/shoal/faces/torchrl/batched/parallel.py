"""ParallelEnv: several envs in worker processes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shoal.adapters.tensordict_env import PACE
from shoal.build import make_pool, warm_up
from shoal.errors import StateError, TensorEnvError
from shoal.faces.torchrl.batched.attributes import RemoteAttribute
from shoal.faces.torchrl.batched.base import BatchedEnv
from shoal.faces.torchrl.batched.crossing import are_alike
from shoal.faces.torchrl.batched.hosts import Host, OnPool
from shoal.faces.torchrl.batched.probing import look_in_worker
from shoal.faces.torchrl.batched.serial import SerialEnv
from shoal.faces.torchrl.batched.slots import MakeSlot, filters_warnings, patience_s, start_method_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.adapters.tensordict_env import Crossing
    from shoal.faces.torchrl.batched.members import Members
    from shoal.faces.torchrl.env_base import EnvBase
    from shoal.faces.torchrl.metadata import EnvMetaData
    from shoal.pool import Pool
    from shoal.stats import PoolStats


class ParallelEnv(BatchedEnv):
    """Several envs as one, run in worker processes on a shoal pool.

    ``num_workers`` is the number of envs. How many processes they are spread over is the pool's choice, unless
    ``num_processes`` says: by default as many as there are cores and no more, since envs that compute gain nothing
    from taking turns on a core. Give envs that mostly wait (for a simulator, a network) one process each.

    Args:
        num_workers: How many envs.
        create_env_fn: Makes an env; a list has one function per env, and their envs may differ.
        num_processes: How many worker processes.
        step_timeout: Seconds that an env may take for a step or a reset; by default what ``BATCHED_PIPE_TIMEOUT`` in
            the environment says, or 10,000.
        auto_wrap_envs: Accepted for compatibility: functions of every kind can be sent to workers.
        **options: See ``BatchedEnv``. ``mp_start_method`` may be ``"fork"`` (the default), which turns to a fork server
            while other threads run in this process or a GPU is in use; ``"forkserver"``; or ``"spawn"``.

    Example:
        >>> from shoal.faces.torchrl import GymEnv, ParallelEnv
        >>> env = ParallelEnv(4, lambda: GymEnv("CartPole-v1"))
        >>> env.batch_size
        torch.Size([4])
        >>> env.rollout(5)["next", "reward"].shape
        torch.Size([4, 5, 1])
        >>> env.close()
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A ``SerialEnv`` for one env, if that was asked for."""
        if kwargs.get("serial_for_single") and 1 in (*args[:1], kwargs.get("num_workers")):
            own = ("num_processes", "step_timeout", "auto_wrap_envs", "mp_start_method", "metadata_from_workers")
            return SerialEnv(*args, **{name: value for name, value in kwargs.items() if name not in own})
        return super().__new__(cls)

    def __init__(
        self,
        num_workers: int,
        create_env_fn: Any,
        *,
        num_processes: int | None = None,
        step_timeout: float | None = None,
        auto_wrap_envs: bool = True,
        **options: Any,
    ) -> None:
        # If the workers will come from a fork server, it loads torch while this process looks at the specs.
        warm_up(start_method_of(options.get("mp_start_method")))
        super().__init__(num_workers, create_env_fn, **options)
        self.__dict__["_num_processes"] = num_processes
        self.__dict__["_patience_s"] = step_timeout

    def _look_at(self, members: Members, from_workers: bool, options: dict[str, Any]) -> list[EnvMetaData]:
        if not from_workers:
            return members.metadata()
        if options["use_buffers"]:
            raise TensorEnvError("use_buffers: with metadata_from_workers nothing can be laid out before workers start")
        metas = look_in_worker(members, options["mp_start_method"])
        if not are_alike(metas):
            raise TensorEnvError(
                "metadata_from_workers: the envs differ in keys, shapes or dtypes; make them of one kind"
            )
        self.__dict__["_starts_at_once"] = True
        return metas

    def _after_init(self) -> EnvBase:
        if self.__dict__.get("_starts_at_once"):
            self.start()
        return self

    def _open(self) -> Host:
        all_loose = self._options["use_buffers"] is False
        stack = "as_alike" if self._are_alike else "lazy"
        return OnPool(self._make_pool, self._metas, self.device, all_loose=all_loose, stack=stack)

    def _make_pool(self, crossings: Sequence[Crossing], has_loose: bool) -> Pool:
        options, members = self._options, self._members
        is_silent = filters_warnings()
        factories = [
            MakeSlot(maker, kwargs, crossing, options["num_sub_threads"], is_silent)
            for maker, kwargs, crossing in zip(members.makers, members.kwargs, crossings, strict=True)
        ]
        patience = patience_s() if self._patience_s is None else self._patience_s
        return make_pool(
            factories,
            engine="process",
            num_workers=self._num_processes,
            autoreset="disabled",
            start_method=start_method_of(options["mp_start_method"]),
            on_nan="pass",
            allow_pickle=has_loose,
            construct_timeout=max(patience, 60.0),
            reset_timeout=patience,
            step_timeout=patience,
            close_timeout=options["shutdown_timeout"],
            bounded_actions=False,
            name=self._metas[0].env_str.partition("(")[0] or "EnvBase",
        )

    def _attributes(self, ids: Sequence[int], name: str) -> Any:
        return RemoteAttribute(self._running, ids, (name,))

    def stats(self) -> PoolStats:
        """What the pool has done so far; ``engine_reason`` says whether the processes pay off, and if not, why.

        Raises:
            StateError: If the envs have not been started.
        """
        if self.is_closed:
            raise StateError("stats: the envs have not been started")
        pool = self._running().pool  # type: ignore[attr-defined]
        stats: PoolStats = pool.stats()
        paces = pool.get_attr(PACE)
        steps = sum(count for count, _ in paces)
        if not steps or stats.batches < 2:
            return stats
        step_s = sum(seconds for _, seconds in paces) / steps
        batch_s = (stats.waiting_s + stats.handling_s) / stats.batches
        return replace(stats, engine_reason=verdict(step_s, batch_s, steps / max(1, stats.batches - 1)))


def verdict(step_s: float, batch_s: float, rows: float) -> str:
    """Whether worker processes are faster than one env after another, in words and figures.

    Args:
        step_s: Seconds that a step of one env takes.
        batch_s: Seconds that a step of all envs takes.
        rows: How many envs that is, on average.

    Example:
        >>> verdict(500e-6, 1.2e-3, 8)
        'a step of an env takes 500 µs, so 8 in a row would take 4000 µs: worker processes did it in 1200 µs'
    """
    in_a_row_s = step_s * rows
    told = f"a step of an env takes {step_s * 1e6:.0f} µs, so {rows:.0f} in a row would take {in_a_row_s * 1e6:.0f} µs"
    if batch_s < in_a_row_s:
        return f"{told}: worker processes did it in {batch_s * 1e6:.0f} µs"
    return (
        f"{told}, and worker processes took {batch_s * 1e6:.0f} µs: waking them costs more than they save, "
        "so a SerialEnv would be faster"
    )
