"""BBRL's dialect: agents made of agents, agents elsewhere, arithmetic, configs."""

from __future__ import annotations

import subprocess
import sys
import time
from fractions import Fraction
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import shoal.faces.bbrl as face  # noqa: E402
from shoal.errors import ArgumentError, EnvCallError, StateError  # noqa: E402
from shoal.faces.bbrl import (  # noqa: E402
    Agent,
    Agents,
    AsynchronousAgent,
    KWAgentWrapper,
    NRemoteAgent,
    ParallelGymAgent,
    PrintAgent,
    RemoteAgent,
    SeedableAgent,
    TemporalAgent,
    Workspace,
    cumulated_reward,
    doubleqlearning_temporal_difference,
    gae,
    make_env,
    temporal_difference,
)
from shoal.faces.bbrl.agents import SeedableAgentLast, SeedableAgentMean, SeedableAgentSum  # noqa: E402


class Policy(Agent):
    """A network that scores two actions."""

    def __init__(self) -> None:
        super().__init__(name="policy")
        self.lin = torch.nn.Linear(4, 2)

    def forward(self, t: int, **kwargs: Any) -> None:
        self.set(("action", t), self.lin(self.get(("env/env_obs", t))).argmax(-1))


class Failing(Agent):
    def forward(self, **kwargs: Any) -> None:
        raise ValueError("not today")


def player(seed: int | None = None) -> TemporalAgent:
    env = ParallelGymAgent(partial(make_env, "CartPole-v1", autoreset=True), 2, seed=seed)
    return TemporalAgent(Agents(env, Policy()))


def test_every_name_is_at_the_top_and_where_bbrl_has_it() -> None:
    import importlib

    assert all(hasattr(face, name) for name in face.__all__)
    for module, name in (
        ("workspace", "Workspace"),
        ("agents", "TemporalAgent"),
        ("agents.asynchronous", "AsynchronousAgent"),
        ("agents.gymnasium", "ParallelGymAgent"),
        ("utils.replay_buffer", "ReplayBuffer"),
        ("utils.functional", "gae"),
        ("utils.utils", "soft_param_update"),
    ):
        assert getattr(importlib.import_module(f"shoal.faces.bbrl.{module}"), name) is getattr(face, name)
    assert face.agents.gymnasium.make_env is face.make_env
    assert {"agents", "classes", "utils", "workspace"} <= set(dir(face))


