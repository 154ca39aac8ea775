"""ParallelEnv: the same rows as SerialEnv from worker processes, and what happens when one of them fails."""

from __future__ import annotations

import os
import signal
import time
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from fault_cases import run_python
from tensor_envs import Adder, Agents, Reader, Story, Walk, assert_same
from tensordict import LazyStackedTensorDict, TensorDict

import shoal.faces.torchrl as face
from shoal.errors import EnvConstructError, EnvStepError, EnvTimeout, StateError, WorkerDied
from shoal.faces.torchrl import AsyncEnvPool, EnvCreator, GymEnv, ParallelEnv, PendulumEnv, SerialEnv, StepCounter
from shoal.faces.torchrl.batched.parallel import verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def parallel() -> Iterator[Callable[..., ParallelEnv]]:
    """``ParallelEnv``, with every one closed in the end."""
    made: list[ParallelEnv] = []

    def make(*args: Any, **options: Any) -> ParallelEnv:
        made.append(ParallelEnv(*args, **options))
        return made[-1]

    yield make
    while made:
        made.pop().close(raise_if_closed=False)


def zeros(env: Any, td: TensorDict) -> TensorDict:
    return td.set("action", torch.zeros(env.action_spec.shape))


# ---------------------------------------------------------------------- the same rows

KINDS: dict[str, Any] = {
    "one kind": partial(Walk, limit=3),
    "limits": [partial(Walk, limit=limit) for limit in (2, 3, 4)],
    "widths": [partial(Walk, width=width) for width in (1, 2, 4)],
    "batches": partial(Walk, limit=3, batch_size=(2,)),
    "bfloat16": partial(Walk, limit=3, dtype=torch.bfloat16),
    "groups": Agents,
    "state in the data": Adder,
    "texts": Story,
    "gym": partial(GymEnv, "CartPole-v1"),
    "gyms": [partial(GymEnv, id) for id in ("CartPole-v1", "Pendulum-v1", "FrozenLake-v1")],
    "set states": PendulumEnv,
    "transforms": lambda: Walk().append_transform(StepCounter(max_steps=3)),
    "objects": partial(Story, word=frozenset({1})),
}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_a_serial_env(kind: str, parallel: Callable[..., ParallelEnv]) -> None:
    makers = KINDS[kind]
    apart, here = parallel(3, makers), SerialEnv(3, makers)
    assert apart.is_closed
    assert apart.set_seed(11) == here.set_seed(11)
    torch.manual_seed(1)
    ours, theirs = apart.reset(), here.reset()
    assert_same(ours, theirs)
    for _ in range(7):
        actions = here.rand_action(theirs.copy())
        ours = actions.copy()
        stepped, theirs = here.step_and_maybe_reset(actions)
        ours_stepped, ours = apart.step_and_maybe_reset(ours)
        assert_same(ours_stepped, stepped)
        assert_same(ours, theirs)
    here.close()


@pytest.mark.parametrize("options", [{"use_buffers": False}, {"shared_memory": False, "memmap": True}], ids=str)
def test_every_transport_gives_the_same(options: Any, parallel: Callable[..., ParallelEnv]) -> None:
    apart, here = parallel(2, Walk, **options), SerialEnv(2, Walk)
    apart.set_seed(0)
    here.set_seed(0)
    torch.manual_seed(0)
    expected = here.rollout(7, break_when_any_done=False)
    torch.manual_seed(0)
    assert_same(apart.rollout(7, break_when_any_done=False), expected)
    here.close()


@pytest.mark.parametrize("method", [None, "forkserver", "fork"])
def test_every_start_method(method: str | None, parallel: Callable[..., ParallelEnv]) -> None:
    assert parallel(2, Walk, mp_start_method=method).rollout(3)["count"].squeeze(-1).tolist() == [[0, 1, 2]] * 2


def test_looking_in_a_worker_makes_no_env_here(parallel: Callable[..., ParallelEnv]) -> None:
    here = os.getpid()

    def make() -> Walk:
        assert os.getpid() != here
        return Walk(width=2)

    env = parallel(2, make, metadata_from_workers=True)
    assert not env.is_closed
    assert env.observation_spec["place"].shape == (2, 2)
    assert env.reset()["place"].shape == (2, 2)


