"""Some envs of a batched env, as an env of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shoal.errors import TensorEnvError
from shoal.faces.torchrl.batched.group import EnvGroup

if TYPE_CHECKING:
    from shoal.faces.torchrl.batched.base import BatchedEnv
    from shoal.faces.torchrl.batched.hosts import Host


class EnvView(EnvGroup):
    """Some envs of a batched env, shared with it: to step one of them here is to step it there.

    Args:
        whole: The batched env.
        places: Which of its envs.
    """

    def __init__(self, whole: BatchedEnv, places: list[int]) -> None:
        super().__init__(
            [whole._metas[place] for place in places], [whole._ids[place] for place in places], whole.device
        )
        self.__dict__["_whole"] = whole

    def _running(self) -> Host:
        whole: BatchedEnv = self.__dict__["_whole"]
        if whole.is_closed:
            raise TensorEnvError("the env that this is a view of is closed")
        return whole._running()

    @property
    def is_closed(self) -> bool:
        """Whether the env that this is a view of is closed."""
        return bool(self.__dict__["_whole"].is_closed)

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Do nothing: the envs belong to the env that this is a view of."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or "_whole" not in self.__dict__:
                raise
        self._running()
        return self.__dict__["_whole"]._attributes(self._ids, name)

    def __getitem__(self, index: Any) -> EnvView:
        return EnvView(self.__dict__["_whole"], [self._ids[place] for place in places_of(index, len(self._ids))])


def view_of(whole: BatchedEnv, index: Any) -> EnvView:
    """The envs that an index names; they are started if they are not running."""
    places = places_of(index, len(whole._ids))
    whole._running()
    return EnvView(whole, places)


def places_of(index: Any, count: int) -> list[int]:
    """The places that an int, a slice or a list of ints names.

    Raises:
        IndexError: If there is no such place.
        NotImplementedError: If it is a mask.

    Example:
        >>> places_of(-1, 3), places_of(slice(1, None), 3), places_of([2, 0], 3)
        ([2], [1, 2], [2, 0])
    """
    if isinstance(index, slice):
        return list(range(count))[index]
    if isinstance(index, range):
        index = list(index)
    if isinstance(index, bool) or np.asarray(index).dtype == np.bool_:
        raise NotImplementedError("envs are chosen by their numbers, not by a mask; mask.nonzero().flatten() has them")
    wanted = torch.as_tensor(index).flatten().tolist()
    outside = [place for place in wanted if not -count <= place < count]
    if outside:
        raise IndexError(f"env {outside[0]} of {count}")
    return [place % count for place in wanted]
