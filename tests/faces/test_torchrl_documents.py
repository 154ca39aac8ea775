"""TorchRL's documents of its environment API and of its vectorized envs: each example, and the rules told beside it."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tensor_envs import Story, Walk, assert_same
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torchrl_cases import BOOL, I64, Adder, Counter, Flags, ints, rows

from shoal.faces.torchrl import (
    AsyncEnvPool,
    Bounded,
    Categorical,
    ChessEnv,
    Composite,
    ConditionalSkip,
    DreamerEnv,
    EnvBase,
    EnvCreator,
    EnvMetaData,
    ExplorationType,
    FinancialRegimeEnv,
    GymEnv,
    GymLikeEnv,
    InitTracker,
    LLMHashingEnv,
    ModelBasedEnvBase,
    MultiThreadedEnv,
    ParallelEnv,
    PendulumEnv,
    ProcessorAsyncEnvPool,
    SerialEnv,
    StepCounter,
    TensorSpec,
    ThreadingAsyncEnvPool,
    TicTacToeEnv,
    TransformedEnv,
    Unbounded,
    check_env_specs,
    exploration_type,
    get_available_libraries,
    make_composite_from_td,
    set_exploration_type,
    split_trajectories,
    step_mdp,
    terminated_or_truncated,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

BATCHED = [SerialEnv, pytest.param(ParallelEnv, marks=pytest.mark.slow)]
BACKENDS = [
    ("threading", ThreadingAsyncEnvPool),
    pytest.param("multiprocessing", ProcessorAsyncEnvPool, marks=pytest.mark.slow),
]


def keys(td: TensorDictBase) -> set[Any]:
    """The keys of one level."""
    return set(td.keys())


# -- an env: attributes, specs ----------------------------------------------------------------------------------------


def test_attributes_of_every_env() -> None:
    """Batch size, device, and a spec of everything that goes in and out."""
    env = GymEnv("Pendulum-v1", device="cpu")
    assert isinstance(env, torch.nn.Module)
    assert env.batch_size == torch.Size([])
    assert env.device == torch.device("cpu")
    assert isinstance(env.observation_spec, Composite)
    assert keys(env.observation_spec) == {"observation"}
    assert isinstance(env.state_spec, Composite)
    assert not keys(env.state_spec)
    assert isinstance(env.action_spec, Bounded)
    for spec in (env.action_spec, env.reward_spec, env.done_spec):
        assert isinstance(spec, TensorSpec)
        assert spec.device == torch.device("cpu")
    assert keys(env.input_spec) == {"full_action_spec", "full_state_spec"}
    assert keys(env.output_spec) == {"full_observation_spec", "full_reward_spec", "full_done_spec"}
    assert env.reset().device == torch.device("cpu")


def test_data_that_is_no_tensor() -> None:
    """A NonTensor spec lets an env show texts."""
    env = Story()
    assert env.reset()["text"] == "step 0"
    assert env.rand_step(env.reset())["next", "text"] == "step 1"


def test_locked_specs() -> None:
    """Specs are locked from the start; unlocking them allows changes inside, assignment is allowed either way."""
    env = Counter()
    assert env.is_spec_locked
    with pytest.raises(RuntimeError):
        env.observation_spec["more"] = Unbounded((1,))
    assert env.observation_keys == ["count"]
    env.observation_spec = Composite(count=Unbounded((1,), dtype=I64), other=Unbounded((1,)))
    assert env.observation_keys == ["count", "other"]
    assert env.observation_spec.is_locked
    env.set_spec_lock_(False)
    env.observation_spec["more"] = Unbounded((1,))
    assert set(env.observation_keys) == {"count", "other", "more"}
    assert not Counter(spec_locked=False).observation_spec.is_locked


@pytest.mark.parametrize("make", [partial(Walk, batch_size=(4,)), partial(SerialEnv, 4, Walk)])
def test_specs_begin_with_the_batch_size(make: Any) -> None:
    """Shapes of specs have the batch size in front."""
    env = make()
    assert env.batch_size == torch.Size([4])
    assert env.action_spec.shape == torch.Size([4, 3])
    assert env.observation_spec["place"].shape == torch.Size([4, 3])
    assert env.reward_spec.shape == env.done_spec["done"].shape == torch.Size([4, 1])


# -- an env: methods --------------------------------------------------------------------------------------------------


def test_reset_and_step() -> None:
    """A reset gives observations and flags, with or without data; a step takes an action and writes under "next"."""
    env = Counter(limit=1)
    assert keys(env.reset()) == {"count", "done", "terminated"}
    given = TensorDict({"note": torch.ones(2)}, [])
    assert env.reset(given) is given
    assert keys(given) == {"note", "count", "done", "terminated"}
    stepped = env.step(given.set("action", torch.zeros(1, dtype=I64)))
    assert keys(stepped["next"]) == {"count", "done", "terminated", "reward"}
    assert ints(stepped["next", "done"]) == [True]
    stateless = Adder()
    moved = stateless.step(TensorDict({"x": torch.tensor([3.0]), "action": torch.tensor([2.0])}, []))
    assert ints(moved["next", "x"]) == [5.0]


@pytest.mark.parametrize("size", [(), (3,)])
def test_a_loop_that_never_stops(size: tuple[int, ...]) -> None:
    """Steps with resets where they are needed, put together after the loop."""
    env = Counter(limit=2, batch_size=size)
    following = env.reset()
    steps = []
    for _ in range(5):
        data, following = env.step_and_maybe_reset(env.rand_action(following))
        steps.append(data)
    result = torch.stack(steps)
    assert result.batch_size == (5, *size)
    per_step = result.reshape(5, -1)[:, 0]
    assert ints(per_step["count"]) == [0, 1, 0, 1, 0]
    assert ints(per_step["next", "count"]) == [1, 2, 1, 2, 1]
    assert ints(per_step["next", "done"]) == [False, True, False, True, False]
    assert ints(following["count"].reshape(-1)[:1]) == [1]
    assert "reward" not in keys(following)


def test_a_seed_gives_the_next_one() -> None:
    """Seeds for further envs follow from the first, the same each time, and repeat the data."""
    chains, firsts = [], []
    for _ in range(2):
        envs = [GymEnv("CartPole-v1") for _ in range(3)]
        chain = [7]
        for env in envs:
            chain.append(env.set_seed(chain[-1]))
        chains.append(chain)
        firsts.append(torch.stack([env.reset()["observation"] for env in envs]))
    assert chains[0] == chains[1]
    assert len(set(chains[0])) == 4
    assert torch.equal(*firsts)
    assert len(firsts[0].unique(dim=0)) == 3


def test_a_rollout_with_a_policy() -> None:
    """At most so many steps, of a module of TensorDicts; the last dim is called time."""
    env = Walk(limit=9, batch_size=(2,))
    policy = TensorDictModule(torch.nn.Linear(3, 3), in_keys=["place"], out_keys=["action"])
    with torch.no_grad():
        data = env.rollout(max_steps=4, policy=policy)
        assert data.batch_size == (2, 4)
        assert data.names[-1] == "time"
        assert torch.allclose(data["action"], policy.module(data["place"]))
    assert env.rollout(20).batch_size == (2, 9)


def test_what_a_rollout_does() -> None:
    """Reset, then policy, step and step_mdp in turns."""

    def policy(td: TensorDictBase) -> TensorDictBase:
        return td.set("action", -td["place"])

    env = Walk(limit=9)
    env.set_seed(3)
    td, steps = env.reset(), []
    for _ in range(4):
        td = env.step(policy(td))
        steps.append(td)
        td = step_mdp(td)
    env.set_seed(3)
    rollout = env.rollout(4, policy)
    assert_same(rollout, torch.stack(steps))
    assert torch.equal(rollout["next", "place"][:-1], rollout["place"][1:])


@pytest.mark.parametrize("name", ["done", "terminated"])
@pytest.mark.parametrize("value", [False, True])
def test_flags_come_in_pairs(name: str, value: bool) -> None:
    """A lone flag is taken for the end of the episode, and its dual is written beside it."""
    env = Flags([name], {name: value})
    assert {"done", "terminated"} <= keys(env.reset())
    following = env.rand_step(env.reset())["next"]
    assert ints(following["done"]) == ints(following["terminated"]) == [value]


def test_truncation_is_told_where_the_env_tells_it() -> None:
    """Gymnasium's truncation has an entry of its own, and done is the union."""
    with closing(GymEnv("Pendulum-v1", max_episode_steps=3)) as env:
        data = env.rollout(9)["next"]
        assert ints(data["truncated"]) == ints(data["done"]) == [False, False, True]
        assert not data["terminated"].any()
        # Rollouts look at done to decide about resets.
        assert ints(env.rollout(5, break_when_any_done=False)["next", "done"]) == [False, False, True, False, False]


