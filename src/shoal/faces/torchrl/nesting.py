"""Nested tensors: rows of different lengths in one tensor."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


def nested_tensor(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """Rows as one tensor; they may differ in the size of every dim, but not in the number of dims."""
    with warnings.catch_warnings():
        # torch warns once that nested tensors may change; what is used of them here has been there from the start.
        warnings.filterwarnings("ignore", message=".*nested tensors.*", category=UserWarning)
        return torch.nested.nested_tensor(list(rows))
