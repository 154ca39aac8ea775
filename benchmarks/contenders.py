"""The contenders: how each runner is opened and stepped, the way its own documentation shows.

A contender turns a list of env factories into a session. Libraries are imported inside the functions: a process
hosts one contender and must not pay for the others, and one that is not installed is only a skipped row.
"""

from __future__ import annotations

import mmap
import os
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from loads import Env, EnvFn, Group, Load

Actions = npt.NDArray[np.int64]

SYNC = frozenset({Group.CARTPOLE, Group.SPIN, Group.DICT, Group.NOOP})
SYNC_AND_POLICY = SYNC | {Group.POLICY}
CARTPOLE = frozenset({Group.CARTPOLE})
UNEVEN = frozenset({Group.UNEVEN})
STARTUP = frozenset({Group.STARTUP})
MEMORY = frozenset({Group.MEMORY})
NUM_WORKERS = 2
START_METHODS = ("fork", "forkserver", "spawn")


@dataclass(frozen=True, slots=True)
class Session:
    """An open pool that was reset: `step` takes one action per env and gives the next observations."""

    obs: Any
    step: Callable[[Actions], Any]
    close: Callable[[], object]


@dataclass(frozen=True, slots=True)
class AsyncSession:
    """An open pool with every env under way: `exchange` takes what is ready, answers it, and returns how many."""

    exchange: Callable[[], int]
    close: Callable[[], object]


Opener = Callable[[Load, list[EnvFn]], Session | AsyncSession]


@dataclass(frozen=True, slots=True)
class Contender:
    """A runner under a name; `library` is imported before anything is timed."""

    key: str
    label: str
    library: str
    groups: frozenset[Group]
    open: Opener
    every: int = 1
    """Takes part in every n-th round; slow peers need few slices to show their place."""


def raw_loop(load: Load, fns: list[EnvFn]) -> Session:
    envs = [fn() for fn in fns]

    def step(actions: Actions) -> list[Any]:
        rows = []
        for env, action in zip(envs, actions.tolist(), strict=True):
            obs, _, terminated, truncated, _ = env.step(action)
            rows.append(env.reset()[0] if terminated or truncated else obs)
        return rows

    def close() -> None:
        for env in envs:
            env.close()

    return Session([env.reset()[0] for env in envs], step, close)


def raw_loops_in_step(load: Load, fns: list[EnvFn]) -> Session:
    """Two raw loops on two cores, each with half of the envs, which wait for each other after every step.

    Nothing is handed over but the actions, and nothing is checked: this is what the machine gives to whoever steps all
    envs at once in two processes. It is less than twice a raw loop, because a step takes as long as its slower half.
    """
    shared = mmap.mmap(-1, mmap.PAGESIZE)
    words = memoryview(shared).cast("q")  # how many steps were begun, and how many the other process has done
    half = len(fns) // 2
    theirs = np.frombuffer(shared, np.int64, len(fns) - half, 2 * words.itemsize)
    parent = os.getpid()
    other = os.fork()
    if other == 0:
        try:
            _step_when_told(raw_loop(load, fns[half:]), theirs, words, parent)
        except BaseException:
            traceback.print_exc()
        os._exit(0)  # never back into the code of the process that this one is a copy of
    own = raw_loop(load, fns[:half])

    def step(actions: Actions) -> Any:
        theirs[:] = actions[half:]
        words[0] += 1
        rows = own.step(actions[:half])
        while words[1] != words[0]:
            pass
        return rows

    def close() -> None:
        words[0] = -1
        os.waitpid(other, 0)
        own.close()

    return Session(own.obs, step, close)


def _step_when_told(session: Session, actions: Actions, words: memoryview, parent: int) -> None:
    while os.getppid() == parent:
        for _ in range(10_000):  # looks
            if words[0] != words[1]:
                if words[0] < 0:
                    return
                session.step(actions)
                words[1] += 1


def gymnasium_sync(load: Load, fns: list[EnvFn]) -> Session:
    from gymnasium.vector import SyncVectorEnv

    return _gymnasium_session(SyncVectorEnv(fns))


