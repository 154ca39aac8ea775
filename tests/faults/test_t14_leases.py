"""T14: what a pool has returned does not change while the lease lasts, and rewards and flags are the caller's own."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium.vector.utils import batch_space

import shoal
from shoal.testing import DictTupleEnv, WrappedBufferEnv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NUM_ENVS = 3
NUM_STEPS = 25
PRIVATE = ("reward", "terminated", "truncated", "env_id", "elapsed_step", "first")
AUTORESETS = ["next_step", "same_step"]
# An env that writes into one array for ever, one of many leaves, and a compiled one; episodes end again and again.
ROWS = partial(WrappedBufferEnv, infos=True)
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "serial": (ROWS, {"engine": "serial"}),
    "thread": (ROWS, {"engine": "thread", "num_workers": 2}),
    "process": (ROWS, {"engine": "process", "num_workers": 2}),
    "nested serial": (DictTupleEnv, {"engine": "serial"}),
    "nested process": (DictTupleEnv, {"engine": "process", "num_workers": 2}),
    "kernel": ("Catch-v0", {"engine": "kernel"}),
}


SLOW = {"nested process"}


@pytest.fixture(params=[pytest.param(kind, marks=pytest.mark.slow) if kind in SLOW else kind for kind in KINDS])
def make(request: pytest.FixtureRequest, make_pool: Callable[..., shoal.Pool]) -> Callable[..., shoal.Pool]:
    """Pools of three envs, on every engine."""
    env, options = KINDS[request.param]
    if options["engine"] == "kernel":
        pytest.importorskip("numba")
    return lambda **more: make_pool(env, NUM_ENVS, **options, **more)


class Player:
    """Steps a pool with random actions."""

    def __init__(self, pool: shoal.Pool) -> None:
        self.pool = pool
        self._space = batch_space(pool.spec.action.space, NUM_ENVS)
        self._space.seed(1)

    def action(self) -> Any:
        return self._space.sample()

    def batches(self, num_steps: int = NUM_STEPS) -> Iterator[shoal.Batch]:
        yield self.pool.reset(seed=1)
        for _ in range(num_steps):
            yield self.pool.step(self.action())


def arrays_in(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every array of a nested value, by where it is."""
    if isinstance(value, np.ndarray):
        yield path, value
    elif hasattr(value, "items"):
        for key, item in value.items():
            yield from arrays_in(item, f"{path}.{key}")
    elif isinstance(value, (tuple, list)):
        for place, item in enumerate(value):
            yield from arrays_in(item, f"{path}.{place}")


def arrays_of(batch: shoal.Batch) -> dict[str, Any]:
    return {path: array for field in fields(batch) for path, array in arrays_in(getattr(batch, field.name), field.name)}


class Held:
    """A batch, and what it was when it came."""

    def __init__(self, batch: shoal.Batch) -> None:
        self.batch = batch
        self._was = {path: array.copy() for path, array in arrays_of(batch).items()}
        self._infos = repr(batch.infos)

    def assert_unchanged(self) -> None:
        now = arrays_of(self.batch)
        assert now.keys() == self._was.keys()
        for path, array in now.items():
            np.testing.assert_array_equal(array, self._was[path], err_msg=path)
        assert repr(self.batch.infos) == self._infos


@pytest.mark.parametrize("autoreset", AUTORESETS)
def test_t14_copies_never_change(make: Callable[..., shoal.Pool], autoreset: str) -> None:
    pool = make(autoreset=autoreset)
    held = [Held(batch) for batch in Player(pool).batches()]
    pool.close()
    for each in held:
        each.assert_unchanged()


@pytest.mark.parametrize("autoreset", AUTORESETS)
def test_t14_views_last_for_one_further_call_and_through_the_send_of_the_next(
    make: Callable[..., shoal.Pool], autoreset: str
) -> None:
    pool = make(autoreset=autoreset, copy=False)
    player = Player(pool)
    older = Held(pool.reset(seed=1))
    for _ in range(NUM_STEPS):
        newer = Held(pool.step(player.action()))
        older.assert_unchanged()
        # The envs run from here on, and write where neither of the two batches looks.
        pool.send(player.action())
        older.assert_unchanged()
        batch = pool.recv(timeout=10)
        newer.assert_unchanged()
        older = Held(batch)


