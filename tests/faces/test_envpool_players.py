"""EnvPool's rows of players: several play in one env, and each has a row of its own."""

from __future__ import annotations

import functools
import pickle
from typing import TYPE_CHECKING, Any

import dm_env
import numpy as np
import parallel_envs
import pytest
from dm_env import specs
from gymnasium import spaces
from parallel_envs import DONE, NAMES, OBSERVED
from pettingzoo.classic.rps import rps

import shoal
from shoal.errors import ActionError, ArgumentError, StateError, WrongDtype

if TYPE_CHECKING:
    from collections.abc import Callable

IDS = np.array([0, 1], np.int32)


class Party(parallel_envs.Party):
    """One guest has more to say."""

    def _report(self) -> dict[str, Any]:
        return {**super()._report(), "lucky": {"number": 7}}


LEAVING = functools.partial(Party, left=(2, 9, 3), length=5)
JOINING = functools.partial(Party, came=(0, 2, 0), length=4)
DRIFTING = functools.partial(Party, drift=True, length=6)


class Masked(Party, parallel_envs.Masked):
    """Masks that are arrays of numbers."""

    MASK = spaces.Box(0, 1, (4,), np.int8)


@pytest.fixture
def make(open_pool: Callable[..., Any]) -> Callable[..., Any]:
    return lambda task_id=Party, env_type="gymnasium", **config: open_pool(
        task_id, env_type, **{"num_envs": 2, **config}
    )


def rows_of(info: Any) -> list[tuple[int, int]]:
    """Env and player of every row."""
    return list(zip(info["players"]["env_id"].tolist(), info["players"]["id"].tolist(), strict=True))


# ---------------------------------------------------------------------- what it is


def test_spaces_are_those_of_one_player(make: Any, env_type: str) -> None:
    pool = make(env_type=env_type)
    assert (pool.observation_space, pool.action_space) == (OBSERVED, DONE)
    spec = shoal.make_spec(Party)
    assert (spec.observation_space, spec.action_space) == (OBSERVED, DONE)
    if env_type == "gymnasium":
        assert (pool.single_observation_space, pool.single_action_space) == (OBSERVED, DONE)


def test_arrays_have_a_row_per_player() -> None:
    spec = shoal.make_spec(Party)
    arrays = {name: (str(array.dtype), array.shape) for name, array in spec.state_array_spec.items()}
    assert arrays == {
        "info:env_id": ("int32", []),
        "info:players.env_id": ("int32", [-1]),
        "elapsed_step": ("int32", []),
        "done": ("bool", []),
        "reward": ("float32", [-1]),
        "discount": ("float32", [-1]),
        "step_type": ("int32", []),
        "trunc": ("bool", []),
        "obs": ("float32", [-1, 3]),
        "info:players.id": ("int32", [-1]),
        "info:players.terminated": ("bool", [-1]),
        "info:players.truncated": ("bool", [-1]),
    }
    assert spec.state_array_spec["info:players.id"].maximum == 2
    assert {name: array.shape for name, array in spec.action_array_spec.items()} == {
        "env_id": [],
        "players.env_id": [-1],
        "action": [-1],
    }


def test_dm_specs_are_those_of_one_player(make: Any) -> None:
    pool = make(Masked, "dm")
    state = pool.observation_spec()
    assert state._fields == ("env_id", "players", "action_mask", "observation")
    assert state.players._fields == ("env_id", "id", "terminated", "truncated")
    assert state.observation.shape == (3,)
    assert state.action_mask.shape == (4,)
    assert isinstance(pool.action_spec(), specs.DiscreteArray)
    assert pool.action_spec().num_values == 4


def test_the_number_of_players_is_in_the_config(make: Any) -> None:
    assert make().config["max_num_players"] == 3
    assert make().spec.config.max_num_players == 3
    assert shoal.make_spec(Party).config.max_num_players == 3
    assert shoal.make_spec(Party).gen_config().max_num_players == 3
    pool = make(max_num_players=5)
    assert pool.config["max_num_players"] == pool.spec.config.max_num_players == 5
    assert pool.reset()[0].shape == (6, 3)
    assert "max_num_players=3" in repr(make())