def test_looking_in_a_worker_needs_envs_of_one_kind() -> None:
    with pytest.raises(RuntimeError, match="of one kind"):
        ParallelEnv(2, [Walk, partial(Walk, width=2)], metadata_from_workers=True)
    with pytest.raises(RuntimeError, match="of one kind"):
        ParallelEnv(2, Walk, create_env_kwargs=[{}, {"width": 2}], metadata_from_workers=True)
    with pytest.raises(RuntimeError, match="use_buffers"):
        ParallelEnv(2, Walk, metadata_from_workers=True, use_buffers=True)


def test_data_of_each_env_can_be_kept_apart(parallel: Callable[..., ParallelEnv]) -> None:
    env = parallel(2, partial(Walk, limit=3), share_individual_td=True)
    stepped, root = env.step_and_maybe_reset(env.rand_action(env.reset()))
    for td in (stepped, stepped["next"], root):
        assert isinstance(td, LazyStackedTensorDict)
    assert env.rollout(4, break_when_any_done=False)["count"].squeeze(-1).tolist() == [[0, 1, 2, 0]] * 2


@pytest.mark.parametrize("options", [{}, {"use_buffers": False}], ids=str)
def test_an_env_reads_where_it_was(options: Any, parallel: Callable[..., ParallelEnv]) -> None:
    env = parallel(2, Reader, **options)
    assert env.rollout(6, break_when_any_done=False)["next", "x"].squeeze(-1).tolist() == [[1, 2, 3, 4, 1, 2]] * 2
    td = env.reset()
    for expected in (1, 2):
        td = env.step_mdp(env.step(env.rand_action(td)))
        assert td["x"].tolist() == [[expected]] * 2
    td["_reset"] = torch.tensor([[True], [False]])
    td = env.reset(td)
    assert env.step(env.rand_action(td))["next", "x"].tolist() == [[1.0], [3.0]]


