"""The native engine beside its rows, which are the law's: faults, snapshots, threads, and who runs on it."""

from __future__ import annotations

import gc
import logging
import math
import pickle
import threading
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from kernel_kinds import assert_same, rows_of
from native_kinds import Drift, DriftSim, Pieces, Steady

import shoal
from shoal.errors import (
    ArgumentError,
    EnvCallError,
    EnvConstructError,
    EnvResetError,
    EnvStepError,
    NotReset,
    StateError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal import Pool

PUSH = np.full((4, 2), 0.5, np.float32)


@pytest.fixture
def explosive(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Makes every step of a ``Drift`` raise."""
    return lambda error: monkeypatch.setattr(Drift, "explode", error)


def test_auto_takes_it(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Drift, 4)
    assert pool.stats().engine == "native"
    assert "all envs at once" in pool.stats().engine_reason
    assert repr(pool).startswith("Pool(Drift, 4 envs, native, ")


def test_wrapped_envs_run_one_by_one(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Drift, 1, wrappers=[gym.wrappers.FlattenObservation])
    assert pool.stats().engine == "serial"
    assert pool.reset(seed=1).obs.shape == (1, 3)


def test_every_env_with_its_own_options_runs_elsewhere(make_pool: Callable[..., Pool]) -> None:
    each = [{"gain": 1.0}, {"gain": 2.0}]
    with pytest.raises(EnvConstructError, match="one set of options"):
        make_pool(Drift, 2, env_kwargs=each, engine="native")
    assert make_pool(Drift, 2, env_kwargs=each, engine="serial").reset(seed=1).obs.shape == (2, 3)


def test_other_envs_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"native engine runs NativeEnv classes.*CartPole-v1 is none"):
        shoal.make_pool("CartPole-v1", 2, engine="native")


def test_a_kind_that_cannot_be_made_names_the_reason() -> None:
    with pytest.raises(EnvConstructError, match="unexpected keyword argument 'weight'"):
        shoal.make_pool(Drift, 2, env_kwargs={"weight": 3})


# ---------------------------------------------------------------------- faults


def test_a_failing_env_is_named_and_the_others_have_moved(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Steady, 4, env_kwargs={"fail_at": 2})
    pool.reset(seed=3)
    pool.step(PUSH[:1], env_id=[2])
    with pytest.raises(EnvStepError, match="the drift has run aground") as caught:
        pool.step(PUSH)
    assert caught.value.where.env_ids == (2,)
    assert (caught.value.where.episode_step, caught.value.where.seed) == (1, 5)
    rest = pool.recv()
    assert rest.env_id.tolist() == [0, 1, 3]
    assert rest.elapsed_step.tolist() == [1, 1, 1]
    pool.reset(env_id=[2])
    assert pool.step(PUSH[:1], env_id=[2]).elapsed_step.tolist() == [1]


def test_a_reset_that_fails(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Drift, 4)
    pool.reset(seed=1)
    with pytest.raises(EnvResetError, match="the drift is broken") as caught:
        pool.reset(options={"broken": True}, env_id=[1])
    assert caught.value.where.env_ids == (1,)
    assert pool.reset(env_id=[1]).first.all()


@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
def test_restart_brings_envs_back_as_everywhere_else(autoreset: str, make_pool: Callable[..., Pool]) -> None:
    options: dict[str, Any] = {"autoreset": autoreset, "on_fault": "restart", "env_kwargs": {"fail_at": 3}}
    native, serial = (make_pool(Steady, 4, engine=engine, seed=2, **options) for engine in ("native", "serial"))
    for pool in (native, serial):
        pool.reset()
    for _ in range(9):
        batches = [pool.step(PUSH) for pool in (native, serial)]
        for name in ("obs", "reward", "truncated", "elapsed_step", "first"):
            np.testing.assert_array_equal(*(getattr(batch, name) for batch in batches), err_msg=name)
        told = [[(row, info["fault"]["incarnation"]) for row, info in b.infos if "fault" in info] for b in batches]
        assert told[0] == told[1]
        if autoreset == "disabled" and (over := np.flatnonzero(batches[0].truncated).tolist()):
            np.testing.assert_array_equal(*(pool.reset(env_id=over).obs for pool in (native, serial)))
    assert native.stats().restarts == serial.stats().restarts > 0


def test_dropped_envs_stay_out(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Steady, 4, on_fault="drop", env_kwargs={"fail_at": 2})
    pool.reset(seed=1)
    pool.step(PUSH[:2], env_id=[0, 1])
    assert pool.step(PUSH).truncated.tolist() == [True, True, False, False]
    assert pool.dropped == {0, 1}


@pytest.mark.parametrize(("policy", "faults"), [("raise", None), ("truncate", 4), ("pass", 0)])
def test_nan_is_dealt_with_as_the_policy_says(policy: str, faults: int | None, make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Steady, 4, on_nan=policy, env_kwargs={"nan_at": 2})
    pool.reset(seed=1)
    pool.step(PUSH)
    if faults is None:
        with pytest.raises(EnvStepError, match="expected a finite number"):
            pool.step(PUSH)
    else:
        assert pool.step(PUSH).truncated.sum() == faults
        assert pool.stats().nans == 4


@pytest.mark.parametrize("is_whole", [True, False])
def test_what_the_simulator_raises_is_a_fault_of_every_env_in_the_call(
    is_whole: bool, make_pool: Callable[..., Pool], explosive: Callable[[BaseException], None]
) -> None:
    pool = make_pool(Drift, 4)
    pool.reset(seed=1)
    explosive(RuntimeError("the sea is dry"))
    with pytest.raises(EnvStepError, match="the sea is dry") as caught:
        pool.step(PUSH if is_whole else PUSH[:2], env_id=None if is_whole else [3, 1])
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("batch_size", [None, 1])
def test_a_simulator_that_calls_exit_does_not_end_the_trainer(
    is_whole: bool,
    batch_size: int | None,
    make_pool: Callable[..., Pool],
    explosive: Callable[[BaseException], None],
) -> None:
    pool = make_pool(Drift, 4, batch_size=batch_size)
    pool.reset(seed=1)
    explosive(SystemExit(3))
    with pytest.raises(EnvStepError, match="SystemExit: 3"):
        pool.step(PUSH if is_whole else PUSH[:2], env_id=None if is_whole else [3, 1])


@pytest.mark.parametrize("is_whole", [True, False])
def test_an_interrupt_leaves_no_torn_rows(
    is_whole: bool,
    make_pool: Callable[..., Pool],
    explosive: Callable[[BaseException], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = make_pool(Steady, 4)
    pool.reset(seed=1)
    explosive(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        pool.step(PUSH if is_whole else PUSH[:2], env_id=None if is_whole else [0, 2])
    monkeypatch.setattr(Drift, "explode", None)
    with pytest.raises(EnvStepError, match="KeyboardInterrupt"):
        pool.recv()
    pool.reset(seed=1)
    assert pool.step(PUSH).elapsed_step.tolist() == [1, 1, 1, 1]


# ---------------------------------------------------------------------- snapshots and single envs


@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("kind", [Drift, Pieces], ids=lambda kind: kind.__name__)
def test_a_restored_pool_does_the_same_again(kind: type, autoreset: str, make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(kind, 4, autoreset=autoreset)
    space = gym.vector.utils.batch_space(pool.spec.action.space, 4)
    space.seed(1)
    actions = [space.sample() for _ in range(30)]

    def play() -> list[Any]:
        rows = []
        for action in actions:
            batch = pool.step(action)
            rows.append(rows_of(batch))
            over = np.flatnonzero(batch.terminated | batch.truncated).tolist()
            if over and autoreset == "disabled":
                rows.append(rows_of(pool.reset(env_id=over)))
        return rows

    pool.reset(seed=5)
    while True:  # somewhere in the middle of episodes, with one that is over where that can be
        batch = pool.step(actions[0])
        if (batch.terminated | batch.truncated).any():
            break
    snapshot = pickle.loads(pickle.dumps(pool.snapshot()))
    if autoreset == "disabled":
        over = np.flatnonzero(batch.terminated | batch.truncated).tolist()
        pool.reset(env_id=over)
        snapshot = pool.snapshot()
    before = play()
    pool.restore(snapshot)
    assert_same(play(), before)


@pytest.mark.parametrize("taken_in", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("put_back_in", ["next_step", "same_step"])
def test_whether_a_reset_is_due_is_up_to_the_pool_that_an_env_is_restored_in(
    taken_in: str, put_back_in: str, make_pool: Callable[..., Pool]
) -> None:
    pool, other = (make_pool(Steady, 4, autoreset=mode, max_episode_steps=2) for mode in (taken_in, put_back_in))
    pool.reset(seed=1)
    for _ in range(2):
        assert pool.step(PUSH).elapsed_step[0] > 0
    other.restore(pool.snapshot())
    if put_back_in == "same_step" and taken_in != "same_step":
        with pytest.raises(NotReset, match="have finished their episodes"):
            other.step(PUSH)
        return
    steps = 1 if taken_in == "same_step" else 0 if put_back_in == "next_step" else 3
    assert other.step(PUSH).elapsed_step.tolist() == [steps] * 4


def test_one_env_can_be_restored_into_others_in_any_order(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Steady, 4)
    pool.reset(seed=5)
    pool.step(PUSH)
    two = pool.snapshot([3, 1])
    pool.restore(two, [0, 2])
    obs = pool.latest().obs
    np.testing.assert_array_equal(obs[[0, 2]], obs[[3, 1]])
    after = pool.step(PUSH).obs
    np.testing.assert_array_equal(after[[0, 2]], after[[3, 1]])
    pool.restore(pool.snapshot([0]))
    assert (pool.latest().obs == pool.latest().obs[0]).all()


def test_a_restore_that_fails_leaves_rows_as_they_were_and_envs_that_wait_for_their_reset(
    make_pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> None:
        raise ValueError("no way back")

    pool = make_pool(Steady, 4)
    pool.reset(seed=5)
    snapshot = pool.snapshot([0, 2])
    last = rows_of(pool.step(PUSH))
    with monkeypatch.context() as patch:
        patch.setattr(DriftSim, "restore", refuse)
        with pytest.raises(ValueError, match="no way back"):
            pool.restore(snapshot, [0, 2])
    assert pool.faulted == {0, 2}
    assert_same(rows_of(pool.latest()), last)
    with pytest.raises(StateError, match=r"envs \[0, 2\] failed earlier \(restore: no way back\)"):
        pool.step(PUSH)
    pool.restore(snapshot, [0, 2])
    assert pool.step(PUSH).elapsed_step.tolist() == [1, 2, 1, 2]


def test_calls_attributes_and_pictures(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Steady, 3)
    pool.reset(seed=5)
    pool.step(PUSH[:2], env_id=[0, 2])
    assert pool.get_attr("total") == (1, 0, 1)
    assert [picture[0, 0, 0] for picture in pool.render([2, 1])] == [2, 1]
    draws = [generator.random() for generator in pool.get_attr("np_random")]
    assert len(set(draws)) == 3
    with pytest.raises(EnvCallError, match="nothing"):
        pool.get_attr("nothing")


# ---------------------------------------------------------------------- threads


def test_an_asynchronous_pool_moves_while_its_caller_does_something_else(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Steady, 4, batch_size=2)
    pool.async_reset()
    batch = pool.recv()
    sim = pool.engine._sim  # type: ignore[attr-defined]
    pool.send(PUSH[:2], batch.env_id)
    assert sim.has_stepped.wait(10)
    assert sim.thread is not threading.current_thread()
    assert sorted([*pool.recv().env_id.tolist(), *pool.recv().env_id.tolist()]) == [0, 1, 2, 3]


def test_halves_that_are_due_when_somebody_waits_are_stepped_together(
    make_pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.engines.native.conductor._LONG_S", math.inf)  # nothing is worth a thread
    calls: list[Any] = []
    step = DriftSim.step
    monkeypatch.setattr(DriftSim, "step", lambda sim, ids, *rest: calls.append(ids) or step(sim, ids, *rest))
    pool = make_pool(Steady, 4, batch_size=2)
    pool.async_reset(seed=1)
    rows: dict[int, list[int]] = {i: [] for i in range(4)}
    for _ in range(40):
        batch = pool.recv()
        for i, steps in zip(batch.env_id.tolist(), batch.elapsed_step.tolist(), strict=True):
            rows[i].append(steps)
        pool.send(PUSH[:2], batch.env_id)
    assert len(calls) == 19, "the first two halves are of the reset"
    assert all(ids is None for ids in calls), "everyone"
    assert all(steps == list(range(20)) for steps in rows.values())


def test_a_synchronous_pool_has_no_thread(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Steady, 4)
    pool.reset(seed=1)
    pool.send(PUSH)
    assert pool.recv().elapsed_step.tolist() == [1, 1, 1, 1]
    assert pool.engine._sim.thread is threading.current_thread()  # type: ignore[attr-defined]


def test_a_pool_that_is_forgotten_ends_its_thread() -> None:
    pool = shoal.make_pool(Steady, 4, batch_size=2)
    pool.async_reset()
    pool.recv()
    (thread,) = [t for t in threading.enumerate() if t.name == "shoal-native"]
    del pool
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_close_ends_the_simulator_and_may_be_called_twice() -> None:
    pool = shoal.make_pool(Drift, 2)
    sim = pool.engine._sim  # type: ignore[attr-defined]
    pool.reset(seed=1)
    pool.close()
    pool.close()
    assert sim.is_closed
    assert pool.stats().resets == 2
    with pytest.raises(StateError):
        pool.reset()


def test_a_simulator_that_cannot_be_closed_is_named_and_nothing_is_raised(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(sim: DriftSim) -> None:
        raise RuntimeError("the sea is dry")

    monkeypatch.setattr(DriftSim, "close", refuse)
    pool = shoal.make_pool(Drift, 2)
    with caplog.at_level(logging.WARNING, "shoal"):
        pool.close()
    assert pool.is_closed
    assert "close failed in the simulator" in caplog.text
    assert "the sea is dry" in caplog.text


class GoesOnSim(DriftSim):
    """Points that go on from where their episode has ended, unless a reset is asked for."""

    def next_episode(self, ids: Any, out: Any) -> dict[int, Exception]:
        places = self.x[ids].copy()
        errors = self.reset(ids, {}, {}, out)
        self.x[ids] = places
        self._look(ids, out)
        return errors


class GoesOn(Drift):
    """Its kind."""

    def simulate(self, num_envs: int, num_threads: int) -> GoesOnSim:
        return GoesOnSim(self, num_envs)


@pytest.mark.parametrize("engine", ["native", "serial"])
@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_a_simulator_may_go_on_where_an_episode_has_ended(
    engine: str, autoreset: str, make_pool: Callable[..., Pool]
) -> None:
    pool = make_pool(GoesOn, 1, engine=engine, autoreset=autoreset, seed=1)
    first = pool.reset().obs
    push = np.ones((1, 2), np.float32)
    for _ in range(40):  # there is a boundary every few steps, and no way back
        pool.step(push)
    assert pool.stats().episodes > 3
    assert pool.latest().obs[0, :2].min() > 7.0  # further than any one episode leads
    assert np.array_equal(pool.reset(seed=1).obs, first)
