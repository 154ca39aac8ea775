"""Who is built anew, when, and on which seeds; T08's schedule to the tick of a clock."""

from __future__ import annotations

from typing import Any

import pytest

from shoal import Restart, errors
from shoal.faults import Fault
from shoal.recovery import FaultNote, Ledger, Recovery
from shoal.seeding import restart_seed


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def fault(env_id: int = 0, phase: str = "step", text: str = "ValueError: no", **more: Any) -> Fault:
    return Fault(errors.Where((env_id,), phase), text, **more)


@pytest.fixture
def clock() -> Clock:
    return Clock()


# ---------------------------------------------------------------------- how long


@pytest.mark.parametrize(
    ("in_a_row", "wait_s"), [(0, 0.0), (1, 0.0), (2, 0.1), (3, 0.2), (4, 0.4), (8, 6.4), (9, 10.0), (10**6, 10.0)]
)
def test_the_first_restart_is_free_and_each_further_one_waits_twice_as_long(in_a_row: int, wait_s: float) -> None:
    assert Restart().wait_s(in_a_row) == pytest.approx(wait_s)


def test_the_first_restart_may_wait_too() -> None:
    rules = Restart(backoff_s=0.5, longest_s=1.5, waits_first=True)
    assert [rules.wait_s(count) for count in range(5)] == [0.0, 0.5, 0.5, 1.0, 1.5]


def test_without_backoff_nobody_waits() -> None:
    assert {Restart(backoff_s=0.0).wait_s(count) for count in range(100)} == {0.0}


@pytest.mark.parametrize(
    "wrong", [{"budget": -1}, {"quiet_s": -0.1}, {"backoff_s": -1}, {"longest_s": -1}, {"tries": 0}]
)
def test_rules_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.ArgumentError, match=rf"on_fault: .*{next(iter(wrong.values()))}"):
        Restart(**wrong)


# ---------------------------------------------------------------------- the ledger


def test_t08_the_schedule_of_an_env_that_fails_at_once(clock: Clock) -> None:
    ledger = Ledger(Restart(budget=6, quiet_s=60, backoff_s=1.0, longest_s=5.0), clock)
    waits = []
    for _ in range(6):
        ready = ledger.charge(0, fault())
        waits.append(ready - clock.now)
        clock.now = ready  # it is built, and fails before the clock has moved
    assert waits == [0.0, 1.0, 2.0, 4.0, 5.0, 5.0]
    with pytest.raises(errors.EnvStepError):
        ledger.charge(0, fault())


@pytest.mark.parametrize(("quiet_for", "wait_s"), [(59.0, 1.0), (60.0, 1.0), (60.5, 0.0), (1000.0, 0.0)])
def test_t08_an_env_that_was_quiet_is_trusted_again(quiet_for: float, wait_s: float, clock: Clock) -> None:
    ledger = Ledger(Restart(quiet_s=60, backoff_s=1.0), clock)
    assert ledger.charge(0, fault()) == clock.now
    clock.now += quiet_for
    assert ledger.charge(0, fault()) == clock.now + wait_s


def test_t08_the_wait_itself_is_not_quiet_time(clock: Clock) -> None:
    ledger = Ledger(Restart(quiet_s=5, backoff_s=10.0, longest_s=100.0), clock)
    ledger.charge(0, fault())
    assert ledger.charge(0, fault()) == clock.now + 10
    clock.now += 12  # built two seconds ago
    assert ledger.charge(0, fault()) == clock.now + 20


def test_t08_envs_have_budgets_of_their_own(clock: Clock) -> None:
    ledger = Ledger(Restart(budget=1, backoff_s=1.0), clock)
    assert [ledger.charge(i, fault(i)) for i in range(3)] == [clock.now] * 3
    with pytest.raises(errors.EnvStepError) as caught:
        ledger.charge(1, fault(1))
    assert caught.value.env_ids == (1,)


def test_t08_trust_that_is_won_back_does_not_fill_the_budget(clock: Clock) -> None:
    ledger = Ledger(Restart(budget=3, quiet_s=1), clock)
    for _ in range(3):
        ledger.charge(0, fault())
        clock.now += 1000
    with pytest.raises(errors.EnvStepError):
        ledger.charge(0, fault())