def gymnasium_async(load: Load, fns: list[EnvFn], start_method: str = "fork") -> Session:
    from gymnasium.vector import AsyncVectorEnv

    return _gymnasium_session(AsyncVectorEnv(fns, shared_memory=True, context=start_method))


def _gymnasium_session(envs: Any) -> Session:
    return Session(envs.reset(seed=0)[0], lambda actions: envs.step(actions)[0], envs.close)


def sb3_dummy(load: Load, fns: list[EnvFn]) -> Session:
    from stable_baselines3.common.vec_env import DummyVecEnv

    return _sb3_session(DummyVecEnv(fns))


def sb3_subproc(load: Load, fns: list[EnvFn], start_method: str = "fork") -> Session:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    return _sb3_session(SubprocVecEnv(fns, start_method=start_method))


def _sb3_session(envs: Any) -> Session:
    return Session(envs.reset(), lambda actions: envs.step(actions)[0], envs.close)


def tianshou_venv(load: Load, fns: list[EnvFn], kind: str, **options: Any) -> Session:
    import tianshou.env

    envs = getattr(tianshou.env, kind)(fns, **options)

    def step(actions: Actions) -> Any:
        obs, _, terminated, truncated, _ = envs.step(actions)
        # tianshou leaves the reset to its collector, which does it like this.
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            obs[ended] = envs.reset(ended)[0]
        return obs

    return Session(envs.reset()[0], step, envs.close)


def tianshou_async(load: Load, fns: list[EnvFn]) -> AsyncSession:
    from tianshou.env import ShmemVectorEnv

    envs = ShmemVectorEnv(fns, wait_num=load.batch_size)
    envs.reset()
    ready = np.arange(load.num_envs)
    actions = np.zeros(load.num_envs, np.int64)

    def exchange() -> int:
        nonlocal ready
        infos = envs.step(actions[: len(ready)], ready)[-1]
        ready = np.array([info["env_id"] for info in infos])
        return len(ready)

    return AsyncSession(exchange, envs.close)


def torchrl_env(fn: EnvFn) -> Any:
    from torchrl.envs import GymWrapper

    return GymWrapper(fn(), categorical_action_encoding=True)


def torchrl_batched(load: Load, fns: list[EnvFn], kind: str, **options: Any) -> Session:
    import torch
    import torchrl.envs

    # One factory and not a list: TorchRL treats a list as several tasks, which costs more.
    envs = getattr(torchrl.envs, kind)(load.num_envs, partial(torchrl_env, fns[0]), **options)
    state = envs.reset()

    def step(actions: Actions) -> Any:
        nonlocal state
        _, state = envs.step_and_maybe_reset(state.set("action", torch.from_numpy(actions)))
        return state

    return Session(state, step, envs.close)


def torchrl_async(load: Load, fns: list[EnvFn]) -> AsyncSession:
    import torch
    from torchrl.envs import AsyncEnvPool

    envs = AsyncEnvPool([partial(torchrl_env, fn) for fn in fns], backend="threading")
    actions = torch.zeros(load.num_envs, dtype=torch.int64)
    ready = envs.reset()
    envs.async_step_and_maybe_reset_send(ready.set("action", actions))

    def exchange() -> int:
        _, ready = envs.async_step_and_maybe_reset_recv(min_get=load.batch_size)
        envs.async_step_and_maybe_reset_send(ready.set("action", actions[: len(ready)]))
        return len(ready)

    return AsyncSession(exchange, envs.close)


class OldGymEnv:
    """The four-value `step` that moolib expects."""

    def __init__(self, env: Env) -> None:
        self._env = env

    def reset(self) -> Any:
        return self._env.reset()[0]

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self._env.step(int(action))
        return obs, float(reward), terminated or truncated, info

    def close(self) -> None:
        self._env.close()


def moolib_pool(load: Load, fns: list[EnvFn]) -> Session:
    import moolib
    import torch

    pool = moolib.EnvPool(
        lambda: OldGymEnv(fns[0]()), num_processes=NUM_WORKERS, batch_size=load.num_envs, num_batches=1
    )

    def step(actions: Actions) -> Any:
        batch = pool.step(0, torch.from_numpy(actions)).result()
        # An array observation arrives under "state", a dict under its own keys.
        return batch.get("state", batch)

    # moolib ends its processes when the pool is collected.
    return Session(step(np.zeros(load.num_envs, np.int64)), step, lambda: None)


