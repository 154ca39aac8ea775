"""Snapshots: an env put back goes on as it would have, number by number."""

from __future__ import annotations

import pickle
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import ArgumentError, ClosedPool, EnvStepError, NotReset, StateError
from shoal.snapshot import Snapshot

pytest.importorskip("numba")
from kernel_kinds import KINDS, LASTING, MODES, Cell, Drift, assert_same, go_on, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal import Pool


@pytest.fixture
def pools(make_pool: Callable[..., Pool]) -> Callable[..., Pool]:
    """Pools of the kernel engine."""
    return partial(make_pool, engine="kernel")


# ---------------------------------------------------------------------- exactness


@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_pool_put_back_repeats_itself(kind: type, autoreset: str, pools: Callable[..., Pool]) -> None:
    """Observations, rewards, draws and resets; whatever happened in between, and in another pool as well."""
    pool = pools(kind, 4, autoreset=autoreset, max_episode_steps=9)
    pool.reset(seed=3)
    go_on(pool, 5)
    snapshot = pool.snapshot()
    last = rows_of(pool.latest())
    expected = go_on(pool, 25)
    pool.reset(seed=77)
    go_on(pool, 3)
    pool.restore(snapshot)
    assert_same(rows_of(pool.latest()), last)
    assert_same(go_on(pool, 25), expected)
    other = pools(kind, 4, autoreset=autoreset, max_episode_steps=9)
    other.restore(snapshot)
    assert_same(go_on(other, 25), expected)


def test_any_moment_can_be_kept(pools: Callable[..., Pool]) -> None:
    pool = pools(Drift, 3)

    @settings(max_examples=25, deadline=None, derandomize=True, database=None)
    @given(before=st.integers(0, 30), seed=st.integers(0, 10**6), after=st.integers(1, 20))
    def law(before: int, seed: int, after: int) -> None:
        pool.reset(seed=seed)
        go_on(pool, before)
        snapshot = pool.snapshot()
        expected = go_on(pool, after)
        pool.restore(snapshot)
        assert_same(go_on(pool, after), expected)

    law()


def test_some_envs_can_be_put_back_and_the_others_do_not_notice(pools: Callable[..., Pool]) -> None:
    pool, undisturbed = pools(Drift, 4), pools(Drift, 4)
    for each in (pool, undisturbed):
        each.reset(seed=3)
        go_on(each, 3)
    snapshot = pool.snapshot(env_id=[2, 0])
    assert len(snapshot) == 2
    expected = go_on(pool, 4, [2, 0])
    pool.restore(snapshot, env_id=[2, 0])
    assert_same(go_on(pool, 4, [2, 0]), expected)
    assert_same(go_on(pool, 6, [1, 3]), go_on(undisturbed, 6, [1, 3]))


def test_rows_go_to_the_envs_in_the_order_given(pools: Callable[..., Pool]) -> None:
    pool = pools(Drift, 3, env_kwargs=LASTING)
    pool.reset(seed=3)
    obs = go_on(pool, 2)[-1]["obs"]
    pool.restore(pool.snapshot(env_id=[2, 0, 1]), env_id=[0, 1, 2])
    np.testing.assert_array_equal(pool.latest().obs, obs[[2, 0, 1]])


def test_one_env_can_become_many(pools: Callable[..., Pool]) -> None:
    pool = pools(Drift, 300, env_kwargs=LASTING)
    pool.reset(seed=3)
    go_on(pool, 3)
    pool.restore(pool.snapshot(env_id=[7]))
    batch = pool.step(np.ones(300, np.int64))
    assert (batch.obs == batch.obs[0]).all()
    assert (batch.reward == batch.reward[0]).all()
    assert set(batch.elapsed_step.tolist()) == {4}
    # A shared past, and with other actions a future of their own.
    batch = pool.step(np.arange(300) % 3 - 1)
    assert len(np.unique(batch.obs[:, 0])) == 3


