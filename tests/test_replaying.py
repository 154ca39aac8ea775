"""Doing again what was recorded: the same rows, the same fault."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import TransformReward
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shoal
from shoal.errors import ActionError, ArgumentError, EnvTimeout, FaultError, NothingInFlight, NotReset
from shoal.recording import Origin, Recording
from shoal.replaying import open_pool, play, reason_against, replay
from shoal.testing import CountingEnv, DictTupleEnv, FaultEnv

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    MakePool = Callable[..., shoal.Pool]

MODES = ("next_step", "same_step", "disabled")


class Fragile(CountingEnv):
    """Fails at a state that follows from its seed: in the third step of an episode whose draw ends in 7."""

    fate = "raise"

    def __init__(self, fate: str = "raise", **counting: Any) -> None:
        super().__init__(**counting)
        self.fate = fate

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        row = super().reset(seed=seed, options=options)
        if self.fate == "reset" and self._draw % 10 == 7:
            raise KeyError("no start")
        return row

    def step(self, action: Any) -> Any:
        row = super().step(action)
        if self._step != 3 or self._draw % 10 != 7:
            return row
        if self.fate == "raise":
            raise ValueError(f"draw {self._draw}")
        if self.fate == "nan":
            return row[0] * np.nan, *row[1:]
        if self.fate == "reward":
            return row[0], float("nan"), *row[2:]
        if self.fate == "hang":
            time.sleep(30)
        return row


def faults_of(
    make_pool: MakePool, folder: Path, env: Any = Fragile, faults: int = 3, **options: Any
) -> list[Recording]:
    """What a pool records of its first few faults."""
    restart = shoal.Restart(budget=None, backoff_s=0)
    pool = make_pool(env, 3, **{"engine": "serial", "on_fault": restart, "fault_dir": folder, **options})
    pool.reset(seed=20)
    for k in range(5000):
        if len(list(folder.iterdir())) >= faults:
            break
        with suppress(NotReset):
            pool.step([k % 5, 1, 2])
            continue
        pool.reset()
    return [Recording.load(path) for path in sorted(folder.iterdir())]


# ---------------------------------------------------------------------- the law


class Diary(CountingEnv):
    """Writes down everything it is told and everything it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        row = super().reset(seed=seed, options=options)
        self.pages.append(("reset", seed, options, row[0].tolist()))
        return row

    def step(self, action: Any) -> Any:
        row = super().step(action)
        self.pages.append(("step", int(action), row[0].tolist(), *row[1:4]))
        return row


ids = st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True)
seeds = st.none() | st.none() | st.integers(0, 2**31)
calls = st.lists(
    st.tuples(st.just("step"), st.none() | ids, st.integers(0, 4))
    | st.tuples(st.just("send"), ids, st.integers(0, 4))
    | st.tuples(st.just("recv"), st.none(), st.none())
    | st.tuples(st.just("reset"), st.none() | ids, seeds),
    max_size=30,
)


def make_call(pool: shoal.Pool, call: tuple[str, Any, Any]) -> None:
    name, some, value = call
    rows = range(3) if some is None else some
    if name == "recv":
        pool.recv()
    elif name == "reset":
        pool.reset(None if value is None else [value + i for i in rows], {"of": list(rows)}, some)
    elif name == "send":
        pool.send([(value + i) % 5 for i in rows], some)
    else:
        pool.step([(value + i) % 5 for i in rows], some)


def drain(pool: shoal.Pool) -> None:
    with suppress(NothingInFlight):
        while True:
            pool.recv()


@pytest.mark.parametrize("batch_size", [3, 2])
@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(script=calls)
def test_a_replay_gives_the_rows_that_the_env_gave(mode: str, batch_size: int, script: list[Any]) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        shoal.make_pool(Diary, 3, engine="serial", autoreset=mode, batch_size=batch_size, max_episode_steps=6) as pool,
    ):
        pool.reset(seed=1)
        for call in script:
            # Calls that a pool refuses move nothing, and must leave no trace.
            with suppress(shoal.errors.StateError):
                make_call(pool, call)
            if mode == "disabled":
                drain(pool)  # lest an env be sent a step before it is known that its episode has ended
        drain(pool)
        pages = pool.get_attr("pages")
        for i in range(3):
            recording = Recording.load(pool.save_black_box(folder, i))
            assert recording.gaps == ()
            seeded = max(k for k, page in enumerate(pages[i]) if page[0] == "reset" and page[1] is not None)
            with open_pool(recording, Diary) as again:
                for _ in play(recording, again):
                    pass
                assert again.get_attr("pages")[0] == pages[i][seeded:]


