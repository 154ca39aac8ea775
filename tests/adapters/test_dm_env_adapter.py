"""dm_env environments behave as Gymnasium envs, alone and in a pool."""

from __future__ import annotations

import re
import warnings
from typing import Any, NamedTuple

import dm_env
import numpy as np
import pytest
from dm_env import specs
from gymnasium import spaces

import shoal
from shoal.adapters import adapt, describe
from shoal.adapters.dm_env import DmEnvAdapter, space_of
from shoal.errors import EnvConstructError, EnvStepError, MissingAttribute, SpecError
from shoal.testing import CountingEnv

ENGINES = ("serial", "thread", "process")


class Walk(dm_env.Environment):
    """A walk on a line that ends at a wall (discount 0) or, with an even number of steps, out of time (discount 1).

    The observation says where it is, how many steps were taken and what was drawn at the reset. Actions are checked
    against the env's own spec, as strict dm_env environments do.
    """

    def __init__(self, length: int = 4, wall: int = 3, strict: bool = False) -> None:
        self.length = length
        self.wall = wall
        self.strict = strict
        self.is_closed = False
        self._rng = np.random.default_rng(0)
        self._place = self._steps = self._draw = 0

    def seed(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def reset(self) -> dm_env.TimeStep:
        self._place = self._steps = 0
        self._draw = int(self._rng.integers(1000))
        return dm_env.restart(self._observation())

    def step(self, action: Any) -> dm_env.TimeStep:
        if self.strict:
            self.action_spec().validate(action)
        self._steps += 1
        self._place += int(action) - 1
        if abs(self._place) >= self.wall:
            return dm_env.termination(1.0, self._observation())
        if self._steps >= self.length:
            return dm_env.truncation(0.5, self._observation())
        return dm_env.transition(0.25, self._observation(), discount=0.9)

    def observation_spec(self) -> Any:
        return {
            "place": specs.BoundedArray((1,), np.float32, -self.wall, self.wall, "place"),
            "steps": specs.DiscreteArray(self.length + 1, name="steps"),
            "draw": specs.Array((), np.int64, "draw"),
        }

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(3, name="action")

    def close(self) -> None:
        self.is_closed = True

    def _observation(self) -> dict[str, Any]:
        return {
            "place": np.array([self._place], np.float32),
            "steps": np.array(self._steps, np.int32),
            "draw": np.array(self._draw),
        }


class SeededAtReset(Walk):
    """Takes its seed in ``reset`` and nowhere else."""

    seed = None  # type: ignore[assignment]

    def reset(self, seed: int | None = None) -> dm_env.TimeStep:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        return super().reset()


class ControlTask:
    """What of a dm_control task matters here: its private generator."""

    def __init__(self) -> None:
        self._random = np.random.RandomState(0)


class ControlLike(Walk):
    """Draws from its task's generator, as dm_control's environments do."""

    seed = None  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.task = ControlTask()

    def reset(self) -> dm_env.TimeStep:
        step = super().reset()
        self._draw = int(self.task._random.randint(1000))
        return step._replace(observation=self._observation())


class Duck:
    """Has dm_env's methods without its base class."""

    def __init__(self) -> None:
        inner = Walk()
        self.reset, self.step, self.close = inner.reset, inner.step, inner.close
        self.observation_spec, self.action_spec = inner.observation_spec, inner.action_spec


# ---------------------------------------------------------------------- spaces


@pytest.mark.parametrize(
    ("spec", "space"),
    [
        (specs.DiscreteArray(4), spaces.Discrete(4)),
        (specs.Array((2,), np.float32), spaces.Box(-np.inf, np.inf, (2,), np.float32)),
        (specs.Array((), np.float64), spaces.Box(-np.inf, np.inf, (), np.float64)),
        (specs.Array((2, 3), np.uint8), spaces.Box(0, 255, (2, 3), np.uint8)),
        (specs.Array((1,), np.int16), spaces.Box(-(2**15), 2**15 - 1, (1,), np.int16)),
        (specs.Array((2,), np.bool_), spaces.Box(0, 1, (2,), np.uint8)),
        (specs.BoundedArray((2,), np.float32, -1, 1), spaces.Box(-1, 1, (2,), np.float32)),
        (
            specs.BoundedArray((2,), np.float32, [-1, -2], [1, 2]),
            spaces.Box(np.array([-1, -2], np.float32), np.array([1, 2], np.float32)),
        ),
        ({"a": specs.DiscreteArray(2)}, spaces.Dict({"a": spaces.Discrete(2)})),
        ([specs.DiscreteArray(2), specs.DiscreteArray(3)], spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3)))),
        (
            {"a": (specs.DiscreteArray(2), {"b": specs.Array((1,), np.int8)})},
            spaces.Dict(
                {"a": spaces.Tuple((spaces.Discrete(2), spaces.Dict({"b": spaces.Box(-128, 127, (1,), np.int8)})))}
            ),
        ),
    ],
    ids=repr,
)
def test_specs_become_spaces(spec: Any, space: spaces.Space[Any]) -> None:
    assert space_of(spec) == space