def test_a_snapshot_is_not_changed_by_what_comes_after(pools: Callable[..., Pool]) -> None:
    pool = pools(Drift, 2)
    pool.reset(seed=3)
    snapshot = pool.snapshot()
    kept = {name: array.copy() for name, array in snapshot.arrays.items()}
    go_on(pool, 10)
    pool.restore(snapshot)
    go_on(pool, 10)
    pool.close()
    for name, array in snapshot.arrays.items():
        np.testing.assert_array_equal(array, kept[name], err_msg=name)


def test_a_snapshot_survives_pickling(pools: Callable[..., Pool]) -> None:
    pool = pools(Drift, 3)
    pool.reset(seed=3)
    go_on(pool, 4)
    snapshot = pickle.loads(pickle.dumps(pool.snapshot()))
    expected = go_on(pool, 20)
    other = pools(Drift, 3)
    other.restore(snapshot)
    assert_same(go_on(other, 20), expected)
    assert "arrays" not in repr(snapshot)


def test_constants_belong_to_the_env_that_is_put_back(pools: Callable[..., Pool]) -> None:
    one, other = pools(Drift, 2, env_kwargs=[{"gain": 3.0}, {"gain": 5.0}]), pools(Drift, 2)
    one.reset(seed=1)
    other.restore(one.snapshot())
    assert other.get_attr("gain") == (3.0, 5.0)
    assert_same(go_on(other, 20), go_on(one, 20))


# ---------------------------------------------------------------------- moments of all sorts


def test_the_reset_that_is_due_is_part_of_the_moment(pools: Callable[..., Pool]) -> None:
    pool = pools(Drift, 2, env_kwargs={**LASTING, "length": 2})
    pool.reset(seed=1)
    go_on(pool, 2)
    snapshot = pool.snapshot()
    expected = rows_of(pool.step([0, 0]))
    assert expected["first"].tolist() == [True, True]
    pool.restore(snapshot)
    assert pool.latest().terminated.tolist() == [True, True]
    assert_same(rows_of(pool.step([0, 0])), expected)


def test_without_autoreset_an_env_put_back_to_its_end_waits_for_its_reset(pools: Callable[..., Pool]) -> None:
    pool = pools(Drift, 2, autoreset="disabled", env_kwargs=[{**LASTING, "length": 2}, LASTING])
    pool.reset(seed=1)
    middle = pool.snapshot()
    pool.step([0, 0])
    pool.step([0, 0])
    end = pool.snapshot()
    pool.reset()
    pool.restore(end)
    with pytest.raises(NotReset, match=r"envs \[0\] have finished"):
        pool.step([0, 0])
    assert pool.step([0], env_id=[1]).elapsed_step.tolist() == [3]
    pool.restore(middle)
    assert pool.step([0, 0]).elapsed_step.tolist() == [1, 1]


@pytest.mark.parametrize("taken_in", MODES)
@pytest.mark.parametrize("put_back_in", MODES)
def test_whether_a_reset_is_due_is_up_to_the_pool_that_an_env_is_put_back_in(
    taken_in: str, put_back_in: str, pools: Callable[..., Pool]
) -> None:
    kwargs = {**LASTING, "length": 2}
    pool, other = (pools(Drift, 1, autoreset=mode, env_kwargs=kwargs) for mode in (taken_in, put_back_in))
    pool.reset(seed=1)
    go_on(pool, 2)
    other.restore(pool.snapshot())
    if taken_in == "same_step":  # the next episode has begun
        assert other.step([0]).elapsed_step.tolist() == [1]
    elif put_back_in == "next_step":
        assert other.step([0]).elapsed_step.tolist() == [0]
    else:
        with pytest.raises(NotReset, match=r"envs \[0\] have finished"):
            other.step([0])
        other.reset()
        assert other.step([0]).elapsed_step.tolist() == [1]


