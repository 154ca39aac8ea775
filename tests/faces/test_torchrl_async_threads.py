"""AsyncEnvPool on threads: who is addressed, what is received when, and what a failure leaves behind."""

from __future__ import annotations

import threading
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tensor_envs import Reader, Story, Walk, assert_same
from tensordict import LazyStackedTensorDict, TensorDict
from torchrl_cases import Counter

from shoal.errors import ShoalError
from shoal.faces.torchrl import AsyncEnvPool, GymEnv, SerialEnv, ThreadingAsyncEnvPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOON_S = 20.0


@pytest.fixture
def pool() -> Iterator[Callable[..., AsyncEnvPool]]:
    """``AsyncEnvPool``, with every one closed in the end."""
    made: list[AsyncEnvPool] = []

    def make(makers: Any, **options: Any) -> AsyncEnvPool:
        made.append(AsyncEnvPool(makers, **options))
        return made[-1]

    yield make
    while made:
        made.pop().close()


def indices(td: TensorDict) -> Any:
    found = td["env_index"]
    return found if isinstance(found, int) else [int(i) for i in found]


def actions(count: int | None = None) -> TensorDict:
    lead = () if count is None else (count,)
    return TensorDict({"action": torch.zeros(*lead, 3)}, lead)


def counts(td: TensorDict) -> list[int]:
    return [int(count) for count in td["next", "count"].flatten()]


class Held(Walk):
    """Waits in every step until it is let go."""

    def __init__(self, gate: threading.Event, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.gate = [gate]

    def _step(self, tensordict: Any) -> Any:
        assert self.gate[0].wait(SOON_S)
        return super()._step(tensordict)


def test_an_env_reads_where_it_was(pool: Callable[..., AsyncEnvPool]) -> None:
    env = pool([Reader] * 2)
    assert env.rollout(6, break_when_any_done=False)["next", "x"].squeeze(-1).tolist() == [[1, 2, 3, 4, 1, 2]] * 2


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor], ids=lambda kind: kind.__name__)
def test_envs_may_be_named_in_any_form(kind: Any, pool: Callable[..., AsyncEnvPool]) -> None:
    env = pool([Reader] * 3)
    td = env.rand_action(env.reset())
    env.async_step_send(td[[2, 0]].exclude("env_index"), env_index=kind([2, 0]))
    assert sorted(env.async_step_recv(min_get=2)["env_index"]) == [0, 2]
    env.async_step_send(td[1].exclude("env_index"), env_index=kind([1])[0])
    assert env.async_step_recv(env_index=1)["next", "x"].tolist() == [1.0]


def test_a_call_that_is_refused_leaves_its_data_alone(pool: Callable[..., AsyncEnvPool]) -> None:
    env = pool([Reader] * 2)
    td = env.rand_action(env.reset())
    env.async_step_send(td[:1])
    with pytest.raises(RuntimeError, match="under way"):
        env.step_and_maybe_reset(td)
    env.async_step_send(td[1:])
    assert sorted(env.async_step_recv(min_get=2)["env_index"]) == [0, 1]


# ---------------------------------------------------------------------- making one


