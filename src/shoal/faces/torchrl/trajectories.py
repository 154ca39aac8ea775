"""split_trajectories: the trajectories in a rollout."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from shoal.faces.torchrl.env.done import FLAGS
from shoal.faces.torchrl.env.keys import NestedKey, key_of, path_of
from shoal.faces.torchrl.nesting import nested_tensor


def split_trajectories(
    rollout_tensordict: TensorDictBase,
    *,
    prefix: NestedKey | None = None,
    trajectory_key: NestedKey | None = None,
    done_key: NestedKey | None = None,
    as_nested: bool = False,
) -> TensorDictBase:
    """The trajectories of a rollout, one per row, padded with zeros.

    Args:
        rollout_tensordict: A rollout with time as its last dim.
        prefix: Where ``"mask"`` and ``"traj_ids"`` are written; by default where the ids were found.
        trajectory_key: The key of the ids; by default ``"traj_ids"``, or that under ``"collector"``. If there are none,
            they follow from the flags, and are written there.
        done_key: The flag under ``"next"`` that ends a trajectory when there are no ids; by default any of ``"done"``,
            ``"terminated"`` and ``"truncated"``.
        as_nested: Return nested tensors of the true lengths, without a mask.

    Returns:
        A TensorDict of batch size ``(trajectories, longest)``, with ``"mask"``: True where there is data.

    Example:
        >>> done = torch.tensor([[False], [True], [False]])
        >>> split_trajectories(TensorDict({"obs": torch.arange(3), "next": {"done": done}}, [3]))["obs"]
        tensor([[0, 1],
                [2, 0]])
    """
    key = _ids_key(rollout_tensordict, trajectory_key)
    where = path_of(prefix) if prefix is not None else (() if key is None else path_of(key)[:-1])
    data = rollout_tensordict if rollout_tensordict.ndim > 1 else rollout_tensordict.unsqueeze(0)
    ids = None if key is None else data.get(key, None)
    if ids is None:
        ids = _ids_from_flags(data, done_key)
        data = data.copy().set(key_of((*where, "traj_ids")) if key is None else key, ids)
    ids = ids.reshape(-1, data.shape[-1])
    flat = data.reshape(-1)
    lengths = _run_lengths(ids)
    if as_nested:
        return _nested(flat, lengths)
    sizes = torch.tensor(lengths, device=ids.device).unsqueeze(-1)
    steps = torch.arange(max(lengths), device=ids.device)
    mask = steps < sizes
    # Beyond the end of a trajectory, the very first step stands in; it is then replaced by zeros.
    rows = torch.where(mask, sizes.cumsum(0) - sizes + steps, 0)
    out = _without(flat[rows.reshape(-1)].reshape(*rows.shape), mask)
    out.set(key_of((*where, "mask")), mask)
    return out.refine_names(..., "time") if rollout_tensordict.names[-1] == "time" else out


def _without(data: TensorDictBase, mask: torch.Tensor) -> TensorDictBase:
    """The data with zeros outside the mask; non-tensor data stays."""

    def blank(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.masked_fill(~mask.reshape(*mask.shape, *[1] * (tensor.ndim - mask.ndim)), 0)

    return data if mask.all() else data.apply(blank)


def _ids_key(data: TensorDictBase, trajectory_key: NestedKey | None) -> NestedKey | None:
    if trajectory_key is not None:
        return trajectory_key
    found = (key for key in ("traj_ids", ("collector", "traj_ids")) if data.get(key, None) is not None)
    return next(found, None)


def _ids_from_flags(data: TensorDictBase, done_key: NestedKey | None) -> torch.Tensor:
    """A number for each trajectory: one ends where a flag is set, and at the end of a row."""
    names = FLAGS if done_key is None else (done_key,)
    flags = [data.get(("next", *path_of(name)), None) for name in names]
    known = [flag.reshape(*data.shape, -1).any(-1) for flag in flags if flag is not None]
    if not known:
        raise KeyError(
            f"no trajectory ids and no {' or '.join(map(str, names))} under 'next': where do trajectories end?"
        )
    ends = torch.stack(known).any(0)
    starts = torch.cat([torch.ones_like(ends[..., :1]), ends[..., :-1]], -1)
    return starts.reshape(-1).cumsum(0).reshape(data.shape) - 1


def _run_lengths(ids: torch.Tensor) -> list[int]:
    """How long each run of equal ids is; a run ends with its row."""
    changes = torch.ones_like(ids, dtype=torch.bool)
    changes[:, :-1] = ids[:, 1:] != ids[:, :-1]
    ends = changes.reshape(-1).nonzero().squeeze(-1)
    return torch.diff(ends, prepend=ends.new_tensor([-1])).tolist()  # type: ignore[no-any-return]


def _nested(flat: TensorDictBase, lengths: list[int]) -> TensorDictBase:
    parts = flat.split(lengths, 0)

    def nest(*tensors: torch.Tensor) -> torch.Tensor:
        return nested_tensor(tensors)

    size: Any = [len(lengths), lengths[0] if len(set(lengths)) == 1 else -1]
    first, *others = parts
    made: TensorDictBase = TensorDict.apply(first, nest, *others, batch_size=size)
    return made
