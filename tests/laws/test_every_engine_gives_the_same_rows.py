"""Laws over all engines: what an env answers depends on its seed and its actions, and on nothing else.

Each test opens one pool per engine and shape, and hypothesis plays many random scripts, seeds and orders of calls on
it. The oracle (`law_oracle`) plays the same commands on bare envs, one at a time.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from law_oracle import Ledger, assert_same, read_answer, stack_actions

import shoal
from shoal import Pool, testing
from shoal.errors import NothingInFlight, RecvTimeout
from shoal.testing import (
    CountingEnv,
    CustomSpaceEnv,
    DictTupleEnv,
    GraphEnv,
    ScriptedEnv,
    SequenceEnv,
    SleepyEnv,
    TextEnv,
    WrappedBufferEnv,
    read_row,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

leak_guard = pytest.fixture(autouse=True)(testing.leak_guard)
bounded = settings(
    deadline=None,
    derandomize=True,
    database=None,
    # Explaining a failure would play hundreds of further examples, each with waits.
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
MODES = ("next_step", "same_step", "disabled")
ALIVE_S = 30.0
"""A wait this long means that something is lost; no row takes that long here."""


class Shape(NamedTuple):
    """Where the envs of a pool run, and how many there are."""

    engine: str
    num_envs: int
    num_workers: int | None = None
    threads_per_worker: int = 1
    inline: bool = False

    def __str__(self) -> str:
        workers = f"-{self.num_workers}w" if self.num_workers else ""
        threads = f"-{self.threads_per_worker}t" * (self.threads_per_worker > 1)
        return f"{self.engine}-{self.num_envs}{workers}{threads}{'-inline' * self.inline}"


SHAPES = [
    Shape("serial", 3),
    Shape("thread", 4),
    Shape("thread", 5, 2),
    Shape("process", 1),
    Shape("process", 4, 2),
    Shape("process", 5, 1, 3),
    Shape("process", 5, 2, 2),
    Shape("process", 4, 2, inline=True),
    Shape("process", 5, 3, 2, inline=True),
]
SMALL_SHAPES = [Shape("serial", 3), Shape("thread", 4), Shape("process", 3, 2), Shape("process", 3, 2, inline=True)]
QUICK_SHAPES = {Shape("serial", 3), Shape("thread", 4), Shape("process", 4, 2), Shape("process", 4, 2, inline=True)}


def in_stages(shapes: list[Shape], *more: Any) -> list[Any]:
    """Shapes as parameters; those that add little to the others wait for the second stage."""
    return [
        pytest.param(shape, *more, marks=[] if shape in QUICK_SHAPES else [pytest.mark.slow], id=str(shape))
        for shape in shapes
    ]


def open_pool(env: Any, shape: Shape, **settings: Any) -> Pool:
    place = {} if shape.num_workers is None else {"num_workers": shape.num_workers}
    if shape.engine == "process":
        place |= {"threads_per_worker": shape.threads_per_worker, "inline": shape.inline}
    return shoal.make_pool(env, shape.num_envs, engine=shape.engine, **place, **settings)


# ---------------------------------------------------------------------- what hypothesis draws

plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
script_infos = st.just({}) | st.dictionaries(st.text(min_size=1, max_size=4), plain_values, max_size=2)
script_steps = st.tuples(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([False, False, False, True]),
    script_infos,
)
scripts = st.lists(script_steps, min_size=1, max_size=6)


class Call(NamedTuple):
    """One call of the pool; ids and actions are cut down to what fits when it is played."""

    name: str
    order: list[int]
    how_many: int
    is_whole: bool
    action: int
    seed: int | None
    patience: str


def calls(num_envs: int) -> st.SearchStrategy[list[Call]]:
    call = st.builds(
        Call,
        name=st.sampled_from(["send", "send", "send", "recv", "recv", "step", "reset", "async_reset"]),
        order=st.permutations(range(num_envs)),
        how_many=st.integers(1, num_envs),
        is_whole=st.booleans(),
        action=st.integers(0, 4),
        seed=st.none() | st.integers(0, 2**31),
        patience=st.sampled_from(["whole", "whole", "min_batch", "max_wait", "hurry"]),
    )
    return st.lists(call, min_size=1, max_size=15)


# ---------------------------------------------------------------------- playing calls on a pool and on the ledger


class Player:
    """Plays calls on a pool and on a ledger, and lets the ledger check what comes back."""

    def __init__(self, pool: Pool, ledger: Ledger, first_seed: int) -> None:
        self.pool = pool
        self.ledger = ledger
        self.held: list[tuple[Any, Any]] = []
        self.newest: list[tuple[Any, Any]] = []
        self.reset(list(range(pool.num_envs)), first_seed, None)

    def play(self, call: Call) -> None:
        """Make one call, or the nearest one that is allowed now."""
        known = len(self.held)
        self._play(call)
        assert_unchanged(self.newest)  # copy or view, it lasts for at least one further call
        self.newest = self.held[known:]

    def _play(self, call: Call) -> None:
        # A whole pool is mostly addressed without ids, and has quicker ways for that.
        ids = list(range(self.pool.num_envs)) if call.is_whole else call.order[: call.how_many]
        named = None if call.is_whole else ids
        if call.name == "recv" or (call.name == "step" and self.ledger.busy):
            self.recv(call)
        elif call.name == "reset":
            self.reset(ids, call.seed, named)
        elif call.name == "async_reset":
            self.pool.async_reset(call.seed, env_id=named)
            self.ledger.reset(ids, self._seeds(ids, call.seed))
        elif able := self.ledger.steppable(ids):
            actions = [(call.action + i) % 5 for i in able]
            named = named if able == ids else able
            if call.name == "send":
                self.pool.send(actions, named)
                self.ledger.send(able, actions)
            else:
                batch = self.pool.step(actions, named)
                self.ledger.send(able, actions)
                self._check_own(batch, able)

    def reset(self, ids: list[int], seed: int | None, named: list[int] | None) -> None:
        batch = self.pool.reset(seed, env_id=named)
        self.ledger.reset(ids, self._seeds(ids, seed))
        self._check_own(batch, ids)

    def recv(self, call: Call) -> None:
        if not self.ledger.busy:
            with pytest.raises(NothingInFlight):
                self.pool.recv()
            return
        full = min(self.pool.batch_size, len(self.ledger.busy))
        if not self.pool.is_async:
            full = len(self.ledger.groups[0])
        kwargs, least = {
            "whole": ({"timeout": ALIVE_S}, full),
            "min_batch": ({"min_batch": call.how_many}, min(full, call.how_many)),
            "max_wait": ({"min_batch": call.how_many, "max_wait": 1e-4}, min(full, call.how_many)),
            "hurry": ({"timeout": 1e-4}, full),
        }[call.patience]
        with suppress(RecvTimeout):
            self._check(self.pool.recv(**kwargs), least, full)

    def finish(self) -> None:
        """Receive all that is under way; then there is nothing more."""
        while self.ledger.busy:
            self._check(self.pool.recv(timeout=ALIVE_S), 1, self.pool.num_envs)
        with pytest.raises(NothingInFlight):
            self.pool.recv()

    def _check(self, batch: Any, least: int, most: int) -> None:
        self.held.append((batch.obs, batch.obs.copy()))
        assert least <= len(batch) <= most
        if self.pool.is_async:
            self.ledger.receive(batch)
        else:
            self.ledger.receive_group(batch, least)

    def _check_own(self, batch: Any, ids: list[int]) -> None:
        """A synchronous call returns exactly its own rows, whatever else is under way."""
        self.held.append((batch.obs, batch.obs.copy()))
        assert batch.env_id.tolist() == ids
        assert self.ledger.groups.pop() == ids
        self.ledger.receive(batch)

    @staticmethod
    def _seeds(ids: list[int], seed: int | None) -> list[int | None]:
        return [None if seed is None else seed + i for i in ids]


def assert_unchanged(held: list[tuple[Any, Any]]) -> None:
    for now, then in held:
        np.testing.assert_array_equal(now, then)


@contextmanager
def rewired(pool: Pool, batch_size: int) -> Iterator[Pool]:
    """A fresh pool on the engine of another, so that examples share their workers; leaves the engine idle."""
    fresh = Pool(pool.engine, autoreset=pool.autoreset, batch_size=batch_size, copy=True)
    try:
        yield fresh
    finally:
        fresh.reset()


# ---------------------------------------------------------------------- the laws


@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("shape", in_stages(SHAPES))
def test_rows_follow_from_script_seed_and_actions_alone(shape: Shape, autoreset: str) -> None:
    some_script = [(0.0, False, False, {})]
    num_envs = shape.num_envs
    # The engine of an asynchronous pool hands over rows one by one, and serves every batch size.
    with open_pool(
        lambda: ScriptedEnv(some_script), shape, autoreset=autoreset, batch_size=max(1, num_envs - 1)
    ) as pool:

        @settings(bounded, max_examples=20)
        @given(
            env_scripts=st.lists(scripts, min_size=num_envs, max_size=num_envs),
            trace=calls(num_envs),
            batch_size=st.integers(1, num_envs),
            seed=st.integers(0, 1000),
        )
        def law(env_scripts: list[Any], trace: list[Call], batch_size: int, seed: int) -> None:
            pool.set_attr("script", env_scripts)
            with rewired(pool, batch_size) as fresh:
                player = Player(fresh, Ledger([ScriptedEnv(s) for s in env_scripts], autoreset), seed)
                for call in trace:
                    player.play(call)
                player.finish()
                assert_unchanged(player.held)

        law()


@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("copy", [True, False], ids=["copies", "views"])
@pytest.mark.parametrize("shape", in_stages(SHAPES))
def test_a_synchronous_pool_answers_in_the_order_asked(shape: Shape, autoreset: str, copy: bool) -> None:
    limit = 4
    with open_pool(
        lambda: CountingEnv(infos=True), shape, autoreset=autoreset, copy=copy, max_episode_steps=limit
    ) as pool:

        @settings(bounded, max_examples=20)
        @given(trace=calls(shape.num_envs), seed=st.integers(0, 1000))
        def law(trace: list[Call], seed: int) -> None:
            pool.reset()
            envs = [CountingEnv(infos=True) for _ in range(shape.num_envs)]
            player = Player(pool, Ledger(envs, autoreset, limit), seed)
            for call in trace:
                player.play(call)
            player.finish()

        law()


@pytest.mark.parametrize("env_class", [SleepyEnv, WrappedBufferEnv])
@pytest.mark.parametrize("shape", in_stages(SHAPES[1:]))
def test_no_row_is_torn_lost_or_repeated_when_envs_finish_in_any_order(shape: Shape, env_class: type) -> None:
    kwargs: dict[str, Any] = {"obs_shape": (64, 64)} | ({"mean_s": 2e-4} if env_class is SleepyEnv else {})
    per_env = [kwargs | {"tag": 10 + i} for i in range(shape.num_envs)]
    batch_size = max(1, shape.num_envs // 2)
    with open_pool(env_class, shape, env_kwargs=per_env, batch_size=batch_size) as pool:
        pool.async_reset(seed=3)
        received: list[list[tuple[int, int]]] = [[] for _ in range(shape.num_envs)]
        for _ in range(60):
            batch = pool.recv(timeout=ALIVE_S)
            for env_id, obs in zip(batch.env_id.tolist(), batch.obs, strict=True):
                row = read_row(obs)
                assert row.tag == 10 + env_id
                received[env_id].append((row.total + row.episode, int(row.action)))
            pool.send((batch.env_id + batch.elapsed_step) % 5, batch.env_id)
        for rows in received:
            assert [serial for serial, _ in rows] == list(range(len(rows)))
        assert sum(map(len, received)) == 60 * batch_size


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.parametrize("env_class", [DictTupleEnv, TextEnv, SequenceEnv, GraphEnv, CustomSpaceEnv])
@pytest.mark.parametrize("shape", SMALL_SHAPES, ids=str)
def test_structured_observations_arrive_as_the_env_gave_them(shape: Shape, env_class: type, autoreset: str) -> None:
    envs = [env_class(episode_length=3) for _ in range(shape.num_envs)]
    ledger = Ledger(envs, autoreset)
    ids = list(range(shape.num_envs))
    with open_pool(env_class, shape, env_kwargs={"episode_length": 3}, autoreset=autoreset) as pool:
        ledger.reset(ids, [5 + i for i in ids])
        ledger.receive(pool.reset(seed=5))
        space = envs[0].action_space
        space.seed(1)
        for turn in range(9):
            part = ids[turn % 2 :]
            actions = [space.sample() for _ in part]
            ledger.send(part, actions)
            ledger.receive(pool.step(stack_actions(actions), part))


@pytest.mark.parametrize("shape", in_stages(SHAPES))
def test_latest_is_the_last_row_of_every_env(shape: Shape) -> None:
    with open_pool(CountingEnv, shape) as pool:
        last = {}
        batches = [pool.reset(seed=1), *(pool.step([1], [env_id]) for env_id in (*range(shape.num_envs), 0))]
        for batch in batches:
            last.update({i: read_answer(batch, row) for row, i in enumerate(batch.env_id.tolist())})
        latest = pool.latest()
        for i in range(shape.num_envs):
            assert_same(read_answer(latest, i), last[i], f"env {i}")


@pytest.mark.parametrize("shape", in_stages(SHAPES[1:]))
def test_large_infos_cross_without_harm(shape: Shape) -> None:
    """More than a socket buffer holds, in both directions at once: requests with seeds meet infos of a megabyte."""
    big = [
        (1.0, False, False, {"picture": np.arange(2**17, dtype=np.float64)}),
        (2.0, True, False, {"text": "é" * 2**19}),
    ]
    ids = list(range(shape.num_envs))
    with open_pool(lambda: ScriptedEnv(big), shape, batch_size=1 if shape.num_envs > 1 else None) as pool:
        ledger = Ledger([ScriptedEnv(big) for _ in ids], "next_step")
        player = Player(pool, ledger, 7)
        for turn in range(4):
            pool.send([0] * len(ids), ids)
            ledger.send(ids, [0] * len(ids))
            some = ids[turn % 2 :: 2] or ids
            pool.async_reset(seed=turn, env_id=some)
            ledger.reset(some, [turn + i for i in some])
            player.finish()
