"""Whatever a user calls an env becomes one factory per env."""

from __future__ import annotations

import copy
import functools
import pickle
import re
from typing import Any

import gymnasium as gym
import pytest

from shoal.errors import ArgumentError, ResourceError
from shoal.recipes import recipe_for
from shoal.testing import CountingEnv


def tagged(env: gym.Env[Any, Any], mark: str) -> gym.Env[Any, Any]:
    """A wrapper that leaves a mark, in the order of application."""
    env.marks = (*getattr(env, "marks", ()), mark)  # type: ignore[attr-defined]
    return env


def test_an_id_is_made_as_gymnasium_makes_it() -> None:
    recipe = recipe_for("CartPole-v1", 2)
    assert (len(recipe.factories), recipe.name, recipe.max_episode_steps) == (2, "CartPole-v1", None)
    env = recipe.factories[0]()
    assert isinstance(env, gym.wrappers.TimeLimit)
    assert env.spec is not None
    assert env.spec.max_episode_steps == 500


def test_a_spec_is_made_with_its_own_settings() -> None:
    spec = copy.deepcopy(gym.spec("CartPole-v1"))
    spec.kwargs = {"sutton_barto_reward": True}
    spec.max_episode_steps = 7
    env = recipe_for(spec).factories[0]()
    assert env.unwrapped._sutton_barto_reward is True
    assert env.spec.max_episode_steps == 7


def test_a_registered_env_is_judged_by_its_slot_and_not_by_gymnasium() -> None:
    (factory,) = recipe_for("CartPole-v1").factories
    assert str(factory()) == "<TimeLimit<OrderEnforcing<CartPoleEnv<CartPole-v1>>>>"
    (factory,) = recipe_for("CartPole-v1", env_kwargs={"disable_env_checker": False}).factories
    assert "PassiveEnvChecker" in str(factory())


def test_a_registration_travels_to_where_its_name_is_unknown() -> None:
    gym.register("OnlyHere-v0", CountingEnv, max_episode_steps=4, kwargs={"tag": 3})
    try:
        shipped = pickle.dumps(recipe_for("OnlyHere-v0", 1).factories[0])
    finally:
        del gym.registry["OnlyHere-v0"]
    env = pickle.loads(shipped)()
    assert env.unwrapped.tag == 3
    assert env.spec.max_episode_steps == 4


def test_one_env_is_the_default() -> None:
    assert len(recipe_for("CartPole-v1").factories) == 1
    assert len(recipe_for(CountingEnv).factories) == 1


@pytest.mark.parametrize("many", [list, tuple])
def test_a_list_has_its_own_length(many: Any) -> None:
    factories = many(functools.partial(CountingEnv, tag=tag) for tag in (4, 5))
    recipe = recipe_for(factories)
    assert [factory().tag for factory in recipe.factories] == [4, 5]
    assert recipe_for(factories, 2).factories == recipe.factories


def test_a_list_may_hold_ids_and_callables() -> None:
    envs = [factory() for factory in recipe_for(["CartPole-v1", CountingEnv, gym.spec("Pendulum-v1")]).factories]
    assert [type(env.unwrapped).__name__ for env in envs] == ["CartPoleEnv", "CountingEnv", "PendulumEnv"]


@pytest.mark.parametrize("order", [["CartPole-v1", CountingEnv], [CountingEnv, "CartPole-v1"]])
def test_a_limit_holds_for_every_env_of_a_mixed_list(order: list[Any]) -> None:
    recipe = recipe_for(order, max_episode_steps=5)
    envs = [factory() for factory in recipe.factories]
    # Each env keeps the limit itself, or the pool does it for all.
    assert recipe.max_episode_steps == 5 or all(env.spec.max_episode_steps == 5 for env in envs)


def test_the_callables_name_is_the_pools() -> None:
    assert recipe_for(CountingEnv).name == "CountingEnv"
    assert recipe_for(lambda: CountingEnv()).name == "<lambda>"


def test_kwargs_are_for_every_env_or_one_by_one() -> None:
    assert [factory().tag for factory in recipe_for(CountingEnv, 2, {"tag": 8}).factories] == [8, 8]
    each = recipe_for(CountingEnv, 2, [{"tag": 1}, {"tag": 2}])
    assert [factory().tag for factory in each.factories] == [1, 2]


def test_equal_kwargs_are_kept_once() -> None:
    one, other = recipe_for([CountingEnv, CountingEnv], env_kwargs={"tag": 8}).factories
    assert one.kwargs is other.kwargs


def test_kwargs_are_those_at_the_time_of_the_call() -> None:
    kwargs = {"tag": 1}
    recipe = recipe_for(CountingEnv, 1, kwargs)
    kwargs["tag"] = 2
    assert recipe.factories[0]().tag == 1


@pytest.mark.parametrize("env", ["CartPole-v1", CountingEnv])
def test_wrappers_are_applied_innermost_first(env: Any) -> None:
    wrappers = [functools.partial(tagged, mark="inner"), functools.partial(tagged, mark="outer")]
    for given in (wrappers, tuple(wrappers), iter(wrappers)):
        assert recipe_for(env, wrappers=given).factories[0]().marks == ("inner", "outer")


def test_a_limit_for_an_id_is_kept_by_its_own_wrapper() -> None:
    recipe = recipe_for("CartPole-v1", max_episode_steps=9)
    assert recipe.max_episode_steps is None
    assert recipe.factories[0]().spec.max_episode_steps == 9


def test_a_limit_for_a_callable_is_left_to_the_pool() -> None:
    assert recipe_for(CountingEnv, max_episode_steps=9).max_episode_steps == 9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env": "NoSuchEnv-v0"}, "NoSuchEnv"),
        ({"env": "CartPole-v99"}, "CartPole"),
        ({"env": "no_such_module:Env-v0"}, "no_such_module"),
        ({"env": "no good id!"}, "env:"),
        ({"env": []}, "list of factories is empty"),
        ({"env": None}, "expected an id, an EnvSpec, a callable"),
        ({"env": 5}, "expected an id, an EnvSpec, a callable"),
        ({"env": CountingEnv()}, "not the env itself"),
        ({"env": [CountingEnv, CountingEnv()]}, "not the env itself"),
        ({"num_envs": 0}, "at least 1, got 0"),
        ({"num_envs": -3}, "at least 1, got -3"),
        ({"num_envs": 2.0}, "expected an int"),
        ({"num_envs": True}, "expected an int"),
        ({"num_envs": "2"}, "expected an int"),
        ({"env": [CountingEnv] * 2, "num_envs": 3}, "3 does not fit a list of 2"),
        ({"num_envs": 3, "env_kwargs": [{}]}, "expected 3 mappings, one per env, got 1"),
        ({"max_episode_steps": 0}, "expected an int of at least 1, got 0"),
        ({"max_episode_steps": -1}, "expected an int of at least 1, got -1"),
    ],
    ids=lambda value: re.sub(" at 0x[0-9a-f]+", "", str(value)),
)
def test_what_makes_no_sense_is_refused_with_a_reason(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        recipe_for(**{"env": CountingEnv, **arguments})


@pytest.mark.parametrize("num_envs", [10**11, 10**30])
def test_more_envs_than_memory_has_places_for_are_refused(num_envs: int) -> None:
    with pytest.raises(ResourceError, match=r"num_envs: 1[0,]+ envs do not fit"):
        recipe_for(CountingEnv, num_envs)
