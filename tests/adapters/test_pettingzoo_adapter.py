"""PettingZoo's parallel envs behave as Gymnasium envs, alone and in a pool."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from parallel_envs import DONE, NAMES, OBSERVED, Masked, Party
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.classic.rps import rps
from pettingzoo.classic.tictactoe import tictactoe
from pettingzoo.utils.conversions import parallel_to_aec, turn_based_aec_to_parallel

import shoal
from shoal.adapters import adapt, describe
from shoal.adapters.pettingzoo import ParallelEnvAdapter
from shoal.errors import EnvConstructError, SpecError
from shoal.testing import CountingEnv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ENGINES = ("serial", "thread", "process")

LEAVING = functools.partial(Party, left=(2, 9, 3), length=5)
JOINING = functools.partial(Party, came=(0, 2, 0), length=4)


def with_spaces(observation: Any, action: Any = DONE) -> type[Party]:
    """A party whose guests have the given spaces, each its own if it is a list."""

    class Changed(Party):
        def observation_space(self, agent: str) -> Any:
            return observation[NAMES.index(agent)] if isinstance(observation, list) else observation

        def action_space(self, agent: str) -> Any:
            return action[NAMES.index(agent)] if isinstance(action, list) else action

    return Changed


@pytest.fixture
def make_vec() -> Iterator[Callable[..., Any]]:
    """``shoal.make_vec``, with every pool closed in the end."""
    made: list[Any] = []

    def make_one(*args: Any, **options: Any) -> Any:
        made.append(shoal.make_vec(*args, **options))
        return made[-1]

    yield make_one
    for envs in made:
        envs.close()
    made.clear()


# ---------------------------------------------------------------------- recognizing


class Duck:
    """Has the methods of a parallel env without its base class."""

    def __init__(self) -> None:
        inner = Party()
        self.possible_agents = inner.possible_agents
        self.reset, self.step, self.close = inner.reset, inner.step, inner.close
        self.observation_space, self.action_space = inner.observation_space, inner.action_space


@pytest.mark.parametrize("make", [Party, LEAVING, Masked, Duck, rps.parallel_env, rps.env])
def test_parallel_envs_are_recognized(make: Any) -> None:
    env = adapt(make())
    assert isinstance(env, ParallelEnvAdapter)
    assert isinstance(env, gym.Env)


def test_gymnasium_envs_are_left_alone() -> None:
    env = CountingEnv()
    env.possible_agents = env.players = ["a"]  # type: ignore[attr-defined]
    assert adapt(env) is env
    assert describe(env, "count").players == ()
    assert describe(env, "count").player is None


def test_an_env_of_agents_in_turn_is_converted_if_it_says_so() -> None:
    party = Party()
    assert adapt(parallel_to_aec(party)).env is party
    assert adapt(rps.env()).players == ("player_0", "player_1")


def test_an_env_of_agents_in_turn_is_refused_if_it_does_not() -> None:
    with pytest.raises(SpecError, match=r"tictactoe_v3 is an AEC env.*is_parallelizable.*turn_based_aec_to_parallel"):
        adapt(tictactoe.env())


def test_an_env_of_agents_in_turn_can_be_converted_by_hand() -> None:
    env = adapt(turn_based_aec_to_parallel(tictactoe.env()))
    obs, _ = env.reset(seed=0)
    for cell in range(7):
        mask = obs["obs"]["action_mask"]
        assert mask[cell % 2, cell]
        obs, _, terminated, truncated, _ = env.step(np.array([cell, cell]))
    assert (terminated, truncated) == (True, False)
    assert obs["reward"].tolist() == [1, -1]
    assert obs["terminated"].tolist() == [1, 1]


def test_unknown_players_are_refused() -> None:
    class Anybody(Party):
        def __init__(self) -> None:
            super().__init__()
            del self.possible_agents

    with pytest.raises(SpecError, match="party_v0 has no possible_agents"):
        adapt(Anybody())


def test_agents_need_names_of_their_own() -> None:
    env = Party()
    env.possible_agents = [1, "1"]  # type: ignore[list-item]
    with pytest.raises(SpecError, match="names of their own"):
        adapt(env)


@pytest.mark.parametrize("make", [AECEnv, ParallelEnv])
def test_an_empty_shell_is_refused(make: Any) -> None:
    with pytest.raises(SpecError):
        adapt(make())


# ---------------------------------------------------------------------- spaces


def test_spaces_have_a_place_for_every_player() -> None:
    env = adapt(Party())
    space = env.observation_space
    assert space["obs"] == spaces.Box(-1e6, 1e6, (3, 3), np.float32)
    assert space["reward"] == spaces.Box(-np.inf, np.inf, (3,), np.float64)
    for name in ("terminated", "truncated", "alive"):
        assert space[name] == spaces.MultiBinary(3)
    assert env.action_space == spaces.MultiDiscrete([4, 4, 4])


@pytest.mark.parametrize(
    ("single", "stacked"),
    [
        (spaces.Discrete(3, start=2), spaces.MultiDiscrete([3] * 3, start=[2] * 3)),
        (spaces.Box(-1, 1, (2,), np.float32), spaces.Box(-1, 1, (3, 2), np.float32)),
        (spaces.MultiDiscrete([2, 3]), spaces.Box(0, np.array([[1, 2]] * 3), dtype=np.int64)),
        (spaces.Dict({"a": spaces.Discrete(2)}), spaces.Dict({"a": spaces.MultiDiscrete([2] * 3)})),
        (spaces.Tuple([spaces.Discrete(2)] * 2), spaces.Tuple([spaces.MultiDiscrete([2] * 3)] * 2)),
    ],
    ids=repr,
)
def test_spaces_of_all_kinds_are_stacked(single: spaces.Space[Any], stacked: spaces.Space[Any]) -> None:
    env = adapt(with_spaces(single, single)())
    assert env.observation_space["obs"] == stacked
    assert env.action_space == stacked


@pytest.mark.parametrize("name", ["observation", "action"])
def test_players_of_two_kinds_are_refused(name: str) -> None:
    odd = [DONE, DONE, spaces.Discrete(5)]
    env_class = with_spaces(odd) if name == "observation" else with_spaces(OBSERVED, odd)
    with pytest.raises(SpecError, match=rf"same {name} space, but 'ann' has Discrete\(4\) and 'cid' has Discrete\(5\)"):
        adapt(env_class())


def test_spaces_that_are_no_arrays_are_refused() -> None:
    with pytest.raises(SpecError, match=r"party_v0: players need spaces of arrays, got Text"):
        adapt(with_spaces(spaces.Text(5))())


def test_the_spec_knows_the_players() -> None:
    spec = describe(adapt(Party(render_mode="rgb_array")), "party")
    assert spec.players == NAMES
    assert spec.player is not None
    assert (spec.player.observation.space, spec.player.action.space) == (OBSERVED, DONE)
    assert spec.render_mode == "rgb_array"
    assert spec.metadata["name"] == "party_v0"


def test_specs_with_other_players_differ() -> None:
    other = Party()
    other.possible_agents = ["dan", "eve", "flo"]
    difference = describe(adapt(Party()), "a").difference(describe(adapt(other), "b"))
    assert difference == "its players are ['dan', 'eve', 'flo'], not ['ann', 'bob', 'cid']"


# ---------------------------------------------------------------------- stepping


def test_a_reset_shows_who_begins() -> None:
    env = adapt(JOINING())
    obs, info = env.reset(seed=1)
    assert obs in env.observation_space
    assert obs["alive"].tolist() == [1, 0, 1]
    assert obs["obs"][1].tolist() == [0, 0, 0]
    assert obs["obs"][0, 2] == obs["obs"][2, 2] == np.random.default_rng(1).integers(1000)
    assert info == {}


def test_a_step_has_all_players() -> None:
    env = adapt(Party())
    env.reset(seed=1)
    obs, reward, terminated, truncated, info = env.step(np.array([1, 2, 3]))
    assert obs in env.observation_space
    assert obs["obs"][:, :2].tolist() == [[1, 1], [1, 2], [1, 3]]
    assert obs["reward"].tolist() == [1, 12, 23]
    assert (reward, terminated, truncated) == (36.0, False, False)
    assert [type(value) for value in (reward, terminated, truncated)] == [float, bool, bool]
    assert info == {"bob": {"clock": 1}}


def test_players_leave_with_a_last_row() -> None:
    env = adapt(LEAVING())
    env.reset(seed=1)
    rows = [env.step(np.array([1, 1, 1])) for _ in range(5)]
    assert [row[0]["alive"].tolist() for row in rows] == [[1, 1, 1], [1, 1, 1], [0, 1, 1], [0, 1, 0], [0, 1, 0]]
    assert [row[0]["terminated"].tolist() for row in rows] == [[0, 0, 0], [1, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]]
    assert [row[0]["truncated"].tolist() for row in rows] == [*[[0, 0, 0]] * 4, [0, 1, 0]]
    assert [row[1] for row in rows] == [33, 33, 32, 11, 11]
    assert [row[2:4] for row in rows] == [*[(False, False)] * 4, (False, True)]
    assert rows[2][0]["obs"][0].tolist() == [0, 0, 0]


def test_actions_of_players_who_are_not_there_are_ignored() -> None:
    env = adapt(LEAVING())
    env.reset()
    for _ in range(5):
        env.step(np.array([1, 2, 3]))
    assert [list(actions) for actions in env.env.asked] == [list(NAMES)] * 2 + [["bob", "cid"], ["bob"], ["bob"]]
    assert env.env.asked[2] == {"bob": 2, "cid": 3}


def test_players_join() -> None:
    env = adapt(JOINING())
    env.reset()
    alive = [env.step(np.array([1, 2, 3]))[0]["alive"].tolist() for _ in range(4)]
    assert alive == [[1, 0, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1]]
    assert env.env.asked[2] == {"ann": 1, "bob": 2, "cid": 3}


@pytest.mark.parametrize(
    ("left", "length", "flags"), [((1, 1, 1), 3, (True, False)), ((9, 9, 9), 1, (False, True)), ((1, 9, 1), 1, (1, 1))]
)
def test_the_last_players_tell_how_it_ended(left: Any, length: int, flags: Any) -> None:
    env = adapt(Party(left=left, length=length))
    env.reset()
    assert env.step(np.zeros(3, int))[2:4] == flags


def test_a_player_who_left_earlier_does_not() -> None:
    env = adapt(Party(left=(1, 9, 9), length=2))
    env.reset()
    assert env.step(np.zeros(3, int))[2:4] == (False, False)
    assert env.step(np.zeros(3, int))[2:4] == (False, True)


def test_absent_players_are_in_the_space() -> None:
    far = spaces.Dict({"near": spaces.Box(5, 9, (2,), np.float32), "kind": spaces.Discrete(3, start=-7)})

    class Far(with_spaces(far, spaces.Discrete(2, start=3))):  # type: ignore[misc]
        def _seen(self, actions: dict[str, Any]) -> dict[str, Any]:
            return {name: {"near": np.full(2, 6, np.float32), "kind": -6} for name in actions}

    env = adapt(Far(came=(0, 9, 0)))
    obs, _ = env.reset()
    assert obs in env.observation_space
    assert obs["obs"]["near"][1].tolist() == [5, 5]
    assert obs["obs"]["kind"].tolist() == [-6, -5, -6]


def test_nested_actions_reach_their_players() -> None:
    action = spaces.Dict({"move": spaces.Discrete(3), "speed": spaces.Box(0, 1, (2,), np.float32)})

    class Complex(with_spaces(OBSERVED, action)):  # type: ignore[misc]
        def step(self, actions: dict[str, Any]) -> Any:
            assert all(value in action for value in actions.values())
            self.kept = actions
            return super().step({name: value["move"] for name, value in actions.items()})

    env = adapt(Complex())
    env.reset()
    speeds = np.arange(6, dtype=np.float32).reshape(3, 2) / 6
    env.step({"move": np.array([0, 1, 2]), "speed": speeds})
    assert [(value["move"], value["speed"].tolist()) for value in env.env.kept.values()] == list(
        zip(range(3), speeds.tolist(), strict=True)
    )


def test_seed_options_and_the_rest_are_passed_through() -> None:
    env = adapt(Party(render_mode="rgb_array"))
    draws = [env.reset(seed=seed, options={"a": 1})[0]["obs"][0, 2] for seed in (5, None, 5, None, 6)]
    assert draws[:2] == draws[2:4]
    assert len(set(draws)) == 3
    assert env.env.options == {"a": 1}
    assert env.render().tolist() == np.zeros((2, 2, 3)).tolist()
    assert (env.render_mode, env.agents, env.state().tolist()) == ("rgb_array", list(NAMES), [0])
    env.close()
    assert env.env.is_closed
    with pytest.raises(AttributeError, match="nothing"):
        _ = env.nothing
    with pytest.raises(AttributeError, match="_nothing"):
        _ = env._nothing


# ---------------------------------------------------------------------- envs that break the rules, or bend them


class Rude(Party):
    """Says less than it should: ``lacking`` names the result that does not know of ``whom``."""

    def __init__(self, lacking: int, whom: str, **options: Any) -> None:
        super().__init__(**options)
        self.lacking = lacking
        self.whom = whom

    def step(self, actions: dict[str, Any]) -> Any:
        results = super().step(actions)
        results[self.lacking].pop(self.whom, None)
        return results


@pytest.mark.parametrize(("lacking", "name"), [(0, "observation"), (1, "reward")])
def test_a_player_who_plays_has_everything(lacking: int, name: str) -> None:
    env = adapt(Rude(lacking, "bob"))
    env.reset()
    with pytest.raises(SpecError, match=rf"player 'bob' plays but has no {name}"):
        env.step(np.zeros(3, int))


@pytest.mark.parametrize("wrong", ["1.0", None, np.zeros(2)], ids=repr)
def test_a_reward_that_is_no_number_names_its_player(wrong: Any) -> None:
    class Generous(Party):
        def step(self, actions: dict[str, Any]) -> Any:
            obs, rewards, *rest = super().step(actions)
            return obs, {**rewards, "bob": wrong}, *rest

    env = adapt(Generous())
    env.reset()
    with pytest.raises(SpecError, match=rf"player 'bob': reward: expected a number, got {type(wrong).__name__}"):
        env.step(np.zeros(3, int))


@pytest.mark.parametrize("lacking", [0, 1, 4])
def test_a_player_who_leaves_need_not(lacking: int) -> None:
    env = adapt(Rude(lacking, "ann", left=(1, 9, 9)))
    env.reset()
    obs, reward, *_ = env.step(np.ones(3, int))
    assert obs["alive"].tolist() == [1, 1, 1]
    assert obs["obs"][0].tolist() == ([0, 0, 0] if lacking == 0 else obs["obs"][1].tolist())
    assert reward == (32 if lacking == 1 else 33)


def test_nobody_leaves_without_a_flag() -> None:
    env = adapt(Rude(2, "ann", left=(1, 9, 9)))
    env.reset()
    with pytest.raises(SpecError, match="'ann' has left without being terminated or truncated"):
        env.step(np.zeros(3, int))


def test_an_env_may_go_on_listing_those_who_left() -> None:
    class Forgetful(Party):
        def step(self, actions: dict[str, Any]) -> Any:
            assert list(actions) == list(NAMES)
            results = super().step(actions)
            self.agents = list(NAMES)
            return results

    env = adapt(Forgetful(left=(1, 9, 9), length=2))
    env.reset()
    assert env.step(np.zeros(3, int))[0]["alive"].tolist() == [1, 1, 1]
    obs, _, terminated, truncated, _ = env.step(np.zeros(3, int))
    assert obs["alive"].tolist() == [0, 1, 1]
    assert (terminated, truncated) == (False, True)


def test_players_must_be_possible() -> None:
    class Stranger(Party):
        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            result = super().reset(seed)
            self.agents = ["zoe"]
            return result

    with pytest.raises(SpecError, match=r"agents \['zoe'\] are not among"):
        adapt(Stranger()).reset()


def test_somebody_must_play() -> None:
    with pytest.raises(SpecError, match="nobody plays"):
        adapt(Party(came=(1, 1, 1))).reset()


def test_a_wrong_observation_names_its_player() -> None:
    env = adapt(with_spaces(spaces.Box(0, 1, (2,), np.float32))())
    with pytest.raises(SpecError, match=r"player 'ann': observation: expected shape \(2,\), got \(3,\)"):
        env.reset()


# ---------------------------------------------------------------------- in a pool


def follow(make: Any, seed: int, actions: list[Any]) -> Iterator[tuple[Any, ...]]:
    """What a pool should say of one env under the next-step rule, from stepping the parallel env itself."""
    env = make()

    def begin(**options: Any) -> tuple[Any, ...]:
        obs, _ = env.reset(**options)
        return obs, {}, {}, {}, list(env.agents)

    row = begin(seed=seed)
    yield row
    for action in actions:
        if not env.agents:
            row = begin()
        else:
            before = list(env.agents)
            results = env.step({name: action[env.possible_agents.index(name)] for name in before})
            joined = [name for name in env.agents if name not in before]
            row = (*results[:4], before + joined)
        yield row


def assert_row(row: Any, expected: Any, names: tuple[str, ...]) -> None:
    """One env's part of an observation in the pool says what the parallel env said."""
    obs, rewards, terminations, truncations, present = expected
    assert row["alive"].tolist() == [name in present for name in names]
    for place, name in enumerate(names):
        if name in present:
            for leaf, value in obs[name].items() if isinstance(obs[name], dict) else [(None, obs[name])]:
                column = row["obs"] if leaf is None else row["obs"][leaf]
                np.testing.assert_array_equal(column[place], value)
        assert row["reward"][place] == rewards.get(name, 0)
        assert row["terminated"][place] == terminations.get(name, False)
        assert row["truncated"][place] == truncations.get(name, False)


