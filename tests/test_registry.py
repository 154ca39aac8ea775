"""Task ids: what a name stands for, which names there are, and how a program adds its own."""

from __future__ import annotations

import functools
import importlib
import pickle
import sys
import types
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from shoal import registry
from shoal.envs import TASKS
from shoal.errors import ArgumentError, BackendUnavailable, WrongSetting
from shoal.kernel import KernelEnv
from shoal.registry import Task, find, list_all_envs, register
from shoal.testing import CountingEnv

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def fresh_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(registry, "_registered", {})


class Drift(KernelEnv):
    """A kind with a constant and a limit."""

    observation_space = spaces.Box(-9, 9, (1,), np.float32)
    action_space = spaces.Discrete(2)
    state = {"x": np.float64}
    constants = {"speed": 0.5}
    max_episode_steps = 11
    reward_threshold = 3.0

    def reset(env: Any, rng: Any, obs: Any) -> None:
        env.x = obs[0] = 0.0

    def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
        env.x += env.speed
        obs[0] = env.x
        return 1.0, False


# ---------------------------------------------------------------------- the list


def test_ids_are_listed_once_and_shoals_own_come_first() -> None:
    register("Mine-v0", CountingEnv)
    ids = list_all_envs()
    assert len(ids) == len(set(ids))
    assert ids[: len(TASKS)] == list(TASKS)
    assert set(gym.registry) <= set(ids)
    assert ids.index("CartPole-v1") < ids.index("Mine-v0") < ids.index("LunarLander-v3")


def test_every_listed_id_is_found() -> None:
    assert [task_id for task_id in list_all_envs() if not isinstance(find(task_id), Task)] == []


# ---------------------------------------------------------------------- looking up


def test_a_compiled_env_goes_before_gymnasiums_of_the_same_id() -> None:
    task = find("CartPole-v1")
    assert task.is_compiled
    assert (task.id, task.time_limit, task.threshold) == ("CartPole-v1", 500, 475.0)


@pytest.mark.parametrize(
    ("alias", "task_id"),
    [
        ("phys2d/CartPole-v0", "CartPole-v0"),
        ("phys2d/CartPole-v1", "CartPole-v1"),
        ("tabular/Blackjack-v0", "Blackjack-v1"),
        ("tabular/CliffWalking-v0", "CliffWalking-v0"),
    ],
)
def test_compiled_envs_have_the_names_that_others_gave_them(alias: str, task_id: str) -> None:
    assert alias in list_all_envs()
    assert find(alias) == find(task_id)
    assert find(alias).is_compiled


def test_an_id_of_gymnasiums_brings_its_limits() -> None:
    task = find("LunarLander-v3")
    assert not task.is_compiled
    assert (task.id, task.time_limit, task.threshold) == ("LunarLander-v3", 1000, 200)
    assert task.env is gym.spec("LunarLander-v3")


def test_an_id_may_name_the_module_that_registers_it() -> None:
    assert find("gymnasium:LunarLander-v3").id == "LunarLander-v3"


def test_an_env_class_is_its_own_task() -> None:
    assert find(CountingEnv) == Task("CountingEnv", CountingEnv)
    assert find(functools.partial(CountingEnv, tag=1)).id == "partial"
    assert find(gym.spec("LunarLander-v3")).time_limit == 1000


@pytest.mark.parametrize("task_id", ["CartPole-v7", "Cartpole-v1", "CartPol-v1", "CartPole"])
def test_an_unknown_id_is_told_its_neighbours(task_id: str) -> None:
    with pytest.raises(ArgumentError, match=rf"{task_id}.*did you mean.*CartPole-v.*list_all_envs") as caught:
        find(task_id)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("task_id", ["", "no such thing!", "no_such_module:Env-v0", "none/Such-v0", ":"])
def test_nonsense_is_no_id(task_id: str) -> None:
    with pytest.raises(ArgumentError, match="list_all_envs"):
        find(task_id)


@pytest.mark.parametrize("task_id", [None, 3, ["CartPole-v1"]])
def test_what_is_no_name_is_refused(task_id: Any) -> None:
    with pytest.raises(ArgumentError, match="expected a name"):
        find(task_id)


# ---------------------------------------------------------------------- registering


def test_a_class_can_be_registered_with_defaults_and_aliases() -> None:
    register("Mine-v0", CountingEnv, aliases=("mine", "my/Mine-v0"), max_episode_steps=9, reward_threshold=4, tag=3)
    for name in ("Mine-v0", "mine", "my/Mine-v0"):
        assert find(name) == Task("Mine-v0", CountingEnv, {"tag": 3}, 9, 4.0)
        assert name in list_all_envs()


def test_a_module_is_imported_when_it_is_needed() -> None:
    register("Later-v0", "shoal.testing.envs:CountingEnv")
    register("Never-v0", "no_such_module:Env")
    register("Neither-v0", "shoal.testing.envs:NoSuchEnv")
    assert find("Later-v0").env is CountingEnv
    for task_id in ("Never-v0", "Neither-v0"):
        with pytest.raises(ArgumentError, match=rf"{task_id}.*cannot be imported"):
            _ = find(task_id).env


def test_a_missing_library_is_named() -> None:
    register("Needy-v0", "needy_module_of_a_test:Env")
    module = types.ModuleType("needy_module_of_a_test")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, module.__name__, module)
        module.__getattr__ = lambda name: importlib.import_module("no_such_simulator")  # type: ignore[method-assign]
        with pytest.raises(BackendUnavailable, match=r"Needy-v0 needs.*no_such_simulator"):
            _ = find("Needy-v0").env


