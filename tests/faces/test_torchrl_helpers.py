"""TorchRL's dialect: from one step to the next, checks, trajectories, metadata, exploration."""

from __future__ import annotations

import importlib
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tensordict")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict, TensorDictBase  # noqa: E402

from shoal.faces.torchrl import (  # noqa: E402
    Bounded,
    Categorical,
    Composite,
    EnvBase,
    EnvMetaData,
    ExplorationType,
    NonTensor,
    SerialEnv,
    Unbounded,
    check_env_specs,
    exploration_type,
    make_composite_from_td,
    set_exploration_type,
    split_trajectories,
    step_mdp,
    terminated_or_truncated,
)


class Counter(EnvBase):
    """Counts to a limit; ``change`` may spoil what a step returns."""

    change: Any = None

    def __init__(self, limit: int = 3, width: int = 1) -> None:
        super().__init__()
        self.limit, self.width = limit, width
        self.observation_spec = Composite(count=Bounded(0, limit, shape=(width,), dtype=torch.int64))
        self.action_spec = Categorical(2, shape=(1,))
        self.reward_spec = Unbounded((1,))
        self.done_spec = Categorical(2, shape=(1,), dtype=torch.bool)
        self.count = 0

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.count = 0
        return TensorDict({"count": torch.zeros(self.width, dtype=torch.int64)})

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.count += 1
        count, done = torch.full((self.width,), self.count), torch.tensor([self.count >= self.limit])
        out = TensorDict({"count": count, "reward": torch.ones(1), "done": done})
        return out if self.change is None else self.change(out)

    def _set_seed(self, seed: int | None) -> None: ...


def stepped() -> TensorDict:
    return TensorDict(
        {
            "a": {"obs": 0, "action": 1, "reward": 2, "done": 3},
            "b": {"action": 4},
            "text": "old",
            "next": {"a": {"obs": 10, "reward": 12, "done": 13}, "text": "new"},
        }
    )


def test_the_next_step_takes_the_place_of_this_one() -> None:
    td = stepped()
    keys: dict[str, Any] = {
        "action_keys": [("a", "action"), ("b", "action")],
        "reward_keys": [("a", "reward")],
        "done_keys": ("a", "done"),
    }
    out = step_mdp(td, **keys)
    assert set(out.keys()) == {"a", "text"}
    assert set(out["a"].keys()) == {"obs", "done"}
    assert out["a", "obs"] == 10
    assert out["text"] == "new"
    out["a", "obs"] = torch.tensor(-1)
    assert td["a", "obs"] == 0
    assert td["next", "a", "obs"] == 10
    kept = step_mdp(td, keep_other=False, exclude_action=False, **keys)
    assert set(kept.keys()) == {"a", "b", "text"}
    assert set(kept["a"].keys()) == {"obs", "done", "action"}
    assert "b" not in step_mdp(td, exclude_done=True, **keys).keys()  # noqa: SIM118
    assert step_mdp(td)["a", "reward"] == 12
    into = TensorDict({"mine": 1})
    assert step_mdp(td, into) is into
    assert into["mine"] == 1
    with pytest.raises(KeyError, match="'next'"):
        step_mdp(TensorDict({"a": 1}))


def test_an_action_is_not_carried_on_wherever_it_is() -> None:
    td = TensorDict({"obs": 0, "action": 1, "next": {"obs": 1, "action": 2}})
    assert step_mdp(td).to_dict() == {"obs": 1}
    assert step_mdp(td, exclude_action=False)["action"] == 2


def test_rows_whose_shapes_differ_only_after_the_step() -> None:
    following = LazyStackedTensorDict.lazy_stack([TensorDict({"o": torch.ones(n)}) for n in (2, 3)], 0)
    out = step_mdp(TensorDict({"o": torch.zeros(2, 1), "kept": torch.zeros(2), "next": following}, [2]))
    assert [row["o"].tolist() for row in out.unbind(0)] == [[1, 1], [1, 1, 1]]
    assert out["kept"].shape == (2,)


def test_rows_of_different_shapes_go_on_one_by_one() -> None:
    rows = [TensorDict({"o": torch.zeros(n), "next": {"o": torch.ones(n), "reward": 1}}) for n in (2, 3)]
    out = step_mdp(LazyStackedTensorDict.lazy_stack(rows, 0))
    assert out[1]["o"].tolist() == [1, 1, 1]
    assert set(out.keys()) == {"o"}


FLAGS = st.fixed_dictionaries(
    {}, optional={name: st.lists(st.booleans(), min_size=2, max_size=2) for name in ("done", "terminated", "truncated")}
)