def test_fewer_players_than_there_are_is_an_error() -> None:
    with pytest.raises(ArgumentError, match=r"max_num_players: Party has 3 players, got 2"):
        shoal.make(Party, num_envs=2, engine="process", max_num_players=2)
    with pytest.raises(ArgumentError, match="max_num_players"):
        _ = shoal.make_spec(Party, max_num_players=1).config


def test_a_spec_makes_the_pool_again(make: Any) -> None:
    pool = make(pickle.loads(pickle.dumps(make(Party, length=3, max_num_players=4).spec)))
    assert pool.config["max_num_players"] == 4
    assert pool.config["length"] == 3
    assert pool.reset()[0].shape == (6, 3)


def test_whole_numbers_are_int32(make: Any) -> None:
    obs, _ = make(rps.parallel_env, max_cycles=3).reset()
    assert (obs.tolist(), obs.dtype) == ([3, 3, 3, 3], np.int32)


def test_registered_parallel_envs_have_a_task_id(make: Any) -> None:
    shoal.register("PlayersParty-v0", Party, length=2)
    pool = make("PlayersParty-v0", left=(1, 9, 9))
    assert type(pool).__name__ == "PlayersPartyGymnasiumEnvPool"
    pool.reset()
    pool.step(np.zeros(6, int))
    assert pool.step(np.zeros(4, int))[3].tolist() == [True, True]


def test_players_do_not_enter_jax(make: Any) -> None:
    with pytest.raises(StateError, match="xla"):
        make().xla()


# ---------------------------------------------------------------------- rows


def test_results_have_envpools_types(make: Any) -> None:
    pool = make()
    obs, info = pool.reset()
    assert (obs.shape, obs.dtype) == ((6, 3), np.float32)
    assert info.keys() == {"env_id", "players", "elapsed_step"}
    assert info["players"].keys() == {"env_id", "id", "terminated", "truncated"}
    assert rows_of(info) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    obs, reward, terminated, truncated, info = pool.step(np.array([0, 1, 2, 3, 0, 1]))
    assert (obs[:, 1].tolist(), obs.flags.c_contiguous, obs.flags.writeable) == ([0, 1, 2, 3, 0, 1], True, True)
    assert (reward.tolist(), reward.dtype) == ([0, 11, 22, 3, 10, 21], np.float32)
    for flags in (terminated, truncated):
        assert (flags.tolist(), flags.dtype) == ([False, False], np.bool_)
    for name, dtype in (("env_id", np.int32), ("id", np.int32), ("terminated", np.bool_), ("truncated", np.bool_)):
        assert (info["players"][name].shape, info["players"][name].dtype) == ((6,), dtype)
    assert info["elapsed_step"].tolist() == [1, 1]
    assert info["env_id"].tolist() == [0, 1]


def test_players_leave_with_a_last_row(make: Any) -> None:
    pool = make(LEAVING, num_envs=1)
    pool.reset()
    seen = []
    for count in (3, 3, 3, 2, 1, 1):
        _, _, terminated, truncated, info = pool.step(np.zeros(count, int))
        players = info["players"]
        left = players["id"][players["terminated"] | players["truncated"]]
        seen.append((players["id"].tolist(), left.tolist(), bool(terminated[0]), bool(truncated[0])))
    assert seen == [
        ([0, 1, 2], [], False, False),
        ([0, 1, 2], [0], False, False),
        ([1, 2], [2], False, False),
        ([1], [], False, False),
        ([1], [1], False, True),
        ([0, 1, 2], [], False, False),
    ]


def test_players_join(make: Any) -> None:
    pool = make(JOINING, num_envs=1)
    assert rows_of(pool.reset()[1]) == [(0, 0), (0, 2)]
    assert rows_of(pool.step([1, 2])[-1]) == [(0, 0), (0, 2)]
    obs, *_, info = pool.step([1, 2])
    assert rows_of(info) == [(0, 0), (0, 1), (0, 2)]
    assert obs[:, 1].tolist() == [1, 0, 2]
    assert pool.step([1, 2, 3])[1].tolist() == [1, 12, 23]


