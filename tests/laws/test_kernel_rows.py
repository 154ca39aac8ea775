"""A law of kernel envs: compiled and interpreted, the same calls get the same rows.

Each test opens two pools of one kind, one on the kernel engine and one on the serial engine, and hypothesis plays
random calls on both. What they return, or refuse, has to be the same to the last bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from law_oracle import Ledger

import shoal
from shoal.adapters.kernel_env import PlainKernelEnv
from shoal.errors import NothingInFlight, ShoalError

pytest.importorskip("numba")
from kernel_kinds import KINDS, MODES, Cell, Drift, Switches, assert_same, random_actions, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal import Pool
    from shoal.batch import Batch

bounded = settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
NUM_ENVS = 4
PER_ENV = [{"gain": 1.0 + i, "length": 3 + i} for i in range(NUM_ENVS)]


class Call(NamedTuple):
    """One call of a pool."""

    name: str
    ids: list[int] | None
    number: int
    seed: int | None
    options: dict[str, float] | None


some_ids = st.none() | st.lists(st.sampled_from(range(NUM_ENVS)), min_size=1, max_size=NUM_ENVS, unique=True)
traces = st.lists(
    st.builds(
        Call,
        name=st.sampled_from(["step", "step", "step", "send", "send", "recv", "recv", "reset", "async_reset"]),
        ids=some_ids,
        number=st.integers(0, 1000),
        seed=st.none() | st.integers(0, 2**70),
        options=st.none() | st.fixed_dictionaries({}, optional={"origin": st.floats(-5, 5), "spread": st.just(0.5)}),
    ),
    min_size=1,
    max_size=20,
)


def outcome(pool: Pool, call: Call, kind: type) -> Any:
    """What a call returns, or how it is refused."""
    count = NUM_ENVS if call.ids is None else len(call.ids)
    try:
        if call.name in ("reset", "async_reset"):
            batch = getattr(pool, call.name)(call.seed, call.options if kind is Drift else None, call.ids)
        elif call.name == "recv":
            batch = pool.recv(min_batch=1 + call.number % NUM_ENVS, max_wait=60.0) if call.number % 3 else pool.recv()
        else:
            batch = getattr(pool, call.name)(random_actions(pool.spec.action, count, call.number), call.ids)
    except ShoalError as error:
        return type(error), str(error)
    return None if batch is None else rows_of(batch)


def drain(pool: Pool) -> list[Any]:
    """Every row that is still under way."""
    rows = []
    while True:
        try:
            rows.append(rows_of(pool.recv()))
        except NothingInFlight:
            return rows


def assert_agree(kind: type, compiled: Pool, plain: Pool, trace: list[Call], seed: int) -> None:
    assert_same(*(rows_of(pool.reset(seed=seed)) for pool in (compiled, plain)), "the first reset")
    for number, call in enumerate(trace):
        assert_same(*(outcome(pool, call, kind) for pool in (compiled, plain)), f"{number}: {call}")
    assert_same(*(drain(pool) for pool in (compiled, plain)), "what was under way at the end")
    assert_same(*(rows_of(pool.latest()) | {"infos": []} for pool in (compiled, plain)), "the latest rows")


@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_synchronous_pool_gives_the_rows_of_interpreted_envs(
    kind: type, autoreset: str, make_pool: Callable[..., Pool]
) -> None:
    compiled, plain = (make_pool(kind, NUM_ENVS, engine=e, autoreset=autoreset) for e in ("kernel", "serial"))

    @bounded
    @given(trace=traces, seed=st.integers(0, 1000))
    def law(trace: list[Call], seed: int) -> None:
        assert_agree(kind, compiled, plain, trace, seed)
        assert compiled.stats().steps == plain.stats().steps
        assert compiled.stats().resets == plain.stats().resets

    law()


@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_an_asynchronous_pool_gives_every_env_the_rows_it_has_interpreted(
    batch_size: int, autoreset: str, make_pool: Callable[..., Pool]
) -> None:
    """Which rows come together is the pool's choice, so each env is compared by itself."""
    pool = make_pool(Drift, NUM_ENVS, engine="kernel", autoreset=autoreset, batch_size=batch_size, env_kwargs=PER_ENV)

    @bounded
    @given(trace=traces, seed=st.integers(0, 1000))
    def law(trace: list[Call], seed: int) -> None:
        pool.set_attr("lap", 0)
        ledger = Ledger([PlainKernelEnv(Drift(**own)) for own in PER_ENV], autoreset)

        def receive(batch: Batch, count: int) -> None:
            assert len(batch) == count
            batch.infos, batch.fields = list(enumerate(rows_of(batch)["infos"])), {}
            ledger.receive(batch)

        for call in (Call("async_reset", None, 0, seed, None), *trace):
            ids = list(range(NUM_ENVS)) if call.ids is None else call.ids
            if call.name == "recv":
                if ledger.busy:
                    receive(pool.recv(), min(batch_size, len(ledger.busy)))
            elif "reset" in call.name:
                pool.async_reset(call.seed, env_id=call.ids)
                ledger.reset(ids, [None if call.seed is None else call.seed + i for i in ids])
            elif able := ledger.steppable(ids):
                actions = random_actions(pool.spec.action, len(able), call.number)
                pool.send(actions, None if able == ids and call.ids is None else able)
                ledger.send(able, list(actions))
        while ledger.busy:
            receive(pool.recv(), min(batch_size, len(ledger.busy)))
        with pytest.raises(NothingInFlight):
            pool.recv()

    law()


