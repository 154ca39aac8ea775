"""From one step to the next, and from flags to masks, for TensorDicts of any env.

An env knows its own keys: ``env.step_mdp`` is quicker than the function here, and need not be told them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

from shoal.faces.torchrl.env.done import FLAGS
from shoal.faces.torchrl.env.keys import NestedKey, Path, drop, is_nested, key_of, keys_of, path_of
from shoal.faces.torchrl.fast_td import entries_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shoal.faces.torchrl.specs import TensorSpec


def step_mdp(
    tensordict: TensorDictBase,
    next_tensordict: TensorDictBase | None = None,
    keep_other: bool = True,
    exclude_reward: bool = True,
    exclude_done: bool = False,
    exclude_action: bool = True,
    reward_keys: NestedKey | Iterable[NestedKey] = "reward",
    done_keys: NestedKey | Iterable[NestedKey] = "done",
    action_keys: NestedKey | Iterable[NestedKey] = "action",
) -> TensorDictBase:
    """The root of the next step: what is under ``"next"``, laid over what the root holds.

    Args:
        tensordict: The result of a step.
        next_tensordict: Write into this one and return it.
        keep_other: Keep what is at the root and not under ``"next"``.
        exclude_reward: Leave out the rewards.
        exclude_done: Leave out the done flags.
        exclude_action: Leave out the actions.
        reward_keys: The keys of the rewards. Rewards under other keys are kept.
        done_keys: The keys of the flags that ``exclude_done`` leaves out.
        action_keys: The keys of the actions.

    Example:
        >>> from tensordict import TensorDict
        >>> td = TensorDict({"obs": 0, "action": 1, "next": {"obs": 1, "reward": 2}})
        >>> step_mdp(td).to_dict()
        {'obs': tensor(1)}
    """
    is_lazy = isinstance(tensordict, LazyStackedTensorDict)
    # Rows may also differ only after the step: their roots are one tensor per leaf then, and what follows is not.
    stack = tensordict if is_lazy else tensordict.get("next", None)
    if isinstance(stack, LazyStackedTensorDict) and next_tensordict is None:
        given = (keep_other, exclude_reward, exclude_done, exclude_action, reward_keys, done_keys, action_keys)
        rows = [step_mdp(row, None, *given) for row in tensordict.unbind(stack.stack_dim)]
        join = LazyStackedTensorDict.lazy_stack if is_lazy else LazyStackedTensorDict.maybe_dense_stack
        stacked: TensorDictBase = join(rows, stack.stack_dim)
        return stacked
    following = tensordict.get("next", None)
    if following is None:
        raise KeyError(f"there is no 'next' among {list(tensordict.keys())}: step the env first")
    rewards, dones, actions = (
        {path_of(key) for key in keys_of(keys)} for keys in (reward_keys, done_keys, action_keys)
    )
    left = set().union(
        rewards if exclude_reward else (), dones if exclude_done else (), actions if exclude_action else ()
    )
    out = tensordict.empty() if next_tensordict is None else next_tensordict
    if keep_other:
        _carry(tensordict, out, left | {("next",)})
    elif not exclude_action:
        for path in actions:
            _carry_one(tensordict, out, path)
    _carry(following, out, left)
    return out


def _carry(source: TensorDictBase, out: TensorDictBase, left: set[Path]) -> None:
    """Put the entries of a TensorDict, except some, into another; nested ones are made only to receive something."""
    inside = entries_of(source)
    for name, value in (source if inside is None else inside).items():
        if (name,) in left:
            continue
        if not is_nested(value):
            out.set(name, value)
            continue
        below = {path[1:] for path in left if path[0] == name and len(path) > 1}
        mine = out.get(name, None)
        if isinstance(value, LazyStackedTensorDict):
            out.set(name, _carried_rows(value, mine, below))
            continue
        target = mine if is_nested(mine) else value.empty()
        _carry(value, target, below)
        if mine is None and (not below or not target.is_empty()):
            out.set(name, target)


def _carry_one(source: TensorDictBase, out: TensorDictBase, path: Path) -> None:
    """Put one entry, if it is there, into another TensorDict, below levels with the batch sizes of the source's."""
    value = source.get(path[0], None)
    if len(path) == 1 and value is not None:
        out.set(path[0], value)
    elif is_nested(value) and value.get(key_of(path[1:]), None) is not None:
        inner = out.get(path[0], None)
        if inner is None:
            out.set(path[0], value.empty())
            inner = out.get(path[0])
        _carry_one(value, inner, path[1:])


def _carried_rows(source: LazyStackedTensorDict, into: Any, left: set[Path]) -> TensorDictBase:
    """Like ``_carry``, but row by row, for stacks whose rows may differ: agents that observe different things."""
    dim, rows = source.stack_dim, []
    before = into.unbind(dim) if is_nested(into) else [row.empty() for row in source.unbind(dim)]
    for row, target in zip(source.unbind(dim), before, strict=True):
        rows.append(target.copy())
        _carry(row, rows[-1], left)
    stacked: TensorDictBase = LazyStackedTensorDict.lazy_stack(rows, dim)
    return stacked


def terminated_or_truncated(
    data: TensorDictBase,
    full_done_spec: TensorSpec | None = None,
    key: NestedKey | None = "_reset",
    write_full_false: bool = False,
) -> torch.Tensor:
    """Whether any episode has ended, at any level; writes which ones beside the flags, in place of an earlier mask.

    Args:
        data: What an env returned (with the flags at its root, not under ``"next"``).
        full_done_spec: Where the flags are; without it each ``done``, ``terminated`` and ``truncated`` counts.
        key: The name of the mask that is written at each level, None to write nothing.
        write_full_false: Write the masks even if nothing has ended.

    Returns:
        A tensor with one bool.

    Example:
        >>> from tensordict import TensorDict
        >>> data = TensorDict({"done": [False, False], "truncated": [False, True]})
        >>> terminated_or_truncated(data), data["_reset"]
        (tensor(True), tensor([False,  True]))
    """
    masks = dict(_ended(data, full_done_spec, ()))
    ended = any(bool(mask.any()) for mask in masks.values())
    if key is not None:
        for path, mask in masks.items():
            if ended or write_full_false:
                data.set(key_of((*path, *path_of(key))), mask)
            else:
                drop(data, (*path, *path_of(key)))
    return torch.tensor(ended, device=data.device)


def _ended(data: TensorDictBase, spec: Any, path: Path) -> Iterable[tuple[Path, torch.Tensor]]:
    """The path of each level, and which of its episodes have ended."""
    tree: Mapping[str, Any] | TensorDictBase = data if spec is None else spec
    flags = [data.get(name, None) for name in FLAGS if name in tree.keys()]  # noqa: SIM118  a TensorDict is no dict
    known = [flag for flag in flags if flag is not None]
    if known:
        mask = known[0].clone()
        for flag in known[1:]:
            mask |= flag
        yield path, mask
    for name in tree.keys():  # noqa: SIM118
        below = data.get(name, None)
        if name != "next" and is_nested(below):
            yield from _ended(below, None if spec is None else spec[name], (*path, name))