def test_without_torch_the_extra_is_named() -> None:
    script = (
        "import importlib.util as u, sys\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'torch' else find(name, *rest)\n"
        "from shoal.errors import BackendUnavailable\n"
        "try:\n    import shoal.faces.bbrl.workspace\n"
        "except BackendUnavailable as error:\n    print(error)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "shoal[torch]" in ended.stdout


def test_a_failing_agent_gives_its_workspace_back() -> None:
    agent = Agents(Failing())
    with pytest.raises(ValueError, match="not today"):
        agent(Workspace())
    assert agent.workspace is None
    assert agent[0].workspace is None
    with pytest.raises(AssertionError, match="only while"):
        agent.get("x")


def test_wrapped_keywords_and_printing(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Any] = []

    class Look(Agent):
        def forward(self, t: int, **kwargs: Any) -> None:
            seen.append((t, kwargs))
            self.set(("x", t), torch.tensor([t]))

    workspace = Workspace()
    TemporalAgent(Agents(KWAgentWrapper(Look(), stochastic=True), PrintAgent("x")))(workspace, n_steps=2, other=1)
    assert seen == [(t, {"stochastic": True, "other": 1}) for t in (0, 1)]
    assert capsys.readouterr().out == "x  =  tensor([0])\nx  =  tensor([1])\n"


def test_a_printer_that_is_reset_prints_everything(capsys: pytest.CaptureFixture[str]) -> None:
    workspace, agent = Workspace(), PrintAgent("x")
    for name in ("x", "y"):
        workspace.set(name, 0, torch.tensor([1]))
    agent.reset()
    agent(workspace, t=0)
    workspace.set("z", 0, torch.tensor([2]))
    agent(workspace, t=0)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["x", "y", "x", "y", "z"]


def test_parts_are_found_before_the_whole() -> None:
    first, second = Agent(name="it"), Agent(name="it")
    both = Agents(first, second, name="it")
    whole = TemporalAgent(both, name="it")
    assert whole.get_by_name("it") == [first, second, both, whole]
    elsewhere = RemoteAgent(both, name="it")
    assert elsewhere.get_by_name("it") == [elsewhere, first, second, both]


@pytest.mark.parametrize(
    ("kind", "seed"), [(SeedableAgentLast, 5), (SeedableAgentSum, 8), (SeedableAgentMean, 4)], ids=str
)
def test_a_second_seed(kind: Any, seed: int) -> None:
    agent = kind()
    assert agent.seed(3).seed(5)._seed == seed
    with pytest.raises(StateError, match="seeded"):
        SeedableAgent(seed=3).seed(5)


def test_the_seed_may_come_first() -> None:
    assert SeedableAgent(5)._seed == 5
    assert SeedableAgent(5, name="it").name == "it"
    with ParallelGymAgent(partial(make_env, "CartPole-v1"), 2, None, 5) as env:
        assert env._seed == 5
    assert face.GymAgent(5)._seed == 5


def test_models_and_configs(tmp_path: Any) -> None:
    policy = Policy()
    policy.save_model(tmp_path / "policy")
    assert torch.equal(Policy().load_model(tmp_path / "policy").lin.weight, policy.lin.weight)
    config = {"classname": "torch.nn.Linear", "in_features": 2, "out_features": 3}
    assert face.instantiate_class(config).weight.shape == (3, 2)


@pytest.mark.parametrize("ask", [face.get_class, face.instantiate_class])
def test_a_config_that_names_no_class_lacks_a_key(ask: Any) -> None:
    for kind in (KeyError, ArgumentError):
        with pytest.raises(kind, match=r"^classname: expected 'module.Class', but the config has only \['a'\]"):
            ask({"a": 1})
    with pytest.raises(ArgumentError, match="got 'Fraction'") as caught:
        ask({"classname": "Fraction"})
    assert not isinstance(caught.value, KeyError)


class Named:
    classname, numerator = "fractions.Fraction", 3
    _own = 4

    def __init__(self, **given: int) -> None:
        vars(self).update(given)

    def numbers(self) -> None:
        """No value."""


def test_a_config_may_be_a_class_or_have_its_values_in_one() -> None:
    class Derived(Named):
        denominator = 4

    assert face.get_class(Named) is face.get_class(Named()) is Fraction
    assert face.get_arguments(Named) == {"numerator": 3}
    assert face.instantiate_class(Derived) == Fraction(3, 4)
    assert face.instantiate_class(Derived(numerator=5)) == Fraction(5, 4)


def test_temporal_difference_is_zero_at_the_end() -> None:
    critic = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], requires_grad=True)
    reward = torch.tensor([[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
    td = temporal_difference(critic, reward, torch.tensor([[True, False], [True, True]]), 0.5)
    assert td.tolist() == [[1.5, -1.0], [0.5, 0.0], [0.0, 0.0]]
    (gradient,) = torch.autograd.grad(td.sum(), critic)
    assert gradient.tolist() == [[-1.0, -1.0], [-1.0, -1.0], [0.0, 0.0]], "the target is a constant"


def test_discounts_under_all_their_names() -> None:
    critic, reward, alive = torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0], [3.0]]), torch.tensor([[True]])
    q, action = torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]]), torch.tensor([[0], [1]])
    for name in ("gamma", "discount_factor"):
        discount = {name: 0.5}
        expected = temporal_difference(critic, reward, alive, 0.5)
        assert torch.equal(temporal_difference(critic, reward, alive, **discount), expected)
        expected = doubleqlearning_temporal_difference(q, action, q, reward, alive, 0.5)
        assert torch.equal(doubleqlearning_temporal_difference(q, action, q, reward, alive, **discount), expected)
        for coefficient in ("gae_coef", "lam"):
            found = gae(reward, critic, alive.expand(2, 1), critic, **discount, **{coefficient: 0.8})
            assert torch.equal(found, gae(reward, critic, alive.expand(2, 1), critic, 0.5, 0.8))
    with pytest.raises(TypeError, match="got 'gamma' twice: 'discount_factor' is the same"):
        temporal_difference(critic, reward, alive, gamma=0.5, discount_factor=0.5)


