"""PettingZoo's envs in TorchRL's dialect: groups, turns, and agents who leave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from parallel_envs import Party
from pettingzoo import ParallelEnv
from pettingzoo.classic.connect_four import connect_four
from pettingzoo.classic.rps import rps
from pettingzoo.classic.tictactoe import tictactoe

from shoal.errors import ArgumentError
from shoal.faces.torchrl import Categorical, MarlGroupMapType, OneHot, PettingZooEnv, PettingZooWrapper, check_env_specs


class Leaving(ParallelEnv[str, Any, Any]):
    """``a_0`` leaves after two steps, the others after four; all count steps."""

    metadata = {"name": "leaving_v0"}

    def __init__(self, width: int = 2) -> None:
        self.possible_agents = ["a_0", "a_1", "b"]
        self.agents: list[str] = []
        self.width = width
        self.asked: list[dict[str, Any]] = []

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-9, 9, (self.width if agent == "a_1" else 2,))

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3, start=1)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.generator = np.random.default_rng(seed)
        self.agents, self.steps = list(self.possible_agents), 0
        return self._observed(), {agent: {"x": np.array([0.0])} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        self.asked.append(actions)
        self.steps += 1
        gone = {agent: self.steps >= (2 if agent == "a_0" else 4) for agent in self.agents}
        observed = self._observed()
        infos = {agent: {"x": np.array([float(self.steps)])} for agent in self.agents}
        rewards = {agent: 1.0 for agent in self.agents}
        truncated = dict.fromkeys(self.agents, False)
        self.agents = [agent for agent in self.agents if not gone[agent]]
        return observed, rewards, gone, truncated, infos

    def _observed(self) -> dict[str, Any]:
        shapes = {agent: self.observation_space(agent).shape for agent in self.agents}
        return {agent: np.full(shape, self.steps, np.float32) for agent, shape in shapes.items()}

    def state(self) -> Any:
        return np.array([self.steps, 7])


def test_layout_of_a_parallel_env() -> None:
    env = PettingZooWrapper(rps.parallel_env(max_cycles=5))
    assert env.group_map == {"player": ["player_0", "player_1"]}
    assert env.done_keys[:3] == ["done", "terminated", "truncated"]
    assert ("player", "done") in env.done_keys
    assert env.reward_keys == [("player", "reward")]
    assert env.action_keys == [("player", "action")]
    assert env.reset_keys == ["_reset", ("player", "_reset")]
    assert isinstance(env.full_action_spec["player", "action"], Categorical)
    check_env_specs(env)
    td = env.rollout(10)
    assert td.shape == (5,)
    assert td["player", "observation"].shape == (5, 2, 4)
    assert td["next", "player", "reward"].shape == (5, 2, 1)
    assert td["next", "truncated"].flatten().tolist() == [False] * 4 + [True]
    assert env.rollout(12, break_when_any_done=False).shape == (12,)


def test_rewards_are_those_of_the_env() -> None:
    env, plain = PettingZooWrapper(rps.parallel_env()), rps.parallel_env()
    plain.reset()
    td = env.reset()
    for first, second in [(0, 1), (1, 1), (2, 0), (2, 1)]:
        td["player", "action"] = torch.tensor([first, second])
        observed, rewards, *_ = plain.step({"player_0": first, "player_1": second})
        full, td = env.step_and_maybe_reset(td)
        assert full["next", "player", "reward"].flatten().tolist() == [rewards["player_0"], rewards["player_1"]]
        chosen = full["next", "player", "observation"].argmax(-1).tolist()
        assert chosen == [int(observed["player_0"]), int(observed["player_1"])]


def test_agents_who_leave_are_masked() -> None:
    inner = Leaving()
    env = PettingZooWrapper(inner, use_mask=True, done_on_any=False)
    assert env.group_map == {"a": ["a_0", "a_1"], "b": ["b"]}
    check_env_specs(env)
    inner.asked.clear()
    td = env.rollout(10)
    assert td.shape == (4,)
    following = td["next", "a"]
    assert following["done"].squeeze(-1).tolist() == [[False, False], [True, False], [True, False], [True, True]]
    assert following["mask"].tolist() == [[True, True], [False, True], [False, True], [False, False]]
    assert following["reward"].squeeze(-1).tolist() == [[1, 1], [1, 1], [0, 1], [0, 1]]
    assert following["observation"][..., 0].tolist() == [[1, 1], [2, 2], [0, 3], [0, 4]]
    assert following["info", "x"].squeeze(-1).tolist() == [[1, 1], [2, 2], [0, 3], [0, 4]]
    assert td["next", "done"].flatten().tolist() == [False, False, False, True]
    assert [set(actions) for actions in inner.asked] == [{"a_0", "a_1", "b"}] * 2 + [{"a_1", "b"}] * 2
    assert all(1 <= action <= 3 for actions in inner.asked for action in actions.values())


def test_the_first_to_leave_ends_a_parallel_episode_by_default() -> None:
    assert PettingZooWrapper(Leaving()).rollout(10).shape == (2,)


def test_groups_are_a_choice() -> None:
    own = PettingZooWrapper(Leaving(), group_map={"x": ["a_0", "b"], "y": ["a_1"]})
    assert own.rollout(2)["x", "action"].shape == (2, 2)
    alone = PettingZooWrapper(Leaving(), group_map=MarlGroupMapType.ONE_GROUP_PER_AGENT)
    assert alone.group_map == {"a_0": ["a_0"], "a_1": ["a_1"], "b": ["b"]}
    together = PettingZooWrapper(Leaving(), group_map=MarlGroupMapType.ALL_IN_ONE_GROUP, categorical_actions=False)
    assert isinstance(together.full_action_spec["agents", "action"], OneHot)
    check_env_specs(together)
    for wrong in ({"x": ["a_0", "b"]}, {"x": ["a_0", "b"], "y": ["a_1", "b"]}, {"x": ["a_0", "a_1", "b", "c"]}):
        with pytest.raises(ArgumentError, match="group_map"):
            PettingZooWrapper(Leaving(), group_map=wrong)


def test_agents_of_a_group_may_observe_differently() -> None:
    env = PettingZooWrapper(Leaving(width=3))
    td = env.rand_step(env.reset())
    assert td["next", "a"][0]["observation"].shape == (2,)
    assert td["next", "a"][1]["observation"].shape == (3,)
    assert env.rollout(2, return_contiguous=False).shape == (2,)


def test_the_state_of_all() -> None:
    env = PettingZooWrapper(Leaving(), return_state=True)
    check_env_specs(env)
    assert env.rollout(2)["next", "state"].tolist() == [[1, 7], [2, 7]]


@pytest.mark.parametrize("module", [tictactoe, connect_four])
def test_agents_who_take_turns(module: Any) -> None:
    env = PettingZooWrapper(module.env(), use_mask=True)
    check_env_specs(env)
    for seed in range(5):
        env.set_seed(seed)
        td = env.rollout(50)
        groups = list(env.group_map)
        turns = torch.stack([td[group, "mask"].squeeze(-1) for group in groups])
        assert (turns.sum(0) == 1).all(), "it is always the turn of one"
        assert turns[0].tolist() == [step % 2 == 0 for step in range(len(td))]
        for group in groups:
            mine = td[group, "mask"].squeeze(-1)
            legal = td[group, "action_mask"].squeeze(1).gather(-1, td[group, "action"])
            assert legal[mine].all(), "actions at random are legal ones"
        ends = sum(td["next", group, "reward"][-1].item() for group in groups)
        assert ends == 0
        assert td["next", "done"][-1].item()


def test_a_game_played_as_a_plain_loop_plays_it() -> None:
    env, plain = PettingZooWrapper(tictactoe.env(), use_mask=True), tictactoe.env()
    plain.reset()
    td = env.reset()
    for move in (0, 3, 1, 4, 2):
        player = plain.agent_selection
        assert td[player, "mask"].item()
        np.testing.assert_array_equal(td[player, "observation", "observation"][0], plain.observe(player)["observation"])
        td[player, "action"] = torch.tensor([move])
        plain.step(move)
        td = env.step(td)
        for agent in plain.possible_agents:
            assert td["next", agent, "reward"].item() == plain.rewards[agent]
            assert td["next", agent, "terminated"].item() == plain.terminations[agent]
        td = env.step_mdp(td)
    assert plain.rewards == {"player_1": 1, "player_2": -1}


def test_turns_need_a_mask() -> None:
    with pytest.raises(ArgumentError, match="use_mask"):
        PettingZooWrapper(tictactoe.env())


def test_seeds() -> None:
    env = PettingZooWrapper(Party(drift=True), use_mask=True, done_on_any=False)

    def play(seed: int) -> Any:
        env.set_seed(seed)
        torch.manual_seed(0)
        return env.rollout(4)

    first, again, other = play(3), play(3), play(4)
    group = next(iter(env.group_map))
    assert (first[group, "observation"] == again[group, "observation"]).all()
    assert first.shape != other.shape or not (first[group, "observation"] == other[group, "observation"]).all()


def test_by_name() -> None:
    for name in ("classic/rps_v2", "classic/rps-v2", "rps_v2"):
        env = PettingZooEnv(name, parallel=True, max_cycles=4)
        assert env.rollout(10).shape == (4,)
    turns = PettingZooEnv("classic/tictactoe_v3", parallel=False, use_mask=True)
    assert turns.rollout(20)["next", "done"][-1].item()
    assert "classic/rps_v2" in PettingZooEnv.available_envs
    with pytest.raises(ArgumentError, match="no_such_game"):
        PettingZooEnv("no_such_game", parallel=True)
    with pytest.raises(ArgumentError, match="parallel=False makes it"):
        PettingZooEnv("classic/tictactoe_v3", parallel=True)
    with pytest.raises(ArgumentError, match="PettingZoo"):
        PettingZooWrapper(3)


def test_attributes_come_from_the_env() -> None:
    env = PettingZooWrapper(Leaving(width=2))
    assert env.width == 2
    assert env.possible_agents == ["a_0", "a_1", "b"]


class Allowing(ParallelEnv[str, Any, Any]):
    """Two agents with different numbers of actions, of which one is allowed at a time."""

    metadata = {"name": "allowing_v0"}
    sizes = {"a_0": 3, "a_1": 5}

    def __init__(self) -> None:
        self.possible_agents = list(self.sizes)
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return spaces.Dict(observation=spaces.Box(-1, 1, (2,)), action_mask=spaces.MultiBinary(self.sizes[agent]))

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(self.sizes[agent])

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.steps, self.agents = 0, list(self.sizes)
        return self._observed(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        assert actions == {agent: self.steps % size for agent, size in self.sizes.items()}
        self.steps += 1
        over = dict.fromkeys(self.agents, self.steps >= 6)
        observed = self._observed()
        result = observed, dict.fromkeys(self.agents, 1.0), over, dict.fromkeys(self.agents, False), {}
        self.agents = [] if self.steps >= 6 else self.agents
        return result

    def _observed(self) -> dict[str, Any]:
        masks = {agent: np.arange(size) == self.steps % size for agent, size in self.sizes.items()}
        return {
            agent: {"observation": np.zeros(2, np.float32), "action_mask": mask.astype(np.int8)}
            for agent, mask in masks.items()
        }


@pytest.mark.parametrize("group_map", [None, MarlGroupMapType.ONE_GROUP_PER_AGENT])
def test_masks_of_agents_with_different_actions(group_map: Any) -> None:
    env = PettingZooWrapper(Allowing(), group_map=group_map)
    assert env.rollout(9).shape == (6,)
    check_env_specs(env)
