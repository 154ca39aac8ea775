"""Recordings as folders: what goes in comes out, and what was not put in does nothing."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import stat
import zipfile
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from full_disk import NO_ROOM, no_room
from gymnasium.wrappers import TimeLimit

from shoal.errors import ArgumentError
from shoal.recipes import recipe_for
from shoal.recording import Origin, Recording, is_json, is_recording
from shoal.testing import CountingEnv

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FAULT = {"kind": "EnvStepError", "message": "step failed in env 3: ValueError: no", "traceback": "", "phase": "step"}
STORY = Recording(
    env_id=3,
    origin=Origin("id", "CartPole-v1", {"sutton_barto_reward": True}),
    autoreset="same_step",
    max_episode_steps=9,
    script=[["reset", 7, {"level": [1, 2]}], ["step", 2], ["reset", None, None], ["step", 1]],
    actions=[np.array([1, 0, 1]), np.zeros((3, 2), np.float32)],
    check="first",
    bounded_actions=False,
    finite_rewards=False,
    gaps=("something",),
    fault=FAULT,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return STORY.save(tmp_path / "deep" / "fault")


def rewrite(folder: Path, **changes: Any) -> None:
    story = json.loads((folder / "fault.json").read_text())
    (folder / "fault.json").write_text(json.dumps({**story, **changes}))


def put_actions(folder: Path, data: bytes) -> None:
    """Exchange the actions, with the digest that belongs to them."""
    (folder / "actions.npz").write_bytes(data)
    rewrite(folder, actions_sha256=hashlib.sha256(data).hexdigest())


def packed(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def test_what_is_saved_is_loaded(folder: Path) -> None:
    loaded = Recording.load(folder)
    assert replace(loaded, actions=[]) == replace(STORY, actions=[])
    for mine, theirs in zip(loaded.actions, STORY.actions, strict=True):
        assert mine.dtype == theirs.dtype
        assert (mine == theirs).all()


def test_saving_again_replaces_what_is_there(folder: Path) -> None:
    replace(STORY, env_id=5).save(folder)
    assert Recording.load(folder).env_id == 5
    assert sorted(os.listdir(folder)) == ["actions.npz", "fault.json"]


def test_only_the_owner_may_read_it(folder: Path) -> None:
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_a_file_that_cannot_be_written_leaves_what_was_there(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(OSError, match=NO_ROOM), no_room():
        replace(STORY, env_id=5).save(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_commands_are_the_script_one_by_one() -> None:
    first, *rest = STORY.commands()
    assert (first.is_reset, first.seed, first.options) == (True, 7, {"level": [1, 2]})
    assert [command.is_reset for command in rest] == [False, False, True, False]
    assert [command.action[0].tolist() for command in rest if not command.is_reset] == [[1], [0], [1]]
    assert (STORY.num_steps, STORY.num_resets, STORY.num_commands) == (3, 2, 5)
    assert [STORY.steps_among(n) for n in range(7)] == [0, 0, 1, 2, 2, 3, 3]


# ---------------------------------------------------------------------- what is refused


class Bomb:
    """Leaves a file behind if somebody unpickles it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_among_the_actions_is_refused_and_not_loaded(folder: Path, tmp_path: Path) -> None:
    bomb = np.empty(3, object)
    bomb[:] = [Bomb(tmp_path / "gone off")] * 3
    put_actions(folder, packed(leaf0=bomb))
    with pytest.raises(ArgumentError, match="not a recording"):
        Recording.load(folder)
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr("leaf0", pickle.dumps(Bomb(tmp_path / "gone off")))
    put_actions(folder, raw.getvalue())
    with pytest.raises(ArgumentError):
        Recording.load(folder)
    put_actions(folder, pickle.dumps(Bomb(tmp_path / "gone off")))
    with pytest.raises(ArgumentError):
        Recording.load(folder)
    assert not (tmp_path / "gone off").exists()


@pytest.mark.parametrize("name", ["fault.json", "actions.npz"])
@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
def test_a_file_that_is_cut_off_is_refused(folder: Path, name: str, part: float) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: int(part * len(data))])
    with pytest.raises(ArgumentError, match="not a recording"):
        Recording.load(folder)


def test_other_actions_than_those_recorded_are_refused(folder: Path) -> None:
    (folder / "actions.npz").write_bytes(packed(leaf0=np.zeros(3), leaf1=np.zeros((3, 2))))
    with pytest.raises(ArgumentError, match=r"actions\.npz is not the file that was recorded"):
        Recording.load(folder)


