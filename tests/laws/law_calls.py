"""Random calls of a pool, played on two of them: what laws about engines are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from kernel_kinds import assert_same, random_actions, rows_of

from shoal.errors import NothingInFlight, ShoalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shoal import Pool
    from shoal.batch import Batch

    AsRows = Callable[[Pool, Batch], Any]

NUM_ENVS = 4
NAMES = ("step", "step", "step", "send", "send", "recv", "recv", "reset", "async_reset")


def bounded(max_examples: int) -> Callable[[Any], Any]:
    """So many examples, the same in every run."""
    return settings(
        max_examples=max_examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


class Call(NamedTuple):
    """One call of a pool."""

    name: str
    ids: list[int] | None
    number: int
    seed: int | None
    options: dict[str, Any] | None


some_ids = st.none() | st.lists(st.sampled_from(range(NUM_ENVS)), min_size=1, max_size=NUM_ENVS, unique=True)


def traces(
    options: dict[str, st.SearchStrategy[Any]], names: Sequence[str] = NAMES, max_size: int = 20
) -> st.SearchStrategy[list[Call]]:
    """Calls one after another; resets have none or some of these options."""
    call = st.builds(
        Call,
        name=st.sampled_from(names),
        ids=some_ids,
        number=st.integers(0, 1000),
        seed=st.none() | st.integers(0, 2**70),
        options=st.none() | st.fixed_dictionaries({}, optional=options) if options else st.none(),
    )
    return st.lists(call, min_size=1, max_size=max_size)


def plainly(pool: Pool, batch: Batch) -> Any:
    """Rows as they are."""
    return rows_of(batch)


def outcome(pool: Pool, call: Call, as_rows: AsRows = plainly) -> Any:
    """What a call returns, or how it is refused."""
    count = NUM_ENVS if call.ids is None else len(call.ids)
    try:
        if "reset" in call.name:
            batch = getattr(pool, call.name)(call.seed, call.options, call.ids)
        elif call.name == "recv":
            batch = pool.recv(min_batch=1 + call.number % NUM_ENVS, max_wait=60.0) if call.number % 3 else pool.recv()
        else:
            batch = getattr(pool, call.name)(random_actions(pool.spec.action, count, call.number), call.ids)
    except ShoalError as error:
        return type(error), str(error)
    return None if batch is None else as_rows(pool, batch)


def drain(pool: Pool, as_rows: AsRows = plainly) -> Iterator[Any]:
    """Every batch that is still under way, as it is received: a view of one holds for few more calls."""
    while True:
        try:
            batch = pool.recv()
        except NothingInFlight:
            return
        yield as_rows(pool, batch)


def assert_drained_alike(one: Pool, other: Pool, as_rows: AsRows = plainly) -> None:
    """See that what is still under way in two pools is the same."""
    for got, expected in zip(drain(one, as_rows), drain(other, as_rows), strict=True):
        assert_same(got, expected, "what was under way at the end")
