"""Jobs on a simulator: in order, each once, by whoever comes first."""

from __future__ import annotations

import threading
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest
from trainer_processes import run_program

from shoal.engines.native.conductor import Conductor

if TYPE_CHECKING:
    from collections.abc import Iterator

ALIVE_S = 30.0


@pytest.mark.parametrize("has_thread", [False, True])
def test_results_come_in_the_order_of_the_jobs(has_thread: bool) -> None:
    conductor: Conductor[int] = Conductor(has_thread=has_thread)
    try:
        for start in range(0, 600, 3):
            for number in range(start, start + 3):
                conductor.submit(lambda number=number: number)
            assert [conductor.take(ALIVE_S) for _ in range(3)] == [start, start + 1, start + 2]
            assert conductor.take(None) is None, "nothing is to come, so there is nothing to wait for"
    finally:
        conductor.close()


def test_who_waits_for_a_job_that_another_runs_gets_its_result() -> None:
    conductor: Conductor[str] = Conductor(has_thread=True)
    has_begun, may_end = threading.Event(), threading.Event()

    def job() -> str:
        has_begun.set()
        assert may_end.wait(ALIVE_S)
        return "done"

    try:
        conductor.submit(job)
        assert has_begun.wait(ALIVE_S), "it starts by itself"
        assert conductor.take(0.01) is None
        may_end.set()
        assert conductor.take(ALIVE_S) == "done"
    finally:
        may_end.set()
        conductor.close()


class Clock:
    """A clock that stands still unless it is turned."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr("shoal.engines.native.conductor.monotonic", lambda: self.now_s)


class Bell(Conductor[None]):
    """Its thread is not called; whether it would have been is noted."""

    has_rung = False

    def _call_thread(self) -> None:
        self.has_rung = True


def play(conductor: Conductor[None], clock: Clock, away_s: float, job_s: float = 5e-3, rounds: int = 30) -> None:
    """Submit and take by turns, with so much time between them."""

    def job() -> None:
        clock.now_s += job_s

    for _ in range(rounds):
        conductor.submit(job)
        clock.now_s += away_s
        conductor.come()
        conductor.take(None)
        conductor.leave()


def rings(bell: Bell, clock: Clock, away_s: float, job_s: float = 5e-3, rounds: int = 1) -> bool:
    """Whether the thread is called in any of these rounds."""
    bell.has_rung = False
    play(bell, clock, away_s, job_s, rounds)
    return bell.has_rung


def test_a_caller_who_comes_back_at_once_does_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    bell, clock = Bell(has_thread=True), Clock(monkeypatch)
    assert rings(bell, clock, away_s=100e-6, rounds=30), "it has to be found out first"
    assert not rings(bell, clock, away_s=100e-6, rounds=30)


def test_a_caller_who_stays_away_does_short_jobs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    bell, clock = Bell(has_thread=True), Clock(monkeypatch)
    play(bell, clock, away_s=5e-3, job_s=100e-6)
    assert not rings(bell, clock, away_s=5e-3, job_s=100e-6, rounds=30)


def test_one_pause_makes_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    bell, clock = Bell(has_thread=True), Clock(monkeypatch)
    play(bell, clock, away_s=300e-6)
    for _ in range(3):
        assert not rings(bell, clock, away_s=1.0)
        assert not rings(bell, clock, away_s=300e-6, rounds=5)


def test_a_caller_who_stays_away_again_and_again_is_helped(monkeypatch: pytest.MonkeyPatch) -> None:
    bell, clock = Bell(has_thread=True), Clock(monkeypatch)
    play(bell, clock, away_s=100e-6)
    play(bell, clock, away_s=5e-3)
    assert rings(bell, clock, away_s=5e-3)


@pytest.fixture
def conductor() -> Iterator[Conductor[threading.Thread]]:
    made: Conductor[threading.Thread] = Conductor(has_thread=True)
    yield made
    made.close()


def test_a_job_starts_by_itself_until_it_is_known_that_it_does_not_pay(conductor: Conductor[threading.Thread]) -> None:
    has_begun = threading.Event()
    conductor.submit(lambda: has_begun.set() or threading.current_thread())  # type: ignore[func-returns-value]
    assert has_begun.wait(ALIVE_S)
    assert conductor.take(None) is not threading.current_thread()


def test_a_caller_with_little_time_does_not_do_the_job(
    conductor: Conductor[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.engines.native.conductor._LONG_S", 1e9)  # nothing is long: it does not start by itself
    conductor.submit(threading.current_thread)
    assert conductor.take(ALIVE_S) is not threading.current_thread()
    assert conductor.take(ALIVE_S) is None, "nothing is to come, so there is nothing to wait for"


Numbers = tuple[int, ...]


class Telling:
    """A job that tells its numbers. Odd ones are joined to odd ones."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def __call__(self) -> Numbers:
        return self.numbers

    def join(self, other: Telling) -> Telling | None:
        are_odd = self.numbers[-1] % 2 and other.numbers[0] % 2
        return Telling(*self.numbers, *other.numbers) if are_odd else None


def test_who_waits_has_jobs_joined_that_can_be_and_the_others_in_their_order() -> None:
    conductor: Conductor[Numbers] = Conductor(has_thread=False, join=Telling.join)
    for number in (1, 3, 5, 2, 4, 7, 9):
        conductor.submit(Telling(number))
    assert [conductor.take(None) for _ in range(5)] == [(1, 3, 5), (2,), (4,), (7, 9), None]
    conductor.submit(Telling(11))
    assert conductor.take(None) == (11,)


def test_jobs_that_start_by_themselves_are_done_one_by_one() -> None:
    conductor: Conductor[Numbers] = Conductor(has_thread=True, join=Telling.join)
    try:
        with conductor.turn:  # so that both are there before the first begins
            conductor.submit(Telling(1))
            conductor.submit(Telling(3))
        assert [conductor.take(ALIVE_S), conductor.take(ALIVE_S)] == [(1,), (3,)]
        assert conductor.take(ALIVE_S) is None, "nothing is to come, so there is nothing to wait for"
    finally:
        conductor.close()


def test_closing_waits_for_the_job_that_runs_and_may_be_repeated() -> None:
    conductor: Conductor[str] = Conductor(has_thread=True)
    has_begun, may_end = threading.Event(), threading.Event()

    def job() -> str:
        has_begun.set()
        assert may_end.wait(ALIVE_S)
        return "done"

    conductor.submit(job)
    assert has_begun.wait(ALIVE_S)
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "shoal-native"]
    timer = threading.Timer(0.0, may_end.set)
    timer.start()
    conductor.close()
    assert not thread.is_alive()
    assert conductor.take(0.0) == "done"
    conductor.close()
    timer.join()


def test_a_program_that_ends_waits_for_the_job_that_runs_and_no_other() -> None:
    ended = run_program(
        dedent("""
        import threading, time
        from shoal.engines.native.conductor import Conductor

        has_begun = threading.Event()

        def job():
            has_begun.set()
            time.sleep(0.3)  # as a simulator would: elsewhere, and not to be disturbed
            print("done", flush=True)

        conductor = Conductor(has_thread=True)
        conductor.submit(job)
        conductor.submit(job)
        assert has_begun.wait(30)
        """)
    )
    assert (ended.code, ended.stdout.split()) == (0, ["done"]), ended.stderr