def test_an_archive_that_unpacks_to_far_too_much_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.recording._MOST_BYTES", 100_000)
    put_actions(folder, packed(leaf0=np.zeros(1_000_000)))
    with pytest.raises(ArgumentError, match="too large"):
        Recording.load(folder)
    (folder / "fault.json").write_text(" " * 100_001)
    with pytest.raises(ArgumentError, match="too large"):
        Recording.load(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 2},
        {"script": [["step", 3]]},
        {"script": [["reset", 1, None], ["step", 10**12]]},
        {"script": [["reset", 1, None], ["step", True], ["step", 2]]},
        {"script": [["reset", -1, None], ["step", 3]]},
        {"script": [["reset", 1, "hard"], ["step", 3]]},
        {"script": [["call", 1, None], ["step", 3]]},
        {"script": 5},
        {"autoreset": "sometimes"},
        {"max_episode_steps": 0},
        {"env_id": "3"},
        {"finite_rewards": 1},
        {"gaps": [5]},
        {"origin": {"kind": "pickle", "name": "x", "kwargs": {}, "lost": [], "wrappers": []}},
        {"origin": {"kind": "id", "name": "x", "kwargs": [], "lost": [], "wrappers": []}},
        {"origin": {"kind": "id", "name": "x", "kwargs": {}, "lost": [], "wrappers": [], "more": 1}},
        {"fault": {"kind": "EnvStepError"}},
        {"fault": "yes"},
        {"surprise": 1},
    ],
    ids=lambda changes: json.dumps(changes)[:40],
)
def test_nonsense_is_refused(folder: Path, changes: dict[str, Any]) -> None:
    rewrite(folder, **changes)
    with pytest.raises(ArgumentError, match="not a recording"):
        Recording.load(folder)


def test_what_is_no_folder_or_no_file_is_refused(tmp_path: Path, folder: Path) -> None:
    assert is_recording(folder)
    assert not is_recording(tmp_path)
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ArgumentError, match=r"there is no file fault\.json"):
            Recording.load(place)
    (folder / "actions.npz").unlink()
    os.mkfifo(folder / "actions.npz")
    with pytest.raises(ArgumentError, match=r"there is no file actions\.npz"):
        Recording.load(folder)
    (folder / "fault.json").write_text("[" * 100_000)
    with pytest.raises(ArgumentError):
        Recording.load(folder)


# ---------------------------------------------------------------------- how an env was made


def origin_of(env: Any, **options: Any) -> Origin:
    return Origin.of(recipe_for(env, 1, **options).factories[0])


def test_the_origin_of_a_registered_env() -> None:
    assert origin_of("CartPole-v1") == Origin("id", "CartPole-v1")
    wrapped = origin_of(
        "CartPole-v1", env_kwargs={"render_mode": None}, wrappers=[partial(TimeLimit, max_episode_steps=3)]
    )
    assert wrapped.kwargs == {"render_mode": None}
    assert wrapped.wrappers == ("gymnasium.wrappers.common:TimeLimit",)
    other = gym.spec("CartPole-v1")
    assert origin_of(replace(other)).lost == ()
    assert origin_of(replace(other, max_episode_steps=3)).lost == ("an EnvSpec that is not registered",)


def test_the_origin_of_a_callable() -> None:
    place = "shoal.testing.envs:CountingEnv"
    assert origin_of(CountingEnv) == Origin("callable", place)
    told = origin_of(partial(partial(CountingEnv, tag=1), episode_length=5), env_kwargs={"tag": 2, "dtype": np.float32})
    assert told == Origin("callable", place, {"tag": 2, "episode_length": 5}, ("dtype",))
    assert str(told) == f"{place}(tag=2, episode_length=5)"
    assert origin_of(partial(max, 1)) == Origin("callable", "builtins:max", {}, ("a positional int",))
    assert Origin.of(lambda: None).name.endswith(".<lambda>")


@pytest.mark.parametrize("value", [None, 1.5, "x", [1, {"a": [True]}], np.float64(2.0)])
def test_json_holds(value: Any) -> None:
    assert is_json(value)


@pytest.mark.parametrize("value", [(1, 2), {1: 2}, np.zeros(2), float("nan"), object(), {1}, b"x"])
def test_json_does_not_hold(value: Any) -> None:
    assert not is_json(value)