class Learned(Reader):
    """Counts by a weight that could be learned; it tells whether what it counts from has a history."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.seen: list[bool] = []

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> TensorDict:
        return TensorDict({"x": torch.zeros(1) * self.weight}, [])

    def _step(self, tensordict: Any) -> TensorDict:
        self.seen.append(tensordict["x"].requires_grad)
        return TensorDict(
            {"x": tensordict["x"] + self.weight, "reward": self.weight, "done": torch.zeros(1).bool()}, []
        )


def test_where_an_env_was_has_no_history(parallel: Callable[..., ParallelEnv]) -> None:
    env = parallel(2, Learned)
    assert env.rollout(4)["next", "x"].squeeze(-1).tolist() == [[1, 2, 3, 4]] * 2
    td = env.rand_action(env.reset())
    assert env.step(td)["next", "x"].tolist() == [[1.0]] * 2
    assert not any(flag for seen in env.seen for flag in seen)


def test_pools_can_be_the_envs(parallel: Callable[..., ParallelEnv]) -> None:
    env = parallel(2, lambda: AsyncEnvPool([Reader] * 3))
    assert env.rollout(3)["next", "x"].squeeze(-1).tolist() == [[[1, 2, 3]] * 3] * 2


def test_results_do_not_change_later(parallel: Callable[..., ParallelEnv]) -> None:
    env = parallel(2, partial(Walk, limit=9))
    first = env.rand_step(env.reset())
    kept = first.clone()
    env.rand_step(env.step_mdp(first))
    assert_same(first, kept)


def test_partial_steps_and_resets(parallel: Callable[..., ParallelEnv]) -> None:
    env = parallel(3, partial(Walk, limit=9))
    td = zeros(env, env.reset())
    td["_step"] = torch.tensor([True, False, True])
    td = env.step_mdp(env.step(td))
    assert td["count"].flatten().tolist() == [1, 0, 1]
    assert list(env.steps) == [1, 0, 1]
    td["_reset"] = torch.tensor([[True], [False], [False]])
    assert env.reset(td)["count"].flatten().tolist() == [0, 0, 1]
    td["_reset"] = torch.zeros(3, 1, dtype=torch.bool)
    assert env.reset(td)["count"].flatten().tolist() == [0, 0, 1]
    assert list(env.resets) == [2, 1, 1]
    rollout = env.rollout(20, break_when_all_done=True)
    assert rollout["next", "count"][..., -1, :].flatten().tolist() == [9, 9, 9]


def test_parts_of_a_batched_env_are_reset(parallel: Callable[..., ParallelEnv]) -> None:
    env = parallel(2, partial(Walk, batch_size=(2,), limit=9))
    td = env.step_mdp(env.step(zeros(env, env.reset())))
    td["_reset"] = torch.tensor([[[True], [False]], [[False], [False]]])
    assert env.reset(td)["count"].squeeze(-1).tolist() == [[0, 1], [1, 1]]


def test_a_step_without_a_reset_is_the_envs_business(parallel: Callable[..., ParallelEnv]) -> None:
    env = parallel(2, Walk)
    td = TensorDict({"action": torch.zeros(2, 3)}, [2])
    assert env.step(td)["next", "count"].flatten().tolist() == [1, 1]


def test_arguments_of_resets(parallel: Callable[..., ParallelEnv]) -> None:
    env = parallel(2, Walk)
    assert (env.reset(start=10.0)["place"] >= 10).all()
    out = env.reset(list_of_kwargs=[{"start": 20.0}, {}])["place"]
    assert (out[0] >= 20).all()
    assert (out[1] < 20).all()


# ---------------------------------------------------------------------- attributes, views, state


class Named(Walk):
    """Has attributes under every name that a worker could take for a command."""

    def __init__(self) -> None:
        super().__init__()
        self.seed, self.init, self.call, self.get = 5, "init", "call", {"a": 1}

    @property
    def shy(self) -> Any:
        raise ValueError("not today")


def test_attributes_are_fetched_called_and_followed(parallel: Callable[..., ParallelEnv]) -> None:
    env = parallel(2, Named)
    assert list(env.seed) == [5, 5]  # it starts the envs
    assert env.init == ["init", "init"]
    a, b = env.call
    assert (a, b) == ("call", "call")
    assert env.echo(1, b=2) == [(5, 1, ("b", 2))] * 2
    assert env.get.copy() == [{"a": 1}] * 2
    assert env.generator.initial_seed() == env.generator.initial_seed()
    assert len(env.limit) == 2
    assert env.limit[0] == 5
    assert "limit of 2 envs" in repr(env.limit)
    with pytest.raises(AttributeError, match="no_such"):
        _ = env.no_such
    with pytest.raises(ValueError, match="not today"):
        raise env_error(lambda: list(env.shy))
    assert env.reset()["count"].shape == (2, 1)  # nothing of this does any harm


def env_error(call: Any) -> BaseException:
    with pytest.raises(RuntimeError) as caught:
        call()
    assert caught.value.__cause__ is not None
    return caught.value.__cause__


def test_views_share_the_workers(parallel: Callable[..., ParallelEnv]) -> None:
    env = parallel(3, [partial(Walk, limit=limit) for limit in (7, 8, 9)])
    td = zeros(env, env.reset())
    view = env[1:]
    assert list(view.limit) == [8, 9]
    assert view.step(td[1:].clone())["next", "count"].flatten().tolist() == [1, 1]
    assert list(env.steps) == [0, 1, 1]
    assert env[0].batch_size == (1,)


class WithState(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(2))


def test_states_go_there_and_back(parallel: Callable[..., ParallelEnv]) -> None:
    env = parallel(2, WithState)
    state = env.state_dict()
    state["worker1"]["weight"] += 1
    env.load_state_dict(state)
    assert [w.tolist() for w in env.weight] == [[0, 0], [1, 1]]


class Keeper(Walk):
    """Counts its steps in a TensorDict that is part of its state."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = TensorDict({"steps": torch.zeros(1)}, [])

    def get_extra_state(self) -> Any:
        return self.kept

    def set_extra_state(self, state: Any) -> None:
        self.kept = state

    def _step(self, tensordict: Any) -> Any:
        self.kept["steps"].add_(1)
        return super()._step(tensordict)


def test_a_creators_envs_share_state_across_processes(parallel: Callable[..., ParallelEnv]) -> None:
    creator = EnvCreator(Keeper)
    here = creator()
    before = here.kept["steps"].item()
    env = parallel(2, creator, num_processes=1)  # in two, the sums of this env, which it does not lock, would race
    env.rand_step(env.reset())
    assert here.kept["steps"].item() == before + 2


