"""The conformance suite over every engine of shoal, and engines that break a rule, which it must find."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import shoal
from shoal.engines import choose
from shoal.engines.serial import SerialEngine
from shoal.testing.conformance import EngineConformance, EnvFns, rule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.engines.base import EngineConfig

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

two_workers = partial(shoal.make_pool, engine="process", num_workers=2)


class OfShoal(EngineConformance):
    make: Callable[..., shoal.Pool]

    def make_pool(self, env_fns: EnvFns, **options: Any) -> shoal.Pool:
        return self.make(env_fns, **options)


class TestSerial(OfShoal):
    make = partial(shoal.make_pool, engine="serial")


class TestThread(OfShoal):
    make = partial(shoal.make_pool, engine="thread")


@pytest.mark.slow
class TestFewThreads(OfShoal):
    make = partial(shoal.make_pool, engine="thread", num_workers=2)


@pytest.mark.slow
class TestFork(OfShoal):
    make = partial(two_workers, start_method="fork!")


class TestForkserver(OfShoal):
    make = partial(two_workers, start_method="forkserver")


@pytest.mark.slow
class TestSpawn(OfShoal):
    make = partial(two_workers, start_method="spawn")


@pytest.mark.slow
class TestProcessWithLanes(OfShoal):
    make = partial(two_workers, threads_per_worker=2)


class TestInline(OfShoal):
    make = partial(two_workers, inline=True)


@pytest.mark.slow
class TestInlineWithLanes(OfShoal):
    make = partial(shoal.make_pool, engine="process", num_workers=3, threads_per_worker=2, inline=True)


@pytest.mark.slow
class TestOneProcess(OfShoal):
    make = partial(shoal.make_pool, engine="process", num_workers=1)


# ---------------------------------------------------------------------- the suite itself: broken engines are found


class ByCommand(SerialEngine):
    """An engine without the short way, so that every row goes through ``collect``."""

    step_now = None


class SwapsRows(ByCommand):
    def collect(self, at_least: int, timeout_s: float | None) -> list[int]:
        done = super().collect(at_least, timeout_s)
        self.rows.obs[0][:, [0, 1]] = self.rows.obs[0][:, [1, 0]]
        return done


class LosesInfos(ByCommand):
    def collect(self, at_least: int, timeout_s: float | None) -> list[int]:
        done = super().collect(at_least, timeout_s)
        self.extras = {i: replace(extra, info=None) for i, extra in self.extras.items()}
        return done


class LosesFinals(ByCommand):
    def collect(self, at_least: int, timeout_s: float | None) -> list[int]:
        done = super().collect(at_least, timeout_s)
        self.extras = {i: replace(extra, has_final=False) for i, extra in self.extras.items()}
        return done


class ForgetsFirst(ByCommand):
    def collect(self, at_least: int, timeout_s: float | None) -> list[int]:
        done = super().collect(at_least, timeout_s)
        self.rows.first[:] = False
        return done


class MovesEveryone(ByCommand):
    def submit(self, ids: Sequence[int], command: Any, requests: Any = None, block: int = 0) -> None:
        super().submit(ids, command, requests, block)
        if len(ids) < self.config.num_envs and not requests:
            self.lane.run(next(i for i in range(self.config.num_envs) if i not in ids), command, None, block)


class HidesCauses(ByCommand):
    def collect(self, at_least: int, timeout_s: float | None) -> list[int]:
        done = super().collect(at_least, timeout_s)
        self.faults = {i: replace(fault, cause=None) for i, fault in self.faults.items()}
        return done


class BlamesNeighbours(ByCommand):
    def collect(self, at_least: int, timeout_s: float | None) -> list[int]:
        done = super().collect(at_least, timeout_s)
        for i, fault in self.faults.items():
            self.faults[i] = replace(fault, where=replace(fault.where, env_ids=(0,)))
        return done


class LosesNeighbours(ByCommand):
    def collect(self, at_least: int, timeout_s: float | None) -> list[int]:
        done = super().collect(at_least, timeout_s)
        if self.faults:
            self.rows.obs[0][:] = 0
        return done


class IgnoresSeeds(ByCommand):
    def submit(self, ids: Sequence[int], command: Any, requests: Any = None, block: int = 0) -> None:
        requests = requests and {i: replace(request, seed=None) for i, request in requests.items()}
        super().submit(ids, command, requests, block)


class LeavesThreads(ByCommand):
    enough = threading.Event()

    def start(self) -> None:
        super().start()
        threading.Thread(target=self.enough.wait, args=(60,), daemon=True).start()


@pytest.mark.parametrize(
    ("engine_class", "broken", "told"),
    [
        (SwapsRows, "test_rows_are_those_of_the_serial_engine", r"rows are those of the serial engine.*\['obs'\]"),
        (SwapsRows, "test_rows_of_the_other_envs_survive_an_exception", "rows of a batch survive"),
        (LosesInfos, "test_rows_are_those_of_the_serial_engine", r"rows are those of the serial engine.*\['infos'\]"),
        (LosesInfos, "test_an_asynchronous_pool_gives_every_row_once_and_in_order", "every row once"),
        (LosesFinals, "test_same_step_hands_over_the_final_observation", "same_step rows that end .* carry"),
        (ForgetsFirst, "test_first_and_elapsed_mark_the_episode", r"first and elapsed_step mark the episode \(next"),
        (MovesEveryone, "test_rows_come_in_the_order_of_the_ids", "and the envs moved"),
        (HidesCauses, "test_an_exception_names_env_phase_and_cause", "traceback and cause. But the cause is None"),
        (BlamesNeighbours, "test_an_exception_names_env_phase_and_cause", r"the error names envs \(0,\), expected 1"),
        (LosesNeighbours, "test_rows_of_the_other_envs_survive_an_exception", "rows of a batch survive"),
        (IgnoresSeeds, "test_every_env_has_its_own_seed", "env i of a pool reset with seed s"),
        (LeavesThreads, "test_close_is_idempotent_quick_and_leaves_nothing", "close ends everything.*left behind"),
    ],
)
def test_a_broken_engine_is_found_and_the_rule_named(
    engine_class: type[SerialEngine], broken: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = choose._class_of

    def class_of(name: str) -> Callable[[EngineConfig], Any]:
        return engine_class if name == "broken" else known(name)

    monkeypatch.setattr(choose, "_class_of", class_of)
    LeavesThreads.enough.clear()

    class OfBroken(EngineConformance):
        def make_pool(self, env_fns: EnvFns, **options: Any) -> shoal.Pool:
            return shoal.make_pool(env_fns, engine="broken", **options)

    try:
        with pytest.raises(AssertionError, match=f"(?s)rule: .*{told}"):
            getattr(OfBroken(), broken)()
    finally:
        LeavesThreads.enough.set()


def test_a_rule_lets_other_errors_through() -> None:
    with pytest.raises(ZeroDivisionError), rule("anything"):
        np.array([1 / 0])


def test_a_suite_of_too_few_envs_is_refused() -> None:
    with pytest.raises(ValueError, match=r"OfThree\.num_envs must be at least 4.*got 3"):

        class OfThree(EngineConformance):
            num_envs = 3


def test_a_suite_without_a_pool_says_what_to_give() -> None:
    with pytest.raises(NotImplementedError, match="give make_pool"):
        EngineConformance().test_calls_and_attributes_reach_each_env()