@pytest.mark.parametrize(("coefficient", "gradient"), [(0.8, [-1.0, -1.4, 0.0]), (0.0, [-1.0, -1.0, 0.0])])
def test_advantages_leave_the_value_of_the_next_state_alone(coefficient: float, gradient: list[float]) -> None:
    value = torch.ones(3, 1, requires_grad=True)
    alive = torch.ones(2, 1, dtype=torch.bool)
    gae(torch.ones(2, 1), value[1:], alive, value[:-1], 0.5, coefficient).sum().backward()
    assert torch.allclose(value.grad.flatten(), torch.tensor(gradient))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_a_cumulated_reward_is_a_number(dtype: torch.dtype) -> None:
    reward = torch.tensor([[1, 1], [2, 1], [4, 4]], dtype=dtype)
    done = torch.tensor([[False, True], [True, False], [False, False]])
    found = cumulated_reward(reward, done)
    assert (type(found), found) == (float, 2.0)


def test_a_temporal_agent_takes_its_times_by_place() -> None:
    class Clock(Agent):
        def forward(self, t: int, **kwargs: Any) -> None:
            self.set(("clock", t), torch.tensor([t]))

    workspace = Workspace()
    TemporalAgent(Clock())(workspace, 1, 2)
    assert workspace["clock"][:, 0].tolist() == [0, 1, 2]
    stopped = Workspace()
    TemporalAgent(Clock())(stopped, 0, None, "clock")
    assert stopped.time_size() == 2


def test_a_loader_may_have_more_than_is_wanted_and_begin_anew() -> None:
    batches = [(torch.tensor([k]), torch.tensor([-k])) for k in (1, 2)]
    agent, workspace = face.DataLoaderAgent(batches, output_names=("x",)), Workspace()
    agent(workspace)
    assert (list(workspace), workspace["x"].tolist()) == (["x"], [[1]])
    agent.reset()
    seen = []
    while not agent.finished():
        agent(workspace)
        seen.append(workspace["x"].item())
    assert seen == [1, 2, 2]
    chosen = Workspace()
    face.ShuffledDatasetAgent(batches, 3, output_names=("x",)).seed(1)(chosen)
    assert list(chosen) == ["x"]


def test_ends_are_bools_whatever_they_were() -> None:
    workspace = Workspace()
    for t, done in enumerate([[0, 1], [1, 0]]):
        workspace.set("ends", t, torch.tensor(done))
    agent = TemporalAgent(face.EpisodesDone("ends", "over"))
    agent(workspace, n_steps=2)
    assert workspace["over"].tolist() == [[False, True], [True, True]]


def test_agents_elsewhere_may_be_verbose() -> None:
    for kind in (face.AsynchronousAgent, face.RemoteAgent):
        assert kind(Agent(), verbose=True).verbose


# ---------------------------------------------------------------------- elsewhere