def test_an_env_that_was_dropped_is_neither_kept_nor_put_back(pools: Callable[..., Pool]) -> None:
    pool = pools(Drift, 2, env_kwargs=LASTING, on_fault="drop")
    pool.reset(seed=1)
    snapshot = pool.snapshot()
    pool.set_attr("fail_at", 1, env_id=[1])
    assert pool.step([0, 0]).truncated.tolist() == [False, True]
    for refused in (pool.snapshot, partial(pool.restore, snapshot)):
        with pytest.raises(StateError, match=r"envs \[1\] failed and were dropped: restart\(\)"):
            refused()
    pool.restart(env_id=[1])
    pool.restore(snapshot)
    assert pool.step([0, 0]).elapsed_step.tolist() == [1, 1]


def test_an_env_that_failed_can_be_put_back_instead_of_reset(pools: Callable[..., Pool]) -> None:
    pool = pools(Drift, 3, env_kwargs=LASTING)
    pool.reset(seed=1)
    pool.step([0, 0, 0])
    snapshot = pool.snapshot()
    pool.set_attr("fail_at", 2, env_id=[1])
    with pytest.raises(EnvStepError):
        pool.step([0, 0, 0])
    pool.recv()
    with pytest.raises(StateError, match="failed earlier"):
        pool.snapshot()
    assert len(pool.snapshot(env_id=[0, 2])) == 2
    pool.restore(snapshot)
    assert pool.step([0, 0, 0]).elapsed_step.tolist() == [2, 2, 2]


def test_an_env_that_was_never_reset_can_be_put_somewhere(pools: Callable[..., Pool]) -> None:
    one, fresh = pools(Drift, 2, env_kwargs=LASTING), pools(Drift, 2, env_kwargs=LASTING)
    one.reset(seed=1)
    fresh.restore(one.snapshot(env_id=[0]), env_id=[1])
    assert fresh.step([0], env_id=[1]).elapsed_step.tolist() == [1]
    with pytest.raises(NotReset, match=r"envs \[0\]"):
        fresh.step([0, 0])


def test_views_of_earlier_batches_keep_their_values(pools: Callable[..., Pool]) -> None:
    """A restore is a call like any other: what the last one returned stays valid."""
    pool = pools(Drift, 3, copy=False, env_kwargs=LASTING)
    pool.reset(seed=1)
    snapshot = pool.snapshot()
    view = pool.step([1, 1, 1]).obs
    kept = view.copy()
    pool.restore(snapshot)
    np.testing.assert_array_equal(view, kept)


@pytest.mark.parametrize("copy", [True, False])
def test_some_envs_of_a_pool_with_views_can_be_put_back(copy: bool, pools: Callable[..., Pool]) -> None:
    pool = pools(Drift, 3, copy=copy, env_kwargs=LASTING)
    pool.reset(seed=1)
    pool.step([1, 1, 1])
    snapshot, before = pool.snapshot(env_id=[1]), rows_of(pool.latest())
    after = pool.step([1, 1, 1]).obs.copy()
    pool.restore(snapshot, env_id=[1])
    latest = pool.latest()
    np.testing.assert_array_equal(latest.obs[1], before["obs"][1])
    np.testing.assert_array_equal(latest.obs[[0, 2]], after[[0, 2]])
    assert pool.step([1, 1, 1]).elapsed_step.tolist() == [3, 2, 3]


def test_a_fault_after_a_restore_names_the_seed_that_the_env_has(pools: Callable[..., Pool]) -> None:
    pool = pools(Drift, 1, env_kwargs=LASTING)
    pool.reset(seed=5)
    snapshot = pool.snapshot()
    pool.reset(seed=900)
    pool.restore(snapshot)
    pool.set_attr("fail_at", 1)
    with pytest.raises(EnvStepError) as caught:
        pool.step([0])
    assert caught.value.where.seed in (5, None)


# ---------------------------------------------------------------------- refusals


def test_a_snapshot_of_another_env_is_refused(pools: Callable[..., Pool]) -> None:
    pool, other = pools(Drift, 2), pools(Cell, 2)
    other.reset(seed=1)
    with pytest.raises(ArgumentError, match="restore: the snapshot is of Cell, the pool has Drift"):
        pool.restore(other.snapshot())


