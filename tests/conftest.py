"""What every test gets: a check that it leaves nothing behind, and pools that are closed for it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

import shoal
from shoal import testing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

leak_guard = pytest.fixture(autouse=True)(testing.leak_guard)


@pytest.fixture(params=["serial", "thread", "process"])
def engine(request: pytest.FixtureRequest) -> str:
    """The name of every engine in turn."""
    return str(request.param)


@pytest.fixture
def make_pool() -> Iterator[Callable[..., shoal.Pool]]:
    """``shoal.make_pool``, with every pool closed when the test ends, hung threads included."""
    with contextlib.ExitStack() as pools:
        # Last in, first out: hangs are released before the pools that wait for them are closed.
        pools.callback(testing.release_hangs)

        def make(*args: Any, **options: Any) -> shoal.Pool:
            pool = pools.enter_context(shoal.make_pool(*args, **options))
            pools.callback(testing.release_hangs)
            return pool

        yield make