def puffer_vector(load: Load, fns: list[EnvFn], backend: str, **options: Any) -> Session:
    import pufferlib.vector
    from pufferlib.emulation import GymnasiumPufferEnv

    envs = pufferlib.vector.make(
        partial(GymnasiumPufferEnv, env_creator=fns[0]),
        num_envs=load.num_envs,
        backend=getattr(pufferlib.vector, backend),
        **options,
    )
    return Session(envs.reset()[0], lambda actions: envs.step(actions)[0], envs.close)


def shoal_pool(load: Load, fns: list[EnvFn], **options: Any) -> Session:
    import shoal

    return _gymnasium_session(shoal.make_vec(fns, **options))


def shoal_async(load: Load, fns: list[EnvFn], **options: Any) -> AsyncSession:
    import shoal

    pool = shoal.make_vec(fns, batch_size=load.batch_size, **options)
    actions = np.zeros(load.num_envs, np.int64)
    pool.async_reset()

    def exchange() -> int:
        env_ids = pool.recv()[-1]["env_id"]
        pool.send(actions[: len(env_ids)], env_ids)
        return len(env_ids)

    return AsyncSession(exchange, pool.close)


GYMNASIUM = "gymnasium.vector"
SB3 = "stable_baselines3.common.vec_env"
TIANSHOU = "tianshou.env"
TORCHRL = "torchrl.envs"
PUFFER = "pufferlib.vector"


def _process_forms() -> Iterator[Contender]:
    """The process engine: with and without a share of the caller's own, by its default start method and by fork.

    The peers' processes are forked here, which is quicker but not safe in a program that has threads.
    """
    open_pool = partial(shoal_pool, engine="process", num_workers=NUM_WORKERS)
    for form, label, own in (("process", "2 workers", {}), ("inline", "1 worker + caller", {"inline": True})):
        for tail, method in (("", {}), ("-fork", {"start_method": "fork"})):
            key, name = f"shoal-{form}{tail}", f"shoal process, {label}{', fork' if method else ''}"
            yield Contender(key, name, "shoal", SYNC_AND_POLICY, partial(open_pool, **own, **method))
            opened = partial(open_pool, copy=False, **own, **method)
            yield Contender(f"{key}-views", f"{name}, views", "shoal", SYNC, opened)