@pytest.mark.slow
def test_copies_in_processes_play_what_one_would_play() -> None:
    original = player()
    agent, workspace = NRemoteAgent.create(original, num_processes=2, t=0, n_steps=8)
    with agent:
        assert workspace["env/env_obs"].shape == (8, 4, 4)
        agent.seed(3, inc=4)
        agent.get_by_name("policy")[0].lin.weight.data.fill_(0.5)
        agent(workspace, t=0, n_steps=8)
        parts = []
        for seed in (3, 7):
            one, own = player(seed), Workspace()
            one.agent[1].load_state_dict(agent.agent.agent[1].state_dict())
            one(own, t=0, n_steps=8)
            parts.append(own)
        expected = Workspace.cat_batch(parts)
        for name in expected:
            assert torch.equal(expected[name], workspace[name]), name
        agent._asynchronous_call(workspace, t=0, n_steps=8)
        while agent.is_running():
            time.sleep(0.01)
        assert not torch.equal(expected["env/env_obs"], workspace["env/env_obs"]), "a later run has other seeds"


class Untiring(gym.Env):
    """Its episodes are as long as its seed says; the reward of step k is k."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    k = length = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.k, self.length = 0, 2 + (seed or 0) % 5
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.k += 1
        return np.full(1, self.k, np.float32), float(self.k), self.k >= self.length, False, {}


class Still(Agent):
    def forward(self, t: int, **kwargs: Any) -> None:
        self.set(("action", t), torch.zeros(1, dtype=torch.long))


@pytest.mark.slow
def test_copies_that_stop_at_different_times_are_as_if_they_had_waited() -> None:
    agent, workspace = NRemoteAgent.create(
        TemporalAgent(Agents(ParallelGymAgent(Untiring, 1), Still())), num_processes=3, time_size=12, t=0, n_steps=3
    )
    with agent:
        agent.seed(1)
        agent(workspace, t=0, stop_variable="env/done")
    lengths = workspace["env/timestep"].max(0).values.tolist()
    assert len(set(lengths)) > 1, "they have stopped at different times"
    last = max(lengths)
    for k, length in enumerate(lengths):
        assert workspace["env/done"][: last + 1, k].tolist() == [t >= length for t in range(last + 1)]
        assert workspace["env/reward"][: last + 1, k].tolist() == [t if t <= length else 0 for t in range(last + 1)]
        assert workspace["env/cumulated_reward"][last, k] == sum(range(length + 1))
    assert workspace.subtime(0, last + 1).get_transitions().batch_size() == sum(lengths)


class Dice(Agent):
    """Draws actions from torch's generator, and writes its own variable at the first time only."""

    def forward(self, t: int, **kwargs: Any) -> None:
        self.set(("action", t), torch.randint(2, (2,)))
        if t == 0:
            self.set(("luck", 0), torch.rand(2))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 7])
def test_copies_in_processes_differ_whether_seeded_or_not(seed: int | None) -> None:
    env = ParallelGymAgent(partial(make_env, "CartPole-v1", autoreset=True), 2, seed=seed)
    agent, workspace = NRemoteAgent.create(TemporalAgent(Agents(env, Dice())), num_processes=2, t=0, n_steps=10)
    runs = []
    with agent:
        for given in (None, 7 if seed else 42):
            if given:
                agent.seed(given)
            agent(workspace, t=0, n_steps=10)
            runs.append((workspace["env/env_obs"][0].tolist(), workspace["action"].T.tolist(), workspace["luck"]))
    for first, actions, luck in runs:
        assert len({tuple(obs) for obs in first}) == 4
        assert len({tuple(column) for column in actions}) == 4
        assert luck.shape == (1, 4)
    with player(7 if seed else 42).agent[0] as one:
        own = Workspace()
        one(own, t=0)
        assert own["env/env_obs"][0].tolist() == runs[0][0][:2], "the first copy is what the agent would be here"


