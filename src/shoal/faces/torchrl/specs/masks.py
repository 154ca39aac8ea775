"""Masks: which choices of a discrete spec are allowed at the moment.

A mask is a bool tensor, True where a choice is allowed. Its last dim runs over the choices, the dims before it over the
elements of the spec; more dims may come first, for a batch of values.
"""

from __future__ import annotations

import torch


def checked_mask(mask: torch.Tensor | None, shape: torch.Size, device: torch.device | None) -> torch.Tensor | None:
    """The mask expanded to ``(*elements, choices)``, with any further dims in front."""
    if mask is None:
        return None
    mask = torch.as_tensor(mask, device=device)
    if mask.dtype is not torch.bool:
        raise ValueError(f"a mask is of bools, got {mask.dtype}")
    size = [1 if dim < 0 else dim for dim in shape]
    extra = mask.ndim - len(size)
    try:
        return mask.expand(*mask.shape[: max(extra, 0)], *size)
    except RuntimeError as error:
        raise RuntimeError(f"a mask of shape {tuple(mask.shape)} cannot be expanded to {tuple(size)}") from error


def draw(mask: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """A random allowed choice per element; the mask is expanded to ``(*shape, choices)``.

    Raises:
        RuntimeError: Nothing is allowed for some element.
    """
    choices = mask.shape[-1]
    rows = mask.expand(*shape, choices).reshape(-1, choices)
    if not bool(rows.any(-1).all()):
        raise RuntimeError("the mask allows no choice at all")
    return torch.multinomial(rows.to(torch.float32), 1).reshape(shape)


def allowed(mask: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
    """Which of these choices the mask allows."""
    shape = torch.broadcast_shapes(choice.shape, mask.shape[:-1])
    rows = mask.expand(*shape, mask.shape[-1])
    return rows.gather(-1, choice.expand(shape).long().unsqueeze(-1)).squeeze(-1)
