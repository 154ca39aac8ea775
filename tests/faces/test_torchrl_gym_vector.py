"""Many envs behind one GymWrapper: the data of each env is that of a plain loop over it, in every autoreset mode."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gym_cases import Echo, Telling, plain_loop
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import shoal
from shoal.errors import ArgumentError, TensorEnvError
from shoal.faces.torchrl import GymEnv, GymWrapper, Unbounded, check_env_specs, default_info_dict_reader, step_mdp

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT, STEPS = 3, 80


def sync(mode: AutoresetMode, name: str = "CartPole-v1") -> GymWrapper:
    return GymWrapper(SyncVectorEnv([partial(gym.make, name)] * COUNT, autoreset_mode=mode))


def ours(mode: str, name: str = "CartPole-v1", **kwargs: Any) -> GymWrapper:
    return GymWrapper(shoal.make_vec(name, COUNT, autoreset=mode, **kwargs))


MAKERS: dict[str, Callable[[], GymWrapper]] = {
    "gymnasium, disabled": lambda: sync(AutoresetMode.DISABLED),
    "gymnasium, same step": lambda: sync(AutoresetMode.SAME_STEP),
    "shoal, disabled": lambda: ours("disabled", engine="serial"),
    "shoal, same step": lambda: ours("same_step", engine="serial"),
    "shoal, next step": lambda: ours("next_step", engine="serial"),
    "shoal, next step, wrapped": lambda: GymWrapper(
        gym.wrappers.vector.RecordEpisodeStatistics(shoal.make_vec("CartPole-v1", COUNT, engine="serial"))
    ),
    "compiled": lambda: ours("same_step", engine="kernel"),
    "by name": lambda: GymEnv("CartPole-v1", num_envs=COUNT),
    "a pool": lambda: MultiFromPool(),
}


def MultiFromPool() -> GymWrapper:
    return GymEnv("CartPole-v1", num_envs=COUNT, pool_kwargs={"engine": "thread"})


@pytest.fixture(params=list(MAKERS))
def envs(request: pytest.FixtureRequest) -> Any:
    made = MAKERS[request.param]()
    yield made
    made.close()


def test_each_env_gives_what_a_plain_loop_over_it_gives(envs: GymWrapper) -> None:
    actions = np.random.default_rng(0).integers(0, 2, (STEPS, COUNT))
    expected = [plain_loop(gym.make("CartPole-v1"), actions[:, i], seed=5 + i) for i in range(COUNT)]
    envs.set_seed(5)
    td = envs.reset()
    ends = 0
    for step, chosen in enumerate(actions):
        td["action"] = torch.nn.functional.one_hot(torch.from_numpy(chosen), 2)
        full, td = envs.step_and_maybe_reset(td)
        for i in range(COUNT):
            obs, reward, terminated, truncated, following = expected[i][step]
            row = full[i]
            np.testing.assert_array_equal(row["observation"], obs)
            np.testing.assert_array_equal(row["next", "observation"], following)
            assert row["next", "reward"].tolist() == [reward]
            assert row["next", "terminated"].tolist() == [terminated]
            assert row["next", "done"].tolist() == [terminated or truncated]
            ends += terminated
        assert not td["done"].any()
    assert ends > COUNT


def test_specs_are_true(envs: GymWrapper) -> None:
    assert envs.batch_size == (COUNT,)
    assert envs.rollout(30, break_when_any_done=False)["next", "done"].shape == (COUNT, 30, 1)
    check_env_specs(envs)


def test_some_are_reset_and_the_others_go_on(envs: GymWrapper) -> None:
    td = envs.rollout(4, break_when_any_done=False)[:, -1]
    td = envs.step_mdp(td)
    before = td["observation"].clone()
    td["_reset"] = torch.tensor([[True], [False], [True]])
    after = envs.reset(td)
    assert "_reset" not in after.keys()  # noqa: SIM118
    assert (after["observation"][1] == before[1]).all()
    assert (after["observation"][::2].abs() <= 0.05).all()
    # The second env is where it was: its next observation follows from the last one.
    following = envs.rand_step(after)["next", "observation"][1]
    assert following[0].item() == pytest.approx(before[1, 0].item() + 0.02 * before[1, 1].item(), abs=1e-6)


def test_seeds(envs: GymWrapper) -> None:
    first = envs.reset(seed=3)["observation"]
    again = envs.reset(seed=3)["observation"]
    assert (first == again).all()
    assert not (first[0] == first[1]).all()
    plain = np.stack([gym.make("CartPole-v1").reset(seed=3 + i)[0] for i in range(COUNT)])
    np.testing.assert_array_equal(first, plain)


def test_results_are_private(envs: GymWrapper) -> None:
    td = envs.reset()
    kept = td["observation"].clone()
    full, td = envs.step_and_maybe_reset(envs.rand_action(td))
    following = full["next", "observation"].clone()
    for _ in range(5):
        _, td = envs.step_and_maybe_reset(envs.rand_action(td))
    assert (full["observation"] == kept).all()
    assert (full["next", "observation"] == following).all()


def test_envs_of_a_pool_can_be_stepped_alone() -> None:
    envs = GymEnv("CartPole-v1", num_envs=COUNT)
    td = envs.rand_action(envs.reset(seed=1))
    td["_step"] = torch.tensor([True, False, True])
    stepped = envs.step(td)
    moved = (stepped["next", "observation"] != stepped["observation"]).any(-1)
    assert moved.tolist() == [True, False, True]
    assert stepped["next", "reward"].flatten().tolist() == [1, 0, 1]
    envs.close()


def test_finished_envs_wait_for_the_others() -> None:
    envs = GymWrapper(shoal.make_vec([partial(Echo, length=n) for n in (2, 4, 5)], engine="serial"))
    td = envs.rollout(10, break_when_all_done=True)
    assert td["next", "reward"].squeeze(-1).tolist() == [[1, 2, 2, 2, 2], [1, 2, 3, 4, 4], [1, 2, 3, 4, 5]]
    envs.close()


def test_envs_that_reset_themselves_wait_for_each_other() -> None:
    lengths = (2, 5)
    envs = GymWrapper(SyncVectorEnv([partial(Echo, length=n) for n in lengths], autoreset_mode=AutoresetMode.SAME_STEP))
    for _ in range(2):
        td = envs.rollout(10, break_when_all_done=True)
        assert td["next", "reward"].squeeze(-1).tolist() == [[1, 2, 2, 2, 2], [1, 2, 3, 4, 5]]
    # What was done for nothing meanwhile is not seen: both begin anew.
    onwards = envs.rollout(4, tensordict=step_mdp(td[..., -1]), auto_reset=False, break_when_any_done=False)
    assert onwards["next", "reward"].squeeze(-1).tolist() == [[1, 2, 1, 2], [1, 2, 3, 4]]
    one = envs.rand_action(envs.reset())
    one["_step"] = torch.tensor([True, False])
    with pytest.raises(TensorEnvError, match="all its envs or none"):
        envs.step(one)
    envs.close()


def test_vector_envs_of_gymnasiums_step_all_or_none() -> None:
    envs = sync(AutoresetMode.DISABLED)
    td = envs.rand_action(envs.reset())
    td["_step"] = torch.tensor([True, False, True])
    with pytest.raises(TensorEnvError, match="all its envs or none"):
        envs.step(td)
    envs.close()


def test_a_step_that_only_resets_would_be_taken_for_a_transition() -> None:
    with pytest.raises(RuntimeError, match="NEXT_STEP"):
        sync(AutoresetMode.NEXT_STEP)


@pytest.mark.parametrize("is_categorical", [False, True])
@pytest.mark.parametrize("mode", ["disabled", "same_step"])
@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Dict(c=spaces.Discrete(3, start=1))),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiDiscrete([3, 3]),
        spaces.MultiBinary(4),
        spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (2,))]),
        spaces.Text(5),
    ],
    ids=str,
)
def test_spaces_of_all_kinds(space: Any, mode: str, is_categorical: bool) -> None:
    class Remembering(Echo):
        """Ends with an observation that can be recognised."""

    factories = [partial(Remembering, space, space, length=3)] * COUNT
    envs = GymWrapper(
        SyncVectorEnv(factories, autoreset_mode=AutoresetMode[mode.upper()]), categorical_action_encoding=is_categorical
    )
    on_pool = GymWrapper(
        shoal.make_vec(factories, engine="serial", autoreset=mode), categorical_action_encoding=is_categorical
    )
    for one in (envs, on_pool):
        td = one.rollout(8, break_when_any_done=False)
        assert td.shape == (COUNT, 8)
        assert td["next", "done"][:, 2].all()
        assert not td["done"].any()
    check_env_specs(on_pool)
    taken = on_pool.call("taken")
    assert all(space.contains(action) for actions in taken for action in actions)
    envs.close()
    on_pool.close()


@pytest.mark.parametrize("make", [SyncVectorEnv, partial(shoal.make_vec, engine="serial")], ids=["gymnasium", "shoal"])
@pytest.mark.parametrize("mode", ["disabled", "same_step"])
def test_infos_of_last_and_first_rows_are_told_apart(make: Any, mode: str) -> None:
    key = "autoreset_mode" if make is SyncVectorEnv else "autoreset"
    value = AutoresetMode[mode.upper()] if make is SyncVectorEnv else mode
    envs = GymWrapper(make([partial(Telling, length=n) for n in (2, 3)], **{key: value}))
    envs.set_info_dict_reader(default_info_dict_reader(["k", "late"], spec=[Unbounded(()), Unbounded((1,))]))
    assert envs.observation_spec["k"].shape == (2,)
    assert envs.observation_spec["late"].shape == (2, 1)
    td = envs.rollout(5, break_when_any_done=False)
    assert td["next", "k"].tolist() == [[1, 2, 1, 2, 1], [1, 2, 3, 1, 2]]
    assert td["k"].tolist() == [[0, 1, 0, 1, 0], [0, 1, 2, 0, 1]]
    assert td["next", "late"].squeeze(-1).tolist() == td["next", "k"].tolist()
    envs.close()


def test_attributes_of_many() -> None:
    envs = GymEnv("Pendulum-v1", num_envs=2, g=9.81, pool_kwargs={"engine": "serial"})
    assert list(envs.g) == [9.81, 9.81]
    assert envs.num_envs == 2
    assert envs.spec.id == "Pendulum-v1"
    assert envs.single_action_space.shape == (1,)
    assert envs.action_space.shape == (2, 1)
    assert envs.stats().num_envs == 2
    with pytest.raises(AttributeError):
        envs.no_such_thing  # noqa: B018
    with pytest.raises(AttributeError):
        envs._no_such_thing  # noqa: B018
    envs.close()


def test_options_of_many() -> None:
    skipping = GymEnv("CartPole-v1", num_envs=2, frame_skip=4, max_episode_steps=8, pool_kwargs={"engine": "serial"})
    td = skipping.rollout(2, actions=[skipping.action_spec.rand()] * 2, break_when_any_done=False)
    assert (td["next", "reward"][:, 0] == 4).all()
    skipping.close()
    pictures = GymEnv("CartPole-v1", num_envs=2, from_pixels=True, pool_kwargs={"engine": "serial"})
    assert pictures.rollout(2)["pixels"].shape == (2, 2, 400, 600, 3)
    pictures.close()
    for wrong in (-1, 2.5, True):
        with pytest.raises(ArgumentError, match="num_envs"):
            GymEnv("CartPole-v1", num_envs=wrong)
    with pytest.raises(ArgumentError, match="pool_kwargs"):
        GymEnv("CartPole-v1", pool_kwargs={"engine": "serial"})


@pytest.mark.parametrize("owned", [True, False])
def test_frames_are_skipped_until_any_env_ends(owned: bool) -> None:
    pool = shoal.make_vec([partial(Echo, length=n) for n in (5, 9)], autoreset="disabled", engine="serial", copy=owned)
    gymnasiums = SyncVectorEnv([partial(Echo, length=n) for n in (5, 9)], autoreset_mode=AutoresetMode.SAME_STEP)
    for envs in (GymWrapper(pool, frame_skip=2), GymWrapper(gymnasiums, frame_skip=2)):
        td = envs.rollout(4, break_when_any_done=False)
        # Rewards are 1, 2, 3, ...; the third step has one frame, because the first env ends with it.
        assert td["next", "reward"].squeeze(-1).tolist() == [[3, 7, 5, 3], [3, 7, 5, 13]]
        assert td["next", "done"].squeeze(-1).tolist() == [[False, False, True, False], [False] * 4]
        envs.close()


def test_actions_may_leave_their_bounds_as_with_a_single_env() -> None:
    one = GymEnv("Pendulum-v1")
    envs = GymEnv("Pendulum-v1", num_envs=2, pool_kwargs={"engine": "serial"})
    td, single = envs.reset(seed=0), one.reset(seed=0)
    far = envs.step(td.set("action", torch.full((2, 1), 5.0)))["next", "observation"][0]
    alone = one.step(single.set("action", torch.full((1,), 5.0)))["next", "observation"]
    assert torch.allclose(far, alone)
    envs.close()


def test_views_of_a_pool_are_copied() -> None:
    envs = GymWrapper(shoal.make_vec("CartPole-v1", 2, engine="serial", copy=False))
    first = envs.reset(seed=0)
    kept = first["observation"].clone()
    td = first.clone()
    for _ in range(6):
        _, td = envs.step_and_maybe_reset(envs.rand_action(td))
    assert (first["observation"] == kept).all()
    envs.close()


def test_a_mask_that_names_everybody_is_no_mask() -> None:
    envs = sync(AutoresetMode.DISABLED)
    td = envs.rand_action(envs.reset())
    td["_step"] = torch.ones(COUNT, dtype=torch.bool)
    assert (envs.step(td)["next", "reward"] == 1).all()
    td = envs.reset().set("_reset", torch.zeros(COUNT, 1, dtype=torch.bool))
    before = td["observation"].clone()
    assert (envs.reset(td)["observation"] == before).all()
    envs.close()


def test_what_has_begun_is_told_once() -> None:
    envs = GymWrapper(shoal.make_vec([partial(Echo, length=2)] * 2, autoreset="same_step", engine="serial"))
    td = envs.step_mdp(envs.rand_step(envs.reset(seed=0)))
    td = envs.step_mdp(envs.rand_step(td))
    masked = td.clone().set("_reset", torch.tensor([[True], [False]]))
    first = envs.reset(masked.clone())["observation"][0]
    again = envs.reset(masked.clone())["observation"][0]
    seeded = envs.reset(masked.clone(), seed=5)["observation"][0]
    once_more = envs.reset(masked.clone(), seed=5)["observation"][0]
    assert not (first == again).all()
    assert (seeded == once_more).all()
    envs.close()


def test_last_pictures_need_an_env_that_waits() -> None:
    envs = shoal.make_vec(
        "CartPole-v1", 2, autoreset="same_step", engine="serial", env_kwargs={"render_mode": "rgb_array"}
    )
    with pytest.raises(ArgumentError, match="last picture"):
        GymWrapper(envs, from_pixels=True)
    envs.close()


@pytest.mark.parametrize("make", [SyncVectorEnv, partial(shoal.make_vec, engine="serial")], ids=["gymnasium", "shoal"])
def test_all_infos_of_many(make: Any) -> None:
    key, value = ("autoreset_mode", AutoresetMode.SAME_STEP) if make is SyncVectorEnv else ("autoreset", "next_step")
    envs = GymWrapper(make([partial(Telling, length=n) for n in (2, 3)], **{key: value})).set_info_dict_reader()
    check_env_specs(envs)
    td = envs.rollout(5, break_when_any_done=False)
    assert td["next", "nested", "x"].tolist() == [[2, 4, 2, 4, 2], [2, 4, 6, 2, 4]]
    assert td["next", "count"].tolist() == [[1, 2, 1, 2, 1], [1, 2, 3, 1, 2]]
    envs.close()
