"""How a policy explores: tensordict's interaction types under the names that envs use."""

from __future__ import annotations

from typing import Any

from tensordict.nn.probabilistic import InteractionType as ExplorationType
from tensordict.nn.probabilistic import interaction_type as exploration_type
from tensordict.nn.probabilistic import set_interaction_type

__all__ = ["ExplorationType", "exploration_type", "set_exploration_type"]


class set_exploration_type(set_interaction_type):
    """Set how policies explore, inside a ``with`` block or a decorated function.

    Args:
        type: A member of ExplorationType, or its name in upper or lower case.
        **options: Passed on to tensordict's ``set_interaction_type``.

    Raises:
        ValueError: There is no such type.

    Example:
        >>> with set_exploration_type("mean"):
        ...     exploration_type()
        <InteractionType.MEAN: 'mean'>
    """

    def __init__(self, type: ExplorationType | str | None = ExplorationType.DETERMINISTIC, **options: Any) -> None:
        super().__init__(ExplorationType.from_str(type) if isinstance(type, str) else type, **options)
