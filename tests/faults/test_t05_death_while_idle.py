"""T05: a worker that died while nothing was asked of it is explained by the next call, whichever that is."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import TYPE_CHECKING

import psutil
import pytest
from trainer_processes import lives, wait_until

from shoal import errors
from shoal.testing import CountingEnv

if TYPE_CHECKING:
    from collections.abc import Callable

    import shoal

CALLS = {
    "reset with a seed": lambda pool: pool.reset(seed=1),
    "reset": lambda pool: pool.reset(),
    "step": lambda pool: pool.step([0, 0]),
    "get_attr": lambda pool: pool.get_attr("tag"),
    "set_attr": lambda pool: pool.set_attr("tag", 5),
}


@pytest.mark.parametrize("call", CALLS)
def test_t05_a_worker_that_died_while_idle_is_explained_by_the_next_call(
    call: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool([partial(CountingEnv, tag=i) for i in range(2)], engine="process", num_workers=2)
    pool.reset(seed=0)
    worker = psutil.Process(pool.engine.pids[1])
    os.kill(worker.pid, signal.SIGKILL)
    wait_until(lambda: not lives(worker))
    with pytest.raises(errors.WorkerDied, match="killed by SIGKILL") as caught:
        CALLS[call](pool)
    assert caught.value.env_ids == (1,)
