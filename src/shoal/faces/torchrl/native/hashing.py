"""SipHash: rows of tensors to integers."""

from __future__ import annotations

import torch
from torch import nn


class SipHash(nn.Module):
    """The hash that Python gives the bytes of each row: equal rows have equal hashes.

    Hashes differ from process to process unless ``PYTHONHASHSEED`` is set.

    Args:
        as_tensor: Whether to return a tensor of int64 rather than a list.

    Example:
        >>> import torch
        >>> from shoal.faces.torchrl import SipHash
        >>> first, second, third = SipHash()(torch.tensor([[1, 2], [1, 2], [2, 1]]))
        >>> bool(first == second), bool(first == third)
        (True, False)
    """

    def __init__(self, as_tensor: bool = True) -> None:
        super().__init__()
        self.as_tensor = as_tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor | list[int]:
        """The hash of each vector along the last dim.

        Args:
            x: A tensor of shape ``(*batch, n)``.

        Returns:
            Integers of shape ``batch``; without ``as_tensor`` a flat list of them.
        """
        rows = x.detach().cpu().reshape(-1, x.shape[-1] if x.ndim else 1).contiguous().numpy()
        hashes = [hash(row.tobytes()) for row in rows]
        if not self.as_tensor:
            return hashes
        return torch.tensor(hashes, dtype=torch.int64, device=x.device).reshape(x.shape[:-1])