def test_classic_gym_has_player_rows_too(make: Any) -> None:
    pool = make(LEAVING, "gym", num_envs=1)
    assert pool.reset().shape == (3, 3)
    for count in (3, 3, 3, 2, 1):
        obs, reward, done, info = pool.step(np.zeros(count, int))
        assert len(obs) == len(reward) == len(info["players"]["id"])
    assert done.tolist() == info["TimeLimit.truncated"].tolist() == [True]


def test_dm_discounts_are_those_of_the_players(make: Any) -> None:
    pool = make(LEAVING, "dm", num_envs=1)
    step = pool.reset()
    assert isinstance(step, dm_env.TimeStep)
    assert (step.step_type.tolist(), step.reward.tolist(), step.discount.tolist()) == ([0], [0, 0, 0], [1, 1, 1])
    seen = []
    for count in (3, 3, 3, 2, 1):
        step = pool.step(np.zeros(count, int))
        assert step.discount.dtype == np.float32
        assert step.observation.obs.shape == (len(step.discount), 3)
        seen.append((step.step_type.tolist(), step.observation.players.id.tolist(), step.discount.tolist()))
    assert seen == [
        ([1], [0, 1, 2], [1, 1, 1]),
        ([1], [0, 1, 2], [0, 1, 1]),
        ([1], [1, 2], [1, 0]),
        ([1], [1], [1]),
        ([2], [1], [0]),
    ]


def test_a_time_limit_cuts_everybody_short(make: Any) -> None:
    pool = make(Party, max_episode_steps=2, left=(9, 2, 9))
    pool.reset()
    pool.step(np.zeros(6, int))
    _, _, terminated, truncated, info = pool.step(np.zeros(6, int))
    assert (terminated.tolist(), truncated.tolist()) == ([False] * 2, [True] * 2)
    assert info["players"]["terminated"].tolist() == [False, True, False] * 2
    assert info["players"]["truncated"].tolist() == [True, False, True] * 2
    assert pool.step(np.zeros(6, int))[-1]["elapsed_step"].tolist() == [0, 0]


def test_what_players_report_is_in_their_rows(make: Any) -> None:
    pool = make(LEAVING)
    assert "clock" not in pool.reset()[1]["players"]
    for count in (6, 6, 6):
        players = pool.step(np.zeros(count, int))[-1]["players"]
    assert players["id"].tolist() == [1, 2, 1, 2]
    assert players["clock"].tolist() == [3, 0, 3, 0]
    assert players["lucky"]["number"].tolist() == [7, 0, 7, 0]


def test_reports_do_not_hide_whose_they_are(make: Any) -> None:
    class Liar(Party):
        def step(self, actions: dict[str, Any]) -> Any:
            *rest, _ = super().step(actions)
            everybody = {name: {"id": 77, "own": 1} for name in NAMES}
            return (*rest, {**everybody, "weather": "fine", "env_id": 5})

    pool = make(Liar, left=(1, 9, 9))
    pool.reset()
    pool.step(np.zeros(6, int))
    *_, info = pool.step(np.zeros(6, int))
    assert rows_of(info) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert info["players"]["own"].tolist() == [1, 1, 1, 1]
    assert info["env_id"].tolist() == [0, 1]
    assert info["weather"].tolist() == ["fine", "fine"]


