"""GymEnv and GymWrapper on single envs: the same data as a plain loop over Gymnasium's env."""

from __future__ import annotations

import copy
from functools import partial
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gym_cases import Echo, Reusing, plain_loop
from gymnasium import spaces

from shoal.errors import ActionError, ArgumentError, BackendUnavailable, SpecError
from shoal.faces.torchrl import (
    Bounded,
    Categorical,
    Composite,
    GymEnv,
    GymLikeEnv,
    GymWrapper,
    MOGymEnv,
    MOGymWrapper,
    OneHot,
    Unbounded,
    check_env_specs,
    get_available_libraries,
    gym_backend,
    set_gym_backend,
)

IDS = ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "FrozenLake-v1", "Blackjack-v1", "MountainCarContinuous-v0"]


@pytest.mark.parametrize("is_categorical", [False, True])
@pytest.mark.parametrize("name", IDS)
def test_data_is_that_of_a_plain_loop(name: str, is_categorical: bool) -> None:
    env, plain = GymEnv(name, categorical_action_encoding=is_categorical), gym.make(name)
    plain.action_space.seed(1)
    actions = [plain.action_space.sample() for _ in range(120)]
    expected = plain_loop(plain, actions, seed=3)
    env.set_seed(3)
    td = env.reset()
    for action, (obs, reward, terminated, truncated, following) in zip(actions, expected, strict=True):
        td["action"] = env._action_codec.read(action)
        np.testing.assert_array_equal(env._observation_codec.write(td["observation"]), obs)
        full, td = env.step_and_maybe_reset(td)
        result = full["next"]
        np.testing.assert_array_equal(env._observation_codec.write(result["observation"]), following)
        assert result["reward"].tolist() == pytest.approx([reward])
        flags = [result[flag].tolist() for flag in ("terminated", "truncated", "done")]
        assert flags == [[terminated], [truncated], [terminated or truncated]]
        assert not td["done"].any()


@pytest.mark.parametrize("name", IDS)
def test_specs_are_true(name: str) -> None:
    check_env_specs(GymEnv(name))
    check_env_specs(GymEnv(name, categorical_action_encoding=True))


def test_layout() -> None:
    env = GymEnv("CartPole-v1")
    assert isinstance(env.action_spec, OneHot)
    assert env.action_spec.shape == (2,)
    assert env.action_spec.dtype is torch.int64
    assert env.done_keys == ["done", "terminated", "truncated"]
    assert env.batch_size == ()
    assert env.device is None
    assert isinstance(env.observation_spec["observation"], Bounded)
    td = env.reset()
    assert set(td.keys()) == {"observation", "done", "terminated", "truncated"}
    assert set(env.rand_step(td)["next"].keys()) == {"observation", "reward", "done", "terminated", "truncated"}
    assert repr(env) == "GymEnv(env=CartPole-v1, batch_size=torch.Size([]), device=None)"
    assert GymEnv("CartPole-v1", device="cpu").reset().device == torch.device("cpu")
    assert GymEnv("CartPole-v1", categorical_action_encoding=True).action_spec.shape == ()


def test_reset_takes_seed_and_options() -> None:
    env, plain = GymEnv("Pendulum-v1"), gym.make("Pendulum-v1")
    options = {"x_init": 0.1, "y_init": 0.2}
    given = env.reset(seed=4, options=options)["observation"]
    np.testing.assert_array_equal(given, plain.reset(seed=4, options=options)[0])
    np.testing.assert_array_equal(env.reset()["observation"], plain.reset()[0])
    assert env.set_seed(0) == 795726461
    assert env.set_seed(0, static_seed=True) == 0


def test_attributes_come_from_the_env_however_deep() -> None:
    env = GymEnv("Pendulum-v1", g=9.81)
    assert env.g == 9.81
    assert env.spec.max_episode_steps == 200
    assert env.unwrapped.max_speed == 8
    with pytest.raises(AttributeError, match="no_such_thing"):
        env.no_such_thing  # noqa: B018
    assert not hasattr(env, "no_such_thing")


