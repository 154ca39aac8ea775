"""The array forms, the supervisor, managers for other envs, and nerveX's managers."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections import namedtuple
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import numpy as np
import pytest
from ding_envs import Tally

from shoal import errors, testing
from shoal.faces.ding import (
    BaseEnvManagerV2,
    ChildType,
    EnvSupervisor,
    GymVectorEnvManager,
    PoolEnvManager,
    SubprocessEnvManagerV2,
    nervex,
    setup_ding_env_manager,
)
from shoal.faces.ding.wrapper import DingEnvWrapper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def keep() -> Iterator[Callable[[Any], Any]]:
    """Has managers closed in the end."""
    with contextlib.ExitStack() as kept:

        def keep_one(manager: Any) -> Any:
            kept.callback(manager.close)
            kept.callback(testing.release_hangs)
            return manager

        yield keep_one


def tallies(*lengths: int, env: Any = Tally, **more: Any) -> list[Any]:
    return [partial(env, i, length, **more) for i, length in enumerate(lengths)]


# ---------------------------------------------------------------------- arrays

V2 = pytest.mark.parametrize("form", [BaseEnvManagerV2, SubprocessEnvManagerV2], ids=lambda cls: cls.__name__)


@V2
def test_rows_in_rows_out(form: Any, keep: Any) -> None:
    manager = keep(form(tallies(1, 9), form.default_config()))
    manager.launch()
    assert manager.ready_obs.tolist() == [[0, 0, 0], [1, 0, 0]]
    first, second = manager.step(np.array([0, 1]))
    assert (first.env_id.item(), first.done.item(), first.obs.tolist()) == (0, True, [0, 0, 1])
    assert first.reward.tolist() == [1.0]
    assert set(first.info) == {"TimeLimit_truncated", "eval_episode_return"}
    assert (second.env_id.item(), second.done.item(), len(second.info)) == (1, False, 0)
    assert manager.ready_obs.tolist() == [[0, 1, 0], [1, 0, 1]]
    with pytest.raises(AssertionError, match="expected 2 rows"):
        manager.step([0])
    assert [t.env_id.item() for t in manager.step({1: 0})] == [1]


def test_rows_belong_to_the_envs_that_were_shown(keep: Any) -> None:
    form = SubprocessEnvManagerV2
    cfg = form.default_config()
    manager = keep(form(tallies(1, 99, reset_s=0.5), cfg))
    manager.launch()
    manager.step([0, 0])
    shown = manager.ready_obs
    assert shown.tolist() == [[1, 0, 1]]
    while 0 not in manager.ready_obs_id:  # env 0 comes back between the look and the step
        pass
    (only,) = manager.step([3])
    assert only.env_id.item() == 1
    assert manager.given[1] == [0, 3]
    assert len(manager.ready_obs) == 2


def test_rows_for_everybody_who_waits_are_for_everybody(keep: Any) -> None:
    manager = keep(SubprocessEnvManagerV2(tallies(1, 99, reset_s=0.5), SubprocessEnvManagerV2.default_config()))
    manager.launch()
    manager.step([0, 0])
    assert len(manager.ready_obs) == 1
    while 0 not in manager.ready_obs_id:
        pass
    assert [t.env_id.item() for t in manager.step([3, 2])] == [0, 1]


class Boxes(Tally):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.observation_space = gymnasium.spaces.Dict({"k": gymnasium.spaces.Box(0, 9, (1,), np.int64)})

    def obs(self) -> Any:
        return {"k": np.array([self.k])}


@V2
def test_dicts_are_trees(form: Any, keep: Any) -> None:
    manager = keep(form(tallies(9, 9, env=Boxes), form.default_config()))
    manager.launch()
    manager.step([0, 0])
    assert manager.ready_obs.k.tolist() == [[1], [1]]
    assert manager.ready_obs[0].k.tolist() == [1]


class Talkative(Tally):
    def step(self, action: Any) -> Any:
        info = {"won by": None, "note": "text", "moves": [[1], [1, 2]], "seats": ["a", "b"], "more": {"note": "t"}}
        return super().step(action)._replace(info=info)


@V2
def test_of_an_info_only_text_is_left_out(form: Any, keep: Any) -> None:
    manager = keep(form(tallies(9, env=Talkative), form.default_config()))
    manager.launch()
    info = manager.step([0])[0].info
    assert set(info) == {"won_by", "moves", "seats", "more"}
    assert info.won_by.item() is None
    assert info.moves.item() == [[1], [1, 2]]
    assert info.seats.tolist() == ["a", "b"]
    assert not info.more


@V2
def test_nobody_ready_is_no_rows(form: Any, keep: Any) -> None:
    cfg = form.default_config()
    cfg.episode_num = 1
    manager = keep(form(tallies(1, 1), cfg))
    manager.launch()
    manager.step([0, 0])
    assert manager.done
    assert manager.ready_obs.shape == (0, 3)
    assert manager.step([]) == []


# ---------------------------------------------------------------------- the supervisor


@pytest.fixture(params=list(ChildType), ids=lambda kind: kind.name)
def supervisor(request: pytest.FixtureRequest, keep: Any) -> Any:
    def make(*lengths: int, env: Any = Tally, **options: Any) -> Any:
        return keep(EnvSupervisor(request.param, tallies(*lengths, env=env), **options))

    return make


def test_a_supervisor_takes_lists_and_dicts(supervisor: Any) -> None:
    found = supervisor(2, 9)
    found.seed(3)
    found.launch()
    assert found.seeds == [[(3, "not given")], [(4, "not given")]]
    assert [t.obs.tolist() for t in found.step({1: 0, 0: 0})] == [[1, 0, 1], [0, 0, 1]]
    assert [t.done.item() for t in found.step([0, 0])] == [True, False]
    assert found.ready_obs.tolist() == [[0, 1, 0], [1, 0, 2]]


@pytest.mark.parametrize("block", [True, False])
@pytest.mark.parametrize("nothing", [{}, []])
def test_a_supervisor_wants_an_action(supervisor: Any, nothing: Any, block: bool) -> None:
    found = supervisor(9)
    found.launch()
    with pytest.raises(AssertionError, match="at least one env"):
        found.step(nothing, block=block)
    assert found.step([0])[0].obs.tolist() == [0, 0, 1]


def test_a_supervisor_resets_by_lists_and_everybody_if_nobody_is_named(supervisor: Any) -> None:
    found = supervisor(9, 9)
    found.launch()
    for reset_param, resets in (([{}], [1, 0]), ({}, [2, 1]), ([], [3, 2])):
        found.reset(reset_param)
        assert [obs[1] for obs in found.ready_obs.tolist()] == resets


def test_every_reset_has_an_answer(supervisor: Any) -> None:
    manager = supervisor(9, 9)
    manager.launch()
    manager.reset(block=False)
    manager.reset(block=False)
    answers = [manager.recv() for _ in range(4)]
    assert sorted(payload.proc_id for payload in answers) == [0, 0, 1, 1]
    assert len({payload.req_id for payload in answers}) == 4


class Chatty(Tally):
    def step(self, action: Any) -> Any:
        return super().step(action)._replace(info={"note": "text", "count": 3})


def test_a_supervisor_keeps_text_in_infos(supervisor: Any) -> None:
    manager = supervisor(9, 9, env=Chatty)
    manager.launch()
    info = manager.step([0, 0])[0].info
    assert (str(info.note), info.count.item()) == ("text", 3)


def test_a_supervisor_passes_over_failures_if_asked(supervisor: Any) -> None:
    found = supervisor(9, 9)
    found.launch()
    found.step({0: "raise", 1: 0}, block=False)
    answers = [found.recv(ignore_err=True) for _ in range(2)]
    assert sorted((answer.proc_id, answer.method, answer.err) for answer in answers) == [
        (0, "reset", None),
        (1, "step", None),
    ]


@pytest.mark.parametrize("retry_type", ["reset", "renew"])
def test_a_step_that_fails_is_an_answer(supervisor: Any, retry_type: str) -> None:
    found = supervisor(9, 9, retry_type=retry_type)
    found.launch()
    born = found.birth
    failed, other = found.step({0: "raise", 1: 0})
    assert (failed.obs, failed.reward, failed.done) == (None, None, None)
    assert failed.info.abnormal
    assert "step went wrong" in failed.info.err
    assert other.obs.tolist() == [1, 0, 1]
    assert {state.name for state in found.env_states.values()} == {"RUN"}
    assert found.ready_obs.tolist() == [[0, 1 if retry_type == "reset" else 0, 0], [1, 0, 1]]
    assert (found.birth[0] == born[0]) is (retry_type == "reset")


def test_a_step_that_takes_too_long_is_an_answer(supervisor: Any) -> None:
    found = supervisor(9, 9, step_timeout=0.5)
    found.launch()
    assert found.step({0: "hang", 1: 0})[0].info.abnormal
    assert found.ready_obs.tolist() == [[0, 0, 0], [1, 0, 1]]


@pytest.mark.parametrize("word", ["raise", "hang", "abnormal"])
def test_a_step_that_fails_is_followed_by_a_reset_even_without_auto_reset(supervisor: Any, word: str) -> None:
    found = supervisor(1, 9, auto_reset=False, step_timeout=0.5)
    found.launch()
    assert found.step({0: word, 1: 0})[0].info.abnormal
    assert {i: state.name for i, state in found.env_states.items()} == {0: "RUN", 1: "RUN"}
    found.step([0, 0])
    assert {i: state.name for i, state in found.env_states.items()} == {0: "DONE", 1: "RUN"}


class Gated(Tally):
    """A reset waits until there is a file."""

    def __init__(self, index: int, length: int, gate: Path) -> None:
        super().__init__(index, length)
        self.gate = gate

    def reset(self, **keywords: Any) -> Any:
        end = time.monotonic() + 20
        while not self.gate.exists() and time.monotonic() < end:
            time.sleep(0.01)
        return super().reset(**keywords)


@pytest.mark.parametrize("kind", list(ChildType), ids=lambda kind: kind.name)
def test_a_supervisor_never_waits_to_tell_who_is_ready(kind: ChildType, keep: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    found = keep(EnvSupervisor(kind, tallies(1, 9, env=Gated, gate=gate)))

    def told() -> Any:
        states = [state.name for state in found.env_states.values()]
        return states, np.asarray(found.ready_obs).tolist(), found.ready_obs_id, found.done

    assert told() == (["VOID", "VOID"], [], [], False)
    found.launch(block=False)
    assert told() == (["VOID", "VOID"], [], [], False)
    gate.touch()
    for _ in range(2):
        found.recv()
    assert told() == (["RUN", "RUN"], [[0, 0, 0], [1, 0, 0]], [0, 1], False)
    gate.unlink()
    found.step({0: 0}, block=False)
    assert found.recv().method == "step"
    assert told() == (["DONE", "RUN"], [[1, 0, 0]], [1], False)
    found.step({1: "raise"}, block=False)
    assert found.recv().err is not None
    assert told() == (["DONE", "ERROR"], [], [], False), "nobody is done who is being reset"
    gate.touch()
    found.recv()
    found.recv()
    assert told() == (["RUN", "RUN"], [[0, 1, 0], [1, 1, 0]], [0, 1], False)
    found.close()
    assert told() == (["VOID", "VOID"], [], [], False)


def test_a_supervisor_whose_env_cannot_be_reset_shuts_down(supervisor: Any) -> None:
    found = supervisor(1, 9)
    found.launch({0: {"only_fresh": True}, 1: {}})
    found.step({0: 0}, block=False)
    assert found.recv().method == "step"
    with pytest.raises(ValueError, match="Env 0 reset"):
        found.recv()
    assert found.closed
    assert found.ready_obs == found.ready_obs_id == []


def test_a_supervisor_need_not_be_waited_for(supervisor: Any) -> None:
    found = supervisor(1, 9)
    found.launch(block=False)
    starts = [found.recv() for _ in range(2)]
    assert {(p.proc_id, p.method) for p in starts} == {(0, "reset"), (1, "reset")}
    assert found.step({0: 0}, block=False) is None
    step = found.recv()
    assert (step.proc_id, step.method, step.data.obs.tolist(), step.err) == (0, "step", [0, 0, 1], None)
    again = found.recv()
    assert (again.proc_id, again.method, again.data.tolist()) == (0, "reset", [0, 1, 0])
    assert again.req_id > step.req_id
    with pytest.raises(errors.ManagerState, match="nothing is under way"):
        found.recv()
    found.step({1: "raise"}, block=False)
    assert "step went wrong" in str(found.recv().err)


def test_without_auto_reset_a_supervisor_is_done(supervisor: Any) -> None:
    found = supervisor(1, 1, auto_reset=False)
    found.launch()
    found.step([0, 0])
    assert found.done
    assert found.ready_obs == []
    with pytest.raises(AssertionError, match="env 0 is DONE"):
        found.step({0: 0})
    found.close(1)
    assert {state.name for state in found.env_states.values()} == {"VOID"}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        supervisor(1, colour="red")
    assert "colour" in str(told[0].message)


# ---------------------------------------------------------------------- other envs


def cartpole() -> Any:
    return gymnasium.make("CartPole-v1")


def test_plain_gymnasium_envs(keep: Any) -> None:
    manager = keep(GymVectorEnvManager([cartpole] * 2, GymVectorEnvManager.default_config()))
    manager.seed(0, dynamic_seed=False)
    manager.reset()
    start = {i: obs.tolist() for i, obs in manager.ready_obs.items()}
    returns: dict[int, float] = {0: 0.0, 1: 0.0}
    for _ in range(60):
        for i, timestep in manager.step({0: 0}).items():
            returns[i] += timestep.reward.item()
            if timestep.done:
                assert timestep.info["eval_episode_return"].item() == returns[i]
                assert manager.ready_obs[i].tolist() == start[i], "a static seed"
                returns[i] = 0.0
    with pytest.raises(errors.WrongSetting, match="reset_param"):
        manager.reset({0: {}})


@pytest.mark.parametrize("engine", ["serial", "process"])
@pytest.mark.parametrize("batch_size", [2, 4])
def test_envs_by_id(keep: Any, engine: str, batch_size: int) -> None:
    cfg = PoolEnvManager.default_config()
    cfg.update(env_id="CartPole-v1", env_num=4, batch_size=batch_size, engine=engine, seed=1)
    manager = keep(PoolEnvManager(cfg))
    with pytest.raises(errors.ManagerState, match="launch"):
        manager.step({0: 0})
    manager.launch()
    ends, returns = 0, dict.fromkeys(range(4), 0.0)
    for k in range(100):
        ready = manager.ready_obs
        assert len(ready) == (batch_size if k else 4)
        timesteps = manager.step({i: np.array([0]) for i in ready})
        assert len(timesteps) == batch_size
        for i, timestep in timesteps.items():
            returns[i] += timestep.reward.item()
            if timestep.done:
                ends += 1
                assert abs(timestep.obs[2]) > 0.2, "the last observation: the pole has fallen"
                assert abs(manager.ready_obs[i][2]) < 0.1
                assert timestep.info["eval_episode_return"].item() == returns[i]
                assert timestep.terminated
                returns[i] = 0.0
    assert ends > 4
    busy = set(range(4)) - set(manager.ready_obs)
    if busy:
        with pytest.raises(errors.ManagerState, match="have not answered"):
            manager.step({busy.pop(): 0})


def test_after_a_reset_everybody_is_ready_whatever_the_size_of_a_batch(keep: Any) -> None:
    cfg = PoolEnvManager.default_config()
    cfg.update(env_id="CartPole-v1", env_num=4, batch_size=2, engine="serial", seed=1)
    manager = keep(PoolEnvManager(cfg))
    manager.launch()
    manager.step(dict.fromkeys(manager.ready_obs, 1))
    assert len(manager.ready_obs) == 2
    manager.reset()
    assert len(manager.ready_obs) == 4
    assert all(abs(obs[1]) < 0.06 for obs in manager.ready_obs.values()), "nobody has been pushed"


def test_envs_by_id_take_seeds_as_all_managers_do(keep: Any) -> None:
    def begun_with(seed: Any) -> Any:
        cfg = PoolEnvManager.default_config()
        cfg.update(env_id="CartPole-v1", env_num=2, batch_size=2, engine="serial")
        manager = keep(PoolEnvManager(cfg))
        manager.seed(seed)
        manager.launch()
        return [obs.tolist() for obs in manager.ready_obs.values()]

    same = begun_with(5)
    for seed in ([5, 6], (5, 6), np.array([5, 6]), {0: 5, 1: 6}):
        assert begun_with(seed) == same
    assert begun_with({1: 6})[1] == same[1]
    for wrong, kind in [("5", TypeError), (None, TypeError), ([5], AssertionError), ({2: 5}, KeyError)]:
        with pytest.raises(kind, match=r"seed|no env"):
            begun_with(wrong)


class Explosive(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 1 / (1 - int(action)), False, False, {}


def test_what_an_env_by_id_raises_is_of_its_own_class_too(keep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = gymnasium.envs.registration.EnvSpec("Explosive-v0", entry_point=Explosive)
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    cfg = PoolEnvManager.default_config()
    cfg.update(env_id=spec.id, env_num=2, batch_size=2, engine="serial")
    manager = keep(PoolEnvManager(cfg))
    manager.launch()
    with pytest.raises(ZeroDivisionError, match="env 1"):
        manager.step({0: 0, 1: 1})
    manager.reset()
    assert sorted(manager.step({0: 0, 1: 0})) == [0, 1]


def test_compiled_envs_by_id(keep: Any) -> None:
    pytest.importorskip("numba")
    cfg = PoolEnvManager.default_config()
    cfg.update(env_id="CartPole-v1", env_num=4, batch_size=4, seed=1)
    manager = keep(PoolEnvManager(cfg))
    manager.launch()
    assert manager._pool.engine.name == "kernel"
    assert manager.step({i: 1 for i in range(4)})[3].reward.tolist() == [1.0]


def test_clones_of_a_wrapped_env(keep: Any) -> None:
    for debug in (True, False):
        manager = keep(setup_ding_env_manager(DingEnvWrapper(cfg={"env_id": "CartPole-v1"}), 2, debug=debug))
        manager.launch()
        assert manager.ready_obs.shape == (2, 4)
        assert [t.reward.tolist() for t in manager.step(np.array([[0], [1]]))] == [[1.0], [1.0]]


# ---------------------------------------------------------------------- nerveX

NxStep = namedtuple("NxStep", ["obs", "reward", "done", "info"])


class NxEnv:
    def __init__(self, cfg: dict[str, Any]) -> None:
        self.name, self.length, self.k, self.stat, self.sd = cfg["name"], cfg["length"], 0, None, None

    def reset(self, stat: Any = None) -> Any:
        self.k, self.stat = 0, stat
        return [self.name, 0]

    def step(self, action: Any) -> Any:
        if action == "raise":
            raise ZeroDivisionError("step went wrong")
        self.k += 1
        return NxStep([self.name, self.k], action, self.k >= self.length, {})

    def seed(self, seed: int) -> str:
        if seed < 0:
            raise OverflowError("seeds are not negative")
        self.sd = seed
        return f"seeded {seed}"

    def close(self) -> None:
        pass

    def pack(self, timesteps: Any = None, obs: Any = None) -> Any:
        if timesteps is None:
            return obs
        return NxStep(*map(list, zip(*timesteps, strict=True))) if isinstance(timesteps, list) else timesteps

    def unpack(self, action: Any) -> list[dict[str, Any]]:
        return [{"action": a} for a in action]


@pytest.fixture(params=[nervex.BaseEnvManager, nervex.SubprocessEnvManager], ids=lambda cls: cls.__name__)
def nx(request: pytest.FixtureRequest, keep: Any) -> Any:
    return keep(request.param(NxEnv, [{"name": f"n{i}", "length": n} for i, n in enumerate((2, 3, 4))], 3))


def test_nervex_lists_without_ids_and_dicts_with(nx: Any) -> None:
    assert nx.env_num == 3
    assert nx.reset() == [["n0", 0], ["n1", 0], ["n2", 0]]
    assert nx.env_done == {0: False, 1: False, 2: False}
    assert nx.step([10, 11, 12]).reward == [10, 11, 12]
    part = nx.step([5, 6], env_id=[2, 0])
    assert list(part) == [2, 0]
    assert part[2] == NxStep(["n2", 2], 5, False, {})
    assert nx.env_done == {0: True, 1: False, 2: False}
    assert nx.reset(reset_param=[{"stat": "s"}], env_id=[1]) == {1: ["n1", 0]}
    assert nx.stat == [None, "s", None]
    assert nx.env_done == {0: True, 1: False, 2: False}, "the flags of the others stay"
    assert not nx.all_done
    nx.step([0], env_id=[0])
    assert nx.k == [3, 0, 2], "an env may be stepped past its end"


class NxTeam(NxEnv):
    """Two agents, the second of which is done a step later."""

    def step(self, action: Any) -> Any:
        timestep = super().step(action)
        flags = [self.k >= self.length, self.k > self.length]
        return timestep._replace(done=action(flags))


@pytest.mark.parametrize("form", [nervex.BaseEnvManager, nervex.SubprocessEnvManager], ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("flags", [list, np.array])
def test_nervex_an_episode_is_over_when_it_is_for_all_agents(form: Any, flags: Any, keep: Any) -> None:
    nx = keep(form(NxTeam, [{"name": "n", "length": 1}], 1))
    nx.reset()
    (of_agents,) = nx.step([flags]).done
    assert [*of_agents] == [True, False]
    assert nx.env_done == {0: False}
    nx.step([flags])
    assert nx.all_done is True


def test_nervex_seeds_at_once_and_attributes_that_are_not_there(nx: Any) -> None:
    assert nx.seed([1, 2, 3]) == ["seeded 1", "seeded 2", "seeded 3"]
    assert nx.seed([9], env_id=[1]) == {1: "seeded 9"}
    assert nx.sd == [1, 9, 3]
    assert nx.nothing_like_this == [None] * 3


def test_nervex_failures_name_their_env_and_lose_nobody(nx: Any) -> None:
    nx.reset()
    with pytest.raises(errors.EnvStepError, match=r"env 1.*step went wrong"):
        nx.step([0, "raise", 0])
    assert nx.step([0, 0], env_id=[0, 2])[2].obs == ["n2", 2]
    nx.reset(env_id=[1])
    assert nx.step([0], env_id=[1])[1].obs == ["n1", 1]
    with pytest.raises(AssertionError, match="action: expected 3 entries"):
        nx.step([0])
    nx.close()
    nx.close()
    with pytest.raises(AssertionError, match="closed"):
        nx.reset()


def test_nervex_errors_are_of_the_class_that_the_env_raised(nx: Any) -> None:
    nx.reset()
    with pytest.raises(ZeroDivisionError, match="step went wrong") as caught:
        nx.step([0, "raise", 0])
    assert isinstance(caught.value, errors.EnvStepError)
    with pytest.raises(TypeError):
        nx.reset([{}, {"no": "such keyword"}, {}])
    with pytest.raises(OverflowError) as caught_call:
        nx.seed([1, -1, 1])
    assert isinstance(caught_call.value, errors.EnvCallError)


def test_nervex_envs_of_this_process_can_be_looked_at_when_they_are_closed(keep: Any) -> None:
    manager = keep(nervex.BaseEnvManager(NxEnv, [{"name": name, "length": 2} for name in "ab"], 2))
    manager.reset()
    manager.step([0, 0])
    manager.close()
    assert (manager.k, manager.nothing) == ([1, 1], [None, None])


@pytest.mark.parametrize(("wrong", "told"), [([0, 9], "no env 9"), ([0, -1], "no env -1"), ([0, 0], "each env once")])
def test_nervex_ids_are_checked_before_any_env_moves(nx: Any, wrong: list[int], told: str) -> None:
    nx.reset()
    nx.step([1, 1, 1])
    for call in (nx.reset, partial(nx.step, [0, 0]), partial(nx.seed, [0, 0])):
        with pytest.raises(ValueError, match=f"env_id: .*{told}"):
            call(env_id=wrong)
    assert (nx.k, nx.sd) == ([1, 1, 1], [None, None, None])


def test_nervex_an_env_may_be_reset_without_keywords(nx: Any) -> None:
    nx.reset([{"stat": "s"}, {"stat": "s"}, {}])
    assert nx.reset([None, {"stat": "t"}], [0, 1]) == {0: ["n0", 0], 1: ["n1", 0]}
    assert nx.stat == [None, "t", None]


def test_nervex_nobody_is_nothing(nx: Any) -> None:
    nx.reset()
    assert nx.step([], []) == nx.reset(env_id=[]) == nx.seed([], []) == {}
    assert nx.k == [0, 0, 0]


def test_nervex_has_no_deadlines(nx: Any) -> None:
    limits = nx._pool.engine.config.timeouts
    assert (limits.construct, limits.reset, limits.step) == (None, None, None)


class Counted(NxEnv):
    """Notes in the process where it lives who was made, asked to pack, and closed."""

    notes: ClassVar[list[str]] = []

    def __init__(self, cfg: dict[str, Any]) -> None:
        super().__init__(cfg)
        self.notes.append(f"made {self.name}")

    def close(self) -> None:
        self.notes.append(f"closed {self.name}")

    def pack(self, timesteps: Any = None, obs: Any = None) -> Any:
        self.notes.append(f"packed by {self.name}")
        return super().pack(timesteps, obs)

    def unpack(self, action: Any) -> list[dict[str, Any]]:
        self.notes.append(f"unpacked by {self.name}")
        return super().unpack(action)


@pytest.mark.parametrize("form", [nervex.BaseEnvManager, nervex.SubprocessEnvManager], ids=lambda cls: cls.__name__)
def test_nervex_packs_with_env_0_and_closes_whom_it_has_made(form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counted, "notes", [])
    manager = form(Counted, [{"name": f"n{i}", "length": 9} for i in range(3)], 3)
    manager.reset()
    manager.step([0, 0, 0])
    manager.close()
    manager.close()
    here = ["n0", "n1", "n2"] if form is nervex.BaseEnvManager else ["n0"]
    used = ["packed by n0", "unpacked by n0", "packed by n0"]
    assert Counted.notes == [*(f"made {n}" for n in here), *used, *(f"closed {n}" for n in here)]


def test_nervex_what_cannot_be_built_is_of_its_own_class_too() -> None:
    for form in (nervex.BaseEnvManager, nervex.SubprocessEnvManager):
        with pytest.raises(KeyError, match="length"):
            form(NxEnv, [{"name": "n0", "length": 1}, {"name": "n1"}], 2)


def test_nervex_needs_one_config_per_env() -> None:
    with pytest.raises(AssertionError, match="expected 2 configs"):
        nervex.BaseEnvManager(NxEnv, [{"name": "n", "length": 1}], 2)
