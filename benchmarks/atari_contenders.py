"""The contenders and loads for Atari games; importing this adds them to the contenders and loads of all runs.

All contenders do the same work on two threads or processes: the same number of games, four frames per step, four
pictures of 84 x 84 in shades of gray, one random action per env and call, drawn in advance.
"""

from __future__ import annotations

import enum
import importlib
import itertools
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from contenders import CONTENDERS, AsyncSession, Contender
from loads import LOADS, EnvFn, Load

if TYPE_CHECKING:
    from collections.abc import Iterator

NUM_THREADS = 2
NUM_ACTION_BATCHES = 64
GAMES = {"Pong-v5": ("pong", 6), "Breakout-v5": ("breakout", 4)}


class AtariGroup(enum.Enum):
    """Loads that the same contenders can take."""

    STEP = "all envs in step"
    ASYNC = "half of the envs at a time"


@dataclass(frozen=True, slots=True)
class AtariLoad(Load):
    """Games by EnvPool's id: there is no Python env to build."""

    env_id: str = ""

    def env_fns(self, turns_per_us: float) -> list[EnvFn]:
        return []

    @property
    def rows(self) -> int:
        """How many envs a call is for."""
        return self.num_envs // 2 if self.group is AtariGroup.ASYNC else self.num_envs

    def actions(self) -> Iterator[Any]:
        """Batches of random actions, without end."""
        drawn = np.random.default_rng(0).integers(0, GAMES[self.env_id][1], (NUM_ACTION_BATCHES, self.rows))
        return itertools.cycle(list(drawn))


def _nothing(index: int, turns_per_us: float) -> EnvFn:
    raise NotImplementedError


def _loads() -> Iterator[AtariLoad]:
    for env_id, sizes in (("Pong-v5", (8, 64)), ("Breakout-v5", (8,))):
        for size, group in itertools.product(sizes, AtariGroup):
            name = f"{env_id.partition('-')[0].lower()}-{size}{'-async' * (group is AtariGroup.ASYNC)}"
            yield AtariLoad(name, f"{env_id}, {size} envs, {group.value}", group, size, _nothing, env_id=env_id)


ATARI_LOADS = {load.key: load for load in _loads()}


def pool(load: AtariLoad, fns: list[EnvFn], library: str) -> AsyncSession:
    """EnvPool, and libraries with its interface."""
    options: dict[str, Any] = {"num_envs": load.num_envs, "num_threads": NUM_THREADS, "batch_size": load.rows}
    envs = importlib.import_module(library).make_gymnasium(load.env_id, **options)
    actions = load.actions()
    if load.group is AtariGroup.STEP:
        envs.reset()

        def step() -> int:
            envs.step(next(actions))
            return load.rows

        return AsyncSession(step, envs.close)
    envs.async_reset()

    def exchange() -> int:
        info = envs.recv()[-1]
        envs.send(next(actions), info["env_id"])
        return load.rows

    return AsyncSession(exchange, envs.close)


def vector_env(load: AtariLoad, fns: list[EnvFn]) -> AsyncSession:
    """ale-py's own vector env."""
    import ale_py

    envs = ale_py.AtariVectorEnv(
        GAMES[load.env_id][0],
        load.num_envs,
        batch_size=load.rows,
        num_threads=NUM_THREADS,
        reward_clipping=False,
    )
    envs.reset(seed=0)
    actions = load.actions()
    if load.group is AtariGroup.ASYNC:
        # The reset has set all envs going, and shown the first half of them; an exchange begins with the other half.
        def exchange() -> int:
            envs.send(next(actions))
            envs.recv()
            return load.rows

        return AsyncSession(exchange, envs.close)

    def step() -> int:
        envs.step(next(actions))
        return load.rows

    return AsyncSession(step, envs.close)


_EVERY = frozenset(AtariGroup)

ATARI_CONTENDERS: dict[str, Contender] = {
    contender.key: contender
    for contender in (
        Contender("envpool-atari", "EnvPool", "envpool", _EVERY, partial(pool, library="envpool")),
        Contender("shoal-atari", "shoal", "shoal", _EVERY, partial(pool, library="shoal")),
        Contender("ale-vector", "ale-py's vector env", "ale_py", _EVERY, vector_env),
    )
}

CONTENDERS.update(ATARI_CONTENDERS)
LOADS.update(ATARI_LOADS)