def test_an_env_that_reuses_its_buffers_changes_no_earlier_result() -> None:
    env = GymWrapper(Reusing()).set_info_dict_reader()
    td = env.reset()
    td["action"] = action = torch.ones(2)
    full, following = env.step_and_maybe_reset(td)
    env.step(following.set("action", action))
    assert full["observation"].tolist() == [0, 0]
    assert full["next", "observation"].tolist() == [1, 1]
    assert full["next", "buffer"].tolist() == [1, 1]
    assert action.tolist() == [1, 1]


def test_results_can_be_changed_without_harm_to_later_ones() -> None:
    env = GymEnv("CartPole-v1")
    td = env.rand_step(env.reset())
    for value in td["next"].values():
        value.fill_(1)
    later = env.rand_step(env.reset())["next"]
    assert not later["done"].any()
    assert not later["terminated"].any()
    assert later["reward"].item() == 1
    assert not env.reset()["truncated"].any()


def test_a_discrete_space_may_begin_anywhere() -> None:
    for is_categorical in (False, True):
        inner = Echo(spaces.Discrete(4, start=-2), spaces.Discrete(3, start=5))
        env = GymWrapper(inner, categorical_action_encoding=is_categorical)
        td = env.rollout(5)
        chosen = td["action"] if is_categorical else td["action"].argmax(-1)
        seen = td["observation"] if is_categorical else td["observation"].argmax(-1)
        assert (chosen + 5).tolist() == inner.taken
        assert (seen - 2).tolist() == inner.shown[:5]
        check_env_specs(env)


def test_actions_of_another_shape_are_refused() -> None:
    env = GymEnv("CartPole-v1")
    td = env.reset().set("action", torch.tensor(1))
    with pytest.raises(ActionError, match=r"action: expected shape \(2,\), got \(\)"):
        env.step(td)
    with pytest.raises(ActionError, match="'action' is missing"):
        env.step(env.reset())


def test_actions_with_gradients_are_taken() -> None:
    env = GymEnv("Pendulum-v1")
    td = env.reset().set("action", torch.zeros(1, requires_grad=True) * 2)
    assert env.step(td)["next", "reward"].shape == (1,)


def test_tensors_are_handed_on_if_wished() -> None:
    inner = Echo(action=spaces.Box(-1, 1, (2,)))
    GymWrapper(inner, convert_actions_to_numpy=False).rollout(2)
    assert all(isinstance(action, torch.Tensor) for action in inner.taken)


def test_frames_are_skipped() -> None:
    env, inner = GymWrapper(Echo(length=7), frame_skip=3), Echo(length=7)
    inner.reset()
    td = env.rollout(10)
    # Rewards are 1, 2, 3, ...; the last step has only one frame left.
    assert td["next", "reward"].flatten().tolist() == [6, 15, 7]
    assert td["next", "done"].flatten().tolist() == [False, False, True]
    for wrong in (0, 2.5, True):
        with pytest.raises(ArgumentError, match="frame_skip"):
            GymWrapper(Echo(), frame_skip=wrong)


class TensorFlags(GymLikeEnv):
    """Has flags that are tensors: those of ``Echo``."""

    def _build_env(self, env: Any) -> Any:
        return env

    def _make_specs(self, env: Any) -> None:
        self.observation_spec = Composite(observation=Unbounded((3,)))
        self.action_spec = Categorical(2, shape=())

    def _output_transform(self, step_outputs: Any) -> tuple[Any, Any, Any, Any, Any, Any]:
        obs, reward, terminated, truncated, info = step_outputs
        ended, cut = torch.tensor([terminated]), torch.tensor([truncated])
        return obs, reward, ended, cut, ended | cut, info

    def _reset_output_transform(self, reset_outputs: Any) -> tuple[Any, Any]:
        obs, info = reset_outputs
        return obs, info


