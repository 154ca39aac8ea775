"""World models as envs: what they predict, what they keep of their input, and one that learns a pendulum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl_cases import BOOL, Counter

from shoal.faces.torchrl import (
    Composite,
    DreamerDecoder,
    DreamerEnv,
    ModelBasedEnvBase,
    PendulumEnv,
    StepCounter,
    Unbounded,
    check_env_specs,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


class Scaled(ModelBasedEnvBase):
    """Its model decides what follows."""

    def __init__(self, world_model: nn.Module, **kwargs: Any) -> None:
        super().__init__(world_model, **kwargs)
        size = self.batch_size
        self.observation_spec = Composite(h=Unbounded((*size, 2)), kept=Unbounded((*size, 1)), shape=size)
        self.state_spec = self.observation_spec.clone()
        self.action_spec = Unbounded((*size, 1))
        self.reward_spec = Unbounded((*size, 1))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        lead = torch.Size() if tensordict is None or self.batch_size else tensordict.batch_size
        return self.full_observation_spec.rand(lead)


class Linear(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))
        self.register_buffer("offset", torch.tensor(0.0))

    def forward(self, h: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return h * self.factor + self.offset, action


def linear_model(factor: float = 2.0) -> TensorDictModule:
    return TensorDictModule(Linear(factor), in_keys=["h", "action"], out_keys=["h", "reward"])


@pytest.mark.parametrize("size", [(), (3,), (2, 3)])
def test_predictions_are_steps_of_any_batch(size: tuple[int, ...]) -> None:
    env = Scaled(linear_model())
    check_env_specs(env, tensordict=TensorDict(batch_size=size))
    data = env.rollout(3, tensordict=TensorDict(batch_size=size))
    assert torch.allclose(data["next", "h"], 2 * data["h"])
    assert torch.equal(data["next", "reward"], data["action"])
    assert torch.equal(data["next", "kept"], data["kept"])
    assert not data["next", "done"].any()


def test_a_fixed_batch_is_one() -> None:
    env = Scaled(linear_model(), batch_size=[4])
    check_env_specs(env)
    with pytest.raises(RuntimeError, match="batch size"):
        env.reset(TensorDict(batch_size=[3]))


def test_other_parameters_can_be_used() -> None:
    def following(**tensors: Any) -> float:
        env = Scaled(linear_model(), **tensors)
        td = TensorDict({"h": torch.ones(2), "kept": torch.ones(1), "action": torch.zeros(1)})
        return env.step(td)["next", "h"][0].item()

    assert following() == 2
    params = {"module.factor": torch.tensor(5.0)}
    assert following(params=params) == 5
    assert following(params=TensorDict(params).unflatten_keys("."), buffers={"module.offset": torch.tensor(1.0)}) == 6


def test_a_predicted_end_counts_and_an_old_one_does_not() -> None:
    ends = TensorDictModule(lambda h: h.sum(-1, keepdim=True) > 4, in_keys=["h"], out_keys=["done"])
    td = TensorDict({"h": torch.ones(2, 2), "kept": torch.ones(2, 1), "action": torch.zeros(2, 1)}, [2])
    td["h"][1] = 3
    following = Scaled(TensorDictSequential(linear_model(), ends)).step(td.clone())["next"]
    assert following["done"].flatten().tolist() == following["terminated"].flatten().tolist() == [False, True]
    td["done"] = td["terminated"] = torch.ones(2, 1, dtype=BOOL)
    assert not Scaled(linear_model()).step(td)["next", "done"].any()


def test_a_model_without_a_reward_is_refused() -> None:
    mute = TensorDictModule(lambda h: h, in_keys=["h"], out_keys=["h"])
    with pytest.raises(RuntimeError, match="'reward'"):
        Scaled(mute).rollout(1)


def test_there_is_nothing_to_seed() -> None:
    with pytest.warns(UserWarning, match="manual_seed"):
        assert Scaled(linear_model()).set_seed(0) == 795726461


def test_parameters_of_the_model_are_those_of_the_env() -> None:
    env = Scaled(linear_model())
    assert [name for name, _ in env.named_parameters()] == ["world_model.module.factor"]
    env.rollout(3)["next", "h"].sum().backward()
    assert env.world_model.module.factor.grad is not None


@pytest.mark.parametrize("source", [(), (3,)])
def test_specs_are_taken_without_the_batch_of_their_env(source: tuple[int, ...]) -> None:
    class Model(ModelBasedEnvBase):
        def __init__(self) -> None:
            super().__init__(TensorDictModule(lambda c: (c + 1, c), in_keys=["count"], out_keys=["count", "reward"]))
            self.set_specs_from_env(Counter(batch_size=source))

        def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
            return TensorDict({"count": torch.zeros(1)})

    env = Model()
    assert env.observation_spec["count"].shape == env.action_spec.shape == (1,)
    assert env.done_keys == ["done", "terminated"]


# -- latent models ----------------------------------------------------------------------------------------------------


def dreamer(**options: Any) -> DreamerEnv:
    model = TensorDictModule(
        lambda state, belief: (state + 1, belief + 2, state.sum(-1, keepdim=True)),
        in_keys=["state", "belief"],
        out_keys=["state", "belief", "reward"],
    )
    decoder = TensorDictModule(lambda state: state * 10, in_keys=["state"], out_keys=["seen"])
    env = DreamerEnv(model, (2,), (3,), **{"obs_decoder": decoder, **options})
    env.set_specs_from_env(Counter())
    return env


def test_latents_are_the_state() -> None:
    env = dreamer()
    assert set(env.state_spec.keys()) == {"state", "belief"}
    assert env.state_spec["belief"].shape == (3,)
    first = env.reset()
    assert set(first.keys()) >= {"state", "belief", "count", "action", "done"}
    assert first["next", "reward"].shape == (1,)
    data = env.rollout(4)
    assert torch.allclose(data["next", "state"], data["state"] + 1)
    given = TensorDict({"state": torch.zeros(5, 2), "belief": torch.zeros(5, 3)}, [5])
    data = env.rollout(4, tensordict=given)
    assert data.batch_size == (5, 4)
    assert data["next", "belief"][0, :, 0].tolist() == [2, 4, 6, 8]


def test_shapes_of_latents_can_be_asked_for() -> None:
    model = TensorDictModule(lambda state: state, in_keys=["state"], out_keys=["state"])
    env = DreamerEnv(model, prior_shape=(2,), belief_shape=(3, 4))
    assert (env.prior_shape, env.belief_shape) == ((2,), (3, 4))


def test_imagined_episodes_do_not_end() -> None:
    ended = TensorDict({"done": torch.ones(1, dtype=BOOL)})
    env = dreamer()
    assert env.any_done(ended) is False
    assert env.maybe_reset(ended) is ended
    ends = TensorDictModule(lambda state: (state[..., :1], state[..., :1] > -9), ["state"], ["reward", "done"])
    env = DreamerEnv(ends, (2,), (3,))
    env.set_specs_from_env(Counter())
    for options in ({}, {"break_when_any_done": False}, {"break_when_all_done": True}):
        data = env.rollout(5, tensordict=TensorDict({"state": torch.zeros(2), "belief": torch.zeros(3)}), **options)
        assert len(data) == 5
        assert data["next", "done"].all()


def test_observations_are_decoded() -> None:
    env = dreamer()
    latents = TensorDict({"state": torch.ones(5, 2), "belief": torch.zeros(5, 3)}, [5])
    assert (env.decode_obs(latents.clone())["seen"] == 10).all()
    assert (env.decode_obs(latents.clone(), compute_latents=True)["seen"] == 20).all()
    with pytest.raises(ValueError, match="obs_decoder"):
        dreamer(obs_decoder=None).decode_obs(latents)
    data = env.append_transform(DreamerDecoder()).rollout(3, tensordict=latents)
    assert torch.allclose(data["seen"], data["state"] * 10)
    assert torch.allclose(data["next", "seen"], data["next", "state"] * 10)
    inner = dreamer().append_transform(StepCounter()).append_transform(DreamerDecoder())
    assert (inner.reset(latents)["seen"] == 10).all()
    with pytest.raises(RuntimeError, match="has none"):
        DreamerDecoder()(latents)


# -- learning ---------------------------------------------------------------------------------------------------------


class Imagined(ModelBasedEnvBase):
    """A pendulum as a model knows it."""

    def __init__(self, world_model: nn.Module) -> None:
        super().__init__(world_model)
        self.observation_spec = Composite(x=Unbounded((3,)))
        self.state_spec = self.observation_spec.clone()
        self.action_spec = PendulumEnv().action_spec.clone()
        self.reward_spec = Unbounded((1,))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        if tensordict is None:
            return TensorDict({"x": features(PendulumEnv().reset())})
        return tensordict.select("x").clone()


def features(td: TensorDictBase) -> torch.Tensor:
    """A state of a pendulum without the jump from pi to -pi, in numbers of about the same size."""
    return torch.stack([td["th"].cos(), td["th"].sin(), td["thdot"] / 8], -1)


class Physics(nn.Module):
    """Predicts how a state changes, and the reward."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))

    def forward(self, x: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.net(torch.cat([x, action / 2], -1))
        return x + out[..., :3], 16 * out[..., 3:]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small networks are quicker on one thread, above all where others want the cores too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_a_model_learns_a_pendulum_and_is_rolled_out() -> None:
    torch.manual_seed(0)
    real = PendulumEnv(seed=0)

    def episodes(count: int, steps: int) -> tuple[torch.Tensor, ...]:
        data = real.rollout(steps, tensordict=real.gen_params(batch_size=[count]))
        return features(data), data["action"], features(data["next"]), data["next", "reward"]

    x, action, x_next, reward = (part.flatten(0, 1) for part in episodes(256, 20))
    physics = Physics()
    optimizer = torch.optim.Adam(physics.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)
    for _ in range(300):
        rows = torch.randint(len(x), (256,))
        predicted, worth = physics(x[rows], action[rows])
        loss = ((predicted - x_next[rows]) * 20).square().mean() + ((worth - reward[rows]) / 16).square().mean() * 20
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()

    env = Imagined(TensorDictModule(physics, in_keys=["x", "action"], out_keys=["x", "reward"]))
    check_env_specs(env)
    x, action, x_next, reward = episodes(64, 10)
    with torch.no_grad():
        dream = env.rollout(10, tensordict=TensorDict({"x": x[:, 0]}, [64]), actions=action.unbind(1))
    assert dream.batch_size == (64, 10)

    def error(guess: torch.Tensor, truth: torch.Tensor) -> float:
        return (guess - truth).square().mean().item()

    # Against who always guesses the mean, and who guesses that nothing moves.
    assert error(dream["next", "x"], x_next) < 0.05 * error(x_next.mean((0, 1)), x_next)
    assert error(dream["next", "x"], x_next) < 0.1 * error(x[:, :1].expand_as(x_next), x_next)
    assert error(dream["next", "reward"], reward) < 0.1 * error(reward.mean(), reward)
