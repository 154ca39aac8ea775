"""How a callable becomes a policy: a function from a TensorDict to a TensorDict with actions in it."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import nn

from shoal.errors import WrongType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shoal.faces.torchrl.env_base import EnvBase

    Policy = Callable[[TensorDictBase], TensorDictBase]

_TD_NAMES = ("td", "tensordict")


def policy_for(env: EnvBase, policy: Callable[..., Any] | None, trust_policy: bool = False) -> Policy:
    """A policy from what a user gave.

    Args:
        env: The env it acts in.
        policy: None for random actions. A module that reads and writes TensorDicts is taken as it is, as is a callable
            whose one parameter is named ``td`` or ``tensordict``, or annotated as a TensorDict. Any other callable gets
            the observations, in the order of the observation spec, and returns the action, or one per action key.
        trust_policy: Treat any callable as one that reads and writes TensorDicts.
    """
    if policy is None:
        return env.rand_action
    if not callable(policy):
        raise WrongType(f"{type(env).__name__}: a policy must be callable, got {type(policy).__name__}")
    if trust_policy or takes_tensordict(policy):
        return _merged(policy)
    return _over_observations(env, policy)


def takes_tensordict(policy: Callable[..., Any]) -> bool:
    """Whether a callable reads a TensorDict rather than observations."""
    if isinstance(policy, TensorDictModuleBase) or (hasattr(policy, "in_keys") and hasattr(policy, "out_keys")):
        return True
    called = policy.forward if isinstance(policy, nn.Module) else policy
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):  # built-in callables may have no signature
        return False
    if len(parameters) != 1:
        return False
    return parameters[0].name in _TD_NAMES or _is_tensordict_type(parameters[0].annotation)


def _is_tensordict_type(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return annotation.rpartition(".")[2] in ("TensorDict", "TensorDictBase")
    return isinstance(annotation, type) and issubclass(annotation, TensorDictBase)


def _merged(policy: Callable[[TensorDictBase], TensorDictBase | None]) -> Policy:
    def act(td: TensorDictBase) -> TensorDictBase:
        returned = policy(td)
        # A policy that writes in place may return nothing.
        return td if returned is td or returned is None else td.update(returned)

    return act


def _over_observations(env: EnvBase, policy: Callable[..., Any]) -> Policy:
    observations = list(env.observation_spec.keys())
    actions = env.action_keys

    def act(td: TensorDictBase) -> TensorDictBase:
        chosen = policy(*(td.get(key) for key in observations))
        if len(actions) == 1:
            return td.set(actions[0], chosen)
        for key, value in zip(actions, chosen, strict=True):
            td.set(key, value)
        return td

    return act


def casting(policy: Policy, given: Callable[..., Any] | None, device: torch.device | None) -> Policy:
    """A policy that is given data on its own device, with what it returns moved back to the env's."""
    own = next(given.parameters(), None) if isinstance(given, nn.Module) else None
    if own is None:
        return policy

    def act(td: TensorDictBase) -> TensorDictBase:
        acted = policy(td.to(own.device))
        return acted.clear_device_() if device is None else acted.to(device)

    return act


def replay(env: EnvBase, actions: Iterable[Any]) -> Policy:
    """A policy that writes given actions one after the other: tensors for the action key, or TensorDicts."""
    ahead: Iterator[Any] = iter(actions)

    def act(td: TensorDictBase) -> TensorDictBase:
        action = next(ahead)
        return td.update(action) if isinstance(action, TensorDictBase) else td.set(env.action_key, action)

    return act