def test_slices_of_adjacent_trajectories() -> None:
    """By the ids of trajectories, and by the flags where there are none."""
    data = Counter(limit=2).rollout(5, break_when_any_done=False)
    split = split_trajectories(data)
    assert rows(split["next", "count"]) == [[1, 2], [1, 2], [1, 0]]
    assert split["mask"].tolist() == [[True, True], [True, True], [True, False]]
    by_id = split_trajectories(data.set("traj_ids", torch.tensor([0, 0, 0, 1, 1])))
    assert rows(by_id["next", "count"]) == [[1, 2, 1], [2, 1, 0]]


def test_first_steps_are_marked() -> None:
    """InitTracker marks the first step of each trajectory."""
    env = TransformedEnv(Counter(limit=2), InitTracker())
    data = env.rollout(5, break_when_any_done=False)
    assert ints(data["is_init"]) == [True, False, True, False, True]


# -- classes and helpers that are listed ------------------------------------------------------------------------------


def test_base_classes() -> None:
    """What envs descend from, and a summary of one."""
    assert issubclass(GymEnv, GymLikeEnv)
    assert issubclass(GymLikeEnv, EnvBase)
    assert issubclass(DreamerEnv, ModelBasedEnvBase)
    assert issubclass(ModelBasedEnvBase, EnvBase)
    summary = EnvMetaData.metadata_from_env(Counter(batch_size=(2,)))
    assert summary.batch_size == (2,)
    assert set(summary.specs["output_spec", "full_observation_spec"].keys()) == {"count"}


