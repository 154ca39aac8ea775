"""T10: what cannot be an action is refused before any env moves, and the next good step is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fault_cases import WAYS, close_in_time, options_of, rows_of
from gymnasium import spaces

from shoal import errors
from shoal.testing import CountingEnv

if TYPE_CHECKING:
    from collections.abc import Callable

    import shoal

DISCRETE = spaces.Discrete(5)
VECTOR = spaces.Box(-1, 1, (2,), np.float32)
GOOD: dict[str, Any] = {"discrete": [1, 2, 3, 4], "vector": np.full((4, 2), [[0.25], [0.5], [0.75], [1.0]], np.float32)}
SUMS = {"discrete": [1, 2, 3, 4], "vector": [0.5, 1.0, 1.5, 2.0]}
SPACES = {"discrete": DISCRETE, "vector": VECTOR}

# For each space: what is sent, to whom, and what the error says of what it expected and got.
BAD: dict[str, tuple[str, Any, Any, str]] = {
    "too few": ("discrete", [0, 0, 0], None, r"action: expected shape \(4,\), got \(3,\); one action per env"),
    "too many": ("discrete", [0] * 5, None, r"action: expected shape \(4,\), got \(5,\)"),
    "none at all": ("discrete", [], None, r"action: expected shape \(4,\), got \(0,\)"),
    "an axis too many": (
        "discrete",
        [[0]] * 4,
        None,
        r"expected shape \(4,\), got \(4, 1\); drop the last axis",
    ),
    "an axis too few": ("vector", [0.0] * 4, None, r"action: expected shape \(4, 2\), got \(4,\)"),
    "floats": ("discrete", [0.7] * 4, None, "action: expected dtype int64, got float64"),
    "complex": ("vector", np.zeros((4, 2), complex), None, "action: expected dtype float32, got complex128"),
    "objects": ("discrete", [0, 0, None, 0], None, "action: expected dtype int64, got object"),
    "too large": ("discrete", [0, 0, 5, 0], None, r"action: row 2: .*5.* is outside Discrete\(5\)"),
    "too small": ("discrete", [0, -1, 0, 0], None, r"action: row 1: .*-1.* is outside Discrete\(5\)"),
    "unsigned": ("discrete", np.array([0, 0, 0, 2**64 - 1], np.uint64), None, "action: .* overflows int64"),
    "outside": ("vector", [[0, 0], [0, 0], [0, 0], [0, 1.5]], None, "action: row 3: .* is outside Box"),
    "nan": ("vector", [[0, 0], [0, np.nan], [0, 0], [0, 0]], None, "action: row 1: .*nan.* is outside Box"),
    "infinite": ("vector", [[0, 0], [0, 0], [np.inf, 0], [0, 0]], None, "action: row 2: .*inf.* is outside Box"),
    "overflow": ("vector", [[0, 0], [0, 0], [0, 0], [1e300, 0]], None, "action: .* overflows float32"),
    "duplicate ids": ("discrete", [0, 0, 0], [1, 3, 1], r"env_id: \[1\] given more than once"),
    "unknown id": ("discrete", [0, 0], [2, 4], r"env_id: \[4\] out of range, the pool has envs 0 to 3"),
    "negative id": ("discrete", [0, 0], [-1, 2], r"env_id: \[-1\] out of range"),
    "fewer actions than ids": ("discrete", [0], [1, 3], r"action: expected shape \(2,\), got \(1,\)"),
    "more actions than ids": ("discrete", [0] * 4, [1, 3], r"action: expected shape \(2,\), got \(4,\)"),
}


def assert_nothing_moved(pool: shoal.Pool, steps: int, call: Callable[..., object], case: str) -> None:
    """One bad call changes nothing: no step counted, nothing under way, no action remembered."""
    _, action, env_id, text = BAD[case]
    with pytest.raises(errors.ActionError, match=text) as caught:
        call(action, env_id=env_id)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(errors.NothingInFlight):
        pool.recv(timeout=0)
    assert pool.get_attr("total_steps") == (steps,) * 4


@pytest.mark.parametrize(("call", "name"), [("step", "discrete"), ("send", "vector")])
@pytest.mark.parametrize("way", WAYS)
def test_t10_a_bad_action_moves_nobody_and_the_next_good_step_is_right(
    way: str, call: str, name: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    kwargs = [{"tag": i, "episode_length": 99, "action_space": SPACES[name]} for i in range(4)]
    pool = make_pool(CountingEnv, 4, env_kwargs=kwargs, **options_of(way))
    pool.reset(seed=0)
    for steps, case in enumerate(case for case in BAD if BAD[case][0] == name):
        assert_nothing_moved(pool, steps, getattr(pool, call), case)
        batch = pool.step(GOOD[name])
        rows = rows_of(batch)
        assert [(row.tag, row.step, row.action) for row in rows] == [(i, steps + 1, SUMS[name][i]) for i in range(4)]
        assert batch.reward.tolist() == [steps + 1] * 4
    close_in_time(pool)


@pytest.mark.parametrize("way", ["serial", "thread", "process"])
def test_t10_a_bad_send_leaves_rows_under_way_alone(way: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(CountingEnv, 4, env_kwargs={"episode_length": 99}, **options_of(way))
    pool.reset(seed=0)
    pool.send([1, 2], env_id=[0, 2])
    for bad, ids in (([0, 9], [1, 3]), ([9], [2]), ([0], [1, 3])):
        with pytest.raises(errors.ActionError):
            pool.send(bad, env_id=ids)
    batch = pool.recv()
    assert (batch.env_id.tolist(), [row.action for row in rows_of(batch)]) == ([0, 2], [1, 2])
    with pytest.raises(errors.NothingInFlight):
        pool.recv(timeout=0)
    assert [row.step for row in rows_of(pool.step([0] * 4))] == [2, 1, 2, 1]


@pytest.mark.parametrize("way", ["serial", "thread", "process"])
def test_t10_an_asynchronous_pool_refuses_as_strictly(way: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(CountingEnv, 4, batch_size=2, env_kwargs={"episode_length": 99}, **options_of(way))
    pool.reset(seed=0)
    for case in (case for case in BAD if BAD[case][0] == "discrete"):
        assert_nothing_moved(pool, 0, pool.send, case)
    pool.send([1, 2, 3, 4])
    actions = {}
    for _ in range(2):
        batch = pool.recv(timeout=10)
        actions.update(zip(batch.env_id.tolist(), [row.action for row in rows_of(batch)], strict=True))
    assert actions == {0: 1, 1: 2, 2: 3, 3: 4}


def test_t10_the_callers_array_is_not_kept(make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(CountingEnv, 4, env_kwargs={"episode_length": 99}, engine="process", num_workers=2)
    pool.reset(seed=0)
    actions = np.array([1, 2, 3, 4])
    pool.send(actions)
    actions[:] = 9
    assert [row.action for row in rows_of(pool.recv())] == [1, 2, 3, 4]
