"""Specs found by trying the env: a reset, two steps, and what they returned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from shoal.errors import TensorEnvError
from shoal.faces.torchrl.env.done import FLAGS
from shoal.faces.torchrl.env.keys import NestedKey, data_keys, is_nested, keys_of, path_of
from shoal.faces.torchrl.env.policies import policy_for
from shoal.faces.torchrl.specs import Categorical, Composite, NonTensor, Unbounded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tensordict import TensorDictBase

    from shoal.faces.torchrl.env_base import EnvBase
    from shoal.faces.torchrl.specs import TensorSpec

    Groups = Mapping[str, NestedKey | list[NestedKey] | None]


def infer_specs(env: EnvBase, policy: Callable[..., Any], td: TensorDictBase | None, groups: Groups) -> None:
    """Give an env the specs that fit what it returns.

    Args:
        env: The env, whose specs are replaced.
        policy: Writes the actions.
        td: Given to the reset.
        groups: Which keys are actions, done flags, observations and rewards.

    Raises:
        TensorEnvError: If the env returns a key that belongs to none of them, or the policy writes no action.
    """
    act = policy_for(env, policy, trust_policy=True)
    first = act(env._reset(td) if td is None else td.copy().update(env._reset(td)))
    _refuse_inaction(env, first, keys_of(groups["action"] or []))
    following = env._step(first)
    root = first.copy().update(following)
    second = act(root)
    again = env._step(second)
    seen = [(first, following), (second, again)]
    names = {kind: [] if keys is None else keys_of(keys) for kind, keys in groups.items()}
    if groups.get("done") is None:
        names["done"] = [key for key in data_keys(following) if path_of(key)[-1] in FLAGS]
    _refuse_strangers(env, following, names)
    observed = [key for key in names["observation"] if following.get(key, None) is not None]
    env.full_action_spec = _composite(env, names["action"], [before for before, _ in seen])
    env.full_observation_spec = _composite(env, observed, [after for _, after in seen])
    env.full_reward_spec = _composite(env, names["reward"], [after for _, after in seen], at_least_1d=True)
    env.full_done_spec = _composite(env, names["done"], [after for _, after in seen], at_least_1d=True, flags=True)


def _refuse_inaction(env: EnvBase, first: TensorDictBase, actions: list[NestedKey]) -> None:
    if missing := [key for key in actions if first.get(key, None) is None]:
        raise TensorEnvError(
            f"{type(env).__name__}.auto_specs_: the policy has not written {missing}; after it there are "
            f"{data_keys(first)}: name the action in action_key"
        )


def _refuse_strangers(env: EnvBase, following: TensorDictBase, names: dict[str, list[NestedKey]]) -> None:
    known = [path_of(key) for kind in ("done", "observation", "reward") for key in names[kind]]
    strangers = [key for key in data_keys(following) if not any(path_of(key)[: len(path)] == path for path in known)]
    if strangers:
        raise TensorEnvError(
            f"{type(env).__name__}.auto_specs_: the env returned {strangers}, which are neither observations, rewards "
            "nor done flags; name them in observation_key, reward_key or done_key"
        )


def _composite(
    env: EnvBase,
    keys: list[NestedKey],
    seen: list[TensorDictBase],
    *,
    at_least_1d: bool = False,
    flags: bool = False,
) -> Composite:
    spec = Composite(shape=env.batch_size, device=env.device)
    for key in keys:
        values = [td.get(key) for td in seen]
        if is_nested(values[0]):
            for leaf in data_keys(values[0]):
                path = (*path_of(key), *path_of(leaf))
                spec[path] = _leaf(env, [value.get(leaf) for value in values], at_least_1d, flags)
        else:
            spec[key] = _leaf(env, values, at_least_1d, flags)
    return spec


def _leaf(env: EnvBase, values: list[Any], at_least_1d: bool, flags: bool) -> TensorSpec:
    """An unbounded spec of the shape that all values have, with -1 where they differ."""
    if not isinstance(values[0], torch.Tensor):
        return NonTensor(shape=env.batch_size, example_data=values[0].data, device=env.device)
    shapes = [value.shape for value in values]
    shape = tuple(sizes[0] if len(set(sizes)) == 1 else -1 for sizes in zip(*shapes, strict=True))
    if at_least_1d and len(shape) == len(env.batch_size):
        shape = (*shape, 1)
    if flags:
        return Categorical(2, shape=shape, dtype=torch.bool, device=env.device)
    return Unbounded(shape, dtype=values[0].dtype, device=env.device)