def test_t08_the_history_is_told_when_the_budget_is_spent(clock: Clock) -> None:
    ledger = Ledger(Restart(budget=2, backoff_s=0.0), clock)
    clock.now += 1.5
    ledger.charge(0, fault(text="ValueError: first"))
    clock.now += 2.0
    ledger.charge(0, fault(phase="reset", text="ValueError: second"))
    cause = ValueError("third")
    with pytest.raises(errors.EnvStepError) as caught:
        ledger.charge(0, fault(text="ValueError: third", cause=cause, traceback="Traceback of the third"))
    assert caught.value.__cause__ is cause
    assert caught.value.__notes__ == [
        "In the env:\nTraceback of the third",
        "Env 0 has used up its 2 restarts. Its faults:\n"
        "  after 1.5 s, step: ValueError: first\n"
        "  after 3.5 s, reset: ValueError: second\n"
        "  after 3.5 s, step: ValueError: third",
    ]


def test_t08_the_history_is_that_of_the_last_faults(clock: Clock) -> None:
    ledger = Ledger(Restart(budget=0), clock)
    for number in range(1000):
        ledger.charge(0, fault(text=f"ValueError: {number}", is_collateral=True))
    with pytest.raises(errors.EnvStepError) as caught:
        ledger.charge(0, fault(text="ValueError: last"))
    told = caught.value.__notes__[-1].splitlines()[1:]
    assert len(told) == 100
    assert [line.rpartition(" ")[2] for line in (told[0], told[-2], told[-1])] == ["901", "999", "last"]


def test_t08_who_falls_with_a_neighbour_neither_pays_nor_waits(clock: Clock) -> None:
    ledger = Ledger(Restart(budget=1, backoff_s=1.0), clock)
    for _ in range(20):
        assert ledger.charge(0, fault(is_collateral=True)) == clock.now
    assert ledger.charge(0, fault()) == clock.now
    with pytest.raises(errors.EnvStepError):
        ledger.charge(0, fault())


def test_t08_no_limit_is_no_limit(clock: Clock) -> None:
    ledger = Ledger(Restart(budget=None, longest_s=3.0), clock)
    assert max(ledger.charge(0, fault()) - clock.now for _ in range(2000)) == 3.0


# ---------------------------------------------------------------------- recovery


@pytest.mark.parametrize(("policy", "is_on"), [("raise", False), ("restart", True), ("drop", True), (Restart(), True)])
def test_a_policy_decides_which_faults_become_rows(policy: Any, is_on: bool) -> None:
    recovery = Recovery(policy, [0, 1])
    assert (recovery.is_on, recovery.handles(fault()), recovery.intervenes) == (is_on, is_on, False)
    # An env that is sound only needs a reset, whatever becomes of others.
    assert recovery.handles(fault(spares_env=True))
    assert Recovery(policy, [0, 1], spares=True).is_on


def test_an_env_is_built_anew_on_a_stream_of_its_own(clock: Clock) -> None:
    recovery = Recovery(Restart(backoff_s=1.0), [7, 8], clock)
    recovery.take(1, fault(1), cuts=True)
    request, not_before = recovery.due[1]
    assert (request.seed, request.incarnation, not_before) == (restart_seed(8, 1, 1), 1, clock.now)
    assert recovery.claim(1) == (request, not_before)
    assert recovery.claim(1) is None
    recovery.take(1, fault(1), cuts=True)
    request, not_before = recovery.due[1]
    assert (request.seed, request.incarnation, not_before) == (restart_seed(8, 1, 2), 2, clock.now + 1.0)
    assert (recovery.incarnations, recovery.restarts) == ([0, 2], 2)


def test_seeds_that_the_caller_gives_are_the_new_roots() -> None:
    recovery = Recovery("restart", [7, 8])
    recovery.note_seeds([0, 1], [None, 50])
    for i in (0, 1):
        recovery.renew(i)
    assert [recovery.due[i][0].seed for i in (0, 1)] == [restart_seed(7, 0, 1), restart_seed(50, 1, 1)]


def test_without_seeds_each_pool_has_a_root_of_its_own() -> None:
    def seeds() -> list[int | None]:
        recovery = Recovery("restart", [None] * 4)
        for i in range(4):
            recovery.renew(i)
        return [recovery.due[i][0].seed for i in range(4)]

    first = seeds()
    assert len(set(first)) == 4
    assert first != seeds()


def test_a_row_tells_the_first_of_its_faults_and_how_many_there_were() -> None:
    recovery = Recovery(Restart(backoff_s=0.0), [7])
    recovery.take(0, fault(text="ValueError: first", traceback="Traceback"), cuts=True)
    recovery.take(0, fault(phase="construct", text="ValueError: second"), cuts=False)
    note = recovery.notes[0]
    assert (note.cuts, note.attempts) == (True, 2)
    assert note.info(0) == {
        "kind": "EnvStepError",
        "message": "step failed in env 0: ValueError: first",
        "traceback": "Traceback",
        "phase": "step",
        "env_id": 0,
        "incarnation": 2,
        "attempts": 2,
    }


