"""A law of native envs: all in one simulator, or each in one of its own, the same calls get the same rows.

The serial engine runs each env in a slot, around a simulator of one env; what the native engine returns, or refuses,
has to be the same to the last bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_kinds import MODES, assert_same, random_actions, rows_of
from law_calls import NUM_ENVS, Call, assert_drained_alike, bounded, outcome, traces
from law_oracle import Ledger
from native_kinds import Drift, Pieces, Steady

import shoal
from shoal.adapters.native_env import PlainNativeEnv
from shoal.errors import NothingInFlight

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal import Pool
    from shoal.batch import Batch

some_traces = traces({"origin": st.floats(-5, 5)})


def comparable(pool: Pool, batch: Batch) -> Any:
    """Rows in one form: columns of infos, where an engine has them, as the infos of rows."""
    skipped = {field.name for field in pool.spec.info if not field.at_reset}
    rows = rows_of(batch)
    if batch.fields:
        rows["infos"] = [
            {name: value for name, value in info.items() if not (batch.first[row] and name in skipped)}
            for row, info in enumerate(rows["infos"])
        ]
    return rows


@pytest.mark.parametrize("limit", [None, 4])
@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("kind", [Drift, Pieces, Steady], ids=lambda kind: kind.__name__)
def test_a_synchronous_pool_gives_the_rows_of_single_envs(
    kind: type, autoreset: str, limit: int | None, make_pool: Callable[..., Pool]
) -> None:
    together, alone = (
        make_pool(kind, NUM_ENVS, engine=e, autoreset=autoreset, max_episode_steps=limit) for e in ("native", "serial")
    )

    @bounded(8)
    @given(trace=some_traces, seed=st.integers(0, 1000))
    def law(trace: list[Call], seed: int) -> None:
        assert_same(*(comparable(pool, pool.restart(seed=seed)) for pool in (together, alone)), "the first reset")
        for number, call in enumerate(trace):
            assert_same(*(outcome(pool, call, comparable) for pool in (together, alone)), f"{number}: {call}")
        assert_drained_alike(together, alone, comparable)
        assert_same(*(rows_of(pool.latest()) | {"infos": []} for pool in (together, alone)), "the latest rows")
        for field in ("steps", "resets", "episodes"):
            assert getattr(together.stats(), field) == getattr(alone.stats(), field), field

    law()


@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_an_asynchronous_pool_gives_every_env_the_rows_it_has_alone(
    batch_size: int, autoreset: str, make_pool: Callable[..., Pool]
) -> None:
    """Which rows come together is the pool's choice, so each env is compared by itself."""
    pool = make_pool(Drift, NUM_ENVS, engine="native", autoreset=autoreset, batch_size=batch_size)

    @bounded(8)
    @given(trace=some_traces, seed=st.integers(0, 1000))
    def law(trace: list[Call], seed: int) -> None:
        pool.restart(seed=seed)
        ledger = Ledger([PlainNativeEnv(Drift()) for _ in range(NUM_ENVS)], autoreset)
        for account in ledger.accounts:
            account.tape.env.reset()  # as many laps as the restart has made

        def receive(batch: Batch, count: int) -> None:
            assert len(batch) == count
            batch.infos, batch.fields = list(enumerate(comparable(pool, batch)["infos"])), {}
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


@pytest.mark.parametrize("kind", [Drift, Pieces, Steady], ids=lambda kind: kind.__name__)
def test_views_keep_their_values_for_one_further_call(kind: type, make_pool: Callable[..., Pool]) -> None:
    together, alone = (
        make_pool(kind, NUM_ENVS, engine=e, copy=e == "serial", max_episode_steps=5) for e in ("native", "serial")
    )

    @bounded(8)
    @given(trace=some_traces, seed=st.integers(0, 1000))
    def law(trace: list[Call], seed: int) -> None:
        assert_same(*(comparable(pool, pool.restart(seed=seed)) for pool in (together, alone)))
        held: list[Any] = []
        for call in trace:
            got, expected = (outcome(pool, call, comparable) for pool in (together, alone))
            assert_same(got, expected)
            for view, then in held:
                assert_same(view, then)
            held = [(got["obs"], expected["obs"])] if isinstance(got, dict) else []
        assert_drained_alike(together, alone, comparable)

    law()


@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("kind", [Drift, Pieces], ids=lambda kind: kind.__name__)
def test_gymnasiums_face_returns_the_same_dicts(kind: type, autoreset: str) -> None:
    """Key by key, mask by mask."""
    together, alone = (shoal.make_vec(kind, NUM_ENVS, engine=e, autoreset=autoreset) for e in ("native", "serial"))
    with together, alone:
        assert_same(together.reset(seed=3), alone.reset(seed=3), "reset")
        for turn in range(30):
            actions = random_actions(together.pool.spec.action, NUM_ENVS, turn)
            got, expected = together.step(actions), alone.step(actions)
            assert_same(got, expected, f"step {turn}")
            if autoreset == "disabled" and (over := got[2] | got[3]).any():
                mask = {"reset_mask": np.array(over)}
                assert_same(together.reset(options=mask), alone.reset(options=mask), f"reset after step {turn}")
