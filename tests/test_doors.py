"""The front doors: what ``make_vec`` and ``make_pool`` accept, build and refuse."""

from __future__ import annotations

import functools
import threading
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import find_highest_version

import shoal
from shoal import testing
from shoal.build import make_pool, own_recipe
from shoal.errors import ArgumentError, EnvConstructError, ShippingError
from shoal.slot import Autoreset
from shoal.testing import CountingEnv, FaultEnv, SampleEnv

ENGINES = ("serial", "thread", "process")
engines = pytest.mark.parametrize("engine", ENGINES)


@engines
def test_each_env_gets_its_own_arguments(engine: str) -> None:
    kwargs = [{"tag": tag} for tag in (3, 1, 2)]
    with shoal.make_vec(CountingEnv, 3, engine=engine, env_kwargs=kwargs) as envs:
        obs, _ = envs.reset(seed=0)
        assert [testing.read_row(row).tag for row in obs] == [3, 1, 2]


@engines
def test_a_spec_builds_what_its_id_builds(engine: str) -> None:
    with shoal.make_vec(gym.spec("CartPole-v1"), 2, engine=engine) as envs:
        ours, _ = envs.reset(seed=3)
        assert envs.spec.id == "CartPole-v1"
    with shoal.make_vec("CartPole-v1", 2, engine=engine) as envs:
        np.testing.assert_array_equal(ours, envs.reset(seed=3)[0])


@engines
def test_functions_of_a_test_reach_the_envs(engine: str) -> None:
    tag = 11
    with shoal.make_vec(lambda: CountingEnv(tag=tag), 2, engine=engine) as envs:
        assert envs.get_attr("tag") == (11, 11)


@engines
def test_the_pool_behind_the_face_is_the_same_pool(engine: str) -> None:
    options: dict[str, Any] = {"engine": engine, "seed": 6, "autoreset": "same_step", "max_episode_steps": 3}
    with make_pool(CountingEnv, 2, **options) as pool, shoal.make_vec(CountingEnv, 2, **options) as envs:
        assert pool.autoreset is envs.pool.autoreset is Autoreset.SAME_STEP
        np.testing.assert_array_equal(pool.reset().obs, envs.reset()[0])
        for _ in range(5):
            np.testing.assert_array_equal(pool.step([1, 2]).obs, envs.step([1, 2])[0])


def test_auto_tells_why_it_chose() -> None:
    with shoal.make_vec(CountingEnv, 1) as envs:
        assert envs.stats().engine == "serial"
        assert "one env" in envs.stats().engine_reason


@pytest.mark.parametrize(("engine", "serves"), [("auto", "kernel"), ("serial", "serial")])
def test_an_id_without_a_version_means_the_latest(engine: str, serves: str) -> None:
    with pytest.warns(UserWarning, match="'CartPole' has no version: this is 'CartPole-v1', the latest") as caught:
        envs = shoal.make_vec("CartPole", 2, engine=engine)
    with envs:
        assert (envs.stats().engine, envs.spec.id) == (serves, "CartPole-v1")
    assert caught[0].filename == __file__
    with (
        pytest.warns(UserWarning, match="'Taxi' has no version"),
        shoal.make_vec(["Taxi", "Taxi"], engine="serial") as envs,
    ):
        assert envs.spec.id == f"Taxi-v{find_highest_version(None, 'Taxi')}"


class Slow(CountingEnv):
    """An env whose step is long, and all of it work."""

    def step(self, action: Any) -> Any:
        sum(range(100_000))
        return super().step(action)


def test_auto_takes_a_compiled_env_only_under_the_id_of_its_twin_in_gymnasium() -> None:
    assert own_recipe("CartPole-v1", "auto", 2, None, None, None) is not None
    # Gymnasium's env of this id draws its numbers with JAX, so the compiled one would give other rows.
    assert own_recipe("phys2d/CartPole-v1", "auto", 2, None, None, None) is None
    assert own_recipe("phys2d/CartPole-v1", "kernel", 2, None, None, None) is not None


