"""SerialEnv, EnvCreator, and what all batched envs have in common: arguments, life, masks, views, attributes."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from typing import Any

import pytest
import torch
from tensor_envs import Adder, Agents, Reader, Story, Walk, assert_same
from tensordict import LazyStackedTensorDict, TensorDict
from torchrl_cases import TwoAgents

from shoal.errors import ShoalError
from shoal.faces.torchrl import (
    AsyncEnvPool,
    EnvCreator,
    EnvMetaData,
    GymEnv,
    SerialEnv,
    StepCounter,
    check_env_specs,
    env_creator,
    get_env_metadata,
)
from shoal.faces.torchrl.batched.views import places_of


def walks(*limits: int, **kwargs: Any) -> SerialEnv:
    return SerialEnv(len(limits), [partial(Walk, limit=limit, **kwargs) for limit in limits])


def zeros(env: Any, td: TensorDict) -> TensorDict:
    return td.set("action", torch.zeros(env.action_spec.shape))


# ---------------------------------------------------------------------- arguments and life


def test_specs_are_there_before_the_envs() -> None:
    env = walks(2, 3)
    assert env.is_closed
    assert env.batch_size == (2,)
    assert env.observation_spec["place"].shape == (2, 3)
    assert env.action_spec.shape == (2, 3)
    assert env.reset_keys == ["_reset"]
    env.start()
    assert not env.is_closed
    with pytest.raises(RuntimeError, match="runs already"):
        env.start()
    env.close()
    with pytest.raises(RuntimeError, match="closed already"):
        env.close()
    env.close(raise_if_closed=False)
    assert env.reset()["count"].shape == (2, 1)  # a closed env comes back
    env.close()


def test_a_list_of_one_function_probes_once() -> None:
    made = []

    def make(limit: int = 3) -> Walk:
        made.append(limit)
        return Walk(limit)

    SerialEnv(3, [make] * 3)
    assert made == [3]
    env = SerialEnv(2, make, create_env_kwargs=[{"limit": 1}, {"limit": 2}])
    assert made == [3, 1]
    assert env.limit == [1, 2]
    env.close()


def test_envs_that_are_not_like_the_one_looked_at_are_refused() -> None:
    env = SerialEnv(2, Walk, create_env_kwargs=[{"width": 2}, {"width": 3}])
    with pytest.raises(RuntimeError, match=r"env 1: 'place' has shape \(3,\).*has \(2,\)"):
        env.reset()
    env = SerialEnv(2, Walk, create_env_kwargs=[{"width": 2}, {"width": 3}], use_buffers=False)
    assert [row["place"].shape for row in env.reset().unbind(0)] == [(2,), (3,)]
    env.close()


class Liar(Walk):
    """Returns two counts where its spec says one, from a step on."""

    def __init__(self, lies_from: int = 0) -> None:
        super().__init__(limit=9)
        self.lies_from = lies_from

    def _shown(self) -> TensorDict:
        shown = super()._shown()
        return shown.set("count", torch.zeros(2, dtype=torch.int64)) if self.steps >= self.lies_from else shown


@pytest.mark.parametrize("makers", [[Liar] * 2, [Walk, Liar], [partial(Walk, width=2), Liar]], ids=str)
def test_data_that_is_not_as_its_spec_says_is_refused(makers: Any) -> None:
    with pytest.raises(RuntimeError, match=r"env \d: 'count': the spec says shape \(1,\), and the env returned \(2,\)"):
        SerialEnv(2, makers).reset()
    late = SerialEnv(2, partial(Liar, 2))
    late.rand_step(late.reset())
    with pytest.raises(RuntimeError, match="env 0: 'count'"):
        late.rand_step()
    assert SerialEnv(2, Liar, use_buffers=False).reset()["count"].shape == (2, 2)


def test_data_of_each_env_can_be_kept_apart() -> None:
    env = SerialEnv(2, partial(Walk, limit=3), share_individual_td=True)
    root = env.reset()
    stepped, following = env.step_and_maybe_reset(env.rand_action(root))
    for td in (root, stepped, stepped["next"], following, env.rollout(3)):
        assert isinstance(td, LazyStackedTensorDict)
        assert td.stack_dim == 0
    assert env.rollout(7, break_when_any_done=False)["count"].squeeze(-1).tolist() == [[0, 1, 2, 0, 1, 2, 0]] * 2
    env.close()
    gyms = SerialEnv(2, partial(GymEnv, "CartPole-v1"), share_individual_td=True)
    assert isinstance(gyms.reset(), LazyStackedTensorDict)
    gyms.close()


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        ((2, [Walk] * 3), {}, RuntimeError),
        ((2, Walk), {"create_env_kwargs": [{}]}, RuntimeError),
        ((2, Walk), {"shared_memory": True, "memmap": True}, RuntimeError),
        ((2, Walk), {"mp_start_method": "fork"}, TypeError),
        ((2, Walk), {"metadata_from_workers": True}, TypeError),
        ((2, Walk), {"pin_memory": True}, ValueError),
        ((2, Walk), {"allow_step_when_done": True}, ValueError),
        ((0, Walk), {}, ValueError),
        ((2, "Walk"), {}, TypeError),
        ((2, lambda: 3), {}, RuntimeError),
    ],
    ids=[
        "three makers",
        "one dict",
        "two memories",
        "a method",
        "workers",
        "pins",
        "done",
        "none",
        "a name",
        "a number",
    ],
)
def test_arguments_that_make_no_sense(arguments: Any, options: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        SerialEnv(*arguments, **options)
    assert isinstance(caught.value, ShoalError)


def test_an_env_in_place_of_a_function_is_named() -> None:
    with pytest.raises(TypeError, match="expected a function that makes an env, got the env Walk"):
        SerialEnv(2, Walk())


def test_keyword_arguments_are_each_envs_own() -> None:
    shared: dict[str, Any] = {"limit": 4}
    env = SerialEnv(2, Walk, create_env_kwargs=shared)
    env.update_kwargs([{"limit": 6}, {"width": 3}])
    env.reset()
    assert env.limit == [6, 4]
    assert shared == {"limit": 4}
    env.close()


def test_options_can_be_changed_until_the_start() -> None:
    env = walks(2, 2)
    before = torch.get_num_threads()
    assert env.configure_parallel(num_threads=1) is env
    with pytest.raises(ValueError, match="unknown options"):
        env.configure_parallel(speed=11)
    env.reset()
    assert torch.get_num_threads() == 1
    with pytest.raises(RuntimeError, match="run already"):
        env.configure_parallel(num_threads=2)
    env.close()
    assert torch.get_num_threads() == before


def test_truncated_keys_are_for_the_envs_to_add() -> None:
    with pytest.raises(RuntimeError, match="call it on each env"):
        walks(2).add_truncated_keys()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_makes_its_own_envs(copied: Any) -> None:
    env = SerialEnv(2, partial(Walk, limit=9))
    td = env.rand_step(env.reset())
    twin = copied(env)
    assert twin.is_closed
    assert twin.rand_step(twin.reset())["next", "count"].flatten().tolist() == [1, 1]
    assert env.rand_step(env.step_mdp(td))["next", "count"].flatten().tolist() == [2, 2]
    twin.close()
    env.close()


def test_one_env_handed_out_twice_is_copied() -> None:
    same = Walk(limit=9)
    env = SerialEnv(2, lambda: same)
    td = zeros(env, env.reset())
    td["_step"] = torch.tensor([True, False])
    assert env.step(td)["next", "count"].flatten().tolist() == [1, 0]
    assert env.steps == [1, 0]
    env.close()


# ---------------------------------------------------------------------- data


def test_rows_are_those_of_the_envs() -> None:
    env, alone = walks(2, 4, 6), [Walk(limit) for limit in (2, 4, 6)]
    assert env.set_seed(7) == alone[2].set_seed(alone[1].set_seed(alone[0].set_seed(7)))
    actions = torch.rand(5, 3, 3)
    td, each = env.reset(), [one.reset() for one in alone]
    for action in actions:
        td["action"] = action
        stepped, td = env.step_and_maybe_reset(td)
        for i, one in enumerate(alone):
            each[i]["action"] = action[i]
            own, each[i] = one.step_and_maybe_reset(each[i])
            assert_same(stepped[i], own)
            assert_same(td[i], each[i])
    env.close()


@pytest.mark.parametrize("name", ["CartPole-v1", "FrozenLake-v1"])
def test_actions_may_be_plain_numbers(name: str) -> None:
    make = partial(GymEnv, name, categorical_action_encoding=True)
    env = SerialEnv(2, make)
    env.set_seed(0)
    actions = torch.randint(env.action_spec.space.n, (6, 2))
    rows = env.rollout(6, actions=actions)
    assert rows["action"].shape == rows.batch_size
    alone = make()
    alone.set_seed(0)
    assert_same(rows[0], alone.rollout(rows.shape[1], actions=actions[:, 0]))
    env.close()


def test_results_do_not_change_later() -> None:
    env = SerialEnv(2, partial(GymEnv, "CartPole-v1"))
    first = env.rand_step(env.reset())
    kept = first.clone()
    env.rand_step(env.step_mdp(first))
    assert_same(first, kept)
    env.close()


@pytest.mark.parametrize("apart", [True, False])
def test_an_env_may_write_to_its_tensors_again(apart: bool) -> None:
    class Reusing(Adder):
        def _step(self, tensordict: Any) -> Any:
            return self.memory.set("x", self.memory["x"].add_(1)).copy()

        def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
            self.memory = TensorDict({"x": torch.zeros(1), "reward": torch.zeros(1)}, [])
            return self.memory.select("x")

    env = SerialEnv(2, Reusing, share_individual_td=apart)
    root = env.reset()
    stepped = env.rand_step(root)
    env.rand_step(root.copy())
    assert root["x"].flatten().tolist() == [0, 0]
    assert stepped["next", "x"].flatten().tolist() == [1, 1]
    env.close()


def test_gradients_flow() -> None:
    class Slope(Adder):
        def _step(self, tensordict: Any) -> Any:
            x = tensordict["x"] + 3 * tensordict["action"]
            return TensorDict({"x": x, "reward": x, "done": torch.zeros(1, dtype=torch.bool)}, [])

    env = SerialEnv(2, Slope)
    action = torch.ones(2, 1, requires_grad=True)
    env.step(env.reset().set("action", action))["next", "reward"].sum().backward()
    assert action.grad is not None
    assert action.grad.flatten().tolist() == [3, 3]
    env.close()


def test_state_travels_in_the_data() -> None:
    env = SerialEnv(2, Adder)
    td = env.reset(TensorDict({"x": torch.tensor([[1.0], [2.0]])}, [2]))
    assert td["x"].flatten().tolist() == [101, 102]
    td["action"] = torch.ones(2, 1)
    assert env.step(td)["next", "x"].flatten().tolist() == [102, 103]
    env.close()


def test_envs_that_differ_give_lazy_stacks() -> None:
    env = SerialEnv(2, [partial(Walk, width=2), partial(Walk, width=3)])
    td = env.reset()
    assert isinstance(td, LazyStackedTensorDict)
    assert td[0]["place"].shape == (2,)
    assert td[1]["place"].shape == (3,)
    with pytest.raises(RuntimeError):
        td["place"]
    rollout = env.rollout(4, break_when_any_done=False)
    assert rollout[1]["next", "place"].shape == (4, 3)
    env.close()


def test_envs_of_different_kinds() -> None:
    env = SerialEnv(2, [partial(GymEnv, "Pendulum-v1"), partial(GymEnv, "CartPole-v1")])
    rollout = env.rollout(3, return_contiguous=False)
    assert rollout[0]["observation"].shape == (3, 3)
    assert rollout[1]["action"].shape == (3, 2)
    env.close()


def test_texts_and_growing_lists() -> None:
    env = SerialEnv(2, Story)
    td = zeros(env, env.reset()).set("action", torch.zeros(2, 1, dtype=torch.int64))
    following = env.step(td)["next"]
    assert following[1]["text"] == "step 1"
    assert following[0]["tokens"].tolist() == [0, 1]
    env.close()


def lengths(td: Any) -> list[int]:
    return [len(row["tokens"]) for row in td.unbind(0)]


def test_lists_grow_and_begin_anew_row_by_row() -> None:
    env = SerialEnv(2, Story)
    td = env.step_mdp(env.rand_step(env.reset()))
    td = env.reset(td.set("_reset", torch.tensor([[True], [False]])))
    assert lengths(td) == [1, 2]
    rollout = env.rollout(4, auto_reset=False, tensordict=td, break_when_any_done=False)
    assert [lengths(step) for step in rollout.unbind(1)] == [[1, 2], [2, 3], [3, 1], [1, 2]]
    td = env.step_mdp(rollout[:, 0])
    for mask, expected in (([False, False], [2, 3]), ([True, False], [3, 3])):
        stepped = env.step(env.rand_action(td.copy()).set("_step", torch.tensor(mask)))
        assert lengths(stepped["next"]) == expected
    env.close()


def test_envs_that_are_batches() -> None:
    env = SerialEnv(2, partial(Walk, batch_size=(3,), limit=2))
    assert env.batch_size == (2, 3)
    assert env.rollout(2).batch_size == (2, 3, 2)
    td = zeros(env, env.reset())
    td["_step"] = torch.tensor([[True] * 3, [False] * 3])
    assert env.step(td)["next", "count"].squeeze(-1).tolist() == [[1, 1, 1], [0, 0, 0]]
    td = zeros(env, env.reset())
    td["_step"] = torch.tensor([[True] * 3, [True, False, False]])
    with pytest.raises(ValueError, match="as a whole or not at all"):
        env.step(td)
    env.close()


def test_a_device_is_said() -> None:
    env = SerialEnv(2, Walk, device="cpu")
    assert env.device == torch.device("cpu")
    assert env.reset().device == torch.device("cpu")
    assert walks(2).device is None
    on_cpu = SerialEnv(2, partial(Walk, device="cpu"))
    assert on_cpu.device == torch.device("cpu")
    assert env.rand_step(env.reset())["next"].device == torch.device("cpu")
    env.close()


# ---------------------------------------------------------------------- partial steps and resets


def stepped_once(env: Any) -> TensorDict:
    return env.step_mdp(env.step(zeros(env, env.reset())))


def test_a_partial_reset_keeps_what_it_is_given() -> None:
    env = walks(9, 9, 9)
    td = stepped_once(env)
    before = td["place"].clone()
    td["_reset"] = torch.tensor([[True], [False], [True]])
    out = env.reset(td)
    assert out is td
    assert out.get("_reset", None) is None
    assert out["count"].flatten().tolist() == [0, 1, 0]
    assert torch.equal(out["place"][1], before[1])
    assert env.resets == [2, 1, 2]
    env.close()


def test_a_partial_reset_without_data_is_zero_elsewhere() -> None:
    env = walks(9, 9, 9)
    stepped_once(env)
    out = env.reset(TensorDict({"_reset": torch.tensor([[True], [False], [True]])}, [3]))
    assert out["place"][1].tolist() == [0, 0, 0]
    assert env.resets == [2, 1, 2]
    env.close()


@pytest.mark.parametrize("shape", [(3, 1), (3,)])
def test_a_mask_that_is_nowhere_true_resets_nobody(shape: tuple[int, ...]) -> None:
    env = walks(9, 9, 9)
    td = stepped_once(env)
    td["_reset"] = torch.zeros(shape, dtype=torch.bool)
    assert env.reset(td)["count"].flatten().tolist() == [1, 1, 1]
    assert env.resets == [1, 1, 1]
    env.close()


def test_part_of_a_batched_env_is_reset() -> None:
    env = SerialEnv(2, partial(Walk, batch_size=(2,), limit=9))
    td = stepped_once(env)
    td["_reset"] = torch.tensor([[[True], [False]], [[False], [False]]])
    assert env.reset(td)["count"].squeeze(-1).tolist() == [[0, 1], [1, 1]]
    assert env.resets == [2, 1]
    env.close()


def agents_after_a_step() -> tuple[SerialEnv, TensorDict]:
    env = SerialEnv(2, partial(Agents, limits=(9, 9)))
    td = env.reset()
    for g in (0, 1):
        td[f"group{g}", "action"] = torch.zeros(2, 2, dtype=torch.int64)
    return env, env.step_mdp(env.step(td))


def test_nested_masks_reset_their_own() -> None:
    env, td = agents_after_a_step()
    assert td["group0"].batch_size == (2, 2)
    td["group0", "_reset"] = torch.tensor([[[True], [False]], [[False], [False]]])
    td["group1", "_reset"] = torch.zeros(2, 2, 1, dtype=torch.bool)
    out = env.reset(td)
    assert out["group0", "val"].squeeze(-1).tolist() == [[0, 1], [1, 1]]
    assert out["group1", "val"].squeeze(-1).tolist() == [[1, 1], [1, 1]]
    env.close()


def test_nested_masks_come_all_or_none() -> None:
    env, td = agents_after_a_step()
    td["group0", "_reset"] = torch.ones(2, 2, 1, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"\('group1', '_reset'\)\] missing"):
        env.reset(td)
    env.close()


def test_nested_episodes_end_on_their_own() -> None:
    env = SerialEnv(2, Agents)
    rollout = env.rollout(5, break_when_any_done=False)
    assert (rollout["group0", "val"] < 2).all()
    assert (rollout["group1", "val"] < 3).all()
    assert rollout["next", "group0", "done"].any()
    env.close()


def test_arguments_of_resets() -> None:
    env = walks(9, 9)
    assert (env.reset(start=10.0)["place"] >= 10).all()
    out = env.reset(list_of_kwargs=[{"start": 20.0}, {}])["place"]
    assert (out[0] >= 20).all()
    assert (out[1] < 20).all()
    with pytest.raises(RuntimeError, match="expected 2 dicts"):
        env.reset(list_of_kwargs=[{}])
    env.close()


# ---------------------------------------------------------------------- attributes, views, state


def test_attributes_are_those_of_all() -> None:
    env = walks(2, 4)
    assert env.limit == [2, 4]  # not started yet
    assert env.echo(1, b=2) == [(2, 1, ("b", 2)), (4, 1, ("b", 2))]
    with pytest.raises(AttributeError):
        _ = env.no_such_attribute
    with pytest.raises(AttributeError):
        _ = env._private
    env.close()


def test_a_gym_attribute_is_found_behind_its_wrappers() -> None:
    env = SerialEnv(2, partial(GymEnv, "Pendulum-v1", g=9.81))
    assert env.g == [9.81, 9.81]
    env.close()


def test_an_env_that_is_rebuilt_is_the_one_that_is_stepped() -> None:
    env = SerialEnv(2, partial(GymEnv, "Pendulum-v1", g=9.81))
    expected = SerialEnv(2, partial(GymEnv, "Pendulum-v1", g=1.62))
    env.reset()
    env.rebuild_with_kwargs(g=1.62)
    assert env.set_seed(0) == expected.set_seed(0)
    push = torch.ones(2, 1)
    after = [each.step(each.reset().set("action", push))["next", "observation"] for each in (env, expected)]
    assert torch.equal(*after)
    for each in (env, expected):
        each.close()


def test_a_view_shares_the_envs() -> None:
    env = walks(9, 8, 7)
    assert env.is_closed
    assert env[0].reset()["count"].shape == (1, 1)
    assert not env.is_closed
    td = zeros(env, env.reset())
    view = env[1:]
    assert view.batch_size == (2,)
    assert view.limit == [8, 7]
    assert view[0].limit == [8]
    view.step(td[1:].clone())
    assert env.steps == [0, 1, 1]
    assert view.reset()["count"].shape == (2, 1)
    assert env[-1].batch_size == (1,)
    assert env[[2, 0]].limit == [7, 9]
    view.close()
    assert not env.is_closed
    with pytest.raises(NotImplementedError):
        env[0] = Walk()
    env.close()
    with pytest.raises(RuntimeError, match="closed"):
        view.reset()


@pytest.mark.parametrize(
    ("index", "places"),
    [
        (1, [1]),
        (-1, [2]),
        (slice(None, None, 2), [0, 2]),
        ([2, 0], [2, 0]),
        (range(2), [0, 1]),
        (torch.tensor([1]), [1]),
    ],
    ids=str,
)
def test_places(index: Any, places: list[int]) -> None:
    assert places_of(index, 3) == places


def test_places_that_are_not_there() -> None:
    with pytest.raises(IndexError):
        places_of(3, 3)
    with pytest.raises(NotImplementedError):
        places_of(torch.tensor([True, False, True]), 3)


def test_seeds_are_a_chain() -> None:
    env = walks(2, 2, 2)
    assert env.set_seed(0) == 2309840538
    assert env.seeds == [[0], [795726461], [2841183792]]
    assert env.set_seed(5, static_seed=True) == 5
    assert [seeds[-1] for seeds in env.seeds] == [5, 5, 5]
    env.close()


def test_seeds_of_batches_in_a_batch_are_one_chain() -> None:
    env = SerialEnv(2, partial(SerialEnv, 2, Walk))
    assert env.set_seed(0) == 3018685293
    assert [seeds for batch in env.seeds for seeds in batch] == [[0], [795726461], [2841183792], [2309840538]]
    env.close()


def test_states_by_worker() -> None:
    class WithState(Walk):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.register_buffer("weight", torch.zeros(2))

    env = SerialEnv(2, WithState)
    state = env.state_dict()
    assert list(state) == ["worker0", "worker1"]
    state["worker1"]["weight"] = torch.ones(2)
    env.load_state_dict(state)
    assert [w.tolist() for w in env.weight] == [[0, 0], [1, 1]]
    env.load_state_dict({"weight": torch.full((2,), 7.0)})
    assert [w.tolist() for w in env.weight] == [[7, 7], [7, 7]]
    env.close()


# ---------------------------------------------------------------------- among other envs


@pytest.mark.parametrize(
    "makers", [Walk, Story, [partial(Walk, width=1), Walk], partial(Walk, batch_size=(2,))], ids=str
)
def test_specs_hold(makers: Any) -> None:
    env = SerialEnv(2, makers)
    check_env_specs(env, return_contiguous=False)
    assert env.fake_tensordict().batch_size == env.batch_size
    env.close()


def test_transforms_inside_and_outside_are_the_same() -> None:
    inside = SerialEnv(2, lambda: Walk().append_transform(StepCounter(max_steps=3)))
    outside = SerialEnv(2, Walk).append_transform(StepCounter(max_steps=3))
    rollouts = []
    for env in (inside, outside):
        env.set_seed(0)
        torch.manual_seed(0)
        rollouts.append(env.rollout(9, break_when_any_done=False))
        env.close()
    assert_same(*rollouts)


def test_batched_envs_of_batched_envs() -> None:
    env = SerialEnv(2, lambda: AsyncEnvPool([Walk] * 3))
    assert env.rollout(7, break_when_any_done=False).batch_size == (2, 3, 7)
    env.close()


@pytest.mark.parametrize("around", [lambda env: env, lambda env: env.append_transform(StepCounter())])
def test_masks_of_groups_need_one_at_the_root_where_it_has_a_flag(around: Any) -> None:
    env = around(SerialEnv(2, partial(TwoAgents, root_done=True)))
    td = env.reset()
    groups = {agent: {"_reset": torch.zeros(2, 2, 1, dtype=torch.bool)} for agent in ("agent0", "agent1")}
    with pytest.raises(ValueError, match=r"\['_reset'\] missing"):
        env.reset(td.copy().update(groups))
    td["_reset"] = torch.tensor([[True], [False]])
    assert env.reset(td.update(groups))["agent0", "val"].shape == (2, 2)
    env.close()


def test_what_a_policy_wrote_is_carried_on() -> None:
    env = SerialEnv(2, partial(GymEnv, "CartPole-v1"))
    td = env.rand_action(env.reset()).set("hidden", torch.ones(2, 4))
    td["next"] = TensorDict({"memory": torch.ones(2, 1)}, [2])
    stepped, root = env.step_and_maybe_reset(td)
    assert stepped["next", "memory"].shape == (2, 1)
    assert root["hidden"].shape == (2, 4)
    assert root["memory"].shape == (2, 1)
    env.close()


def test_an_env_reads_all_there_is() -> None:
    env = SerialEnv(2, Reader)
    assert env.rollout(6, break_when_any_done=False)["next", "x"].squeeze(-1).tolist() == [[1, 2, 3, 4, 1, 2]] * 2
    td = env.rand_action(env.reset()).set("x", torch.full((2, 1), 50.0)).set("extra", torch.ones(2, 1))
    td["next"] = TensorDict({"memory": torch.ones(2, 1)}, [2])
    assert env.step(td)["next", "x"].tolist() == [[52.0]] * 2
    assert td["next", "memory"].tolist() == [[1.0]] * 2
    env.close()


# ---------------------------------------------------------------------- EnvCreator


def test_a_creator_knows_what_it_makes() -> None:
    made = []

    def make(limit: int = 3, width: int = 3) -> Walk:
        made.append((limit, width))
        return Walk(limit, width)

    creator = EnvCreator(make, {"limit": 5}, width=2)
    assert made == [(5, 2)]
    assert creator.meta_data.batch_size == ()
    assert creator(limit=9).limit == 5  # its own arguments win
    env = SerialEnv(2, creator)
    assert made == [(5, 2)] * 2  # nobody looked once more
    assert env.limit == [5, 5]
    env.close()
    with pytest.raises(RuntimeError, match="make_variant"):
        SerialEnv(2, creator, create_env_kwargs={"limit": 3})


def test_a_creator_takes_functions_without_a_name_along() -> None:
    creator = EnvCreator(lambda limit: Walk(limit), {"limit": 3}, limit=5)
    assert pickle.loads(pickle.dumps(creator))().limit == 3  # what is given as one wins
    assert copy.deepcopy(creator)().limit == 3


def test_a_variant_is_another_creator() -> None:
    creator = EnvCreator(Walk, limit=7)
    variant = creator.make_variant(limit=11)
    assert (creator().limit, variant().limit) == (7, 11)
    assert "7" in repr(creator)


def test_a_creators_envs_share_tensordicts_of_their_state() -> None:
    class Keeper(Walk):
        def __init__(self) -> None:
            super().__init__()
            self.kept = TensorDict({"sum": torch.zeros(1)}, [])

        def get_extra_state(self) -> Any:
            return self.kept

        def set_extra_state(self, state: Any) -> None:
            self.kept = state

    creator = EnvCreator(Keeper)
    first, second = creator(), creator()
    first.kept["sum"].add_(3)
    assert second.kept["sum"].item() == 3
    private = EnvCreator(Keeper, share_memory=False)
    one, other = private(), private()
    one.kept["sum"].add_(3)
    assert other.kept["sum"].item() == 0


def test_metadata_of_whatever_there_is() -> None:
    assert isinstance(env_creator(Walk), EnvCreator)
    assert get_env_metadata(Walk()).batch_size == ()
    assert get_env_metadata(partial(Walk, batch_size=(2,))).batch_size == (2,)
    assert isinstance(get_env_metadata(EnvCreator(Walk)), EnvMetaData)
    with pytest.raises(RuntimeError, match="takes none"):
        get_env_metadata(Walk(), {"limit": 3})
