"""Missions as bytes and as numbers."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal.envs.minigrid import decode_mission
from shoal.envs.minigrid.missions import encode_mission, number_missions

texts = st.text(max_size=20).filter(lambda text: "\0" not in text)


@given(texts, st.integers(0, 9))
def test_bytes_and_back(text: str, spare: int) -> None:
    size = len(text.encode()) + spare
    data = encode_mission(text, size)
    assert (data.dtype, data.shape) == (np.uint8, (size,))
    assert decode_mission(data) == text


def test_a_batch_of_missions() -> None:
    batch = np.stack([encode_mission(text, 8) for text in ("go", "", "stay")])
    found = decode_mission(batch)
    assert found.tolist() == ["go", "", "stay"]
    assert decode_mission(batch[None]).shape == (1, 3)


def test_a_mission_that_is_too_long() -> None:
    with pytest.raises(ValueError, match="takes 4 bytes, and there are 3"):
        encode_mission("stay", 3)


def test_numbers_are_those_of_envpool() -> None:
    pytest.importorskip("minigrid")
    import gymnasium as gym
    from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX

    def numbers(task_id: str) -> dict[str, int]:
        space = gym.make(task_id).observation_space["mission"]
        return number_missions(space, {**COLOR_TO_IDX, **OBJECT_TO_IDX})

    near = numbers("MiniGrid-PutNear-6x6-N2-v0")
    assert near["put the blue key near the yellow key"] == 120
    assert near["put the yellow ball near the purple ball"] == 244
    assert sorted(near.values()) == list(range(324))
    fetch = numbers("MiniGrid-Fetch-5x5-N2-v0")
    assert [fetch[f"get a {what}"] for what in ("red key", "red ball", "green key", "grey ball")] == [0, 1, 2, 11]
    assert fetch["go get a red key"] == 12
    doors = numbers("MiniGrid-GoToDoor-5x5-v0")
    assert [doors[f"go to the {colour} door"] for colour in ("red", "green", "blue", "grey")] == [0, 1, 2, 5]


def test_it_is_where_programs_for_envpool_look_for_it() -> None:
    assert shoal.minigrid.decode_mission is decode_mission
    assert "minigrid" in dir(shoal)
    script = "import shoal, sys; print('shoal.envs.minigrid' in sys.modules, 'minigrid' in shoal.__all__)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["False", "False"], "it is imported when it is needed"
