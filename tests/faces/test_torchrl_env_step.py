"""Reset and step: what is returned, completed and merged, the fast way and the general one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict, TensorDictBase, assert_close
from torchrl_cases import BOOL, I64, Adder, Counter, Flags, Talkative, TalkativeAgents, TwoAgents, ints

from shoal.faces.torchrl import Composite, SerialEnv, StepCounter, TransformedEnv, Unbounded, env_base, fast_td
from shoal.faces.torchrl.env import declared, masks, plan, stepping

if TYPE_CHECKING:
    from collections.abc import Iterator

ALL = ("done", "terminated", "truncated")


def test_reset_has_observations_and_flags_only() -> None:
    td = Counter().reset()
    assert set(td.keys()) == {"count", "done", "terminated"}
    assert not td["done"].any()


def test_step_writes_next_into_its_input() -> None:
    env = Counter()
    td = env.rand_action(env.reset())
    out = env.step(td)
    assert out is td
    assert ints(td["count"]) == [0]
    assert ints(td["next", "count"]) == [1]
    assert set(td["next"].keys()) == {"count", "reward", "done", "terminated"}


def test_rand_step_needs_no_data() -> None:
    env = Counter()
    assert set(env.rand_step().keys()) == {"action", "next"}


@given(emitted=st.dictionaries(st.sampled_from(ALL), st.booleans()), flat=st.booleans())
def test_flags_are_completed(emitted: dict[str, bool], flat: bool) -> None:
    env = Flags(ALL, emitted, flat)
    td = env.reset()
    if set(emitted) == {"done", "truncated"}:
        with pytest.raises(RuntimeError, match="terminated"):
            env.rand_step(td)
        return
    following = env.rand_step(td)["next"]
    got = {name: following[name].item() for name in ALL}
    assert all(following[name].shape == (1,) for name in (*ALL, "reward"))
    assert got == got | emitted
    if "done" not in emitted:
        assert got["done"] == (got["terminated"] or got["truncated"])
    if "truncated" not in emitted:
        assert not got["truncated"]
    if "terminated" not in emitted:
        assert got["terminated"] == emitted.get("done", False)


def test_completed_flags_are_tensors_of_their_own() -> None:
    following = Flags(ALL, {"terminated": True}).rand_step()["next"]
    following["done"].zero_()
    assert following["terminated"].all()


def test_flags_are_completed_at_every_level() -> None:
    env = TwoAgents(root_done=True, ends=(True, False))
    following = env.rand_step(env.reset())["next"]
    assert following["agent0", "terminated"].flatten().tolist() == [True, False]
    assert following["agent1", "done"].shape == (2, 1)
    assert not following["done"].any()


def test_values_under_next_survive_unless_computed() -> None:
    env = Counter()
    td = env.rand_action(env.reset())
    preset = TensorDict({"count": torch.tensor([77]), "hidden": torch.ones(1)}, [])
    td["next"] = preset
    following = env.step(td)["next"]
    assert ints(following["count"]) == [1]
    assert ints(following["hidden"]) == [1.0]
    assert ints(preset["count"]) == [77]


def test_data_of_another_batch_size_is_refused() -> None:
    env = Counter(batch_size=(2,))
    with pytest.raises(RuntimeError, match=r"\(2,\).*\(3,\)"):
        env.step(TensorDict({"action": torch.zeros(3, 1, dtype=I64)}, [3]))
    with pytest.raises(RuntimeError, match="batch size"):
        env.reset(TensorDict({}, []))
    assert Adder().rand_step(Adder().reset(TensorDict(batch_size=[4]))).batch_size == (4,)


def test_what_an_env_returns_is_checked() -> None:
    class Returns(Counter):
        def __init__(self, answer: Any, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.answer = answer

        def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
            return self.answer(tensordict)  # type: ignore[no-any-return]

        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            return self.answer(tensordict)  # type: ignore[no-any-return]

    data = TensorDict({"action": torch.zeros(1, dtype=I64)}, [])
    for answer, message in ((lambda td: td, "returned its input"), (lambda td: {}, "expected a TensorDict")):
        env = Returns(answer)
        with pytest.raises(RuntimeError, match=message):
            env.reset(data)
        with pytest.raises(RuntimeError, match=message):
            env.step(data)
    with pytest.raises(RuntimeError, match="no 'reward'"):
        Returns(lambda td: TensorDict({"count": torch.zeros(1)}, [])).step(data)
    with pytest.raises(RuntimeError, match="batch size"):
        Returns(lambda td: TensorDict({"count": torch.zeros(2)}, [2])).reset()


def test_an_episode_that_has_ended_at_reset() -> None:
    class Ended(Counter):
        def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
            return super()._reset(tensordict).set("done", torch.ones(1, dtype=BOOL))

    with pytest.raises(RuntimeError, match="allow_done_after_reset"):
        Ended().reset()
    assert Ended(allow_done_after_reset=True).reset()["done"].all()
    for wrap in (lambda make: TransformedEnv(make(), StepCounter()), lambda make: SerialEnv(2, make)):
        with pytest.raises(RuntimeError, match=r"Ended\._reset.*allow_done_after_reset"):
            wrap(Ended).reset()
        assert wrap(lambda: Ended(allow_done_after_reset=True)).reset()["done"].all()


def test_dtypes_are_checked_on_request() -> None:
    class Double(Counter):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            out = super()._step(tensordict)
            return out.set("reward", out["reward"].double())

    assert Double().rand_step()["next", "reward"].dtype is torch.float64
    with pytest.raises(TypeError, match=r"'reward' should be torch\.float32"):
        Double(run_type_checks=True).rand_step()


def test_the_next_root_has_no_rewards_and_keeps_the_rest() -> None:
    env = Counter(limit=9)
    td = env.rand_step(env.reset()).set("extra", torch.ones(1)).set("reward", torch.ones(1))
    following = env.step_mdp(td)
    assert set(following.keys()) == {"count", "done", "terminated", "action", "extra"}
    assert ints(following["count"]) == [1]
    nested = TwoAgents()
    td = nested.rand_step(nested.reset())
    root = nested.step_mdp(td)
    assert root["agent0", "val"].tolist() == [5, 5]
    assert ("agent0", "reward") not in root.keys(True)
    root["agent0", "val"] = torch.zeros(2, dtype=I64)
    assert td["next", "agent0", "val"].tolist() == [5, 5]


@pytest.mark.parametrize("locked", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda: Talkative(limit=9),
        lambda: Talkative(limit=9, batch_size=(2,)),
        TalkativeAgents,
        lambda: Talkative(limit=9).append_transform(StepCounter()),
    ],
    ids=["one", "batched", "agents", "transformed"],
)
def test_what_no_spec_declares_stays_under_next(make: Any, locked: bool) -> None:
    env = make().set_spec_lock_(locked)
    stepped, root = env.step_and_maybe_reset(env.rand_action(env.reset()))
    strays = [key for key in root.keys(True) if "extra" in (key if isinstance(key, tuple) else (key,))]
    assert not strays
    assert set(env.step_mdp(stepped).keys(True)) == set(root.keys(True))
    r = env.rollout(3, return_contiguous=True)
    assert type(env.rollout(3)) is TensorDict
    assert r["next", "extra"].shape == (*env.batch_size, 3, 1)


def test_empty_entries_of_the_reward_spec_stay_under_next() -> None:
    class Hollow(Counter):
        def __init__(self) -> None:
            super().__init__(limit=9)
            self.reward_spec = Composite(reward=Unbounded((1,)), other=Composite())

        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            return super()._step(tensordict).set("other", TensorDict())

    r = Hollow().rollout(2)
    assert type(r) is TensorDict
    assert r.get("other", None) is None
    assert r["next", "other"].shape == (2,)


def test_what_no_spec_declares_follows_where_the_root_has_it() -> None:
    class Told(Talkative):
        def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
            return super()._reset(tensordict, **kwargs).set("extra", torch.zeros(1))

    assert ints(Told(limit=9).rollout(3)["extra"]) == [0.0, 1.0, 1.0]


def test_what_others_put_under_next_is_carried_on() -> None:
    env = Talkative(limit=9)
    td = env.rand_action(env.reset())
    td["next"] = TensorDict({"memory": torch.ones(1)})
    for around in (env, env.append_transform(StepCounter())):
        _, root = around.step_and_maybe_reset(td.copy())
        assert ints(root["memory"]) == [1.0]
        assert root.get("extra", None) is None


def test_step_and_maybe_reset_shows_both_ends() -> None:
    env = Counter(limit=2)
    td_ = env.reset()
    seen = []
    for _ in range(3):
        td, td_ = env.step_and_maybe_reset(env.rand_action(td_))
        seen.append((int(td["count"]), int(td["next", "count"]), int(td_["count"])))
        assert not td_["done"].any()
        assert "_reset" not in td_.keys()  # noqa: SIM118 - a TensorDict has no "in"
    assert seen == [(0, 1, 1), (1, 2, 0), (0, 1, 1)]


def test_truncated_alone_ends_an_episode() -> None:
    env = Flags(["truncated"], {"truncated": True})
    td, td_ = env.step_and_maybe_reset(env.rand_action(env.reset()))
    assert td["next", "truncated"].all()
    assert not td_["truncated"].any()


def test_locked_data_is_not_changed() -> None:
    env = Counter()
    with pytest.raises(RuntimeError, match="lock"):
        env.step(env.rand_action(env.reset()).lock_())


@pytest.fixture
def general_ways() -> Iterator[pytest.MonkeyPatch]:
    """Have every TensorDict built and read through tensordict's own methods."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (declared, env_base, masks, plan, stepping):
            patch.setattr(module, "entries_of", fast_td._no_entries)
        for module in (env_base, plan):
            patch.setattr(module, "build", fast_td._build_publicly)
        yield patch