def env_of(obs: Any, i: int) -> Any:
    return {key: env_of(part, i) for key, part in obs.items()} if isinstance(obs, dict) else obs[i]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "make", [Party, LEAVING, JOINING, rps.parallel_env], ids=["party", "leaving", "joining", "rps"]
)
def test_a_pool_plays_whole_episodes(make_vec: Any, engine: str, make: Any) -> None:
    envs = make_vec(make, 2, engine=engine)
    names = tuple(make().possible_agents)
    rng = np.random.default_rng(0)
    actions = [rng.integers(0, 3, (2, len(names))) for _ in range(18)]
    expected = [list(follow(make, 7 + i, [action[i] for action in actions])) for i in range(2)]
    obs, _ = envs.reset(seed=7)
    for t in range(len(actions) + 1):
        assert obs in envs.observation_space
        for i in range(2):
            assert_row(env_of(obs, i), expected[i][t], names)
        if t < len(actions):
            obs, reward, terminated, truncated, infos = envs.step(actions[t])
            np.testing.assert_array_equal(reward, obs["reward"].sum(axis=1))
            over = [
                not row[4] or all(row[2].get(n) or row[3].get(n) for n in row[4])
                for row in (e[t + 1] for e in expected)
            ]
            assert (terminated | truncated).tolist() == over
            assert infos["elapsed_step"].shape == (2,)


