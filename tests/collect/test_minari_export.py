"""A dataset as Minari reads it: the same steps in the same order, as episodes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import minari
import numpy as np
import pytest
from gymnasium import spaces

import shoal
from shoal.collect import load_dataset, write_dataset
from shoal.collect.minari_export import check_spaces, to_minari
from shoal.errors import ArgumentError, BackendUnavailable
from shoal.testing import CountingEnv, DictTupleEnv, SampleEnv

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.collect.columns import Columns


def exported(folder: Path, env: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Columns, Any]:
    """The rows of a dataset of three parts, and the Minari dataset that was made of it."""
    with shoal.make_pool(env, 3, engine="serial", **options) as pool:
        write_dataset(pool, folder / "rows", steps=100, seed=4, format="npz", part_rows=40)
        to_minari(load_dataset(folder / "rows"), folder / "shoal-v0", pool.spec)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    return load_dataset(folder / "rows").to_numpy(), minari.load_dataset("shoal-v0")


def episodes_of(rows: Columns) -> list[Columns]:
    """Rows by episode. Episodes are numbered per env through all parts, and none goes from one part into the next."""
    part = np.repeat([0, 1, 2], [40, 40, 20])
    keys = np.stack([part, rows["env_id"], rows["episode"]], 1)
    return [{name: v[(keys == key).all(1)] for name, v in rows.items()} for key in np.unique(keys, axis=0)]


def leaf(value: Any, path: str) -> Any:
    for key in path.split(".")[1:]:
        value = value[int(key)] if isinstance(value, tuple) else value[key]
    return np.array(value) if isinstance(value, list) else value


def assert_same(episode: Any, rows: Columns) -> None:
    assert len(episode) == len(rows["reward"])
    assert np.array_equal(episode.rewards, rows["reward"])
    assert np.array_equal(episode.terminations, rows["terminated"])
    cut = np.zeros(len(episode), bool)
    cut[-1] = not rows["terminated"][-1]
    assert np.array_equal(episode.truncations, rows["truncated"] | cut), "what a part has cut counts as truncated"
    for name, values in rows.items():
        kind = name.partition(".")[0]
        if kind == "action":
            found = leaf(episode.actions, name)
        elif kind in ("obs", "next_obs"):
            every = leaf(episode.observations, name)
            assert len(every) == len(episode) + 1, "the last observation is there too"
            found = every[:-1] if kind == "obs" else every[1:]
        else:
            continue
        assert np.array_equal(found, values), name


SPACE = spaces.Dict({"picture": spaces.Box(0, 255, (2, 3, 3), np.uint8), "half": spaces.Box(0, 1, (2,), np.float16)})


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize(
    "env",
    [
        lambda: CountingEnv(episode_length=7),
        lambda: CountingEnv(episode_length=7, ending="truncated"),
        DictTupleEnv,
        lambda: SampleEnv(SPACE),
    ],
    ids=["terminated", "truncated", "nested", "pictures"],
)
def test_every_step_of_every_episode(env: Any, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, dataset = exported(tmp_path, env, monkeypatch, autoreset=mode)
    expected = episodes_of(rows)
    episodes = list(dataset.iterate_episodes())
    assert dataset.total_steps == 100
    assert dataset.total_episodes == len(episodes) == len(expected)
    for episode, own in zip(episodes, expected, strict=True):
        assert_same(episode, own)


def test_the_env_can_be_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, dataset = exported(tmp_path, "CartPole-v1", monkeypatch)
    with dataset.recover_environment() as env:
        assert env.spec.id == "CartPole-v1"
        assert env.observation_space == dataset.observation_space == gym.make("CartPole-v1").observation_space
        assert env.action_space == dataset.action_space
    told = dataset.storage.metadata
    assert told["algorithm_name"] == "random"
    assert "seed 4" in told["description"]


def test_what_a_killed_run_has_left_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".shoal-v0.minari" / "shoal-v0" / "data").mkdir(parents=True)
    monkeypatch.setenv("MINARI_DATASETS_PATH", "/somewhere/else")
    with shoal.make_pool(CountingEnv, 2, engine="serial") as pool:
        write_dataset(pool, tmp_path / "rows", steps=30, seed=4, format="npz")
        to_minari(load_dataset(tmp_path / "rows"), tmp_path / "shoal-v0", pool.spec)
    assert os.environ["MINARI_DATASETS_PATH"] == "/somewhere/else"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows", "shoal-v0"]


def test_a_relative_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with shoal.make_pool(CountingEnv, 2, engine="serial") as pool:
        write_dataset(pool, "rows", steps=30, seed=4, format="npz")
        for folder in ("data/shoal-v0", "other-v0"):
            to_minari(load_dataset("rows"), folder, pool.spec)
    for place, name in (("data", "shoal-v0"), (".", "other-v0")):
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / place))
        assert minari.load_dataset(name).total_steps == 30


class Vague(spaces.Space[Any]):
    """A space that nobody knows."""

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        return "something"

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)


class VagueEnv(SampleEnv):
    def __init__(self) -> None:
        super().__init__(spaces.Dict(a=Vague()), spaces.Discrete(2))


def test_spaces_that_minari_does_not_know_are_refused_before_anything_is_collected() -> None:
    with (
        shoal.make_pool(VagueEnv, 1, engine="serial") as pool,
        pytest.raises(ArgumentError, match=r"VagueEnv: Minari cannot keep its observation space"),
    ):
        check_spaces(pool.spec)


def test_a_name_without_a_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with shoal.make_pool(CountingEnv, 2, engine="serial") as pool:
        write_dataset(pool, tmp_path / "rows", steps=30, seed=4, format="npz")
        dataset = load_dataset(tmp_path / "rows")
        with pytest.raises(ArgumentError, match="ends with a version"):
            to_minari(dataset, tmp_path / "shoal", pool.spec)
        monkeypatch.setitem(sys.modules, "minari", None)
        with pytest.raises(BackendUnavailable, match=r"shoal\[minari\]"):
            to_minari(dataset, tmp_path / "shoal-v0", pool.spec)
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]