def test_auto_runs_what_cannot_be_sent_to_a_worker_where_it_is() -> None:
    lock = threading.Lock()

    def locked() -> CountingEnv:
        with lock:
            return CountingEnv()

    with shoal.make_pool(locked, 2) as pool:
        stats = pool.stats()
        assert stats.engine == "serial"
        assert stats.engine_reason.startswith("it has to stay in this process: the env factory cannot be sent")
        assert "lock" in stats.engine_reason
    # Only the first is measured, and it is worth sharing.
    with shoal.make_pool([Slow, locked]) as pool:
        assert pool.stats().engine == "serial"
    with pytest.raises(ShippingError):
        shoal.make_pool(locked, 2, num_workers=2)


def test_auto_takes_processes_when_workers_are_asked_for() -> None:
    with shoal.make_vec(CountingEnv, 2, num_workers=2) as envs:
        assert envs.stats().engine == "process"
        assert "asked for" in envs.stats().engine_reason


@pytest.mark.parametrize(("asked", "got"), [(1, 1), (2, 2), (9, 3)])
@pytest.mark.parametrize("engine", ["thread", "process"])
def test_there_are_no_more_workers_than_envs(engine: str, asked: int, got: int) -> None:
    with shoal.make_vec(CountingEnv, 3, engine=engine, num_workers=asked) as envs:
        assert envs.stats().num_workers == got


# ---------------------------------------------------------------------- what is refused

BAD_ARGUMENTS = [
    ({"engine": "gpu"}, r"engine: expected one of .*'gpu'"),
    ({"autoreset": "sometimes"}, r"autoreset: expected one of .*'sometimes'"),
    ({"autoreset": None}, "autoreset"),
    ({"batch_size": 0}, r"batch_size: expected an int from 1 to 2 \(num_envs\), got 0"),
    ({"batch_size": 3}, r"batch_size: expected an int from 1 to 2 \(num_envs\), got 3"),
    ({"check": "never"}, r"check: expected one of .*'never'"),
    ({"on_fault": "shrug"}, r"on_fault: expected one of .*'shrug'"),
    ({"num_workers": 0}, "num_workers: expected an int of at least 1, got 0"),
    ({"threads_per_worker": 0}, "threads_per_worker: expected an int of at least 1, got 0"),
    *[
        ({name: value}, f"{name}: expected an int .*, got {value!r}")
        for name in ("batch_size", "num_workers", "threads_per_worker", "recycle_above", "max_episode_steps")
        for value in ("a", 1.5, True)
    ],
    *[
        ({name: value}, f"{name}: expected seconds, more than 0")
        for name in ("construct_timeout", "reset_timeout", "step_timeout", "close_timeout")
        for value in ("1", 0, -1.0, float("nan"))
    ],
    ({"env_kwargs": 5}, "env_kwargs: expected a mapping, or a list with one per env, got 5"),
    ({"env_kwargs": [5, 6]}, "env_kwargs: expected a mapping"),
    ({"env_kwargs": "ab"}, "env_kwargs: expected a mapping"),
    ({"wrappers": 5}, "wrappers: expected a list of callables, got 5"),
    ({"close_timeout": None}, "close_timeout: expected seconds, more than 0, got None"),
    ({"affinity": []}, r"affinity: expected some of the CPUs \[.*\], got \[\]"),
    ({"affinity": [10**6]}, r"affinity: expected some of the CPUs .*, got \[1000000\]"),
    ({"affinity": "01"}, "affinity: expected some of the CPUs .*, got '01'"),
    ({"copy": "yes"}, "copy: expected True or False, got 'yes'"),
    ({"inline": 1}, "inline: expected True or False, got 1"),
    ({"allow_pickle": "no"}, "allow_pickle: expected True or False, got 'no'"),
    ({"engine": "inline"}, "engine: .*inline=True"),
    ({"wrappers": gym.wrappers.TimeLimit}, "wrappers: expected a list of callables"),
    ({"wrappers": ["TimeLimit"]}, "wrappers: expected a list of callables"),
    ({"fault_dir": __file__}, "fault_dir: .* is no folder that can be written to"),
    ({"fault_dir": 3}, "fault_dir: expected a path, got 3"),
    ({"fault_dir": "/proc/faults"}, "fault_dir: /proc is no folder that can be written to"),
    ({"num_envs": 0}, "num_envs"),
    ({"env": "NoSuchEnv-v0"}, "NoSuchEnv"),
    ({"env": CountingEnv()}, "not the env itself"),
    ({"seed": -1}, "seed"),
    ({"seed": "one"}, "seed"),
    ({"seed": [1, 2, 3]}, "seed: expected 2 seeds, one per env, got 3"),
]


