"""From the specs of envs to rows of bytes and back: the data of a pool's envs as TensorDicts.

Envs of one kind have one plan for all their rows, and their data is stacked leaf by leaf. Envs that differ have a plan
each, in rows that are long enough for all, and their data is a lazy stack.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shoal.adapters.byte_rows import ByteRow, Key
from shoal.adapters.tensordict_env import LOOSE, NEXT_LOOSE, NEXT_ROW, Crossing, Wish, plain, wrapped
from shoal.errors import ActionError
from shoal.faces.torchrl.batched.presets import PRESETS_BYTE, carried_keys, plain_presets
from shoal.faces.torchrl.batched.stacking import Sizes, level_sizes, nested, stack_rows
from shoal.faces.torchrl.env.keys import leaf_keys
from shoal.faces.torchrl.specs import NonTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensordict import TensorDictBase

    from shoal.batch import Batch
    from shoal.faces.torchrl.metadata import EnvMetaData
    from shoal.faces.torchrl.specs import Composite, TensorSpec

_MOST_CARRIED_BYTES = 4096  # the longest row that every step copies, whether or not it is used


def crossings_of(metas: Sequence[EnvMetaData], *, all_loose: bool = False) -> list[Crossing]:
    """How the data of each env crosses; the rows of all are equally long.

    Args:
        metas: What the envs are.
        all_loose: Send nothing in rows: for envs whose data does not keep to its specs.
    """
    form_of = {id(meta): _form_of(meta) for meta in {id(meta): meta for meta in metas}.values()}
    made: dict[Any, Crossing] = {}
    for meta in metas:
        if form_of[id(meta)] not in made:
            made[form_of[id(meta)]] = _crossing_of(meta, all_loose=all_loose)
    inputs = max(crossing.inputs.size for crossing in made.values())
    outputs = max(crossing.outputs.size for crossing in made.values())
    carries_next = outputs <= _MOST_CARRIED_BYTES and not any(crossing.loose_outputs for crossing in made.values())
    fitted = {
        form: replace(crossing, input_bytes=inputs, output_bytes=outputs, carries_next=carries_next)
        for form, crossing in made.items()
    }
    return [fitted[form_of[id(meta)]] for meta in metas]


def _crossing_of(meta: EnvMetaData, *, all_loose: bool) -> Crossing:
    read, written = meta.specs["input_spec"], meta.specs["output_spec"]
    inputs = _leaves(read, ("full_action_spec", "full_state_spec"))
    outputs = _leaves(written, ("full_observation_spec", "full_reward_spec", "full_done_spec"))
    rewards = _leaves(written, ("full_reward_spec",))
    states, returned = _leaves(read, ("full_state_spec",)), {key for key, _ in outputs}
    fixed_inputs = [] if all_loose else [leaf for leaf in inputs if _is_fixed(leaf[1])]
    fixed_outputs = [] if all_loose else [leaf for leaf in outputs if _is_fixed(leaf[1])]
    into = ByteRow([(key, spec.dtype, spec.shape) for key, spec in fixed_inputs], header=PRESETS_BYTE + 1)
    out = ByteRow([(key, spec.dtype, spec.shape) for key, spec in fixed_outputs])
    return Crossing(
        into,
        out,
        into.size,
        out.size,
        loose_inputs=tuple(key for key, spec in inputs if all_loose or not _is_fixed(spec)),
        loose_outputs=tuple(key for key, spec in outputs if all_loose or not _is_fixed(spec)),
        own_inputs=frozenset(key for key, spec in states if key not in returned and isinstance(spec, NonTensor)),
        only_at_step=frozenset(key for key, _ in rewards),
        takes_all=all_loose,
    )


def _leaves(group: Composite, names: Sequence[str]) -> list[tuple[Key, TensorSpec]]:
    specs = [group.get(name, None) for name in names]
    return [(key, spec[key]) for spec in specs if spec is not None for key in leaf_keys(spec) if spec[key] is not None]


def _level_sizes(meta: EnvMetaData) -> Sizes:
    """What each nested level of an env's data adds to its batch size."""
    sizes: Sizes = {}
    for spec in meta.specs["output_spec"].values():
        sizes.update(level_sizes(spec, len(meta.batch_size)))
    return sizes