def test_frames_are_skipped_whatever_the_flags_are() -> None:
    td = TensorFlags(env=Echo(length=7), frame_skip=3).rollout(10)
    assert td["next", "reward"].flatten().tolist() == [6, 15, 7]


class Skipping(Echo):
    """Repeats actions by itself."""

    def __init__(self, frameskip: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.frameskip = frameskip


def test_an_env_that_skips_frames_itself_is_asked_to() -> None:
    gym.register("test/Skipping-v0", Skipping)
    try:
        env = GymEnv("test/Skipping-v0", frame_skip=4)
        assert (env.frameskip, env.frame_skip, env.wrapper_frame_skip) == (4, 4, 1)
    finally:
        del gym.registry["test/Skipping-v0"]


def test_pictures() -> None:
    env = GymEnv("CartPole-v1", from_pixels=True)
    check_env_specs(env)
    td = env.rollout(2)
    assert td["pixels"].shape == (2, 400, 600, 3)
    assert td["pixels"].dtype is torch.uint8
    assert "observation" not in td.keys()  # noqa: SIM118
    both = GymEnv("CartPole-v1", from_pixels=True, pixels_only=False).rollout(2)
    assert {"pixels", "observation"} <= set(both.keys())
    with pytest.raises(ArgumentError, match="render_mode"):
        GymWrapper(gym.make("CartPole-v1"), from_pixels=True)


def test_observations_that_are_pictures_are_called_so() -> None:
    env = GymWrapper(Echo(spaces.Box(0, 255, (4, 5, 3), np.uint8)))
    assert list(env.observation_spec.keys()) == ["pixels"]
    assert isinstance(env.observation_spec["pixels"], Unbounded)
    check_env_specs(env)
    assert list(GymWrapper(Echo(spaces.Box(0, 255, (4, 5), np.uint8))).observation_spec.keys()) == ["observation"]


def test_a_state_is_called_observation() -> None:
    env = GymWrapper(Echo(spaces.Dict(state=spaces.Box(-1, 1, (3,)), image=spaces.Box(0, 255, (2, 2, 3), np.uint8))))
    assert set(env.observation_spec.keys()) == {"observation", "image"}
    check_env_specs(env)


def test_dict_actions_reach_the_env_whole() -> None:
    for only in (
        {"push": spaces.Box(-1, 1, (2,))},
        {"push": spaces.Discrete(3), "deep": spaces.Dict(x=spaces.Discrete(2))},
    ):
        inner = Echo(action=spaces.Dict(only))
        env = GymWrapper(inner)
        env.rollout(3)
        assert all(inner.action_space.contains(action) for action in inner.taken)


def test_one_env_cannot_be_reset_in_parts() -> None:
    env = GymEnv("CartPole-v1")
    td = env.reset().set("_reset", torch.zeros(1, dtype=torch.bool))
    with pytest.raises(RuntimeError, match="_reset"):
        env.reset(td)
    assert "_reset" not in env.reset(env.reset().set("_reset", torch.ones(1, dtype=torch.bool))).keys()  # noqa: SIM118


def test_what_is_no_env_is_refused() -> None:
    with pytest.raises(TypeError, match="env"):
        GymWrapper()
    with pytest.raises(ArgumentError, match="expected an env"):
        GymWrapper(3)
    with pytest.raises(TypeError, match="nonsense"):
        GymWrapper(Echo(), nonsense=1)
    with pytest.raises(ArgumentError, match="by name"):
        GymLikeEnv(Echo())


def test_an_observation_of_the_wrong_shape_names_itself() -> None:
    class Lying(Echo):
        def _show(self) -> Any:
            return np.zeros(2, np.float32)

    with pytest.raises(SpecError, match=r"observation: expected shape \(3,\), got \(2,\)"):
        GymWrapper(Lying()).reset()


def test_rebuilding() -> None:
    env = GymEnv("Pendulum-v1", g=9.81)
    env.rebuild_with_kwargs(g=1.62)
    assert env.g == 1.62
    assert env.rollout(2).shape == (2,)


def test_closing() -> None:
    class Closing(Echo):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    inner = Closing()
    env = GymWrapper(inner)
    env.close()
    env.close()
    assert env.is_closed
    assert inner.closed == 1


def test_the_library_is_a_choice() -> None:
    assert gym_backend() is gym
    assert gym_backend("vector") is gym.vector
    with set_gym_backend(lambda: gym):
        assert GymEnv("CartPole-v1").lib is gym

    @set_gym_backend("gymnasium")
    def name() -> str:
        return gym_backend().__name__

    assert name() == "gymnasium"
    with pytest.raises(BackendUnavailable, match="no_such_gym"), set_gym_backend("no_such_gym"):
        pass
    assert GymEnv("CartPole-v1", backend="gymnasium").rollout(1).shape == (1,)
    known = get_available_libraries()
    assert known["gym"] is True
    assert set(known) == {"gym", "gym[atari]", "dm_control", "habitat", "gym-super-mario-bros"}
    assert "CartPole-v1" in GymEnv.available_envs


@pytest.mark.slow
def test_several_workers_make_a_parallel_env_of_single_ones() -> None:
    env = GymEnv("CartPole-v1", num_workers=2)
    try:
        assert env.batch_size == (2,)
        assert env.rollout(3, break_when_any_done=False).shape == (2, 3)
    finally:
        env.close(raise_if_closed=False)


class Countdown(GymLikeEnv):
    """A subclass that says all of it itself."""

    def _build_env(self, start: int, **kwargs: Any) -> Any:
        class Inner:
            def reset(self) -> int:
                self.left = start
                return self.left

            def step(self, action: Any) -> tuple[int, None, bool]:
                self.left -= int(action)
                return self.left, None, self.left <= 0

        return Inner()

    def _check_kwargs(self, kwargs: dict[str, Any]) -> None:
        pass

    def _make_specs(self, env: Any) -> None:
        self.observation_spec = Unbounded(shape=(1,), dtype=torch.int64)
        self.action_spec = Categorical(3)

    def _output_transform(self, step_outputs: Any) -> Any:
        left, reward, done = step_outputs
        return left, reward, done, None, None, {}

    def _reset_output_transform(self, reset_outputs: Any) -> Any:
        return reset_outputs, {}


def test_a_library_of_ones_own() -> None:
    env = Countdown(start=4)
    check_env_specs(env)
    td = env.rollout(10, actions=[torch.tensor(2)] * 10)
    assert td["observation"].flatten().tolist() == [4, 2]
    assert td["next", "observation"].flatten().tolist() == [2, 0]
    assert td["next", "reward"].flatten().tolist() == [0, 0]
    assert td["next", "terminated"].flatten().tolist() == [False, True]


class LimitedCountdown(Countdown):
    """Says that it was truncated, and declares only that it is done."""

    def _make_specs(self, env: Any) -> None:
        super()._make_specs(env)
        self.done_spec = Composite(done=Categorical(2, shape=(1,), dtype=torch.bool))

    def _output_transform(self, step_outputs: Any) -> Any:
        left, reward, done = step_outputs
        return left, reward, done, False, done, {}


def test_a_flag_that_is_not_declared_makes_no_ragged_rollouts() -> None:
    td = LimitedCountdown(start=9).rollout(3, return_contiguous=True, actions=[torch.tensor(1)] * 3)
    assert td["next", "truncated"].shape == (3, 1)
    assert td.get("truncated", None) is None


def test_envs_cross_to_other_containers() -> None:
    from shoal.faces.torchrl import SerialEnv

    envs = SerialEnv(2, partial(GymEnv, "Pendulum-v1", g=9.81))
    assert envs.rollout(3).shape == (2, 3)
    assert list(envs.g) == [9.81, 9.81]
    envs.close()


class TwoGoals(Echo):
    """Has a reward for each of two goals."""

    reward_space = spaces.Box(-10, 10, (2,), np.float32)

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, np.array([reward, -reward], np.float32), *rest


@pytest.mark.parametrize("wrap", [GymWrapper, MOGymWrapper])
def test_rewards_may_be_vectors(wrap: Any) -> None:
    env = wrap(gym.wrappers.TimeLimit(TwoGoals(), 4))
    check_env_specs(env)
    assert env.rollout(2)["next", "reward"].tolist() == [[1, -1], [2, -2]]
    skipping = wrap(TwoGoals(), frame_skip=2)
    assert skipping.rollout(1)["next", "reward"].tolist() == [[3, -3]]


@pytest.mark.skipif(find_spec("mo_gymnasium") is not None, reason="mo-gymnasium is installed")
def test_without_mo_gymnasium_the_error_names_it() -> None:
    with pytest.raises(BackendUnavailable, match="pip install mo-gymnasium"):
        MOGymEnv("deep-sea-treasure-v0")
    with pytest.raises(ArgumentError, match="num_envs"):
        MOGymEnv("deep-sea-treasure-v0", num_envs=2)


class OldStyle(Echo):
    """Speaks as Gym did up to 0.25: one flag, and no info from reset."""

    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0]

    def step(self, action: Any) -> Any:
        obs, reward, done, _, info = super().step(action)
        return obs, reward, done, {**info, "TimeLimit.truncated": done and self.length == 4}


