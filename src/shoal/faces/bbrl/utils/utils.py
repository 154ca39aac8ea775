"""Updates of network parameters."""

from __future__ import annotations

import torch


def soft_param_update(network_to_update: torch.nn.Module, network: torch.nn.Module, rho: float) -> None:
    """Move the parameters of a network towards those of another, which get the weight ``rho``.

    Example:
        >>> target, net = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
        >>> _ = target.weight.data.fill_(0.0), net.weight.data.fill_(1.0)
        >>> soft_param_update(target, net, 0.25)
        >>> target.weight.item()
        0.25
    """
    with torch.no_grad():
        for target, source in zip(network_to_update.parameters(), network.parameters(), strict=True):
            target.mul_(1 - rho).add_(source, alpha=rho)