def test_a_spec_no_space_can_describe_is_refused() -> None:
    with pytest.raises(SpecError, match=r"StringArray.*no space can describe"):
        space_of(specs.StringArray((1,), name="words"))


# ---------------------------------------------------------------------- adapting


@pytest.mark.parametrize("env_class", [Walk, Duck])
def test_dm_envs_are_recognized(env_class: Any) -> None:
    assert isinstance(adapt(env_class()), DmEnvAdapter)


def test_gymnasium_envs_are_left_alone() -> None:
    env = CountingEnv()
    assert adapt(env) is env


def test_what_is_neither_is_refused() -> None:
    with pytest.raises(SpecError, match="object is no env: it has neither"):
        adapt(object())


def test_an_adapted_env_can_be_described() -> None:
    spec = describe(adapt(Walk()), "walk")
    assert spec.id == "walk"
    assert spec.action.space == spaces.Discrete(3)
    assert sorted(leaf.path for leaf in spec.observation.leaves) == [
        "observation['draw']",
        "observation['place']",
        "observation['steps']",
    ]
    assert (spec.render_mode, spec.registered) == (None, None)


# ---------------------------------------------------------------------- stepping


def test_a_reset_gives_an_observation_of_the_space() -> None:
    env = adapt(Walk())
    obs, info = env.reset(seed=1)
    assert obs in env.observation_space
    assert info == {}


def test_a_step_carries_reward_and_discount() -> None:
    env = adapt(Walk())
    env.reset(seed=1)
    obs, reward, terminated, truncated, info = env.step(2)
    assert (obs["place"].tolist(), int(obs["steps"])) == ([1.0], 1)
    assert (reward, terminated, truncated) == (0.25, False, False)
    assert info == {"discount": 0.9}


@pytest.mark.parametrize(
    ("action", "steps", "reward", "terminated", "discount"), [(2, 3, 1.0, True, 0.0), (1, 4, 0.5, False, 1.0)]
)
def test_the_discount_of_the_last_step_tells_the_kind_of_ending(
    action: int, steps: int, reward: float, terminated: bool, discount: float
) -> None:
    env = adapt(Walk())
    env.reset(seed=1)
    for _ in range(steps - 1):
        assert env.step(action)[2:4] == (False, False)
    assert env.step(action)[1:] == (reward, terminated, not terminated, {"discount": discount})


def test_types_are_those_of_the_step_contract() -> None:
    env = adapt(Walk())
    env.reset()
    _, reward, terminated, truncated, _ = env.step(0)
    assert [type(value) for value in (reward, terminated, truncated)] == [float, bool, bool]


