"""SerialEnv: several envs one after another, in this thread."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from shoal.errors import ArgumentError, TensorEnvError
from shoal.faces.torchrl.batched.array_host import array_host
from shoal.faces.torchrl.batched.attributes import attributes_here
from shoal.faces.torchrl.batched.base import BatchedEnv
from shoal.faces.torchrl.batched.crossing import crossings_of
from shoal.faces.torchrl.batched.forms import Forms
from shoal.faces.torchrl.batched.hosts import Host, InProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from shoal.faces.torchrl.env.keys import NestedKey

    Shapes = dict[NestedKey, torch.Size]


class SerialEnv(BatchedEnv):
    """Several envs as one, run one after another in the caller's thread; gradients flow through it.

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
        if options.get("metadata_from_workers"):
            raise _NoProcesses("metadata_from_workers: a SerialEnv has no workers; use ParallelEnv")
        super().__init__(num_workers, create_env_fn, **options)

    def _open(self) -> Host:
        envs: list[Any] = []
        for place in range(self.num_workers):
            env = self._members.build(place)
            # A function may return the same env again and again, but one env cannot be in two states.
            envs.append(deepcopy(env) if any(env is other for other in envs) else env)
        # If data is sent as it is, or the arguments were changed since, the envs may differ from those looked at.
        holds_specs = self._options["use_buffers"] is not False
        if holds_specs and not self._members.is_updated:
            for place, (env, meta) in enumerate(zip(envs, self._metas, strict=True)):
                found, expected = Forms(*env.output_spec.values()), Forms(*meta.specs["output_spec"].values())
                _refuse_others(place, found.shapes, expected.shapes)
        quick = array_host(envs, crossings_of(self._metas), self.device) if self._are_alike else None
        if quick is not None:
            return quick
        return InProcess(envs, self.device, is_one_kind=self._are_alike, holds_specs=holds_specs)

    def _attributes(self, ids: Sequence[int], name: str) -> Any:
        host = self._running()
        return attributes_here([host.envs[i] for i in ids], name)  # type: ignore[attr-defined]


def _refuse_others(place: int, found: Shapes, expected: Shapes) -> None:
    """Refuse an env that is not like the one that the specs of the batch come from."""
    for key in found.keys() | expected.keys():
        if found.get(key) != expected.get(key):
            raise TensorEnvError(
                f"env {place}: {key!r} has shape {_told(found.get(key))}, and the env that the specs are from has "
                f"{_told(expected.get(key))}; for envs that differ, give a list of different functions, one per env"
            )


def _told(shape: torch.Size | None) -> str:
    return "none" if shape is None else str(tuple(shape))


class _NoProcesses(ArgumentError, TypeError):
    """An option for worker processes, where there are none."""
