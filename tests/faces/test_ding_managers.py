"""What every form of manager does, in one process and in many: the same tests for all."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import namedtuple
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import numpy as np
import pytest
from ding_envs import Tally

from shoal import errors, testing
from shoal.faces.ding import (
    AsyncSubprocessEnvManager,
    BaseEnvManager,
    BaseEnvTimestep,
    DingEnvWrapper,
    SyncSubprocessEnvManager,
    create_env_manager,
    get_env_manager_cls,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FORMS = [BaseEnvManager, SyncSubprocessEnvManager]
ONE_BY_ONE = {"wait_num": float("inf")}  # has the asynchronous form wait for everyone


# The asynchronous form has everything from the synchronous one but how it waits.
every_form = pytest.mark.parametrize("form", [*FORMS, AsyncSubprocessEnvManager], ids=lambda cls: cls.__name__)
with_processes = pytest.mark.parametrize(
    "form", [SyncSubprocessEnvManager, AsyncSubprocessEnvManager], ids=lambda cls: cls.__name__
)


@pytest.fixture(params=FORMS, ids=lambda cls: cls.__name__)
def form(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def launched() -> Iterator[Callable[..., Any]]:
    """Managers of Tally envs, closed in the end."""
    with contextlib.ExitStack() as open_managers:

        def launch(cls: Any, lengths: Any = (2, 3), env: Any = Tally, launch: bool = True, **settings: Any) -> Any:
            cfg = cls.default_config()
            if cls is not BaseEnvManager:
                cfg.update(ONE_BY_ONE)
            cfg.update(settings)
            manager = cls([partial(env, i, length) for i, length in enumerate(lengths)], cfg)
            open_managers.callback(manager.close)
            open_managers.callback(testing.release_hangs)  # before it is closed
            if launch:
                manager.launch()
            return manager

        yield launch


def states(manager: Any) -> dict[int, str]:
    return {i: state.name for i, state in manager._env_states.items()}


def rows(by_id: Any) -> dict[int, Any]:
    return {i: np.asarray(obs).tolist() for i, obs in by_id.items()}


def all_ready(manager: Any) -> dict[int, Any]:
    """What is ready once all envs are: the asynchronous form does not wait for resets."""
    end = time.monotonic() + 20
    while len(ready := manager.ready_obs) < manager.env_num:
        assert time.monotonic() < end, states(manager)
    return rows(ready)


# ---------------------------------------------------------------------- life


@every_form
def test_construction_looks_at_one_env_and_launch_builds_all(form: Any, launched: Any) -> None:
    manager = launched(form, launch=False)
    assert manager.closed
    assert set(states(manager).values()) == {"VOID"}
    assert manager.observation_space.shape == (3,)
    assert isinstance(manager.env_ref, Tally)
    assert manager.env_ref.resets == 0
    manager.launch()
    assert not manager.closed
    assert set(states(manager).values()) == {"RUN"}
    with pytest.raises(AssertionError, match="open already"):
        manager.launch()


def test_whoever_needs_envs_says_that_there_are_none(form: Any, launched: Any) -> None:
    manager = launched(form, launch=False)
    for use in (lambda: manager.step({0: 0}), manager.reset, lambda: manager.ready_obs, lambda: manager.label):
        with pytest.raises(AssertionError, match="launch"):
            use()
    assert manager.ready_obs_id == []
    assert not manager.done


def test_an_incomplete_config_names_what_it_lacks(form: Any) -> None:
    cfg = form.default_config()
    del cfg["max_retry"]
    with pytest.raises(AttributeError, match="max_retry"):
        form([Tally], cfg)


@pytest.mark.parametrize("key", ["shared_memory", "copy_on_get"])
@with_processes
def test_a_key_without_effect_belongs_to_a_complete_config_too(form: Any, key: str) -> None:
    cfg = form.default_config()
    del cfg[key]
    with pytest.raises(AttributeError, match=key):
        form([Tally], cfg)


@pytest.mark.parametrize(
    ("setting", "wrong"), [("retry_type", "again"), ("step_timeout", -1), ("reset_timeout", "soon")]
)
def test_settings_that_make_no_sense_are_refused(form: Any, setting: str, wrong: Any) -> None:
    cfg = form.default_config()
    cfg[setting] = wrong
    with pytest.raises(AssertionError, match=setting):
        form([Tally], cfg)


def test_an_env_that_cannot_be_built_is_named(form: Any) -> None:
    def broken() -> Any:
        raise ValueError("no licence")

    manager = form([Tally, broken], form.default_config())
    with pytest.raises(RuntimeError, match=r"env 1.*no licence"):
        manager.launch()
    assert manager.closed


# ---------------------------------------------------------------------- episodes


@every_form
def test_a_timestep_has_the_last_observation_and_ready_obs_the_next_first_one(form: Any, launched: Any) -> None:
    manager = launched(form, lengths=(1, 9))
    last = manager.step({0: 0, 1: 0})[0]
    assert last.obs.tolist() == [0, 0, 1]
    assert last.done
    assert last.truncated
    assert not last.terminated
    assert all_ready(manager) == {0: [0, 1, 0], 1: [1, 0, 1]}


def test_the_same_run_twice_is_the_same_ready_sets(form: Any, launched: Any) -> None:
    def run() -> list[Any]:
        manager = launched(form, lengths=(1, 2, 3))
        seen = []
        for _ in range(12):
            ready = rows(manager.ready_obs)
            seen.append((ready, {i: t.obs.tolist() for i, t in manager.step(dict.fromkeys(ready, 0)).items()}))
        manager.close()
        return seen

    first = run()
    assert all(list(ready) == [0, 1, 2] for ready, _ in first)
    assert first == run()


@every_form
def test_each_env_has_its_own_budget_of_episodes(form: Any, launched: Any) -> None:
    manager = launched(form, lengths=(1, 2), episode_num=2)
    ended = {0: 0, 1: 0}
    while not manager.done:
        for i, timestep in manager.step(dict.fromkeys(manager.ready_obs, 0)).items():
            ended[i] += timestep.done
    assert ended == {0: 2, 1: 2}
    assert set(states(manager).values()) == {"DONE"}
    assert manager.ready_obs == {}
    assert manager.resets == [2, 2], "nobody was reset after the last episode"
    manager.reset()
    assert rows(manager.ready_obs) == {0: [0, 2, 0], 1: [1, 2, 0]}


@every_form
def test_without_auto_reset_an_env_waits(form: Any, launched: Any) -> None:
    manager = launched(form, lengths=(1, 9), auto_reset=False)
    manager.step({0: 0, 1: 0})
    assert states(manager) == {0: "NEED_RESET", 1: "RUN"}
    assert list(manager.ready_obs) == [1]
    with pytest.raises(AssertionError, match="env 0 is NEED_RESET"):
        manager.step({0: 0, 1: 0})
    assert manager.k == [1, 1], "nobody has moved"
    manager.reset({0: None})
    assert list(manager.ready_obs) == [0, 1]


def test_keywords_of_a_reset_are_used_again(form: Any, launched: Any) -> None:
    manager = launched(form, lengths=(1, 9), launch=False)
    with pytest.raises(AssertionError, match="one entry for each"):
        manager.launch({0: {}})
    manager.launch({0: {"stat": "a"}, 1: {"stat": "b"}})
    manager.step({0: 0, 1: 0})
    assert manager.stat == ["a", "b"]
    assert manager.resets == [2, 1]
    manager.reset()
    assert manager.stat == ["a", "b"]
    manager.reset({0: None})
    assert manager.stat == [None, "b"]


@pytest.mark.parametrize("wrong", [{0: {"stat": "c"}, 1: 5}, {1: "stat"}, [{}, {}]])
def test_what_are_no_keywords_is_refused_and_forgotten(form: Any, launched: Any, wrong: Any) -> None:
    manager = launched(form, launch=False)
    with pytest.raises(AssertionError, match="reset_param: expected"):
        manager.launch(wrong)
    manager.launch({0: {"stat": "a"}, 1: None})
    with pytest.raises(AssertionError, match="reset_param: expected"):
        manager.reset(wrong)
    assert manager.resets == [1, 1], "nobody was reset"
    manager.reset()
    assert manager.stat == ["a", None]


def test_an_env_of_no_such_id_is_told_apart(form: Any, launched: Any) -> None:
    manager = launched(form)
    for use in (lambda: manager.step({7: 0}), lambda: manager.reset({7: {}}), lambda: manager.seed({7: 1})):
        with pytest.raises(KeyError, match="no env 7"):
            use()


# ---------------------------------------------------------------------- seeds


@every_form
def test_seeds_wait_for_the_reset_of_their_env(form: Any, launched: Any) -> None:
    manager = launched(form, launch=False)
    manager.seed(10, dynamic_seed=False)
    manager.launch()
    assert manager.seeds == [[(10, False)], [(11, False)]]
    manager.seed([5, 6])
    manager.seed({1: np.int64(7)})
    manager.reset({1: {"stat": 1}})
    assert manager.seeds == [[(10, False)], [(11, False), (7, "not given")]]
    manager.reset()
    manager.reset()
    assert manager.seeds == [[(10, False), (5, "not given")], [(11, False), (7, "not given")]]


@every_form
def test_a_seed_may_be_left_out(form: Any, launched: Any) -> None:
    manager = launched(form, launch=False)
    manager.seed([None, 5])
    manager.launch()
    assert manager.seeds == [[], [(5, "not given")]]
    for wrong in ((1, 2), 1.5, "1", np.array([1, 2])):
        with pytest.raises(TypeError, match="seed: expected an int"):
            manager.seed(wrong)


class Moody(gymnasium.spaces.Discrete):
    """A space that takes no seeds."""

    def seed(self, seed: Any = None) -> Any:
        raise NotImplementedError("no seeds here")


class MoodyTally(Tally):
    def __init__(self, index: int, length: int) -> None:
        super().__init__(index, length)
        self.action_space = Moody(4)


@every_form
def test_seeds_are_for_envs_whatever_the_action_space_makes_of_them(form: Any, launched: Any) -> None:
    manager = launched(form, env=MoodyTally, launch=False)
    manager.seed(5)
    manager.launch()
    assert manager.seeds == [[(5, "not given")], [(6, "not given")]]


class BuildsOnce(Tally):
    """Only the env to look at can be built."""

    def __init__(self, index: int, length: int) -> None:
        if index:
            raise ZeroDivisionError("no second one")
        super().__init__(index, length)


@every_form
def test_an_env_that_cannot_be_built_raises_its_own_class_too(form: Any, launched: Any) -> None:
    manager = launched(form, env=BuildsOnce, launch=False)
    for kind in (ZeroDivisionError, errors.EnvConstructError):
        with pytest.raises(kind, match="no second one"):
            manager.launch()
        assert manager.closed


class Unseedable(Tally):
    def seed(self, seed: int, dynamic_seed: Any = None) -> None:
        raise KeyError("no seeding here")


@every_form
def test_an_env_that_cannot_be_seeded_goes_on_without(form: Any, launched: Any, caplog: Any) -> None:
    manager = launched(form, env=Unseedable, launch=False)
    manager.seed(3, dynamic_seed=False)
    manager.launch()
    assert all_ready(manager) == {0: [0, 0, 0], 1: [1, 0, 0]}
    if form is BaseEnvManager:  # a worker writes to a log of its own
        assert "seed(3) failed in Tally(0)" in caplog.text
        assert "no seeding here" in caplog.text


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [([1], AssertionError), ("seven", TypeError), (1.5, TypeError), (-1, ValueError), ({1: -1}, ValueError)],
)
def test_what_is_no_seed_is_refused(form: Any, launched: Any, wrong: Any, kind: Any) -> None:
    with pytest.raises(kind, match="seed"):
        launched(form, launch=False).seed(wrong)


# ---------------------------------------------------------------------- beside


def test_attributes_are_those_of_every_env(form: Any, launched: Any) -> None:
    manager = launched(form)
    assert manager.label == ["env0", "env1"]
    assert manager.length == [2, 3]
    assert manager.inverse == [1.0, 1.0]
    assert not hasattr(manager, "no_such_thing")
    with pytest.raises(RuntimeError, match="secret"):
        manager.secret()
    assert [draw().max() for draw in manager.render] == [0, 0]
    assert manager.reward_shaping(1, [1.0]) == [2.0]
    assert {i: image.shape for i, image in manager.ready_imgs.items()} == {0: (2, 2, 3), 1: (2, 2, 3)}


class Unmeasured(Tally):
    @property
    def temperature(self) -> float:
        raise ZeroDivisionError("not measured yet")

    def render(self, mode: str = "rgb_array") -> Any:
        raise ZeroDivisionError("too dark")


def test_what_asking_an_env_raises_is_of_its_own_class_too(form: Any, launched: Any) -> None:
    manager = launched(form, env=Unmeasured)
    for ask in (lambda: manager.temperature, lambda: manager.ready_imgs, lambda: manager.render[1]()):
        with pytest.raises(ZeroDivisionError, match=r"env [01]"):
            ask()
    assert list(manager.ready_obs) == [0, 1]


class Plainly(Tally):
    """Draws without being told how."""

    def render(self) -> Any:  # type: ignore[override]
        return np.zeros((4, 4, 3), np.uint8)


def test_pictures_of_an_env_that_always_draws_the_same_way(launched: Any) -> None:
    manager = launched(BaseEnvManager, env=Plainly)
    assert manager.ready_imgs[0].shape == (4, 4, 3)


@pytest.mark.filterwarnings("ignore:.*render:UserWarning")
def test_an_env_that_was_made_without_pictures_is_told_how_to_make_it(launched: Any) -> None:
    manager = launched(BaseEnvManager, env=lambda *_: DingEnvWrapper(gymnasium.make("CartPole-v1")))
    with pytest.raises(errors.EnvCallError, match=r"ready_imgs: .*CartPole.*make it with render_mode='rgb_array'"):
        _ = manager.ready_imgs


def test_envs_learn_where_to_keep_replays_before_their_first_reset(form: Any, launched: Any) -> None:
    manager = launched(form, launch=False)
    with pytest.raises(AssertionError, match="one per env"):
        manager.enable_save_replay(["/a"])
    manager.enable_save_replay(["/a", "/b"])
    manager.launch()
    assert manager.replay_path == ["/a", "/b"]


def test_in_one_process_an_episode_that_is_being_recorded_is_not_cut_short(launched: Any) -> None:
    manager = launched(BaseEnvManager, launch=False)
    manager.enable_save_replay("/a")
    manager.launch()
    manager.step({0: 0, 1: 0})
    manager.seed(4, dynamic_seed=False)
    manager.reset()
    assert manager.k == [1, 1]
    assert manager.seeds == [[(4, False)], [(5, False)]], "it gets the seed that waits for it all the same"
    manager.step({0: 0, 1: 0})
    manager.reset()
    assert manager.seeds == [[(4, False)], [(5, False)]], "and only once"


@with_processes
def test_with_processes_a_reset_is_a_reset_whatever_is_recorded(form: Any, launched: Any) -> None:
    manager = launched(form, launch=False)
    manager.enable_save_replay("/a")
    manager.launch()
    manager.step({0: 0, 1: 0})
    manager.reset()
    assert manager.k == [0, 0]


@pytest.mark.parametrize(
    "action", [2, np.int64(2), np.array(2), np.array([2]), np.array([1.5], np.float32), "left", {"a": np.array([1])}]
)
def test_actions_arrive_as_what_they_were(form: Any, launched: Any, action: Any) -> None:
    manager = launched(form, lengths=(9, 9))
    manager.step({0: 1, 1: action})
    (given,) = manager.given[1]
    assert type(given) is type(action)
    assert repr(given) == repr(action)


class Pushed(Tally):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)


def test_what_an_action_is_worth_is_for_the_env_to_say(form: Any, launched: Any) -> None:
    manager = launched(form, (9, 9), Pushed)
    actions = [np.array([np.nan, 5], np.float32), np.array([np.inf, -5], np.float32)]
    manager.step(dict(enumerate(actions)))
    assert [repr(given) for (given,) in manager.given] == [repr(action) for action in actions]


class Dictionary(Tally):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        box = gymnasium.spaces.Box(-9, 9, (1,), np.int64)
        self.observation_space = gymnasium.spaces.Dict({"n": gymnasium.spaces.Dict({"b": box}), "k": self.action_space})

    def obs(self) -> Any:
        return {"n": {"b": np.array([self.k])}, "k": self.k}


class Number(Tally):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.observation_space = gymnasium.spaces.Discrete(100)

    def obs(self) -> Any:
        return self.k


class OtherThanTold(Tally):
    """Observations, rewards and timesteps that its spaces do not announce."""

    def obs(self) -> Any:
        return np.array([self.k, 0.1, 1e300, 4.0])

    def step(self, action: Any) -> Any:
        timestep = super().step(action)
        return timestep._replace(reward=0.1, info={**timestep.info, "object": {1, 2}})


class Reuser(Tally):
    """Writes every observation into the same array."""

    buffer = np.zeros(3, np.float32)

    def obs(self) -> Any:
        self.buffer[:] = (self.index, self.episode, self.k)
        return self.buffer


def test_nested_and_scalar_observations(form: Any, launched: Any) -> None:
    first = launched(form, env=Dictionary).step({0: 0, 1: 0})[0]
    assert first.obs == {"n": {"b": np.array([1])}, "k": 1}
    assert first.obs["n"]["b"].dtype == np.int64
    manager = launched(form, env=Number)
    assert manager.step({0: 0, 1: 0})[0].obs == 1
    assert manager.ready_obs == {0: 1, 1: 1}


def test_nothing_is_cast(form: Any, launched: Any) -> None:
    manager = launched(form, env=OtherThanTold, lengths=(1, 9))
    timestep = manager.step({0: 0, 1: 0})[0]
    assert timestep.obs.dtype == np.float64
    assert timestep.obs.tolist() == [1, 0.1, 1e300, 4.0]
    assert timestep.reward == 0.1
    assert timestep.info["object"] == {1, 2}
    assert timestep.info.keys() == {"TimeLimit.truncated", "note", "eval_episode_return", "object"}
    assert all_ready(manager)[0] == [0, 0.1, 1e300, 4.0]


def test_what_is_handed_out_does_not_change(form: Any, launched: Any) -> None:
    manager = launched(form, env=Reuser, lengths=(9, 9))
    first = manager.step({0: 0, 1: 0})
    manager.step({0: 0, 1: 0})
    assert rows({i: t.obs for i, t in first.items()}) == {0: [0, 0, 1], 1: [1, 0, 1]}


OwnStep = namedtuple("OwnStep", ["obs", "reward", "done", "info"])


class OwnSteps(Tally):
    """Returns timesteps of a class of its own; of the usual one if the action is "usual"."""

    kind: Any = OwnStep

    def step(self, action: Any) -> Any:
        timestep = super().step(action)
        return timestep if isinstance(action, str) else self.kind(*timestep)


@every_form
def test_timesteps_are_of_the_env_s_own_class(form: Any, launched: Any) -> None:
    manager = launched(form, env=OwnSteps, lengths=(1, 3))
    for step in range(7):
        timesteps = manager.step(dict.fromkeys(all_ready(manager), 0))
        assert [type(timesteps[i]) for i in (0, 1)] == [OwnStep, OwnStep]
        assert timesteps[1].obs.tolist() == [1, step // 3, step % 3 + 1]
        assert timesteps[1].reward.tolist() == [step % 3 + 1]
        assert timesteps[0].info == {"TimeLimit.truncated": True, "note": "text", "eval_episode_return": 1.0}
    all_ready(manager)
    assert type(manager.step({1: "usual"})[1]) is BaseEnvTimestep
    assert type(manager.step({0: 0})[0]) is OwnStep


@every_form
def test_a_class_that_no_module_has_comes_back_too(form: Any, launched: Any) -> None:
    class Hidden(OwnSteps):
        kind = namedtuple("Nameless", ["obs", "reward", "done", "info"])  # type: ignore[assignment]

    timesteps = launched(form, env=Hidden, lengths=(9, 9)).step({0: 0, 1: 0})
    assert [type(timestep).__name__ for timestep in timesteps.values()] == ["Nameless"] * 2


class OddSteps(OwnSteps):
    """Timesteps of its own, with observations and rewards that its spaces do not announce."""

    def obs(self) -> Any:
        return [self.k]

    def step(self, action: Any) -> Any:
        return super().step(action)._replace(reward=0.5)


def test_an_own_class_and_what_fits_no_column_go_together(form: Any, launched: Any) -> None:
    manager = launched(form, env=OddSteps, lengths=(1, 9))
    timestep = manager.step({0: 0, 1: 0})[0]
    assert type(timestep) is OwnStep
    assert (timestep.obs, timestep.reward, timestep.done) == ([1], 0.5, True)


# ---------------------------------------------------------------------- failures


def test_a_step_is_tried_again_with_the_same_action(form: Any, launched: Any) -> None:
    manager = launched(form, lengths=(9, 9), max_retry=2)
    assert manager.step({0: "stumble", 1: 0})[0].obs.tolist() == [0, 0, 1]
    assert manager.given[0] == ["stumble", "stumble"]


@every_form
def test_an_error_names_env_and_cause_and_is_of_the_cause_s_class(form: Any, launched: Any) -> None:
    manager = launched(form, lengths=(9, 9), max_retry=2)
    with pytest.raises(ZeroDivisionError) as caught:
        manager.step({0: 0, 1: "raise"})
    assert isinstance(caught.value, errors.EnvStepError)
    assert isinstance(caught.value, RuntimeError)
    assert "Env 1 step has exceeded max retries(2)" in str(caught.value)
    assert "step went wrong" in str(caught.value)
    assert caught.value.env_id == 1
    assert manager.closed is (form is not BaseEnvManager)


@every_form
def test_the_error_of_another_process_has_its_traceback(form: Any, launched: Any) -> None:
    manager = launched(form, lengths=(9, 9))
    with pytest.raises(ZeroDivisionError) as caught:
        manager.step({0: "raise", 1: 0})
    first, *others = str(caught.value).splitlines()
    assert first.startswith("Env 0 step has exceeded max retries(1), and the latest exception is: step failed in env 0")
    assert first.endswith("ZeroDivisionError: step went wrong")
    if form is BaseEnvManager:
        assert others == []
    else:
        assert others[1].startswith("Traceback")
        assert 'raise ZeroDivisionError("step went wrong")' in str(caught.value)
        assert str(caught.value).count("Traceback") == 1
        assert not any("Traceback" in note for note in getattr(caught.value, "__notes__", []))


def test_in_one_process_the_others_go_on(launched: Any) -> None:
    manager = launched(BaseEnvManager, lengths=(9, 9))
    with pytest.raises(errors.EnvStepError) as caught:
        manager.step({0: "raise", 1: 0})
    assert caught.value.timesteps[1].obs.tolist() == [1, 0, 1]
    assert states(manager) == {0: "ERROR", 1: "RUN"}
    assert rows(manager.ready_obs) == {1: [1, 0, 1]}
    manager.step({1: 0})
    manager.reset({0: {}})
    assert rows(manager.ready_obs) == {0: [0, 1, 0], 1: [1, 0, 2]}


def test_a_reset_is_tried_again_on_the_same_env(form: Any, launched: Any) -> None:
    manager = launched(form, max_retry=3, retry_waiting_time=0.01)
    born = manager.birth
    manager.reset({0: {"fails_until": 4}})
    assert manager.resets == [4, 1]
    assert manager.birth == born
    assert rows(manager.ready_obs) == {0: [0, 1, 0], 1: [1, 0, 0]}


def test_a_reset_is_tried_again_on_a_new_env(form: Any, launched: Any) -> None:
    manager = launched(form, max_retry=2, retry_type="renew", retry_waiting_time=0.01)
    born = manager.birth
    manager.reset({0: {"only_fresh": True}})
    assert manager.birth[0] != born[0]
    assert manager.birth[1] == born[1]


@pytest.mark.parametrize("retry_type", ["reset", "renew"])
def test_a_reset_that_never_works_closes_the_manager_and_says_why(form: Any, launched: Any, retry_type: str) -> None:
    manager = launched(form, max_retry=2, retry_type=retry_type, retry_waiting_time=0.01)
    with pytest.raises(ValueError, match=r"Env 0 reset has exceeded max retries\(2\).*cannot reset") as caught:
        manager.reset({0: {"fails_until": 99}})
    assert isinstance(caught.value, errors.EnvResetError)
    assert manager.closed


@every_form
def test_an_automatic_reset_that_never_works_is_told_to_the_next_call(form: Any, launched: Any) -> None:
    manager = launched(form, lengths=(1, 9), launch=False)
    manager.launch({0: {"only_fresh": True}, 1: None})
    with pytest.raises(errors.EnvResetError, match="Env 0 reset") as caught:  # noqa: PT012 - one or the other
        manager.step({0: 0, 1: 0})
        all_ready(manager)
    assert "cannot reset" in str(caught.value)
    assert manager.closed


def until_closed(manager: Any) -> None:
    end = time.monotonic() + 20
    while not manager.closed:
        assert time.monotonic() < end


@pytest.mark.parametrize("episode_num", [5, float("inf")])
@with_processes
def test_a_reset_that_fails_behind_the_caller_s_back_closes_the_manager(
    form: Any, launched: Any, episode_num: float
) -> None:
    manager = launched(form, lengths=(1, 9), launch=False, episode_num=episode_num)
    manager.launch({0: {"only_fresh": True}, 1: None})
    assert {i: t.obs.tolist() for i, t in manager.step({0: 0, 1: 0}).items()} == {0: [0, 0, 1], 1: [1, 0, 1]}
    until_closed(manager)
    assert set(states(manager).values()) == {"VOID"}
    assert manager.ready_obs_id == manager.ready_env == []
    for use in (lambda: manager.step({1: 0}), lambda: manager.step({}), manager.reset):
        with pytest.raises(errors.ManagerState, match=r"closed.*could not be reset") as caught:
            use()
        assert isinstance(caught.value.__cause__, errors.EnvResetError)
        assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(ValueError, match="Env 0 reset"):
        manager.ready_obs  # noqa: B018
    manager.launch()
    assert all_ready(manager) == {0: [0, 0, 0], 1: [1, 0, 0]}
    manager.close()
    with pytest.raises(errors.ManagerState, match="closed: launch"):
        manager.ready_obs  # noqa: B018


class LostAtItsEnd(Tally):
    """Hangs in its second reset, or dies there."""

    def __init__(self, index: int, length: int, *, dies: bool) -> None:
        super().__init__(index, length)
        self.dies = dies

    def reset(self, **wishes: Any) -> Any:
        is_lost = self.resets > 0 and self.index == 0
        return super().reset(**wishes, hangs=is_lost and not self.dies, dies=is_lost and self.dies)


@pytest.mark.parametrize("dies", [False, True])
@with_processes
def test_a_reset_that_is_lost_is_noticed_by_who_only_looks(form: Any, launched: Any, dies: bool) -> None:
    manager = launched(form, (1, 99), partial(LostAtItsEnd, dies=dies), reset_timeout=0.3)
    manager.step({0: 0, 1: 0})
    until_closed(manager)


@pytest.mark.parametrize("dies", [False, True])
@with_processes
def test_an_env_that_is_lost_in_its_reset_is_renewed_for_who_only_looks(form: Any, launched: Any, dies: bool) -> None:
    env = partial(LostAtItsEnd, dies=dies)
    manager = launched(form, (1, 99), env, reset_timeout=0.3, retry_type="renew", max_retry=2, retry_waiting_time=0.01)
    manager.step({0: 0, 1: 0})
    assert all_ready(manager) == {0: [0, 0, 0], 1: [1, 0, 1]}


class Noting(Tally):
    """Notes who steps when, and whether another is at it; the first is the slowest."""

    order: ClassVar[list[int]] = []
    at_work: ClassVar[list[int]] = []

    def step(self, action: Any) -> Any:
        self.order.append(self.index)
        return self._alone(super().step, action)

    def reset(self, **wishes: Any) -> Any:
        self.order.append(-self.index)
        return self._alone(super().reset)

    def _alone(self, work: Any, *args: Any) -> Any:
        assert not self.at_work
        self.at_work.append(self.index)
        time.sleep(0.03 / (1 + self.index))
        self.at_work.clear()
        return work(*args)


@pytest.mark.parametrize("settings", [{}, {"step_timeout": 20}, {"reset_timeout": 20}])
def test_in_one_process_envs_step_one_after_another_in_the_order_of_the_dict(launched: Any, settings: Any) -> None:
    manager = launched(BaseEnvManager, (9, 9, 9), Noting, **settings)
    for order in ([2, 0, 1], [0, 1, 2], [1, 0]):
        Noting.order.clear()
        assert list(manager.step(dict.fromkeys(order, 0))) == order
        assert Noting.order == order


def test_in_one_process_an_env_begins_its_next_episode_before_another_steps(launched: Any) -> None:
    manager = launched(BaseEnvManager, (9, 1, 9), Noting, step_timeout=20)
    Noting.order.clear()
    manager.step({2: 0, 1: 0, 0: 0})
    assert Noting.order == [2, 1, -1, 0]
    assert rows(manager.ready_obs) == {0: [0, 0, 1], 1: [1, 1, 0], 2: [2, 0, 1]}


def test_ids_are_ints_in_order_whatever_was_given_and_whoever_was_reset_last(form: Any, launched: Any) -> None:
    manager = launched(form, lengths=(5, 5, 5))
    for i in (2, 0, 1):
        manager.reset({i: None})
    timesteps = manager.step({np.int64(i): 1 for i in range(3)})
    for found in (timesteps, manager.ready_obs):
        assert [(type(i), i) for i in found] == [(int, 0), (int, 1), (int, 2)]


def test_what_is_ready_is_the_callers_to_change(form: Any, launched: Any) -> None:
    manager = launched(form)
    seen = rows(manager.ready_obs)
    manager.ready_obs.clear()
    assert rows(manager.ready_obs) == seen


def test_a_step_returns_envs_in_the_order_of_the_dict_whoever_else_is_busy(launched: Any) -> None:
    manager = launched(SyncSubprocessEnvManager, (9, 1, 9), partial(Tally, reset_s=0.5), num_workers=3)
    assert list(manager.step({2: 0, 1: 0, 0: 0})) == [2, 1, 0]
    assert states(manager)[1] == "RESET"
    assert list(manager.step({2: 0, 0: 0})) == [2, 0]


@every_form
def test_every_try_of_a_reset_is_waited_for(form: Any, launched: Any) -> None:
    manager = launched(form, max_retry=3, retry_waiting_time=0.2)
    began = time.monotonic()
    manager.reset({0: {"fails_until": 4}})
    assert time.monotonic() - began >= 2 * 0.2


class SlowSecond(Tally):
    def step(self, action: Any) -> Any:
        time.sleep(0.3 * self.index)
        return super().step(action)


@with_processes
def test_the_step_that_leads_to_a_failed_reset_still_returns_everybody(form: Any, launched: Any) -> None:
    manager = launched(form, (1, 9), SlowSecond, launch=False, step_timeout=20)
    manager.launch({0: {"only_fresh": True}, 1: None})
    assert sorted(manager.step({0: 0, 1: 0})) == [0, 1]
    until_closed(manager)


def test_whoever_waits_for_a_reset_that_fails_is_told_at_once(launched: Any) -> None:
    manager = launched(BaseEnvManager, lengths=(1, 9), launch=False)
    manager.launch({0: {"only_fresh": True}, 1: None})
    with pytest.raises(errors.EnvResetError, match="cannot reset") as caught:
        manager.step({0: 0, 1: 0})
    assert {i: t.obs.tolist() for i, t in caught.value.timesteps.items()} == {0: [0, 0, 1], 1: [1, 0, 1]}
    assert manager.closed


@every_form
def test_an_env_that_calls_its_timestep_abnormal_waits_for_its_reset(form: Any, launched: Any) -> None:
    manager = launched(form, lengths=(9, 9), episode_num=1)
    assert manager.step({0: "abnormal", 1: 0})[0].info["abnormal"]
    assert states(manager) == {0: "ERROR", 1: "RUN"}
    manager.reset({0: None})
    assert rows(manager.ready_obs)[0] == [0, 1, 0]


@every_form
def test_an_env_that_is_renewed_gives_one_abnormal_timestep(form: Any, launched: Any) -> None:
    manager = launched(form, lengths=(9, 9), retry_type="renew", episode_num=1)
    manager.step({0: 0, 1: 0})
    born = manager.birth
    out = manager.step({0: "raise", 1: 0})
    assert out[0].info["abnormal"]
    assert "step went wrong" in out[0].info["err"]
    assert (out[0].obs.tolist(), out[0].reward.tolist(), out[0].done) == ([0, 0, 1], [0.0], True)
    assert out[1].obs.tolist() == [1, 0, 2]
    assert all_ready(manager) == {0: [0, 0, 0], 1: [1, 0, 2]}
    assert manager.birth[0] != born[0]
    assert manager.birth[1] == born[1]


@pytest.mark.parametrize("kind", ["hang", "kill"])
@with_processes
def test_a_lost_env_is_renewed(form: Any, launched: Any, kind: str) -> None:
    manager = launched(form, lengths=(9, 9), retry_type="renew", step_timeout=1.0)
    manager.step({0: 0, 1: 0})
    assert manager.step({0: kind, 1: 0})[0].info["abnormal"]
    while 0 not in (ready := rows(manager.ready_obs)):
        manager.step({1: 0})
    assert ready[0] == [0, 0, 0]


def test_a_static_seed_stays_with_an_env_that_is_renewed(form: Any, launched: Any) -> None:
    manager = launched(form, lengths=(9, 9), retry_type="renew", launch=False)
    manager.seed(3, dynamic_seed=False)
    manager.launch()
    manager.step({0: "raise", 1: 0})
    assert manager.seeds == [[(3, False)], [(4, False)]]


def test_an_env_that_nobody_has_seeded_is_renewed_without_a_seed(form: Any, launched: Any) -> None:
    manager = launched(form, lengths=(9, 9), retry_type="renew", max_retry=2, retry_waiting_time=0.01)
    manager.reset({0: {"only_fresh": True}})
    manager.step({0: "raise", 1: 0})
    all_ready(manager)
    assert manager.seeds == [[], []]


def test_an_env_that_has_been_seeded_is_renewed_with_a_seed_that_follows_from_its_own(form: Any, launched: Any) -> None:
    def renewed() -> Any:
        manager = launched(form, lengths=(9, 9), retry_type="renew", launch=False)
        manager.seed({0: 3})
        manager.launch()
        manager.step({0: "raise", 1: "raise"})
        all_ready(manager)
        return manager.seeds

    first, second = renewed()
    assert len(first) == 1
    assert second == []
    assert renewed() == [first, second]


@every_form
def test_a_step_has_a_deadline_in_fractions_of_seconds_from_any_thread(form: Any, launched: Any) -> None:
    manager = launched(form, lengths=(9, 9), step_timeout=0.3)
    caught: list[BaseException] = []

    def hang() -> None:
        try:
            manager.step({0: "hang", 1: 0})
        except BaseException as error:
            caught.append(error)

    start = time.monotonic()
    thread = threading.Thread(target=hang)
    thread.start()
    thread.join(10)
    assert time.monotonic() - start < 5
    assert isinstance(caught[0], TimeoutError)
    assert isinstance(caught[0], RuntimeError)
    assert "Env 0 step" in str(caught[0])
    assert manager.closed is (form is not BaseEnvManager)


def test_one_after_another_nobody_misses_its_turn_because_of_others(launched: Any) -> None:
    manager = launched(BaseEnvManager, lengths=(9, 9, 9, 9), step_timeout=0.3)
    with pytest.raises(TimeoutError, match="Env 1 step") as caught:
        manager.step({0: 0, 1: "hang", 2: "raise", 3: 0})
    assert rows({i: t.obs for i, t in caught.value.timesteps.items()}) == {0: [0, 0, 1], 3: [3, 0, 1]}
    assert states(manager) == {0: "RUN", 1: "ERROR", 2: "ERROR", 3: "RUN"}
    assert sorted(manager.step({3: 0, 0: 0})) == [0, 3]


def test_an_env_that_hung_is_built_anew_by_its_reset(launched: Any) -> None:
    manager = launched(BaseEnvManager, lengths=(9, 9), step_timeout=0.3)
    manager.step({0: 0, 1: 0})
    with pytest.raises(TimeoutError):
        manager.step({0: "hang", 1: 0})
    assert states(manager) == {0: "ERROR", 1: "RUN"}
    manager.reset({0: {"stat": "back"}})
    assert rows(manager.ready_obs) == {0: [0, 0, 0], 1: [1, 0, 2]}
    assert manager.stat == ["back", None]


def test_actions_come_by_id(form: Any, launched: Any) -> None:
    with pytest.raises(AssertionError, match="by env id, got list"):
        launched(form).step([0, 0])


def test_workers_are_shared_when_nothing_speaks_against_it(launched: Any) -> None:
    form = SyncSubprocessEnvManager
    assert len(set(launched(form, (9,) * 4, num_workers=2).pid)) == 2
    assert len(set(launched(form, (9,) * 3, retry_type="renew").pid)) == 3
    assert len(set(launched(form, (9,) * 3, step_timeout=9).pid)) == 3


def test_in_one_process_every_attempt_of_a_reset_has_the_same_deadline(launched: Any) -> None:
    settings = {"reset_timeout": 0.4, "retry_type": "renew", "max_retry": 2, "retry_waiting_time": 0.01}
    manager = launched(BaseEnvManager, launch=False, **settings)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="Env 0 reset"):
        manager.launch({0: {"hangs": True}, 1: {}})
    assert time.monotonic() - began < 10


def test_a_reset_has_a_deadline(form: Any, launched: Any) -> None:
    manager = launched(form, launch=False, reset_timeout=0.5)
    with pytest.raises(TimeoutError, match="Env 0 reset"):
        manager.launch({0: {"hangs": True}, 1: {}})
    assert manager.closed


@with_processes
def test_a_dead_worker_is_named_and_closing_is_no_trouble(form: Any, launched: Any) -> None:
    manager = launched(form, lengths=(9, 9))
    with pytest.raises(errors.WorkerDied, match=r"Env 0 step.*SIGKILL"):
        manager.step({0: "kill", 1: 0})
    manager.close()
    manager.launch()
    assert list(manager.ready_obs) == [0, 1]


# ---------------------------------------------------------------------- processes


def test_a_slow_reset_holds_nobody_up(launched: Any) -> None:
    manager = launched(SyncSubprocessEnvManager, (1, 99), partial(Tally, reset_s=1.0))
    manager.step({0: 0, 1: 0})
    assert list(manager.ready_obs) == [1]
    with pytest.raises(AssertionError, match="env 0 is RESET"):
        manager.step({0: 0})
    while 0 not in manager.ready_obs:
        manager.step({1: 0})
    assert rows(manager.ready_obs)[0] == [0, 1, 0]


def test_if_only_resets_are_under_way_they_are_waited_for(launched: Any) -> None:
    manager = launched(SyncSubprocessEnvManager, (1, 1), partial(Tally, reset_s=0.3))
    manager.step({0: 0, 1: 0})
    assert len(manager.ready_obs) > 0


def test_reset_inplace_waits_and_keeps_the_last_observation(launched: Any) -> None:
    manager = launched(SyncSubprocessEnvManager, (1, 99), partial(Tally, reset_s=0.3), reset_inplace=True)
    manager.reset({0: {"stat": "kept"}})
    last = manager.step({0: 0, 1: 0})[0]
    assert last.obs.tolist() == [0, 1, 1]
    assert rows(manager.ready_obs) == {0: [0, 2, 0], 1: [1, 0, 1]}
    assert manager.stat[0] == "kept"
    with pytest.raises(AssertionError, match="auto_reset"):
        launched(SyncSubprocessEnvManager, reset_inplace=True, auto_reset=False)


class Slow(Tally):
    def step(self, action: Any) -> Any:
        time.sleep(0.5 if self.index > 1 else 0.0)
        return super().step(action)


def test_the_asynchronous_form_goes_on_without_the_slow(launched: Any) -> None:
    manager = launched(AsyncSubprocessEnvManager, (99,) * 4, Slow, wait_num=2)
    out = manager.step(dict.fromkeys(range(4), 0))
    assert set(out) == {0, 1}
    assert list(manager.ready_obs) == manager.ready_env == list(manager.random_action()) == [0, 1]
    assert manager.ready_obs_id == [0, 1, 2, 3], "all of them run"
    with pytest.raises(AssertionError, match="env 2 has not answered yet"):
        manager.step({2: 0})
    seen = dict(out)
    while len(seen) < 4:
        seen.update(manager.step({}))
    assert {i: t.obs[2] for i, t in seen.items()} == {0: 1, 1: 1, 2: 1, 3: 1}
    manager.step({2: 0})
    manager.reset({2: {}})
    assert rows(manager.ready_obs)[2] == [2, 1, 0], "an answer that nobody waits for any more is dropped"


@pytest.mark.parametrize("patience", [None, 0])
def test_without_a_time_to_gather_the_asynchronous_form_waits_for_all(launched: Any, patience: Any) -> None:
    manager = launched(AsyncSubprocessEnvManager, (99,) * 3, Slow, wait_num=1, step_wait_timeout=patience)
    assert list(manager.step(dict.fromkeys(range(3), 0))) == [0, 1, 2]


# ---------------------------------------------------------------------- episodes that begin within steps


class Worn(Tally):
    """Cannot be reset for the fifth time."""

    def reset(self, **keywords: Any) -> Any:
        if self.resets == 4:
            raise ValueError("cannot reset")
        return super().reset(**keywords)


class Tiring(Tally):
    """Takes its time from the fourth reset on."""

    def reset(self, **keywords: Any) -> Any:
        self.reset_s = 0.5 if self.resets >= 3 else 0.0
        return super().reset(**keywords)


def run(manager: Any, steps: int) -> None:
    for _ in range(steps):
        manager.step(dict.fromkeys(all_ready(manager), 0))
    all_ready(manager)


@every_form
def test_many_episodes_follow_each_other_without_a_reset_too_many(form: Any, launched: Any) -> None:
    lengths = (1, 2, 3)
    manager = launched(form, lengths)
    for step in range(12):
        ready = all_ready(manager)
        assert ready == {i: [i, step // n, step % n] for i, n in enumerate(lengths)}
        timesteps = manager.step(dict.fromkeys(ready, 0))
        for i, n in enumerate(lengths):
            assert timesteps[i].obs.tolist() == [i, step // n, step % n + 1]
            assert timesteps[i].done == (step % n == n - 1)
            assert timesteps[i].info.get("note") == ("text" if timesteps[i].done else None)
    all_ready(manager)
    assert manager.resets == [12 // n + 1 for n in lengths]


@every_form
def test_keywords_of_a_reset_hold_for_those_that_follow(form: Any, launched: Any) -> None:
    manager = launched(form, (1, 1))
    manager.reset({0: {"stat": "kept"}})
    run(manager, 4)
    assert manager.stat == ["kept", None]
    manager.reset({0: None})
    run(manager, 4)
    assert manager.stat == [None, None]


@every_form
def test_automatic_resets_leave_seeds_to_the_reset_that_is_asked_for(form: Any, launched: Any) -> None:
    manager = launched(form, (1, 1))
    manager.seed(70, dynamic_seed=False)
    run(manager, 3)
    assert manager.seeds == [[], []]
    manager.reset({0: {"stat": "kept"}})
    assert manager.seeds == [[(70, False)], []]
    run(manager, 2)
    assert manager.stat == ["kept", None]
    manager.reset()
    run(manager, 2)
    assert manager.seeds == [[(70, False)], [(71, False)]], "each seed is used once"


@pytest.mark.parametrize("settings", [{"episode_num": 9}, {"max_retry": 2}], ids=["counted", "retried"])
def test_resets_after_the_step_leave_seeds_alone_too(form: Any, launched: Any, settings: Any) -> None:
    manager = launched(form, (1, 1), **settings)
    manager.seed(70)
    run(manager, 3)
    assert manager.seeds == [[], []]
    manager.reset()
    assert manager.seeds == [[(70, "not given")], [(71, "not given")]]


@every_form
def test_seeds_that_no_reset_has_taken_wait_for_the_next_launch(form: Any, launched: Any) -> None:
    manager = launched(form, (1, 1))
    manager.seed(9)
    run(manager, 1)
    manager.close()
    manager.launch()
    assert manager.seeds == [[(9, "not given")], [(10, "not given")]]


@every_form
def test_an_abnormal_end_is_left_to_the_caller_after_many_episodes_too(form: Any, launched: Any) -> None:
    manager = launched(form, (1, 99))
    run(manager, 4)
    before = manager.resets
    assert manager.step({0: "abnormal", 1: 0})[0].done
    assert states(manager) == {0: "ERROR", 1: "RUN"}
    assert manager.resets == before
    assert list(manager.ready_obs) == [1]
    manager.step({1: 0})
    manager.reset({0: None})
    assert manager.resets == [before[0] + 1, before[1]]
    assert rows(manager.ready_obs)[0] == [0, 5, 0]
    run(manager, 3)
    assert manager.resets == [before[0] + 4, before[1]], "its ends are like any others again"


@every_form
def test_a_reset_that_fails_after_many_is_a_failed_reset(form: Any, launched: Any) -> None:
    manager = launched(form, (1, 9), Worn)
    with pytest.raises(errors.EnvResetError, match="Env 0 reset") as caught:
        run(manager, 9)
    assert "cannot reset" in str(caught.value)
    assert manager.closed


def test_an_env_whose_resets_become_slow_holds_the_others_up_once(launched: Any) -> None:
    manager = launched(SyncSubprocessEnvManager, (1, 99), Tiring)
    run(manager, 3)  # the last of these has found out
    manager.step({0: 0, 1: 0})
    assert list(manager.ready_obs) == [1]


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_start_methods(launched: Any, context: str) -> None:
    manager = launched(SyncSubprocessEnvManager, context=context)
    assert len(set(manager.pid)) == 2


# ---------------------------------------------------------------------- by name


def test_managers_by_name() -> None:
    cfg = {**BaseEnvManager.default_config(), "type": "base", "import_names": ["json"]}
    kept = dict(cfg)
    manager = create_env_manager(cfg, [partial(Tally, 0)])
    assert type(manager) is BaseEnvManager
    assert cfg == kept
    assert get_env_manager_cls({"type": "async_subprocess"}) is AsyncSubprocessEnvManager
    with pytest.raises(errors.WrongSetting, match="type"):
        get_env_manager_cls({"type": "other"})


def test_a_timestep_is_a_namedtuple_of_four() -> None:
    timestep = BaseEnvTimestep(1, 2.0, True, {"terminated": True, "truncated": True})
    assert BaseEnvTimestep._fields == ("obs", "reward", "done", "info")
    assert timestep._replace(obs=5).obs == 5
    assert timestep.terminated
    assert timestep.truncated


class Pair(Tally):
    """Two agents, each with an info of its own."""

    def step(self, action: Any) -> Any:
        timestep = super().step(0)
        return timestep._replace(info=[{"agent": i, "abnormal": action == 2 + i} for i in range(2)])


@every_form
@pytest.mark.parametrize("action", [2, 3])
def test_infos_of_several_agents_are_passed_on(form: Any, launched: Any, action: int) -> None:
    manager = launched(form, (2, 3), env=Pair, auto_reset=False)
    timesteps = manager.step({0: 0, 1: 0})
    assert [own["agent"] for own in timesteps[0].info] == [0, 1]
    last = manager.step({0: 0, 1: action})
    assert last[0].done
    assert (last[0].terminated, last[0].truncated) == (True, False)
    assert manager.env_state_done(1) is False
    assert 1 not in manager.ready_obs, "what one of its agents calls abnormal is so for the env"


@every_form
def test_what_any_agent_calls_abnormal_is_left_to_the_caller(form: Any, launched: Any) -> None:
    manager = launched(form, (1, 99), env=Pair)
    run(manager, 4)
    before = manager.resets
    assert manager.step({0: 3, 1: 0})[0].done
    assert manager.resets == before


class Named(Tally):
    """Loses its name when it is closed."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.simulator = "s"

    def close(self) -> None:
        del self.simulator


@every_form
def test_attributes_are_there_after_another_launch(form: Any, launched: Any) -> None:
    manager = launched(form, env=Named)
    manager.close()
    manager.launch()
    assert manager.simulator == ["s", "s"]


def test_a_manager_without_a_config_says_what_it_lacks(form: Any) -> None:
    with pytest.raises(AttributeError):
        form([Tally])


def test_figures_need_a_folder(form: Any, launched: Any) -> None:
    with pytest.raises(AssertionError, match="figure_path"):
        launched(form).enable_save_figure(0, None)