CASES = {
    "counter": lambda: Counter(limit=2),
    "batched": lambda: Counter(limit=2, batch_size=(3,)),
    "adder": Adder,
    "agents": lambda: TwoAgents(ends=(True, False)),
    "agents and all": lambda: TwoAgents(root_done=True, ends=(True, False)),
    "terminated": lambda: Flags(ALL, {"terminated": True}, flat=True),
    "nothing": lambda: Flags(ALL, {}),
    "more than declared": lambda: Talkative(limit=2),
    "more than declared in a group": lambda: TalkativeAgents(ends=(True, False)),
}


def _life(case: str) -> list[TensorDictBase]:
    """Some steps of an env: resets, presets and masks included."""
    torch.manual_seed(0)
    env = CASES[case]()
    td = env.reset()
    seen = [td.clone()]
    for index in range(4):
        td = env.rand_action(td)
        if index == 1:
            td["next"] = TensorDict({"hidden": torch.ones((*td.batch_size, 2))}, td.batch_size)
        if index == 2:
            td["_step"] = torch.zeros(td.batch_size, dtype=BOOL)
        stepped, td = env.step_and_maybe_reset(td)
        seen += [stepped.clone(), td.clone()]
    seen.append(env.rollout(3, break_when_any_done=False))
    return seen


@pytest.mark.parametrize("case", CASES)
def test_fast_and_general_ways_give_the_same(case: str, request: pytest.FixtureRequest) -> None:
    fast = _life(case)
    request.getfixturevalue("general_ways")
    general = _life(case)
    for one, other in zip(fast, general, strict=True):
        assert set(one.keys(True)) == set(other.keys(True))
        assert one.batch_size == other.batch_size
        assert_close(one, other, equal_nan=True)
