"""The arithmetic of bootstrapping, on tensors ``[time, batch]``.

``must_bootstrap`` says where the next state has a value: ``~terminated``, and not ``~done``. A state in which a time
limit has cut the episode has a value like any other.

BBRL calls the discount ``discount_factor``, and books call the coefficient of ``gae`` lambda (here ``lam``); both names
are accepted too.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

import torch

from shoal.errors import WorkspaceError

if TYPE_CHECKING:
    from collections.abc import Callable


def _also_called(**others: str) -> Callable[[Callable[..., torch.Tensor]], Callable[..., torch.Tensor]]:
    """Let a function take some of its arguments under other names too: ``_also_called(other="name")``."""

    def decorate(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> torch.Tensor:
            for other, name in others.items():
                if other in kwargs and name in kwargs:
                    raise TypeError(f"{function.__name__}() got {name!r} twice: {other!r} is the same")
            return function(*args, **{others.get(key, key): value for key, value in kwargs.items()})

        return called

    return decorate


@_also_called(discount_factor="gamma")
def temporal_difference(
    critic: torch.Tensor, reward: torch.Tensor, must_bootstrap: torch.Tensor, gamma: float
) -> torch.Tensor:
    """``reward[t+1] + gamma * critic[t+1] - critic[t]`` for each time; zero at the last one, which has no successor.

    Args:
        critic: Values of the states, ``[T, B]``.
        reward: Rewards, ``[T, B]``; that of the step from ``t`` to ``t + 1`` is at ``t + 1``.
        must_bootstrap: Where the next state has a value, ``[T - 1, B]``.
        gamma: The discount.

    Example:
        >>> critic, reward = torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0], [3.0]])
        >>> temporal_difference(critic, reward, torch.tensor([[True]]), 0.5).tolist()
        [[3.0], [0.0]]
    """
    target = gamma * critic[1:].detach() * _mask(must_bootstrap, critic) + reward[1:]
    return _with_last(target - critic[:-1])


@_also_called(discount_factor="gamma")
def doubleqlearning_temporal_difference(
    q: torch.Tensor,
    action: torch.Tensor,
    q_target: torch.Tensor,
    reward: torch.Tensor,
    must_bootstrap: torch.Tensor,
    gamma: float,
) -> torch.Tensor:
    """The temporal difference of Q-values: ``q`` chooses the next action, ``q_target`` provides its value.

    Args:
        q: Values of all actions, ``[T, B, A]``.
        action: The actions taken, ``[T, B]``.
        q_target: Values of all actions by the target network, ``[T, B, A]``.
        reward: Rewards, ``[T, B]``.
        must_bootstrap: Where the next state has a value, ``[T - 1, B]``.
        gamma: The discount.
    """
    taken = q.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)
    best = q.detach().argmax(-1, keepdim=True)
    value = q_target.detach().gather(-1, best).squeeze(-1)
    target = gamma * value[1:] * _mask(must_bootstrap, q) + reward[1:]
    return _with_last(target - taken[:-1])


@_also_called(discount_factor="gamma", lam="gae_coef")
def gae(
    reward: torch.Tensor,
    next_critic: torch.Tensor,
    must_bootstrap: torch.Tensor,
    critic: torch.Tensor,
    gamma: float,
    gae_coef: float,
) -> torch.Tensor:
    """Generalised advantage estimates. Gradients flow through ``critic``, but not through ``next_critic``.

    The mask ends both the bootstrapping and the recursion. On data of several steps, where an episode may have been
    truncated in between, use pairs from ``get_transitions``, or the advantages of the next episode leak into this one.

    Args:
        reward: Rewards of the steps, ``[T, B]``.
        next_critic: Values of the states after the steps, ``[T, B]``.
        must_bootstrap: Where the states after the steps have a value, ``[T, B]``.
        critic: Values of the states before the steps, ``[T, B]``.
        gamma: The discount.
        gae_coef: Lambda; 0 gives temporal differences, 1 sums of all rewards.
    """
    mask = _mask(must_bootstrap, critic)
    delta = reward + gamma * next_critic.detach() * mask - critic
    advantages = []
    after = torch.zeros_like(delta[0]) if len(delta) else None
    for t in reversed(range(len(delta))):
        after = delta[t] + gamma * gae_coef * mask[t] * after
        advantages.append(after)
    return torch.stack(advantages[::-1]) if advantages else delta


def cumulated_reward(reward: torch.Tensor, done: torch.Tensor) -> float:
    """The mean over columns of the sum of rewards up to and including the first ``done``.

    Raises:
        WorkspaceError: If a column never ends.
    """
    ended = done.bool()
    if not bool(ended.any(0).all()):
        raise WorkspaceError(f"columns {(~ended.any(0)).nonzero()[:, 0].tolist()} have no end of an episode")
    before = ended.long().cumsum(0) - ended.long()
    return float(torch.where(before == 0, reward, torch.zeros_like(reward)).sum(0).double().mean())


def _mask(must_bootstrap: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return must_bootstrap.to(like.dtype)


def _with_last(td: torch.Tensor) -> torch.Tensor:
    return torch.cat([td, torch.zeros_like(td[:1]) if len(td) else td.new_zeros((1, *td.shape[1:]))])