def test_a_seeded_worker_repeats_what_torch_draws(parallel: Callable[..., ParallelEnv]) -> None:
    env = parallel(2, Drawing, num_processes=2)
    env.set_seed(3)
    first = env.reset()["place"]
    env.set_seed(3)
    assert torch.equal(env.reset()["place"], first)
    assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_draw_each_for_itself_without_a_seed(method: str, parallel: Callable[..., ParallelEnv]) -> None:
    drawn = [parallel(4, Drawing, num_processes=2, mp_start_method=method).reset()["place"] for _ in range(2)]
    assert torch.cat(drawn).unique().numel() == 2 * 4 * 3


class Drawing(Walk):
    def _shown(self) -> TensorDict:
        return super()._shown().set("place", torch.rand(3))


# ---------------------------------------------------------------------- life


def test_it_starts_late_and_again(parallel: Callable[..., ParallelEnv]) -> None:
    env = parallel(2, Walk)
    assert env.is_closed
    with pytest.raises(StateError, match="not been started"):
        env.stats()
    env.reset()
    assert not env.is_closed
    assert env.stats().engine == "process"
    env.close()
    with pytest.raises(RuntimeError):
        env.close()
    assert env.reset()["count"].flatten().tolist() == [0, 0]


def test_stats_say_whether_processes_pay(parallel: Callable[..., ParallelEnv]) -> None:
    env = parallel(2, partial(GymEnv, "CartPole-v1"))
    env.rollout(20, break_when_any_done=False)
    told = env.stats()
    assert told.steps >= 38
    assert "a step of an env takes" in told.engine_reason
    assert "a SerialEnv would be faster" in verdict(10e-6, 150e-6, 2)
    assert "a SerialEnv" not in verdict(500e-6, 600e-6, 2)


def test_one_env_may_stay_in_this_process() -> None:
    env = ParallelEnv(1, Walk, serial_for_single=True, mp_start_method="fork")
    assert isinstance(env, SerialEnv)


def test_lists_begin_anew_row_by_row(parallel: Callable[..., ParallelEnv]) -> None:
    env = parallel(2, Story)
    td = env.step_mdp(env.rand_step(env.reset()))
    td = env.reset(td.set("_reset", torch.tensor([[True], [False]])))
    assert [len(row["tokens"]) for row in td.unbind(0)] == [1, 2]


def test_a_copy_makes_its_own_envs(parallel: Callable[..., ParallelEnv]) -> None:
    import copy

    env = parallel(2, Walk)
    env.reset()
    other = copy.copy(env)
    assert other.is_closed
    assert not env.is_closed
    assert other.reset()["count"].shape == (2, 1)
    other.close()


PROGRAM = """
import threading
from shoal.faces.torchrl import GymEnv, ParallelEnv, ProcessorAsyncEnvPool

def method(env):
    env.reset()
    told = env._host.pool.engine.crew.method if hasattr(env, "_host") else env._running().pool.engine.crew.method
    env.close()
    return told

make = lambda: GymEnv("CartPole-v1")
print(method(ParallelEnv(2, make)), method(ProcessorAsyncEnvPool([make] * 2)))
enough = threading.Event()
thread = threading.Thread(target=enough.wait, args=(60,))
thread.start()
print(method(ParallelEnv(2, make)), method(ParallelEnv(2, make, mp_start_method="fork")))
enough.set()
thread.join()
print(method(ParallelEnv(2, make, num_processes=1, mp_start_method="spawn")))
"""


@pytest.mark.timeout(150)  # three processes import torch, one after the other
def test_workers_are_forks_where_no_other_thread_runs() -> None:
    done = run_python("-W", "ignore", "-c", PROGRAM, timeout=140)
    assert (done.stdout, done.returncode) == ("fork fork\nforkserver forkserver\nspawn\n", 0), done.stderr


