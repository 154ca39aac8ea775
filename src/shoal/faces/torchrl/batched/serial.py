"""SerialEnv: several envs one after another, in this thread."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from shoal.errors import ArgumentError
from shoal.faces.torchrl.batched.array_host import array_host
from shoal.faces.torchrl.batched.attributes import attributes_here
from shoal.faces.torchrl.batched.base import BatchedEnv
from shoal.faces.torchrl.batched.crossing import crossings_of
from shoal.faces.torchrl.batched.hosts import Host, InProcess

if TYPE_CHECKING:
    from collections.abc import Sequence


class SerialEnv(BatchedEnv):
    """Several envs as one, run one after another in the caller's thread. Gradients flow through it.

    Args:
        num_workers: How many envs.
        create_env_fn: Makes an env; a list has one function per env, and their envs may differ.
        **options: See ``BatchedEnv``.

    Example:
        >>> from shoal.faces.torchrl import GymEnv, SerialEnv
        >>> env = SerialEnv(2, lambda: GymEnv("CartPole-v1"))
        >>> env.rollout(5)["observation"].shape
        torch.Size([2, 5, 4])
        >>> env.close()
    """

    def __init__(self, num_workers: int, create_env_fn: Any, **options: Any) -> None:
        if options.get("mp_start_method") is not None:
            raise _NoProcesses("mp_start_method: a SerialEnv starts no processes; use ParallelEnv")
        super().__init__(num_workers, create_env_fn, **options)

    def _open(self) -> Host:
        envs: list[Any] = []
        for place in range(self.num_workers):
            env = self._members.build(place)
            # A function may hand out one env again and again, which cannot be in two states.
            envs.append(deepcopy(env) if any(env is other for other in envs) else env)
        crossings = crossings_of(self._metas)
        quick = array_host(envs, crossings, self.device)
        if quick is not None:
            return quick
        return InProcess(envs, self.device, is_one_kind=self._are_alike)

    def _attributes(self, ids: Sequence[int], name: str) -> Any:
        host = self._running()
        return attributes_here([host.envs[i] for i in ids], name)  # type: ignore[attr-defined]


class _NoProcesses(ArgumentError, TypeError):
    """An option of worker processes, where there are none."""
