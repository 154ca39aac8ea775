"""EnvPool's two older dialects: gym before 0.26, and dm_env."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import dm_env
import gymnasium as gym
import numpy as np
import pytest
from dm_env import specs
from gymnasium import spaces

import shoal
from shoal.testing import CountingEnv, DictTupleEnv, SampleEnv

if TYPE_CHECKING:
    from collections.abc import Callable

TABLE = [  # elapsed, reward, done, truncated, step type, discount; with a limit of three
    (0, 0, False, False, 0, 1),
    (1, 1, False, False, 1, 1),
    (2, 1, False, False, 1, 1),
    (3, 1, True, True, 2, 0),
    (0, 0, False, False, 0, 1),
    (1, 1, False, False, 1, 1),
]


@pytest.fixture(params=["serial", "kernel"])
def engine(request: pytest.FixtureRequest) -> str:
    """The engines that run compiled envs."""
    return str(request.param)


@pytest.fixture
def make(open_pool: Callable[..., Any]) -> Callable[..., Any]:
    return lambda env_type, task_id="CartPole-v1", **config: open_pool(task_id, env_type, **config)


# ---------------------------------------------------------------------- gym


def test_gym_reset_returns_observations(make: Any, engine: str) -> None:
    pool = make("gym", engine=engine)
    assert pool.config["gym_reset_return_info"] is False
    assert pool.reset().shape == (3, 4)
    assert pool.reset(np.array([2])).shape == (1, 4)
    assert pool.is_vector_env
    assert pool.observation_space.shape == (4,)


def test_gym_reset_returns_an_info_if_asked_to(make: Any) -> None:
    obs, info = make("gym", gym_reset_return_info=True).reset()
    assert obs.shape == (3, 4)
    assert info["env_id"].tolist() == [0, 1, 2]


def test_gym_steps_have_four_results(make: Any, engine: str) -> None:
    pool = make("gym", max_episode_steps=3, engine=engine)
    for elapsed, reward, done, truncated, *_ in TABLE:
        obs, rewards, dones, info = pool.step(np.zeros(3, int))
        assert obs.shape == (3, 4)
        assert (rewards.dtype, dones.dtype, info["TimeLimit.truncated"].dtype) == (np.float32, np.bool_, np.bool_)
        assert rewards.tolist() == [reward] * 3
        assert dones.tolist() == [done] * 3
        assert info["TimeLimit.truncated"].tolist() == [truncated] * 3
        assert info["elapsed_step"].tolist() == [elapsed] * 3
    assert info.keys() == {"env_id", "players", "elapsed_step", "TimeLimit.truncated"}


def test_gym_tells_ends_from_cuts(make: Any) -> None:
    ended = make("gym", functools.partial(CountingEnv, episode_length=1, ending="terminated"))
    ended.reset()
    *_, done, info = ended.step([0, 0, 0])
    assert done.all()
    assert not info["TimeLimit.truncated"].any()


def test_gymnasiums_wrappers_take_a_gym_pool_for_an_env(make: Any, engine: str) -> None:
    class Halved(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            obs, reward, done, info = self.env.step(action)  # type: ignore[misc]
            return obs, reward / 2, done, info

    pool = make("gym", engine=engine, render_mode="rgb_array")
    wrapped = Halved(pool)
    assert isinstance(pool, gym.Env)
    assert isinstance(pool, shoal.EnvPool)
    assert wrapped.unwrapped is pool.unwrapped is pool
    assert wrapped.reset(seed=3).shape == (3, 4)
    obs, reward, done, info = wrapped.step(np.zeros(3, int))
    assert (obs.shape, reward.tolist(), done.tolist()) == ((3, 4), [0.5] * 3, [False] * 3)
    assert info["env_id"].tolist() == [0, 1, 2]
    assert wrapped.render().shape == (1, 400, 600, 3)
    assert (wrapped.render_mode, wrapped.action_space) == ("rgb_array", pool.action_space)
    assert wrapped.metadata["render_modes"] == ["rgb_array"]
    assert isinstance(pool.spec, shoal.EnvSpec)
    assert isinstance(pool.np_random, np.random.Generator)
    assert repr(pool).startswith("CartPoleGymEnvPool(num_envs=3, ")
    wrapped.close()
    assert pool.closed


def test_gym_sends_and_receives(make: Any, engine: str) -> None:
    pool = make("gym", num_envs=4, batch_size=2, engine=engine)
    pool.async_reset()
    obs, *_, info = pool.recv()
    assert obs.shape == (2, 4)
    pool.send(np.zeros(2, int), info["env_id"])
    assert len(pool.recv()) == 4
    pool.async_reset()
    assert len(pool.recv(reset=True)) == 2
    assert pool.recv(reset=True, return_info=False).shape == (2, 4)


def test_gym_has_last_observations_under_same_step(make: Any, engine: str) -> None:
    pool = make("gym", autoreset="same_step", max_episode_steps=1, engine=engine)
    pool.reset()
    *_, done, info = pool.step(np.zeros(3, int))
    assert done.all()
    assert info["final_obs"].shape == (3, 4)


# ---------------------------------------------------------------------- dm_env


def test_dm_timesteps_are_arrays(make: Any, engine: str) -> None:
    pool = make("dm", engine=engine)
    assert isinstance(pool, dm_env.Environment)
    first = pool.reset()
    assert isinstance(first, dm_env.TimeStep)
    assert (first.step_type.tolist(), first.step_type.dtype) == ([0, 0, 0], np.int32)
    assert (first.reward.tolist(), first.reward.dtype) == ([0, 0, 0], np.float32)
    assert (first.discount.tolist(), first.discount.dtype) == ([1, 1, 1], np.float32)
    state = first.observation
    assert type(state).__name__ == "State"
    assert state._fields == ("env_id", "players", "obs")
    assert state.env_id.tolist() == state.players.env_id.tolist() == [0, 1, 2]
    assert state.obs.shape == (3, 4)
    assert type(pool.step(np.zeros(3, int)).observation) is type(state)
    assert pool.reset(np.array([2])).observation.env_id.tolist() == [2]


def test_dm_follows_the_table(make: Any, engine: str) -> None:
    pool = make("dm", max_episode_steps=3, engine=engine)
    for _, reward, _, _, step_type, discount in TABLE:
        step = pool.step(np.zeros(3, int))
        assert step.reward.tolist() == [reward] * 3
        assert step.step_type.tolist() == [step_type] * 3
        assert step.discount.tolist() == [discount] * 3
        assert (step.step_type.dtype, step.discount.dtype) == (np.int32, np.float32)


def test_dm_observations_have_infos_beside_them(make: Any, engine: str) -> None:
    state = make("dm", "Acrobot-v1", engine=engine).reset().observation
    assert state._fields == ("env_id", "players", "obs", "state")
    assert state.state.shape == (3, 2)
    assert not hasattr(state, "elapsed_step")


def test_dm_observations_with_parts_are_named_after_them(make: Any) -> None:
    pool = make("dm", DictTupleEnv, num_envs=2)
    state = pool.reset().observation
    assert {"env_id", "players", "camera", "gear", "inner", "label"} <= set(state._fields)
    assert state.inner.pixels.shape == (2, 4)
    assert state.pair.n0.shape == (2,)
    assert state.nested.depth.t.tolist() == [0, 0]


def test_dm_names_are_names(make: Any) -> None:
    space = spaces.Dict({"arm/pos": spaces.Discrete(2), "class": spaces.Discrete(2), "_x": spaces.Discrete(2)})
    pool = make("dm", functools.partial(SampleEnv, space))
    state = pool.reset().observation
    assert set(state._fields) == {"env_id", "players", "arm_pos", "class_", "x", "t"}
    assert set(pool.observation_spec()._fields) == {"env_id", "players", "arm_pos", "class_", "x"}


@pytest.mark.slow
@pytest.mark.parametrize("task_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Blackjack-v1", "Acrobot-v1"])
def test_dm_specs_describe_every_row(make: Any, engine: str, task_id: str) -> None:
    pool = make("dm", task_id, engine=engine)
    action = pool.action_spec()
    sent = np.zeros((3, *action.shape), action.dtype)
    state_spec = pool.observation_spec()
    for step in (pool.reset(), pool.step(sent)):
        state = step.observation
        assert state._fields == state_spec._fields
        for row in range(3):
            state_spec.env_id.validate(state.env_id[row])
            state_spec.players.env_id.validate(state.players.env_id[row])
            for name in state._fields[2:]:
                getattr(state_spec, name).validate(np.asarray(getattr(state, name)[row]))
            pool.reward_spec().validate(step.reward[row])
            pool.discount_spec().validate(step.discount[row])


def test_dm_reward_and_discount_are_float32(make: Any) -> None:
    pool = make("dm")
    assert (pool.reward_spec().dtype, pool.discount_spec().dtype) == (np.float32, np.float32)
    assert isinstance(pool.action_spec(), specs.DiscreteArray)


def test_dm_sends_and_receives(make: Any, engine: str) -> None:
    pool = make("dm", num_envs=4, batch_size=2, engine=engine)
    pool.async_reset()
    step = pool.recv()
    assert step.step_type.tolist() == [0, 0]
    pool.send(np.zeros(2, int), step.observation.env_id)
    pool.send({"action": np.zeros(2, np.int32), "env_id": pool.recv().observation.env_id})
    assert pool.recv().step_type.tolist() == [1, 1]


def test_dm_last_rows_are_last_under_same_step(make: Any, engine: str) -> None:
    pool = make("dm", autoreset="same_step", max_episode_steps=2, engine=engine)
    steps = [pool.reset(), *(pool.step(np.zeros(3, int)) for _ in range(4))]
    assert [int(step.step_type[0]) for step in steps] == [0, 1, 2, 1, 2]
    assert steps[2].observation.final_obs.shape == (3, 4)
    assert steps[2].observation.has_final_obs.tolist() == [True, True, True]
    assert not hasattr(steps[1].observation, "final_obs")


def test_dm_closes_with_its_block() -> None:
    with shoal.make_dm("CartPole-v1", engine="serial") as pool:
        pool.reset()
    assert pool.closed
