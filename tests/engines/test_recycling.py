"""Moving envs from a worker to its heir: the rows are those of a pool in which nobody moves."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from interrupts import interrupt_once
from wandering import SOON_S, DiaryEnv, Pair, WanderingEnv, envs, order

from shoal import errors
from shoal.recovery import Restart

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import shoal

MODES = ("next_step", "same_step", "disabled")


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("autoreset", MODES)
def test_rows_stay_the_same_while_a_worker_is_replaced(
    autoreset: str, threads: int, make_pool: Callable[..., shoal.Pool]
) -> None:
    pair = Pair(make_pool, envs(4, infos=True), autoreset=autoreset, threads_per_worker=threads)
    before = pair.pids
    pair.walk(5)
    assert (pair.recycled, pair.pids) == (0, before)
    pair.until_recycled(1)
    assert len(pair.pids) == 2
    assert len(set(before) & set(pair.pids)) == 1
    pair.walk(15)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("autoreset", MODES)
def test_workers_are_replaced_again_and_again(
    autoreset: str, threads: int, make_pool: Callable[..., shoal.Pool]
) -> None:
    pair = Pair(make_pool, envs(5, infos=True), autoreset=autoreset, threads_per_worker=threads)
    before = pair.pids
    pair.until_recycled(5)
    assert not set(before) & set(pair.pids)
    pair.walk(15)


@pytest.mark.slow
@pytest.mark.parametrize("autoreset", MODES)
def test_workers_with_different_numbers_of_lanes_take_each_others_places(
    autoreset: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    # Three envs, in two workers of two threads: one of them has a single lane.
    pair = Pair(make_pool, envs(3), autoreset=autoreset, threads_per_worker=2)
    pair.until_recycled(6)
    pair.walk(15)


@pytest.mark.parametrize(
    "autoreset", ["same_step", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("next_step", "disabled"))]
)
def test_texts_and_infos_of_both_episodes_stay_with_their_rows(
    autoreset: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pair = Pair(make_pool, envs(2, DiaryEnv), autoreset=autoreset)
    pair.until_recycled(2)
    pair.walk(15)


@pytest.mark.slow
@pytest.mark.parametrize("autoreset", MODES)
def test_views_keep_their_values(autoreset: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pair = Pair(make_pool, envs(4, obs_shape=(16, 16)), autoreset=autoreset, copy=False)
    held: list[Any] = []
    while pair.recycled < 3:
        pair.recycle()
        if over := sorted(pair.over):
            pair.reset(over)
        batch = pair.step()
        for now, then in held:
            np.testing.assert_array_equal(now, then)
        held = [(batch.obs, batch.obs.copy())]


@pytest.mark.slow
@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_an_asynchronous_pool_is_not_held_up(autoreset: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pair = Pair(make_pool, autoreset=autoreset, batch_size=2)
    pair.send(pair.all)
    turns = 0
    while pair.recycled < 2 or turns < 40:
        pair.recycle()
        pair.recv()
        pair.send(pair.idle)
        turns += 1


def test_an_env_that_is_reset_in_the_middle_moves_at_once(make_pool: Callable[..., shoal.Pool]) -> None:
    pair = Pair(make_pool, envs(4, episode_length=1000))
    before = pair.pids
    pair.walk(3)
    pair.recycle()
    pair.walk(3)
    assert pair.recycled == 0  # nobody is at the end of an episode
    pair.reset([0, 2], seed=5)
    pair.walk(2)
    assert len(pair.pids) == 3  # one env of the worker that leaves has moved, and one has not
    pair.reset()
    assert pair.recycled == 1
    assert len(set(before) & set(pair.pids)) == 1
    pair.walk(3)


def test_envs_answer_calls_while_some_have_moved(make_pool: Callable[..., shoal.Pool]) -> None:
    pair = Pair(make_pool, envs(4, episode_length=5), num_workers=1, autoreset="same_step")
    (old,) = pair.pids
    pair.recycle()
    pair.reset([1, 2])
    assert [pid == old for pid in pair.pool.call("pid")] == [True, False, False, True]
    assert len(pair.pids) == 2
    pair.walk(4)
    pair.pool.set_attr("tag", [0, 1, 2, 3])
    assert pair.pool.get_attr("tag") == (0, 1, 2, 3)
    pair.walk(3)
    assert pair.recycled == 1
    assert old not in pair.pids


def test_options_that_cannot_travel_are_refused_before_anybody_moves(make_pool: Callable[..., shoal.Pool]) -> None:
    pair = Pair(make_pool, num_workers=1)
    pair.recycle()
    with pytest.raises(errors.ShippingError):
        pair.pool.reset(options={"lock": threading.Lock()})
    pair.reset(seed=3)
    pair.walk(5)


@pytest.mark.parametrize("autoreset", ["same_step", pytest.param("next_step", marks=pytest.mark.slow)])
def test_an_env_that_is_built_anew_is_so_at_the_heirs(
    autoreset: str, make_pool: Callable[..., shoal.Pool], tmp_path: Path
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
    pair = Pair(
        make_pool,
        envs(4, orders=ours, episode_length=6),
        twin_fns=envs(4, orders=theirs, episode_length=6),
        autoreset=autoreset,
        on_fault=Restart(budget=None, backoff_s=0.0),
        num_workers=1,
    )
    (old,) = pair.pids
    pair.recycle()
    for folder in (ours, theirs):
        order(folder, 2, "step", "raise")
    pair.walk(1)
    assert pair.pool.stats().restarts == 1
    if autoreset == "next_step":
        pair.walk(1)
    assert [pid == old for pid in pair.pool.call("pid")] == [True, True, False, True]
    pair.walk(8)
    assert pair.recycled == 1
    for folder in (ours, theirs):
        order(folder, 2, "step", "raise")
    batch = pair.step()
    assert dict(batch.infos)[2]["fault"]["incarnation"] == 2
    pair.walk(8)


def test_an_env_that_an_interrupt_has_lost_on_its_way_is_built_by_a_reset(
    make_pool: Callable[..., shoal.Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(make_pool, envs(2), num_workers=1)
    pair.recycle()
    interrupt_once(monkeypatch, pair.pool.engine.recycler, "_rehost", after=True)
    with pytest.raises(KeyboardInterrupt):
        pair.pool.reset()
    with pytest.raises(errors.StateError):
        pair.pool.recv(timeout=SOON_S)
    with contextlib.suppress(errors.EnvConstructError):
        pair.pool.reset()
    pair.reset(seed=3)
    pair.walk(5)


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_the_heir_has_the_cpu_of_whom_it_replaces(make_pool: Callable[..., shoal.Pool]) -> None:
    cpus = sorted(os.sched_getaffinity(0))[:2]
    pair = Pair(make_pool, envs(2), affinity=cpus)
    for count in (1, 2):
        pair.until_recycled(count)
        assert pair.pool.call("cpus") == ({cpus[0]}, {cpus[1]})


# ---------------------------------------------------------------------- the law

moves = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "recv", "step", "step", "reset", "recycle"]), st.sets(st.integers(0, 3))
    ),
    min_size=5,
    max_size=30,
)


@pytest.mark.slow
@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize(("batch_size", "threads"), [(None, 1), (2, 2)], ids=["sync", "async, two threads"])
def test_rows_do_not_depend_on_when_workers_are_replaced(
    batch_size: int | None, threads: int, autoreset: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    fns = [lambda i=i: WanderingEnv(tag=i, infos=i % 2 == 0) for i in range(4)]
    pair = Pair(make_pool, fns, autoreset=autoreset, batch_size=batch_size, threads_per_worker=threads)

    @settings(
        deadline=None,
        derandomize=True,
        database=None,
        max_examples=25,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(trace=moves, seed=st.integers(0, 1000))
    def law(trace: list[tuple[str, set[int]]], seed: int) -> None:
        pair.reset(seed=seed)
        for name, chosen in trace:
            ids = sorted(chosen) or pair.all
            able = [i for i in ids if i in pair.steppable]
            if name == "recycle":
                pair.recycle()
            elif name == "reset":
                pair.reset(None if ids == pair.all else ids)
            elif name == "recv" and pair.expected:
                pair.recv()
            elif name == "send" and able:
                pair.send(able)
            elif name == "step" and able and not pair.expected:  # a step waits for nobody else's rows
                pair.step(able)
        while pair.expected:
            pair.recv()

    law()
    assert pair.recycled > 0


def test_a_ctrl_c_before_the_old_worker_is_retired_does_no_harm(
    make_pool: Callable[..., shoal.Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(make_pool, envs(2), num_workers=1)
    pair.recycle()
    interrupt_once(monkeypatch, pair.pool.engine.crew, "retire", after=False)
    with pytest.raises(KeyboardInterrupt):
        pair.pool.reset()
    pair.reset(seed=3)
    pair.until_recycled(2)
