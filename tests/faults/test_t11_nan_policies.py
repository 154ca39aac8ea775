"""T11: numbers that are none. A pool raises, ends the episode, or lets them pass, on every engine alike.

The envs lose themselves at the second step of each episode; see ``Fading``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium import spaces
from kernel_kinds import Drift, Fading
from twins import fault_of

from shoal import Restart, errors
from shoal.testing import CountingEnv, FaultEnv

if TYPE_CHECKING:
    from collections.abc import Callable

    import shoal

WAYS: dict[str, dict[str, Any]] = {
    "serial": {"engine": "serial"},
    "thread": {"engine": "thread"},
    "process": {"engine": "process", "num_workers": 2},
    "kernel": {"engine": "kernel"},
}
MODES = ["next_step", "same_step", "disabled"]
ZEROS = [0, 0, 0]
SOUND = {"fade_at": -1}
# Processes and a compiler take their time.
ways = pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.slow] * (way in ("process", "kernel"))) for way in WAYS]
)


@pytest.fixture
def fading_pool(way: str, make_pool: Callable[..., shoal.Pool]) -> Callable[..., shoal.Pool]:
    """A pool of three envs, of which env 1 fades."""

    def make(*, autoreset: str = "next_step", **options: Any) -> shoal.Pool:
        fading = {name: options.pop(name) for name in ("length", "fade_at", "fades_first") if name in options}
        kwargs = [SOUND, {"fade_at": 2, **fading}, SOUND]
        return make_pool(Fading, 3, env_kwargs=kwargs, autoreset=autoreset, **WAYS[way], **options)

    return make


def seen_before(pool: shoal.Pool) -> shoal.Batch:
    """A reset and the one good step of env 1."""
    pool.reset(seed=1)
    return pool.step([3, 3, 3])


@ways
@pytest.mark.parametrize("autoreset", MODES)
def test_t11_a_nan_raises_and_the_others_keep_their_rows(
    autoreset: str, fading_pool: Callable[..., shoal.Pool]
) -> None:
    pool = fading_pool(autoreset=autoreset, on_nan="raise")
    seen_before(pool)
    with pytest.raises(errors.EnvStepError, match=r"observation: NaN in \[nan") as caught:
        pool.step(ZEROS)
    assert (caught.value.env_ids, caught.value.where.phase) == ((1,), "step")
    assert isinstance(caught.value.__cause__, errors.SpecError)
    batch = pool.recv(timeout=10)
    assert batch.env_id.tolist() == [0, 2]
    assert batch.obs[:, 1].tolist() == [2, 2]
    with pytest.raises(errors.StateError, match=r"envs \[1\] failed earlier"):
        pool.step(ZEROS)
    assert (pool.stats().nans, pool.stats().faults) == (1, 1)
    assert np.isfinite(pool.reset(env_id=[1]).obs).all()
    assert np.isfinite(pool.step(ZEROS).obs).all()


@ways
def test_t11_a_nan_ends_the_episode_at_the_next_step(fading_pool: Callable[..., shoal.Pool]) -> None:
    pool = fading_pool(on_nan="truncate")
    before = seen_before(pool)
    cut = pool.step(ZEROS)
    assert cut.truncated.tolist() == [False, True, False]
    assert not cut.terminated.any()
    assert cut.reward.tolist() == [2, 0, 2]
    assert np.array_equal(cut.obs[1], before.obs[1])
    assert (cut.elapsed_step.tolist(), cut.first.any()) == ([2, 1, 2], False)
    told = fault_of(cut, 1)
    assert told is not None
    assert (told["kind"], told["phase"], told["incarnation"], told["attempts"]) == ("EnvStepError", "step", 0, 1)
    assert "NaN" in told["message"]
    anew = pool.step(ZEROS)
    assert (anew.first.tolist(), anew.elapsed_step.tolist()) == ([False, True, False], [3, 0, 3])
    assert anew.obs[:, 1].tolist() == [3, 0, 3]
    assert np.isfinite(anew.obs).all()
    assert len(anew.infos) == 0
    stats = pool.stats()
    assert (stats.nans, stats.faults, stats.restarts) == (1, 0, 0)


@ways
def test_t11_a_nan_ends_the_episode_in_the_same_step(fading_pool: Callable[..., shoal.Pool]) -> None:
    pool = fading_pool(on_nan="truncate", autoreset="same_step")
    before = seen_before(pool)
    cut = pool.step(ZEROS)
    assert (cut.truncated.tolist(), cut.first.tolist()) == ([False, True, False], [False, True, False])
    assert cut.obs[:, 1].tolist() == [2, 0, 2]
    assert np.isfinite(cut.obs).all()
    last_obs, last_info = cut.finals[1]
    assert np.array_equal(last_obs, before.obs[1])
    assert last_info["fault"] == fault_of(cut, 1)
    assert list(cut.finals) == [1]
    assert pool.step(ZEROS).obs[:, 1].tolist() == [3, 1, 3]


@ways
def test_t11_a_nan_ends_the_episode_and_the_caller_resets(fading_pool: Callable[..., shoal.Pool]) -> None:
    pool = fading_pool(on_nan="truncate", autoreset="disabled")
    before = seen_before(pool)
    cut = pool.step(ZEROS)
    assert cut.truncated.tolist() == [False, True, False]
    assert np.array_equal(cut.obs[1], before.obs[1])
    with pytest.raises(errors.NotReset, match=r"envs \[1\] have finished"):
        pool.step(ZEROS)
    anew = pool.reset(env_id=[1])
    assert (anew.obs[0, 1], anew.first[0], anew.truncated[0]) == (0, True, False)
    assert pool.step(ZEROS).obs[:, 1].tolist() == [3, 1, 3]


@ways
@pytest.mark.parametrize("autoreset", MODES)
def test_t11_a_nan_passes_and_is_counted(autoreset: str, fading_pool: Callable[..., shoal.Pool]) -> None:
    pool = fading_pool(on_nan="pass", autoreset=autoreset)
    seen_before(pool)
    for step in (2, 3, 4):  # what is added to NaN is NaN
        batch = pool.step(ZEROS)
        assert np.isnan(batch.obs[1, 0])
        assert (batch.obs[1, 1], batch.reward[1], batch.truncated.any()) == (step, step, False)
    assert (pool.stats().nans, pool.stats().faults) == (3, 0)


@ways
@pytest.mark.parametrize("autoreset", MODES)
def test_t11_a_nan_that_raises_can_be_a_reason_to_build_anew(
    autoreset: str, fading_pool: Callable[..., shoal.Pool]
) -> None:
    pool = fading_pool(on_nan="raise", on_fault=Restart(backoff_s=0.0), autoreset=autoreset)
    seen_before(pool)
    cut = pool.step(ZEROS)
    told = fault_of(cut, 1)
    assert told is not None
    assert (told["incarnation"], cut.truncated.tolist()) == (1, [False, True, False])
    assert np.isfinite(cut.obs).all()
    anew = cut if autoreset == "same_step" else pool.step(ZEROS) if autoreset == "next_step" else pool.reset(env_id=[1])
    assert anew.first[-1 if autoreset == "disabled" else 1]
    stats = pool.stats()
    assert (stats.nans, stats.faults, stats.restarts) == (1, 1, 1)


@ways
@pytest.mark.parametrize("policy", ["raise", "truncate"])
def test_t11_a_last_observation_is_looked_at_too(policy: str, fading_pool: Callable[..., shoal.Pool]) -> None:
    # The episode ends with the very step that fades: the row has the first observation of the next one, which is fine.
    pool = fading_pool(on_nan=policy, autoreset="same_step", length=2)
    before = seen_before(pool)
    if policy == "raise":
        with pytest.raises(errors.EnvStepError, match="final observation: NaN in"):
            pool.step(ZEROS)
    else:
        cut = pool.step(ZEROS)
        assert (cut.terminated.tolist(), cut.truncated.tolist()) == ([False] * 3, [False, True, False])
        assert np.array_equal(cut.finals[1][0], before.obs[1])
    assert pool.stats().nans == 1


@ways
def test_t11_a_nan_in_a_reset_is_tried_again_but_not_for_ever(fading_pool: Callable[..., shoal.Pool]) -> None:
    pool = fading_pool(on_nan="truncate", fades_first=True)
    with pytest.raises(errors.EnvResetError, match="NaN") as caught:
        pool.reset(seed=1)
    assert "in vain" in caught.value.__notes__[-1]
    assert pool.recv(timeout=10).env_id.tolist() == [0, 2]


@ways
@pytest.mark.parametrize("policy", ["truncate", "pass"])
def test_t11_an_asynchronous_pool_has_the_same_policies(
    policy: str, way: str, fading_pool: Callable[..., shoal.Pool]
) -> None:
    pool = fading_pool(on_nan=policy, batch_size=1)
    pool.reset(seed=1)
    pool.send(ZEROS)
    rows: list[tuple[int, bool, bool]] = []  # of env 1: its count, whether it was cut short, whether it is NaN
    while len(rows) < 5:
        batch = pool.recv(timeout=10)
        if batch.env_id[0] == 1:
            rows.append((int(batch.obs[0, 1]), bool(batch.truncated[0]), bool(np.isnan(batch.obs[0, 0]))))
        else:
            assert np.isfinite(batch.obs).all()
        pool.send([0], batch.env_id)
    good, gone = (False, False), (False, True)
    if policy == "truncate":
        assert rows == [(1, *good), (1, True, False), (0, *good), (1, *good), (1, True, False)]
    else:
        assert rows == [(1, *good), (2, *gone), (3, *gone), (4, *gone), (5, *gone)]
    assert pool.stats().nans >= (2 if policy == "truncate" else 4)


# ---------------------------------------------------------------------- rewards


@pytest.mark.parametrize("reward", ["reward_nan", "reward_inf"])
@pytest.mark.parametrize("policy", ["raise", "truncate", "pass"])
@pytest.mark.parametrize("engine", ["serial", "thread", pytest.param("process", marks=pytest.mark.slow)])
def test_t11_a_reward_that_is_not_finite_follows_the_policy(
    engine: str, reward: str, policy: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    fns: list[Any] = [partial(CountingEnv, tag=i, episode_length=50) for i in range(3)]
    fns[1] = partial(FaultEnv, reward, at=2, tag=1, episode_length=50)
    pool = make_pool(fns, on_nan=policy, engine=engine, num_workers=2)
    before = seen_before(pool)
    if policy == "raise":
        with pytest.raises(errors.EnvStepError, match="reward: expected a finite number"):
            pool.step(ZEROS)
        return
    batch = pool.step(ZEROS)
    assert pool.stats().nans == 1
    if policy == "pass":
        assert not np.isfinite(batch.reward[1])
        assert not batch.truncated.any()
    else:
        assert (batch.reward[1], batch.truncated.tolist()) == (0, [False, True, False])
        assert np.array_equal(batch.obs[1], before.obs[1])
        assert "reward: expected a finite number" in fault_of(batch, 1)["message"]  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["raise", "truncate", "pass"])
def test_t11_a_compiled_reward_follows_the_policy(policy: str, make_pool: Callable[..., shoal.Pool]) -> None:
    kwargs = [{}, {"nan_at": 2, "length": 50, "odds": 10**15}, {}]
    pool = make_pool(Drift, 3, env_kwargs=kwargs, engine="kernel", on_nan=policy)
    seen_before_kwargs = pool.reset(seed=1)
    assert np.isfinite(seen_before_kwargs.obs).all()
    pool.step(ZEROS)
    if policy == "raise":
        with pytest.raises(errors.EnvStepError, match="reward: expected a finite number"):
            pool.step(ZEROS)
        return
    batch = pool.step(ZEROS)
    assert pool.stats().nans == 1
    assert (np.isnan(batch.reward[1]), batch.truncated[1]) == (policy == "pass", policy == "truncate")


# ---------------------------------------------------------------------- what is no fault


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_t11_large_and_infinite_observations_are_numbers(
    dtype: Any, make_pool: Callable[..., shoal.Pool], recwarn: pytest.WarningsRecorder
) -> None:
    class Huge(CountingEnv):
        def __init__(self) -> None:
            super().__init__(episode_length=50)
            self.observation_space = spaces.Box(-np.inf, np.inf, (8,), dtype)

        def _observe(self, action: float) -> Any:
            obs = super()._observe(action).astype(dtype)
            obs[0], obs[1] = np.finfo(dtype).max, -np.inf
            return obs

    pool = make_pool([Huge] * 2, engine="serial")
    pool.reset(seed=1)
    for _ in range(3):
        assert pool.step([0, 0]).obs[0, 0] == np.finfo(dtype).max
    assert (pool.stats().nans, len(recwarn)) == (0, 0)


def test_t11_an_unchecked_pool_does_not_look(make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool([partial(FaultEnv, "nan_obs", at=1, episode_length=50)], engine="serial", check="off")
    pool.reset(seed=1)
    assert np.isnan(pool.step([0]).obs).any()
    assert pool.stats().nans == 0


@ways
def test_t11_the_last_row_is_what_was_handed_out(fading_pool: Callable[..., shoal.Pool]) -> None:
    pool = fading_pool(on_nan="truncate")
    seen_before(pool)
    handed_out = pool.step(ZEROS)
    again = pool.latest()
    assert np.isfinite(again.obs).all()
    assert np.array_equal(again.obs, handed_out.obs)
    assert again.truncated.tolist() == handed_out.truncated.tolist() == [False, True, False]
    assert pool.stats().episodes == 1
    pool.step(ZEROS)
    assert pool.latest().truncated.tolist() == [False, False, False]