def test_four_results_are_understood() -> None:
    ended, cut = GymWrapper(OldStyle(length=3)).rollout(9), GymWrapper(OldStyle(length=4)).rollout(9)
    assert ended["next", "terminated"].flatten().tolist() == [False, False, True]
    assert not ended["next", "truncated"].any()
    assert cut["next", "truncated"].flatten().tolist() == [False, False, False, True]
    assert not cut["next", "terminated"].any()


def test_specs_can_be_set() -> None:
    env = GymEnv("CartPole-v1")
    env.action_spec = Categorical(2)
    env.observation_spec = Composite(observation=Unbounded((4,), dtype=torch.float64))
    check_env_specs(env)
    assert env.rollout(3)["action"].shape == (3,)


def test_envs_of_tensordicts_go_to_gymnasium_and_back() -> None:
    for to_numpy in (False, True):
        GymEnv.register_gym("test/There-v0", env_name="CartPole-v1", to_numpy=to_numpy)
        try:
            env = GymEnv("test/There-v0")
            check_env_specs(env)
            assert env.rollout(3)["next", "observation"].shape == (3, 4)
            many = GymEnv("test/There-v0", num_envs=2)
            assert many.rollout(3)["next", "reward"].tolist() == [[[1.0]] * 3] * 2
            many.close()
        finally:
            del gym.registry["test/There-v0"]


def test_copies_are_envs_of_their_own() -> None:
    env = GymEnv("CartPole-v1")
    env.reset(seed=1)
    twin = copy.deepcopy(env)
    first, second = env.reset()["observation"], twin.reset()["observation"]
    assert (first == second).all()
    assert twin.unwrapped is not env.unwrapped


class Nested(Countdown):
    """Has its action and reward below the root."""

    def _make_specs(self, env: Any) -> None:
        self.observation_spec = Unbounded(shape=(1,), dtype=torch.int64)
        self.action_spec = Composite(agent=Composite(action=Categorical(3)))
        self.reward_spec = Composite(agent=Composite(reward=Unbounded((1,))))

    def read_action(self, action: Any) -> Any:
        return action.item()


def test_actions_and_rewards_below_the_root() -> None:
    env = Nested(start=4)
    check_env_specs(env)
    td = env.reset()
    td["agent", "action"] = torch.tensor(2)
    assert env.step(td)["next", "agent", "reward"].tolist() == [0]