class Careless(Walk):
    """Its steps have something else than they should."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self.changes = changes

    def step(self, action: Any) -> dm_env.TimeStep:
        return super().step(action)._replace(**self.changes)


@pytest.mark.parametrize("wrong", ["1.0", np.zeros(2), [0.0]], ids=repr)
@pytest.mark.parametrize("name", ["reward", "discount"])
def test_what_is_no_number_is_named(name: str, wrong: Any) -> None:
    env = adapt(Careless(**{name: wrong}))
    env.reset()
    with pytest.raises(SpecError, match=f"{name}: expected a number, got {type(wrong).__name__}"):
        env.step(1)


@pytest.mark.parametrize("number", [np.float32(0.5), np.array(0.5), 1, True], ids=repr)
def test_numbers_of_all_kinds_are_rewards(number: Any) -> None:
    env = adapt(Careless(reward=number))
    env.reset()
    reward = env.step(1)[1]
    assert (type(reward), reward) == (float, float(number))


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ({"place": np.zeros(1, np.float32)}, r"observation: keys do not match: missing \['draw', 'steps'\]"),
        (np.zeros(1), "observation: expected a dict with keys"),
        (None, "observation: expected a dict with keys"),
    ],
    ids=["keys", "array", "none"],
)
def test_an_observation_of_another_structure_is_explained(observation: Any, message: str) -> None:
    with shoal.make_vec(lambda: Careless(observation=observation), 2, engine="serial") as envs:
        envs.reset(seed=1)
        with pytest.raises(EnvStepError, match=message):
            envs.step(np.ones(2, np.int64))


@pytest.mark.parametrize("env_class", [Walk, SeededAtReset, ControlLike])
def test_a_seed_reaches_the_env(env_class: Any) -> None:
    env = adapt(env_class())
    draws = [int(env.reset(seed=seed)[0]["draw"]) for seed in (5, None, 5, None, 6)]
    assert draws[:2] == draws[2:4]
    assert len(set(draws)) == 3


class Unseeded(Walk):
    """Has no way to take a seed."""

    seed = None  # type: ignore[assignment]


def test_a_seed_that_no_env_can_take_is_told_once() -> None:
    with warnings.catch_warnings(record=True) as told, shoal.make_pool(Unseeded, 3, engine="serial") as pool:
        warnings.simplefilter("default")
        pool.reset()
        assert told == []
        pool.reset(seed=3)
        pool.reset(seed=4)
    assert [warning.category for warning in told] == [UserWarning]
    assert re.match(r"Unseeded takes no seed.* seed\(seed\).* would be used", str(told[0].message))


def test_an_env_that_checks_its_actions_gets_what_its_spec_says() -> None:
    with shoal.make_vec(Walk, 2, engine="serial", env_kwargs={"strict": True}) as envs:
        envs.reset(seed=0)
        obs, *_ = envs.step(np.array([2, 0]))
        assert obs["place"].tolist() == [[1.0], [-1.0]]


class Pair(NamedTuple):
    """An action of two parts."""

    left: Any
    right: Any


class TwoHanded(Walk):
    """Takes a namedtuple."""

    def action_spec(self) -> Any:
        return Pair(specs.DiscreteArray(3), specs.DiscreteArray(2))

    def step(self, action: Any) -> dm_env.TimeStep:
        return super().step(action.left + action.right)


def test_an_env_gets_the_namedtuple_that_its_spec_is() -> None:
    env = adapt(TwoHanded())
    env.reset()
    assert env.step((np.int64(1), np.int64(1)))[0]["place"].tolist() == [1.0]


@pytest.mark.parametrize("engine", ["serial", "thread"])
def test_attributes_are_those_of_the_env(engine: str) -> None:
    with shoal.make_pool(Walk, 2, engine=engine) as pool:
        assert pool.get_attr("wall") == (3, 3)
        pool.set_attr("wall", [1, 2])
        assert [env.wall for env in pool.get_attr("env")] == [1, 2]
        pool.reset(seed=0)
        assert pool.step(np.array([2, 2])).terminated.tolist() == [True, False]
        with pytest.raises(MissingAttribute, match="nonsense"):
            pool.get_attr("nonsense")


def test_closing_closes_the_env() -> None:
    env = Walk()
    adapt(env).close()
    assert env.is_closed


# ---------------------------------------------------------------------- in a pool


@pytest.mark.parametrize("engine", ENGINES)
def test_a_pool_of_dm_envs_walks(engine: str) -> None:
    with shoal.make_vec(Walk, 2, engine=engine, autoreset="same_step") as envs:
        assert envs.single_action_space == spaces.Discrete(3)
        obs, _ = envs.reset(seed=3)
        assert obs in envs.observation_space
        draws = obs["draw"].tolist()
        assert draws == [int(np.random.default_rng(seed).integers(1000)) for seed in (3, 4)]
        for _ in range(2):
            envs.step(np.array([2, 1]))
        obs, rewards, terminated, truncated, infos = envs.step(np.array([2, 1]))
        assert rewards.tolist() == [1.0, 0.25]
        assert (terminated.tolist(), truncated.tolist()) == ([True, False], [False, False])
        assert infos["final_info"]["discount"].tolist() == [0.0, 0.0]
        assert infos["discount"].tolist() == [0.0, 0.9]
        assert infos["_discount"].tolist() == [False, True]
        last = infos["final_obs"][0]
        assert (last["place"].tolist(), int(last["steps"]), int(last["draw"])) == ([3.0], 3, draws[0])
        assert obs["steps"].tolist() == [0, 3]
        _, rewards, terminated, truncated, _ = envs.step(np.array([2, 1]))
        assert rewards.tolist() == [0.25, 0.5]
        assert (terminated.tolist(), truncated.tolist()) == ([False, False], [False, True])


@pytest.mark.parametrize("engine", ENGINES)
def test_the_step_after_the_last_resets(engine: str) -> None:
    with shoal.make_vec(Walk, 2, engine=engine) as envs:
        envs.reset(seed=0)
        for _ in range(4):
            *_, truncated, infos = envs.step(np.ones(2, int))
        assert truncated.all()
        obs, rewards, terminated, truncated, infos = envs.step(np.full(2, 2))
        assert obs["steps"].tolist() == [0, 0]
        assert rewards.tolist() == [0.0, 0.0]
        assert not (terminated | truncated).any()
        assert infos["first"].all()


class Wordy(Walk):
    """Has an observation that no space can describe."""

    def observation_spec(self) -> Any:
        return specs.StringArray((1,), name="words")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_pool_names_the_spec_it_cannot_describe(engine: str) -> None:
    with pytest.raises(EnvConstructError, match=r"envs? 0.*StringArray"):
        shoal.make_vec(Wordy, 2, engine=engine)