def test_last_observations_have_a_row_per_player_under_same_step(make: Any) -> None:
    pool = make(Party, autoreset="same_step", left=(1, 9, 2), length=2)
    pool.reset()
    pool.step(np.zeros(6, int))
    obs, reward, terminated, truncated, info = pool.step([3, 2, 1, 3, 2, 1])
    assert rows_of(info) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert obs[:, :2].tolist() == [[0, 0]] * 6
    assert reward.tolist() == [0, 12, 21] * 2
    assert (terminated & truncated).all()
    assert info["players"]["terminated"].tolist() == [False, False, True] * 2
    assert info["players"]["truncated"].tolist() == [False, True, False] * 2
    assert info["_final_obs"].tolist() == [False, True, True] * 2
    assert info["final_obs"][:, :2].tolist() == [[0, 0], [2, 2], [2, 1]] * 2
    assert info["final_info"]["clock"].tolist() == [0, 2, 0] * 2
    assert pool.step([3, 2, 1, 3, 2, 1])[1].tolist() == [3, 12, 21] * 2


def test_a_limit_cuts_short_under_same_step(make: Any) -> None:
    pool = make(Party, autoreset="same_step", max_episode_steps=1)
    pool.reset()
    *_, info = pool.step([1] * 6)
    assert info["players"]["truncated"].tolist() == [True] * 6
    # They all play on, in the next episode.
    with pytest.raises(ActionError, match="got 0"):
        pool.step([])
    assert pool.step([1] * 6)[0].shape == (6, 3)


def test_who_does_not_begin_again_has_a_last_row_under_same_step(make: Any) -> None:
    pool = make(JOINING, autoreset="same_step", num_envs=1)
    pool.reset()
    for count in (2, 2, 3):
        pool.step([1] * count)
    obs, reward, _, truncated, info = pool.step([1, 2, 3])
    assert truncated.all()
    assert rows_of(info) == [(0, 0), (0, 1), (0, 2)]
    assert reward.tolist() == [1, 12, 23]
    assert info["players"]["truncated"].all()
    assert info["final_obs"][:, :2].tolist() == [[4, 1], [4, 2], [4, 3]]
    assert obs[1].tolist() == [0, 0, 0]
    # One of the three rows is of a player who is not there any more.
    assert pool.step([1, 3])[0][:, 1].tolist() == [1, 3]


def test_without_autoreset_the_caller_resets(make: Any) -> None:
    pool = make(Party, autoreset="disabled", length=1)
    pool.reset()
    pool.step([1] * 6)
    with pytest.raises(StateError, match="autoreset"):
        pool.step([1] * 6)
    assert rows_of(pool.reset(np.array([1]))[1]) == [(1, 0), (1, 1), (1, 2)]
    assert pool.step([1, 2, 3], [1])[0][:, 1].tolist() == [1, 2, 3]


# ---------------------------------------------------------------------- actions


def started(make: Any, **config: Any) -> Any:
    """Two envs, in which the first player has just left: three rows each, two players to act."""
    pool = make(Party, left=(1, 9, 9), length=9, **config)
    pool.reset()
    pool.step(np.zeros(6, int))
    return pool


def ids(*values: int) -> Any:
    return np.array(values, np.int32)


ACTS = np.array([3, 1, 2, 3, 0, 1], np.int32)
KEPT = np.array([1, 2, 0, 1], np.int32)


@pytest.mark.parametrize(
    "action",
    [
        ACTS,
        ACTS.astype(np.int64),
        ACTS + 0.5,
        ACTS.tolist(),
        KEPT,
        KEPT.tolist(),
        {"action": ACTS},
        {"action": KEPT},
        {"action": ACTS, "env_id": IDS},
        {"action": ACTS, "players.env_id": ids(0, 0, 0, 1, 1, 1)},
        {"action": KEPT, "players": {"env_id": ids(0, 0, 1, 1)}},
        {"action": ids(3, 1, 2, 0, 1), "env_id": IDS, "players.env_id": ids(0, 0, 0, 1, 1)},
        {"action": ids(0, 1, 1, 2), "env_id": IDS, "players.env_id": ids(1, 0, 1, 0)[[0, 2, 1, 3]]},
        {"action": KEPT, "players.env_id": ids(0, 0, 1, 1), "players.id": ids(1, 2, 1, 2)},
        {"action": ids(1, 2, 1, 0), "players": {"env_id": ids(1, 0, 0, 1), "id": ids(2, 2, 1, 1)}},
        {"action": ACTS, "players": {"env_id": ids(0, 0, 0, 1, 1, 1), "id": ids(0, 1, 2, 0, 1, 2)}},
    ],
    ids=str,
)
def test_every_form_reaches_the_same_players(make: Any, action: Any) -> None:
    pool = started(make)
    obs, *_, info = pool.step(action)
    assert rows_of(info) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert obs[:, 1].tolist() == [1, 2, 0, 1]
    pool = started(make)
    pool.send(action)
    assert pool.recv()[0][:, 1].tolist() == [1, 2, 0, 1]


