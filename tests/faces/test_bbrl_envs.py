"""BBRL's dialect: env agents on every engine."""

from __future__ import annotations

import copy
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gymnasium.vector import AutoresetMode  # noqa: E402
from gymnasium.wrappers import Autoreset  # noqa: E402

import shoal  # noqa: E402
from shoal.errors import (  # noqa: E402
    EnvConstructError,
    EnvStepError,
    ShoalError,
    SpecError,
    StateError,
    WorkspaceError,
)
from shoal.faces.bbrl import (  # noqa: E402
    Agent,
    Agents,
    GymAgent,
    ParallelGymAgent,
    TemporalAgent,
    VecGymAgent,
    Workspace,
    make_env,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Counting(gym.Env):
    """Observations are [episode, step]; the reward of step k is k."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gym.spaces.Discrete(5)

    def __init__(self, length: int = 3, ending: str = "terminated") -> None:
        self.length, self.ending = length, ending
        self.episode, self.k, self.actions, self.seeds = -1, 0, [], []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seeds += [] if seed is None else [seed]
        self.episode, self.k = self.episode + 1, 0
        return np.array([self.episode, self.k], np.float64), {}

    def step(self, action: Any) -> Any:
        self.k += 1
        self.actions.append(int(action))
        end = self.k >= self.length
        flags = (end and self.ending == "terminated", end and self.ending == "truncated")
        return np.array([self.episode, self.k], np.float64), float(self.k), *flags, {"noise": self.k}

    def double(self, number: int) -> int:
        return 2 * number


class Clock(Agent):
    """action = t modulo the number of actions."""

    def __init__(self, columns: int, actions: int = 2) -> None:
        super().__init__()
        self.columns, self.actions = columns, actions

    def forward(self, t: int, **kwargs: Any) -> None:
        self.set(("action", t), torch.full((self.columns,), t % self.actions))


@pytest.fixture
def agent() -> Iterator[Callable[..., Any]]:
    """``ParallelGymAgent``, closed in the end."""
    made: list[Any] = []

    def make(*args: Any, kind: Any = ParallelGymAgent, **options: Any) -> Any:
        made.append(kind(*args, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def counting(lengths: tuple[int, ...], autoreset: bool, ending: str = "terminated") -> Callable[[], Any]:
    each = iter(lengths)
    return lambda: (Autoreset if autoreset else gym.Wrapper)(Counting(next(each), ending))


def run(env: Any, actions: int = 5, **how: Any) -> Workspace:
    workspace = Workspace()
    TemporalAgent(Agents(env, Clock(env.num_envs, actions)))(workspace, t=0, **how)
    return workspace


def col(workspace: Workspace, name: str, k: int = 0) -> list[Any]:
    return workspace[f"env/{name}"][:, k].tolist()


# ---------------------------------------------------------------------- boundaries


def test_without_autoreset_ended_envs_keep_their_frame(agent: Callable[..., Any]) -> None:
    env = agent(counting((2, 4), autoreset=False), 2)
    workspace = run(env, stop_variable="env/done")
    assert col(workspace, "reward") == [0, 1, 2, 0, 0]
    assert col(workspace, "done") == [False, False, True, True, True]
    assert col(workspace, "timestep") == [0, 1, 2, 2, 2]
    assert col(workspace, "cumulated_reward") == [0, 1, 3, 3, 3]
    assert col(workspace, "env_obs") == [[0, 0], [0, 1], [0, 2], [0, 2], [0, 2]]
    assert col(workspace, "cumulated_reward", 1) == [0, 1, 3, 6, 10]
    assert env.envs[0].unwrapped.actions == [0, 1]
    env(workspace, t=5)
    assert col(workspace, "done", 1)[-2:] == [True, True], "also when all have ended"


def test_with_autoreset_the_last_state_has_its_own_time(agent: Callable[..., Any]) -> None:
    env = agent(counting((2,), autoreset=True), 1)
    workspace = run(env, n_steps=6)
    assert col(workspace, "env_obs") == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert col(workspace, "reward") == [0, 1, 2, 0, 1, 2]
    assert col(workspace, "timestep") == [0, 1, 2, 0, 1, 2]
    assert col(workspace, "cumulated_reward") == [0, 1, 3, 0, 1, 3]
    assert env.envs[0].unwrapped.actions == [0, 1, 3, 4]


def test_without_the_last_state_it_is_kept_beside(agent: Callable[..., Any]) -> None:
    workspace = run(agent(counting((2,), autoreset=True), 1, include_last_state=False), n_steps=5)
    assert col(workspace, "env_obs") == [[0, 0], [0, 1], [1, 0], [1, 1], [2, 0]]
    assert col(workspace, "final_obs") == [[0, 0], [0, 1], [0, 2], [1, 1], [1, 2]]
    assert col(workspace, "cumulated_reward") == [0, 1, 3, 1, 3]
    assert col(workspace, "timestep") == [0, 1, 2, 1, 2]


@pytest.mark.parametrize("prefix", ["env/", "arm_", ""])
def test_without_the_last_state_every_pair_is_a_step_and_leads_to_what_the_step_led_to(
    agent: Callable[..., Any], prefix: str
) -> None:
    env = agent(counting((2, 3), autoreset=True), 2, include_last_state=False, output_string=prefix)
    workspace = run(env, n_steps=6)
    pairs = workspace.get_transitions(filter_key=f"{prefix}done")
    assert pairs.batch_size() == 2 * 5
    before, after = pairs[f"{prefix}env_obs"]
    assert (after == before + torch.tensor([0.0, 1.0])).all(), "the same episode, one step further"
    assert pairs[f"{prefix}reward"][1].tolist() == after[:, 1].tolist()
    assert pairs[f"{prefix}done"][0].any(), "a time at which an episode has ended is also the first of the next"
    raw = workspace.get_transitions(no_final_state=True, filter_key=f"{prefix}done")[f"{prefix}env_obs"]
    assert torch.equal(raw[1], workspace[f"{prefix}env_obs"][1:].flatten(0, 1))
    assert workspace.get_transitions(filter_key="action").batch_size() < 10, "a flag of another kind is a filter"


@pytest.mark.parametrize("include_last_state", [True, False])
def test_rewards_beside_their_actions(agent: Callable[..., Any], include_last_state: bool) -> None:
    env = agent(counting((2,), autoreset=True), 1, reward_at_t=True, include_last_state=include_last_state)
    workspace = run(env, n_steps=6)
    rewards = [1, 2, 0, 1, 2, 0] if include_last_state else [1, 2, 1, 2, 1, 0]
    assert col(workspace, "reward") == rewards
    ends = [t for t, done in enumerate(col(workspace, "done")) if done]
    assert [col(workspace, "cumulated_reward")[t] for t in ends] == [3] * len(ends)


def test_seeds_of_every_run(agent: Callable[..., Any]) -> None:
    env = agent(counting((2, 2), autoreset=True), 2, seed=10)
    run(env, n_steps=4)
    run(env, n_steps=2)
    assert [e.unwrapped.seeds for e in env.envs] == [[2 * 2 * 10 + 1, 2 * 3 * 10 + 1], [2 * 2 * 10 + 2, 2 * 3 * 10 + 2]]
    with pytest.raises(StateError, match="seeded"):
        env.seed(1)


def test_a_shorter_run_leaves_nothing_of_a_longer_one(agent: Callable[..., Any]) -> None:
    env = agent(counting((2,), autoreset=True), 1)
    both = TemporalAgent(Agents(env, Clock(1)))
    workspace = Workspace()
    both(workspace, t=0, n_steps=6)
    both(workspace, t=0, stop_variable="env/done")
    assert workspace.time_size() == 3


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_union_of_epochs_is_one_long_run(agent: Callable[..., Any], size: int) -> None:
    def steps(workspace: Workspace) -> list[Any]:
        pairs = workspace.get_transitions()
        return [tuple(map(tuple, pair)) for pair in pairs["env/env_obs"].transpose(0, 1).tolist()]

    lengths, found = (1, 2, 3, 7), []
    both = TemporalAgent(Agents(agent(counting(lengths, autoreset=True), 4), Clock(4)))
    workspace = Workspace()
    both(workspace, t=0, n_steps=size)
    found += steps(workspace)
    for _ in range(6):
        workspace.zero_grad()
        workspace.copy_n_last_steps(1)
        both(workspace, t=1, n_steps=size - 1)
        assert workspace.time_size() == size
        found += steps(workspace)
    long_run = run(agent(counting(lengths, autoreset=True), 4), n_steps=size + 6 * (size - 1))
    assert sorted(found) == sorted(steps(long_run))


# ---------------------------------------------------------------------- engines


def same(a: Workspace, b: Workspace) -> None:
    assert list(a) == list(b)
    for name in a:
        assert torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("how", [{"autoreset": True}, {"autoreset": True, "last": False}, {"autoreset": False}])
def test_every_engine_gives_the_same_workspace(agent: Callable[..., Any], engine: str, how: dict[str, bool]) -> None:
    make = partial(make_env, "CartPole-v1", autoreset=how["autoreset"], max_episode_steps=30)
    limit = {"n_steps": 60} if how["autoreset"] else {"stop_variable": "env/done"}
    spaces = [
        run(agent(make, 3, seed=3, include_last_state=how.get("last", True), **on), 2, **limit)
        for on in ({}, {"engine": engine, "num_workers": None if engine == "serial" else 2})
    ]
    same(*spaces)
    assert spaces[0]["env/done"].any()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["partial", "id", "class"])
@pytest.mark.parametrize("autoreset", [True, False])
def test_compiled_envs_give_the_same_workspace(agent: Callable[..., Any], how: str, autoreset: bool) -> None:
    pytest.importorskip("numba")
    from shoal.envs.cartpole import CartPole

    plain = partial(make_env, "CartPole-v1", autoreset=autoreset)
    what = {"partial": plain, "id": "CartPole-v1", "class": CartPole}[how]
    wish = {} if how == "partial" else {"autoreset": autoreset}
    limit = {"n_steps": 80} if autoreset else {"stop_variable": "env/done"}
    compiled = agent(what, 3, seed=5, engine="kernel", **wish)
    same(run(agent(plain, 3, seed=5, engine="serial"), 2, **limit), run(compiled, 2, **limit))
    assert compiled.pool.stats().engine == "kernel"
    assert compiled.get_obs_and_actions_sizes() == (4, 2)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"sutton_barto_reward": True, "max_episode_steps": 12}),
        ("Pendulum-v1", {"max_episode_steps": 20}),
        ("FrozenLake-v1", {"is_slippery": False}),
    ],
)
def test_by_default_envs_are_compiled_where_that_changes_nothing(
    agent: Callable[..., Any], name: str, given: dict[str, Any]
) -> None:
    pytest.importorskip("numba")
    make = partial(make_env, name, autoreset=True, **given)
    env = agent(make, 3, seed=5)
    act = Floats(3) if env.is_continuous_action() else Clock(3, 2)
    found, expected = Workspace(), Workspace()
    TemporalAgent(Agents(env, act))(found, t=0, n_steps=80)
    TemporalAgent(Agents(agent(make, 3, seed=5, engine="serial"), act))(expected, t=0, n_steps=80)
    assert env.pool.stats().engine == "kernel"
    assert found["env/done"].any()
    same(found, expected)


class Floats(Agent):
    """Actions that are vectors, some of them out of range."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.columns = columns

    def forward(self, t: int, **kwargs: Any) -> None:
        self.set(("action", t), torch.full((self.columns, 1), (t % 7) - 3.0))


def test_as_keywords_too(agent: Callable[..., Any]) -> None:
    pytest.importorskip("numba")
    env = agent(make_env, 2, {"env_name": "CartPole-v1", "autoreset": True}, seed=5)
    found = run(env, 2, n_steps=30)
    assert env.pool.stats().engine == "kernel"
    same(found, run(agent(lambda: make_env("CartPole-v1", autoreset=True), 2, seed=5), 2, n_steps=30))
    with pytest.raises(TypeError, match="env_name"):
        agent(make_env, 2, {"autoreset": True})


class Heavier(gym.Wrapper):
    """CartPole with another pole."""

    def reset(self, **kwargs: Any) -> Any:
        self.unwrapped.masspole = 0.5
        return super().reset(**kwargs)


@pytest.mark.parametrize(
    "make",
    [
        partial(make_env, "CartPole-v1", wrappers=[Heavier]),
        partial(make_env, "CartPole-v1", render_mode="rgb_array"),
        partial(make_env, "CartPole-v1", max_episode_steps=-1),
        lambda: make_env("CartPole-v1"),
        partial(gym.make, "CartPole-v1"),
        partial(make_env, "Mine-v0"),
        partial(make_env, gym.spec("CartPole-v1")),
    ],
    ids=["wrapped", "pictures", "endless", "function", "gymnasium", "registered", "registration"],
)
def test_by_default_anything_else_is_serial(
    agent: Callable[..., Any], make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = gym.envs.registration.EnvSpec("Mine-v0", "gymnasium.envs.classic_control:CartPoleEnv")
    monkeypatch.setitem(gym.registry, "Mine-v0", mine)
    env = agent(make, 2)
    workspace = run(env, 2, n_steps=2)
    assert env.pool.stats().engine == "serial"
    assert type(env.envs[1].unwrapped).__name__ == "CartPoleEnv"
    assert workspace["env/env_obs"].shape == (2, 2, 4)


def test_an_id_that_means_something_else_by_now_is_not_compiled(
    agent: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gym.registry, "CartPole-v1", gym.envs.registration.EnvSpec("CartPole-v1", Counting))
    env = agent(partial(make_env, "CartPole-v1"), 2)
    run(env, 2, n_steps=2)
    assert isinstance(env.envs[0].unwrapped, Counting)


def test_ids_are_compiled_by_default_too(agent: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    monkeypatch.setitem(gym.registry, "Mine-v0", gym.envs.registration.EnvSpec("Mine-v0", Counting))
    engines = []
    for name in ("CartPole-v1", "Catch-v0", "Mine-v0"):
        env = agent(name, 2, autoreset=True)
        run(env, 2, n_steps=2)
        engines.append(env.pool.stats().engine)
    assert engines == ["kernel", "kernel", "serial"]


def test_without_numba_the_default_is_serial(agent: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    env = agent(partial(make_env, "CartPole-v1"), 2)
    run(env, 2, n_steps=2)
    assert env.pool.stats().engine == "serial"


def test_who_asks_for_the_envs_gets_them(agent: Callable[..., Any]) -> None:
    pytest.importorskip("numba")
    make = partial(make_env, "CartPole-v1", autoreset=True)
    asked, ran = agent(make, 2, seed=1), agent(make, 2, seed=1)
    assert [type(env.unwrapped).__name__ for env in asked.envs] == ["CartPoleEnv"] * 2
    same(run(asked, 2, n_steps=40), run(ran, 2, n_steps=40))
    state = asked.envs[0].unwrapped.state
    assert np.allclose(state, asked.pool.latest().obs[0]), "these are the envs that were stepped"
    assert [isinstance(env, gym.Env) for env in ran.envs] == [True] * 2


@pytest.mark.parametrize("engine", [None, "kernel", "thread", pytest.param("process", marks=pytest.mark.slow)])
def test_after_a_reset_there_is_a_view_of_each_env_that_is_elsewhere(agent: Callable[..., Any], engine: Any) -> None:
    pytest.importorskip("numba")
    env = agent(partial(make_env, "CartPole-v1", autoreset=True), 3, seed=1, engine=engine)
    workspace = run(env, 2, n_steps=3)
    field, number = ("x", 0.5) if env.pool.stats().engine == "kernel" else ("gravity", 5.0)
    views = env.envs
    assert len(views) == 3
    assert (views[0].spec.id, views[0].action_space) == ("CartPole-v1", env.action_space)
    assert views[0].unwrapped.observation_space == env.observation_space
    setattr(views[1].unwrapped, field, number)
    assert [getattr(view, field) == number for view in env.envs] == [False, True, False]
    assert views[0].get_wrapper_attr(field) == getattr(views[0], field)
    assert (views[0].render_mode, "rgb_array" in views[0].metadata["render_modes"]) == (None, True)
    with pytest.raises(AttributeError, match=r'nope.*engine="serial"'):
        _ = views[0].nope
    for refused in (lambda: views[0].reset(), lambda: views[0].step(0)):
        with pytest.raises(StateError, match="the agent"):
            refused()
    env(workspace, t=3)
    assert workspace["env/env_obs"].shape == (4, 3, 4)


def test_a_view_calls_methods_of_its_env(agent: Callable[..., Any]) -> None:
    env = agent(Counting, 2, engine="thread")
    run(env, n_steps=3)
    assert env.envs[1].actions == [0, 1]
    assert env.envs[1].has_wrapper_attr("seeds")
    assert env.envs[0].double(4) == 8


@pytest.mark.parametrize("engine", [None, "serial"])
def test_a_copy_of_an_agent_has_envs_of_its_own(agent: Callable[..., Any], tmp_path: Any, engine: Any) -> None:
    from shoal.faces.bbrl import load

    env = agent(partial(make_env, "CartPole-v1", autoreset=True), 2, seed=4, engine=engine)
    run(env, 2, n_steps=3)
    env.save(tmp_path / "env")
    for other in (env.clone(), load(tmp_path / "env")):
        with other:
            twin = agent(env.make_env_fn, 2, seed=4)
            run(twin, 2, n_steps=1)
            same(run(other, 2, n_steps=5), run(twin, 2, n_steps=5))


@pytest.mark.parametrize("way", [lambda env: env.clone(), copy.deepcopy], ids=["clone", "deepcopy"])
def test_a_copy_of_an_agent_has_copies_of_its_envs(agent: Callable[..., Any], way: Any) -> None:
    env = agent(counting((2, 4), autoreset=False), 2)
    env.envs[0].unwrapped.length = 9
    with way(env) as other:
        assert [each.unwrapped.length for each in other.envs] == [9, 4]
        other.envs[0].unwrapped.length = 1
        assert col(run(other, stop_variable="env/done"), "done") == [False, True, True, True, True]
    assert env.envs[0].unwrapped.length == 9
    assert env.envs[0].unwrapped.actions == []


def test_a_copy_that_is_made_during_a_run_has_the_envs_as_they_are_and_begins_anew(agent: Callable[..., Any]) -> None:
    env = agent(counting((5,), autoreset=True), 1, seed=1)
    workspace = run(env, n_steps=3)
    with env.clone() as other:
        assert (other.envs[0].unwrapped.k, other.envs[0].unwrapped.actions) == (2, [0, 1])
        with pytest.raises(StateError, match="never with t=0"):
            other(workspace, t=3)
        assert col(run(other, n_steps=2), "env_obs") == [[1, 0], [1, 1]]
    env(workspace, t=3)
    assert col(workspace, "env_obs") == [[0, 0], [0, 1], [0, 2], [0, 3]], "the original goes on"


def test_a_part_that_knows_an_env_knows_its_copy_in_the_copy(agent: Callable[..., Any]) -> None:
    env, watcher = agent(Counting, 1), Clock(1)
    watcher.env = env.envs[0]
    whole = Agents(env, watcher).clone()
    assert whole[1].env is whole[0].envs[0] is not env.envs[0]


class Locked(Counting):
    """Has a part that cannot be copied."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.lock = threading.Lock()


def test_envs_that_cannot_be_copied_are_made_anew(agent: Callable[..., Any]) -> None:
    lengths = iter((1, 2, 3, 4))
    env = agent(lambda: Locked(next(lengths)), 2)
    with env.clone() as other:
        assert [each.length for each in other.envs] == [3, 4]
        assert [each.length for each in env.envs] == [1, 2]
        watcher = Clock(1)
        watcher.env = env.envs[0]
        with pytest.raises(TypeError):
            Agents(env, watcher).clone()


class Closable(Counting):
    is_closed = False

    def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True


@pytest.mark.parametrize("has_run", [False, True])
def test_a_copy_of_an_agent_that_is_closed_has_new_envs(has_run: bool) -> None:
    with ParallelGymAgent(Closable, 2) as env:
        if has_run:
            run(env, n_steps=2)
    assert [each.is_closed for each in env.envs] == [True, True]
    with env.clone() as other:
        assert [each.is_closed for each in other.envs] == [False, False]


def test_a_copy_of_an_agent_whose_envs_are_elsewhere_has_new_ones(agent: Callable[..., Any]) -> None:
    env = agent(Counting, 2, engine="thread")
    with env.clone() as early:
        run(early, n_steps=2)
    run(env, n_steps=3)
    env.envs[0].length = 9
    with env.clone() as late:
        run(late, n_steps=2)
        assert [each.length for each in late.envs] == [3, 3]


# ---------------------------------------------------------------------- observations and actions


class Fixed(gym.Env):
    """Always the same observation, whatever its space says."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Dict({"a": gym.spaces.Discrete(3), "b": gym.spaces.Dict({"c": gym.spaces.Discrete(2)})})

    def __init__(self, obs: Any) -> None:
        self.obs, self.actions = obs, []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.obs, {}

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        return self.obs, 1.0, False, False, {}


@pytest.mark.parametrize(
    ("obs", "dtype", "shape"),
    [
        (np.zeros(2, np.float64), torch.float32, (2,)),
        (np.full(3, 0.5, np.float16), torch.float32, (3,)),
        (0.5, torch.float32, ()),
        (7, torch.int64, ()),
        (np.int32(7), torch.int64, ()),
        (np.zeros((2, 2), np.uint8), torch.uint8, (2, 2)),
        (np.zeros(2, np.bool_), torch.bool, (2,)),
        (np.zeros(2, np.int16), torch.int64, (2,)),
        ([0.0, 1.0], torch.float32, (2,)),
    ],
    ids=str,
)
def test_observations_keep_their_meaning(agent: Callable[..., Any], obs: Any, dtype: Any, shape: Any) -> None:
    workspace = Workspace()
    agent(lambda: Fixed(obs), 2)(workspace, t=0)
    value = workspace["env/env_obs"]
    assert (value.dtype, value.shape) == (dtype, (1, 2, *shape))
    assert np.array_equal(value[0, 0].numpy(), obs)


@pytest.mark.parametrize("obs", [(np.zeros(2), 1), {"a": (1, 2)}], ids=["tuple", "inside"])
def test_tuples_are_refused_with_a_word_of_advice(agent: Callable[..., Any], obs: Any) -> None:
    with pytest.raises(AssertionError, match="tuple") as caught:
        agent(lambda: Fixed(obs), 1)(Workspace(), t=0)
    assert isinstance(caught.value, ShoalError)


class Keeping(gym.Env):
    """Keeps the actions it is given."""

    observation_space = gym.spaces.Box(0, 1, (1,))

    def __init__(self, space: Any) -> None:
        self.action_space, self.actions = space, []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        return np.zeros(1, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("space", [gym.spaces.Discrete(2), gym.spaces.MultiBinary(2)], ids=str)
def test_bools_stay_bools(agent: Callable[..., Any], space: Any) -> None:
    env, workspace = agent(lambda: Keeping(space), 2), Workspace()
    env(workspace, t=0)
    for t in range(2):
        workspace.set("action", t, torch.ones(2, *space.shape, dtype=torch.bool))
        env(workspace, t=t + 1)
    given = env.envs[0].actions
    assert [getattr(action, "dtype", type(action)) for action in given] == [bool, bool]
    assert np.all(given)


@pytest.mark.parametrize("engine", ["serial", "thread"])
def test_single_integers_are_pythons_own(agent: Callable[..., Any], engine: str) -> None:
    space = gym.spaces.Dict(a=gym.spaces.Discrete(3, start=-1), b=gym.spaces.Dict(c=gym.spaces.MultiDiscrete([2, 2])))
    kept: list[Any] = []

    def make() -> Any:
        kept.append(Keeping(space))
        return kept[-1]

    env, workspace = agent(make, 1, engine=engine), Workspace()
    env(workspace, t=0)
    workspace.set("action/a", 0, torch.tensor([-1], dtype=torch.int32))
    workspace.set("action/b/c", 0, torch.ones(1, 2, dtype=torch.long))
    env(workspace, t=1)
    action = kept[-1].actions[0]
    assert (type(action["a"]), action["a"]) == (int, -1)
    assert action["b"]["c"].tolist() == [1, 1]


def test_actions_may_be_in_a_type_that_numpy_does_not_have(agent: Callable[..., Any]) -> None:
    env, workspace = agent(lambda: Keeping(gym.spaces.Box(-1, 1, (2,))), 1), Workspace()
    env(workspace, t=0)
    workspace.set("action", 0, torch.tensor([[0.5, -0.5]], dtype=torch.bfloat16))
    env(workspace, t=1)
    assert env.envs[0].actions[0].tolist() == [0.5, -0.5]


def test_a_negative_time_moves_no_env(agent: Callable[..., Any]) -> None:
    env = agent(Counting, 1)
    workspace = run(env, n_steps=3)
    with pytest.raises(WorkspaceError, match="t=-1; times begin at 0"):
        env(workspace, t=-1)
    assert env.envs[0].actions == [0, 1]


def test_the_parts_of_an_observation_keep_the_envs_order(agent: Callable[..., Any]) -> None:
    obs = {"z": 0.0, "a": {"y": 1.0, "b": 2.0}}
    workspace = Workspace()
    agent(partial(Fixed, obs), 2)(workspace, t=0)
    assert list(workspace.keys())[:3] == ["env/env_obs/z", "env/env_obs/a/y", "env/env_obs/a/b"]


def test_dict_actions_are_collected(agent: Callable[..., Any]) -> None:
    env, workspace = agent(lambda: Fixed(1), 2), Workspace()
    env(workspace, t=0)
    workspace.set("action/a", 0, torch.tensor([1, 2]))
    workspace.set("action/b/c", 0, torch.tensor([0, 1]))
    env(workspace, t=1)
    assert env.envs[1].actions == [{"a": 2, "b": {"c": 1}}]


def test_dict_actions_for_an_env_that_declares_others(agent: Callable[..., Any]) -> None:
    class Taker(Counting):
        def step(self, action: Any) -> Any:
            return super().step(action["a"] + action["b"]["c"])

    env, workspace = agent(lambda: Autoreset(Taker(2)), 2), Workspace()
    for t in range(5):
        env(workspace, t=t)
        workspace.set("action/a", t, torch.tensor([t, 2]))
        workspace.set("action/b/c", t, torch.tensor([0, 1]))
    assert env.envs[0].unwrapped.actions == [0, 1, 3]
    assert env.envs[1].unwrapped.actions == [3, 3, 3]
    assert col(workspace, "env_obs") == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]]
    assert len(env.envs[0].unwrapped.seeds) == 1


def test_what_is_no_action_moves_nothing(agent: Callable[..., Any]) -> None:
    for bad in (torch.zeros(2), torch.zeros(3, dtype=torch.long), torch.tensor([0, 9])):
        env, workspace = agent(Counting, 2), Workspace()
        env(workspace, t=0)
        workspace.set("action", 0, bad)
        with pytest.raises(AssertionError) as caught:
            env(workspace, t=1)
        assert isinstance(caught.value, shoal.errors.ActionError)
        assert env.envs[0].actions == []
    with pytest.raises(AssertionError, match="action"):
        run_without_action(agent(Counting, 1))


def run_without_action(env: Any) -> None:
    workspace = Workspace()
    env(workspace, t=0)
    env(workspace, t=1)


class Pushed(gym.Env):
    """Takes a number and returns it as the reward; an episode ends with the second step."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, action_space: Any) -> None:
        self.action_space, self.k = action_space, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.k = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.k += 1
        parts = action.values() if isinstance(action, dict) else [action]
        return np.zeros(1, np.float32), float(sum(np.sum(part) for part in parts)), self.k == 2, False, {}


@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (gym.spaces.Discrete(3, start=4), {"action": torch.tensor([[5], [6], [-1], [4]])}),
        (gym.spaces.Box(1, 2, (1,)), {"action": torch.tensor([[[1.0]], [[2.0]], [[torch.nan]], [[1.5]]])}),
        (
            gym.spaces.Dict(a=gym.spaces.Discrete(2), b=gym.spaces.Discrete(2)),
            {"action/a": torch.tensor([[1], [0], [7], [1]]), "action/b": torch.tensor([[1], [1], [-7], [0]])},
        ),
    ],
    ids=["discrete", "box", "dict"],
)
def test_an_action_that_is_not_executed_is_not_judged(
    agent: Callable[..., Any], space: Any, actions: dict[str, Any]
) -> None:
    env, workspace = agent(lambda: Autoreset(Pushed(space)), 1), Workspace()
    for name, full in actions.items():
        workspace.set_full(name, full)
    for t in range(5):
        env(workspace, t=t)
    sums = sum(full.reshape(4) for full in actions.values()).tolist()
    assert col(workspace, "reward") == [0, sums[0], sums[1], 0, sums[3]]
    for name, full in actions.items():
        assert torch.equal(workspace[name].nan_to_num(), full.nan_to_num()), "the workspace is as it was"
    bad = next(iter(actions))
    workspace.set(bad, 3, actions[bad][2])
    with pytest.raises(AssertionError):
        TemporalAgent(env)(workspace, t=0, n_steps=5)


class Precise(Counting):
    """Its rewards have more digits than float32 keeps."""

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, 1 + 2.0**-24 if self.k % 2 else 2.0**-24, *rest


@pytest.mark.parametrize("how", ["parallel", "vector"])
def test_a_return_does_not_depend_on_the_other_envs(agent: Callable[..., Any], how: str) -> None:
    def total(*lengths: int) -> float:
        makers = [partial(Precise, length) for length in lengths]
        if how == "parallel":
            each = iter(makers)
            env = agent(lambda: next(each)(), len(lengths))
        else:
            make = partial(gym.vector.SyncVectorEnv, makers, autoreset_mode=AutoresetMode.DISABLED)
            env = agent(make, kind=VecGymAgent)
        return float(run(env, stop_variable="env/done")["env/cumulated_reward"][-1, 0])

    assert total(200) == total(200, 1) == np.float32(100 + 200 * 2.0**-24)


class Tensors(Counting):
    """Rewards and flags are tensors."""

    def step(self, action: Any) -> Any:
        obs, reward, *flags, info = super().step(action)
        return obs, torch.tensor([reward]), *map(torch.tensor, flags), info


def test_rewards_may_be_tensors(agent: Callable[..., Any]) -> None:
    workspace = run(agent(Tensors, 1), stop_variable="env/done")
    assert col(workspace, "reward") == [0, 1, 2, 3]
    assert col(workspace, "done") == [False, False, False, True]


def test_a_plan_can_be_changed_while_it_is_carried_out(agent: Callable[..., Any]) -> None:
    env, workspace = agent(Counting, 1), Workspace()
    workspace.set_full("action", torch.zeros(5, 1, dtype=torch.long))
    env(workspace, t=0)
    workspace.set("action", 0, torch.tensor([3]))
    env(workspace, t=1)
    assert workspace["action"][:, 0].tolist() == [3, 0, 0, 0, 0]


def test_an_agent_has_to_begin_at_zero(agent: Callable[..., Any]) -> None:
    with pytest.raises(StateError, match="t=0"):
        agent(Counting, 1)(Workspace(), t=3)


def test_envs_must_agree_about_autoreset(agent: Callable[..., Any]) -> None:
    each = iter([Autoreset(Counting()), Counting()])
    with pytest.raises(SpecError, match="env 1 has no Autoreset"):
        agent(lambda: next(each), 2)


@pytest.mark.parametrize("autoreset", [True, False])
def test_autoreset_may_be_said_aloud(agent: Callable[..., Any], autoreset: bool) -> None:
    workspace = run(agent(lambda: Counting(1), 1, autoreset=autoreset), n_steps=3)
    assert col(workspace, "done") == [False, True, not autoreset]


class Broken(Counting):
    def step(self, action: Any) -> Any:
        raise ValueError("no more")


def test_a_fault_says_which_env(agent: Callable[..., Any], engine: str) -> None:
    with pytest.raises(EnvStepError, match=r"env 0.*no more"):
        run(agent(Broken, 1, engine=engine), n_steps=2)


def unmakeable() -> Any:
    raise ValueError("cannot be made")


def test_envs_that_cannot_be_made(agent: Callable[..., Any], engine: str) -> None:
    with pytest.raises((ValueError, EnvConstructError), match="cannot be made"):
        agent(unmakeable, 2, engine=engine)


# ---------------------------------------------------------------------- agents of one's own


class Mine(GymAgent):
    """An env agent that is its own env."""

    def forward(self, t: int, **kwargs: Any) -> None:
        super().forward(t, **kwargs)
        returns = torch.full((2,), float(sum(range(t + 1))))
        self.set_obs({"env_obs": torch.zeros(2), "reward": torch.full((2,), t), "cumulated_reward": returns}, t)


@pytest.mark.parametrize("reward_at_t", [False, True])
def test_an_env_agent_may_be_all_ones_own(reward_at_t: bool) -> None:
    env, workspace = Mine(reward_at_t=reward_at_t, output_string="mine/"), Workspace()
    for length in (4, 3):
        TemporalAgent(env)(workspace, t=0, n_steps=length)
        assert workspace["mine/env_obs"].shape == (length, 2), "a shorter run leaves nothing of a longer one"
        times = list(range(length))
        rewards = [*times[1:], 0] if reward_at_t else times
        sums = [sum(range(t + 1)) for t in times]
        assert workspace["mine/reward"][:, 1].tolist() == rewards
        assert workspace["mine/cumulated_reward"][:, 1].tolist() == ([*sums[1:], sums[-1]] if reward_at_t else sums)
    assert env._seed == Mine.default_seed


class Tenfold(ParallelGymAgent):
    """Changes what its envs say before it is written."""

    def set_obs(self, observations: dict[str, Any], t: int) -> None:
        for name in ("env_obs", "reward", "cumulated_reward"):
            observations[name] *= 10
        super().set_obs({**observations, "more": torch.full((self.num_envs,), t)}, t)


def test_an_env_agent_may_change_what_is_written(agent: Callable[..., Any]) -> None:
    workspace = run(agent(counting((1, 3), autoreset=False), 2, kind=Tenfold), stop_variable="env/done")
    assert col(workspace, "reward") == [0, 10, 0, 0]
    assert col(workspace, "cumulated_reward") == [0, 10, 10, 10]
    assert col(workspace, "env_obs") == [[0, 0], [0, 10], [0, 10], [0, 10]]
    assert col(workspace, "more", 1) == [0, 1, 2, 3]


def test_an_env_agent_has_a_parameter_without_numbers(agent: Callable[..., Any]) -> None:
    env = agent(Counting, 1)
    assert (env.ghost_params.device.type, env.ghost_params.numel()) == ("cpu", 0)
    assert list(env.state_dict()) == ["ghost_params"]
    assert env.to("meta").ghost_params.device.type == "meta"


def test_an_agent_without_a_function_has_no_envs(agent: Callable[..., Any]) -> None:
    env = agent(None, 2)
    assert (env.num_envs, env.envs, env.observation_space, env.action_space) == (2, [], None, None)
    assert env.clone().envs == []
    for ask in (env.get_observation_space, env.get_action_space):
        for kind in (ValueError, StateError):
            with pytest.raises(kind, match="has no envs"):
                ask()
    with pytest.raises(StateError, match="without a function"):
        env(Workspace(), t=0)


def test_a_size_that_is_a_shape_is_worth_a_warning(agent: Callable[..., Any]) -> None:
    class Wide(Counting):
        observation_space = gym.spaces.Box(0, 1, (2, 3))

    with pytest.warns(UserWarning, match="shape") as caught:
        assert agent(Wide, 1).get_obs_and_actions_sizes() == ((2, 3), 5)
    assert [warning.filename for warning in caught] == [__file__]
    assert agent(Counting, 1).get_obs_and_actions_sizes() == (2, 5)


# ---------------------------------------------------------------------- vector envs


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_vector_envs_give_the_same_workspace(agent: Callable[..., Any], mode: AutoresetMode) -> None:
    is_reset = mode is not AutoresetMode.DISABLED
    limit = {"n_steps": 60} if is_reset else {"stop_variable": "env/done"}

    def make() -> Any:
        return shoal.make_vec("CartPole-v1", num_envs=3, engine="serial", autoreset=mode)

    found = run(agent(make, kind=VecGymAgent, seed=2), 2, **limit)
    how = {"include_last_state": mode is not AutoresetMode.SAME_STEP}
    expected = run(agent(partial(make_env, "CartPole-v1", autoreset=is_reset), 3, seed=2, **how), 2, **limit)
    same(expected, found)
    sync = partial(gym.make_vec, "CartPole-v1", 3, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode})
    same(expected, run(agent(sync, kind=VecGymAgent, seed=2), 2, **limit))
