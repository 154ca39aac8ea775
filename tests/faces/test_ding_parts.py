"""Parts of DI-engine's dialect that need no manager: single envs, configs, monitors, trees."""

from __future__ import annotations

import pickle
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import errors
from shoal.adapters.ding_env import ActionForms, Anything, as_gymnasium
from shoal.faces import ding
from shoal.faces.ding import BaseEnv, BaseEnvTimestep, Config, DingEnvWrapper, TreeArray, VectorEvalMonitor
from shoal.faces.ding.failures import failure
from shoal.faces.ding.replay import Recorder
from shoal.faces.ding.tree import identifier
from shoal.faces.ding.wrapper import caster

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Plain(gymnasium.Env[Any, Any]):
    """Cut short after two steps; float64; rewards of 1.5."""

    observation_space = gymnasium.spaces.Box(-10, 10, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    render_mode = "rgb_array"

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.actions: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seen.append(seed)
        self.k = 0
        return np.zeros(2), {}

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        self.k += 1
        return np.full(2, float(self.k)), 1.5, False, self.k >= 2, {}

    def render(self) -> Any:
        return np.full((16, 16, 3), 40 * self.k, np.uint8)


def test_a_wrapped_env_keeps_both_flags_and_the_return() -> None:
    env = DingEnvWrapper(Plain())
    assert env.observation_space.dtype == np.float32
    assert env.reset().dtype == np.float32
    env.step(np.array([1]))
    last = env.step(np.array(1))
    assert last.done
    assert last.info["TimeLimit.truncated"] is True
    assert (last.terminated, last.truncated) == (False, True)
    assert last.info["eval_episode_return"].tolist() == [3.0]
    assert env.random_action().shape == (1,)
    assert env.reward_space.shape == (1,)


def test_the_return_is_of_the_rewards_as_they_are_where_it_is_counted() -> None:
    class Costly(Plain):
        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return obs, -20.0, *rest

    def end_of(**cfg: Any) -> tuple[float, float]:
        env = DingEnvWrapper(Costly(), cfg=cfg)
        env.reset()
        env.step(0)
        last = env.step(0)
        return last.reward.item(), last.info["eval_episode_return"].item()

    clip, count = {"type": "clip_reward"}, {"type": "eval_episode_return"}
    assert end_of() == (-20.0, -40.0)
    assert end_of(rew_clip=True) == (-10.0, -40.0)
    assert end_of(env_wrapper=[count, clip]) == (-1.0, -40.0)
    assert end_of(env_wrapper=[clip, count]) == (-1.0, -2.0)


class Photographed(Plain):
    """Rewards are 1, 2, 3, 4; pictures have three colours, the first of which is the step."""

    observation_space = gymnasium.spaces.Box(0, 255, (4, 5, 3), np.uint8)

    def picture(self) -> Any:
        made = np.zeros((4, 5, 3), np.uint8)
        made[..., 0] = 51 * self.k
        return made

    def reset(self, **wishes: Any) -> Any:
        super().reset(**wishes)
        return self.picture(), {}

    def step(self, action: Any) -> Any:
        self.k += 1
        return self.picture(), float(self.k), False, self.k >= 4, {}


def played(*parts: dict[str, Any]) -> tuple[DingEnvWrapper, list[Any]]:
    """An env with these wrappers, and the timesteps of an episode."""
    env = DingEnvWrapper(Photographed(), {"env_wrapper": parts})
    first = env.reset()
    assert env.observation_space.contains(first)
    timesteps = [env.step(0)]
    while not timesteps[-1].done:
        timesteps.append(env.step(0))
    assert all(env.observation_space.contains(timestep.obs) for timestep in timesteps)
    return env, timesteps


def test_wrappers_that_repeat_and_delay() -> None:
    _, twice = played({"type": "action_repeat", "kwargs": {"action_repeat": 3}})
    assert [t.reward.item() for t in twice] == [6.0, 4.0], "the episode ends within the second"
    assert [t.obs[0, 0, 0] for t in twice] == [153, 204]
    _, late = played({"type": "delay_reward", "kwargs": {"delay_reward_step": 3}})
    assert [t.reward.item() for t in late] == [0.0, 0.0, 6.0, 4.0]
    assert late[-1].info["eval_episode_return"].tolist() == [10.0]
    assert [t.reward.item() for t in played({"type": "delay_reward"})[1]] == [1.0, 2.0, 3.0, 4.0]
    with pytest.raises(errors.WrongSetting, match="action_repeat"):
        played({"type": "action_repeat", "kwargs": {"action_repeat": 0}})


def test_wrappers_that_show_something_else() -> None:
    env, timesteps = played({"type": "scaled_float_frame"}, {"type": "obs_transpose"})
    assert env.observation_space == gymnasium.spaces.Box(0, 1, (3, 4, 5), np.float32)
    assert timesteps[1].obs[0].tolist() == [[np.float32(0.4)] * 5] * 4
    env, timesteps = played({"type": "static_obs_norm", "kwargs": {"mean": 51.0, "std": 20.0}})
    assert env.observation_space.dtype == np.float32
    assert [t.obs[0, 0, 0] for t in timesteps] == [0.0, np.float32(2.55), 3.0, 3.0]


@pytest.mark.parametrize("reward", [np.array([2.0]), np.array(2.0), np.array([[2.0]]), np.float32(2), 2])
@pytest.mark.parametrize("env_wrapper", ["default", ["eval_episode_return", "max_and_skip"], ["clip_reward"]])
def test_rewards_may_be_arrays_of_one_number(reward: Any, env_wrapper: Any) -> None:
    class Boxed(Plain):
        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return obs, reward, *rest

    wrappers = env_wrapper if isinstance(env_wrapper, str) else [{"type": name} for name in env_wrapper]
    env = DingEnvWrapper(Boxed(), cfg={"env_wrapper": wrappers, "rew_clip": True})
    env.reset()
    while not (last := env.step(0)).done:
        pass
    assert (last.reward.shape, last.reward.dtype) == ((1,), np.float32)
    assert last.info["eval_episode_return"].tolist() == [2.0 if env_wrapper == ["clip_reward"] else 4.0]


def test_an_env_that_writes_over_its_observation_changes_no_earlier_one() -> None:
    class Reusing(Plain):
        observation_space = gymnasium.spaces.Box(-10, 10, (2,), np.float32)
        obs = np.zeros(2, np.float32)

        def reset(self, **wishes: Any) -> Any:
            super().reset(**wishes)
            self.obs[:] = 0
            return self.obs, {}

        def step(self, action: Any) -> Any:
            self.obs += 1
            return self.obs, *super().step(action)[1:]

    env = DingEnvWrapper(Reusing())
    first, second = env.reset(), env.step(0).obs
    env.step(0)
    assert (first.tolist(), second.tolist()) == ([0, 0], [1, 1])


def test_random_actions_follow_from_the_seed_of_the_episode() -> None:
    def some(env: DingEnvWrapper) -> list[int]:
        return [env.random_action().item() for _ in range(20)]

    assert some(DingEnvWrapper(Plain())) == some(DingEnvWrapper(Plain()))
    env = DingEnvWrapper(Plain())
    env.seed(3, dynamic_seed=False)
    drawn = []
    for _ in range(2):
        env.reset()
        drawn.append(some(env))
    assert drawn[0] == drawn[1]


def test_random_actions_in_dicts_are_arrays() -> None:
    class Handles(Plain):
        action_space: Any = gymnasium.spaces.Dict(
            {
                "a": gymnasium.spaces.Discrete(2),
                "b": gymnasium.spaces.Dict({"c": gymnasium.spaces.Box(0, 1, (2,))}),
            }
        )

    action = DingEnvWrapper(Handles()).random_action()
    assert (type(action["a"]), action["a"].shape, action["a"].dtype) == (np.ndarray, (), np.int64)
    assert action["b"]["c"].shape == (2,)


def test_configs_of_envs_are_their_own_and_say_what_they_are_for() -> None:
    given = {"env_id": "CartPole-v1", "collector_env_num": 2, "evaluator_env_num": 3, "deep": {"a": 1}}
    collecting = DingEnvWrapper.create_collector_env_cfg(given)
    evaluating = DingEnvWrapper.create_evaluator_env_cfg(given)
    assert [cfg["is_train"] for cfg in collecting + evaluating] == [True, True, False, False, False]
    collecting[0]["deep"]["a"] = 2
    assert given == {"env_id": "CartPole-v1", "deep": {"a": 1}}
    with pytest.raises(KeyError):
        DingEnvWrapper.create_collector_env_cfg(given)


@pytest.mark.parametrize("action", [1, np.int64(1), np.array(1), np.array([1])])
def test_a_choice_reaches_the_env_as_an_int(action: Any) -> None:
    inner = Plain()
    env = DingEnvWrapper(inner)
    env.reset()
    env.step(action)
    assert [(type(each), each) for each in inner.actions] == [(int, 1)]


class Giving(Plain):
    """Gives one and the same observation, of whatever type."""

    def __init__(self, space: Any, given: Any) -> None:
        super().__init__()
        self.observation_space, self.given = space, given

    def reset(self, **wishes: Any) -> Any:
        super().reset(**wishes)
        return self.given, {}

    def step(self, action: Any) -> Any:
        return self.given, *super().step(action)[1:]


FLOATS = gymnasium.spaces.Box(-10, 10, (2,), np.float32)
DOUBLES = gymnasium.spaces.Box(-10, 10, (2,), np.float64)
BYTES = gymnasium.spaces.Box(0, 255, (2,), np.uint8)


@pytest.mark.parametrize(
    ("space", "given", "dtype"),
    [
        (FLOATS, [0, 1], np.float32),
        (FLOATS, (0.0, 1.0), np.float32),
        (FLOATS, np.array([0, 1]), np.float32),
        (FLOATS, np.array([0, 1], np.float16), np.float32),
        (FLOATS, np.array([0.0, 1.0]), np.float32),
        (FLOATS, np.array([0, 1], np.float32), np.float32),
        (DOUBLES, np.array([0.0, 1.0]), np.float32),
        (DOUBLES, [0, 1], np.float32),
        (BYTES, np.array([0, 1], np.uint8), np.uint8),
        (gymnasium.spaces.Box(-10, 10, (2,), np.float16), np.array([0, 1], np.float16), np.float16),
        (gymnasium.spaces.MultiDiscrete([3, 3]), [0, 1], np.int64),
    ],
)
def test_observations_are_arrays_and_float32_where_the_space_is(space: Any, given: Any, dtype: Any) -> None:
    env = DingEnvWrapper(Giving(space, given))
    for obs in (env.reset(), env.step(0).obs):
        assert type(obs) is np.ndarray
        assert obs.dtype == dtype
        assert obs.tolist() == [0, 1]


def test_nested_observations_are_arrays_leaf_by_leaf() -> None:
    space = gymnasium.spaces.Dict({"f": FLOATS, "t": gymnasium.spaces.Tuple([DOUBLES, BYTES]), "n": FLOATS})
    given = {"f": [0, 1], "t": (np.zeros(2), np.zeros(2, np.uint8)), "n": np.zeros(2, np.float16), "more": [1]}
    env = DingEnvWrapper(Giving(space, given))
    for obs in (env.reset(), env.step(0).obs):
        assert (obs["f"].dtype, obs["n"].dtype) == (np.float32, np.float32)
        assert [part.dtype for part in obs["t"]] == [np.float32, np.uint8]
        assert obs["more"].tolist() == [1]
    assert caster(space)([1]).tolist() == [1], "what is not as its space says is left to others to judge"
    assert caster(space["t"])((1,)) == (1,)
    ready = np.zeros(2, np.float32)
    assert not np.shares_memory(caster(FLOATS)(ready), ready)


@pytest.mark.parametrize(("action", "unboxed"), [(1, 1), (np.int64(1), 1), (np.array(1), 1), (np.array([1]), 1)])
def test_choices_are_taken_out_of_their_arrays(action: Any, unboxed: int) -> None:
    env = DingEnvWrapper(raw := Plain())
    env.reset()
    env.step(action)
    assert raw.actions == [unboxed]
    with pytest.raises(TypeError, match="left"):
        env.step("left")


def test_seeds_static_and_dynamic() -> None:
    env = DingEnvWrapper(raw := Plain())
    env.seed(5, dynamic_seed=False)
    env.reset()
    env.reset()
    env.seed(5)
    env.reset()
    env.reset()
    assert raw.seen[:2] == [5, 5]
    first, second = raw.seen[2:]
    assert first != second
    assert (first - 5) % 100 == (second - 5) % 100 == 0
    other = DingEnvWrapper(again := Plain())
    other.seed(5)
    np.random.seed(0)  # the global generator is nobody's
    other.reset()
    assert again.seen == [first]


def test_an_env_that_draws_from_the_global_generator_is_seeded_too() -> None:
    class Drawing(Plain):
        def step(self, action: Any) -> Any:
            return np.random.rand(2), *super().step(action)[1:]

    def drawn(seed: int) -> Any:
        env = DingEnvWrapper(Drawing())
        env.seed(seed)
        env.reset()
        return env.step(0).obs.tolist()

    assert drawn(3) == drawn(3) != drawn(4)
    DingEnvWrapper(Plain()).seed(-1)  # which numpy would not take


def test_an_env_without_seeds_gets_none() -> None:
    class NeverSeeded(Plain):
        def reset(self) -> Any:  # type: ignore[override]
            return super().reset()

    env = DingEnvWrapper(raw := NeverSeeded(), seed_api=False)
    env.seed(5, dynamic_seed=False)
    env.reset()
    drawn = [env.random_action().item() for _ in range(20)]
    env.reset()
    assert raw.seen == [None, None]
    assert [env.random_action().item() for _ in range(20)] == drawn, "the action space is seeded all the same"


def test_scaled_actions_and_clipped_rewards() -> None:
    env = DingEnvWrapper(cfg={"env_id": "Pendulum-v1", "act_scale": True, "rew_clip": True})
    env.seed(0)
    env.reset()
    timestep = env.step(np.array([1.0], np.float32))
    assert timestep.reward >= -10
    assert env._env.unwrapped.last_u == 2.0
    env.close()


def test_wrappers_by_name_and_by_function() -> None:
    limit = {"type": "TimeLimit", "kwargs": {"max_episode_steps": 1}}
    env = DingEnvWrapper(Plain(), {"env_wrapper": [limit, gymnasium.wrappers.OrderEnforcing]})
    env.reset()
    assert env.step(0).done
    with pytest.raises(errors.WrongSetting, match="no wrapper None"):
        DingEnvWrapper(Plain(), {"env_wrapper": [{}]})
    with pytest.raises(errors.WrongSetting, match="expected one of"):
        DingEnvWrapper(Plain(), {"env_wrapper": "other"})
    with pytest.raises(errors.WrongSetting, match="env_id"):
        DingEnvWrapper()


def test_wrappers_by_the_names_that_di_engine_has_for_them() -> None:
    parts = [
        {"type": "clip_reward"},
        {"type": "frame_stack", "kwargs": {"n_frames": 3}},
        {"type": "eval_episode_return", "kwargs": {}},
    ]
    env = DingEnvWrapper(Plain(), {"env_wrapper": parts})
    assert env.reset().shape == (3, 2)
    assert env.step(0).reward.tolist() == [1.0]
    assert env.step(0).info["eval_episode_return"].tolist() == [2.0]
    skipping = DingEnvWrapper(Plain(), {"env_wrapper": [{"type": "max_and_skip", "kwargs": {"skip": 2}}]})
    skipping.reset()
    timestep = skipping.step(0)
    assert (timestep.obs.tolist(), timestep.reward.tolist(), timestep.done) == ([2, 2], [3.0], True)
    long = DingEnvWrapper(Plain(), {"env_wrapper": [{"type": "max_and_skip", "kwargs": {"skip": 4}}]})
    long.reset()
    assert long.step(0).obs.tolist() == [2, 2], "the episode ends within the skip"
    with pytest.raises(errors.WrongSetting, match=r"'ram'.*'frame_stack'"):
        DingEnvWrapper(Plain(), {"env_wrapper": [{"type": "ram"}]})


class Hybrid(Plain):
    action_space = gymnasium.spaces.Tuple((gymnasium.spaces.Discrete(3), gymnasium.spaces.Box(-1, 1, (2,))))


@pytest.mark.parametrize("wrapper", ["gym_hybrid_default", [{"type": "gym_hybrid_dict_action"}]])
def test_a_choice_with_parameters_is_a_dict(wrapper: Any) -> None:
    env = DingEnvWrapper(raw := Hybrid(), {"env_wrapper": wrapper})
    env.reset()
    assert {*env.action_space.spaces} == {"args", "mask", "type"}
    action = env.random_action()
    env.step(action)
    choice, parameters = raw.actions[0]
    assert choice == action["type"]
    assert parameters.tolist() == action["args"].tolist()
    with pytest.raises(errors.WrongSetting, match="a choice and its parameters"):
        DingEnvWrapper(Plain(), {"env_wrapper": wrapper})


class OldDiscrete:
    """A space of the old gym, as far as it matters."""

    n = 1000

    def contains(self, x: Any) -> bool:
        return True


OldDiscrete.__name__ = "Discrete"


def test_spaces_of_the_old_gym_keep_their_seeds() -> None:
    raw = Plain()
    raw.action_space = OldDiscrete()  # type: ignore[assignment]
    env = DingEnvWrapper(raw)
    drawn = []
    for _ in range(2):
        env.action_space.seed(3)
        drawn.append([env.random_action().item() for _ in range(5)])
    assert drawn[0] == drawn[1]
    assert len({*drawn[0]}) > 1


def test_an_abstract_env_cannot_be_made() -> None:
    with pytest.raises(TypeError):
        BaseEnv({})  # type: ignore[abstract]
    cfg = {"collector_env_num": 3, "x": 1}
    assert BaseEnv.create_collector_env_cfg(cfg) == [{"x": 1}] * 3
    with pytest.raises(KeyError, match="evaluator_env_num"):
        BaseEnv.create_evaluator_env_cfg({"x": 1})


def test_replays_are_files_or_an_error_that_names_the_extra(tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("moviepy")
    env = DingEnvWrapper(Plain())
    env.enable_save_replay(str(tmp_path / "videos"))
    for _ in range(2):
        env.reset()
        env.step(0)
        env.step(0)
    env.reset()
    env.close()
    assert sorted(path.suffix for path in (tmp_path / "videos").iterdir()) == [".mp4"] * 3


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shoal.faces.ding.replay.find_spec", lambda name: None)
    with pytest.raises(errors.BackendUnavailable, match=r"shoal\[video\]"):
        DingEnvWrapper(Plain()).enable_save_replay("x")
    with pytest.raises(errors.BackendUnavailable, match=r"shoal\[video\]"):
        Recorder(tmp_path)


# ---------------------------------------------------------------------- data


def test_configs() -> None:
    cfg = Config({"a": {"b": 1}}, c=2)
    cfg.a.b = 3
    copy = deepcopy(cfg)
    copy.a.b = 4
    assert cfg == {"a": {"b": 3}, "c": 2}
    assert pickle.loads(pickle.dumps(copy)).a.b == 4
    with pytest.raises(AttributeError, match="missing"):
        cfg.missing  # noqa: B018
    del cfg.c
    assert "c" not in cfg


def test_configs_have_attributes_however_a_dict_got_in() -> None:
    cfg = Config()
    cfg.update({"x": {"a": 1}}, y={"b": 2})
    cfg["l"] = [{"a": 3}, [{"a": 4}], 5]
    cfg.t = ({"a": 6},)
    assert cfg.setdefault("z", {"a": 7}).a == cfg.setdefault("z", None).a == 7
    assert (cfg.x.a, cfg.y.b, cfg.l[0].a, cfg.l[1][0].a, cfg.t[0].a) == (1, 2, 3, 4, 6)
    cfg.update([("x", 8)])
    assert (cfg.x, deepcopy(cfg).l[0].a) == (8, 3)


def test_configs_merged() -> None:
    first = Config({"env": {"n": 1, "id": "x"}, "other": [1]})
    second = {"env": {"n": 2, "deep": {"a": 1}}, "other": {"b": 1}}
    merged = ding.deep_merge_dicts(first, second)
    assert merged == {"env": {"n": 2, "id": "x", "deep": {"a": 1}}, "other": {"b": 1}}
    assert isinstance(merged, Config)
    merged["env"]["deep"]["a"] = merged["env"]["n"] = 9
    assert (first.env.n, second["env"]["deep"]) == (1, {"a": 1}), "both stay as they are"
    assert ding.deep_merge_dicts(None, {"a": 1}) == ding.deep_merge_dicts({"a": 1}, None) == {"a": 1}


def test_a_monitor_keeps_the_first_episodes_of_each_env() -> None:
    with pytest.raises(AssertionError, match="too few"):
        VectorEvalMonitor(3, 2)
    monitor = VectorEvalMonitor(2, 3)
    for env_id, value in [(0, 1.0), (0, 2.0), (0, 99.0)]:
        monitor.update_reward(env_id, np.array([value], np.float32))
    assert not monitor.is_finished()
    monitor.update_reward(1, 4.0)
    assert monitor.is_finished()
    assert monitor.get_episode_return() == [1.0, 2.0, 4.0]
    assert monitor.get_latest_reward(0) == 99.0
    assert monitor.get_current_episode() == 3
    assert monitor.get_episode_info() is None


def test_an_evaluation_keeps_what_was_reported_and_adds_means_of_numbers() -> None:
    monitor = VectorEvalMonitor(2, 2)
    ends = np.array([4.0], np.float32)
    for k in range(2):
        told = {"ok": True, "k": k, "part": [1.0, 2.0], "none": None, "note": "text", "map": {"a": k}, "return": ends}
        monitor.update_info(k, told)
    assert monitor.get_episode_info() == {
        "ok": [True, True],
        "ok_mean": 1.0,
        "k": [0, 1],
        "k_mean": 0.5,
        "part": [[1.0, 2.0], [1.0, 2.0]],
        "none": [None, None],
        "note": ["text", "text"],
        "map": [{"a": 0}, {"a": 1}],
        "return": [ends, ends],
        "return_mean": 4.0,
    }


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_returns_are_numbers(kind: str) -> None:
    make = np.array if kind == "array" else pytest.importorskip("torch").tensor
    monitor = VectorEvalMonitor(1, 2)
    monitor.update_reward(0, make([1.5]))
    monitor.update_reward(0, make(2.5))
    assert monitor.get_episode_return() == [1.5, 2.5]
    assert all(type(value) is float for value in monitor.get_episode_return())


@pytest.mark.parametrize(
    ("returns", "shown"),
    [([5], [5]), ([5, 1], [1, 5]), ([5, 1, 3], [1, 3, 5]), ([5, 1, 3, 2, 4], [1, 2, 3, 5])],
)
def test_the_video_shows_the_worst_median_and_best_episodes(returns: list[int], shown: list[int]) -> None:
    monitor = VectorEvalMonitor(1, len(returns))
    assert monitor.get_video().shape[0] == 0
    for value in [*returns, 99]:
        for _ in range(value):
            monitor.update_video({0: np.full((4, 6, 3), value, np.uint8)})
        monitor.update_reward(0, float(value))
    video = monitor.get_video()
    assert video.shape == (len(shown), 5, 3, 4, 6), "the last picture is held"
    assert [film.max() for film in video] == [film.min() for film in video] == shown


def test_trees() -> None:
    tree = TreeArray({"a": np.arange(3), "b": {"c": np.arange(6).reshape(3, 2)}})
    assert tree[1].b.c.tolist() == [2, 3]
    assert list(tree) == ["a", "b"]
    assert pickle.loads(pickle.dumps(tree)).b.c.shape == (3, 2)
    assert not hasattr(tree, "d")
    tree.d = 1
    assert tree["d"] == 1


@given(st.text(min_size=1))
def test_keys_become_identifiers(key: str) -> None:
    assert identifier(key).isidentifier()


FORMS: list[Callable[[int], Any]] = [int, np.int64, np.array, lambda value: np.array([value])]
DISCRETE = st.builds(
    lambda count, start: gymnasium.spaces.Discrete(count, start=start),
    st.integers(1, 2**40) | st.integers(1, 2**60),
    st.sampled_from([0, 1, -3, 2**60, -(2**60)]),
)


@given(DISCRETE, st.data())
def test_numbers_arrive_as_what_they_were(space: gymnasium.spaces.Discrete, data: st.DataObject) -> None:
    first = int(space.start)
    numbers = st.integers(first, first + int(space.n) - 1)
    makes = st.sampled_from(FORMS) if data.draw(st.booleans()) else st.just(data.draw(st.sampled_from(FORMS)))
    actions = [make(number) for make, number in data.draw(st.lists(st.tuples(makes, numbers), min_size=1))]
    forms = ActionForms(space)
    packed = forms.pack(actions)
    assert packed is not None
    assert packed.dtype == np.int64
    assert all(forms.space.contains(row) for row in packed)
    arrived = [forms.unpack(row) for row in packed]
    assert list(map(type, arrived)) == list(map(type, actions))
    assert list(map(repr, arrived)) == list(map(repr, actions))


@given(DISCRETE, st.integers(-(2**63), 2**63 - 1), st.integers(0, 3))
def test_numbers_that_a_space_does_not_have_go_beside_it(
    space: gymnasium.spaces.Discrete, number: int, form: int
) -> None:
    first = int(space.start)
    is_there = first <= number < first + int(space.n)
    assert (ActionForms(space).pack([FORMS[form](first), FORMS[form](number)]) is not None) == is_there


@pytest.mark.parametrize("space", [gymnasium.spaces.Discrete(2**62), gymnasium.spaces.Discrete(1, start=-(2**63))])
def test_a_space_of_more_numbers_than_a_column_can_tell_apart(space: gymnasium.spaces.Discrete) -> None:
    assert not ActionForms(space).has_column


@pytest.mark.parametrize(
    "odd", ["left", True, 2**63, -1, 2, np.int64(2), np.array(2), np.array([1, 2]), np.array([1.0]), None, np.int32(1)]
)
def test_what_fits_no_column_goes_beside_it(odd: Any) -> None:
    assert ActionForms(gymnasium.spaces.Discrete(2)).pack([0, odd]) is None


class Box:
    """As the old gym has it."""

    low, high, shape, dtype = np.zeros(2), np.ones(2), (2,), np.float32

    def contains(self, x: Any) -> bool:
        return True


def test_spaces_of_the_old_gym() -> None:
    assert as_gymnasium(Box()) == gymnasium.spaces.Box(np.zeros(2, np.float32), np.ones(2, np.float32))
    assert as_gymnasium(None) == Anything()
    assert as_gymnasium(type("Dict", (), {"spaces": {"a": Box()}})())["a"].shape == (2,)


class NeedsTwo(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")


@pytest.mark.parametrize("cause", [KeyError("k"), OSError(2, "no file"), NeedsTwo(1, "x"), UnicodeError("u"), None])
def test_errors_are_of_both_classes(cause: Any) -> None:
    error = errors.EnvStepError("step failed in env 1", errors.Where((1,), "step"), "Traceback ...")
    error.__cause__ = cause
    told = failure(error, 1, 2, {0: "timestep"})
    assert isinstance(told, errors.EnvStepError)
    assert isinstance(told, type(cause) if cause is not None else RuntimeError)
    assert str(told).startswith("Env 1 step has exceeded max retries(2)")
    assert told.timesteps == {0: "timestep"}  # type: ignore[attr-defined]
    assert str(pickle.loads(pickle.dumps(told))) == str(told)
    assert told.__notes__ == ["In the env:\nTraceback ..."]


# ---------------------------------------------------------------------- envs by name


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A class of envs under the name "proper"."""
    monkeypatch.setattr("shoal.faces.ding.env_classes.ENV_REGISTRY", registry := type(ding.ENV_REGISTRY)())
    return registry.register("proper")(Proper)


class Proper(BaseEnv):
    """An env that does everything as it should; subclasses do one thing wrong."""

    observation_space: Any = gymnasium.spaces.Dict({"x": gymnasium.spaces.Box(-9, 9, (2,), np.float32)})
    action_space = gymnasium.spaces.Discrete(2)
    reward_space: Any = gymnasium.spaces.Box(0, 1, (1,), np.float32)

    def __init__(self, cfg: dict[str, Any] | None = None, **more: Any) -> None:
        self.cfg, self.more, self._seed = cfg, more, None

    def obs(self) -> Any:
        return {"x": np.full(2, self.k, np.float32)}

    def reset(self) -> Any:  # type: ignore[override]
        self.k = 0
        return self.obs()

    def step(self, action: Any) -> Any:
        self.k += 1
        info = {"eval_episode_return": float(self.k)} if self.k == 3 else {}
        return BaseEnvTimestep(self.obs(), np.ones(1, np.float32), self.k == 3, info)

    def seed(self, seed: int, dynamic_seed: bool = True) -> None:
        self._seed = seed

    def close(self) -> None:
        pass

    def __repr__(self) -> str:
        return type(self).__name__


def test_envs_by_name(registered: Any) -> None:
    cfg = {"type": "proper", "import_names": ["json"], "collector_env_num": 3, "evaluator_env_num": 2, "x": 1}
    assert ding.get_env_cls(cfg) is Proper
    assert ding.get_vec_env_setting(deepcopy(cfg), collect=False, eval_=False) == (Proper, None, None)
    kind, collector, evaluator = ding.get_vec_env_setting(deepcopy(cfg))
    assert kind is Proper
    assert collector is not None
    assert evaluator is not None
    assert (len(collector), len(evaluator)) == (3, 2)
    assert collector[0]["x"] == 1
    kept = deepcopy(cfg)
    assert ding.create_model_env(cfg).more == {"collector_env_num": 3, "evaluator_env_num": 2, "x": 1}
    assert cfg == kept
    with pytest.raises(KeyError, match=r"expected one of \['proper'\], got 'other'"):
        ding.get_env_cls({"type": "other"})
    with pytest.raises(ImportError):
        ding.get_env_cls({"type": "proper", "import_names": ["no_such_module"]})


def test_a_name_belongs_to_one_class() -> None:
    registry = type(ding.ENV_REGISTRY)()
    assert registry.register("a")(Proper) is registry.register("a")(Proper) is registry["a"]
    with pytest.raises(errors.WrongSetting, match="'a'"):
        registry.register("a")(Plain)


# ---------------------------------------------------------------------- whether an env is as it should be


def test_a_proper_env_passes_every_check() -> None:
    ding.check_all(Proper())
    ding.check_all(DingEnvWrapper(cfg={"env_id": "CartPole-v1"}))
    ding.demonstrate_correct_procedure(Proper)


class DoubleSpace(Proper):
    observation_space = gymnasium.spaces.Dict({"x": gymnasium.spaces.Box(-9, 9, (2,), np.float64)})


class SmallInts(Proper):
    action_space = gymnasium.spaces.MultiDiscrete(np.array([2, 2]), dtype=np.int32)  # type: ignore[assignment]


class Doubles(Proper):
    def obs(self) -> Any:
        return {"x": np.zeros(2)}


class Longer(Proper):
    def obs(self) -> Any:
        return {"x": np.zeros(2 + self.k, np.float32)}


class Listed(Proper):
    def obs(self) -> Any:
        return {"x": 0.0}


class Beyond(Proper):
    reward_space = gymnasium.spaces.Box(0, 0.5, (1,), np.float32)


class Silent(Proper):
    def step(self, action: Any) -> Any:
        return super().step(action)._replace(info={})


class Same(Proper):
    buffer = np.zeros(2, np.float32)

    def obs(self) -> Any:
        return {"x": self.buffer}


class Changing(Proper):
    def obs(self) -> Any:
        return super().obs() if self.k < 2 else {}


@pytest.mark.parametrize(
    ("kind", "check", "told"),
    [
        (DoubleSpace, "check_space_dtype", r"observation_space\['x'\] must be float32, and is float64"),
        (SmallInts, "check_space_dtype", "action_space must be int64, and is int32"),
        (Doubles, "check_reset", r"obs\['x'\] must be float32, and is float64"),
        (Listed, "check_reset", r"obs\['x'\] must be an array"),
        (Longer, "check_step", r"obs\['x'\] must be of shape \(2,\), and is \(3,\)"),
        (Beyond, "check_step", "reward must be in Box"),
        (Silent, "check_step", "info must have 'eval_episode_return'"),
        (Same, "check_obs_deepcopy", r"obs\['x'\] must be a new array"),
        (Changing, "check_obs_deepcopy", r"obs had \['x'\], and has \[\]"),
    ],
)
def test_what_is_wrong_with_an_env_is_named(kind: Any, check: str, told: str) -> None:
    for look in (getattr(ding, check), ding.check_all):
        with pytest.raises(AssertionError, match=f"^{kind.__name__}: {told}"):
            look(kind())


def test_an_env_that_never_ends_is_no_endless_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.faces.ding.checking._MOST_STEPS", 2)
    with pytest.raises(errors.EnvCheckFailed, match="Proper: done must come true"):
        ding.check_step(Proper())


class Eager(Proper):
    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self._env = object()


class Forgetful(Proper):
    def seed(self, seed: int, dynamic_seed: bool = True) -> None:
        pass


@pytest.mark.parametrize(("kind", "field"), [(Eager, "_env"), (Forgetful, "_seed"), (Silent, "info")])
def test_the_procedure_shows_what_an_env_does_wrong(kind: Any, field: str) -> None:
    with pytest.raises(AssertionError, match=f"^{kind.__name__}: {field} must"):
        ding.demonstrate_correct_procedure(kind)


def test_registries_take_classes_in_several_ways() -> None:
    registry = type(ding.ENV_REGISTRY)()
    registry.register("x", Proper)
    registry.register(module=Plain)
    assert registry["Plain"] is Plain
    with pytest.raises(AssertionError, match="already"):
        registry.register("x", Plain)
    registry.register("x", Plain, force_overwrite=True)
    assert isinstance(registry.build("x"), Plain)
    assert set(registry.query()) == {"x", "Plain"}
    with pytest.raises(KeyError, match="absent"):
        registry.get("absent")


def test_trees_have_shapes_and_plain_forms() -> None:
    tree = ding.TreeArray({"pos": np.zeros((2, 3)), "more": {"x": np.zeros(2, np.int8)}})
    assert (tree.shape.pos, tree.shape.more.x, tree.dtype.more.x) == ((2, 3), (2,), np.int8)
    plain = tree.json()
    assert type(plain) is type(plain["more"]) is dict
    assert ding.TreeArray({"shape": np.ones(1)}).shape.tolist() == [1.0], "a key comes first"


def test_who_calls_is_a_collector_or_an_evaluator() -> None:
    with pytest.raises(AssertionError, match="caller"):
        ding.setup_ding_env_manager(DingEnvWrapper(Plain()), 2, caller="nobody")
    with pytest.raises(NotImplementedError, match="env_wrapper"):
        DingEnvWrapper(Plain(), {"env_wrapper": "other"})
