"""What a pool remembers of each env, and what it writes down when one fails."""

from __future__ import annotations

import logging
import os
import re
import stat
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shoal import Restart, errors
from shoal.black_box import BlackBox
from shoal.engines.base import Command, Request
from shoal.recording import Recording
from shoal.testing import CountingEnv, DictTupleEnv, FaultEnv, TextEnv

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import shoal

    MakePool = Callable[..., shoal.Pool]


class Fragile(CountingEnv):
    """Fails at a state that follows from its seed: in the third step of an episode whose draw ends in 7."""

    def step(self, action: Any) -> Any:
        if self._step == 2 and self._draw % 10 == 7:
            raise ValueError(f"draw {self._draw}")
        return super().step(action)


def told(pool: shoal.Pool, env_id: int, folder: Path) -> Recording:
    """What a pool tells of an env, by way of the disk."""
    return Recording.load(pool.save_black_box(folder, env_id))


def recordings(folder: Path) -> list[Recording]:
    return [Recording.load(path) for path in sorted(folder.iterdir())]


@pytest.mark.parametrize("way", ["serial", "thread", "process"])
def test_a_synchronous_pool(make_pool: MakePool, tmp_path: Path, way: str) -> None:
    pool = make_pool(CountingEnv, 3, engine=way, seed=5)
    pool.reset()
    for k in range(4):
        pool.step([k, 1, 2])
    for i in range(3):
        story = told(pool, i, tmp_path)
        assert story.script == [["reset", 5 + i, None], ["step", 4]]
        assert story.actions[0].tolist() == ([0, 1, 2, 3] if i == 0 else [i] * 4)
        assert (story.env_id, story.gaps, story.fault) == (i, (), None)


