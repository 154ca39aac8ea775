"""Which ids mean a task of dm_control's suite, and what becomes of them without dm_control."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import gymnasium as gym
import pytest

import shoal
from shoal.envs.dm_control import ENVPOOL_IDS, TASKS, find_task, has_dm_control
from shoal.errors import ArgumentError, BackendUnavailable
from shoal.registry import find
from shoal.testing import CountingEnv

if TYPE_CHECKING:
    from collections.abc import Iterator

needs_dm_control = pytest.mark.skipif(not has_dm_control(), reason="dm_control is not installed")


@pytest.fixture
def no_dm_control(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "dm_control", None)  # which is how Python notes that there is no such module
    has_dm_control.cache_clear()
    yield
    has_dm_control.cache_clear()


def test_the_suite_has_51_tasks_each_under_two_ids() -> None:
    assert len(TASKS) == len(ENVPOOL_IDS) == 51
    assert set(ENVPOOL_IDS.values()) == TASKS.keys()


@pytest.mark.parametrize(
    ("alias", "task_id"),
    [
        ("CheetahRun-v1", "dm_control/cheetah-run"),
        ("BallInCupCatch-v1", "dm_control/ball_in_cup-catch"),
        ("CartpoleSwingupSparse-v1", "dm_control/cartpole-swingup_sparse"),
        ("HumanoidCMURun-v1", "dm_control/humanoid_CMU-run"),
        ("HumanoidRunPureState-v1", "dm_control/humanoid-run_pure_state"),
        ("SwimmerSwimmer15-v1", "dm_control/swimmer-swimmer15"),
        ("StackerStack2-v1", "dm_control/stacker-stack_2"),
        ("dm_control/walker-walk-v0", "dm_control/walker-walk"),
    ],
)
def test_a_task_has_the_names_of_other_libraries_too(alias: str, task_id: str) -> None:
    assert find_task(alias) == find_task(task_id) == (TASKS[task_id], 1000)


def test_lqr_ends_by_itself_but_for_envpool() -> None:
    lqr = TASKS["dm_control/lqr-lqr_2_1"]
    assert find_task("dm_control/lqr-lqr_2_1") == (lqr, None)
    assert find_task("LqrLqr21-v1") == (lqr, 1000)


@pytest.mark.parametrize("task_id", ["dm_control/cheetah-fly", "dm_control/cheetah-run-v1", "CheetahRun-v2"])
def test_other_names_are_refused(task_id: str) -> None:
    with pytest.raises(ArgumentError, match=task_id):
        find(task_id)


@pytest.mark.usefixtures("no_dm_control")
@pytest.mark.parametrize("task_id", ["dm_control/cheetah-run", "CheetahRun-v1", "dm_control/dog-run"])
def test_without_dm_control_the_error_names_the_extra(task_id: str) -> None:
    wanted = f"{task_id}: .*" + r"shoal\[dm-control\]"
    with pytest.raises(BackendUnavailable, match=wanted):
        shoal.make_vec(task_id, 2)
    with pytest.raises(BackendUnavailable, match=wanted):
        shoal.make_dm(task_id)


@pytest.mark.usefixtures("no_dm_control")
def test_without_dm_control_no_task_is_listed() -> None:
    assert not {*TASKS, *ENVPOOL_IDS} & {*shoal.list_all_envs()}


@needs_dm_control
def test_the_tasks_are_those_of_the_installed_suite() -> None:
    from shoal.envs.dm_control.library import load_library

    assert {f"dm_control/{domain}-{task}" for domain, task in load_library().ALL_TASKS} == TASKS.keys()
    assert {*TASKS, *ENVPOOL_IDS} <= {*shoal.list_all_envs()}


@needs_dm_control
def test_an_id_that_another_library_has_registered_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = gym.envs.registration.EnvSpec("dm_control/cheetah-run-v0", CountingEnv)
    monkeypatch.setitem(gym.registry, theirs.id, theirs)
    assert find(theirs.id).env is theirs