@pytest.mark.parametrize("make", [FinancialRegimeEnv, PendulumEnv, TicTacToeEnv, ChessEnv])
def test_native_envs(make: Any) -> None:
    """Each keeps its own specs and runs without a library of envs."""
    if make is ChessEnv:
        pytest.importorskip("chess")
    env = make()
    check_env_specs(env)
    assert env.rollout(3).batch_size == (3,)


def test_the_native_env_of_texts() -> None:
    """It begins with the tokens that it is given, and adds one per step."""
    env = LLMHashingEnv(vocab_size=8)
    td = env.rand_step(env.reset(TensorDict({"observation": torch.tensor([1, 2])}, [])))
    assert td["next", "observation"].tolist() == [1, 2, *ints(td["action"])]


def test_helpers() -> None:
    """Each of the listed functions, once."""
    check_env_specs(Counter())
    with set_exploration_type(ExplorationType.MEAN):
        assert exploration_type() is ExplorationType.MEAN
    assert get_available_libraries()["gym"]
    spec = make_composite_from_td(TensorDict({"x": torch.zeros(2), "y": {"z": torch.ones(1, dtype=I64)}}, []))
    assert (spec["x"].shape, spec["y", "z"].dtype) == ((2,), I64)
    data = TensorDict({"done": [False, False], "truncated": [True, False]}, [])
    assert terminated_or_truncated(data)
    assert ints(data["_reset"]) == [True, False]
    assert keys(step_mdp(TensorDict({"x": 0, "next": {"x": 1, "reward": 2}}, []))) == {"x"}


