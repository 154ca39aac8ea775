"""TorchRL's dialect: the bridge to TorchRL itself. Without TorchRL, only the error is tested."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tensordict")

import shoal  # noqa: E402
from shoal.errors import BackendUnavailable, SpecError  # noqa: E402
from shoal.faces.torchrl import GymEnv, SerialEnv, StackedComposite, to_torchrl  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

needs_torchrl = pytest.mark.skipif(find_spec("torchrl") is None, reason="TorchRL is not installed")
# TorchRL's own warnings are not what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore")

SOURCES: dict[str, Callable[[], Any]] = {
    "pool": lambda: shoal.make_pool("CartPole-v1", 4, engine="serial"),
    "pool without autoreset": lambda: shoal.make_pool("CartPole-v1", 4, engine="serial", autoreset="disabled"),
    "vector env": lambda: shoal.make_vec("CartPole-v1", 4, engine="serial"),
    "GymEnv": lambda: GymEnv("Pendulum-v1"),
    "SerialEnv": lambda: SerialEnv(3, partial(GymEnv, "CartPole-v1")),
}


@pytest.mark.skipif(find_spec("torchrl") is not None, reason="TorchRL is installed")
def test_without_torchrl_the_bridge_says_what_is_missing() -> None:
    with pytest.raises(BackendUnavailable, match="pip install torchrl"):
        to_torchrl(GymEnv("CartPole-v1"))


@needs_torchrl
@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_torchrl_takes_it_for_an_env_of_its_own(make: Callable[[], Any]) -> None:
    from torchrl.envs import EnvBase, check_env_specs

    env = to_torchrl(make())
    assert isinstance(env, EnvBase)
    check_env_specs(env, seed=0)
    rollout = env.rollout(60, break_when_any_done=False)
    assert rollout.batch_size == (*env.batch_size, 60)
    assert bool(torch.isfinite(rollout["next", "reward"]).all())
    env.close()


@needs_torchrl
def test_the_data_is_that_of_the_env_behind_it() -> None:
    plain, bridged = (SerialEnv(2, partial(GymEnv, "CartPole-v1")) for _ in range(2))
    bridged = to_torchrl(bridged)
    assert bridged.set_seed(3) == plain.set_seed(3)
    one_hot = torch.nn.functional.one_hot(torch.randint(2, (2, 40)), 2)
    results = []
    for env in (bridged, plain):
        td = env.reset()
        steps = []
        for t in range(40):
            td["action"] = one_hot[:, t]
            step, td = env.step_and_maybe_reset(td)
            steps.append(step)
        results.append(torch.stack(steps, 1))
    for key in ("observation", ("next", "observation"), ("next", "done")):
        assert torch.equal(results[0][key], results[1][key]), key
    bridged.close()
    plain.close()


@needs_torchrl
def test_random_actions_are_those_of_the_env_behind_it() -> None:
    from shoal.faces.torchrl import TicTacToeEnv

    env = to_torchrl(TicTacToeEnv())
    rollout = env.rollout(30, break_when_any_done=False)
    assert bool(rollout["mask"].gather(-1, rollout["action"].unsqueeze(-1)).all())
    alone = env.rand_action()
    assert alone.batch_size == env.batch_size
    env.close()


@needs_torchrl
def test_transforms_of_torchrl_may_change_actions() -> None:
    from torchrl.envs import ActionDiscretizer, TransformedEnv

    env = TransformedEnv(to_torchrl(GymEnv("Pendulum-v1")), ActionDiscretizer(num_intervals=4))
    assert env.rollout(3).batch_size == (3,)
    env.close()


@needs_torchrl
def test_torchrl_collects_and_learns_with_ppo() -> None:
    from tensordict.nn import TensorDictModule
    from torchrl import collectors
    from torchrl.modules import OneHotCategorical, ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    torch.manual_seed(0)
    env = to_torchrl(shoal.make_pool("CartPole-v1", 4, engine="serial", autoreset="disabled"))
    net = TensorDictModule(torch.nn.Linear(4, 2), in_keys=["observation"], out_keys=["logits"])
    actor = ProbabilisticActor(
        net, in_keys=["logits"], distribution_class=OneHotCategorical, return_log_prob=True, spec=env.action_spec
    )
    critic = ValueOperator(torch.nn.Linear(4, 1), in_keys=["observation"])
    collector_class = getattr(collectors, "SyncDataCollector", None) or collectors.Collector
    collector = collector_class(env, actor, frames_per_batch=128, total_frames=256)
    advantage, loss = GAE(gamma=0.99, lmbda=0.95, value_network=critic), ClipPPOLoss(actor, critic)
    optimiser = torch.optim.Adam(loss.parameters(), lr=1e-2)
    before = net.module.weight.detach().clone()
    frames = 0
    for batch in collector:
        assert batch.batch_size == (4, 32)
        frames += batch.numel()
        with torch.no_grad():
            advantage(batch)
        terms = loss(batch.reshape(-1))
        total = terms["loss_objective"] + terms["loss_critic"] + terms["loss_entropy"]
        optimiser.zero_grad()
        total.backward()
        optimiser.step()
        assert bool(torch.isfinite(total))
    collector.shutdown()
    assert frames == 256
    assert not torch.equal(net.module.weight, before)


@needs_torchrl
def test_attributes_are_those_of_the_env_behind_it() -> None:
    env = to_torchrl(GymEnv("Pendulum-v1", g=9.5))
    assert env.g == 9.5
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = env.nothing_like_it
    with pytest.raises(TypeError, match="options"):
        to_torchrl(GymEnv("Pendulum-v1"), categorical_action_encoding=True)
    env.close()


@needs_torchrl
def test_specs_become_torchrl_specs() -> None:
    from torchrl import data

    from shoal.faces import torchrl as face
    from shoal.faces.torchrl.bridge_specs import to_torchrl_spec

    leaves = {
        "categorical": face.Categorical(3, shape=(2,)),
        "one_hot": face.OneHot(3, shape=(2, 3), dtype=torch.int64),
        "bounded": face.Bounded(-1, 1, shape=(2, 4)),
        "integers": face.Bounded(0, 7, shape=(2,), dtype=torch.int32),
        "unbounded": face.Unbounded((2, 1)),
        "binary": face.Binary(shape=(2, 5)),
        "multi": face.MultiCategorical((3, 2), shape=(2, 2)),
        "multi_one_hot": face.MultiOneHot((3, 2), shape=(2, 5)),
        "text": face.NonTensor(shape=(2,), example_data="a"),
    }
    ours = face.Composite(leaves, shape=(2,))
    theirs = to_torchrl_spec(ours)
    assert isinstance(theirs, data.Composite)
    assert theirs.shape == (2,)
    for name in leaves.keys() - {"text"}:
        assert ours[name].is_in(theirs[name].rand()), name
        assert bool(theirs[name].is_in(ours[name].rand())), name
    widths = torch.stack([face.Composite(x=face.Unbounded((n,))) for n in (2, 3)], 0)
    assert isinstance(widths, StackedComposite)
    assert to_torchrl_spec(widths)[1]["x"].shape == (3,)
    mixed = torch.stack([face.Composite(x=face.Unbounded((2,))), face.Composite(x=face.OneHot(2))], 0)
    for spec in (mixed, mixed["x"]):
        with pytest.raises(SpecError, match="different kinds"):
            to_torchrl_spec(spec)