def test_backends_have_classes_of_their_own(pool: Callable[..., AsyncEnvPool]) -> None:
    env = pool([Walk] * 2)
    assert type(env) is ThreadingAsyncEnvPool
    assert (env.backend, env.stack, env.num_envs, env.min_get) == ("threading", "dense", 2, 1)
    assert env.batch_size == (2,)
    assert env.env_batch_sizes == [torch.Size([])] * 2
    assert (env.exchange, env.resolved_exchange) == ("queue", "queue")
    assert env.state_spec.get("env_index", None) is not None
    assert env.exchange_keys == ()
    assert pool([Walk] * 2, exchange="auto").resolved_exchange == "queue"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"backend": "asyncio"}, NotImplementedError),
        ({"stack": "sparse"}, NotImplementedError),
        ({"exchange": "pigeon"}, ValueError),
        ({"exchange": "shm"}, ValueError),
        ({"worker_affinity": [[0], [0]]}, ValueError),
        ({"envs_per_worker": 0}, ValueError),
        ({"create_env_kwargs": [{}]}, ValueError),
    ],
    ids=str,
)
def test_arguments_that_make_no_sense(options: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        AsyncEnvPool([Walk] * 2, **options)


def test_envs_functions_and_their_arguments(pool: Callable[..., AsyncEnvPool]) -> None:
    assert [env.limit for env in pool([Walk(limit=7), partial(Walk, limit=8)]).envs] == [7, 8]
    assert [env.limit for env in pool(Walk).envs] == [5]
    assert [env.limit for env in pool([Walk] * 2, create_env_kwargs=[{"limit": 3}, {"limit": 4}]).envs] == [3, 4]


def test_an_env_that_exists_is_open_until_the_pool_closes(pool: Callable[..., AsyncEnvPool]) -> None:
    walk = Walk()
    env = pool([walk])
    assert not walk.is_closed
    assert env.envs == [walk]
    env.close()
    assert walk.is_closed


# ---------------------------------------------------------------------- all together


@pytest.mark.parametrize("stack", ["dense", "maybe_dense", "lazy"])
def test_all_envs_together(stack: str, pool: Callable[..., AsyncEnvPool]) -> None:
    env = pool([partial(Walk, limit=3)] * 3, stack=stack)
    td = env.reset()
    assert isinstance(td, LazyStackedTensorDict) == (stack == "lazy")
    assert indices(td) == [0, 1, 2]
    stepped = env.rand_step(td)
    assert counts(stepped) == [1, 1, 1]
    assert stepped["next"].get("env_index", None) is None
    root = env.step_mdp(stepped)
    for _ in range(2):
        stepped, root = env.step_and_maybe_reset(env.rand_action(root))
    assert stepped["next", "done"].all()
    assert root["count"].flatten().tolist() == [0, 0, 0]
    assert indices(stepped) == indices(root) == [0, 1, 2]
    assert env.rollout(2).batch_size == (3, 2)


def test_it_is_seeded_like_a_batch(pool: Callable[..., AsyncEnvPool]) -> None:
    env, here = pool([Walk] * 3), SerialEnv(3, Walk)
    assert env.set_seed(4) == here.set_seed(4)
    torch.manual_seed(0)
    expected = here.rollout(8, break_when_any_done=False)
    torch.manual_seed(0)
    assert_same(env.rollout(8, break_when_any_done=False).exclude("env_index"), expected)
    here.close()


@pytest.mark.filterwarnings("ignore:.*written over the NonTensorData:FutureWarning")
def test_the_printed_example_works(pool: Callable[..., AsyncEnvPool]) -> None:
    env = pool([partial(GymEnv, "Pendulum-v1"), partial(GymEnv, "CartPole-v1")], stack="lazy")
    s = env.rand_step(env.reset())
    s0 = s[0]
    s0["action"] = torch.randn(1).clamp(-1, 1)
    s0["env_index"] = 0
    env.async_step_send(s0)
    result = env.async_step_recv()
    assert indices(result) == [0]
    assert result["next", "observation"].shape == (1, 3)


# ---------------------------------------------------------------------- some of them


def test_rows_carry_their_number(pool: Callable[..., AsyncEnvPool]) -> None:
    env = pool([partial(Walk, limit=9)] * 3)
    td = env.rand_action(env.reset())
    env.async_step_send(td[:2])
    out = env.async_step_recv(min_get=2)
    assert indices(out) == [0, 1]
    assert torch.equal(out["action"], td["action"][:2])
    env.async_step_send(td[2])
    out = env.async_step_recv()
    assert out.batch_size == (1,)
    assert indices(out) == [2]


@pytest.mark.parametrize(
    "number", [2, torch.tensor(2), torch.tensor([2]), [2]], ids=["int", "0-d tensor", "1-d tensor", "list"]
)
def test_the_number_may_have_many_forms(number: Any, pool: Callable[..., AsyncEnvPool]) -> None:
    env = pool([Walk] * 3)
    env.reset()
    td = actions()
    if isinstance(number, (list, torch.Tensor)) and len(getattr(number, "shape", (1,))):
        td = actions(1)
    td["env_index"] = number
    env.async_step_send(td)
    out = env.async_step_recv()
    assert out.batch_size == (1,)
    assert indices(out) == [2]


def test_envs_are_named_in_any_order_and_come_sorted(pool: Callable[..., AsyncEnvPool]) -> None:
    env = pool([partial(Walk, limit=9)] * 3)
    env.reset()
    td = actions(2)
    td["action"][0] = 0.5
    env.async_step_send(td, env_index=[2, 0])
    out = env.async_step_recv(min_get=2)
    assert indices(out) == [0, 2]
    assert out["action"][:, 0].tolist() == [0.0, 0.5]


def test_one_env_by_its_number_has_a_channel_of_its_own(pool: Callable[..., AsyncEnvPool]) -> None:
    env = pool([Walk] * 2)
    env.reset()
    env.async_step_send(actions(), env_index=1)
    env.async_step_send(actions(1), env_index=[0])
    assert indices(env.async_step_recv()) == [0]
    with pytest.raises(RuntimeError, match="1 results are wanted, and 0 are under way"):
        env.async_step_recv()
    out = env.async_step_recv(env_index=1)
    assert out.batch_size == ()
    assert indices(out) == 1
    with pytest.raises(RuntimeError, match="env 1 was sent no such command"):
        env.async_step_recv(env_index=1)


def test_some_envs_are_reset(pool: Callable[..., AsyncEnvPool]) -> None:
    env = pool([partial(Walk, limit=9)] * 3)
    env.rand_step(env.reset())
    env.async_reset_send(env_index=[0, 2])
    out = env.async_reset_recv(min_get=2)
    assert indices(out) == [0, 2]
    assert out["count"].flatten().tolist() == [0, 0]
    env.async_reset_send(env_index=1)
    assert env.async_reset_recv(env_index=1).batch_size == ()
    env.async_reset_send()
    assert indices(env.async_reset_recv(min_get=3)) == [0, 1, 2]
    env.async_reset_send(env_index=[0], start=30.0)
    assert (env.async_reset_recv()["place"] >= 30).all()


def test_results_tell_what_was_sent_whatever_becomes_of_it(pool: Callable[..., AsyncEnvPool]) -> None:
    env = pool([Walk] * 2)
    td = env.reset().set("action", torch.ones(2, 3))
    env.async_step_send(td)
    td["action"].zero_()
    td["note"] = torch.ones(2)
    out = env.async_step_recv(min_get=2)
    assert (out["action"] == 1).all()
    assert "note" not in out
    env.async_step_send(td[0].set("action", torch.ones(3)), env_index=0)
    td["count"].fill_(7)
    assert env.async_step_recv(env_index=0)["count"].tolist() == [0]


def test_what_is_left_over_from_a_step_need_not_be_in_all_that_is_sent(pool: Callable[..., AsyncEnvPool]) -> None:
    envs = pool([Counter] * 2)
    stepped = envs.rand_step(envs.reset())
    stepped["action"] = torch.ones_like(stepped["action"])
    left_over, fresh = stepped[0], envs.step_mdp(stepped)[1]
    fresh["action"] = torch.ones(1, dtype=torch.int64)
    envs.async_step_send(left_over)
    envs.async_step_send(fresh)
    both = envs.async_step_recv(min_get=2)
    assert both["count"].flatten().tolist() == [0, stepped["next", "count"][1].item()]
    assert counts(both) == [int(count) + 1 for count in stepped["next", "count"].flatten()]


def test_a_reset_returns_no_masks(pool: Callable[..., AsyncEnvPool]) -> None:
    env = pool([partial(Walk, batch_size=(2,))] * 2)
    td = env.rand_step(env.reset())["next"].exclude("reward")
    env.async_reset_send(td.set("_reset", torch.tensor([[True, False]] * 2).unsqueeze(-1)), env_index=[0, 1])
    out = env.async_reset_recv(min_get=2)
    assert "_reset" not in out
    assert out["count"].squeeze(-1).tolist() == [[0, 1], [0, 1]]


def test_steps_and_resets_in_one(pool: Callable[..., AsyncEnvPool]) -> None:
    env = pool([partial(Walk, limit=2), partial(Walk, limit=3)])
    root = env.reset()
    for number in range(1, 7):
        env.async_step_and_maybe_reset_send(env.rand_action(root))
        stepped, root = env.async_step_and_maybe_reset_recv(min_get=2)
        assert indices(stepped) == indices(root) == [0, 1]
        assert root.get("next", None) is None
        assert root["count"].flatten().tolist() == [number % 2, number % 3]
        assert counts(stepped) == [(number - 1) % 2 + 1, (number - 1) % 3 + 1]
    env.async_step_and_maybe_reset_send(actions(), env_index=0)
    stepped, root = env.async_step_and_maybe_reset_recv(env_index=0)
    assert stepped.batch_size == root.batch_size == ()


def test_envs_that_are_batches(pool: Callable[..., AsyncEnvPool]) -> None:
    env = pool([partial(Walk, batch_size=(2,), limit=9)] * 3)
    td = env.rand_action(env.reset())
    assert td.batch_size == (3, 2)
    env.async_step_send(td[1:])
    out = env.async_step_recv(min_get=2)
    assert out.batch_size == (2, 2)
    assert [out[row]["env_index"] for row in range(2)] == [1, 2]
    env.async_step_send(td[0])
    assert env.async_step_recv().batch_size == (1, 2)
    env.async_step_send(TensorDict({"action": torch.zeros(2, 3)}, [2]), env_index=0)
    assert env.async_step_recv(env_index=0).batch_size == (2,)


def test_envs_that_differ(pool: Callable[..., AsyncEnvPool]) -> None:
    env = pool([partial(Walk, width=2), partial(Walk, width=3)], stack="lazy")
    td = env.rand_action(env.reset())
    env.async_step_and_maybe_reset_send(td)
    stepped, root = env.async_step_and_maybe_reset_recv(min_get=2)
    assert stepped[1]["next", "place"].shape == (3,)
    assert root[0]["place"].shape == (2,)
    with pytest.raises(RuntimeError):
        pool([partial(Walk, width=2), partial(Walk, width=3)], stack="dense").reset()


def test_texts(pool: Callable[..., AsyncEnvPool]) -> None:
    env = pool([Story] * 2, stack="maybe_dense")
    root = env.reset()
    for number in (1, 2, 3):
        root["action"] = torch.zeros(2, 1, dtype=torch.int64)
        env.async_step_and_maybe_reset_send(root)
        stepped, root = env.async_step_and_maybe_reset_recv(min_get=2)
        assert stepped[1]["next", "text"] == f"step {number}"
    assert root[0]["text"] == "step 0"


# ---------------------------------------------------------------------- when


def test_what_is_ready_comes_first_and_nothing_is_lost(pool: Callable[..., AsyncEnvPool]) -> None:
    gate = threading.Event()
    env = pool([partial(Held, gate), Walk, Walk])
    env.async_step_send(env.rand_action(env.reset()))
    got: list[int] = []
    while len(got) < 2:
        got += indices(env.async_step_recv(timeout=SOON_S))
    assert sorted(got) == [1, 2]
    with pytest.raises(TimeoutError):
        env.async_step_recv(timeout=0.01)
    with pytest.raises(TimeoutError):
        env.async_step_recv(timeout=0)
    gate.set()
    assert indices(env.async_step_recv(timeout=SOON_S)) == [0]


def test_limits(pool: Callable[..., AsyncEnvPool]) -> None:
    env = pool([Walk] * 3)
    env.async_step_send(env.rand_action(env.reset()))
    for options in ({"min_get": 0}, {"min_get": 2, "max_get": 1}, {"timeout": -1.0}):
        with pytest.raises(ValueError, match="expected"):
            env.async_step_recv(**options)
    with pytest.raises(RuntimeError, match="4 results are wanted, and 3 are under way"):
        env.async_step_recv(min_get=4)
    assert len(indices(env.async_step_recv(min_get=1, max_get=1))) == 1
    env.min_get = 2
    assert len(indices(env.async_step_recv())) == 2


def test_calls_that_do_not_fit(pool: Callable[..., AsyncEnvPool]) -> None:
    gate = threading.Event()
    env = pool([partial(Held, gate), Walk])
    td = env.rand_action(env.reset())
    env.async_step_send(td[:1])
    for call in (
        lambda: env.async_step_send(td[:1]),
        lambda: env.async_reset_send(env_index=[0]),
        lambda: env.reset(),
        lambda: env.step(td),
        lambda: env.set_seed(1),
        lambda: env.async_reset_recv(),
    ):
        with pytest.raises(RuntimeError):
            call()
    gate.set()
    assert indices(env.async_step_recv(timeout=SOON_S)) == [0]
    assert counts(env.step(td)) == [2, 1]


@pytest.mark.parametrize(
    ("td", "index", "error"),
    [
        (actions(1), [5], IndexError),
        (actions(2), [0, 0], ValueError),
        (actions(2), [0], ValueError),
        (actions(1), None, ValueError),
        (actions(1), 0, ValueError),
        (None, [0], ValueError),
        (actions(0), [], ValueError),
    ],
    ids=["no such env", "twice", "rows", "nobody named", "a leading dim", "no data", "nobody"],
)
def test_addresses_that_make_no_sense(td: Any, index: Any, error: type[Exception], pool: Any) -> None:
    env = pool([Walk] * 2)
    env.reset()
    with pytest.raises(error) as caught:
        env.async_step_send(td, env_index=index)
    assert isinstance(caught.value, ShoalError)
    assert [one.steps for one in env.envs] == [0, 0]


def test_stats(pool: Callable[..., AsyncEnvPool]) -> None:
    env = pool([Walk] * 2)
    td = env.rand_action(env.reset())
    env.async_step_send(td)
    env.async_step_recv(min_get=2)
    env.async_step_send(td[:1])
    env.async_step_recv()
    stats = env.stats(reset=True)
    assert (stats["batches"], stats["items"], stats["avg_batch_size"]) == (2, 3, 1.5)
    assert (stats["batch_fill_ratio"], stats["partial_batch_fraction"]) == (0.75, 0.5)
    assert 0 <= stats["consumer_busy_fraction"] <= 1
    assert stats["avg_batch_to_action_ms"] > 0
    assert env.stats()["items"] == 0


# ---------------------------------------------------------------------- failures and the end


def test_an_error_is_raised_as_it_is_and_the_others_go_on(pool: Callable[..., AsyncEnvPool]) -> None:
    env = pool([Walk, partial(Walk, fails_at=1), Walk])
    td = env.rand_action(env.reset())
    env.async_step_send(td)
    got, errors = [], []
    while len(got) + len(errors) < 3:
        try:
            got += indices(env.async_step_recv(timeout=SOON_S))
        except ValueError as error:
            errors.append(error)
    assert sorted(got) == [0, 2]
    assert "step 1 is one too many" in str(errors[0])
    assert "In env 1" in errors[0].__notes__[0]
    env.async_reset_send(env_index=[1])
    assert indices(env.async_reset_recv()) == [1]
    assert counts(env.step(td.exclude("next"))) == [2, 1, 2]


def test_two_errors_at_once_leave_nobody_behind(pool: Callable[..., AsyncEnvPool]) -> None:
    gate = threading.Event()
    env = pool([partial(Held, gate, fails_at=1), partial(Held, gate, fails_at=1), Walk])
    td = env.rand_action(env.reset())
    env.async_step_send(td)
    gate.set()
    errors = 0
    while env._flights:
        try:
            env.async_step_recv(min_get=len(env._flights.waiting("step")), timeout=SOON_S)
        except ValueError:
            errors += 1
    assert errors
    env.async_reset_send()
    assert indices(env.async_reset_recv(min_get=3)) == [0, 1, 2]
    assert counts(env.step(td.exclude("next"))) == [1, 1, 1]


def test_an_error_in_a_call_to_all(pool: Callable[..., AsyncEnvPool]) -> None:
    env = pool([Walk, partial(Walk, fails_at=1)])
    with pytest.raises(ValueError, match="one too many"):
        env.rand_step(env.reset())
    assert counts(env.rand_step(env.reset())) == [1, 1]


def test_an_env_that_hangs_is_given_up(pool: Callable[..., AsyncEnvPool]) -> None:
    gate = threading.Event()
    env = pool([partial(Held, gate), Walk], step_timeout=0.3)
    env.async_step_send(env.rand_action(env.reset()))
    assert indices(env.async_step_recv(timeout=SOON_S)) == [1]
    with pytest.raises(TimeoutError, match="env 0"):
        env.async_step_recv(timeout=SOON_S)
    gate.set()


def test_a_closed_pool_says_so(pool: Callable[..., AsyncEnvPool]) -> None:
    env = pool([Walk] * 2)
    td = env.rand_action(env.reset())
    env.async_step_send(td)
    env.shutdown()
    env.close()
    assert env.is_closed
    for call in (lambda: env.async_step_send(td), env.async_step_recv, env.reset):
        with pytest.raises(RuntimeError, match="closed"):
            call()


def test_data_that_does_not_say_for_whom_it_is() -> None:
    with closing(AsyncEnvPool([Counter] * 3)) as pool:
        pool.reset()
        actions = TensorDict({"action": torch.zeros(2, 1, dtype=torch.int64)}, [2])
        with pytest.raises(KeyError, match="cannot be told which envs it is for"):
            pool.async_step_send(actions)
        with pytest.raises(RuntimeError, match="3 envs are named"):
            pool.async_step_send(actions, env_index=[0, 1, 2])