@pytest.mark.parametrize(("size", "ids"), [(2, None), (3, [0, 1]), (2, [1])])
def test_a_snapshot_of_another_size_is_refused(size: int, ids: Any, pools: Callable[..., Pool]) -> None:
    pool = pools(Drift, 3)
    pool.reset(seed=1)
    snapshot = pool.snapshot(env_id=list(range(size)))
    with pytest.raises(ArgumentError, match=f"restore: {size} snapshots do not fit {len(ids or [0] * 3)} envs"):
        pool.restore(snapshot, env_id=ids)


def test_a_snapshot_with_another_shape_is_refused_before_anything_is_changed(pools: Callable[..., Pool]) -> None:
    """The same id, made with other constants."""
    large, small = pools("Catch-v0", 2), pools("Catch-v0", 2, env_kwargs={"height": 5})
    large.reset(seed=1)
    small.reset(seed=1)
    before = small.snapshot()
    with pytest.raises(ArgumentError, match="restore: "):
        small.restore(large.snapshot())
    after = small.snapshot()
    for name, array in before.arrays.items():
        np.testing.assert_array_equal(array, after.arrays[name], err_msg=name)


def test_what_is_no_snapshot_is_refused(pools: Callable[..., Pool]) -> None:
    pool = pools(Drift, 2)
    pool.reset(seed=1)
    for wrong in (None, {}, pool.snapshot().arrays, Snapshot("Drift", {}), Snapshot("Drift", {"records": np.zeros(2)})):
        with pytest.raises(ArgumentError, match="restore: "):
            pool.restore(wrong)


def test_an_env_that_was_never_reset_is_nothing_to_keep(pools: Callable[..., Pool]) -> None:
    pool = pools(Drift, 3)
    with pytest.raises(NotReset, match=r"envs \[0, 1, 2\] were never reset"):
        pool.snapshot()
    pool.reset(env_id=[1], seed=1)
    with pytest.raises(NotReset, match=r"envs \[0, 2\]"):
        pool.snapshot()
    assert len(pool.snapshot(env_id=[1])) == 1


def test_an_env_that_failed_and_is_not_reset_yet_is_nothing_to_keep(pools: Callable[..., Pool]) -> None:
    pool = pools(Drift, 2, on_fault="restart", env_kwargs=[LASTING, {**LASTING, "fail_at": 1}])
    pool.reset(seed=1)
    assert pool.step([0, 0]).truncated.tolist() == [False, True]
    with pytest.raises(StateError, match=r"envs \[1\] failed and wait for a reset"):
        pool.snapshot()
    pool.reset(env_id=[1])
    assert len(pool.snapshot()) == 2


def test_envs_under_way_cannot_be_kept_or_put_back(pools: Callable[..., Pool]) -> None:
    pool = pools(Drift, 3)
    pool.reset(seed=1)
    snapshot = pool.snapshot(env_id=[1])
    pool.send([0], env_id=[1])
    with pytest.raises(StateError, match=r"envs \[1\] are under way"):
        pool.snapshot()
    with pytest.raises(StateError, match=r"envs \[1\] are under way"):
        pool.restore(snapshot)
    assert len(pool.snapshot(env_id=[0, 2])) == 2
    pool.recv()
    pool.restore(snapshot)


def test_a_snapshot_of_the_same_env_on_another_engine_is_refused(make_pool: Callable[..., Pool]) -> None:
    compiled, plain = make_pool(Drift, 2, engine="kernel"), make_pool(Drift, 2, engine="serial")
    compiled.reset(seed=1)
    with pytest.raises(ArgumentError, match="for another engine"):
        plain.restore(compiled.snapshot())


def test_a_closed_pool_keeps_nothing(pools: Callable[..., Pool]) -> None:
    pool = pools(Drift, 2)
    pool.reset(seed=1)
    snapshot = pool.snapshot()
    pool.close()
    with pytest.raises(ClosedPool):
        pool.snapshot()
    with pytest.raises(ClosedPool):
        pool.restore(snapshot)