@pytest.mark.parametrize("autoreset", MODES)
def test_constants_of_each_env_and_a_time_limit_rule_as_they_do_interpreted(
    autoreset: str, make_pool: Callable[..., Pool]
) -> None:
    options: dict[str, Any] = {"autoreset": autoreset, "env_kwargs": PER_ENV, "max_episode_steps": 4, "seed": 9}
    compiled, plain = (make_pool(Drift, NUM_ENVS, engine=engine, **options) for engine in ("kernel", "serial"))

    @bounded
    @given(trace=traces, seed=st.integers(0, 1000))
    def law(trace: list[Call], seed: int) -> None:
        assert_agree(Drift, compiled, plain, trace, seed)
        assert compiled.get_attr("gain") == plain.get_attr("gain") == (1.0, 2.0, 3.0, 4.0)

    law()


@pytest.mark.parametrize("kind", [Drift, Switches], ids=lambda kind: kind.__name__)
def test_views_keep_their_values_for_one_further_call(kind: type, make_pool: Callable[..., Pool]) -> None:
    compiled, plain = (make_pool(kind, NUM_ENVS, engine=e, copy=e == "serial") for e in ("kernel", "serial"))

    @bounded
    @given(trace=traces, seed=st.integers(0, 1000))
    def law(trace: list[Call], seed: int) -> None:
        assert_same(*(rows_of(pool.reset(seed=seed)) for pool in (compiled, plain)))
        held: list[Any] = []
        for call in trace:
            got, expected = (outcome(pool, call, kind) for pool in (compiled, plain))
            assert_same(got, expected)
            for view, then in held:
                np.testing.assert_array_equal(view, then)
            held = [(got["obs"], expected["obs"])] if isinstance(got, dict) else []
        assert_same(*(drain(pool) for pool in (compiled, plain)))

    law()


@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_gymnasiums_face_returns_the_same_dicts(kind: type, autoreset: str) -> None:
    """Key by key, and dtype by dtype."""
    engines = ("kernel", "serial")
    compiled, plain = (shoal.make_vec(kind, NUM_ENVS, engine=e, autoreset=autoreset) for e in engines)
    with compiled, plain:
        assert_same(compiled.reset(seed=3), plain.reset(seed=3), "reset")
        for turn in range(30):
            actions = random_actions(compiled.pool.spec.action, NUM_ENVS, turn)
            got, expected = compiled.step(actions), plain.step(actions)
            assert_same(got, expected, f"step {turn}")
            if autoreset == "disabled" and (got[2] | got[3]).any():
                assert_same(compiled.reset(), plain.reset(), f"reset after step {turn}")


def test_a_masked_reset_reports_the_infos_of_the_envs_that_it_has_reset() -> None:
    compiled, plain = (shoal.make_vec(Cell, NUM_ENVS, engine=engine) for engine in ("kernel", "serial"))
    with compiled, plain:
        for envs in (compiled, plain):
            envs.reset(seed=3)
            envs.step(np.ones((NUM_ENVS, 2), np.float32))
        mask = np.array([True, False, False, True])
        assert_same(*(envs.reset(options={"reset_mask": mask}) for envs in (compiled, plain)))