@pytest.mark.parametrize("engine", ENGINES)
def test_masks_arrive_with_their_players(make_vec: Any, engine: str) -> None:
    envs = make_vec(Masked, 2, engine=engine, env_kwargs={"left": (2, 9, 3), "length": 5})
    obs, _ = envs.reset(seed=0)
    assert obs["obs"]["action_mask"].shape == (2, 3, 4)
    for _ in range(12):
        obs, *_ = envs.step(obs["obs"]["action_mask"].argmax(axis=2))
        assert obs["obs"]["action_mask"].sum(axis=2).tolist() == obs["alive"].tolist()


@pytest.mark.parametrize("engine", ENGINES)
def test_the_last_row_is_kept_under_same_step(make_vec: Any, engine: str) -> None:
    envs = make_vec(Party, 2, engine=engine, autoreset="same_step", env_kwargs={"left": (1, 9, 9), "length": 2})
    envs.reset(seed=0)
    envs.step(np.ones((2, 3), int))
    obs, reward, _, truncated, infos = envs.step(np.ones((2, 3), int))
    assert reward.tolist() == [32, 32]
    assert truncated.all()
    assert obs["alive"].tolist() == [[1, 1, 1]] * 2
    assert [last["alive"].tolist() for last in infos["final_obs"]] == [[0, 1, 1]] * 2
    assert [last["truncated"].tolist() for last in infos["final_obs"]] == [[0, 1, 1]] * 2
    assert infos["final_info"]["bob"]["clock"].tolist() == [2, 2]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_pool_speaks_with_the_envs_themselves(make_vec: Any, engine: str) -> None:
    envs = make_vec(Party, 2, engine=engine, env_kwargs={"render_mode": "rgb_array"})
    envs.reset()
    envs.step(np.zeros((2, 3), int))
    assert [state.tolist() for state in envs.call("state")] == [[1], [1]]
    assert envs.get_attr("agents") == (list(NAMES),) * 2
    envs.set_attr("length", [2, 9])
    assert envs.step(np.zeros((2, 3), int))[3].tolist() == [True, False]
    assert [frame.max() for frame in envs.render()] == [2, 2]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_pool_names_what_differs(make_vec: Any, engine: str) -> None:
    odd = with_spaces([DONE, DONE, spaces.Discrete(5)])
    with pytest.raises(EnvConstructError, match=r"envs? 0.*'ann' has Discrete\(4\) and 'cid' has Discrete\(5\)"):
        make_vec(odd, 2, engine=engine)


def test_a_pool_has_the_same_players_everywhere(make_vec: Any) -> None:
    def others() -> Party:
        env = Party()
        env.possible_agents = ["dan", "eve", "flo"]
        return env

    with pytest.raises(EnvConstructError, match=r"env 1 differs from env 0: its players are \['dan'"):
        make_vec([Party, others], engine="serial")


def test_auto_can_measure_parallel_envs(make_vec: Any) -> None:
    envs = make_vec(Party, 2)
    assert "a step takes" in envs.stats().engine_reason
    assert envs.reset()[0]["alive"].all()
