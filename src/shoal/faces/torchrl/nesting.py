"""Nested tensors: rows of different lengths in one tensor."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


def nested_tensor(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """Rows that may differ in every dim but their number of dims, as one tensor."""
    with warnings.catch_warnings():
        # torch says once that nested tensors may change; what is used of them here is as old as they are.
        warnings.filterwarnings("ignore", message=".*nested tensors.*", category=UserWarning)
        return torch.nested.nested_tensor(list(rows))