def _is_fixed(spec: TensorSpec) -> bool:
    return not isinstance(spec, NonTensor) and spec.dtype is not None and -1 not in spec.shape


def are_alike(metas: Sequence[EnvMetaData]) -> bool:
    """Whether the data of envs can be stacked leaf by leaf: the same keys, shapes and dtypes."""
    return len({_form_of(meta) for meta in {id(meta): meta for meta in metas}.values()}) == 1


def _form_of(meta: EnvMetaData) -> frozenset[Any]:
    groups = (meta.specs["input_spec"], meta.specs["output_spec"])
    leaves = [leaf for group in groups for leaf in _leaves(group, list(group.keys()))]
    return frozenset((key, spec.dtype, tuple(spec.shape)) for key, spec in leaves)


class Traffic:
    """TensorDicts of a pool's envs as rows, and rows as TensorDicts.

    Args:
        metas: What each env is.
        crossings: How its data crosses.
        device: Where the data is wanted; None leaves it on the CPU, in TensorDicts that name no device.
        stack: How rows are put together: ``"dense"``, ``"lazy"``, ``"maybe_dense"`` for dense where possible, or
            ``"as_alike"`` for dense if the envs are of one kind and lazy otherwise, whatever the data at hand.
        hand_over: Gives envs what is already under ``"next"`` before they step: their ids, and the entries of each.
    """

    def __init__(
        self,
        metas: Sequence[EnvMetaData],
        crossings: Sequence[Crossing],
        device: torch.device | None,
        stack: str,
        hand_over: Callable[[Sequence[int], list[dict[Key, Any]]], None],
    ) -> None:
        self._metas = list(metas)
        self._crossings = list(crossings)
        self.device = device
        self._stack = stack
        self._is_one_kind = all(crossing is crossings[0] for crossing in crossings)
        first = crossings[0]
        self._is_dense = self._is_one_kind and not first.loose_outputs and stack != "lazy"
        self._batch_size = torch.Size(metas[0].batch_size)
        self._sizes = {id(meta): _level_sizes(meta) for meta in metas}
        self._hand_over = hand_over
        carried = {id(meta): carried_keys(meta.specs["input_spec"], meta.specs["output_spec"]) for meta in metas}
        self._carried = [carried[id(meta)] for meta in metas]
        self._carries = any(self._carried)
        self.has_loose_inputs = any(crossing.loose_inputs for crossing in crossings)
        self.has_loose = self.has_loose_inputs or any(crossing.loose_outputs for crossing in crossings)

    # ------------------------------------------------------------------ to the envs

    def pack(self, td: TensorDictBase, ids: Sequence[int], wish: Wish) -> Any:
        """Rows for the pool from a TensorDict with one row per env of ``ids``."""
        if self._is_one_kind and not self.has_loose_inputs:
            crossing = self._crossings[0]
            tensors = [_required(td, field.key) for field in crossing.inputs.fields]
            rows = crossing.inputs.pack(tensors, len(ids), crossing.input_bytes)
        else:
            parts = [self._pack_one(td[row], env_id) for row, env_id in enumerate(ids)]
            rows = np.concatenate([part for part, _ in parts])
        rows[:, 0] = wish
        if self._carries and td.get("next", None) is not None:
            rows[:, PRESETS_BYTE] = self._handed_over(td, ids)
        if not self.has_loose_inputs:
            return rows
        loose = np.empty(len(ids), object)
        loose[:] = [beside for _, beside in parts]
        return rows, loose

    def _handed_over(self, td: TensorDictBase, ids: Sequence[int]) -> bool:
        """Hand over what is already under ``"next"``; returns whether there is anything."""
        presets = [plain_presets(row, self._carried[i]) for i, row in zip(ids, td.unbind(0), strict=True)]
        if any(presets):
            self._hand_over(ids, presets)
        return any(presets)

    def _pack_one(self, td: TensorDictBase, env_id: int) -> tuple[np.ndarray[Any, Any], dict[Key, Any]]:
        crossing = self._crossings[env_id]
        tensors = [_required(td, field.key).unsqueeze(0) for field in crossing.inputs.fields]
        packed = crossing.inputs.pack(tensors, 1, crossing.input_bytes)
        own = crossing.own_inputs
        given = [key for key in crossing.loose_inputs if key not in own or td.get(key, None) is not None]
        return packed, {key: plain(_required(td, key)) for key in given}

    def entries(self, td: TensorDictBase, keys: Sequence[Key]) -> dict[Key, Any]:
        """Some entries of one env's TensorDict as plain data, for its reset."""
        return {key: plain(value) for key in keys if (value := td.get(key, None)) is not None}

    # ------------------------------------------------------------------ from the envs

    def unpack(self, batch: Batch, *, is_first: bool) -> TensorDictBase:
        """The data of the envs of a batch, in its order; after a reset it has no rewards."""
        loose = {row: info.get(LOOSE, {}) for row, info in batch.infos}
        return self._tensordict(batch.obs, batch.env_id.tolist(), loose, is_first=is_first)

    def unpack_following(self, batch: Batch) -> tuple[list[int], TensorDictBase | None]:
        """Which rows of a batch have begun a new episode, and the first data of these episodes."""
        if self._crossings[0].carries_next:
            start = self._crossings[0].next_start
            rows = np.flatnonzero(batch.obs[:, start - 1]).tolist()
            if not rows:
                return [], None
            return rows, self._tensordict(batch.obs[rows, start:], batch.env_id[rows].tolist(), {}, is_first=True)
        begun = [(row, info) for row, info in batch.infos if NEXT_ROW in info]
        if not begun:
            return [], None
        rows = [row for row, _ in begun]
        ids = batch.env_id[rows].tolist()
        loose = {place: info.get(NEXT_LOOSE, {}) for place, (_, info) in enumerate(begun)}
        return rows, self._tensordict(np.stack([info[NEXT_ROW] for _, info in begun]), ids, loose, is_first=True)

    def _tensordict(
        self, rows: np.ndarray[Any, Any], ids: Sequence[int], loose: dict[int, dict[Key, Any]], *, is_first: bool
    ) -> TensorDictBase:
        if self._is_dense:
            entries = self._entries(self._crossings[0], rows, is_first=is_first)
            size = torch.Size((len(ids), *self._batch_size))
            return nested(entries, size, self.device, self._sizes[id(self._metas[0])])
        parts = []
        for row, env_id in enumerate(ids):
            crossing, meta = self._crossings[env_id], self._metas[env_id]
            one = self._entries(crossing, rows[row : row + 1], is_first=is_first)
            own = {key: value[0] for key, value in one.items()}
            td = nested(own, torch.Size(meta.batch_size), self.device, self._sizes[id(meta)])
            for key, value in loose.get(row, {}).items():
                td.set(key, wrapped(value))
            parts.append(td)
        return self.stacked(parts)

    def stacked(self, rows: Sequence[TensorDictBase]) -> TensorDictBase:
        """Rows of envs as one TensorDict."""
        if self._stack == "dense":
            return torch.stack(list(rows), 0)
        return stack_rows(rows, lazily=self._stack == "lazy" or (self._stack == "as_alike" and not self._is_one_kind))

    def _entries(self, crossing: Crossing, rows: np.ndarray[Any, Any], *, is_first: bool) -> dict[Key, torch.Tensor]:
        tensors = crossing.outputs.unpack(rows)
        if self.device is not None:
            tensors = [tensor.to(self.device) for tensor in tensors]
        named = zip(crossing.outputs.fields, tensors, strict=True)
        return {field.key: tensor for field, tensor in named if not (is_first and field.key in crossing.only_at_step)}


def _required(td: TensorDictBase, key: Key) -> Any:
    value = td.get(key, None)
    if value is None:
        raise _MissingEntry(
            f"{key!r}: the envs read it, and the TensorDict has only {sorted(map(str, td.keys(True, True)))}"
        )
    return value


class _MissingEntry(ActionError, KeyError):
    """A TensorDict lacks an entry that the envs read."""

    __str__ = Exception.__str__  # a KeyError shows its text as a repr
