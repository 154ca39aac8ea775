"""What transforms make of values, one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl_cases import Adder, Counter, TwoAgents, ints, rows
from transform_cases import Machine

from shoal.faces.torchrl import (
    ActionDiscretizer,
    ActionMask,
    BinarizeReward,
    Bounded,
    CatFrames,
    CatTensors,
    CenterCrop,
    Compose,
    Composite,
    ConditionalSkip,
    DoubleToFloat,
    DTypeCastTransform,
    EndOfLifeTransform,
    EnvBase,
    EnvCreator,
    ExcludeTransform,
    FlattenObservation,
    FrameSkipTransform,
    GrayScale,
    Hash,
    NoopResetEnv,
    ObservationNorm,
    RemoveEmptySpecs,
    RenameTransform,
    Resize,
    RewardClipping,
    RewardScaling,
    RewardSum,
    SelectTransform,
    SerialEnv,
    SignTransform,
    SqueezeTransform,
    StepCounter,
    TargetReturn,
    TimeMaxPool,
    ToTensorImage,
    TrajCounter,
    Transform,
    TransformedEnv,
    Unbounded,
    UnsqueezeTransform,
    VecNorm,
    VecNormV2,
    check_env_specs,
)

NUMBERS = torch.tensor([[-2.0], [0.0], [0.5], [3.0]])


def counted(*transforms: Transform, limit: int = 99, batch_size: tuple[int, ...] = ()) -> TransformedEnv:
    return TransformedEnv(Counter(limit, batch_size), Compose(*transforms))


def data(**entries: Any) -> TensorDict:
    return TensorDict(entries, [4])


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (RewardScaling(1.0, 2.0), [-3.0, 1.0, 2.0, 7.0]),
        (RewardScaling(1.0, 2.0, standard_normal=True), [-1.5, -0.5, -0.25, 1.0]),
        (RewardClipping(-1, 1), [-1.0, 0.0, 0.5, 1.0]),
        (RewardClipping(None, 0), [-2.0, 0.0, 0.0, 0.0]),
        (BinarizeReward(), [0, 0, 1, 1]),
        (SignTransform(["reward"]), [-1.0, 0.0, 1.0, 1.0]),
        (SignTransform(), [-2.0, 0.0, 0.5, 3.0]),
    ],
)
def test_rewards(transform: Transform, expected: list[float]) -> None:
    assert ints(transform(data(reward=NUMBERS.clone()))["reward"]) == expected


def test_arguments_that_make_no_sense() -> None:
    for wrong in (
        lambda: RewardClipping(),
        lambda: TargetReturn(1.0, mode="other"),
        lambda: CatFrames(3, 0),
        lambda: CatFrames(0, -1),
        lambda: CatFrames(3, -1, padding="other"),
        lambda: FrameSkipTransform(0),
        lambda: NoopResetEnv(-1),
        lambda: UnsqueezeTransform(0, in_keys=["x"]),
        lambda: FlattenObservation(0, 1),
        lambda: Resize(3, interpolation="guess"),
        lambda: ObservationNorm(loc=1.0),
        lambda: RenameTransform(["a"], ["b", "c"]),
        lambda: VecNorm(decay=2.0),
        lambda: VecNormV2(["x"], stateful=False),
        lambda: ActionDiscretizer(0),
        lambda: DoubleToFloat(out_keys=["x"]),
    ):
        with pytest.raises(ValueError):  # noqa: PT011 - each has words of its own
            wrong()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: UnsqueezeTransform(0, in_keys=["x"]),
        lambda: SqueezeTransform(0, in_keys=["x"]),
        lambda: ObservationNorm(loc=1.0, scale=2.0),
        lambda: ObservationNorm(in_keys_inv=["action"]),
    ],
)
def test_some_arguments_are_refused_with_errors_of_two_kinds(wrong: Any) -> None:
    for kind in (ValueError, RuntimeError):
        with pytest.raises(kind, match=r"counted from the end|give in_keys"):
            wrong()


def test_statistics_of_observations() -> None:
    torch.manual_seed(0)
    env = TransformedEnv(Machine(5), ObservationNorm(in_keys=["position"]))
    with pytest.raises(RuntimeError, match="init_stats"):
        env.reset()
    transform: Any = env.transform
    transform.init_stats(200)
    with pytest.raises(RuntimeError, match="already"):
        transform.init_stats(200)
    both = TransformedEnv(Machine(5), ObservationNorm(in_keys=["position", "speed"]))
    with pytest.raises(ValueError, match="must be one of"):
        both.transform.init_stats(20)
    both.transform.init_stats(20, key="speed")
    assert both.transform.loc.shape == (1,)
    seen = env.rollout(200, break_when_any_done=False)["position"]
    assert seen.mean(0).abs().max() < 0.5
    assert (seen.std(0) - 1).abs().max() < 0.5
    check_env_specs(env)
    fresh = TransformedEnv(Machine(5), ObservationNorm(in_keys=["position"]))
    fresh.load_state_dict(env.state_dict())
    assert torch.equal(fresh.transform.loc, transform.loc)
    kept = TransformedEnv(Machine(5), Compose(ToTensorImage(), ObservationNorm(in_keys=["pixels"])))
    kept.transform[1].init_stats(20, (0, 2, 3), keep_dims=(2, 3))
    assert kept.transform[1].scale.shape == (3, 1, 1)
    assert kept.reset()["pixels"].shape == (3, 6, 4)


def test_running_statistics() -> None:
    transform = VecNorm(["x"], decay=0.9)
    weights = torch.tensor([0.9**3, 0.9**2, 0.9, 1.0])
    values = NUMBERS.flatten()
    last = [transform(TensorDict({"x": value.reshape(1)}))["x"].item() for value in values]
    mean = (weights * values).sum() / weights.sum()
    std = ((weights * (values - mean) ** 2).sum() / weights.sum()).sqrt()
    assert last[0] == 0.0
    assert last[-1] == pytest.approx(((values[-1] - mean) / std).item(), rel=1e-5)
    assert transform.loc["x"].item() == pytest.approx(mean.item())
    norm = transform.to_observation_norm()
    before = transform.scale["x"].clone()
    frozen = transform.frozen_copy()
    assert (transform.frozen, frozen.frozen, frozen.clone().unfreeze().frozen) == (False, True, False)
    assert frozen(TensorDict({"x": values[:1]}))["x"] == norm(TensorDict({"x": values[:1]}))["x"]
    assert transform.denorm(frozen(TensorDict({"x": values[:1]})))["x"].item() == pytest.approx(-2.0)
    assert torch.equal(transform.scale["x"], before)
    transform.eval()(TensorDict({"x": values[:1]}))
    assert not torch.equal(transform.scale["x"], before), "only freeze() stops the learning"
    assert not torch.equal(frozen.scale["x"], before)  # the statistics are still the same ones


def test_statistics_of_a_batch_and_of_rows() -> None:
    whole = VecNorm(["x"], decay=1.0)
    whole(data(x=NUMBERS.clone()))
    whole(data(x=NUMBERS.clone() + 1))
    both = torch.cat([NUMBERS, NUMBERS + 1])
    assert whole.loc["x"].item() == pytest.approx(both.mean().item())
    assert whole.scale["x"].item() == pytest.approx(both.std(correction=0).item())
    large = VecNorm(["x"], decay=1.0)
    for value in (1e6, 1e6 + 1, 1e6 + 2):
        large(TensorDict({"x": torch.tensor([value])}))
    assert large.scale["x"].item() == pytest.approx((2 / 3) ** 0.5, rel=0.1)
    env = TransformedEnv(Counter(9, (2,)), VecNormV2(["count"], decay=1.0))
    td = env.step_mdp(env.rand_step(env.reset()))
    td["_reset"] = torch.tensor([[True], [False]])
    env.reset(td)
    assert rows(env.transform.loc["count"]) == [pytest.approx(1 / 3), 0.5]


@pytest.mark.parametrize(
    ("make", "least"),
    [
        (VecNormV2, 1e-4),
        (VecNorm, 1e-2),
        (lambda *args, **kwargs: VecNorm(*args, new_api=True, **kwargs), 1e-4),
        (lambda *args, **kwargs: VecNorm(*args, eps=1e-6, **kwargs), 1e-3),
    ],
)
def test_the_least_deviation_to_divide_by(make: Any, least: float) -> None:
    transform = make(["x"], decay=1.0)
    for value in (0.0, 1e-5):
        out = transform(TensorDict({"x": torch.tensor([value])}))
    assert transform.scale["x"].item() == pytest.approx(least)
    assert out["x"].item() == pytest.approx(5e-6 / least)


def test_a_creators_envs_share_statistics() -> None:
    creator = EnvCreator(lambda: TransformedEnv(Counter(9), VecNorm(["count"], decay=1.0)))
    first, second = creator(), creator()
    first.reset()
    first.rand_step()
    assert first.transform.loc["count"].item() == second.transform.loc["count"].item() == 0.5
    alone = TransformedEnv(Counter(9), VecNorm(["count"], decay=1.0))
    alone.rollout(3)
    first.load_state_dict(alone.state_dict(), strict=False)
    assert second.transform.loc["count"].item() == alone.transform.loc["count"].item()


# -- pictures ----------------------------------------------------------------------------------------------------------


def test_pictures() -> None:
    picture = torch.arange(24, dtype=torch.float32).reshape(1, 4, 6)

    def seen(transform: Transform, value: torch.Tensor = picture) -> torch.Tensor:
        result: torch.Tensor = transform(TensorDict({"pixels": value.clone()}))["pixels"]
        return result

    assert seen(CenterCrop(2, 4)).tolist() == [[[7, 8, 9, 10], [13, 14, 15, 16]]]
    assert seen(CenterCrop(2, 8), picture + 1).tolist()[0][0] == [0, *range(7, 13), 0]
    assert seen(Resize(2, 3, "area")).tolist() == [[[3.5, 5.5, 7.5], [15.5, 17.5, 19.5]]]
    assert seen(Resize(2, 3, "nearest")).tolist() == [[[0, 2, 4], [12, 14, 16]]]
    assert seen(Resize(2, 3), picture.to(torch.uint8)).dtype is torch.uint8
    red, white = torch.zeros(3, 1, 1), torch.full((3, 1, 1), 255, dtype=torch.uint8)
    red[0] = 1.0
    assert seen(GrayScale(), red).item() == pytest.approx(0.2989)
    assert seen(GrayScale(), white).item() == 254
    with pytest.raises(ValueError, match="three channels"):
        seen(GrayScale())
    raw = torch.randint(0, 256, (2, 5, 3), dtype=torch.uint8)
    assert torch.equal(seen(ToTensorImage(), raw), raw.permute(2, 0, 1) / 255)
    assert seen(ToTensorImage(unsqueeze=True), raw).shape == (1, 3, 2, 5)
    assert seen(ToTensorImage(from_int=False), raw).max() == raw.max()
    assert seen(ToTensorImage(shape_tolerant=True), raw[..., :1]).shape == (2, 5, 1)
    spec = TransformedEnv(Machine(), ToTensorImage()).observation_spec["pixels"]
    assert (spec.low.min(), spec.high.max()) == (0, 1)


# -- what came before --------------------------------------------------------------------------------------------------


def test_frames() -> None:
    env = counted(CatFrames(3, -1, ["count"]), limit=3)
    r = env.rollout(4, break_when_any_done=False)
    assert r["count"].tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [0, 0, 0]]
    assert r["next", "count"].tolist() == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [0, 0, 1]]
    padded = counted(CatFrames(3, -1, ["count"], padding="constant", padding_value=7))
    assert padded.rollout(3)["next", "count"].tolist() == [[7, 0, 1], [0, 1, 2], [1, 2, 3]]
    env = counted(CatFrames(2, -1, ["count"]), ConditionalSkip(lambda td: torch.tensor([True, False])), batch_size=(2,))
    td = env.step_mdp(env.rand_step(env.reset()))
    td["_reset"] = torch.tensor([[False], [True]])
    assert env.reset(td)["count"].tolist() == [[0, 0], [0, 0]]
    assert env.rand_step(td)["next", "count"].tolist() == [[0, 0], [0, 1]]


@pytest.mark.parametrize("padding", ["same", "constant"])
def test_frames_of_a_rollout(padding: str) -> None:
    transform = CatFrames(3, -1, ["count", ("next", "count")], padding=padding, padding_value=7)
    plain = SerialEnv(2, [lambda: Counter(3), lambda: Counter(2)]).rollout(6, break_when_any_done=False)
    online = SerialEnv(2, [lambda: Counter(3), lambda: Counter(2)])
    framed = TransformedEnv(online, CatFrames(3, -1, ["count"], padding=padding, padding_value=7))
    r = framed.rollout(6, break_when_any_done=False)
    offline = transform(plain)
    assert torch.equal(offline["count"], r["count"])
    assert torch.equal(offline["next", "count"], r["next", "count"])


def test_largest_values() -> None:
    class Waves(Counter):
        def _step(self, tensordict: Any) -> Any:
            out = super()._step(tensordict)
            return out.set("count", torch.tensor([[-5, 4, 1, 0, -7][int(self.count) % 5]]).reshape(1))

    r = TransformedEnv(Waves(99), TimeMaxPool(["count"], T=2)).rollout(5)
    assert ints(r["next", "count"]) == [4, 4, 1, 0, -5]
    with pytest.raises(NotImplementedError):
        TimeMaxPool()(data(observation=NUMBERS))


# -- names and shapes --------------------------------------------------------------------------------------------------


def test_names() -> None:
    env = TransformedEnv(Adder(), RenameTransform(["x"], ["y"], ["x", "action"], ["y", "push"]))
    assert (env.observation_keys, env.action_keys, env.state_keys) == (["y"], ["push"], ["y"])
    td = env.reset().set("push", torch.full((1,), 3.0))
    assert ints(env.step(td)["next", "y"]) == [3.0]
    nested = TransformedEnv(TwoAgents(), ExcludeTransform("agent0", ("agent1", "val")))
    assert nested.observation_keys == []
    chosen = counted(StepCounter(), SelectTransform("step_count"))
    assert chosen.observation_keys == ["step_count"]
    assert set(chosen.rollout(2)["next"].keys()) == {"step_count", "reward", "done", "terminated"}
    without = TransformedEnv(Adder(), ExcludeTransform("junk", inverse=True))
    assert without.step(without.rand_action(without.reset()).set("junk", torch.ones(1)))["next"] is not None
    assert CatTensors(["b", "a"], "all")(data(a=NUMBERS, b=-NUMBERS))["all"][0].tolist() == [-2.0, 2.0]
    tall = CatTensors(["a", "b"], "all", dim=-2, unsqueeze_if_oor=True)(data(a=NUMBERS, b=-NUMBERS))
    assert tall["all"].shape == (4, 2, 1)
    assert tall.get("a", None) is None
    given = data(a=NUMBERS, b=-NUMBERS)
    assert CatTensors(["a", "b"], "all")(given) is given
    assert list(given.keys()) == ["all"]


def test_names_beside_the_old_ones() -> None:
    env = TransformedEnv(Adder(), RenameTransform(["x"], ["y"], ["x", "action"], ["y", "push"], create_copy=True))
    assert (env.observation_keys, env.action_keys, env.state_keys) == (["x", "y"], ["action", "push"], ["x", "y"])
    check_env_specs(env)
    td = env.reset().set("push", torch.full((1,), 3.0))
    assert ints(env.step(td)["next", "y"]) == [3.0]


def test_what_an_env_lacks_cannot_be_left_out_of_it() -> None:
    for use in (lambda env: env.observation_spec, lambda env: env.reset(), lambda env: env.rollout(2)):
        with pytest.raises(KeyError, match="'nope' was not found in the environment outputs"):
            use(counted(StepCounter(), ExcludeTransform("count", "nope")))
    assert counted(ExcludeTransform("reward")).rollout(2).get(("next", "reward"), None) is None
    assert list(ExcludeTransform("nope")(data(x=NUMBERS)).keys()) == ["x"]


def test_casts_of_inputs_leave_those_of_outputs_to_be_found() -> None:
    doubles = DTypeCastTransform(torch.float32, torch.float64)
    env = TransformedEnv(Machine(), Compose(doubles, DoubleToFloat(in_keys_inv=["action"])))
    assert env.reset()["position"].dtype is env.observation_spec["position"].dtype is torch.float32
    assert env.rand_step()["next", "reward"].dtype is torch.float32
    assert env.transform[1].in_keys_inv == ["action"]
    check_env_specs(env)
    chosen = TransformedEnv(Machine(), DoubleToFloat(in_keys=["position"]))
    assert (chosen.reset()["position"].dtype, chosen.reset()["speed"].dtype) == (torch.float32, torch.float64)
    assert chosen.transform.in_keys_inv == []
    alone = DoubleToFloat(in_keys_inv=["action"])
    assert alone(data(x=NUMBERS.double()))["x"].dtype is torch.float32
    inverse = alone.inv(data(action=NUMBERS, x=NUMBERS))
    assert (inverse["action"].dtype, inverse["x"].dtype) == (torch.float64, torch.float32)


def test_done_flags_that_are_left_out_stay_out() -> None:
    flags = {
        SelectTransform("count", "reward", "done", keep_dones=False): ["done"],
        ExcludeTransform("terminated"): ["done", "truncated"],
        ExcludeTransform("done"): ["terminated", "truncated"],
        SelectTransform("count", keep_dones=False): [],
    }
    for transform, left in flags.items():
        env = TransformedEnv(Counter(3).add_truncated_keys(), transform)
        assert env.done_keys == left
        check_env_specs(env, break_when_any_done="both")
        assert env.rollout(9).shape == (3 if left else 9,)


def test_rewards_and_flags_are_selected_outside_an_env_too() -> None:
    flags = dict.fromkeys(("done", "terminated", "truncated"), torch.zeros(4, 1, dtype=torch.bool))
    given = data(x=NUMBERS, y=NUMBERS, reward=NUMBERS, **flags)
    assert set(SelectTransform("x")(given).keys()) == {"x", "reward", *flags}
    assert set(SelectTransform("x", keep_rewards=False)(given).keys()) == {"x", *flags}
    assert set(SelectTransform("x", keep_dones=False)(given).keys()) == {"x", "reward"}


def test_objects_are_filtered_like_tensors() -> None:
    given = TensorDict({"x": torch.zeros(1), "said": "a", "inner": {"said": "b"}, "hollow": {"deeper": {}}})
    assert set(ExcludeTransform("said")(given).keys(True)) == {"x", "inner", ("inner", "said")}
    assert list(SelectTransform("x")(given).keys(True)) == ["x"]
    assert list(SelectTransform("said")(given).keys(True)) == ["said"]
    assert set(RemoveEmptySpecs()(given.copy()).keys(True)) == {"x", "said", "inner", ("inner", "said")}


@pytest.mark.parametrize(
    ("take", "key"),
    [
        (RenameTransform(["step_count", "episode_reward"], ["n", "sum"]), "sum"),
        (CatTensors(["episode_reward", "step_count", "target_return"], "all", sort=False), "all"),
        (Compose(CatTensors(["episode_reward"], "copy", del_keys=False), SelectTransform("copy")), "copy"),
    ],
)
def test_sums_go_on_when_they_are_renamed_or_left_out(take: Transform, key: str) -> None:
    env = counted(StepCounter(), RewardSum(), TargetReturn(9.0), take, limit=3, batch_size=(2,))
    r = env.rollout(4, break_when_any_done=False)
    assert r["next", key][..., 0].tolist() == [[1.0, 2.0, 3.0, 1.0]] * 2
    check_env_specs(env)
    limited = counted(StepCounter(2), ExcludeTransform("step_count"))
    assert limited.rollout(9).shape == (2,)
    check_env_specs(limited)


def test_empty_specs() -> None:
    class Hollow(Counter):
        def __init__(self) -> None:
            super().__init__(9)
            spec = self.observation_spec.clone()
            spec["inner"] = Composite(deeper=Composite())
            self.observation_spec = spec

        def _step(self, tensordict: Any) -> Any:
            return super()._step(tensordict).set("inner", TensorDict({"deeper": TensorDict({})}))

        def _reset(self, tensordict: Any = None, start: int = 0, **kwargs: Any) -> Any:
            return super()._reset(tensordict).set("inner", TensorDict({"deeper": TensorDict({})}))

    env = TransformedEnv(Hollow(), RemoveEmptySpecs())
    assert list(env.observation_spec.keys()) == ["count"]
    assert env.rollout(2).get(("next", "inner"), None) is None
    batch = SerialEnv(2, lambda: TransformedEnv(Hollow(), RemoveEmptySpecs()))
    assert batch.rollout(2).shape == (2, 2)
    batch.close()


# -- steps and actions -------------------------------------------------------------------------------------------------


def test_repeated_actions_stop_at_the_end() -> None:
    r = counted(FrameSkipTransform(3)).rollout(2)
    assert ints(r["next", "count"]) == [3, 6]
    assert ints(r["next", "reward"]) == [3.0, 3.0]
    machines = SerialEnv(2, [lambda: Machine(5), lambda: Machine(4)])
    env = TransformedEnv(machines, FrameSkipTransform(3))
    r = env.rollout(2, break_when_any_done=False)
    assert rows(r["next", "time"]) == [[3, 5], [3, 4]]
    env.close()
    shifted = TransformedEnv(Adder(), Compose(ObservationNorm(0.0, 2.0, [], None, ["action"]), FrameSkipTransform(3)))
    td = shifted.reset().set("action", torch.full((1,), 2.0))
    assert ints(shifted.step(td)["next", "x"]) == [3.0]
    assert ints(td["action"]) == [2.0]


def test_what_comes_before_repeated_actions_sees_every_step() -> None:
    r = counted(StepCounter(), RewardSum(), FrameSkipTransform(3), TargetReturn(9.0)).rollout(2)
    assert ints(r["next", "step_count"]) == [3, 6]
    assert ints(r["next", "episode_reward"]) == [3.0, 6.0]
    assert ints(r["next", "target_return"]) == [6.0, 3.0]
    assert ints(counted(FrameSkipTransform(3), StepCounter()).rollout(2)["next", "step_count"]) == [1, 2]


def test_random_steps_at_the_beginning() -> None:
    env = counted(NoopResetEnv(4, random=False), limit=9, batch_size=(2,))
    td = env.step_mdp(env.rand_step(env.reset()))
    assert ints(td["count"]) == [5, 5]
    td["_reset"] = torch.tensor([[False], [True]])
    assert ints(env.reset(td)["count"]) == [5, 4]
    drawn = counted(NoopResetEnv(4))
    assert {int(drawn.reset()["count"]) for _ in range(60)} == {0, 1, 2, 3, 4}
    with pytest.raises(RuntimeError, match="fewer noops"):
        counted(NoopResetEnv(4, random=False), limit=3).reset()


def test_intervals_of_actions() -> None:
    strategies = ActionDiscretizer.SamplingStrategy
    expected = {strategies.MEDIAN: [-0.25, 2.5], strategies.LOW: [-0.5, 2.0], strategies.HIGH: [0.0, 3.0]}
    for sampling, values in expected.items():
        env = TransformedEnv(Machine(), ActionDiscretizer(4, sampling=sampling))
        td = env.reset().set("action", torch.tensor([1, 2]))
        moved = env.step(td)["next", "position"] - td["position"]
        assert moved.tolist() == pytest.approx(values)
    env = TransformedEnv(Machine(), ActionDiscretizer(4, sampling=strategies.RANDOM))
    td = env.reset().set("action", torch.tensor([1, 2]))
    moved = env.step(td)["next", "position"] - td["position"]
    assert -0.5 <= moved[0] <= 0
    assert 2 <= moved[1] <= 3
    assert TransformedEnv(Machine(), ActionDiscretizer(torch.tensor([3, 5]))).action_spec.nvec.tolist() == [3, 5]
    with pytest.raises(ValueError, match="only a bounded range"):
        TransformedEnv(Adder(), ActionDiscretizer(4)).action_spec  # noqa: B018
    with pytest.raises(ValueError, match="last dim"):
        TransformedEnv(Machine(), ActionDiscretizer(torch.tensor([3]))).action_spec  # noqa: B018


# -- episodes ----------------------------------------------------------------------------------------------------------


def test_actions_of_the_env_are_recorded_beside_those_of_the_caller() -> None:
    def discretized(*others: Transform) -> Compose:
        return Compose(ActionDiscretizer(4, out_action_key="choice"), *others)

    for env in (
        TransformedEnv(Machine(9), ActionDiscretizer(4, out_action_key="choice")),
        TransformedEnv(
            Machine(9), discretized(DTypeCastTransform(torch.float32, torch.float64), SelectTransform("position"))
        ),
        TransformedEnv(TransformedEnv(Machine(9), discretized()), FrameSkipTransform(2), auto_unwrap=False),
        TransformedEnv(
            TransformedEnv(Machine(9), discretized()),
            RenameTransform(["time"], ["t"], ["choice"], ["named"]),
            auto_unwrap=False,
        ),
    ):
        assert (env.full_action_spec.get("action", None), env.state_keys) == (None, ["action"])
        check_env_specs(env)
        r = env.rollout(3, actions=[torch.tensor([0, 3])] * 3)
        assert r["action"].tolist() == [[-0.75, 3.5]] * 3
    batch = SerialEnv(2, lambda: TransformedEnv(Machine(9), discretized()))
    assert batch.state_keys == []
    check_env_specs(batch)
    batch.close()


def test_episodes_are_numbered() -> None:
    counter = TrajCounter()
    env = TransformedEnv(Counter(2, (2,)), counter)
    r = env.rollout(5, break_when_any_done=False)
    assert rows(r["traj_count"]) == [[0, 0, 2, 2, 4], [1, 1, 3, 3, 5]]
    other = TransformedEnv(Counter(2), counter.clone())
    assert ints(other.reset()["traj_count"]) == [6]
    td = env.reset()
    td["_reset"] = torch.tensor([[False], [True]])
    assert ints(env.reset(td)["traj_count"]) == [7, 9]
    check_env_specs(env)


def test_lives() -> None:
    env = TransformedEnv(Machine(6), EndOfLifeTransform(eol_attribute="lives"))
    r = env.rollout(9)
    assert ints(r["next", "lives"]) == [3, 2, 2, 1, 1, 0]
    assert ints(r["next", "end-of-life"]) == [False, True, False, True, False, True]


def test_hashes() -> None:
    known: dict[Any, Any] = {}
    transform = Hash(["x"], ["hash"], repertoire=known)
    hashes = transform(data(x=torch.tensor([[1], [2], [1], [3]])))["hash"]
    assert hashes.shape == (4, 32)
    assert torch.equal(hashes[0], hashes[2])
    assert len({tuple(row.tolist()) for row in hashes}) == 3
    assert transform.get_input_from_hash(hashes[1]).tolist() == [2]
    text = Hash.reproducible_hash("hello")
    assert text.tolist()[:4] == [44, 242, 77, 186]
    assert not torch.equal(text, Hash.reproducible_hash("hello", seed=1))
    short = Hash(["x"], ["hash"], hash_fn=lambda value: int(value) % 2)
    assert short(data(x=torch.tensor([[1], [2], [1], [3]])))["hash"].tolist() == [1, 0, 1, 1]
    assert Hash(["t"], ["hash"])(TensorDict({"t": "hello"}))["hash"].tolist() == text.tolist()
    large = torch.zeros(5000)
    changed = large.clone()
    changed[2500] = 1
    assert not torch.equal(Hash.reproducible_hash(large), Hash.reproducible_hash(changed))


@pytest.mark.parametrize("chained", [False, True])
def test_hashes_are_inverted_at_resets(chained: bool) -> None:
    class Kept(Adder):
        def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
            fresh = super()._reset(tensordict)
            return fresh if tensordict is None else fresh.update(tensordict.select("x", strict=False))

    hashes = Hash(["x"], ["hash"], ["x"], ["hash"], hash_fn=lambda value: value.long() * 7)
    env = TransformedEnv(Kept(), Compose(StepCounter(), hashes) if chained else hashes)
    following = env.step(env.reset().set("action", torch.full((1,), 5.0)))["next"]
    assert ints(following["hash"]) == [35]
    assert ints(env.reset(following.select("hash"))["x"]) == [5.0]
    assert ints(env.reset(TensorDict())["x"]) == [0.0]


class Dial(EnvBase):
    """An action without dims, which is its next observation."""

    def __init__(self) -> None:
        super().__init__()
        self.action_spec = Bounded(-1.0, 1.0, shape=())
        self.observation_spec = Composite(turned=Unbounded((1,)))

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> TensorDict:
        return TensorDict({"turned": torch.zeros(1)})

    def _step(self, tensordict: Any) -> TensorDict:
        return TensorDict({"turned": tensordict["action"].reshape(1), "reward": torch.zeros(1)})

    def _set_seed(self, seed: int | None) -> None:
        pass


@pytest.mark.parametrize("categorical", [True, False])
def test_an_action_without_dims_is_one_choice(categorical: bool) -> None:
    env = TransformedEnv(Dial(), ActionDiscretizer(5, categorical=categorical))
    assert env.action_spec.shape == (() if categorical else (5,))
    choice = torch.tensor(2) if categorical else torch.eye(5)[2].bool()
    assert env.step(env.reset().set("action", choice))["next", "turned"].tolist() == [0.0]
    check_env_specs(env)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: CatFrames(N=3, dim=-1, in_keys=["a"], padding="zeros"), RuntimeError),
        (RewardClipping, RuntimeError),
        (lambda: ActionMask(None, None), ValueError),  # type: ignore[arg-type]
        (lambda: TransformedEnv(Adder(), ActionDiscretizer(5)).action_spec, TypeError),
    ],
)
def test_arguments_that_make_no_sense_raise_what_torchrl_raises(make: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        make()


def test_a_hash_of_unknown_origin_is_not_taken_for_nothing() -> None:
    transform = Hash(in_keys=["t"], out_keys=["h"], in_keys_inv=["t"], out_keys_inv=["h"])
    with pytest.raises(KeyError, match="not known"):
        transform.inv(TensorDict({"h": torch.zeros(32, dtype=torch.uint8)}))
