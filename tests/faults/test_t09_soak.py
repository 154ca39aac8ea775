"""T09: faults at random for thousands of steps, and every number in every row is still the right one.

The envs note each fault of theirs in a file before they commit it, so that what the rows tell can be held against it.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from fault_cases import SEED
from twins import Twins

from shoal import Restart
from shoal.testing import CountingEnv

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import shoal

NUM_ENVS = 4
NUM_ROWS = 5_000
FOREVER = Restart(budget=None, backoff_s=0.0)
# In a thousand steps. A hang takes a second, so there are few.
ODDS = {"raise": 6.0, "kill": 3.0, "hang": 1.0}
DEADLINE_S = 1.0


def chaotic(log: str, odds: dict[str, float]) -> type[CountingEnv]:
    """An env that goes wrong at random, though in the same way each time it is seeded alike."""

    class Chaotic(CountingEnv):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            if seed is not None:
                self._chaos = random.Random(seed)
            return super().reset(seed=seed, options=options)

        def step(self, action: Any) -> Any:
            draw = self._chaos.random() * 1000
            for kind, odd in odds.items():
                if draw < odd:
                    self._go_wrong(kind)
                draw -= odd
            return super().step(action)

        def _go_wrong(self, kind: str) -> None:
            with open(log, "a") as file:
                file.write(f"{self.tag} {kind}\n")
            if kind == "raise":
                raise RuntimeError("chaos")
            if kind == "kill":
                os.kill(os.getpid(), 9)
            time.sleep(3600)

    return Chaotic


def own_faults(told: list[dict[str, Any]]) -> Counter[tuple[int, str]]:
    """The faults that envs have committed themselves, by env and kind."""
    own: Counter[tuple[int, str]] = Counter()
    for fault in told:
        env_id, kind = fault["env_id"], fault["kind"]
        if kind == "EnvStepError":
            own[env_id, "raise"] += 1
        elif kind == "EnvTimeout":
            own[env_id, "hang"] += 1
        elif f"(env {env_id} was at work)" in fault["message"]:
            own[env_id, "kill"] += 1
    return own


def committed(log: Path) -> Counter[tuple[int, str]]:
    pairs = [line.split() for line in log.read_text().splitlines()]
    return Counter((int(tag), kind) for tag, kind in pairs)


def play_in_turns(pool: shoal.Pool, twins: Twins, rows: int) -> None:
    draws = random.Random(1)
    for _ in range(rows // NUM_ENVS):
        actions = [draws.randrange(5) for _ in range(NUM_ENVS)]
        twins.take(pool.step(actions), actions)


def play_as_they_come(pool: shoal.Pool, twins: Twins, rows: int) -> None:
    draws = random.Random(1)
    actions = {i: draws.randrange(5) for i in range(NUM_ENVS)}
    pool.send(list(actions.values()))
    taken = 0
    while taken < rows:
        batch = pool.recv(timeout=30)
        twins.take(batch, actions)
        taken += len(batch)
        ids = batch.env_id.tolist()
        actions.update({i: draws.randrange(5) for i in ids})
        pool.send([actions[i] for i in ids], ids)
    # What is still under way is the last row of each env, and must come too: then the books can be closed.
    left = set(range(NUM_ENVS))
    while left:
        batch = pool.recv(timeout=30)
        twins.take(batch, actions)
        left -= set(batch.env_id.tolist())


def soak(pool: shoal.Pool, twins: Twins, log: Path, rows: int, *, asynchronous: bool) -> None:
    twins.take_reset(pool.reset(seed=SEED), SEED)
    (play_as_they_come if asynchronous else play_in_turns)(pool, twins, rows)
    stats = pool.stats()
    assert own_faults(twins.told) == committed(log)
    assert twins.faults == stats.faults == stats.restarts
    assert stats.steps >= rows
    assert stats.dropped == 0


@pytest.mark.slow
@pytest.mark.timeout(100)
@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_t09_rows_stay_right_through_kills_hangs_and_exceptions(
    autoreset: str, asynchronous: bool, tmp_path: Path, make_pool: Callable[..., shoal.Pool]
) -> None:
    log = tmp_path / "log"
    log.touch()
    pool = make_pool(
        [partial(chaotic(str(log), ODDS), tag=i) for i in range(NUM_ENVS)],
        engine="process",
        num_workers=2,
        batch_size=2 if asynchronous else None,
        autoreset=autoreset,
        step_timeout=DEADLINE_S,
        on_fault=FOREVER,
    )
    twins = Twins(NUM_ENVS, SEED, autoreset)
    soak(pool, twins, log, NUM_ROWS, asynchronous=asynchronous)
    kinds = Counter(kind for _, kind in committed(log).elements())
    assert min(kinds[kind] for kind in ODDS) > 0, kinds
    assert kinds.total() > 25


@pytest.mark.parametrize("engine", ["serial", pytest.param("thread", marks=pytest.mark.slow)])
@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_t09_rows_stay_right_through_exceptions(
    engine: str, autoreset: str, asynchronous: bool, tmp_path: Path, make_pool: Callable[..., shoal.Pool]
) -> None:
    log = tmp_path / "log"
    log.touch()
    pool = make_pool(
        [partial(chaotic(str(log), {"raise": 50.0}), tag=i) for i in range(NUM_ENVS)],
        engine=engine,
        batch_size=2 if asynchronous else None,
        autoreset=autoreset,
        on_fault=FOREVER,
    )
    twins = Twins(NUM_ENVS, SEED, autoreset)
    soak(pool, twins, log, 600, asynchronous=asynchronous)
    assert twins.fault_rows > 15