def test_t14_views_last_through_a_reset_and_through_steps_of_some_envs(make: Callable[..., shoal.Pool]) -> None:
    pool = make(copy=False)
    player = Player(pool)
    pool.reset(seed=1)
    for number in range(NUM_STEPS):
        held = Held(pool.step(player.action()))
        if number % 2:
            pool.reset(env_id=[number % NUM_ENVS])
        else:
            pool.step(first_row(player.action()), env_id=[number % NUM_ENVS])
        held.assert_unchanged()


def first_row(actions: Any) -> Any:
    """The part of a batch of actions that is for one env."""
    if isinstance(actions, dict):
        return {key: first_row(value) for key, value in actions.items()}
    return tuple(first_row(value) for value in actions) if isinstance(actions, tuple) else actions[:1]


def test_t14_views_outlive_their_pool(make: Callable[..., shoal.Pool]) -> None:
    pool = make(copy=False)
    held = [Held(batch) for batch in Player(pool).batches(1)]
    pool.close()
    for each in held:
        each.assert_unchanged()


@pytest.mark.parametrize("copy", [True, False])
def test_t14_rewards_and_flags_are_private_and_writable(make: Callable[..., shoal.Pool], copy: bool) -> None:
    def play(*, scribble: bool) -> list[dict[str, Any]]:
        seen = []
        with make(copy=copy, seed=1) as pool:
            for batch in Player(pool).batches():
                seen.append({name: getattr(batch, name).copy() for name in PRIVATE})
                if scribble:
                    for name in PRIVATE:
                        array = getattr(batch, name)
                        array[:] = ~array if array.dtype == bool else -7
        return seen

    for ours, theirs in zip(play(scribble=True), play(scribble=False), strict=True):
        for name in PRIVATE:
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


@pytest.mark.parametrize("copy", [True, False])
def test_t14_no_two_batches_share_rewards_or_flags(make: Callable[..., shoal.Pool], copy: bool) -> None:
    batches = list(Player(make(copy=copy)).batches(6))
    arrays = [getattr(batch, name) for batch in batches for name in PRIVATE]
    for place, array in enumerate(arrays):
        assert array.flags.writeable
        assert not any(np.shares_memory(array, other) for other in arrays[:place])


# ---------------------------------------------------------------------- as a learner uses it

GAMMA = 0.5


def collect(envs: Any, own: Callable[[Any], Any]) -> dict[str, list[Any]]:
    """A rollout in the way of Stable-Baselines3's PPO.

    It writes the value of a cut-off episode's last state into the rewards it was given, and stores the observation
    that it acted on only after the step that followed. ``own`` is applied to whatever the envs return.
    """
    rollout: dict[str, list[Any]] = {"obs": [], "rewards": [], "starts": []}
    last_obs, _ = own(envs.reset(seed=1))
    starts = np.ones(NUM_ENVS, bool)
    for number in range(NUM_STEPS):
        actions = (np.arange(NUM_ENVS) + number) % 5
        obs, rewards, terminated, truncated, infos = own(envs.step(actions))
        for row in np.flatnonzero(truncated & ~terminated):
            rewards[row] += GAMMA * infos["final_obs"][row].sum()
        rollout["obs"].append(np.array(last_obs))
        rollout["rewards"].append(np.array(rewards))
        rollout["starts"].append(np.array(starts))
        last_obs, starts = obs, terminated | truncated
    return rollout


@pytest.mark.parametrize("copy", [True, False], ids=["copies", "views"])
@pytest.mark.parametrize("engine", ["serial", "thread", "process"])
def test_t14_a_learner_that_reads_late_and_writes_in_place_gets_what_one_with_copies_gets(
    engine: str, copy: bool
) -> None:
    def learn(own: Callable[[Any], Any], *, copy: bool) -> dict[str, list[Any]]:
        with shoal.make_vec(ROWS, NUM_ENVS, engine=engine, copy=copy, autoreset="same_step") as envs:
            return collect(envs, own)

    late, owner = learn(lambda result: result, copy=copy), learn(deepcopy, copy=True)
    assert sum(starts.sum() for starts in owner["starts"]) > NUM_ENVS  # some episodes have ended
    for name, arrays in owner.items():
        np.testing.assert_array_equal(late[name], arrays, err_msg=name)
    # Row t is the observation before step t: the total of steps in it is t.
    assert [obs[:, 4].tolist() for obs in late["obs"]] == [[t] * NUM_ENVS for t in range(NUM_STEPS)]
