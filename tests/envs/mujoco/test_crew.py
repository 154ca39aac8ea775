"""Robots that are stepped one by one, while their caller does something else: their rows are the same."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
from itertools import count
from textwrap import dedent
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupts import interrupt_at
from trainer_processes import run_program

mujoco = pytest.importorskip("mujoco")
pytest.importorskip("mujoco.batch")
pytest.importorskip("numba")
import shoal  # noqa: E402
from shoal.envs.mujoco.crew_layout import ASLEEP  # noqa: E402
from shoal.envs.mujoco.env import MujocoEnv  # noqa: E402
from shoal.envs.mujoco.library import callback  # noqa: E402
from shoal.errors import EnvStepError, FaultError, NothingInFlight, StateError  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal import Pool

ROBOTS = ["Ant-v5", "HalfCheetah-v4", "Hopper-v5", "Humanoid-v5", "HumanoidStandup-v4", "Pusher-v5", "Walker2d-v5"]
ALIVE_S = 30.0
BOXES = "".join(
    f"<body pos='{0.05 * i} 0 {0.5 + 0.3 * i}'><freejoint/><geom type='box' size='.1 .1 .1'/></body>" for i in range(8)
)


class Falling(MujocoEnv):
    """Boxes that fall on a heap, for which there is not enough memory; the higher ones of an env fall later."""

    model = f"""
        <mujoco>
          <size memory="16K"/>
          <worldbody><geom type="plane" size="5 5 1"/>{BOXES}
            <body pos="3 0 9"><joint name="slide" type="slide"/><geom size=".1"/></body>
          </worldbody>
          <actuator><motor joint="slide" ctrlrange="-1 1"/></actuator>
        </mujoco>"""
    info = {"height": np.float64}
    frame_skip = 5

    def start(self, rng: np.random.Generator) -> Any:
        qpos = self.qpos0.copy()
        qpos[2:56:7] += 100.0 * rng.integers(2)
        return qpos, self.qvel0

    def observe(self, d: Any) -> Any:
        return d.qpos

    def reward(self, d: Any) -> Any:
        return d.qpos[:, 2]

    def report(self, d: Any) -> None:
        d.info["height"] = d.qpos[:, 2]


class Ball(MujocoEnv):
    """A ball that falls, with nothing to control."""

    model = """
        <mujoco><worldbody>
          <geom type="plane" size="5 5 1" pos="0 0 -1"/><body><freejoint/><geom size=".1"/></body>
        </worldbody></mujoco>"""
    fields = ("xpos", "qpos")

    def observe(self, d: Any) -> Any:
        return np.hstack([d.qpos, d.xpos[:, 1]])

    def reward(self, d: Any) -> Any:
        return -d.qvel[:, 2]


def crew_of(pool: Pool) -> Any:
    return pool.engine._sim._crew  # type: ignore[attr-defined]


def streams(pool: Pool, length: int, *, timeout: float | None = None) -> list[list[Any]]:
    """The first rows of every env, each of which gets actions that depend on nothing but its number and its row's."""
    size, seen = pool.num_envs, [[] for _ in range(pool.num_envs)]
    space: Any = pool.spec.action.space
    actions = np.random.default_rng(0).uniform(space.low, space.high, (length + 200, size, *space.shape))
    pool.async_reset(seed=7)
    while min(map(len, seen)) < length:
        batch = pool.recv(timeout) if timeout is None or pool.batch_size > 1 else patient(pool, timeout)
        ids = batch.env_id.tolist()
        for row, i in enumerate(ids):
            flags = (batch.terminated[row], batch.truncated[row], batch.first[row], batch.elapsed_step[row])
            fields = [column[row] for column in batch.fields.values()]
            seen[i].append(np.hstack([batch.obs[row].ravel(), batch.reward[row], *flags, *map(np.ravel, fields)]))
        going = [i for i in ids if len(seen[i]) < length + 100]
        if going:
            chosen = np.stack([actions[len(seen[i]), i] for i in going]).astype(space.dtype)
            pool.send(chosen, going)
    return [rows[:length] for rows in seen]


def patient(pool: Pool, wait_s: float) -> Any:
    while True:
        try:
            return pool.recv(wait_s)
        except shoal.errors.RecvTimeout:
            continue


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.parametrize("task", [*ROBOTS, Ball])
def test_rows_are_those_of_a_pool_in_step(task: Any, autoreset: str, make_pool: Callable[..., Pool]) -> None:
    options = {"autoreset": autoreset, "max_episode_steps": 45, "num_workers": 3}
    apart = make_pool(task, 5, batch_size=2, **options)
    assert crew_of(apart) is not None
    together = make_pool(task, 5, batch_size=5, **options)
    for one, other in zip(streams(apart, 120), streams(together, 120), strict=True):
        np.testing.assert_array_equal(one, other)


