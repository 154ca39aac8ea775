"""MultiThreadedEnv: many envs on a pool, without trailing dims."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gym_cases import Echo, plain_loop

import shoal
from shoal.errors import ArgumentError
from shoal.faces.torchrl import Categorical, MultiThreadedEnv, MultiThreadedEnvWrapper, check_env_specs

COUNT = 3


def test_layout() -> None:
    env = MultiThreadedEnv(COUNT, "CartPole-v1")
    assert env.batch_size == (COUNT,)
    assert isinstance(env.action_spec, Categorical)
    assert env.action_spec.shape == (COUNT,)
    td = env.rand_step(env.reset())
    assert td["action"].shape == td["next", "reward"].shape == td["next", "done"].shape == (COUNT,)
    assert td["next", "observation"].shape == (COUNT, 4)
    check_env_specs(env)
    assert env.rollout(40, break_when_any_done=False).shape == (COUNT, 40)
    assert "CartPole-v1" in MultiThreadedEnv.available_envs
    env.close()


def makers() -> dict[str, Any]:
    return {
        "by name": lambda: MultiThreadedEnv(COUNT, "CartPole-v1"),
        "threads": lambda: MultiThreadedEnv(
            COUNT, "CartPole-v1", create_env_kwargs={"engine": "thread", "num_threads": 2}
        ),
        "pool": lambda: MultiThreadedEnvWrapper(shoal.make_pool("CartPole-v1", COUNT, engine="serial")),
        "envpool's face": lambda: MultiThreadedEnvWrapper(shoal.make("CartPole-v1", num_envs=COUNT)),
        "classic face": lambda: MultiThreadedEnvWrapper(shoal.make("CartPole-v1", env_type="gym", num_envs=COUNT)),
        "gymnasium's face": lambda: MultiThreadedEnvWrapper(
            shoal.make_vec("CartPole-v1", COUNT, autoreset="same_step")
        ),
    }


@pytest.mark.parametrize("kind", list(makers()))
def test_each_env_gives_what_a_plain_loop_over_it_gives(kind: str) -> None:
    env = makers()[kind]()
    actions = np.random.default_rng(0).integers(0, 2, (60, COUNT))
    td = env.reset(seed=5)
    # The loop takes the episode after the first one.
    td = env.reset()
    for i in range(COUNT):
        expected = plain_loop(gym.make("CartPole-v1"), actions[:, i], seed=5 + i)
        np.testing.assert_array_equal(td["observation"][i], expected[0][0])
    rows = [plain_loop(gym.make("CartPole-v1"), actions[:, i], seed=5 + i) for i in range(COUNT)]
    for step, chosen in enumerate(actions):
        full, td = env.step_and_maybe_reset(td.set("action", torch.from_numpy(chosen)))
        for i in range(COUNT):
            obs, _, terminated, _, following = rows[i][step]
            np.testing.assert_array_equal(full["observation"][i], obs)
            np.testing.assert_array_equal(full["next", "observation"][i], following)
            assert full["next", "terminated"][i].item() == terminated
        assert not td["done"].any()
    env.close()


def test_pictures_are_observations() -> None:
    class Drawn(gym.Env):
        observation_space = gym.spaces.Box(0, 255, (4, 5, 3), np.uint8)
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.zeros((4, 5, 3), np.uint8), {}

    env = MultiThreadedEnvWrapper(shoal.make(Drawn, num_envs=2))
    assert env.reset()["observation"].shape == (2, 4, 5, 3)
    env.close()


def test_a_seed_is_for_the_next_reset() -> None:
    env = MultiThreadedEnv(2, "CartPole-v1")
    env.set_seed(3)
    first = env.reset()["observation"]
    np.testing.assert_array_equal(first, np.stack([gym.make("CartPole-v1").reset(seed=s)[0] for s in (3, 4)]))
    assert not (env.reset()["observation"] == first).all()
    env.close()


def test_partial_resets_and_steps() -> None:
    env = MultiThreadedEnv(COUNT, "CartPole-v1")
    td = env.step_mdp(env.rand_step(env.reset()))
    before = td["observation"].clone()
    td["_reset"] = torch.tensor([True, False, False])
    td = env.reset(td)
    assert (td["observation"][1:] == before[1:]).all()
    assert (td["observation"][0] != before[0]).any()
    td = env.rand_action(td)
    td["_step"] = torch.tensor([False, True, False])
    assert env.step(td)["next", "reward"].tolist() == [0, 1, 0]
    env.close()


def test_frames_are_skipped_and_options_reach_the_env() -> None:
    env = MultiThreadedEnv(
        2, "CartPole-v1", frame_skip=3, create_env_kwargs={"max_episode_steps": 6, "engine": "serial"}
    )
    td = env.rollout(4, break_when_any_done=False)
    assert (td["next", "reward"][:, 0] == 3).all()
    assert td["next", "truncated"][:, 1].all()
    assert env.frame_skip == 3
    assert env.num_workers == 2
    assert env.env_name == "CartPole-v1"
    env.close()
    heavy = MultiThreadedEnv(2, "Pendulum-v1", create_env_kwargs={"g": 3.0, "engine": "serial"})
    assert list(heavy.g) == [3.0, 3.0]
    heavy.close()


# ---------------------------------------------------------------------- pools of EnvPool's


class Counting:
    """A pool with EnvPool's public surface: envs that count, and begin anew in the step after an episode."""

    LIMIT = 3

    def __init__(self, **config: int) -> None:
        self.config = {"num_envs": COUNT, "batch_size": COUNT, "max_num_players": 1, **config}
        self.all_env_ids = np.arange(COUNT, dtype=np.int32)
        self.observation_space = gym.spaces.Dict(count=gym.spaces.Box(np.finfo("f4").tiny, np.finfo("f4").max, (1,)))
        self.action_space = gym.spaces.Discrete(2)
        self.spec = self
        self.count = np.zeros(COUNT, np.float32)
        self.is_closed = False

    def reset(self, env_id: Any = None) -> Any:
        ids = self.all_env_ids if env_id is None else env_id
        self.count[ids] = 0
        return self.shown(ids)

    def step(self, action: Any, env_id: Any = None) -> Any:
        ids = self.all_env_ids if env_id is None else env_id
        over = self.count[ids] >= self.LIMIT
        self.count[ids] = np.where(over, 0, self.count[ids] + 1)
        obs, info = self.shown(ids)
        ended = self.count[ids] >= self.LIMIT
        return obs, np.float32(~over), ended, np.zeros_like(ended), info

    def shown(self, ids: Any) -> Any:
        return {"count": self.count[ids, None] - 1}, {"env_id": ids}

    def close(self) -> None:
        self.is_closed = True