_MEASURED = (
    Contender("raw-loop", "raw loop, one process", "gymnasium", SYNC_AND_POLICY | MEMORY, raw_loop),
    Contender("raw-loops", "2 raw loops in step", "gymnasium", SYNC, raw_loops_in_step),
    Contender("gymnasium-sync", "gymnasium Sync", GYMNASIUM, SYNC_AND_POLICY, gymnasium_sync),
    Contender("gymnasium-async", "gymnasium Async", GYMNASIUM, SYNC_AND_POLICY | UNEVEN, gymnasium_async),
    Contender("sb3-dummy", "SB3 Dummy", SB3, SYNC_AND_POLICY, sb3_dummy),
    Contender("sb3-subproc", "SB3 Subproc", SB3, SYNC_AND_POLICY, sb3_subproc),
    Contender("tianshou-dummy", "tianshou Dummy", TIANSHOU, SYNC, partial(tianshou_venv, kind="DummyVectorEnv")),
    Contender("tianshou-subproc", "tianshou Subproc", TIANSHOU, SYNC, partial(tianshou_venv, kind="SubprocVectorEnv")),
    Contender("tianshou-shmem", "tianshou Shmem", TIANSHOU, SYNC, partial(tianshou_venv, kind="ShmemVectorEnv")),
    Contender("tianshou-async", "tianshou Shmem async", TIANSHOU, UNEVEN, tianshou_async),
    Contender(
        "torchrl-serial", "TorchRL Serial", TORCHRL, CARTPOLE, partial(torchrl_batched, kind="SerialEnv"), every=3
    ),
    Contender(
        "torchrl-parallel",
        "TorchRL Parallel",
        TORCHRL,
        CARTPOLE,
        partial(torchrl_batched, kind="ParallelEnv", mp_start_method="fork"),
        every=3,
    ),
    Contender("torchrl-async", "TorchRL AsyncEnvPool threads", TORCHRL, UNEVEN, torchrl_async),
    Contender("moolib", "moolib, 2 workers", "moolib", SYNC_AND_POLICY, moolib_pool),
    Contender("puffer-serial", "PufferLib serial", PUFFER, SYNC, partial(puffer_vector, backend="Serial")),
    Contender(
        "puffer",
        "PufferLib, 2 workers",
        PUFFER,
        SYNC,
        partial(puffer_vector, backend="Multiprocessing", num_workers=NUM_WORKERS, overwork=True),
    ),
    Contender("shoal-serial", "shoal serial", "shoal", SYNC_AND_POLICY, partial(shoal_pool, engine="serial")),
    *_process_forms(),
    Contender("shoal-auto", "shoal auto", "shoal", SYNC_AND_POLICY, partial(shoal_pool, engine="auto")),
    Contender(
        "shoal-thread-sync",
        "shoal threads, in step",
        "shoal",
        UNEVEN,
        partial(shoal_pool, engine="thread", num_workers=32),
    ),
    Contender(
        "shoal-thread-async",
        "shoal threads, async",
        "shoal",
        UNEVEN,
        partial(shoal_async, engine="thread", num_workers=32),
    ),
    Contender(
        "shoal-thread-core-async",
        "shoal threads on one core, async",
        "shoal",
        UNEVEN,
        partial(shoal_async, engine="thread", num_workers=32, affinity=[min(os.sched_getaffinity(0))]),
    ),
    Contender(
        "shoal-one-process-async",
        "shoal 1 process x 32 threads, async",
        "shoal",
        UNEVEN,
        partial(shoal_async, engine="process", num_workers=1, threads_per_worker=32),
    ),
    Contender(
        "shoal-process-async",
        "shoal 32 processes, async",
        "shoal",
        UNEVEN,
        partial(shoal_async, engine="process", num_workers=32),
    ),
    Contender(
        "shoal-process-threads-async",
        "shoal 2 processes x 16 threads, async",
        "shoal",
        UNEVEN,
        partial(shoal_async, engine="process", num_workers=NUM_WORKERS, threads_per_worker=16),
    ),
)

_STARTED = frozenset({Group.STARTUP, Group.MEMORY})


def _by_start_method(method: str) -> Iterator[Contender]:
    """The runners that let the user choose how processes start."""
    open_gymnasium = partial(gymnasium_async, start_method=method)
    yield Contender(f"gymnasium-async-{method}", f"gymnasium Async {method}", GYMNASIUM, _STARTED, open_gymnasium)
    open_sb3 = partial(sb3_subproc, start_method=method)
    yield Contender(f"sb3-subproc-{method}", f"SB3 Subproc {method}", SB3, _STARTED, open_sb3)
    open_tianshou = partial(tianshou_venv, kind="SubprocVectorEnv", context=method)
    yield Contender(f"tianshou-subproc-{method}", f"tianshou Subproc {method}", TIANSHOU, _STARTED, open_tianshou)
    if method != "forkserver":
        open_torchrl = partial(torchrl_batched, kind="ParallelEnv", mp_start_method=method)
        yield Contender(f"torchrl-parallel-{method}", f"TorchRL Parallel {method}", TORCHRL, _STARTED, open_torchrl)
    # One worker per env for the comparison of start-up; few workers, as in use, for memory.
    for workers, groups in ((8, STARTUP), (1, MEMORY), (NUM_WORKERS, MEMORY)):
        open_shoal = partial(shoal_pool, engine="process", num_workers=workers, start_method=method)
        name = f"shoal process {method}, {workers} worker{'s' if workers > 1 else ''}"
        yield Contender(f"shoal-process-{method}-{workers}", name, "shoal", groups, open_shoal)


_STARTUP = tuple(contender for method in START_METHODS for contender in _by_start_method(method))

CONTENDERS: dict[str, Contender] = {contender.key: contender for contender in (*_MEASURED, *_STARTUP)}


def contenders_for(group: Group) -> list[Contender]:
    """The contenders that take part in the loads of a group, in the order of the report."""
    return [contender for contender in CONTENDERS.values() if group in contender.groups]
