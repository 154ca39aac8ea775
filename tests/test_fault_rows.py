"""Rows that tell of faults: what stands in them, in every kind of space and of batch."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from kernel_kinds import Drift
from twins import Twins, fault_of

from shoal import Restart
from shoal.testing import CountingEnv, DictTupleEnv, FaultEnv, GraphEnv, SampleEnv, SequenceEnv, TextEnv

if TYPE_CHECKING:
    from collections.abc import Callable

    import shoal

AT_ONCE = Restart(backoff_s=0.0)
SEED = 3


def failing(env_class: type[Any], at: int) -> type[Any]:
    """A class of envs whose step number ``at`` fails."""

    class Failing(env_class):
        steps = 0

        def step(self, action: Any) -> Any:
            self.steps += 1
            if self.steps == at:
                raise RuntimeError("no more")
            return super().step(action)

    return Failing


def pair(at: int = 2, **settings: Any) -> list[Any]:
    """Two counting envs, of which env 1 fails."""
    sound = partial(CountingEnv, tag=0, episode_length=50, **settings)
    return [sound, partial(failing(CountingEnv, at), tag=1, episode_length=50, **settings)]


def leaves(pool: shoal.Pool, obs: Any, row: int) -> list[Any]:
    return [leaf[row] for leaf in pool.spec.observation.flatten(obs)]


def assert_same_leaves(got: list[Any], expected: list[Any]) -> None:
    for one, other in zip(got, expected, strict=True):
        if isinstance(other, np.ndarray | np.generic | int | float | str):
            assert np.array_equal(one, other)
        else:
            np.testing.assert_equal(one, other)


@pytest.mark.parametrize("env_class", [DictTupleEnv, TextEnv, SequenceEnv, GraphEnv])
@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.parametrize("engine", ["serial", pytest.param("process", marks=pytest.mark.slow)])
def test_the_last_observation_of_every_space_is_kept(
    env_class: type[SampleEnv], autoreset: str, engine: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    fns = [env_class, failing(env_class, at=2)]
    pool = make_pool(fns, engine=engine, num_workers=2, autoreset=autoreset, on_fault=AT_ONCE)
    pool.reset(seed=SEED)
    space = pool.spec.action.space
    actions = pool.spec.action.unflatten([np.array([leaf] * 2) for leaf in pool.spec.action.flatten(space.sample())])
    before = pool.step(actions)
    cut = pool.step(actions)
    assert cut.truncated[1]
    if autoreset == "next_step":
        assert_same_leaves(leaves(pool, cut.obs, 1), leaves(pool, before.obs, 1))
    else:
        last = pool.spec.observation.flatten(cut.finals[1][0])
        assert_same_leaves(last, leaves(pool, before.obs, 1))
    assert fault_of(cut, 1) is not None


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_the_last_observation_is_as_it_was_whatever_became_of_the_row_before(
    autoreset: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool([GraphEnv, failing(GraphEnv, at=2)], engine="serial", autoreset=autoreset, on_fault=AT_ONCE)
    pool.reset(seed=SEED)
    before = pool.step([0, 0]).obs[1].nodes
    kept = before.copy()
    before[:] = 7.0
    cut = pool.step([0, 0])
    last = cut.obs[1] if autoreset == "next_step" else cut.finals[1][0]
    np.testing.assert_array_equal(last.nodes, kept)


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_a_batch_of_all_envs_in_another_order_is_remembered_right(
    autoreset: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(pair(), engine="serial", autoreset=autoreset, on_fault=AT_ONCE)
    twins = Twins(2, SEED, autoreset, episode_length=50)
    twins.take_reset(pool.reset(seed=SEED), SEED)
    for order in ([1, 0], [1, 0], [0, 1], [1, 0]):
        twins.take(pool.step([0, 0], env_id=order), [0, 0])
    assert len(twins.told) == {"next_step": 1, "same_step": 2}[autoreset]


def test_a_fault_before_the_first_row_has_an_empty_observation(make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(pair(at=1), engine="serial", on_fault="drop", implicit_reset=True)
    pool.reset(seed=SEED, env_id=[0])
    first = pool.step([0, 0])
    assert first.first.tolist() == [False, True]
    cut = pool.step([0, 0])
    assert (cut.truncated.tolist(), cut.elapsed_step.tolist()) == ([False, True], [2, 0])


def test_the_infos_of_the_others_stay(make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(pair(infos=True), engine="serial", on_fault=AT_ONCE)
    pool.reset(seed=SEED)
    pool.step([0, 0])
    infos = dict(pool.step([0, 0]).infos)
    assert infos[0] == {"t": 2, "episode": 0}
    assert list(infos[1]) == ["fault"]
    assert dict(pool.step([0, 0]).infos)[1] == {"t": 0, "episode": 0}


def test_the_first_info_of_the_next_episode_comes_with_the_fault(make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(pair(infos=True), engine="serial", autoreset="same_step", on_fault=AT_ONCE)
    pool.reset(seed=SEED)
    pool.step([0, 0])
    batch = pool.step([0, 0])
    info = dict(batch.infos)[1]
    assert (info["t"], info["episode"], info["fault"]["kind"]) == (0, 0, "EnvStepError")
    assert list(batch.finals[1][1]) == ["fault"]


@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
def test_an_episode_that_was_cut_short_counts(autoreset: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(pair(), engine="serial", autoreset=autoreset, on_fault=AT_ONCE)
    pool.reset(seed=SEED)
    pool.step([0, 0])
    pool.step([0, 0])
    assert pool.stats().episodes == 1


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("tries", [0, 1, 2, 5])
def test_views_outlive_the_call_that_builds_an_env_anew(
    num_envs: int, tries: int, make_pool: Callable[..., shoal.Pool]
) -> None:
    made: list[int] = []

    class Stubborn(CountingEnv):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            made.append(1)
            if 1 < len(made) < 2 + tries:
                raise RuntimeError("not yet")

        def step(self, action: Any) -> Any:
            if self._step == 2 and len(made) == 1:
                raise RuntimeError("no more")
            return super().step(action)

    fns = [partial(Stubborn, tag=0, episode_length=50), partial(CountingEnv, tag=1, episode_length=50)][:num_envs]
    pool = make_pool(fns, engine="serial", autoreset="same_step", copy=False, on_fault=AT_ONCE)
    zeros = [0] * num_envs
    pool.reset(seed=SEED)
    pool.step(zeros)
    held = pool.step(zeros)
    copy = held.obs.copy()
    told = fault_of(pool.step(zeros), 0)
    assert told is not None
    assert told["attempts"] == tries + 1
    assert np.array_equal(held.obs, copy)


@pytest.mark.slow
def test_fields_of_a_row_without_an_env_are_empty(make_pool: Callable[..., shoal.Pool]) -> None:
    kwargs = [{}, {"fail_at": 2, "length": 50, "odds": 10**15}]
    pool = make_pool(Drift, 2, env_kwargs=kwargs, engine="kernel", on_fault=AT_ONCE)
    pool.reset(seed=SEED)
    before = pool.step([1, 1])
    cut = pool.step([1, 1])
    assert cut.truncated.tolist()[1]
    assert np.array_equal(cut.obs[1], before.obs[1])
    assert not any(np.any(column[1]) for column in cut.fields.values())
    anew = pool.step([1, 1])
    assert anew.first[1]
    assert pool.stats().restarts == 1


@pytest.mark.slow
def test_compiled_envs_have_last_observations_too(make_pool: Callable[..., shoal.Pool]) -> None:
    kwargs = [{}, {"fail_at": 2, "length": 50, "odds": 10**15}]
    pool = make_pool(Drift, 2, env_kwargs=kwargs, engine="kernel", autoreset="same_step", on_fault=AT_ONCE)
    pool.reset(seed=SEED)
    before = pool.step([1, 1])
    cut = pool.step([1, 1])
    assert np.array_equal(cut.finals[1][0], before.obs[1])
    assert list(cut.finals[1][1]) == ["fault"]
    assert (cut.first[1], cut.truncated[1], cut.reward[1]) == (True, True, 0)


def test_nothing_is_kept_for_a_pool_that_raises(make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool([partial(FaultEnv, "raise", at=10)], engine="serial")
    assert pool._dispatch.reader._fault_rows is None