# -- several envs as one ----------------------------------------------------------------------------------------------


def make_pendulum() -> GymEnv:
    return GymEnv("Pendulum-v1", from_pixels=True, g=9.81, device="cpu")


@pytest.mark.parametrize("kind", BATCHED)
def test_batched_envs_with_pictures(kind: Any) -> None:
    """Checked envs in a batch of four: its size, an attribute of each, and a reset of three of them."""
    with closing(make_pendulum()) as alone:
        check_env_specs(alone)
    with closing(kind(4, make_pendulum)) as env:
        assert env.batch_size == torch.Size([4])
        a, b, c, d = env.g
        assert a == b == c == d == 9.81
        td = TensorDict({"_reset": [[True], [False], [True], [True]]}, [4])
        out = env.reset(td)
        assert out is td
        assert keys(out) == {"done", "terminated", "truncated", "pixels"}
        assert out.batch_size == (4,)
        assert out["pixels"].shape == (4, 500, 500, 3)
        assert out["pixels"].dtype is torch.uint8
        for flag in ("done", "terminated", "truncated"):
            assert out[flag].shape == (4, 1)
            assert out[flag].dtype is BOOL
        assert out["pixels"].flatten(1).any(1).tolist() == [True, False, True, True]  # zeros where no data was given


def test_a_check_fails_where_data_and_specs_differ() -> None:
    """An AssertionError for what could not be written into the buffers of a batched env."""

    class Wider(Counter):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            return super()._step(tensordict).set("count", torch.zeros(2, dtype=I64))

    with pytest.raises(AssertionError):
        check_env_specs(Wider())


@pytest.mark.slow
def test_processes_and_no_processes_give_the_same() -> None:
    """SerialEnv is for finding out what ParallelEnv would do."""
    rollouts = []
    for kind in (SerialEnv, ParallelEnv):
        with closing(kind(2, EnvCreator(partial(Walk, limit=3)))) as env:
            env.set_seed(5)
            torch.manual_seed(0)
            rollouts.append(env.rollout(7, break_when_any_done=False))
    assert_same(*rollouts)


@pytest.mark.slow  # compiles
def test_envs_on_threads() -> None:
    """An env of a library by its name, several at once."""
    with closing(MultiThreadedEnv(3, "CartPole-v1")) as env:
        assert env.rollout(5, break_when_any_done=False).batch_size == (3, 5)


# -- partial steps ----------------------------------------------------------------------------------------------------


def test_locked_and_unlocked_batches() -> None:
    """An env with a state takes data of its own batch size, one without a state data of any."""
    gym = GymEnv("CartPole-v1")
    assert gym.batch_locked
    with pytest.raises(RuntimeError):
        gym.step(TensorDict({"action": torch.zeros(3, 2)}, [3]))
    stateless = PendulumEnv()
    assert not stateless.batch_locked
    td = stateless.rand_step(stateless.reset(stateless.gen_params(batch_size=[3])))
    assert td["next", "th"].shape[:1] == (3,)


def test_a_mask_is_a_step_of_some_rows_merged_with_the_others() -> None:
    """In an env that takes any batch, by hand and by mask."""
    mask = torch.tensor([True, False, True])
    td = TensorDict({"x": torch.tensor([[1.0], [2.0], [3.0]]), "action": torch.ones(3, 1)}, [3])
    by_hand = td["x"].clone()
    by_hand[mask] = Adder().step(td[mask])["next", "x"]
    assert ints(by_hand) == [2.0, 2.0, 4.0]
    assert torch.equal(Adder().step(td.copy().set("_step", mask))["next", "x"], by_hand)


