"""The contenders and loads for MuJoCo robots; importing this adds them to the contenders and loads of all runs.

All do the same work on two threads: the same number of envs, one random action per env and call, drawn in advance. Only
EnvPool and shoal observe, reward and begin new episodes; the two loops over MuJoCo itself are the best one could reach.
"""

from __future__ import annotations

import enum
import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from contenders import CONTENDERS, AsyncSession, Contender
from loads import LOADS, EnvFn, Load

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

NUM_THREADS = 2
NUM_ACTION_BATCHES = 16
MODELS = {"HalfCheetah-v5": ("half_cheetah.xml", 5), "Ant-v5": ("ant.xml", 5)}


class MujocoGroup(enum.Enum):
    """Loads that the same contenders can take."""

    STEP = "all envs in step"
    ASYNC = "half of the envs at a time"


@dataclass(frozen=True, slots=True)
class MujocoLoad(Load):
    """Robots by their id: there is no Python env to build."""

    env_id: str = ""

    @property
    def model(self) -> tuple[str, int]:
        """The file of the model in Gymnasium's folder, and how many substeps a step has."""
        import gymnasium

        name, skip = MODELS[self.env_id]
        return str(Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / name), skip

    def env_fns(self, turns_per_us: float) -> list[EnvFn]:
        return []


def _nothing(index: int, turns_per_us: float) -> EnvFn:
    raise NotImplementedError


def _loads() -> Iterator[MujocoLoad]:
    for env_id, sizes in (("HalfCheetah-v5", (1, 8, 64, 256)), ("Ant-v5", (8, 64))):
        for size in sizes:
            for group in MujocoGroup:
                if group is MujocoGroup.ASYNC and size == 1:
                    continue
                name = f"{env_id.partition('-')[0].lower()}-{size}{'-async' * (group is MujocoGroup.ASYNC)}"
                title = f"{env_id}, {size} env{'s' * (size > 1)}, {group.value}"
                yield MujocoLoad(name, title, group, size, _nothing, env_id=env_id)


MUJOCO_LOADS = {load.key: load for load in _loads()}


def _actions(load: MujocoLoad, rows: int) -> Iterator[npt.NDArray[np.float64]]:
    import mujoco

    model = mujoco.MjModel.from_xml_path(load.model[0])
    drawn = np.random.default_rng(0).uniform(-1, 1, (NUM_ACTION_BATCHES, rows, model.nu))
    return itertools.cycle(list(drawn))


def pool(load: MujocoLoad, fns: list[EnvFn], library: str) -> AsyncSession:
    """EnvPool, and libraries with its interface."""
    import importlib

    threads = min(NUM_THREADS, load.num_envs)
    options: dict[str, Any] = {"num_envs": load.num_envs, "num_threads": threads}
    is_async = load.group is MujocoGroup.ASYNC
    if is_async:
        options["batch_size"] = load.num_envs // 2
    envs = importlib.import_module(library).make_gymnasium(load.env_id, **options)
    rows = options.get("batch_size", load.num_envs)
    actions = _actions(load, rows)
    if not is_async:
        envs.reset()

        def step() -> int:
            envs.step(next(actions))
            return rows

        return AsyncSession(step, envs.close)
    envs.async_reset()

    def exchange() -> int:
        info = envs.recv()[-1]
        envs.send(next(actions), info["env_id"])
        return rows

    return AsyncSession(exchange, envs.close)


def bare_loop(load: MujocoLoad, fns: list[EnvFn]) -> AsyncSession:
    """``mj_step`` for one ``MjData`` after another, half of them on each thread."""
    import mujoco

    path, skip = load.model
    model = mujoco.MjModel.from_xml_path(path)
    each = [mujoco.MjData(model) for _ in range(load.num_envs)]
    shares = [range(k, load.num_envs, NUM_THREADS) for k in range(min(NUM_THREADS, load.num_envs))]
    actions = _actions(load, load.num_envs)
    executor = ThreadPoolExecutor(len(shares))

    def run(share: range, batch: npt.NDArray[np.float64]) -> None:
        for i in share:
            each[i].ctrl[:] = batch[i]
            mujoco.mj_step(model, each[i], skip)

    def step() -> int:
        batch = next(actions)
        others = [executor.submit(run, share, batch) for share in shares[1:]]
        run(shares[0], batch)
        for other in others:
            other.result()
        return load.num_envs

    return AsyncSession(step, executor.shutdown)


def bare_batch(load: MujocoLoad, fns: list[EnvFn]) -> AsyncSession:
    """``mujoco.batch`` with nothing around it."""
    import mujoco
    from mujoco.batch import Batch

    path, skip = load.model
    batch = Batch(mujoco.MjModel.from_xml_path(path), load.num_envs, min(NUM_THREADS, load.num_envs))
    ctrl, actions = batch.bind("ctrl"), _actions(load, load.num_envs)

    def step() -> int:
        ctrl[:] = next(actions)
        batch.step(None, skip)
        return load.num_envs

    return AsyncSession(step, lambda: None)


_EVERY = frozenset(MujocoGroup)

MUJOCO_CONTENDERS: dict[str, Contender] = {
    contender.key: contender
    for contender in (
        Contender("envpool-mujoco", "EnvPool", "envpool", _EVERY, partial(pool, library="envpool")),
        Contender("shoal-mujoco", "shoal", "shoal", _EVERY, partial(pool, library="shoal")),
        Contender("mujoco-loop", "bare mj_step loop", "mujoco", _EVERY, bare_loop),
        Contender("mujoco-batch", "bare mujoco.batch", "mujoco.batch", _EVERY, bare_batch),
    )
}

CONTENDERS.update(MUJOCO_CONTENDERS)
LOADS.update(MUJOCO_LOADS)