@pytest.mark.slow
def test_a_shorter_run_elsewhere_leaves_nothing_of_a_longer_one() -> None:
    env = ParallelGymAgent(partial(make_env, "CartPole-v1", autoreset=True), 2)
    agent, shared = NRemoteAgent.create(TemporalAgent(Agents(env, Dice())), 2, time_size=10, t=0, n_steps=3)
    with agent:
        for workspace in (shared, Workspace()):
            for steps in (6, 4):
                agent(workspace, t=0, n_steps=steps)
            counted = workspace["env/timestep"][:, 0].tolist()
            assert counted == ([0, 1, 2, 3] + [0] * 6 if workspace.is_shared else [0, 1, 2, 3])


def numbered() -> Any:
    """Envs with episodes of 1 and 2 steps; there are no more than these two."""
    lengths = iter((1, 2))

    def make() -> Any:
        env = Untiring()
        env.reset = partial(_reset_to, env, next(lengths))  # type: ignore[method-assign]
        return env

    return make


def _reset_to(env: Untiring, length: int, **kwargs: Any) -> Any:
    env.k, env.length = 0, length
    return np.zeros(1, np.float32), {}


class Stills(Agent):
    def forward(self, t: int, **kwargs: Any) -> None:
        self.set(("action", t), torch.zeros(2, dtype=torch.long))


@pytest.mark.slow
def test_an_asynchronous_agent_takes_its_envs_along() -> None:
    env = ParallelGymAgent(numbered(), 2)
    with env, AsynchronousAgent(TemporalAgent(Agents(env, Stills()))) as agent:
        agent(t=0, stop_variable="env/done")
        agent.wait()
        workspace = agent.get_workspace()
        assert workspace is not None
        assert workspace["env/done"].tolist() == [[False, False], [True, False], [True, True]]


def test_an_agent_in_no_process_is_a_copy_with_copies_of_the_envs() -> None:
    env = ParallelGymAgent(numbered(), 2)
    whole = TemporalAgent(Agents(env, Stills()))
    agent, workspace = NRemoteAgent.create(whole, num_processes=0, t=0, stop_variable="env/done")
    with env, agent.agent[0]:
        assert agent.agent[0] is not env
        agent(workspace, t=0, stop_variable="env/done")
    assert workspace["env/done"].tolist() == [[False, False], [True, False], [True, True]]


class Slow(Agent):
    def forward(self, **kwargs: Any) -> None:
        time.sleep(0.5)


@pytest.mark.slow
def test_an_agent_that_is_running_is_not_called_again() -> None:
    with AsynchronousAgent(Slow()) as agent:
        agent(t=0)
        for kind in (AssertionError, StateError):
            with pytest.raises(kind, match="is running"):
                agent(t=0)
        agent.wait()


@pytest.mark.slow
def test_an_asynchronous_agent() -> None:
    with AsynchronousAgent(player(3)) as agent:
        agent(t=0, n_steps=5)
        agent.wait()
        workspace, own = agent.get_workspace(), Workspace()
        one = player(3)
        one.load_state_dict(agent.agent.state_dict())
        one(own, t=0, n_steps=5)
        assert workspace is not None
        assert torch.equal(workspace["env/env_obs"], own["env/env_obs"])


class Graph(Agent):
    """Says whether what it writes has a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(1, 1)

    def forward(self, t: int, **kwargs: Any) -> None:
        self.set(("has graph", t), torch.tensor([self.lin(torch.ones(1)).requires_grad]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AsynchronousAgent, RemoteAgent])
def test_no_graphs_are_made_elsewhere(kind: Any) -> None:
    workspace = Workspace()
    with kind(Graph()) as agent:
        agent(workspace, t=0)
        if kind is AsynchronousAgent:
            agent.wait()
            workspace = agent.get_workspace()
    assert workspace["has graph"].tolist() == [[False]]


@pytest.mark.slow
def test_what_goes_wrong_elsewhere_is_told_here() -> None:
    with RemoteAgent(Failing()) as agent, pytest.raises(EnvCallError, match="not today"):
        agent(Workspace(), t=0)
    with AsynchronousAgent(Failing()) as agent:
        agent(t=0)
        with pytest.raises(EnvCallError, match="not today"):
            agent.wait()
