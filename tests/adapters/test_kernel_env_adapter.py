"""A kernel env as an ordinary Gymnasium env: uncompiled, one at a time, and without numba."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from kernel_kinds import KINDS, LASTING, Cell, Drift, Parts, Switches, assert_same

from shoal.adapters import adapt, describe
from shoal.adapters.kernel_env import PlainKernelEnv
from shoal.errors import ArgumentError, SpecError


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not Drift], ids=lambda kind: kind.__name__)
def test_gymnasiums_checker_finds_nothing_wrong(kind: Any) -> None:
    check_env(adapt(kind()), skip_render_check=True)


@pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array:UserWarning")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_observations_are_in_their_space(kind: Any) -> None:
    env = adapt(kind())
    env.action_space.seed(1)
    obs, info = env.reset(seed=1)
    assert obs in env.observation_space
    assert list(info) == list(kind.info)
    for _ in range(30):
        obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
        assert obs in env.observation_space
        assert [type(value) for value in (reward, terminated, truncated)] == [float, bool, bool]
        assert truncated is False, "the time limit is the pool's"


def test_a_seed_decides_everything() -> None:
    runs = []
    for _ in range(2):
        env = adapt(Drift())
        runs.append([env.reset(seed=4), *(env.step(np.int64(turn % 3 - 1)) for turn in range(6)), env.reset()])
    assert_same(runs[0], runs[1])
    assert env.np_random_seed == 4


def test_what_was_returned_is_not_changed_by_later_steps() -> None:
    env = adapt(Drift(**LASTING))
    obs, info = env.reset(seed=1)
    kept = obs.copy(), {name: np.copy(value) for name, value in info.items()}
    for _ in range(3):
        env.step(1)
    np.testing.assert_array_equal(obs, kept[0])
    for name, value in info.items():
        np.testing.assert_array_equal(value, kept[1][name], err_msg=name)


def test_flags_in_infos_are_plain_bools_so_that_gymnasium_batches_them_as_such() -> None:
    """Gymnasium's vector envs make an object array of anything else."""
    assert type(adapt(Drift()).reset(seed=1)[1]["is_far"]) is bool


# ---------------------------------------------------------------------- options


def test_options_hold_for_one_reset() -> None:
    env = adapt(Drift())
    near, far = env.reset(seed=1)[0][0], env.reset(seed=1, options={"origin": 10.0})[0][0]
    assert far == pytest.approx(near + 10.0)
    assert env.reset(seed=1)[0][0] == near


def test_options_do_not_outlive_a_reset_that_raised() -> None:
    env = adapt(Drift())
    near = env.reset(seed=1)[0][0]
    with pytest.raises(ValueError, match="broken"):
        env.reset(options={"broken": True, "origin": 10.0})
    assert env.reset(seed=1)[0][0] == near


def test_an_unknown_option_is_named_beside_those_that_exist() -> None:
    with pytest.raises(ArgumentError, match=r"Drift does not know \['up'\]; it has \['broken', 'origin', 'spread'\]"):
        adapt(Drift()).reset(options={"up": 1})
    with pytest.raises(ArgumentError, match="it has none"):
        adapt(Cell()).reset(options={"up": 1})


# ---------------------------------------------------------------------- fields as attributes


def test_fields_are_attributes() -> None:
    env = adapt(Drift(gain=3.0))
    env.reset(seed=1)
    env.x = 8.0
    assert (env.x, env.gain, env.get_wrapper_attr("x")) == (8.0, 3.0, 8.0)
    env.set_wrapper_attr("x", 9.0)
    assert env.x == 9.0
    trail = env.trail
    trail[:] = 77.0
    assert (env.trail != 77.0).all(), "a copy, as of every other number"


@pytest.mark.parametrize("name", ["field", "step", "info", "close", "np_random_seed"])
def test_a_field_may_have_the_name_of_a_method(name: str) -> None:
    env = adapt(type("Named", (Drift,), {"state": {**Drift.state, name: np.int64}})())
    env.reset(seed=1)
    env.set_wrapper_attr(name, 7)
    assert env.get_wrapper_attr(name) == 7
    assert env.step(0)[0].shape == (3,)
    assert env.get_wrapper_attr("x") == env.x


@pytest.mark.parametrize(("name", "value"), [("count", 2.7), ("lap", 2**40), ("board", 300), ("count", "7")])
def test_a_field_takes_no_number_that_would_become_another(name: str, value: Any) -> None:
    env = adapt(Drift())
    with pytest.raises(ArgumentError, match=f"{name}: expected a number that fits "):
        setattr(env, name, value)


def test_what_is_no_field_is_an_attribute_error_with_the_name() -> None:
    env = adapt(Drift())
    with pytest.raises(AttributeError, match="Drift has no field 'nonsense'"):
        _ = env.nonsense
    assert not hasattr(env, "nonsense")


def test_wrappers_can_be_put_around_it() -> None:
    env = gym.wrappers.FlattenObservation(gym.wrappers.TimeLimit(adapt(Parts()), 3))
    obs, _ = env.reset(seed=1)
    assert obs in env.observation_space
    env.action_space.seed(1)
    truncated = [env.step(env.action_space.sample())[3] for _ in range(3)]
    assert truncated == [False, False, True]
    assert env.unwrapped.kind.__class__ is Parts


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env)), lambda env: pickle.loads(cloudpickle.dumps(env))],
    ids=["deepcopy", "pickle", "cloudpickle"],
)
def test_a_copy_made_in_the_middle_of_an_episode_goes_on_like_the_env(copied: Any) -> None:
    env = adapt(Drift(**LASTING))
    env.reset(seed=1)
    env.step(1)
    twin = copied(env)
    for action in (0, 1, -1):
        assert_same(twin.step(action), env.step(action))
    assert_same(twin.reset(), env.reset())
    env.step(1)
    assert twin.count == 0, "and has a state of its own"


# ---------------------------------------------------------------------- pictures, and the spec


def test_rendering_needs_a_mode_and_a_renderer() -> None:
    with pytest.raises(ArgumentError, match="Drift: to render, make it with render_mode='rgb_array'"):
        adapt(Drift()).render()
    with pytest.raises(ArgumentError, match="Drift has no renderer"):
        adapt(Drift(render_mode="rgb_array")).render()


def test_close_is_safe_at_any_time_and_twice() -> None:
    env = adapt(Drift())
    env.close()
    env.reset(seed=1)
    env.close()
    env.close()


def test_a_bad_declaration_is_found_when_the_env_is_made() -> None:
    bad = type("Bad", (Drift,), {"state": {"speed": np.float64}})
    with pytest.raises(SpecError, match=r"Bad: field 'speed' is declared more than once"):
        adapt(bad())


def test_the_spec_is_read_off_like_any_other() -> None:
    spec = describe(adapt(Switches()), "Switches-v0")
    assert spec.id == "Switches-v0"
    assert spec.action.space == Switches.action_space
    assert spec.observation.leaves[0].shape == (4,)


def test_two_envs_of_one_kind_share_nothing() -> None:
    kind = Drift(**LASTING)
    one, other = PlainKernelEnv(kind), PlainKernelEnv(kind)
    one.reset(seed=1)
    other.reset(seed=2)
    before = other.x
    one.step(1)
    assert other.x == before
