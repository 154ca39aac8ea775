"""rollout with each of its arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl_cases import I64, Adder, Counter, TwoAgents, ints, rows

from shoal.faces.torchrl import Categorical, Composite, StepCounter, Unbounded

ONE = torch.ones(1, dtype=I64)


class Limits(Counter):
    """A batch of counters that end at different times."""

    def __init__(self, limits: list[int]) -> None:
        super().__init__(limit=0, batch_size=(len(limits),))
        self.limits = torch.tensor(limits).unsqueeze(-1)
        self.steps_of = torch.zeros(len(limits), dtype=I64)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        mask = tensordict.get("_step", None)
        self.steps_of = self.steps_of + (1 if mask is None else mask.to(I64))
        out = super()._step(tensordict)
        return out.set("done", self.count >= self.limits)


def test_it_stops_at_the_first_end() -> None:
    r = Counter(limit=3).rollout(10)
    assert r.batch_size == (3,)
    assert r.names == ["time"]
    assert ints(r["count"]) == [0, 1, 2]
    assert ints(r["next", "count"]) == [1, 2, 3]
    assert ints(r["next", "done"]) == [False, False, True]
    assert Counter(limit=3).rollout(2).batch_size == (2,)
    assert Limits([2, 4]).rollout(9).batch_size == (2, 2)


@given(limits=st.lists(st.integers(1, 6), min_size=1, max_size=4), steps=st.integers(1, 9))
def test_it_goes_on_with_new_episodes(limits: list[int], steps: int) -> None:
    r = Limits(limits).rollout(steps, break_when_any_done=False)
    assert r.batch_size == (len(limits), steps)
    assert r.names == [None, "time"]
    assert rows(r["count"]) == [[t % limit for t in range(steps)] for limit in limits]
    assert rows(r["next", "count"]) == [[t % limit + 1 for t in range(steps)] for limit in limits]
    assert not r["done"].any()


@given(limits=st.lists(st.integers(1, 6), min_size=1, max_size=4), steps=st.integers(1, 9))
def test_rows_that_have_ended_repeat_their_last_step(limits: list[int], steps: int) -> None:
    env = Limits(limits)
    r = env.rollout(steps, break_when_all_done=True)
    length = min(steps, max(limits))
    assert rows(r["next", "count"]) == [[min(t + 1, limit) for t in range(length)] for limit in limits]
    assert rows(r["count"]) == [[min(t, limit - 1) for t in range(length)] for limit in limits]
    assert rows(r["next", "done"]) == [[t + 1 >= limit for t in range(length)] for limit in limits]
    assert not r["done"].any()
    assert (r["next", "reward"] == 1).all()
    assert "_step" not in r.keys(True)
    assert env.steps_of.tolist() == [min(limit, length) for limit in limits]


def test_arguments_that_contradict_each_other() -> None:
    env = Counter()
    with pytest.raises(TypeError, match="break_when"):
        env.rollout(2, break_when_any_done=True, break_when_all_done=True)
    with pytest.raises(RuntimeError, match="needs a tensordict"):
        env.rollout(2, auto_reset=False)
    with pytest.raises(ValueError, match="exclude each other"):
        env.rollout(2, policy=lambda td: td, actions=[ONE])
    with pytest.raises(RuntimeError, match="at least 1"):
        env.rollout(0)
    with pytest.raises(ValueError, match="callable"):
        env.rollout(2, policy=3)  # type: ignore[arg-type]


class Module(nn.Module):
    """Reads an observation."""

    def forward(self, count: torch.Tensor) -> torch.Tensor:
        return count * 0 + 1


class DataModule(nn.Module):
    """Reads a TensorDict."""

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        return TensorDict({"action": torch.ones((*tensordict.batch_size, 1), dtype=I64)}, tensordict.batch_size)


def annotated(data: TensorDictBase) -> TensorDictBase:
    return data.set("action", torch.ones((*data.batch_size, 1), dtype=I64))


@pytest.mark.parametrize(
    "policy",
    [
        Module(),
        DataModule(),
        annotated,
        lambda td: td.set("action", ONE),
        lambda count: count * 0 + 1,
        TensorDictModule(lambda count: count * 0 + 1, in_keys=["count"], out_keys=["action"]),
    ],
    ids=["module", "data module", "annotated", "td", "observation", "tensordict module"],
)
def test_what_can_be_a_policy(policy: Any) -> None:
    assert ints(Counter(limit=9).rollout(3, policy)["action"]) == [1, 1, 1]


def test_a_policy_that_writes_in_place() -> None:
    def write(data: Any) -> None:
        data.set("action", ONE)
        data.set(("next", "hidden"), data.get("hidden", torch.zeros(1)) + 1)

    r = Counter(limit=9).rollout(3, write, trust_policy=True)
    assert ints(r["action"]) == [1, 1, 1]
    assert ints(r["next", "hidden"]) == [1.0, 2.0, 3.0]


def test_a_policy_for_several_actions() -> None:
    env = TwoAgents()
    actions = torch.ones(2, dtype=I64)
    r = env.rollout(2, lambda first, second: (actions, actions * 0))
    assert r["agent0", "action"].tolist() == [[1, 1], [1, 1]]
    assert r["agent1", "action"].tolist() == [[0, 0], [0, 0]]


def test_actions_instead_of_a_policy() -> None:
    env = Counter(limit=99)
    assert ints(env.rollout(5, actions=[ONE, ONE * 0])["action"]) == [1, 0]
    assert ints(env.rollout(2, actions=torch.ones(3, 1, dtype=I64))["action"]) == [1, 1]
    assert ints(env.rollout(5, actions=iter([TensorDict({"action": ONE}, [])]))["action"]) == [1]


def test_it_can_be_continued() -> None:
    env = Counter(limit=3)
    first = env.rollout(2, auto_reset=False, tensordict=env.reset())
    root = env.step_mdp(first[..., -1])
    second = env.rollout(2, auto_reset=False, tensordict=root)
    assert ints(second["count"]) == [2]
    ended = env.step_mdp(second[..., -1])
    third = env.rollout(2, auto_reset=False, tensordict=ended)
    assert ints(third["count"]) == [0, 1]
    assert ended["done"].all()  # what was given is as it was
    assert "_reset" not in ended.keys()  # noqa: SIM118 - a TensorDict has no "in"


def test_data_is_carried_along() -> None:
    given = TensorDict({"tag": torch.ones(1)}, [])
    r = Counter(limit=9).rollout(2, tensordict=given)
    assert ints(r["tag"]) == [1.0, 1.0]
    assert set(given.keys()) == {"tag"}
    assert Adder().rollout(3, tensordict=TensorDict(batch_size=[4])).batch_size == (4, 3)


def test_callbacks_see_every_step_but_the_last() -> None:
    seen: list[tuple[int, bool]] = []

    def look(env: Any, td: TensorDictBase) -> None:
        seen.append((int(td["count"]), "next" in td.keys()))  # noqa: SIM118

    Counter(limit=9).rollout(4, callback=look)
    assert seen == [(1, False), (2, False), (3, False)]
    seen.clear()
    Counter(limit=9).rollout(4, callback=look, break_when_any_done=False)
    assert seen == [(0, True), (1, True), (2, True)]


def test_the_result_can_be_written_somewhere() -> None:
    env = Counter(limit=9)
    buffer = env.rollout(4).zero_()
    assert env.rollout(4, out=buffer, return_contiguous=True) is buffer
    assert ints(buffer["next", "count"]) == [1, 2, 3, 4]
    assert env.rollout(2, storing_device="cpu").device == torch.device("cpu")


def test_the_last_step_can_be_truncated() -> None:
    env = Counter(limit=9)
    with pytest.raises(RuntimeError, match="add_truncated_keys"):
        env.rollout(2, set_truncated=True)
    assert env.add_truncated_keys() is env
    r = env.rollout(2, set_truncated=True)
    assert ints(r["next", "truncated"]) == [False, True]
    assert ints(r["next", "done"]) == [False, True]
    assert not r["next", "terminated"].any()
    agents = TwoAgents().add_truncated_keys()
    assert agents.rollout(2, set_truncated=True)["next", "agent1", "done"][-1].all()


class Growing(Counter):
    """Its observation has one element more with every step."""

    def __init__(self) -> None:
        super().__init__(limit=9)
        self.observation_spec = Composite(count=Unbounded((1,), dtype=I64), seen=Unbounded((-1,)))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return super()._reset(tensordict).set("seen", torch.zeros(1))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return super()._step(tensordict).set("seen", torch.zeros(1 + int(self.count)))


def test_steps_of_different_shapes() -> None:
    for contiguous in (False, None):
        r = Growing().rollout(3, return_contiguous=contiguous)
        assert isinstance(r, LazyStackedTensorDict)
        assert r[2]["next", "seen"].shape == (4,)
        assert r.names == ["time"]
    with pytest.raises(RuntimeError):
        Growing().rollout(3, return_contiguous=True)


class Flagging(Counter):
    """Its flags are as they are told to be, whatever that means."""

    def __init__(self, **flags: bool) -> None:
        super().__init__(limit=9)
        self.flags = {"done": False, "terminated": False, **flags}
        self.full_done_spec = Composite({name: Categorical(2, (1,), dtype=torch.bool) for name in self.flags})

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        following = super()._step(tensordict)
        return following.update({name: torch.tensor([flag]) for name, flag in self.flags.items()})


@pytest.mark.parametrize("flag", ["done", "terminated", "truncated"])
@pytest.mark.parametrize("options", [{}, {"break_when_all_done": True}])
def test_any_flag_stops_a_rollout(flag: str, options: dict[str, bool]) -> None:
    assert len(Flagging(**{flag: True}).rollout(4, **options)) == 1
    assert len(Flagging(**{flag: False}).rollout(4, **options)) == 4


def test_an_env_may_decide_for_itself_what_has_ended() -> None:
    class Endless(Counter):
        def any_done(self, tensordict: TensorDictBase) -> bool:
            return False

    env = Endless(limit=2)
    assert ints(env.rollout(4)["next", "count"]) == [1, 2, 3, 4]
    assert ints(env.rollout(4, break_when_any_done=False)["next", "count"]) == [1, 2, 3, 4]
    assert ints(env.append_transform(StepCounter()).rollout(4)["next", "step_count"]) == [1, 2, 3, 4]


def test_gradients_flow_through_a_rollout() -> None:
    weight = torch.ones(1, requires_grad=True)
    r = Adder().rollout(3, TensorDictModule(lambda x: x + weight, in_keys=["x"], out_keys=["action"]))
    r["next", "x"][-1].sum().backward()
    assert weight.grad is not None
    assert weight.grad.item() > 0


def test_a_policy_on_a_device_of_its_own() -> None:
    policy = TensorDictModule(nn.Linear(1, 1), in_keys=["x"], out_keys=["action"])
    r = Adder().rollout(2, policy, auto_cast_to_device=True)
    assert r["action"].device == torch.device("cpu")
    assert r["next"].device is None


def test_what_cannot_be_called_is_no_policy() -> None:
    with pytest.raises(TypeError, match="a policy must be callable, got int"):
        Counter().rollout(2, 3)  # type: ignore[arg-type]