def test_the_players_of_the_info_can_be_sent_back(make: Any) -> None:
    pool = make(DRIFTING, num_envs=3)
    _, info = pool.reset()
    for t in range(20):
        action = (info["players"]["id"] + t) % 4
        obs, *_, info = pool.step({"action": action, "env_id": info["env_id"], "players": info["players"]})
        moved = obs[:, 0] > 1
        assert obs[moved, 1].tolist() == ((info["players"]["id"] + t) % 4)[moved].tolist()


@pytest.mark.parametrize("order", [[1, 0], np.array([1, 0]), IDS[::-1]], ids=str)
def test_rows_come_in_the_order_of_the_ids(make: Any, order: Any) -> None:
    pool = started(make)
    obs, *_, info = pool.step(ACTS, order)
    assert info["env_id"].tolist() == [1, 0]
    assert rows_of(info) == [(1, 1), (1, 2), (0, 1), (0, 2)]
    assert obs[:, 1].tolist() == [1, 2, 0, 1]


def test_some_envs_step_alone(make: Any) -> None:
    pool = started(make)
    obs, _, terminated, _, info = pool.step([3, 1, 2], [1])
    assert (rows_of(info), obs[:, 1].tolist(), terminated.shape) == ([(1, 1), (1, 2)], [1, 2], (1,))
    # Env 0 still has three rows of its last batch, env 1 now two.
    obs, *_, info = pool.step([3, 1, 2, 0, 1])
    assert obs[:, 1].tolist() == [1, 2, 0, 1]
    assert info["elapsed_step"].tolist() == [2, 3]


def test_one_action_per_env_where_one_player_is_left(make: Any) -> None:
    pool = make(Party, left=(1, 9, 1), length=9)
    pool.reset()
    pool.step([0] * 6)
    assert pool.step([2, 3])[0][:, 1].tolist() == [2, 3]
    assert pool.step({"action": ids(1, 2), "players.env_id": IDS})[0][:, 1].tolist() == [1, 2]
    assert pool.step(3, [1])[0][:, 1].tolist() == [3]


@pytest.mark.parametrize("count", [6, 2, 0])
def test_the_first_step_is_a_reset(make: Any, env_type: str, count: int) -> None:
    pool = make(Party, env_type)
    result = pool.step(np.zeros(count, int))
    assert result[1].tolist() == [0] * 6
    pool.step(np.ones(6, int))


