"""Which envs may be stepped, and what is said about the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.batch import Batch
from shoal.errors import ActionError, EnvStepError, NotReset, StateError
from shoal.faults import fault_from
from shoal.readiness import Readiness, check_ids


def ended(*flags: tuple[bool, bool], begun: list[bool] | None = None) -> Batch:
    """A batch with these (terminated, truncated) rows, of which some have begun the next episode."""
    n = len(flags)
    terminated, truncated = (np.array(column, np.bool_) for column in zip(*flags, strict=True))
    zeros = np.zeros(n)
    first = np.array(begun or [False] * n, np.bool_)
    return Batch(zeros, zeros, terminated, truncated, np.arange(n, dtype=np.int32), zeros.astype(np.int32), first)


def fault(env_id: int) -> Any:
    return fault_from(ValueError("broken"), env_id=env_id, phase="step")


def test_nothing_is_ready_at_first_and_everything_after_its_reset() -> None:
    ready = Readiness(3)
    assert not ready.all_ready
    with pytest.raises(NotReset, match=r"envs \[0, 2\] were never reset: call reset\(\) first"):
        ready.refuse_unready([0, 2])
    ready.note_reset([0, 1])
    ready.refuse_unready([1, 0])
    assert not ready.all_ready
    ready.note_reset([2])
    assert ready.all_ready
    ready.refuse_unready([0, 1, 2])


def test_without_autoreset_the_end_of_an_episode_asks_for_a_reset() -> None:
    ready = Readiness(4)
    ready.note_reset([0, 1, 2, 3])
    ready.note_ends(slice(None), ended((False, False), (True, False), (False, True), (True, True)))
    assert not ready.all_ready
    ready.refuse_unready([0])
    with pytest.raises(NotReset, match=r"envs \[1, 2, 3\] have finished their episodes, and no autoreset follows"):
        ready.refuse_unready([0, 1, 2, 3])
    ready.note_reset([1, 2, 3])
    assert ready.all_ready


def test_an_episode_that_has_begun_asks_for_no_reset() -> None:
    ready = Readiness(2)
    ready.note_reset([0, 1])
    ready.note_ends(slice(None), ended((True, False), (False, True), begun=[True, False]))
    ready.refuse_unready([0])
    with pytest.raises(NotReset, match=r"envs \[1\] have finished"):
        ready.refuse_unready([0, 1])


def test_rows_without_an_end_change_nothing() -> None:
    ready = Readiness(2)
    ready.note_reset([0, 1])
    ready.note_ends(slice(None), ended((False, False), (False, False)))
    assert ready.all_ready


def test_an_env_that_failed_is_refused_with_the_reason_until_it_is_forgiven() -> None:
    ready = Readiness(3)
    ready.note_reset([0, 1, 2])
    ready.note_faults([1], [fault(1)])
    assert not ready.all_ready
    ready.refuse_unready([0, 2])
    with pytest.raises(
        StateError, match=r"envs \[1\] failed earlier \(ValueError: broken\): reset them first"
    ) as error:
        ready.refuse_unready([0, 1])
    assert not isinstance(error.value, NotReset | EnvStepError)
    ready.forgive([0, 1])
    assert ready.all_ready


def test_forgiving_does_not_make_up_for_a_reset() -> None:
    ready = Readiness(2)
    ready.note_reset([0])
    ready.note_faults([0], [fault(0)])
    ready.forgive([0, 1])
    assert not ready.all_ready
    with pytest.raises(NotReset, match=r"\[1\]"):
        ready.refuse_unready([0, 1])


@given(
    st.lists(
        st.tuples(st.sampled_from(["reset", "end", "fault", "forgive"]), st.sets(st.integers(0, 3), min_size=1)),
        max_size=15,
    )
)
def test_all_ready_says_whether_anyone_would_be_refused(events: list[tuple[str, set[int]]]) -> None:
    ready = Readiness(4)
    for name, chosen in events:
        ids = sorted(chosen)
        if name == "reset":
            ready.forgive(ids)
            ready.note_reset(ids)
        elif name == "end":
            ready.note_ends(ids, ended(*[(True, False)] * len(ids)))
        elif name == "fault":
            ready.note_faults(ids, [fault(i) for i in ids])
        else:
            ready.forgive(ids)
        refused = []
        for i in range(4):
            try:
                Readiness.refuse_unready(ready, [i])
            except StateError:
                refused.append(i)
        assert ready.all_ready == (refused == [])


# ---------------------------------------------------------------------- ids


@pytest.mark.parametrize("given_ids", [[2, 0], (2, 0), np.array([2, 0]), np.array([2, 0], np.uint8), range(2, -1, -2)])
def test_ids_come_out_as_plain_ints_in_their_order(given_ids: Any) -> None:
    ids = check_ids(given_ids, 3)
    assert ids == [2, 0]
    assert all(type(i) is int for i in ids)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ([], "expected at least one id"),
        (np.array([], np.int64), "expected at least one id"),
        (1, "expected a list of ints"),
        ([[0], [1]], "expected a list of ints"),
        ([0.0, 1.0], "expected a list of ints"),
        ([True, False], "expected a list of ints"),
        (["0"], "expected a list of ints"),
        ([None], "expected a list of ints"),
        ([0, [1, 2]], "expected a list of ints"),
        ("01", "expected a list of ints"),
        ([0, 3], r"\[3\] out of range, the pool has envs 0 to 2"),
        ([-1], r"\[-1\] out of range"),
        ([1, 2, 1, 2], r"\[1, 2\] given more than once"),
    ],
)
def test_ids_that_cannot_be_are_refused(wrong: Any, told: str) -> None:
    with pytest.raises(ActionError, match=f"env_id: {told}"):
        check_ids(wrong, 3)