@pytest.mark.parametrize("kind", BATCHED)
def test_only_chosen_envs_of_a_batch_are_stepped(kind: Any) -> None:
    """The others get no action and show what the input held for them, or zeros."""
    mask = torch.tensor([True, False, True])
    with closing(kind(3, partial(Walk, limit=9))) as env:
        td = env.rand_action(step_mdp(env.rand_step(env.reset())))
        assert ints(env.step(td.copy().set("_step", mask))["next", "count"]) == [2, 1, 2]
        assert list(env.steps) == [2, 1, 2]
        bare = td.select("action").set("_step", mask)
        assert ints(env.step(bare)["next", "count"]) == [3, 0, 3]


def test_an_env_without_a_batch_can_skip_a_step() -> None:
    """A single mask decides whether it is stepped at all."""
    env = Counter(limit=9)
    td = env.rand_action(env.reset())
    assert ints(env.step(td.copy().set("_step", torch.tensor(False)))["next", "count"]) == [0]
    assert env.n_steps == 0
    assert ints(env.step(td.copy().set("_step", torch.tensor(True)))["next", "count"]) == [1]


def test_a_transform_can_ask_for_skips() -> None:
    """ConditionalSkip: neither the env nor the other transforms see a step that is skipped."""
    env = TransformedEnv(Walk(limit=9), StepCounter())
    env.append_transform(ConditionalSkip(lambda td: td["step_count"] >= 2))
    data = env.rollout(5)["next"]
    assert ints(data["count"]) == ints(data["step_count"]) == [1, 2, 2, 2, 2]
    assert env.base_env.steps == 2
    some = TransformedEnv(SerialEnv(2, partial(Walk, limit=9)), ConditionalSkip(lambda td: torch.tensor([False, True])))
    with closing(some):
        assert rows(some.rollout(2)["next", "count"]) == [[1, 2], [0, 0]]
        assert list(some.base_env.steps) == [2, 0]


def test_a_rollout_until_all_have_ended() -> None:
    """Envs that have ended are no longer stepped."""
    with closing(SerialEnv(2, [partial(Walk, limit=2), partial(Walk, limit=4)])) as env:
        data = env.rollout(9, break_when_any_done=False, break_when_all_done=True)["next"]
        assert rows(data["count"]) == [[1, 2, 2, 2], [1, 2, 3, 4]]
        assert list(env.steps) == [2, 4]


# -- partial resets ---------------------------------------------------------------------------------------------------


class Zeros(EnvBase):
    """Shows zeros after a reset, and leaves it to the base class which of them count.

    Args:
        groups: Where values and flags are; at the root if there are none.
        root_done: Whether the root has flags too.
        nested_done: Whether the groups have flags.
    """

    def __init__(self, groups: Sequence[str] = (), root_done: bool = True, nested_done: bool = True) -> None:
        super().__init__()
        value = Unbounded((2,), dtype=I64)
        flags = {group: Composite(done=self.flag()) for group in groups if nested_done}
        self.observation_spec = Composite(
            {group: Composite(val=value.clone()) for group in groups} if groups else {"val": value}
        )
        self.action_spec = Unbounded((1,))
        self.reward_spec = Unbounded((1,))
        self.done_spec = Composite({**flags, **({"done": self.flag()} if root_done else {})})

    @staticmethod
    def flag() -> TensorSpec:
        return Categorical(2, shape=(2,), dtype=BOOL)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return self.observation_spec.zero()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self.observation_spec.zero().update(self.full_done_spec.zero()).set("reward", torch.zeros(1))

    def _set_seed(self, seed: int | None) -> None:
        pass


def two_agents(**root: Any) -> TensorDict:
    entries = {
        **root,
        ("agent0", "val"): [1, 1],
        ("agent0", "_reset"): [False, True],
        ("agent1", "val"): [2, 2],
        ("agent1", "_reset"): [True, False],
    }
    return TensorDict(entries, [])


