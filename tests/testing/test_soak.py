"""The soak finds what it looks for, and finds nothing in pools that keep their promises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shoal.testing.kinds import Fault
from shoal.testing.soak import LEGS, SoakConfig, Tally, soak
from shoal.testing.soak_drive import Drive, Leg
from shoal.testing.soak_env import LONGEST_EPISODE, NEVER, Hazard, Journal, Moment, SoakEnv
from shoal.testing.soak_model import Model
from shoal.testing.soak_threads import Alarm, PoolStuck

if TYPE_CHECKING:
    from collections.abc import Callable

    import shoal
    from shoal.batch import Batch

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

COMMAND = Path(__file__).parents[2] / "benchmarks" / "soak.py"
SERIAL = tuple(leg for leg in LEGS if leg.engine == "serial")


# ---------------------------------------------------------------------- the env


@pytest.mark.parametrize("moment", [Moment(0, 1, 1, 0, 0), Moment(65535, 8191, 4095, 63, 63), Moment(9, 2, 3, 4, 5)])
def test_a_row_says_where_it_belongs(moment: Moment) -> None:
    code = moment.encode()
    assert Moment.decode(code) == moment
    assert int(np.float64(code)) == code


def test_dooms_and_episodes_follow_from_seed_env_and_life() -> None:
    hazard = Hazard(3, 0.01, {"raise": 1.0, "hang": 1.0})
    assert hazard.doom(1, 2) == Hazard(3, 0.01, {"raise": 1.0, "hang": 1.0}).doom(1, 2)
    dooms = {(tag, life): hazard.doom(tag, life) for tag in range(20) for life in range(1, 20)}
    assert {doom.where for doom in dooms.values()} == {"init", "reset", "step"}
    assert {doom.kind for doom in dooms.values()} == {Fault.RAISE, Fault.HANG}
    assert len({doom.at for doom in dooms.values()}) > 50
    lengths = {hazard.episode(0, 1, episode)[0] for episode in range(1000)}
    assert lengths == set(range(1, LONGEST_EPISODE + 1))


def live(hazard: Hazard, folder: str) -> None:
    """Build an env and step it for ever."""
    env, done = SoakEnv(tag=4, hazard=hazard, folder=folder), True
    while True:
        if done:
            env.reset()
        _, _, terminated, truncated, _ = env.step(0)
        done = terminated or truncated


def test_an_env_writes_down_what_it_is_about_to_do(tmp_path: Path) -> None:
    hazard = Hazard(0, 0.5, {"raise": 1.0})
    journal = Journal(str(tmp_path))
    with pytest.raises(RuntimeError, match="injected fault"):
        live(hazard, str(tmp_path))
    shots, end = journal.shots()
    assert [(shot.tag, shot.life, shot.kind) for shot in shots] == [(4, journal.lives(4), Fault.RAISE)]
    assert journal.shots(end) == ([], end)


# ---------------------------------------------------------------------- the checker


class Bench:
    """A pool without faults, and a model that has seen its first rows."""

    num_envs = 4

    def __init__(self, pool: shoal.Pool, hazard: Hazard, folder: str) -> None:
        self.pool = pool
        limit = {"same_step": True, "limit": 100, "seed": 0, "worker_of": [0] * self.num_envs}
        self.model = Model(hazard, Journal(folder), self.num_envs, **limit)
        self.all = list(range(self.num_envs))
        self.model.note_reset(self.all)
        self.model.take(pool.reset(), self.all)
        for _ in range(50):
            self.model.take(self.step(), self.all)
        assert not self.model.violations

    def step(self) -> Batch:
        return self.pool.step(self.model.actions(self.all))

    def found(self, batch: Batch, ids: list[int] | None = None) -> set[str]:
        self.model.take(batch, self.all if ids is None else ids)
        return set(self.model.violations)


@pytest.fixture
def bench(make_pool: Callable[..., shoal.Pool], tmp_path: Path) -> Bench:
    hazard = Hazard(5, 0.0)
    assert hazard.doom(0, 1).at == NEVER
    kwargs = [{"tag": tag, "hazard": hazard, "folder": str(tmp_path)} for tag in range(Bench.num_envs)]
    pool = make_pool(SoakEnv, Bench.num_envs, engine="serial", env_kwargs=kwargs, autoreset="same_step", seed=0)
    return Bench(pool, hazard, str(tmp_path))


def plain_row(batch: Batch) -> int:
    """A row in the middle of an episode, with no info."""
    odd = {row for row, _ in batch.infos} | set(batch.finals)
    return next(row for row in range(len(batch)) if row not in odd)


def test_rows_as_they_should_be_are_accepted(bench: Bench) -> None:
    assert bench.found(bench.step()) == set()
    bench.model.check_end()
    assert not bench.model.violations
    assert bench.model.outstanding == 0


def test_a_half_written_observation_is_torn(bench: Bench) -> None:
    batch = bench.step()
    row = plain_row(batch)
    batch.obs[row, 32:] -= 1
    assert bench.found(batch) == {"torn"}


def test_a_reward_of_another_step_is_torn(bench: Bench) -> None:
    batch = bench.step()
    batch.reward[plain_row(batch)] -= 1
    assert bench.found(batch) == {"torn"}


def test_an_info_of_another_step_is_torn(bench: Bench) -> None:
    batch = bench.step()
    while not any("code" in info for _, info in batch.infos):
        assert bench.found(batch) == set()
        batch = bench.step()
    next(info for _, info in batch.infos if "code" in info)["action"] += 1
    assert bench.found(batch) == {"torn"}


def test_a_row_that_comes_again_is_duplicated(bench: Bench) -> None:
    old = bench.step()
    while set(old.finals) or old.infos:
        assert bench.found(old) == set()
        old = bench.step()
    assert bench.found(old) == set()
    new = bench.step()
    new.obs[0], new.reward[0] = old.obs[0], old.reward[0]
    assert "duplicated" in bench.found(new)


def test_a_row_that_skips_one_is_lost(bench: Bench) -> None:
    bench.pool.step([0] * bench.num_envs)
    assert "lost" in bench.found(bench.step())


def test_a_row_that_answers_nothing_is_duplicated(bench: Bench) -> None:
    assert "duplicated" in bench.found(bench.pool.step([0] * bench.num_envs))


def test_rows_in_another_order_than_asked_are_noticed(bench: Bench) -> None:
    ids = [3, 1, 0, 2]
    batch = bench.pool.step(bench.model.actions(ids), ids)
    assert bench.found(batch, [1, 3, 0, 2]) == {"lost"}


def test_a_row_of_another_env_has_strayed(bench: Bench) -> None:
    batch = bench.step()
    while set(batch.finals) or batch.infos:
        assert bench.found(batch) == set()
        batch = bench.step()
    batch.obs[[0, 1]], batch.reward[[0, 1]] = batch.obs[[1, 0]], batch.reward[[1, 0]]
    assert "strayed" in bench.found(batch)


def test_a_row_of_an_earlier_life_is_stale(bench: Bench) -> None:
    batch = bench.step()
    row = plain_row(batch)
    code = Moment.decode(int(batch.obs[row, 0]))._replace(life=0).encode()
    batch.obs[row], batch.reward[row] = code, code
    assert bench.found(batch) == {"stale"}


@pytest.mark.parametrize("column", ["terminated", "truncated", "first", "elapsed_step"])
def test_a_flag_that_does_not_fit_is_a_matter_of_boundaries(bench: Bench, column: str) -> None:
    batch = bench.step()
    row = plain_row(batch)
    values: Any = getattr(batch, column)
    values[row] = values[row] + 1
    assert bench.found(batch) == {"boundary"}


def test_a_fault_without_a_reason_is_noticed(bench: Bench) -> None:
    batch = bench.step()
    row = plain_row(batch)
    told = {"kind": "EnvStepError", "message": "", "traceback": "", "phase": "step", "env_id": row, "attempts": 1}
    batch.infos = [*batch.infos, (row, {"fault": {**told, "incarnation": 1}})]
    assert "fault" in bench.found(batch)
    assert "without a reason" in bench.model.notes[0]


def test_an_unknown_death_is_noticed_and_a_known_one_told_once(bench: Bench) -> None:
    deaths = bench.model.deaths
    note = {"kind": "WorkerDied", "message": "step failed in envs 0-3, worker 0, pid 77: the worker process is gone"}
    assert deaths.explain(0, note) == "nothing has killed process 77"
    deaths.killed.add(77)
    assert deaths.explain(1, note) is None
    assert deaths.explain(1, note) == "the death of process 77 is told a second time"


def test_an_env_cannot_hang_where_it_never_was_nor_for_another(bench: Bench, tmp_path: Path) -> None:
    deaths, journal, here = bench.model.deaths, Journal(str(tmp_path)), os.getpid()
    note = {"kind": "EnvTimeout", "message": "step failed in env 0, worker 0, pid 77: no answer after 0.5 s"}
    assert deaths.explain(0, note) == "it was never in process 77"
    note["message"] = note["message"].replace("77", str(here))
    assert deaths.explain(0, note) is None
    assert deaths.starved == 1
    journal.note_shot(3, 1, Fault.HANG_GIL)
    assert deaths.explain(1, note) == f"in process {here} it was env 3 that hung"


# ---------------------------------------------------------------------- the soak


def assert_clean(tally: Tally) -> None:
    assert tally.is_clean, "\n".join(tally.notes)


@pytest.mark.slow
def test_a_soak_in_one_process() -> None:
    seen: list[str] = []
    tally = soak(SoakConfig(4_000, 40, seed=1, legs=SERIAL), lambda name, steps, faults: seen.append(name))
    assert_clean(tally)
    assert tally.steps >= 4_000
    assert tally.injected.total() >= 40
    assert set(tally.violations.values()) == {0}
    assert set(seen) <= {leg.name for leg in tally.legs}


@pytest.mark.slow
def test_a_soak_ends_when_its_time_is_up() -> None:
    tally = soak(SoakConfig(10**9, 10, seconds=1.0, legs=SERIAL))
    assert_clean(tally)
    assert tally.steps < 10**9


def test_start_methods_choose_the_pools() -> None:
    tally = soak(SoakConfig(100, 1, start_methods=("serial",)))
    assert [leg.name for leg in tally.legs] == ["serial sync same_step", "serial async next_step"]


def test_nothing_to_do_is_not_clean() -> None:
    assert not soak(SoakConfig(100, 1, legs=())).is_clean


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"faults": -1}, "faults must be at least 0, got -1"),
        ({"seconds": 0.0}, r"seconds must be more than 0, got 0\.0"),
    ],
)
def test_a_soak_without_anything_to_do_is_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        SoakConfig(**settings)


def test_what_a_pool_raises_is_a_finding() -> None:
    tally = soak(SoakConfig(100, 1, legs=(Leg("serial", "next_step", 99),)))
    assert tally.violations["raised"] == 1
    assert "batch_size" in tally.notes[0]


def test_who_does_not_move_is_woken() -> None:
    with pytest.raises(PoolStuck), Alarm(0.1, lambda: 7):
        wait_for_ever()
    with Alarm(30, lambda: 7):
        pass


def wait_for_ever() -> None:
    while True:
        time.sleep(0.01)


@pytest.mark.slow
def test_the_command_prints_the_tally_and_exits_with_a_verdict(tmp_path: Path) -> None:
    out = tmp_path / "tally.json"
    command = [sys.executable, str(COMMAND), "--steps", "500", "--faults", "5", "--start-method", "serial"]
    ended = subprocess.run([*command, "--json", str(out)], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[-1] == "clean"
    assert "serial async next_step" in ended.stdout
    written = json.loads(out.read_text())
    assert written["is_clean"]
    assert written["steps"] >= 500
    assert len(written["legs"]) == 2


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_short_soak_of_every_kind_of_pool() -> None:
    tally = soak(SoakConfig(40_000, 150))
    assert_clean(tally)
    assert len(tally.legs) == len(LEGS)
    assert tally.steps >= 40_000
    assert tally.injected.total() >= 150
    assert tally.injected["outside"] > 0


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_life_that_has_begun_by_the_time_of_a_look_is_not_taken_for_one_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With two commands under way for every env, the next life begins while the fault before it is being judged."""
    look = Journal.lives

    def look_late(journal: Journal, tag: int) -> int:
        time.sleep(0.004)
        return look(journal, tag)

    def ask_for_two(drive: Any, pool: shoal.Pool) -> None:
        batch = pool.recv(timeout=20)
        drive._model.take(batch)
        if ids := drive._idle(batch.env_id.tolist()):
            pool.send(drive._model.actions(ids), ids)
            pool.send(drive._model.actions(ids), ids)

    monkeypatch.setattr(Journal, "lives", look_late)
    monkeypatch.setattr(Drive, "_ask_async", ask_for_two)
    legs = tuple(leg for leg in LEGS if leg.is_async and leg.start_method in ("forkserver", "fork!"))
    assert_clean(soak(SoakConfig(8_000, 120, legs=legs)))
