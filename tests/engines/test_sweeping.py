"""``shoal.engines.sweeping``: a step of all envs of a lane is the same, compiled or not, whatever the envs return."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.arrays import Rows
from shoal.engines.base import Command, EngineConfig, Extra, row_layout
from shoal.engines.lane import Lane
from shoal.quick import is_compiled, quick
from shoal.slot import Autoreset

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(not is_compiled, reason="shoal is installed without its compiled part")

VECTOR = spaces.Box(-9, 9, (3,), np.float32)
FLAT = spaces.Dict({"b": spaces.Box(-9, 9, (2, 2), np.float64), "a": spaces.Box(0, 9, (1,), np.uint8)})
DEEP = spaces.Dict({"in": FLAT, "out": VECTOR})
COUNT = spaces.Discrete(50)
POINT = spaces.Box(-9, 9, ())
GRID = spaces.Box(0, 9, (2, 3), np.uint8)
ACTIONS = [spaces.Discrete(3, start=1), spaces.Box(-1, 1, (2,)), spaces.Discrete(10_000)]


class Scripted(gym.Env[Any, Any]):
    """Returns what its script says: functions of what would have been right."""

    env = elapsed = is_mid_episode = None  # not as a slot has them

    def __init__(self, observation: Any, action: Any, script: list[Callable[[Any], Any]]) -> None:
        self.observation_space, self.action_space = observation, action
        self.script, self.age, self.actions = script, 0, []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.observation_space.seed(self.age)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        self.age += 1
        self.observation_space.seed(self.age)
        usual = (self.observation_space.sample(), float(self.age), False, False, {})
        return self.script[self.age % len(self.script)](usual)


def failing(_: Any) -> Any:
    raise ValueError("as ordered")


def leaving(_: Any) -> Any:
    raise SystemExit(3)


def lists(usual: Any) -> Any:
    obs = usual[0]
    told = {k: v.tolist() for k, v in obs.items()} if isinstance(obs, dict) and "b" in obs else obs
    return (told.tolist() if isinstance(told, np.ndarray) else told, *usual[1:])


def doubles(usual: Any) -> Any:
    obs = usual[0]
    return (obs.astype(np.float64) if isinstance(obs, np.ndarray) and obs.dtype.kind == "f" else obs, *usual[1:])


def strided(usual: Any) -> Any:
    obs = usual[0]
    return (np.stack([obs, obs], axis=-1)[..., 0] if isinstance(obs, np.ndarray) else obs, *usual[1:])


SCRIPT: list[Callable[[Any], Any]] = [
    lambda usual: usual,
    lambda usual: (*usual[:4], {"x": usual[1], "y": "text"}),
    lambda usual: (usual[0], usual[1], True, False, {"end": 1}),
    lambda usual: (usual[0], usual[1], False, True, {}),
    lambda usual: (usual[0], np.float64(usual[1]), np.False_, np.bool_(False), {}),
    lambda usual: (usual[0], np.float32(usual[1]), False, False, {}),
    lambda usual: (usual[0], int(usual[1]), False, False, {}),
    lambda usual: (usual[0], usual[1], np.True_, False, {}),
    lambda usual: (usual[0], float("nan"), False, False, {}),
    lambda usual: (usual[0], float("inf"), False, False, {}),
    lambda usual: (usual[0], None, False, False, {}),
    lambda usual: (usual[0], usual[1], 0, False, {}),
    lambda usual: (usual[0], usual[1], False, False, None),
    lambda usual: (usual[0], usual[1], False, False),
    lambda usual: [*usual],
    lambda usual: (None, *usual[1:]),
    lambda usual: ({}, *usual[1:]),
    lambda usual: (np.zeros(99, np.float32), *usual[1:]),
    lists,
    doubles,
    strided,
    failing,
    leaving,
]


def lane_of(observation: Any, action: Any, scripts: Any, autoreset: Autoreset, blocks: int, check: str) -> Lane:
    factories = [lambda script=script: Scripted(observation, action, script) for script in scripts]
    config = EngineConfig(factories, "Scripted", autoreset, blocks=blocks, check=check)
    lane = Lane(config, range(len(scripts)), worker=0)
    assert lane.build() == []
    layout = row_layout(config, lane.specs[0])
    lane.attach(Rows(layout, layout.private()))
    for i in lane.env_ids:
        for block in range(blocks):
            lane.run(i, Command.RESET, None, block)
    return lane


def told(outcomes: Any) -> Any:
    """Outcomes as something to compare: of faults, all but the traceback."""
    return {i: o if isinstance(o, Extra) else (o.where, o.summary, type(o.cause)) for i, o in sorted(outcomes.items())}


def assert_same_rows(one: Lane, other: Lane) -> None:
    for block in range(one._rows.layout.blocks):
        columns, twins = one._rows.of_block(block), other._rows.of_block(block)
        for name, column in columns.items():
            np.testing.assert_array_equal(column, twins[name], err_msg=name)
    for column, twin in zip(one._rows.final, other._rows.final, strict=True):
        np.testing.assert_array_equal(column, twin)


@settings(deadline=None)
@given(
    observation=st.sampled_from([VECTOR, FLAT, DEEP, COUNT, POINT, GRID]),
    action=st.sampled_from(ACTIONS),
    scripts=st.lists(st.lists(st.sampled_from(SCRIPT), min_size=1, max_size=5), min_size=1, max_size=3),
    autoreset=st.sampled_from([Autoreset.NEXT_STEP, Autoreset.SAME_STEP]),
    blocks=st.integers(1, 2),
    check=st.sampled_from(["always", "first"]),
)
def test_rows_and_outcomes_are_those_of_python(
    observation: Any, action: Any, scripts: Any, autoreset: Autoreset, blocks: int, check: str
) -> None:
    fast, slow = (lane_of(observation, action, scripts, autoreset, blocks, check) for _ in range(2))
    assert len(fast.sweeps) == blocks
    slow._sweeps = ()
    for step in range(8):
        for lane in (fast, slow):
            (column,) = lane._rows.action
            action.seed(step)
            assert column is not None
            column[:] = [action.sample() for _ in scripts]
        outcomes = [lane.step_all(step % blocks) for lane in (fast, slow)]
        np.testing.assert_equal(told(outcomes[0]), told(outcomes[1]))
        assert_same_rows(fast, slow)
        assert fast.ends == slow.ends
        for i in fast.env_ids:
            assert fast.slots[i].state == slow.slots[i].state
            mine, theirs = fast.slots[i].env.actions, slow.slots[i].env.actions
            assert [type(a) for a in mine] == [type(a) for a in theirs]
            np.testing.assert_equal(mine, theirs)


def test_an_interrupt_in_the_callers_own_thread_stops_the_sweep() -> None:
    def interrupted(_: Any) -> Any:
        raise KeyboardInterrupt

    scripts = [[SCRIPT[0]], [interrupted], [SCRIPT[0]]]
    lane = lane_of(VECTOR, ACTIONS[0], scripts, Autoreset.NEXT_STEP, 1, "always")
    lane._rows.action[0][:] = 1  # type: ignore[index]
    lane.worker = None
    outcomes = lane.step_all(0)
    assert [*outcomes] == [1]
    assert [lane.slots[i].env.age for i in lane.env_ids] == [1, 1, 0]


def test_an_env_that_has_moved_elsewhere_is_left_out() -> None:
    lane = lane_of(VECTOR, ACTIONS[0], [[SCRIPT[0]]] * 3, Autoreset.NEXT_STEP, 1, "always")
    lane._rows.action[0][:] = [1, 2, 3]  # type: ignore[index]
    gone = lane.slots.pop(1)
    lane._read_actions()
    assert lane.step_all(0) == {}
    assert gone.env.age == 0
    assert [lane.slots[i].env.actions for i in (0, 2)] == [[1], [3]]


def test_the_running_env_is_noted() -> None:
    lane = lane_of(VECTOR, ACTIONS[0], [[SCRIPT[0]]] * 3, Autoreset.NEXT_STEP, 1, "always")
    lane._rows.action[0][:] = 1  # type: ignore[index]
    board = np.full(4, -1, np.int32)
    lane.watch(board, 2)
    lane.step_all(0)
    assert board.tolist() == [-1, -1, 2, -1]


def test_a_sweep_refuses_what_it_cannot_write_to() -> None:
    lane = lane_of(VECTOR, ACTIONS[0], [[SCRIPT[0]]], Autoreset.NEXT_STEP, 1, "always")
    lane._rows.action[0][:] = 7  # type: ignore[index]  # which the pool would have refused
    with pytest.raises(RuntimeError, match="out of range"):
        lane.step_all(0)
    with pytest.raises(TypeError, match="in a slot"):
        quick.Sweep(Scripted, None, (), (), None, 0, None)
    lane._rows.action[0][:] = 1  # type: ignore[index]
    lane.slots[0] = None  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="no row"):
        lane.step_all(0)


@pytest.mark.slow
@pytest.mark.parametrize(("observation", "action"), [*zip([VECTOR, FLAT, COUNT], ACTIONS, strict=True)])
def test_nothing_is_kept_that_was_let_go_of(observation: Any, action: Any) -> None:
    """References are counted by hand in compiled code; a count too many would be memory that never comes back."""
    lane = lane_of(observation, action, [SCRIPT] * 2, Autoreset.NEXT_STEP, 1, "always")
    (column,) = lane._rows.action
    assert column is not None
    column[:] = action.sample()

    def sweep(times: int) -> int:
        for _ in range(times):
            lane.step_all(0)
            for slot in lane.slots.values():
                slot.env.actions.clear()
        gc.collect()
        return sys.getallocatedblocks()

    # Two envs go through the script in each round of it. Numpy and Python fill caches of their own at first.
    before = sweep(30 * len(SCRIPT))
    assert sweep(200 * len(SCRIPT)) - before < 2 * 200 - 50
