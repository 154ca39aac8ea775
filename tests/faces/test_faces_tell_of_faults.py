"""Rows that tell of faults, and of numbers that are none, as the faces show them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest

import shoal
from shoal import Restart
from shoal.testing import CountingEnv, FaultEnv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

AT_ONCE = Restart(backoff_s=0.0)
KEYS = {"kind", "message", "traceback", "phase", "env_id", "incarnation", "attempts"}


def envs(once: Path, fault: str = "raise", where: str = "step", at: int = 2) -> list[Any]:
    fns: list[Any] = [partial(CountingEnv, tag=i, episode_length=50) for i in range(3)]
    fns[1] = partial(FaultEnv, fault, where=where, at=at, once_file=once, tag=1, episode_length=50)
    return fns


@pytest.fixture
def make_vec() -> Iterator[Callable[..., Any]]:
    """``shoal.make_vec``, with every face closed in the end."""
    made: list[Any] = []

    def make(*args: Any, **options: Any) -> Any:
        made.append(shoal.make_vec(*args, **{"engine": "serial", **options}))
        return made[-1]

    yield make
    for face in made:
        face.close()


@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
def test_gymnasiums_face_tells_of_a_fault_in_one_row(
    autoreset: str, tmp_path: Path, make_vec: Callable[..., Any]
) -> None:
    face = make_vec(envs(tmp_path / "once"), autoreset=autoreset, on_fault=AT_ONCE)
    face.reset(seed=0)
    before, _, _, _, infos = face.step([0, 0, 0])
    assert "fault" not in infos
    obs, rewards, terminated, truncated, infos = face.step([0, 0, 0])
    assert infos["_fault"].tolist() == [False, True, False]
    assert {key for key in infos["fault"] if not key.startswith("_")} == KEYS
    assert infos["fault"]["kind"].tolist() == [None, "EnvStepError", None]
    assert (infos["fault"]["env_id"][1], infos["fault"]["incarnation"][1]) == (1, 1)
    assert "InjectedFault" in infos["fault"]["traceback"][1]
    assert (rewards.tolist(), terminated.any(), truncated.tolist()) == ([2, 0, 2], False, [False, True, False])
    if autoreset == "same_step":
        assert infos["_final_obs"].tolist() == [False, True, False]
        assert np.array_equal(infos["final_obs"][1], before[1])
        assert infos["final_info"]["fault"]["kind"][1] == "EnvStepError"
        assert infos["first"].tolist() == [False, True, False]
    else:
        assert np.array_equal(obs[1], before[1])
    if autoreset == "disabled":
        obs, infos = face.reset(options={"reset_mask": truncated})
        assert obs[:, 3].tolist() == [2, 0, 2]
    *_, infos = face.step([0, 0, 0])
    assert "fault" not in infos


def test_gymnasiums_face_tells_of_a_reset_that_was_tried_again(tmp_path: Path, make_vec: Callable[..., Any]) -> None:
    face = make_vec(envs(tmp_path / "once", where="reset", at=1), on_fault=AT_ONCE)
    obs, infos = face.reset(seed=0)
    assert infos["_fault"].tolist() == [False, True, False]
    assert infos["fault"]["phase"][1] == "reset"
    assert (obs[:, 3].tolist(), infos["first"].tolist()) == ([0, 0, 0], [True] * 3)


def test_gymnasiums_face_shows_dropped_envs(tmp_path: Path, make_vec: Callable[..., Any]) -> None:
    face = make_vec(envs(tmp_path / "once"), autoreset="same_step", on_fault="drop")
    face.reset(seed=0)
    before, *_ = face.step([0, 0, 0])
    for turn in range(3):
        obs, rewards, _, truncated, infos = face.step([0, 0, 0])
        assert (rewards[1], truncated.tolist(), "fault" in infos) == (0, [False, True, False], turn == 0)
        # Whoever sees that an episode has ended looks for its last observation.
        assert infos["_final_obs"].tolist() == [False, True, False]
        assert np.array_equal(infos["final_obs"][1], before[1])
        assert np.array_equal(obs[1], before[1])


def test_gymnasiums_wrappers_count_an_episode_that_was_cut_short(tmp_path: Path, make_vec: Callable[..., Any]) -> None:
    face = gym.wrappers.vector.RecordEpisodeStatistics(make_vec(envs(tmp_path / "once"), on_fault=AT_ONCE))
    face.reset(seed=0)
    face.step([0, 0, 0])
    *_, infos = face.step([0, 0, 0])
    assert (infos["_episode"].tolist(), infos["episode"]["r"][1]) == ([False, True, False], 1)


@pytest.mark.parametrize("on_nan", ["truncate", "pass"])
def test_gymnasiums_face_hands_on_what_becomes_of_nan(
    on_nan: str, tmp_path: Path, make_vec: Callable[..., Any]
) -> None:
    face = make_vec(envs(tmp_path / "once", "nan_obs"), on_nan=on_nan)
    face.reset(seed=0)
    face.step([0, 0, 0])
    obs, _, _, truncated, infos = face.step([0, 0, 0])
    assert (np.isnan(obs).any(), truncated[1], "fault" in infos) == (on_nan == "pass", *[on_nan == "truncate"] * 2)
    assert face.stats().nans == 1


def test_gymnasiums_face_tells_of_faults_in_rows_as_they_come(tmp_path: Path, make_vec: Callable[..., Any]) -> None:
    face = make_vec(envs(tmp_path / "once"), batch_size=1, on_fault=AT_ONCE)
    face.async_reset(seed=0)
    told = []
    for _ in range(12):
        obs, _, _, truncated, infos = face.recv(timeout=10)
        if "fault" in infos:
            told.append((infos["env_id"].tolist(), infos["_fault"].tolist(), truncated.tolist()))
        face.send([0] * len(obs), infos["env_id"])
    assert told == [([1], [True], [True])]


# ---------------------------------------------------------------------- EnvPool's face


def test_envpools_face_tells_of_a_fault_in_one_row(
    env_type: str, tmp_path: Path, open_pool: Callable[..., Any]
) -> None:
    # Of three envs of a kind, the first to come to its second step is the one that fails.
    faulty = {"fault": "raise", "at": 2, "once_file": tmp_path / "once", "episode_length": 50}
    pool = open_pool(FaultEnv, env_type, on_fault=AT_ONCE, **faulty)
    pool.reset()
    pool.step(np.zeros(3, np.int64))
    result = pool.step(np.zeros(3, np.int64))
    if env_type == "dm":
        assert result.last().tolist() == [True, False, False]
        assert result.discount is not None
        assert result.reward.tolist() == [0, 2, 2]
        return
    infos = result[-1]
    assert infos["fault"]["kind"].tolist() == ["EnvStepError", None, None]
    assert infos["fault"]["incarnation"].tolist() == [1, 0, 0]
    assert result[1].tolist() == [0, 2, 2]
    if env_type == "gymnasium":
        assert result[3].tolist() == [True, False, False]
