"""Data from a pool, without phantom transitions.

Collector       runs a pool under a policy: epochs, episodes, evaluations
Epoch           the result of one run, as segments; its transitions are the same in every autoreset mode
Segment         ``T`` steps of ``N`` envs, with the rows before and after
Episode         one whole episode
write_dataset   collects into a folder, part by part
load_dataset    reads such a folder

    >>> import shoal
    >>> with shoal.make_pool("CartPole-v1", 2, engine="serial") as pool:
    ...     epoch = shoal.Collector(pool, seed=1).collect(10)
    >>> epoch.transitions().reward.shape
    (20,)
"""

from __future__ import annotations

from shoal.collect.collector import Collector, Policy
from shoal.collect.dataset import Dataset, DatasetConfig, load_dataset
from shoal.collect.episodes import Episode, Evaluation
from shoal.collect.segment import Epoch, Segment, Transitions
from shoal.collect.writing import Written, write_dataset

__all__ = [
    "Collector",
    "Dataset",
    "DatasetConfig",
    "Episode",
    "Epoch",
    "Evaluation",
    "Policy",
    "Segment",
    "Transitions",
    "Written",
    "load_dataset",
    "write_dataset",
]
