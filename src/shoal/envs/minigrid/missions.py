"""Missions as arrays: their text as bytes, and the number of each mission among those that an env may set."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

FREE_TEXT = -1  # the number of a mission that is not on a list


def encode_mission(mission: str, size: int) -> NDArray[np.uint8]:
    """A text as ``size`` bytes, with zeros after its end.

    Raises:
        ValueError: If it is longer.
    """
    data = mission.encode()
    if len(data) > size:
        raise ValueError(f"the mission {mission!r} takes {len(data)} bytes, and there are {size}")
    return np.frombuffer(data.ljust(size, b"\0"), np.uint8)


def decode_mission(mission: Any) -> Any:
    """The text of a mission, or an object array of the texts of a batch of missions.

    Example:
        >>> decode_mission(encode_mission("open the door", 96))
        'open the door'
    """
    codes = np.asarray(mission, np.uint8)
    if codes.ndim == 1:
        return codes.tobytes().partition(b"\0")[0].decode()
    texts = np.empty(codes.shape[:-1], object)
    for index in np.ndindex(texts.shape):
        texts[index] = decode_mission(codes[index])
    return texts


def number_missions(space: Any, ranks: Mapping[str, int]) -> dict[str, int]:
    """The number of every mission in a minigrid mission space.

    The words that may fill a placeholder count like digits, with the last placeholder running fastest. They are ordered
    by ``ranks`` if all of them have one, as colours and things do, else as the space has them.
    """
    places: Sequence[Sequence[str]] = space.ordered_placeholders or ()
    ordered = [sorted(words, key=ranks.__getitem__) if ranks.keys() >= set(words) else words for words in places]
    return {space.mission_func(*words): number for number, words in enumerate(product(*ordered))}
