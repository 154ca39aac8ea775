"""The bookkeeping between send and recv: the quick way for whole pools must say the same as plain sets."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shoal.engines.base import Command
from shoal.traffic import Held, Traffic


def step(number: int = 0) -> Held:
    return Held(Command.STEP, (number,))


def flying(num_envs: int, ids: list[int] | None = None) -> Traffic:
    traffic = Traffic(num_envs)
    traffic.take_off(list(range(num_envs)) if ids is None else ids)
    return traffic


def test_a_new_traffic_is_empty() -> None:
    traffic = Traffic(3)
    assert traffic.is_empty
    assert (traffic.num_flying, traffic.num_under_way, traffic.landed()) == (0, 0, [])


@pytest.mark.parametrize("ids", [[0, 1, 2], [2, 0]], ids=["all", "some"])
def test_a_command_goes_through_its_stations(ids: list[int]) -> None:
    traffic = flying(3, ids)
    assert (traffic.num_flying, traffic.landed()) == (len(ids), [])
    assert traffic.num_flying == len(ids)
    assert all(traffic.is_busy(i) for i in ids)
    traffic.land(ids)
    assert (traffic.num_flying, traffic.num_under_way, traffic.landed()) == (0, len(ids), ids)
    assert traffic.num_flying == 0
    assert all(traffic.is_busy(i) for i in ids)
    assert traffic.hand_out(ids) == []
    assert traffic.is_empty


@pytest.mark.parametrize("station", ["flying", "landed"])
def test_asking_who_is_busy_changes_nothing(station: str) -> None:
    """Another thread may be in the middle of a send."""
    traffic = flying(3)
    if station == "landed":
        traffic.land([0, 1, 2])
    before = deepcopy(vars(traffic))
    assert traffic.busy() == [0, 1, 2]
    assert vars(traffic) == before


def test_rows_are_listed_by_arrival_or_by_group() -> None:
    traffic = flying(4)
    for i in (2, 0, 3):
        traffic.land([i])
    assert traffic.landed() == [2, 0, 3]
    assert traffic.landed([0, 1, 2]) == [0, 2]


def test_what_waits_follows_one_by_one_when_its_row_is_handed_out() -> None:
    traffic = flying(3)
    for number in (1, 2):
        traffic.hold(1, step(number))
    traffic.land([0, 1, 2])
    assert traffic.hand_out([0, 1, 2]) == [(1, step(1))]
    assert not traffic.is_empty
    traffic.take_off([1])
    traffic.land([1])
    assert traffic.hand_out([1]) == [(1, step(2))]
    assert traffic.is_empty


def test_a_row_cannot_be_handed_out_before_it_has_landed() -> None:
    with pytest.raises(KeyError):
        flying(2, [0]).hand_out([0])


def test_forgetting_drops_rows_waiting_commands_and_groups() -> None:
    traffic = flying(3)
    traffic.groups.extend([[0, 1, 2], [1], [2, 1]])
    traffic.hold(1, step())
    traffic.hold(2, step())
    traffic.land([0, 1, 2])
    traffic.forget([1])
    assert list(traffic.groups) == [[0, 2], [2]]
    assert traffic.landed() == [0, 2]
    assert not traffic.is_busy(1)
    assert traffic.hand_out([0, 2]) == [(2, step())]


def test_what_is_abandoned_in_flight_never_lands() -> None:
    traffic = flying(3)
    traffic.groups.append([0, 1, 2])
    traffic.abandon([1])
    traffic.land([0, 1, 2])
    assert traffic.landed() == [0, 2]
    assert list(traffic.groups) == [[0, 2]]
    traffic.take_off([1])
    traffic.land([1])  # a new command of the same env does
    assert traffic.landed() == [0, 2, 1]


def test_a_refused_command_never_flew() -> None:
    traffic = flying(3)
    traffic.cancel([0, 1, 2])
    assert traffic.is_empty


class TrafficAgainstSets(RuleBasedStateMachine):
    """Random traffic, compared with sets that know no shortcut for whole pools."""

    @initialize(num_envs=st.integers(1, 4))
    def begin(self, num_envs: int) -> None:
        self.traffic = Traffic(num_envs)
        self.num_envs = num_envs
        self.flying: set[int] = set()
        self.landed: list[int] = []
        self.void: set[int] = set()
        self.waiting: dict[int, list[Held]] = {}
        self.count = 0

    def some(self, data: st.DataObject, ids: Any) -> list[int]:
        ids = sorted(ids)
        return data.draw(st.permutations(ids))[: data.draw(st.integers(1, len(ids)))]

    @property
    def idle(self) -> list[int]:
        return [i for i in range(self.num_envs) if i not in self.flying and i not in self.landed]

    @precondition(lambda self: self.idle)
    @rule(data=st.data())
    def take_off(self, data: st.DataObject) -> None:
        ids = self.some(data, self.idle)
        self.traffic.take_off(ids)
        self.flying |= set(ids)

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def land(self, data: st.DataObject) -> None:
        ids = self.some(data, self.flying)
        self.traffic.land(ids)
        self.flying -= set(ids)
        self.landed += [i for i in ids if i not in self.void]
        self.void -= set(ids)

    @precondition(lambda self: self.flying - self.void or self.landed)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        env_id = data.draw(st.sampled_from(sorted(self.flying - self.void | set(self.landed))))
        self.count += 1
        self.traffic.hold(env_id, step(self.count))
        self.waiting.setdefault(env_id, []).append(step(self.count))

    @precondition(lambda self: self.landed)
    @rule(data=st.data())
    def hand_out(self, data: st.DataObject) -> None:
        ids = self.some(data, self.landed)
        expected = [(i, self.waiting[i].pop(0)) for i in ids if self.waiting.get(i)]
        self.landed = [i for i in self.landed if i not in ids]
        assert self.traffic.hand_out(ids) == expected
        follow_up = [i for i, _ in expected]
        if follow_up:
            self.traffic.take_off(follow_up)
            self.flying |= set(follow_up)

    @precondition(lambda self: len(self.flying) < self.num_envs)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        ids = self.some(data, set(range(self.num_envs)) - self.flying)
        self.traffic.forget(ids)
        self.landed = [i for i in self.landed if i not in ids]
        for i in ids:
            self.waiting.pop(i, None)

    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        ids = self.some(data, range(self.num_envs))
        self.traffic.abandon(ids)
        self.void |= self.flying.intersection(ids)
        self.landed = [i for i in self.landed if i not in ids]
        for i in ids:
            self.waiting.pop(i, None)

    @invariant()
    def says_the_same_as_sets(self) -> None:
        traffic = self.traffic
        assert traffic.num_flying == len(self.flying)
        assert traffic.is_empty == (not self.flying and not self.landed)
        for i in range(self.num_envs):
            assert traffic.num_flying == len(self.flying)
            assert traffic.is_busy(i) == (i in self.flying or i in self.landed)

    def teardown(self) -> None:
        """Last, since these two make the traffic give up its shortcuts."""
        if hasattr(self, "traffic"):
            assert sorted(self.traffic.landed()) == sorted(self.landed)
            assert self.traffic.num_under_way == len(self.flying) + len(self.landed)


TestTrafficAgainstSets = TrafficAgainstSets.TestCase
TestTrafficAgainstSets.settings = settings(deadline=None, max_examples=150, stateful_step_count=25)


def test_what_has_waited_for_something_lost_is_lost_with_it() -> None:
    traffic = Traffic(2)
    traffic.take_off([0, 1])
    traffic.hold(0, Held(Command.STEP))
    traffic.cancel_all()
    assert traffic.is_empty