def test_steps_of_some_envs(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool(CountingEnv, 3, engine="serial")
    pool.reset(seed=1)
    pool.step([0, 1, 2])
    pool.step([4, 3], env_id=[2, 0])
    pool.step([1, 1, 1])
    pool.step([2], env_id=[1])
    assert [told(pool, i, tmp_path).actions[0].tolist() for i in range(3)] == [[0, 3, 1], [1, 1, 2], [2, 4, 1]]


def test_an_asynchronous_pool(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool(CountingEnv, 4, engine="thread", batch_size=2)
    pool.async_reset(seed=1)
    sent: dict[int, list[int]] = {i: [] for i in range(4)}
    for k in range(40):
        ids = pool.recv().env_id.tolist()
        for i in ids:
            sent[i].append(k % 5)
        pool.send([k % 5] * len(ids), env_id=ids)
    # Some are still under way, and count: whoever fails there is told up to there.
    for i in range(4):
        assert told(pool, i, tmp_path).actions[0].tolist() == sent[i]


def test_what_waits_for_its_turn_is_not_told_yet(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool(CountingEnv, 2, engine="serial")
    pool.reset(seed=1)
    pool.send([1, 1])
    pool.send([2, 2])
    assert told(pool, 0, tmp_path).actions[0].tolist() == [1]
    pool.recv()
    assert told(pool, 0, tmp_path).actions[0].tolist() == [1, 2]
    pool.recv()


def test_explicit_resets_without_autoreset(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool(CountingEnv, 2, engine="serial", autoreset="disabled", env_kwargs={"episode_length": 2})
    options = {"level": 3}
    pool.reset(seed=[8, None], options=options)
    options["level"] = 4
    for _ in range(2):
        pool.step([0, 1])
        pool.step([2, 3])
        pool.reset(env_id=[1, 0])
    pool.step([1, 1])
    story = told(pool, 0, tmp_path)
    assert (story.autoreset, story.gaps) == ("disabled", ())
    start = ["reset", 8, {"level": 3}]
    assert story.script == [start, ["step", 2], ["reset", None, None], ["step", 2], ["reset", None, None], ["step", 1]]
    assert told(pool, 1, tmp_path).gaps == (
        "the env was never reset with a seed, so nobody knows the state of its generator",
    )


def test_a_story_begins_with_the_last_seed(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool(CountingEnv, 2, engine="serial")
    pool.reset(seed=1)
    pool.step([3, 3])
    pool.reset(seed=[9], env_id=[1])
    pool.step([4, 4])
    assert told(pool, 0, tmp_path).script == [["reset", 1, None], ["step", 2]]
    story = told(pool, 1, tmp_path)
    assert (story.script, story.actions[0].tolist()) == ([["reset", 9, None], ["step", 1]], [4])


def test_a_first_step_that_is_a_reset(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool(CountingEnv, 2, engine="serial", implicit_reset=True, seed=3)
    pool.step([1, 2])
    pool.step([3, 4])
    story = told(pool, 1, tmp_path)
    assert (story.script, story.actions[0].tolist()) == ([["reset", 4, None], ["step", 1]], [4])


def test_nested_actions_are_kept_leaf_by_leaf(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool(DictTupleEnv, 2, engine="serial")
    pool.reset(seed=1)
    space = pool.spec.action.space
    for _ in range(3):
        leaves = [pool.spec.action.flatten(space.sample()) for _ in range(2)]
        pool.step(pool.spec.action.unflatten([np.stack(pair) for pair in zip(*leaves, strict=True)]))
    story = told(pool, 1, tmp_path)
    expected = [(leaf.shape, leaf.dtype) for leaf in pool.spec.action.leaves]
    assert [(leaf.shape[1:], leaf.dtype) for leaf in story.actions] == expected
    assert {len(leaf) for leaf in story.actions} == {3}
    last = pool.spec.action.flatten(pool.spec.action.unflatten([leaf[-1] for leaf in story.actions]))
    for mine, theirs in zip(last, [leaf[1] for leaf in zip(*leaves, strict=True)], strict=True):
        np.testing.assert_array_equal(mine, theirs)


# ---------------------------------------------------------------------- what does not fit


def test_the_ring_forgets_the_oldest_steps_and_says_so(make_pool: MakePool) -> None:
    pool = make_pool(CountingEnv, 2, engine="serial")
    box = BlackBox(pool.engine.rows, most_bytes=0)
    pool.reset(seed=1)
    _note_reset(box, seed=1)
    for k in range(20):
        pool.engine.rows.action[0][:] = k
        box.note_step_of_all()
        if k == 2:
            _note_reset(box)
        if k == 15:
            assert box.gaps(0) == ()
    _note_reset(box)
    script, (actions,) = box.script(0)
    assert script == [["reset", 1, None], ["step", 16], ["reset", None, None]]
    assert actions.tolist() == list(range(4, 20))
    assert box.gaps(0) == ("the last reset with a seed is longer ago than the 16 steps that are kept",)
    _note_reset(box, seed=2)
    assert (box.script(0)[0], box.gaps(0)) == ([["reset", 2, None]], ())


def test_a_story_whose_first_reset_is_forgotten_can_be_loaded(
    make_pool: MakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.black_box._MOST_STEPS", 16)
    pool = make_pool(CountingEnv, 2, engine="serial")
    pool.reset()
    for k in range(20):
        pool.step([k % 5, 1])
    story = told(pool, 0, tmp_path)
    assert story.script == [["reset", None, None], ["step", 16]]
    assert story.actions[0].tolist() == [k % 5 for k in range(4, 20)]


def test_envs_that_move_apart_are_kept_as_long(make_pool: MakePool) -> None:
    """Every env has room for as many steps, however seldom it is among those that step."""
    pool = make_pool(CountingEnv, 3, engine="serial")
    box = BlackBox(pool.engine.rows, most_bytes=0)
    _note_reset(box, seed=1)
    for k in range(100):
        pool.engine.rows.action[0][:] = k
        if k % 10 == 0:
            box.note_step_of_all()
        else:
            box.note([2], Command.STEP, None)
    assert [box.script(i)[1][0].tolist() for i in (0, 2)] == [list(range(0, 100, 10)), list(range(84, 100))]
    assert [len(box.gaps(i)) for i in range(3)] == [0, 0, 1]


def test_too_many_resets_are_told(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.black_box._MOST_RESETS", 3)
    box = BlackBox(make_pool(CountingEnv, 1, engine="serial").engine.rows)
    _note_reset(box, seed=1)
    for _ in range(3):
        _note_reset(box)
    assert box.gaps(0) == ()
    _note_reset(box)
    assert box.gaps(0) == ("the last reset with a seed is longer ago than the 3 resets that are kept",)


def test_options_that_json_cannot_hold_are_told(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool(CountingEnv, 1, engine="serial")
    pool.reset(seed=1, options={"start": np.zeros(2)})
    story = told(pool, 0, tmp_path)
    assert story.script == [["reset", 1, None]]
    assert story.gaps == ("a reset had options that JSON cannot hold, and is repeated without them",)


def test_an_env_that_was_meddled_with_is_told(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool(CountingEnv, 2, engine="serial", env_kwargs={"render_mode": "rgb_array"})
    pool.reset(seed=1)
    pool.render()
    pool.get_attr("tag")
    assert told(pool, 0, tmp_path).gaps == ()
    pool.set_attr("tag", 5, env_id=[0])
    pool.reset(seed=1)
    assert told(pool, 0, tmp_path).gaps == ("the env was changed by what is not recorded ('tag')",)
    assert told(pool, 1, tmp_path).gaps == ()
    pool.restart()
    assert told(pool, 0, tmp_path).gaps == ()


def test_a_pool_without_a_box_says_so(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool(lambda: CountingEnv(action_space=TextEnv().observation_space), 1, engine="serial")
    with pytest.raises(errors.StateError, match="keeps no black box"):
        pool.save_black_box(tmp_path, 0)


# ---------------------------------------------------------------------- faults


@pytest.mark.parametrize("way", ["serial", "thread", "process"])
def test_each_incarnation_has_a_story_of_its_own(make_pool: MakePool, tmp_path: Path, way: str) -> None:
    pool = make_pool(Fragile, 3, engine=way, on_fault=Restart(budget=None, backoff_s=0), fault_dir=tmp_path)
    pool.reset(seed=20)
    seeds = []
    while pool.stats().faults < 8:
        for _, info in pool.step([1, 2, 3]).infos:
            if "fault" in info:
                story = Recording.load(info["fault"]["folder"])
                assert story.fault is not None
                assert story.fault["message"] == info["fault"]["message"]
                seeds.append((story.env_id, story.script[0][1]))
    assert len(set(seeds)) == len(seeds) >= 8
    for story in recordings(tmp_path):
        assert [entry[0] for entry in story.script] == ["reset", "step"]
        assert set(story.actions[0].tolist()) == {story.env_id + 1}
        assert story.gaps == ()


def test_a_fault_that_is_raised_names_its_folder(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool(Fragile, 4, engine="serial", fault_dir=tmp_path / "faults")
    pool.reset(seed=20)
    with pytest.raises(errors.EnvStepError) as caught:
        deque((pool.step([0] * 4) for _ in range(1000)), maxlen=0)
    (path,) = (tmp_path / "faults").iterdir()
    assert caught.value.__notes__[-1] == f"Do it again: shoal replay {path}"
    assert re.fullmatch(rf".+-pid{os.getpid()}-\d+-env{caught.value.env_id}-EnvStepError", path.name)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    on_demand = told(pool, caught.value.env_id, tmp_path / "mine")
    assert on_demand.fault == Recording.load(path).fault
    # What is known outlives the pool.
    pool.close()
    assert told(pool, caught.value.env_id, tmp_path / "mine").script == on_demand.script


def test_pools_that_share_a_folder_do_not_overwrite_each_other(make_pool: MakePool, tmp_path: Path) -> None:
    for tag in range(3):
        pool = make_pool(FaultEnv, 1, engine="serial", fault_dir=tmp_path, env_kwargs={"at": 1, "tag": tag})
        pool.reset(seed=tag)
        with pytest.raises(errors.EnvStepError):
            pool.step([0])
    assert sorted(story.script[0][1] for story in recordings(tmp_path)) == [0, 1, 2]


def test_folders_are_bounded_and_the_last_one_is_announced(
    make_pool: MakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("shoal.black_box._MOST_SAVED", 3)
    pool = make_pool(Fragile, 3, engine="serial", on_fault=Restart(budget=None, backoff_s=0), fault_dir=tmp_path)
    pool.reset(seed=20)
    with caplog.at_level(logging.WARNING, "shoal"):
        while pool.stats().faults < 6:
            pool.step([0] * 3)
    assert len(list(tmp_path.iterdir())) == 3
    assert [record.getMessage() for record in caplog.records] == [
        f"3 faults are recorded in {tmp_path}; further ones of this pool are not"
    ]


def test_a_place_that_cannot_be_written_to_costs_a_warning_and_no_more(
    make_pool: MakePool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = make_pool(Fragile, 2, engine="serial", on_fault="restart", fault_dir=tmp_path / "file")
    (tmp_path / "file").write_text("in the way")
    pool.reset(seed=20)
    with caplog.at_level(logging.WARNING, "shoal"):
        while pool.stats().faults < 1:
            pool.step([0] * 2)
    assert "could not be written" in caplog.text


def test_the_limit_of_a_registered_env_is_the_pools(make_pool: MakePool, tmp_path: Path) -> None:
    registered = make_pool("CartPole-v1", 1, engine="serial", max_episode_steps=9)
    own = make_pool(CountingEnv, 1, engine="serial", max_episode_steps=7, check="first", bounded_actions=False)
    registered.reset(seed=1)
    own.reset(seed=1)
    assert told(registered, 0, tmp_path).max_episode_steps == 9
    story = told(own, 0, tmp_path)
    assert (story.max_episode_steps, story.check, story.bounded_actions) == (7, "first", False)


def _note_reset(box: BlackBox, seed: int | None = None) -> None:
    box.note(range(box._num_envs), Command.RESET, {i: Request(seed=seed) for i in range(box._num_envs)})
