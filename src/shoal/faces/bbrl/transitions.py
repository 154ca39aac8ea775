"""From a history of time steps to the steps of envs in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ENDS = ("done", "terminated", "truncated")  # what an env agent calls its flags


def transitions_of(fulls: Mapping[str, torch.Tensor], flag: str | None) -> Iterator[tuple[str, torch.Tensor]]:
    """Pairs of successive times of each variable, as ``[2, number of pairs, ...]``.

    Args:
        fulls: All time steps of each variable; all variables have equally many.
        flag: The variable that is True where an episode has ended; None keeps all pairs as they are.
    """
    finals = {} if flag is None else _finals_beside(fulls, flag)
    pairs = None if flag is None or finals else (~fulls[flag][:-1].bool()).flatten().nonzero()[:, 0]
    for name, full in fulls.items():
        halves = (full[:-1].flatten(0, 1), finals.get(name, full)[1:].flatten(0, 1))
        if pairs is not None:
            chosen = pairs.to(full.device)
            halves = (halves[0].index_select(0, chosen), halves[1].index_select(0, chosen))
        yield name, torch.stack(halves)


def _finals_beside(fulls: Mapping[str, torch.Tensor], flag: str) -> dict[str, torch.Tensor]:
    """The observations before resets in the same step, by variable, for the agent that writes this flag."""
    agents = {flag.removesuffix(end) for end in _ENDS if flag.endswith(end)}
    names = [name for name in fulls if "env_obs" in name and name.partition("env_obs")[0] in agents]
    return {name: fulls[twin] for name in names if (twin := final_name(name)) in fulls}


def final_name(name: str) -> str:
    """The name of the last observation where the next episode's first one has taken its place in ``env_obs``.

    Example:
        >>> final_name("env/env_obs/arm")
        'env/final_obs/arm'
    """
    return name.replace("env_obs", "final_obs", 1)