@settings(max_examples=100, deadline=None)
@given(FLAGS, FLAGS, st.booleans())
def test_ends_are_the_union_of_the_flags_at_each_level(root: Any, group: Any, write: bool) -> None:
    data = TensorDict({**root, "group": TensorDict(group, [2])}, [2])
    ends = {
        path: [any(flags[i] for flags in level.values()) for i in range(2)]
        for path, level in (("_reset", root), (("group", "_reset"), group))
        if level
    }
    ended = any(any(rows) for rows in ends.values())
    assert bool(terminated_or_truncated(data, write_full_false=write)) is ended
    found = {key: data[key].tolist() for key in ("_reset", ("group", "_reset")) if data.get(key, None) is not None}
    assert found == (ends if ended or write else {})


def test_only_declared_flags_count_when_a_spec_is_given() -> None:
    flag = Categorical(2, shape=(1,), dtype=torch.bool)
    data = TensorDict({"done": [False], "terminated": [True], "group": {"done": [True]}})
    assert not terminated_or_truncated(data, Composite(done=flag), key=None)
    assert set(data.keys()) == {"done", "terminated", "group"}
    assert terminated_or_truncated(data, Composite(group=Composite(done=flag)))
    assert data["group", "_reset"].tolist() == [True]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda out: out.set("extra", torch.ones(1)), r"\('next', 'extra'\): in the data, but in no spec"),
        (lambda out: out.exclude("count"), r"\('next', 'count'\): declared, but missing"),
        (lambda out: out.set("reward", torch.ones(1).double()), r"'reward'\): expected dtype torch.float32, got .*64"),
        (
            lambda out: out.set("count", torch.ones(2, dtype=torch.int64)),
            r"'count'\): expected shape \(1,\), got \(2,\)",
        ),
        (
            lambda out: out.set("count", torch.tensor([9])),
            r"'count'\): got values outside of .*high=3.*: tensor\(\[9\]\)",
        ),
    ],
)
def test_a_check_says_what_is_wrong_with_which_key(change: Any, message: str) -> None:
    env = Counter()
    check_env_specs(env)
    check_env_specs(env, break_when_any_done="both", seed=1)
    env.change = change
    with pytest.raises(AssertionError, match=message):
        check_env_specs(env)


@pytest.mark.parametrize("return_contiguous", [None, True, False])
def test_steps_that_cannot_be_stacked_are_errors_of_both_kinds(return_contiguous: bool | None) -> None:
    env = Counter()
    env.change = lambda out: out.set("count", out["count"].expand(int(out["count"])))
    for kind in (AssertionError, RuntimeError):
        with pytest.raises(kind, match="count"):
            check_env_specs(env, return_contiguous)


def test_a_dense_rollout_can_be_demanded_of_shapes_that_are_not_fixed() -> None:
    class Growing(Counter):
        def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
            return super()._reset(tensordict).set("list", torch.zeros(1))

    env = Growing()
    env.observation_spec = Composite({**env.observation_spec, "list": Unbounded((-1,))})
    env.change = lambda out: out.set("list", torch.zeros(int(out["count"]) + 1))
    check_env_specs(env)
    for kind in (AssertionError, RuntimeError):
        with pytest.raises(kind, match="not one dense"):
            check_env_specs(env, return_contiguous=True)


def test_a_check_may_look_away_from_dtypes() -> None:
    env = Counter()
    env.change = lambda out: out.set("reward", out["reward"].double())
    check_env_specs(env, check_dtype=False)


def test_a_check_leaves_torch_as_it_was() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    check_env_specs(Counter(), seed=0)
    assert torch.equal(torch.rand(3), expected)


def test_envs_with_different_specs_pass_the_check() -> None:
    env = SerialEnv(2, [lambda: Counter(width=1), lambda: Counter(width=2)])
    check_env_specs(env)
    env.close()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=3))
def test_trajectories_are_the_runs_between_ends(ends: list[list[bool]]) -> None:
    steps = torch.arange(6 * len(ends)).reshape(len(ends), 6)
    done = torch.tensor(ends).unsqueeze(-1)
    runs: list[list[int]] = []
    for row, flags in zip(steps.tolist(), ends, strict=True):
        start = 0
        for at, flag in enumerate(flags):
            if flag or at == 5:
                runs.append(row[start : at + 1])
                start = at + 1
    data = TensorDict({"step": steps, "next": {"done": done}}, [len(ends), 6])
    out = split_trajectories(data)
    assert out.batch_size == (len(runs), max(map(len, runs)))
    assert [row[mask].tolist() for row, mask in zip(out["step"], out["mask"], strict=True)] == runs
    assert not out["step"][~out["mask"]].any()
    nested = split_trajectories(data, as_nested=True)
    assert [part.tolist() for part in nested["step"].unbind()] == runs
    assert set(data.keys(True, True)) == {"step", ("next", "done")}


