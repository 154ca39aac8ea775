"""Agents that write data from a dataset to the workspace, one time step per call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from shoal.faces.bbrl.agents.agent import Agent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class ShuffledDatasetAgent(Agent):
    """Writes a random batch from a dataset at time 0.

    Args:
        dataset: Returns a tuple of tensors for an index.
        batch_size: How many items to draw, with replacement.
        output_names: The variables for the elements of the tuple, or for the first few of them.
    """

    def __init__(self, dataset: Any, batch_size: int, output_names: Sequence[str] = ("x", "y")) -> None:
        super().__init__()
        self.dataset, self.batch_size, self.output_names = dataset, batch_size, tuple(output_names)
        self._generator = torch.Generator()

    def seed(self, seed: int) -> Self:
        """Seed the draws; returns the agent."""
        self._generator.manual_seed(seed)
        return self

    def forward(self, **kwargs: Any) -> None:
        """Write a batch."""
        chosen = torch.randint(len(self.dataset), (self.batch_size,), generator=self._generator).tolist()
        items = [self.dataset[i] for i in chosen]
        for name, parts in zip(self.output_names, zip(*items, strict=True), strict=False):
            self.set((name, 0), torch.stack([torch.as_tensor(part) for part in parts]))


class DataLoaderAgent(Agent):
    """Writes the batches of a data loader, one after the other, at time 0.

    Attributes:
        is_finished: Whether the loader had run out of batches; the next call begins anew.
    """

    def __init__(self, dataloader: Iterable[Any], output_names: Sequence[str] = ("x", "y")) -> None:
        super().__init__()
        self.dataloader, self.output_names = dataloader, tuple(output_names)
        self._batches: Iterator[Any] | None = None
        self.is_finished = False

    def reset(self) -> None:
        """Start again with the first batch."""
        self._batches, self.is_finished = None, False

    def finished(self) -> bool:
        """Whether the loader had run out of batches in the last call."""
        return self.is_finished

    def forward(self, **kwargs: Any) -> None:
        """Write the next batch."""
        if self._batches is None:
            self._batches = iter(self.dataloader)
        batch = next(self._batches, None)
        self.is_finished = batch is None
        if batch is None:
            self._batches = None
            return
        for name, part in zip(self.output_names, batch, strict=False):
            self.set((name, 0), part)