class Spaceless(CountingEnv):
    """Forgot to say what it observes."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = None  # type: ignore[assignment]


@engines
def test_an_env_without_a_space_is_named(engine: str) -> None:
    told = r"envs? 0.*observation_space: expected a space of Gymnasium's, got None"
    with pytest.raises(EnvConstructError, match=told):
        make_pool(Spaceless, 2, engine=engine)


@pytest.mark.parametrize(("arguments", "message"), BAD_ARGUMENTS, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("make", [make_pool, shoal.make_vec])
def test_bad_arguments_are_refused_with_a_reason(make: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make(**{"env": CountingEnv, "num_envs": 2, "engine": "serial", **arguments})


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_a_refused_seed_leaves_no_workers(engine: str) -> None:
    before = testing.leftovers()
    with pytest.raises(ArgumentError, match="seed") as caught:
        shoal.make_vec(CountingEnv, 2, engine=engine, seed=[1, 2, 3])
    # Whoever handles the error still holds it, and with it the frames that started the workers.
    left = testing.leftovers().since(before)
    assert not left.children, caught
    assert not left.threads, caught


@engines
def test_a_constructor_that_fails_is_named(engine: str) -> None:
    factories = [CountingEnv, functools.partial(FaultEnv, "raise", where="init"), CountingEnv]
    with pytest.raises(EnvConstructError, match=r"env 1.*injected fault in init") as caught:
        shoal.make_vec(factories, engine=engine)
    assert caught.value.env_ids == (1,)


@engines
def test_what_is_no_env_is_refused(engine: str) -> None:
    with pytest.raises(EnvConstructError, match=r"dict is no env: it has neither observation_space"):
        shoal.make_vec(dict, 2, engine=engine)


@engines
@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"obs_shape": 9}, r"its observation space is Box\(.*\(9,\).* at observation, not Box\(.*\(8,\)"),
        ({"dtype": np.float32}, r"its observation space is .*float32\) at observation, not .*float64"),
        ({"action_space": spaces.Discrete(7)}, r"its action space is Discrete\(7\) at action, not Discrete\(5\)"),
    ],
    ids=["shape", "dtype", "action"],
)
def test_spaces_that_disagree_are_explained(engine: str, other: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvConstructError, match=f"env 1 differs from env 0: {message}") as caught:
        shoal.make_vec(CountingEnv, 3, engine=engine, env_kwargs=[{}, other, {}])
    assert caught.value.env_ids == (1,)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"a": spaces.Discrete(2), "b": spaces.Discrete(4)}, r"Discrete\(4\) at observation\['b'\], not Discrete\(3\)"),
        ({"a": spaces.Discrete(2), "c": spaces.Discrete(3)}, r"at observation\['c'\], not .* at observation\['b'\]"),
        ({"a": spaces.Discrete(2)}, r"Dict\('a': Discrete\(2\)\), not Dict"),
    ],
    ids=["space", "key", "missing"],
)
def test_the_first_leaf_that_disagrees_is_named(other: dict[str, Any], message: str) -> None:
    mine = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(3)})
    factories = [functools.partial(SampleEnv, space) for space in (mine, spaces.Dict(other))]
    with pytest.raises(EnvConstructError, match=message):
        shoal.make_vec(factories, engine="serial")


@pytest.mark.parametrize("engine", ["serial", "thread", "process"])
@pytest.mark.parametrize("patience", [float("inf"), 1e10])
def test_a_pool_may_be_given_any_time_to_close(engine: str, patience: float) -> None:
    shoal.make_pool(CountingEnv, 2, engine=engine, close_timeout=patience).close()