AGENTS = ("agent0", "agent1")


def test_a_mask_at_the_root() -> None:
    """Only the second of two values is reset, in the data that was given, and the mask is gone."""
    data = TensorDict({"val": [1, 1], "_reset": [False, True]}, [])
    Zeros().reset(data)
    assert ints(data["val"]) == [1, 0]
    assert keys(data) == {"val", "done", "terminated"}


def test_masks_of_groups() -> None:
    """Each group has a mask of its own."""
    data = two_agents()
    Zeros(AGENTS, root_done=False).reset(data)
    assert [ints(data[agent, "val"]) for agent in AGENTS] == [[1, 0], [0, 2]]
    assert not any("_reset" in keys(data[agent]) for agent in AGENTS)


def test_a_mask_at_the_root_supersedes_those_of_groups() -> None:
    """Everything below it is reset."""
    data = two_agents(_reset=[True, True])
    Zeros(AGENTS).reset(data)
    assert [ints(data[agent, "val"]) for agent in AGENTS] == [[0, 0], [0, 0]]
    assert not any("_reset" in keys(level) for level in (data, data["agent0"], data["agent1"]))


def test_a_mask_belongs_beside_a_flag() -> None:
    """No mask beside the flags is a total reset, whatever is below."""
    data = TensorDict({"done": [False, False], "nested": {"val": [1, 1], "_reset": [True, False]}}, [])
    Zeros(["nested"], nested_done=False).reset(data)
    assert ints(data["nested", "val"]) == [0, 0]


def test_a_rollout_resets_only_what_has_ended() -> None:
    """Episodes of different lengths go on side by side."""
    with closing(SerialEnv(2, [partial(Walk, limit=2), partial(Walk, limit=3)])) as env:
        data = env.rollout(5, break_when_any_done=False)["next"]
        assert rows(data["count"]) == [[1, 2, 1, 2, 1], [1, 2, 3, 1, 2]]


# -- envs that are sent to and received from --------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*written over the NonTensorData:FutureWarning")
@pytest.mark.parametrize(("backend", "kind"), BACKENDS)
def test_two_kinds_of_env_in_one_pool(backend: str, kind: Any) -> None:
    """A reset and a step of both, then a step of the first alone."""
    makers = [partial(GymEnv, "Pendulum-v1"), partial(GymEnv, "CartPole-v1")]
    with closing(AsyncEnvPool(makers, stack="lazy", backend=backend)) as env:
        assert type(env) is kind
        first = env.reset()
        assert [first[i]["observation"].shape for i in range(2)] == [(3,), (4,)]
        both = env.rand_step(first)
        assert [both[i]["next", "observation"].shape for i in range(2)] == [(3,), (4,)]
        alone = both[0]
        action = torch.randn(1).clamp(-1, 1)
        alone["action"] = action
        alone["env_index"] = 0
        env.async_step_send(alone)
        result = env.async_step_recv()
        assert result.batch_size == (1,)
        assert list(result["env_index"]) == [0]
        assert torch.equal(result["action"][0], action)
        assert result["next", "observation"].shape == (1, 3)


def test_transforms_around_and_inside_an_async_pool() -> None:
    """Around it the pool is an env as any other; inside, its rows can be sent for one by one."""
    with closing(TransformedEnv(AsyncEnvPool([partial(Walk, limit=9)] * 2), StepCounter())) as around:
        assert rows(around.rollout(3)["next", "step_count"]) == [[1, 2, 3]] * 2
    with closing(AsyncEnvPool([lambda: TransformedEnv(Walk(limit=9), StepCounter())] * 2)) as inside:
        td = inside.rand_action(inside.reset())
        inside.async_step_send(td[1:])
        assert ints(inside.async_step_recv()["next", "step_count"]) == [1]
        inside.async_step_send(td[:1])
        result = inside.async_step_recv()
        assert list(result["env_index"]) == [0]
        assert ints(result["next", "step_count"]) == [1]
