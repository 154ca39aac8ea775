"""What tests of EnvPool's face share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import shoal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(params=["gymnasium", "gym", "dm"])
def env_type(request: pytest.FixtureRequest) -> str:
    """EnvPool's dialects in turn."""
    return str(request.param)


@pytest.fixture
def open_pool() -> Iterator[Callable[..., Any]]:
    """``shoal.make``, by default on the serial engine, with every pool closed in the end."""
    made: list[Any] = []

    def open_one(task_id: Any, env_type: str, **config: Any) -> Any:
        made.append(shoal.make(task_id, env_type, **{"engine": "serial", "num_envs": 3, **config}))
        return made[-1]

    yield open_one
    for pool in made:
        pool.close()
    made.clear()
