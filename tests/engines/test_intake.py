"""``shoal.engines.intake``: what is plainly right is taken, everything else is left to the long way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium import spaces

from shoal.arrays import RowLayout, Rows
from shoal.engines import intake
from shoal.engines.intake import intake_of
from shoal.quick import is_compiled
from shoal.spec import EnvSpec, SpaceTree

if TYPE_CHECKING:
    from gymnasium import Space


def rows_of(action: Space[Any], num_envs: int = 3) -> Rows:
    observation = SpaceTree(spaces.Box(-1, 1, (2,)), "observation")
    layout = RowLayout(EnvSpec(observation, SpaceTree(action, "action"), "Env"), num_envs)
    return Rows(layout, layout.private())


@pytest.mark.parametrize("start", [0, -2, 5])
def test_what_fits_is_taken(start: int) -> None:
    rows = rows_of(spaces.Discrete(3, start=start))
    take = intake_of(rows)
    assert take is not None
    actions = np.array([start, start + 2, start + 1])
    assert take(actions)
    assert rows.action[0] is not None
    assert rows.action[0].tolist() == actions.tolist()


@pytest.mark.parametrize(
    "actions",
    [
        np.array([0, 1, 3]),
        np.array([-1, 0, 0]),
        np.array([0, 1]),
        np.array([[0], [1], [2]]),
        np.array([0, 1, 2], np.int32),
        np.array([0.0, 1.0, 2.0]),
        [0, 1, 2],
        None,
    ],
)
def test_everything_else_is_left_alone(actions: Any) -> None:
    rows = rows_of(spaces.Discrete(3))
    take = intake_of(rows)
    assert take is not None
    assert take(np.array([2, 2, 2]))
    assert not take(actions)
    assert rows.action[0] is not None
    assert rows.action[0].tolist() == [2, 2, 2]


def test_steps_of_an_array_are_read_by_value() -> None:
    rows = rows_of(spaces.Discrete(9))
    take = intake_of(rows)
    assert take is not None
    assert take(np.arange(6)[::-2])
    assert rows.action[0] is not None
    assert rows.action[0].tolist() == [5, 3, 1]


def test_integers_without_bounds_of_their_own_are_taken_whatever_their_number() -> None:
    limits = np.iinfo(np.int64)
    rows = rows_of(spaces.Box(limits.min, limits.max, (2,), np.int64), num_envs=100)
    take = intake_of(rows)
    assert take is not None
    actions = np.array([[limits.min, limits.max]] * 100)
    assert take(actions)
    for other in (actions[:99], actions[:, 0], actions.astype(np.uint64), actions.tolist()):
        assert not take(other)
    assert rows.action[0] is not None
    assert rows.action[0].tolist() == actions.tolist()


@pytest.mark.parametrize(
    ("action", "num_envs"),
    [
        (spaces.Discrete(3), 65),
        (spaces.Box(-1, 1, (2,)), 3),
        (spaces.Box(-1, 1, ()), 3),
        (spaces.MultiDiscrete([3, 3]), 3),
    ],
)
def test_other_numbers_are_for_compiled_code(
    action: Space[Any], num_envs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_compiled:
        assert intake_of(rows_of(action, num_envs)) is not None
    monkeypatch.setattr(intake, "can_check", lambda dtype: False)
    assert intake_of(rows_of(action, num_envs)) is None


@pytest.mark.parametrize("action", [spaces.Dict({"a": spaces.Discrete(3)}), spaces.Text(3)])
def test_other_actions_have_no_such_way(action: Space[Any]) -> None:
    assert intake_of(rows_of(action)) is None


def test_python_takes_what_compiled_code_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "can_check", lambda dtype: False)
    rows = rows_of(spaces.Discrete(3, start=-1))
    take = intake_of(rows)
    assert take is not None
    assert take(np.array([-1, 0, 1]))
    for other in ([-2, 0, 1], [0, 2, 0], [0, 1]):
        assert not take(np.array(other))
    assert rows.action[0] is not None
    assert rows.action[0].tolist() == [-1, 0, 1]
