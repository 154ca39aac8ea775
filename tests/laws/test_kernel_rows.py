"""A law of kernel envs: compiled and interpreted, the same calls get the same rows.

Each test opens two pools of one kind, one on the kernel engine and one on the serial engine, and hypothesis plays
random calls on both. What they return, or refuse, has to be the same to the last bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from law_oracle import Ledger

import shoal
from shoal.adapters.kernel_env import PlainKernelEnv
from shoal.errors import NothingInFlight

pytest.importorskip("numba")
from kernel_kinds import KINDS, MODES, Cell, Drift, Switches, assert_same, random_actions, rows_of
from law_calls import NUM_ENVS, Call, assert_drained_alike, bounded, outcome, traces

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal import Pool
    from shoal.batch import Batch

PER_ENV = [{"gain": 1.0 + i, "length": 3 + i} for i in range(NUM_ENVS)]


some_traces = traces({"origin": st.floats(-5, 5), "spread": st.just(0.5)})


def outcome_of(pool: Pool, call: Call, kind: type) -> Any:
    """What a call returns, or how it is refused; only one kind has options."""
    return outcome(pool, call if kind is Drift else call._replace(options=None))


def assert_agree(kind: type, compiled: Pool, plain: Pool, trace: list[Call], seed: int) -> None:
    assert_same(*(rows_of(pool.reset(seed=seed)) for pool in (compiled, plain)), "the first reset")
    for number, call in enumerate(trace):
        assert_same(*(outcome_of(pool, call, kind) for pool in (compiled, plain)), f"{number}: {call}")
    assert_drained_alike(compiled, plain)
    assert_same(*(rows_of(pool.latest()) | {"infos": []} for pool in (compiled, plain)), "the latest rows")


@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_synchronous_pool_gives_the_rows_of_interpreted_envs(
    kind: type, autoreset: str, make_pool: Callable[..., Pool]
) -> None:
    compiled, plain = (make_pool(kind, NUM_ENVS, engine=e, autoreset=autoreset) for e in ("kernel", "serial"))

    @bounded(10)
    @given(trace=some_traces, seed=st.integers(0, 1000))
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

    @bounded(10)
    @given(trace=some_traces, seed=st.integers(0, 1000))
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

    @bounded(10)
    @given(trace=some_traces, seed=st.integers(0, 1000))
    def law(trace: list[Call], seed: int) -> None:
        assert_agree(Drift, compiled, plain, trace, seed)
        assert compiled.get_attr("gain") == plain.get_attr("gain") == (1.0, 2.0, 3.0, 4.0)

    law()


@pytest.mark.parametrize("kind", [Drift, Switches], ids=lambda kind: kind.__name__)
def test_views_keep_their_values_for_one_further_call(kind: type, make_pool: Callable[..., Pool]) -> None:
    compiled, plain = (make_pool(kind, NUM_ENVS, engine=e, copy=e == "serial") for e in ("kernel", "serial"))

    @bounded(10)
    @given(trace=some_traces, seed=st.integers(0, 1000))
    def law(trace: list[Call], seed: int) -> None:
        assert_same(*(rows_of(pool.reset(seed=seed)) for pool in (compiled, plain)))
        held: list[Any] = []
        for call in trace:
            got, expected = (outcome_of(pool, call, kind) for pool in (compiled, plain))
            assert_same(got, expected)
            for view, then in held:
                np.testing.assert_array_equal(view, then)
            held = [(got["obs"], expected["obs"])] if isinstance(got, dict) else []
        assert_drained_alike(compiled, plain)

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