@settings(max_examples=30, deadline=None)
@given(
    num_envs=st.integers(2, 9), share=st.floats(0, 1), num_threads=st.integers(2, 5), wait=st.sampled_from([None, 0.0])
)
def test_nothing_is_lost_and_nothing_comes_twice(
    num_envs: int, share: float, num_threads: int, wait: float | None
) -> None:
    options: dict[str, Any] = {"max_episode_steps": 7, "num_workers": num_threads}
    size = max(1, round(share * num_envs))
    with (
        shoal.make_pool("Hopper-v5", num_envs, batch_size=min(size, num_envs - 1), **options) as apart,
        shoal.make_pool("Hopper-v5", num_envs, **options) as together,
    ):
        size = apart.batch_size
        found = streams(apart, 25, timeout=wait if size == 1 else None)
        for one, other in zip(found, streams(together, 25), strict=True):
            np.testing.assert_array_equal(one, other)


def test_one_thread_sends_while_another_receives(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool("Hopper-v5", 6, batch_size=2, num_workers=2, seed=1)
    rows, wanted = np.zeros(6, int), 600
    due: list[Any] = []
    news = threading.Condition()

    def send() -> None:
        for _ in range(wanted):
            with news:
                assert news.wait_for(lambda: due, ALIVE_S)
                ids = due.pop(0)
            pool.send(np.zeros((2, 3), np.float32), ids)

    pool.async_reset()
    sender = threading.Thread(target=send)
    sender.start()
    for _ in range(wanted):
        ids = pool.recv(ALIVE_S).env_id
        rows[ids] += 1
        with news:
            due.append(ids)
            news.notify()
    sender.join(ALIVE_S)
    assert not sender.is_alive()
    assert rows.sum() == 2 * wanted
    assert rows.min() > 0


def test_a_simulation_that_fails_is_named_and_the_others_go_on(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Falling, 4, batch_size=2, num_workers=2)
    assert crew_of(pool) is not None
    pool.async_reset(seed=[1, 2, 3, 4])
    failed: dict[int, list[EnvStepError]] = {}
    steps = np.zeros(4, int)
    while steps.sum() < 400:
        try:
            batch = pool.recv()
        except EnvStepError as error:
            failed.setdefault(error.env_id, []).append(error)
            continue
        steps[batch.env_id] += 1
        going = [i for i in batch.env_id.tolist() if i not in failed]
        pool.send(np.zeros((len(going), 1), np.float32), going)
    assert 0 < len(failed) < 4, "in some of them, the boxes are still falling"
    for errors in failed.values():
        (error,) = errors
        assert "out of memory" in str(error)
    again = [*failed]
    pool.async_reset(env_id=again, seed=2)
    while again:
        batch = pool.recv()
        assert np.isfinite(batch.obs).all()
        again = [i for i in again if i not in batch.env_id]


@pytest.fixture
def no_control() -> Iterator[None]:
    """Nothing is left installed."""
    yield
    mujoco.set_mjcb_control(None)


@pytest.mark.usefixtures("no_control")
def test_a_callback_in_python_is_left_to_the_batch_which_refuses_it(make_pool: Callable[..., Pool]) -> None:
    calls: list[int] = []
    pool = make_pool("Hopper-v5", 4, batch_size=2, num_workers=2, seed=1)
    pool.async_reset()
    ids = pool.recv().env_id
    mujoco.set_mjcb_control(lambda model, data: calls.append(1))
    pool.send(np.zeros((2, 3), np.float32), ids)
    pool.recv()  # the first rows of the others
    with pytest.raises(EnvStepError, match="callback"):
        pool.recv()
    assert not calls
    mujoco.set_mjcb_control(None)
    pool.reset(seed=1)
    for _ in range(10):
        pool.send(np.zeros((2, 3), np.float32), [0, 1])
        assert sorted(pool.recv().env_id.tolist()) == [0, 1]


def test_simulations_that_nobody_waited_for_are_settled_before_they_are_reset(make_pool: Callable[..., Pool]) -> None:
    """As after an interrupt right after a step was begun."""
    pool = make_pool("HalfCheetah-v5", 6, batch_size=3, num_workers=2)
    fresh = pool.reset(seed=3).obs
    crew, ids = crew_of(pool), np.arange(6, dtype=np.int32)
    for _ in range(50):
        assert crew.post(ids, np.ones((6, 6), np.float32))
        np.testing.assert_array_equal(pool.reset(seed=3).obs, fresh)
        assert crew.moved(6, 0.0) == []
    assert crew.post(ids[:2], np.ones((6, 6), np.float32))
    assert crew.post(ids[:4], np.ones((6, 6), np.float32)), "those that are under way are waited for"
    assert sorted(crew.moved(6, None)) == [0, 1, 2, 3]


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_after_an_interrupt_anywhere_a_reset_mends_it(autoreset: str, make_pool: Callable[..., Pool]) -> None:
    push, rest = np.ones((2, 3), np.float32), np.zeros((4, 3), np.float32)
    pool = make_pool("Hopper-v5", 4, batch_size=2, num_workers=2, autoreset=autoreset, max_episode_steps=3)
    expected = rows_after_reset(pool, rest)

    def go_on() -> None:
        for _ in range(2):
            pool.send(push, pool.recv(ALIVE_S).env_id)

    for point in count():
        pool.reset(seed=5)
        pool.send(rest)
        was_cut = interrupt_at(point, go_on)
        with contextlib.suppress(NothingInFlight, StateError, FaultError):
            while True:
                assert np.isfinite(pool.recv(ALIVE_S).obs).all()
        np.testing.assert_array_equal(rows_after_reset(pool, rest), expected)
        if not was_cut:
            break
    assert point > 100


def rows_after_reset(pool: Pool, action: Any) -> Any:
    """What the envs show after a reset and two steps, in the order of the envs."""
    pool.reset(seed=3)
    shown = []
    for _ in range(2):
        pool.send(action)
        batches = [pool.recv(ALIVE_S), pool.recv(ALIVE_S)]
        order = np.argsort(np.concatenate([batch.env_id for batch in batches]))
        shown.append(np.concatenate([batch.obs for batch in batches])[order])
    return np.stack(shown)


def test_threads_that_have_nothing_to_do_sleep(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool("Hopper-v5", 4, batch_size=2, num_workers=3, seed=1)
    for _ in range(3):
        pool.reset()
        pool.send(np.zeros((4, 3), np.float32))
        pool.recv(), pool.recv()
        end = monotonic() + ALIVE_S
        while crew_of(pool)._board[ASLEEP] < 2:
            assert monotonic() < end
            sleep(0.001)


def test_threads_end_with_the_pool_and_with_a_pool_that_is_forgotten() -> None:
    def threads() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t.name == "shoal-mujoco"]

    for forgets in (False, True):
        pool = shoal.make_pool("Hopper-v5", 4, batch_size=2, num_workers=3, seed=1)
        pool.async_reset()
        pool.send(np.zeros((2, 3), np.float32), pool.recv().env_id)
        assert len(threads()) == 2
        if not forgets:
            pool.close()
            pool.close()
        del pool
        gc.collect()
        assert not threads()


def test_a_program_may_end_while_robots_move() -> None:
    run_program(
        dedent("""
            import numpy as np, shoal

            pool = shoal.make_pool("Humanoid-v5", 16, batch_size=8, num_workers=2, seed=1)
            pool.async_reset()
            pool.send(np.zeros((8, 17), np.float32), pool.recv().env_id)
            pool.send(np.zeros((8, 17), np.float32), pool.recv().env_id)
        """)
    )


def test_who_prepares_the_batch_is_stepped_by_it(make_pool: Callable[..., Pool]) -> None:
    class Heavy(Falling):
        def prepare(self, batch: Any) -> None:
            batch.expand("body_mass")[:] *= np.array([[1.0], [2.0]])
            batch.set_const()

    pool = make_pool(Heavy, 2, batch_size=1, num_workers=2, seed=1)
    assert crew_of(pool) is None
    pool.async_reset()
    for _ in range(10):
        pool.send(np.zeros((1, 1), np.float32), pool.recv().env_id)


class TestClock:
    def test_it_stands_still_while_there_are_robots(self) -> None:
        model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='1'/></worldbody></mujoco>")

        def ticks() -> bool:
            data = mujoco.MjData(model)
            mujoco.mj_step(model, data, 100)
            return bool(data.timer[mujoco.mjtTimer.mjTIMER_STEP].duration)

        gc.collect()  # pools of other tests
        assert ticks()
        with shoal.make_pool("Hopper-v5", 2) as first, shoal.make_pool("Hopper-v5", 2):
            first.reset()
            assert not ticks()
            first.close()
            assert not ticks(), "there is another pool"
        assert ticks()

    def test_a_clock_of_ones_own_goes_on(self) -> None:
        gc.collect()
        pointer: Any = callback("time")
        usual = pointer.value
        assert usual
        ticking = ctypes.CFUNCTYPE(ctypes.c_double)(lambda: 1.0)
        own = ctypes.cast(ticking, ctypes.c_void_p).value
        mujoco.set_mjcb_time(ticking)
        try:
            assert pointer.value == own
            with shoal.make_pool("Hopper-v5", 2, seed=1) as pool:
                pool.reset()
                pool.step(np.zeros((2, 3), np.float32))
                assert pointer.value == own
            assert pointer.value == own
        finally:
            mujoco.set_mjcb_time(None)
            pointer.value = usual