def test_nested_actions_come_back_as_they_were(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool(DictTupleEnv, 2, engine="serial")
    pool.reset(seed=1)
    tree = pool.spec.action
    for _ in range(7):
        leaves = [tree.flatten(tree.space.sample()) for _ in range(2)]
        batch = pool.step(tree.unflatten([np.stack(pair) for pair in zip(*leaves, strict=True)]))
    recording = Recording.load(pool.save_black_box(tmp_path, 1))
    with open_pool(recording, DictTupleEnv) as again:
        *_, last = play(recording, again)
    for mine, theirs in zip(
        pool.spec.observation.flatten(last.obs), pool.spec.observation.flatten(batch.obs), strict=True
    ):
        np.testing.assert_array_equal(mine[0], theirs[1])


# ---------------------------------------------------------------------- faults


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("fate", "options"),
    [
        ("raise", {}),
        ("reset", {}),
        ("nan", {}),
        ("reward", {}),
        ("nan", {"on_nan": "truncate"}),
        ("reward", {"on_nan": "truncate"}),
        ("raise", {"on_nan": "pass", "on_fault": "drop"}),
        ("raise", {"engine": "thread", "max_episode_steps": 5}),
    ],
    ids=str,
)
def test_every_recorded_fault_is_had_again(
    make_pool: MakePool, tmp_path: Path, mode: str, fate: str, options: dict[str, Any]
) -> None:
    num_faults = 1 if options.get("on_fault") == "drop" else 3
    found = faults_of(make_pool, tmp_path, partial(Fragile, fate=fate), num_faults, autoreset=mode, **options)
    assert len(found) >= num_faults
    for recording in found:
        outcome = replay(recording, Fragile)
        assert (outcome.verdict, outcome.notes) == ("reproduced", ())
        assert outcome.steps == recording.num_steps
        assert outcome.error is not None
        assert recording.fault is not None
        assert type(outcome.error).__name__ == recording.fault["kind"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", ["step", "reset"])
def test_an_info_that_could_not_leave_its_worker_is_found_in_one_process(
    make_pool: MakePool, tmp_path: Path, where: str, mode: str
) -> None:
    make = partial(FaultEnv, "info_lambda", where=where, at=2, episode_length=3)
    pool = make_pool(make, 1, engine="process", num_workers=1, autoreset=mode, fault_dir=tmp_path)
    pool.reset(seed=1)

    def play_on() -> None:
        for _ in range(4):
            row = pool.step([0])
            if mode == "disabled" and (row.terminated | row.truncated)[0]:
                pool.reset()

    with pytest.raises(FaultError, match="cannot leave the worker"):
        play_on()
    (recording,) = (Recording.load(path) for path in tmp_path.iterdir())
    outcome = replay(recording, make)
    assert (outcome.verdict, outcome.notes) == ("reproduced", ())


def test_faults_on_the_way_are_passed_if_the_caller_had_reset_the_env(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool(Fragile, 1, engine="serial", fault_dir=tmp_path)
    pool.reset(seed=20)
    faults = 0
    while faults < 3:
        try:
            pool.step([0])
        except FaultError:
            faults += 1
            pool.reset()
    first, second, third = (Recording.load(path) for path in sorted(tmp_path.iterdir()))
    assert [story.num_resets for story in (first, second, third)] == [1, 2, 3]
    for story in (first, second, third):
        outcome = replay(story, Fragile)
        assert (outcome.verdict, outcome.steps, outcome.notes) == ("reproduced", story.num_steps, ())


def test_an_env_that_cannot_be_built_anew(make_pool: MakePool, tmp_path: Path) -> None:
    built = []

    def make() -> Fragile:
        built.append(1)
        if len(built) > 3:
            raise OSError("no licence")
        return Fragile()

    found = faults_of(make_pool, tmp_path, make, faults=2)
    recording = found[1]
    assert recording.fault is not None
    assert (recording.fault["kind"], recording.fault["phase"]) == ("EnvConstructError", "construct")
    outcome = replay(recording, make)
    assert (outcome.verdict, outcome.steps, str(outcome.error.__cause__)) == ("reproduced", 0, "no licence")


@pytest.fixture
def recording(make_pool: MakePool, tmp_path: Path) -> Recording:
    """A fault that ended a few episodes with a ValueError."""
    return faults_of(make_pool, tmp_path, faults=1)[0]


def test_a_sound_env_has_no_fault_and_the_reasons_are_told(recording: Recording) -> None:
    outcome = replay(recording, CountingEnv)
    assert (outcome.verdict, outcome.error, outcome.steps) == ("no fault", None, recording.num_steps)
    assert "depends on something else" in outcome.notes[0]
    assert replay(replace(recording, gaps=("it is cut",)), CountingEnv).notes == ("it is cut",)
    assert replay(replace(recording, fault=None), CountingEnv).notes == ()


def test_another_fault_is_not_taken_for_it(recording: Recording) -> None:
    class Other(Fragile):
        def step(self, action: Any) -> Any:
            try:
                return super().step(action)
            except ValueError as error:
                raise TypeError(str(error)) from None

    outcome = replay(recording, Other)
    assert outcome.verdict == "another fault"
    assert outcome.notes[0].startswith("recorded: ValueError: draw ")
    assert replay(replace(recording, fault=None), Fragile).notes == ("no fault was recorded",)
    assert replay(recording, partial(Fragile, fate="nan")).verdict == "another fault"


def test_a_text_that_changes_is_no_other_fault_if_the_line_is_the_same(recording: Recording) -> None:
    class Renamed(Fragile):
        def reset(self, **how: Any) -> Any:
            row = super().reset(**how)
            self._draw += 1000
            return row

    outcome = replay(recording, Renamed)
    assert outcome.verdict == "reproduced"
    assert outcome.notes[0].startswith("its text was: ValueError: draw ")
    elsewhere = dict(recording.fault or {}, traceback='  File "x.py", line 1, in step')
    assert replay(replace(recording, fault=elsewhere), Renamed).verdict == "another fault"


def test_a_fault_that_comes_earlier_is_told_as_such(recording: Recording) -> None:
    longer = replace(
        recording,
        script=[*recording.script, ["step", 2]],
        actions=[np.concatenate([leaf, leaf[:2]]) for leaf in recording.actions],
    )
    outcome = replay(longer, Fragile)
    assert outcome.verdict == "reproduced"
    assert outcome.notes == (f"it came after {recording.num_steps} steps; recorded: after {longer.num_steps}",)


def test_an_episode_that_ends_too_early_is_no_fault() -> None:
    story = Recording(
        0, Origin("id", "CartPole-v1"), "disabled", None, [["reset", 1, None], ["step", 60]], [np.ones(60, int)]
    )
    outcome = replay(story)
    assert (outcome.verdict, outcome.notes[0]) == (
        "no fault",
        "an episode ended where the recorded one was sent a further step",
    )
    assert outcome.steps < 20


def test_progress_and_the_moment_of_the_fault(recording: Recording) -> None:
    seen: list[int] = []
    standing: list[bool] = []
    outcome = replay(
        recording,
        Fragile,
        seen.append,
        on_fault=lambda error: standing.append(_env_of(error).is_closed),
    )
    assert seen == list(range(recording.num_commands))
    assert standing == [False]
    assert _env_of(outcome.error).is_closed


def _env_of(error: Any) -> Any:
    trace = error.__cause__.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_locals["self"]


def test_a_hang_is_interrupted_where_it_hangs(make_pool: MakePool, tmp_path: Path) -> None:
    recording = faults_of(make_pool, tmp_path, faults=1)[0]
    assert recording.fault is not None
    hang = replace(
        recording,
        fault={**recording.fault, "kind": "EnvTimeout", "message": "step failed in env 0: no answer after 60.0 s"},
    )
    outcome = replay(hang, partial(Fragile, fate="hang"), timeout_s=0.1)
    assert (outcome.verdict, type(outcome.error), outcome.notes) == ("reproduced", EnvTimeout, ())
    assert outcome.error is not None
    last = outcome.error.remote_traceback.splitlines()
    assert last[-1] == "shoal.replaying.Hang: no answer after 0.1 s"
    assert "time.sleep(30)" in outcome.error.remote_traceback
    assert "in ring" not in outcome.error.remote_traceback


def test_the_alarm_is_off_while_the_caller_hears_of_the_progress(recording: Recording) -> None:
    left_s = []
    replay(recording, Fragile, lambda done: left_s.append(signal.getitimer(signal.ITIMER_REAL)[0]), timeout_s=60.0)
    assert left_s == [0.0] * recording.num_commands


# ---------------------------------------------------------------------- which env


def test_a_registered_env_is_made_by_its_id(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool("CartPole-v1", 2, engine="serial", env_kwargs={"sutton_barto_reward": True}, max_episode_steps=7)
    pool.reset(seed=1)
    rows = [pool.step([1, 0]) for _ in range(20)]
    recording = Recording.load(pool.save_black_box(tmp_path, 1))
    with open_pool(recording) as again:
        first, *others = play(recording, again)
    assert first is not None
    assert [row.obs[0].tolist() for row in others if row] == [row.obs[1].tolist() for row in rows]
    assert [row.reward[0] for row in others if row] == [row.reward[1] for row in rows]


def test_a_compiled_env_of_shoals_own_is_known() -> None:
    assert reason_against(Origin("callable", "shoal.envs.cartpole:CartPole")) is None
    story = Recording(
        0,
        Origin("callable", "shoal.envs.cartpole:CartPole"),
        "next_step",
        9,
        [["reset", 1, None]],
        [np.zeros(0, np.int64)],
    )
    assert replay(story).verdict == "no fault"


@pytest.mark.parametrize(
    ("origin", "reason"),
    [
        (Origin("id", "Nowhere-v0"), "its id is not registered here"),
        (Origin("id", "spy:CartPole-v1"), "its id is not registered here"),
        (Origin("callable", "spy:make"), "names code, but does not run it"),
        (Origin("id", "CartPole-v1", wrappers=("spy:Wrapper",)), r"wrappers \(spy:Wrapper\)"),
        (Origin("id", "CartPole-v1", lost=("rng",)), r"missing: rng"),
    ],
    ids=str,
)
def test_nothing_that_a_recording_names_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: Origin, reason: str
) -> None:
    (tmp_path / "spy.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    story = Recording(0, origin, "next_step", None, [["reset", 1, None]], [np.zeros(0, np.int64)])
    story = Recording.load(story.save(tmp_path / "story"))
    with pytest.raises(ArgumentError, match=reason):
        replay(story)
    assert "spy" not in sys.modules
    assert replay(story, "CartPole-v1").verdict == "no fault"


def test_the_recorded_arguments_go_to_the_recorded_name_only() -> None:
    given: list[dict[str, Any]] = []

    def make(**kwargs: Any) -> CountingEnv:
        given.append(kwargs)
        return CountingEnv(**kwargs)

    def make_in_full(**kwargs: Any) -> CountingEnv:
        return make(**kwargs)

    name = Origin.of(make).name.partition(":")[2]
    story = Recording(
        0, Origin("callable", f"__main__:{name}", {"tag": 3}), "next_step", None, [], [np.zeros(0, np.int64)]
    )
    for factory in (make, make_in_full, partial(make, tag=4)):
        replay(story, factory)
    assert given == [{"tag": 3}, {}, {"tag": 3}]


def test_an_env_with_other_actions_is_refused(recording: Recording) -> None:
    with pytest.raises(ArgumentError, match="it takes other actions"):
        replay(recording, "Pendulum-v1")
    fewer = partial(CountingEnv, action_space=gym.spaces.Discrete(1))
    with pytest.raises(ActionError):
        replay(recording, fewer)


def test_wrappers_are_up_to_the_callable(make_pool: MakePool, tmp_path: Path) -> None:
    wrappers = [partial(TransformReward, func=lambda reward: 2 * reward)]
    (recording,) = faults_of(make_pool, tmp_path, faults=1, wrappers=wrappers)[:1]
    with pytest.raises(ArgumentError, match="TransformReward"):
        replay(recording)
    assert replay(recording, lambda: wrappers[0](Fragile())).verdict == "reproduced"