def test_actions_for_ended_episodes_may_be_left_out(make: Any) -> None:
    pool = make(Party, length=1)
    pool.reset()
    for count in (6, 6, 6, 0, 6, 2, 6):
        *_, info = pool.step(np.zeros(count, np.int64))
    assert info["elapsed_step"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("action", "env_id", "message"),
    [
        (np.zeros(5, int), None, r"expected 6 actions.*these 2 envs \(or 4.*got 5.*players.env_id"),
        (np.zeros(2, int), None, "expected 6 actions.*got 2"),
        (np.zeros(7, int), None, "got 7"),
        (1, None, "got 1"),
        (np.zeros((6, 1), int), None, r"expected shape \(6,\)"),
        (np.full(6, 4), None, "outside"),
        (np.full(6, -1), None, "outside"),
        ([0, 0, 0, 0, 0, None], None, "action"),
        (np.full(6, np.nan), None, "whole numbers"),
        (ACTS[:3], [2], "out of range"),
        (ACTS, [0, 0], "more than once"),
        ({"action": ACTS[:3], "players.env_id": ids(0, 0, 0)}, [1], r"envs \[0\] are not among"),
        ({"action": ACTS, "players.env_id": ids(0, 0, 0, 1, 1, 9)}, None, r"envs \[9\] are not among"),
        ({"action": ACTS, "players.env_id": ids(0, 0, 0, 1, 1, -1)}, None, r"envs \[-1\] are not among"),
        ({"action": ACTS, "players.env_id": ids(0, 0, 0, 0, 1, 1)}, None, "env 0 has 3 players.*2 play on, got 4"),
        ({"action": ACTS, "players.env_id": ids(0, 0, 0)}, None, "expected 6 ints"),
        ({"action": ACTS, "players.env_id": [0.5] * 6}, None, "expected 6 ints"),
        ({"action": KEPT, "players.id": ids(1, 2, 1, 2)}, None, "players.env_id is missing"),
        ({"action": KEPT, "players": {"env_id": ids(0, 0, 1, 1), "id": ids(1, 2, 1, 3)}}, None, "players 0 to 2"),
        ({"action": KEPT, "players": {"env_id": ids(0, 0, 1, 1), "id": ids(1, 1, 1, 2)}}, None, "2 of env 0 has no"),
        (
            {"action": ACTS, "players": {"env_id": ids(0, 0, 0, 1, 1, 1), "id": ids(0, 1, 2, 1, 1, 2)}},
            None,
            "1 of env 1 has more than one",
        ),
        ({"env_id": IDS}, None, "no 'action'"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_before_anything_moves(make: Any, action: Any, env_id: Any, message: str) -> None:
    pool = started(make)
    with pytest.raises(ActionError, match=message):
        pool.step(action, env_id)
    with pytest.raises(ActionError, match=message):
        pool.send(action, env_id)
    assert pool.step(ACTS)[-1]["elapsed_step"].tolist() == [2, 2]


@pytest.mark.parametrize("name", ["action", "env_id", "players.env_id", "players.id"])
def test_types_in_a_dict_are_exact(make: Any, name: str) -> None:
    action = {"action": KEPT, "env_id": IDS, "players.env_id": ids(0, 0, 1, 1), "players.id": ids(1, 2, 1, 2)}
    pool = started(make)
    with pytest.raises(WrongDtype, match=name):
        pool.step({**action, name: action[name].astype(np.int64)})
    pool.step(action)


class Swimmer(Party):
    """Actions are continuous and nested."""

    @functools.cache  # noqa: B019
    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Dict({"arm": spaces.Box(1, 2, (2,), np.float32), "leg": spaces.Discrete(3, start=2)})

    def step(self, actions: dict[str, Any]) -> Any:
        return super().step({name: action["arm"].sum() + action["leg"] for name, action in actions.items()})


def test_nested_actions(make: Any) -> None:
    pool = make(Swimmer, num_envs=1, left=(1, 9, 9))
    pool.reset()
    arm, leg = np.array([[1, 1], [1.5, 1], [9, 9]], np.float32), ids(2, 3, 4)
    assert pool.step({"arm": arm, "leg": leg})[0][:, 1].tolist() == [4, 5.5, 22]
    assert pool.step({"action": {"arm": arm, "leg": leg}})[0][:, 1].tolist() == [5.5, 22]
    together = {"arm": arm[1:], "leg": leg[1:], "players.env_id": ids(0, 0)}
    assert pool.step(together)[0][:, 1].tolist() == [5.5, 22]
    with pytest.raises(ActionError, match="leg"):
        pool.step({"arm": arm[1:], "leg": leg})
    with pytest.raises(ActionError, match="arm"):
        pool.step({"leg": leg[1:]})


# ---------------------------------------------------------------------- whole episodes


class Follower:
    """One parallel env, stepped directly, under EnvPool's rule that the step after the last is a reset."""

    def __init__(self, make: Callable[[], Any], seed: int) -> None:
        self.env = make()
        self.names = tuple(self.env.possible_agents)
        self.rows = self._begin(seed=seed)

    def _begin(self, **options: Any) -> list[tuple[Any, ...]]:
        obs, _ = self.env.reset(**options)
        return [(k, obs[name], 0.0, False, False) for k, name in enumerate(self.names) if name in self.env.agents]

    def step(self, action_of: dict[int, Any]) -> list[tuple[Any, ...]]:
        """Rows ``(player, obs, reward, terminated, truncated)``."""
        if not self.env.agents:
            self.rows = self._begin()
            return self.rows
        before = list(self.env.agents)
        actions = {name: action_of[self.names.index(name)] for name in before}
        obs, rewards, terminated, truncated, _ = self.env.step(actions)
        present = {*before, *self.env.agents}
        self.rows = [
            (k, obs[name], rewards[name], terminated[name], truncated[name])
            for k, name in enumerate(self.names)
            if name in present
        ]
        return self.rows


def part(obs: Any, chosen: Any) -> Any:
    return {key: value[chosen] for key, value in obs.items()} if isinstance(obs, dict) else obs[chosen]


def choose(obs: Any, t: int) -> Any:
    """An action for each row, of what it sees and of its place."""
    if isinstance(obs, dict):
        return obs["action_mask"].argmax(axis=1)
    return (np.arange(len(obs)) * 2 + t + np.atleast_2d(obs.T)[-1].astype(int)) % 3


def compare(obs: Any, reward: Any, info: Any, followers: dict[int, Follower]) -> None:
    players = info["players"]
    for env_id in info["env_id"].tolist():
        rows = np.flatnonzero(players["env_id"] == env_id)
        expected = followers[env_id].rows
        assert players["id"][rows].tolist() == [row[0] for row in expected]
        for row, (_, seen, earned, terminated, truncated) in zip(rows, expected, strict=True):
            mine = part(obs, row)
            for a, b in ((mine[k], seen[k]) for k in seen) if isinstance(seen, dict) else [(mine, seen)]:
                np.testing.assert_array_equal(a, b)
            assert reward[row] == np.float32(earned)
            assert (players["terminated"][row], players["truncated"][row]) == (terminated, truncated)


def play(pool: Any, make: Callable[[], Any], seed: int, steps: int) -> None:
    """Play with send and recv, and compare every row with what stepping the envs directly gives."""
    followers = {i: Follower(make, seed + i) for i in range(pool.num_envs)}
    pool.async_reset()
    episodes = 0
    for t in range(steps):
        obs, reward, terminated, truncated, info = pool.recv()
        compare(obs, reward, info, followers)
        episodes += int((terminated | truncated).sum())
        action, players = choose(obs, t), info["players"]
        pool.send(action, info["env_id"])
        for env_id in info["env_id"].tolist():
            mine = players["env_id"] == env_id
            rows = followers[env_id].rows
            is_over = all(row[3] or row[4] for row in rows)
            assert bool((terminated | truncated)[info["env_id"] == env_id][0]) == is_over
            followers[env_id].step(dict(zip(players["id"][mine].tolist(), action[mine].tolist(), strict=True)))
    assert episodes >= 2


KINDS: dict[str, Any] = {
    "fixed": Party,
    "leaving": LEAVING,
    "joining": JOINING,
    "drifting": DRIFTING,
    "masked": functools.partial(Masked, left=(2, 9, 3), length=5),
    "rps": functools.partial(rps.parallel_env, max_cycles=4),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_size", [3, 2], ids=["sync", "async"])
def test_whole_episodes_are_those_of_the_envs(make: Any, kind: str, batch_size: int) -> None:
    play(make(KINDS[kind], num_envs=3, batch_size=batch_size, seed=11), KINDS[kind], 11, 40)


@pytest.mark.parametrize("engine", ["thread", "process"])
@pytest.mark.parametrize("batch_size", [3, 2], ids=["sync", "async"])
def test_on_other_engines_too(make: Any, engine: str, batch_size: int) -> None:
    play(make(DRIFTING, num_envs=3, batch_size=batch_size, seed=11, engine=engine), DRIFTING, 11, 40)


def test_a_plain_loop_gets_the_same(make: Any) -> None:
    pool = make(DRIFTING, num_envs=3, seed=5)
    followers = {i: Follower(DRIFTING, 5 + i) for i in range(3)}
    obs, info = pool.reset()
    compare(obs, np.zeros(len(obs)), info, followers)
    for t in range(40):
        action, players = choose(obs, t), info["players"]
        obs, reward, _, _, info = pool.step(action)
        for i, follower in followers.items():
            mine = players["env_id"] == i
            follower.step(dict(zip(players["id"][mine].tolist(), action[mine].tolist(), strict=True)))
        compare(obs, reward, info, followers)


def test_resets_of_some_envs(make: Any) -> None:
    pool = started(make)
    obs, info = pool.reset(np.array([1]))
    assert (rows_of(info), obs[:, 0].tolist()) == ([(1, 0), (1, 1), (1, 2)], [0, 0, 0])
    obs, *_, info = pool.step([1, 2, 1, 2, 3])
    assert rows_of(info) == [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert obs[:, 1].tolist() == [1, 2, 1, 2, 3]
    obs, info = pool.reset(options={"reset_mask": np.array([True, False])}, seed=3)
    assert obs[:, 2].tolist() == [np.random.default_rng(3).integers(1000)] * 3


def test_sends_may_be_ahead(make: Any) -> None:
    pool = make(Party, left=(9, 1, 9), length=3)
    pool.async_reset()
    pool.send([1, 2, 3, 1, 2, 3])
    pool.send([3, 2, 1, 3, 2, 1])
    assert pool.recv(reset=True)[0].shape == (6, 3)
    assert pool.recv()[0][:, 1].tolist() == [1, 2, 3] * 2
    assert pool.recv()[0][:, 1].tolist() == [3, 1] * 2
    # The first of these ends the episode, the second is for players of whom nothing else is known yet.
    pool.send([1, 1, 1, 1])
    pool.send([1, 1, 1, 1])
    assert pool.recv()[3].all()
    assert pool.recv()[-1]["elapsed_step"].tolist() == [0, 0]
    pool.send([1, 2, 3, 1, 2, 3])
    assert pool.recv()[0][:, 1].tolist() == [1, 2, 3] * 2


def test_a_reset_under_way_is_for_everybody(make: Any) -> None:
    pool = started(make)
    pool.async_reset()
    with pytest.raises(ActionError, match="got 4"):
        pool.send(KEPT)
    pool.send([1, 2, 3, 1, 2, 3])
    pool.recv(reset=True)
    assert pool.recv()[0][:, 1].tolist() == [1, 2, 3] * 2


def test_after_an_ended_episode_a_second_send_is_for_everybody(make: Any) -> None:
    pool = make(Party, length=1)
    pool.reset()
    pool.step([0] * 6)
    pool.send([])
    with pytest.raises(ActionError, match="got 2"):
        pool.send([1, 2])
    pool.send([1, 2, 3, 1, 2, 3])
    assert pool.recv()[-1]["elapsed_step"].tolist() == [0, 0]
    assert pool.recv()[0][:, 1].tolist() == [1, 2, 3] * 2


def test_an_env_that_failed_goes_on_after_its_reset(make: Any) -> None:
    class Fragile(Party):
        def step(self, actions: dict[str, Any]) -> Any:
            if self.clock == 1 and actions["ann"] == 3:
                raise RuntimeError("broken")
            return super().step(actions)

    pool = make(Fragile)
    pool.reset()
    pool.step([0] * 6)
    with pytest.raises(shoal.errors.EnvStepError, match="broken"):
        pool.step([3, 0, 0, 0, 0, 0])
    pool.reset()
    assert pool.step([1, 2, 3, 1, 2, 3])[0][:, 1].tolist() == [1, 2, 3] * 2
