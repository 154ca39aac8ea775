"""How data may pass to the envs of an async pool, as far as its caller can tell.

``"queue"`` takes any data; ``"shm"`` holds it to the keys, shapes and dtypes of the envs' specs; ``"auto"`` is
``"shm"`` where the envs allow it, and ``"queue"`` elsewhere. How the data then travels is the pool's own business.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tensordict import TensorDictBase, is_leaf_nontensor

from shoal.arguments import check_choice
from shoal.errors import ActionError, ArgumentError, SpecError
from shoal.faces.torchrl.async_pool.flights import INDEX
from shoal.faces.torchrl.batched.crossing import are_alike
from shoal.faces.torchrl.env.keys import NestedKey, key_of, leaf_keys, path_of
from shoal.faces.torchrl.fast_td import entries_of
from shoal.faces.torchrl.specs import NonTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.faces.torchrl.metadata import EnvMetaData

_KINDS = ("queue", "shm", "auto")
# Entries that the pool itself reads, and passes to no env.
_OWN = frozenset({INDEX, "_reset", "_step"})


@dataclass(frozen=True)
class Exchange:
    """The exchange that was asked for, and what came of it.

    Attributes:
        asked: ``"queue"``, ``"shm"`` or ``"auto"``.
        keys: What data is held to; empty if any data may be sent.
    """

    asked: str
    keys: tuple[NestedKey, ...] = ()

    @property
    def resolved(self) -> str:
        """``"shm"`` if data is held to a schema, ``"queue"`` if not."""
        return "shm" if self.keys else "queue"

    @cached_property
    def _known(self) -> frozenset[NestedKey]:
        return frozenset((*self.keys, *_OWN))

    def check(self, td: TensorDictBase | None) -> None:
        """Refuse entries that are in no spec, if there is a schema."""
        if not self.keys or td is None:
            return
        entries, known = entries_of(td), self._known
        if entries is not None and known.issuperset(entries):
            return
        given = td.keys(True, True, is_leaf=is_leaf_nontensor)
        unknown = [key for key in given if key not in known and path_of(key)[-1] not in _OWN]
        if unknown:
            raise _UnknownEntry(
                f"exchange: {unknown} are in no spec of the envs; exchange='shm' takes {list(self.keys)} only, and "
                "exchange='queue' whatever there is"
            )


def exchange_of(asked: str | None, metas: Sequence[EnvMetaData], *, in_processes: bool) -> Exchange:
    """What the option ``exchange`` means for these envs.

    Raises:
        ArgumentError: If there is no such exchange, or if it needs worker processes and there are none.
        SpecError: If data cannot be held to one schema: the envs differ, or have shapes that are not fixed.
        TypeError: If some of the data is not a tensor.
    """
    asked = "queue" if asked is None else asked
    check_choice("exchange", asked, _KINDS)
    if asked == "shm" and not in_processes:
        raise ArgumentError("exchange: 'shm' is for envs in worker processes: backend='multiprocessing'")
    if asked == "queue" or not in_processes:
        return Exchange(asked)
    refusal = _refusal(metas)
    if refusal is None:
        return Exchange(asked, _schema(metas[0]))
    if asked == "shm":
        raise refusal
    return Exchange(asked)


def _refusal(metas: Sequence[EnvMetaData]) -> Exception | None:
    """Why data cannot be held to one schema; None if it can."""
    found = [leaf for meta in metas for leaf in meta.specs.items(True, True)]
    leaves = [(key_of(path_of(key)[2:]), spec) for key, spec in found if spec is not None]
    for key, spec in leaves:
        if isinstance(spec, NonTensor):
            return _NoTensor(f"exchange: {key!r} is no tensor, and 'shm' takes tensors only")
    if not are_alike(metas):
        return SpecError("exchange: the envs differ in keys, shapes or dtypes, and 'shm' has one schema for all")
    for key, spec in leaves:
        if -1 in spec.shape:
            return SpecError(f"exchange: {key!r} has shape {tuple(spec.shape)}, and 'shm' takes fixed shapes only")
    return None


def _schema(meta: EnvMetaData) -> tuple[NestedKey, ...]:
    """The keys of a step: of what the envs read and observe, and of what follows under ``"next"``."""

    def keys(group: str, *names: str) -> list[Any]:
        specs = [meta.specs[group].get(name, None) for name in names]
        return [key for spec in specs if spec is not None for key in leaf_keys(spec)]

    root = keys("input_spec", "full_state_spec", "full_action_spec")
    root += keys("output_spec", "full_observation_spec", "full_done_spec")
    following = keys("output_spec", "full_observation_spec", "full_reward_spec", "full_done_spec")
    return tuple(dict.fromkeys([*root, *(("next", *path_of(key)) for key in following)]))


class _UnknownEntry(ActionError, KeyError):
    """An entry that is in no spec of the envs."""

    __str__ = Exception.__str__  # a KeyError shows its text as a repr


class _NoTensor(ArgumentError, TypeError):
    """Data that is not a tensor, where only tensors can be sent."""