def test_trajectories_by_their_ids() -> None:
    ids = torch.tensor([[0, 0, 1, 1, 1], [2, 2, 2, 2, 2]])
    data = TensorDict({"step": torch.arange(10).reshape(2, 5), "collector": {"traj_ids": ids}}, [2, 5])
    out = split_trajectories(data)
    assert out["collector", "mask"].sum(-1).tolist() == [2, 3, 5]
    assert split_trajectories(data, prefix="here")["here", "mask"].shape == (3, 5)
    truncated = torch.tensor([[False], [True], [False]])
    ends = TensorDict({"next": {"done": torch.zeros(3, 1).bool(), "truncated": truncated}}, [3])
    assert split_trajectories(ends).batch_size == (2, 2)
    with pytest.raises(KeyError, match="where do trajectories end"):
        split_trajectories(TensorDict({"x": torch.zeros(3)}, [3]))


def test_trajectories_with_texts() -> None:
    texts = LazyStackedTensorDict.lazy_stack([TensorDict({"text": str(i)}) for i in range(4)], 0)
    done = torch.tensor([[False], [True], [True], [False]])
    data = TensorDict({"text": texts.get("text"), "next": {"done": done}}, [4])
    out = split_trajectories(data)
    assert [row[0]["text"] for row in out] == ["0", "2", "3"]


def test_a_spec_from_an_example() -> None:
    data = TensorDict({"o": torch.zeros(3), "g": {"n": torch.tensor(1)}, "text": "abc"})
    spec = make_composite_from_td(data)
    assert spec["g", "n"] == Unbounded((1,), dtype=torch.int64)
    assert isinstance(spec["text"], NonTensor)
    assert make_composite_from_td(data, unsqueeze_null_shapes=False).is_in(data)
    assert make_composite_from_td(data, dynamic_shape=True)["o"].shape == (-1,)


def test_a_summary_of_an_env() -> None:
    summary = EnvMetaData.metadata_from_env(Counter())
    assert summary.batch_locked
    assert {"action", "count", "_reset", "done"} <= set(summary.tensordict.keys())
    assert summary.tensordict["_reset"].dtype is torch.bool
    many = summary.expand(4)
    assert many.tensordict.batch_size == many.batch_size == many.specs.shape == (4,)
    assert many[0].specs == summary.specs
    assert pickle.loads(pickle.dumps(summary)).specs == summary.specs
    assert summary.to("meta").tensordict.device == torch.device("meta")
    assert not summary.has_dynamic_specs
    assert summary.clone().specs == summary.specs


def test_exploration_in_blocks_and_functions() -> None:
    before = exploration_type()

    @set_exploration_type("Random")
    def inside() -> Any:
        return exploration_type()

    with set_exploration_type(ExplorationType.MEAN):
        assert exploration_type() is ExplorationType.MEAN
        assert inside() is ExplorationType.RANDOM
        assert exploration_type() is ExplorationType.MEAN
    assert exploration_type() is before
    with pytest.raises(ValueError, match="nope"):
        set_exploration_type("nope")


def test_every_name_of_the_table_is_there() -> None:
    face = importlib.import_module("shoal.faces.torchrl")
    assert set(face.__all__) <= set(dir(face))
    for name in face.__all__:
        assert getattr(face, name).__name__
    with pytest.raises(AttributeError, match="NothingLikeIt"):
        _ = face.NothingLikeIt


def test_non_tensor_data_is_carried_as_it_is() -> None:
    td = TensorDict({"x": NonTensorData("a"), "next": {"y": NonTensorData({"b": 1})}})
    assert step_mdp(td)["y"] == {"b": 1}


def test_ids_that_are_asked_for_and_not_there_follow_from_the_flags() -> None:
    rollout = Counter(limit=3).rollout(7, break_when_any_done=False)
    parts = split_trajectories(rollout, trajectory_key="number")
    assert parts["number"].tolist() == [[0, 0, 0], [1, 1, 1], [2, 0, 0]]
    assert "traj_ids" not in parts


def test_an_action_that_is_kept_alone_keeps_the_batch_of_its_group() -> None:
    group = TensorDict({"action": torch.ones(2), "hidden": torch.ones(2)}, [2])
    td = TensorDict({"agents": group, "next": {"agents": TensorDict({"obs": torch.ones(2)}, [2])}})
    keys = {"action_keys": [("agents", "action"), ("others", "action")]}
    root = step_mdp(td, keep_other=False, exclude_action=False, **keys)
    assert root["agents"].batch_size == (2,)
    assert set(root["agents"].keys()) == {"action", "obs"}
    assert set(root.keys()) == {"agents"}


def test_a_mask_of_earlier_ends_does_not_stay() -> None:
    data = TensorDict({"done": torch.zeros(2, 1, dtype=torch.bool), "_reset": torch.ones(2, 1, dtype=torch.bool)}, [2])
    assert not terminated_or_truncated(data)
    assert "_reset" not in data.keys()  # noqa: SIM118