def test_a_pool_of_envpools_is_taken_by_its_surface() -> None:
    pool = Counting()
    env = MultiThreadedEnvWrapper(pool)
    check_env_specs(env)
    assert env.LIMIT == 3
    td = env.rollout(7, break_when_any_done=False)
    assert td["next", "count"].squeeze(-1).tolist() == [[0, 1, 2, 0, 1, 2, 0]] * COUNT
    assert td["count"].squeeze(-1).tolist() == [[-1, 0, 1, -1, 0, 1, -1]] * COUNT
    assert td["next", "reward"].tolist() == [[1] * 7] * COUNT
    root = env.step_mdp(env.rand_step(env.reset()))
    root["_reset"] = torch.tensor([True, False, False])
    root = env.rand_action(env.reset(root))
    assert root["count"].flatten().tolist() == [-1, 0, 0]
    root["_step"] = torch.tensor([False, True, False])
    following = env.step(root)["next"]
    assert following["count"].flatten().tolist() == [-1, 1, 0]
    assert following["reward"].tolist() == [0, 1, 0]
    env.set_seed(3)  # it has been seeded when it was made
    with pytest.raises(ArgumentError, match="seed"):
        env.reset(seed=3)
    env.close()
    assert pool.is_closed


@pytest.mark.parametrize("config", [{"batch_size": 2}, {"max_num_players": 2}], ids=str)
def test_pools_of_envpools_that_give_other_rows_are_refused(config: dict[str, int]) -> None:
    with pytest.raises(RuntimeError, match="the pool"):
        MultiThreadedEnvWrapper(Counting(**config))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("env_type", ["gymnasium", "gym"])
def test_a_pool_of_envpools(env_type: str) -> None:
    envpool = pytest.importorskip("envpool")
    env = MultiThreadedEnvWrapper(envpool.make("CartPole-v1", env_type=env_type, num_envs=COUNT, seed=1))
    assert isinstance(env.action_spec, Categorical)
    check_env_specs(env)
    td = env.rollout(60, break_when_any_done=False)
    assert td["action"].shape == td["next", "reward"].shape == td["next", "done"].shape == (COUNT, 60)
    assert (td["next", "reward"] == 1).all()  # no step is one that only resets
    done = td["next", "done"][:, :-1]
    assert done.any()
    assert (td["observation"][:, 1:][done].abs() <= 0.05).all()
    assert (td["observation"][:, 1:][~done] == td["next", "observation"][:, :-1][~done]).all()
    env.close()


def test_what_it_refuses() -> None:
    with pytest.raises(ArgumentError, match="expected a pool"):
        MultiThreadedEnvWrapper(Echo())
    with pytest.raises(ArgumentError, match="categorical"):
        MultiThreadedEnv(2, "CartPole-v1", categorical_action_encoding=False)
    with pytest.raises(ArgumentError, match="num_workers"):
        MultiThreadedEnv("CartPole-v1", 2)  # type: ignore[arg-type]