def test_warnings_of_workers_are_left_out_unless_wanted(
    parallel: Callable[..., ParallelEnv], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> Walk:
        if os.getpid() != here:
            warnings.warn("hear, hear", stacklevel=1)
        return Walk()

    here = os.getpid()
    # A fork would have the filters of the tests.
    parallel(1, make, mp_start_method="forkserver").reset()
    assert face.filter_warnings_subprocess is True
    monkeypatch.setattr(face, "filter_warnings_subprocess", False)
    quiet = capfd.readouterr().err
    env = parallel(1, make, mp_start_method="forkserver")
    env.reset()
    env.close()
    assert "hear, hear" not in quiet
    assert "hear, hear" in capfd.readouterr().err


def test_several_envs_share_a_process_unless_told(parallel: Callable[..., ParallelEnv]) -> None:
    env = parallel(4, Pid, num_processes=4)
    assert len(set(env.pid())) == 4
    assert len(set(parallel(4, Pid, num_processes=1).pid())) == 1


class Pid(Walk):
    def pid(self) -> int:
        return os.getpid()


def test_waiting_envs_wait_together(parallel: Callable[..., ParallelEnv]) -> None:
    env = parallel(4, partial(Walk, delay_s=0.2), num_processes=4)
    td = env.rand_action(env.reset())
    began = time.perf_counter()
    env.step(td)
    assert time.perf_counter() - began < 0.7


# ---------------------------------------------------------------------- failures


def test_a_failing_env_is_named_with_its_traceback_and_the_others_go_on(parallel: Callable[..., ParallelEnv]) -> None:
    env = parallel(3, [Walk, partial(Walk, fails_at=2), Walk])
    td = zeros(env, env.reset())
    env.step(td)
    with pytest.raises(EnvStepError) as caught:
        env.step(td)
    told = str(caught.value)
    assert "env 1" in told
    assert "step 2 is one too many" in told
    assert "in _step" in told  # the traceback is in the text
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(RuntimeError, match="envs \\[1\\] failed earlier"):
        env.step(td)
    td["_reset"] = torch.tensor([[False], [True], [False]])
    td = zeros(env, env.reset(td))
    assert env.step(td)["next", "count"].flatten().tolist() == [3, 1, 3]


def test_a_dead_worker_is_told_and_close_works(parallel: Callable[..., ParallelEnv]) -> None:
    env = parallel(2, [Walk, partial(Walk, dies_at=1)], num_processes=2)
    td = zeros(env, env.reset())
    with pytest.raises(WorkerDied, match="exited with code 3"):
        env.step(td)
    env.close()
    assert env.is_closed


def test_a_killed_worker_is_found_by_the_next_call(parallel: Callable[..., ParallelEnv]) -> None:
    env = parallel(2, Pid, num_processes=2)
    env.reset()
    os.kill(env.pid()[1], signal.SIGKILL)
    with pytest.raises(RuntimeError, match="SIGKILL"):
        env.rand_step()
    env.close()
    assert env.reset()["count"].shape == (2, 1)


def test_an_env_that_hangs_is_given_up(parallel: Callable[..., ParallelEnv], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHED_PIPE_TIMEOUT", "1")
    env = parallel(2, [Walk, partial(Walk, delay_s=60)], num_processes=2)
    td = zeros(env, env.reset())
    began = time.perf_counter()
    with pytest.raises(EnvTimeout, match="env 1"):
        env.step(td)
    assert time.perf_counter() - began < 10
    env.close()


def test_an_env_that_cannot_be_made_there_says_why(parallel: Callable[..., ParallelEnv]) -> None:
    here = os.getpid()

    def make() -> Walk:
        if os.getpid() != here:
            raise OSError("no such simulator")
        return Walk()

    with pytest.raises(EnvConstructError, match="no such simulator"):
        parallel(2, make).reset()


def test_data_of_another_shape_is_refused_before_anything_moves(parallel: Callable[..., ParallelEnv]) -> None:
    env = parallel(2, Walk)
    td = env.reset()
    with pytest.raises(ValueError, match=r"'action': expected shape \(2, 3\), got \(2, 4\)"):
        env.step(td.set("action", torch.zeros(2, 4)))
    with pytest.raises(KeyError, match="'action'"):
        env.step(td.exclude("action"))
    assert list(env.steps) == [0, 0]


class Liar(Walk):
    def _shown(self) -> TensorDict:
        return super()._shown().set("place", torch.zeros(7))


def test_an_env_that_breaks_its_specs_is_told_which(parallel: Callable[..., ParallelEnv]) -> None:
    with pytest.raises(RuntimeError, match=r"'place': the spec says shape \(3,\), and the env returned \(7,\)"):
        parallel(2, Liar).reset()