def test_an_error_tells_all_there_is_to_tell() -> None:
    recovery = Recovery(Restart(budget=1, backoff_s=0.0), [7])
    recovery.take(0, fault(), cuts=True)
    with pytest.raises(errors.EnvStepError):
        recovery.take(0, fault(), cuts=True)
    assert not recovery.notes


def test_a_row_that_nobody_wants_does_not_cut_the_reset_that_takes_its_place() -> None:
    recovery = Recovery("restart", [7, 8])
    recovery.take(1, fault(1), cuts=True)
    recovery.pass_over([0, 1])
    assert recovery.notes == {1: FaultNote(fault(1), incarnation=1, cuts=False)}


def test_dropped_envs_are_out_until_they_are_renewed() -> None:
    recovery = Recovery("drop", [7, 8])
    recovery.take(1, fault(1), cuts=True)
    assert (list(recovery.dropped), recovery.due, recovery.intervenes, recovery.restarts) == ([1], {}, True, 0)
    recovery.renew(1)
    assert (recovery.dropped, list(recovery.due), recovery.incarnations) == ({}, [1], [0, 1])


def test_the_last_env_that_is_dropped_raises() -> None:
    recovery = Recovery("drop", [7, 8])
    recovery.take(1, fault(1), cuts=True)
    with pytest.raises(errors.EnvStepError) as caught:
        recovery.take(0, fault(0), cuts=True)
    assert caught.value.__notes__ == ["It was the last one: every env of the pool has failed and was dropped"]


@pytest.mark.parametrize("policy", ["raise", "restart", "drop"])
def test_a_sound_env_is_reset_and_pays_nothing(policy: str) -> None:
    recovery = Recovery(policy, [7], spares=True)
    recovery.take(0, fault(spares_env=True), cuts=True)
    request, not_before = recovery.due[0]
    assert (request.seed, request.incarnation, not_before) == (None, None, 0.0)
    assert (recovery.notes[0].incarnation, recovery.dropped, recovery.restarts) == (0, {}, 0)


def test_a_sound_env_that_no_reset_helps_raises() -> None:
    recovery = Recovery("raise", [7], spares=True)
    for _ in range(10):
        recovery.take(0, fault(spares_env=True), cuts=True)
    with pytest.raises(errors.EnvStepError) as caught:
        recovery.take(0, fault(spares_env=True), cuts=True)
    assert caught.value.__notes__ == ["Env 0 was reset 10 times because of this, in vain"]
    recovery.take(0, fault(spares_env=True), cuts=True)  # a new story
    assert recovery.notes[0].attempts == 1


def test_what_is_forgiven_is_forgotten() -> None:
    recovery = Recovery("restart", [7, 8])
    for i in (0, 1):
        recovery.take(i, fault(i), cuts=True)
    recovery.forgive([1])
    assert (list(recovery.due), list(recovery.notes)) == ([0], [0])


# ---------------------------------------------------------------------- tries, and envs that are kept


def test_resets_that_fail_too_often_in_a_row_are_an_error() -> None:
    recovery = Recovery(Restart(budget=None, tries=3), [None])
    for _ in range(2):
        recovery.take(0, fault(phase="reset"), cuts=False)
    with pytest.raises(errors.EnvResetError) as caught:
        recovery.take(0, fault(phase="reset"), cuts=False)
    assert "failed 3 times in a row" in caught.value.__notes__[-1]


def test_the_step_that_came_before_is_no_try() -> None:
    recovery = Recovery(Restart(budget=None, tries=2), [None])
    recovery.take(0, fault(), cuts=True)
    recovery.take(0, fault(phase="reset"), cuts=False)
    with pytest.raises(errors.EnvResetError):
        recovery.take(0, fault(phase="reset"), cuts=False)


@pytest.mark.parametrize(
    ("lost", "is_rebuilt"),
    [
        ({"phase": "reset"}, False),
        ({"phase": "construct"}, True),
        ({"error_class": errors.WorkerDied}, True),
        ({"error_class": errors.EnvTimeout}, True),
    ],
)
def test_an_env_that_raised_is_kept_and_one_that_is_lost_is_not(lost: dict[str, Any], is_rebuilt: bool) -> None:
    recovery = Recovery(Restart(keeps_env=True), [None])
    recovery.take(0, fault(**lost), cuts=False)
    request, _ = recovery.due[0]
    assert (request.incarnation == 1) is is_rebuilt
    assert (request.seed is not None) is is_rebuilt


def test_steps_may_be_left_to_the_caller() -> None:
    recovery = Recovery(Restart(spares_steps=False), [None])
    assert recovery.handles(fault(phase="reset"))
    assert not recovery.handles(fault(phase="step"))