def test_a_missing_library_is_named_though_the_module_is_called_almost_like_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no_such_simulator_envs.py").write_text("import no_such_simulator")
    monkeypatch.syspath_prepend(tmp_path)
    register("Needy-v0", "no_such_simulator_envs:Env")
    with pytest.raises(BackendUnavailable, match=r"Needy-v0 needs.*no_such_simulator"):
        _ = find("Needy-v0").env
    register("Inner-v0", "no_such_simulator.envs:Env")
    with pytest.raises(ArgumentError, match=r"Inner-v0.*cannot be imported"):
        _ = find("Inner-v0").env


def test_another_tasks_id_can_be_built_upon() -> None:
    register("ShortCart-v0", "CartPole-v1", max_episode_steps=7)
    task = find("ShortCart-v0")
    assert task.is_compiled
    assert (task.id, task.time_limit, task.threshold) == ("ShortCart-v0", 7, 475.0)


def test_a_compiled_kind_brings_its_own_limits() -> None:
    register("Drift-v0", Drift)
    register("LongDrift-v0", Drift, max_episode_steps=99, reward_threshold=1)
    assert (find("Drift-v0").time_limit, find("Drift-v0").threshold) == (11, 3.0)
    assert (find("LongDrift-v0").time_limit, find("LongDrift-v0").threshold) == (99, 1.0)


def test_an_id_can_be_registered_once() -> None:
    register("Mine-v0", CountingEnv, aliases=("mine",))
    own = ("CartPole-v1", "phys2d/CartPole-v1", "Pong-v5")
    for names in (("Mine-v0",), ("mine",), ("New-v0", "mine"), *((name,) for name in own)):
        with pytest.raises(WrongSetting, match="registered already"):
            register(names[0], CountingEnv, aliases=names[1:])
    assert "New-v0" not in list_all_envs()


def test_an_id_of_gymnasiums_can_be_taken_over() -> None:
    register("LunarLander-v3", CountingEnv)
    assert find("LunarLander-v3").env is CountingEnv
    assert list_all_envs().count("LunarLander-v3") == 1


@pytest.mark.parametrize(("task_id", "env"), [("", CountingEnv), (3, CountingEnv), ("Mine-v0", 3), ("Mine-v0", None)])
def test_what_makes_no_sense_is_not_registered(task_id: Any, env: Any) -> None:
    before = list_all_envs()
    with pytest.raises(ArgumentError, match="expected"):
        register(task_id, env)
    assert list_all_envs() == before


def test_an_unknown_base_is_not_registered() -> None:
    with pytest.raises(ArgumentError, match="NoSuchEnv-v0"):
        register("Mine-v0", "NoSuchEnv-v0")


# ---------------------------------------------------------------------- options


class Widening:
    def __init__(self, width: int = 3, **kwargs: Any) -> None:
        pass


class Wide(Widening):
    def __init__(self, height: int = 2, **kwargs: Any) -> None:
        super().__init__(**kwargs)


class Narrow(Wide):
    def __init__(self, depth: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)


class Ending(Narrow):
    def __init__(self, needed: int, *, depth: float = 0.5) -> None:
        super().__init__()


class Bare(gym.Env[Any, Any]):
    pass


def build(size: int, colour: str = "red") -> Any:
    return None


@pytest.mark.parametrize(
    ("env", "names", "takes_any"),
    [
        (Widening, {"width": 3}, True),
        (Narrow, {"depth": 1, "height": 2, "width": 3}, True),
        (functools.partial(build, 4), {"colour": "red"}, False),
        (Bare, {}, False),
        (Drift, {"speed": 0.5}, False),
        (lambda **kwargs: None, {}, True),
    ],
    ids=["one class", "a line of classes", "function", "nothing", "constants", "anything"],
)
def test_options_are_the_keywords_of_the_constructor(env: Any, names: dict[str, Any], takes_any: bool) -> None:
    assert find(env).options() == (names, takes_any)


def test_a_constructor_that_ends_the_line_says_it_all() -> None:
    options, takes_any = find(Ending).options()
    assert options.keys() == {"needed", "depth"}
    assert options["depth"] == 0.5
    assert not takes_any


def test_options_of_a_registration_have_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = gym.envs.registration.EnvSpec("Count-v0", "shoal.testing:CountingEnv", kwargs={"tag": 8})
    monkeypatch.setitem(gym.registry, "Count-v0", spec)
    options, takes_any = find("Count-v0").options()
    assert options["tag"] == 8
    assert options["ending"] == "random"
    assert not takes_any
    register("Slow-v0", Drift, speed=0.1)
    assert find("Slow-v0").options() == ({"speed": 0.1}, False)


def test_options_of_a_compiled_env_are_what_its_constructor_takes() -> None:
    options, takes_any = find("FrozenLake8x8-v1").options()
    assert options["map_name"] == "8x8"
    assert not takes_any


# ---------------------------------------------------------------------- travelling


@pytest.mark.parametrize("task_id", ["CartPole-v1", "LunarLander-v3", "Mine-v0"])
def test_a_task_can_be_pickled_and_needs_no_registry(task_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    register("Mine-v0", CountingEnv, tag=3)
    task = find(task_id)
    assert task.env is not None
    data = pickle.dumps(task)
    monkeypatch.setattr(registry, "_registered", {})
    assert pickle.loads(data) == task
