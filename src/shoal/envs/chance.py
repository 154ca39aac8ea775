"""Random draws that several envs share."""

from __future__ import annotations

from typing import Any


def one_of_three(first: float, second: float, third: float, rng: Any) -> int:
    """0, 1 or 2 with these probabilities, from one random number.

    Computed probabilities may add up to a little less than one. What is missing goes to 0, as in Gymnasium.
    """
    luck = rng.random()
    if first > luck:
        return 0
    if first + second > luck:
        return 1
    if first + second + third > luck:
        return 2
    return 0
