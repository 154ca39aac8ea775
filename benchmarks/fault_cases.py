"""The faults of docs/faults.md, one function each; a case raises what its user would see, or returns it in words."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

import shoal
from shoal.testing import CountingEnv, FaultEnv

if TYPE_CHECKING:
    from collections.abc import Callable

OPTIONS: dict[str, Any] = {"engine": "process", "num_workers": 3, "step_timeout": 1.0, "close_timeout": 2.0}
ZEROS = [0, 0, 0]


def envs(fault: str, dtype: Any = np.float64, **settings: Any) -> list[Callable[[], Any]]:
    """Three envs, of which the second fails at its third step."""
    common = {"episode_length": 50, "dtype": dtype}
    fns: list[Callable[[], Any]] = [partial(CountingEnv, tag=i, **common) for i in range(3)]
    fns[1] = partial(FaultEnv, fault, **{"tag": 1, "at": 3, **common, **settings})
    return fns


def run(fault: str, steps: int = 4, **options: Any) -> shoal.Batch:
    settings = options.pop("settings", {})
    dtype = options.pop("dtype", np.float64)
    with shoal.make_pool(envs(fault, dtype, **settings), **{**OPTIONS, **options}) as pool:
        batch = pool.reset(seed=1)
        for _ in range(steps):
            batch = pool.step(ZEROS)
        return batch


def good(**options: Any) -> shoal.Pool:
    pool = shoal.make_pool([partial(CountingEnv, tag=i) for i in range(3)], **{**OPTIONS, **options})
    pool.reset(seed=1)
    return pool


def refused(send: Callable[[shoal.Pool], Any]) -> str:
    """What a bad send raises, and proof that no env has moved."""
    with good() as pool:
        try:
            send(pool)
        except shoal.errors.ShoalError as error:
            moved = pool.get_attr("total_steps")
            fine = pool.step(ZEROS).elapsed_step.tolist()
            return f"{type(error).__name__}: {error}; envs had moved {moved}, the next step is {fine}"
        return "taken"


def f07() -> str:
    with shoal.make_pool(envs("hang"), **{**OPTIONS, "on_fault": "restart"}) as pool:
        pool.reset(seed=1)
        rows = []
        for _ in range(6):
            batch = pool.step(ZEROS)
            rows.append(f"{int(batch.obs[1][3])}/{batch.reward[1]:.0f}{' truncated' if batch.truncated[1] else ''}")
        return f"on_fault='restart', env 1, step in the observation / reward: {', '.join(rows)}"


def f23() -> str:
    with good() as pool:
        held = pool.step(ZEROS)
        before = held.obs.copy()
        for _ in range(3):
            pool.step(ZEROS)
        held.reward += 1  # PPO does this
        return f"a batch held over three more steps is unchanged: {np.array_equal(held.obs, before)}"


class GlobalDraw(CountingEnv):
    def draw(self) -> tuple[float, float]:
        return round(random.random(), 3), round(float(np.random.random()), 3)


def f24() -> str:
    with shoal.make_pool(GlobalDraw, 3, **OPTIONS, start_method="fork!", seed=5) as pool:
        return f"random.random() and np.random.random() in three forked workers: {pool.call('draw')}"


TRAINER = """
import shoal, sys
from shoal.testing import SleepyEnv
from functools import partial
pool = shoal.make_pool([partial(SleepyEnv, 0.05)] * 3, engine="process", num_workers=3)
pool.reset()
print(*pool.engine.pids, flush=True)
while True:
    pool.step([0, 0, 0])
"""


def end_of_trainer(number: int, *, group: bool = False) -> str:
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    assert trainer.stdout is not None
    pids = [int(pid) for pid in trainer.stdout.readline().split()]
    start = time.monotonic()
    (os.killpg if group else os.kill)(trainer.pid, number)
    _, stderr = trainer.communicate(timeout=20)
    while any(os.path.exists(f"/proc/{pid}") for pid in pids) and time.monotonic() - start < 20:
        time.sleep(0.01)
    left = sum(os.path.exists(f"/proc/{pid}") for pid in pids)
    return (
        f"exit code {trainer.returncode}, {left} workers left after {time.monotonic() - start:.2f} s, "
        f"{stderr.count('Traceback')} traceback(s), {len(stderr.splitlines())} lines on stderr"
    )


def f29() -> str:
    pool = shoal.make_pool(envs("kill"), **OPTIONS)
    pool.reset(seed=1)
    try:
        for _ in range(3):
            pool.step(ZEROS)
    except shoal.errors.WorkerDied:
        pass
    start = time.monotonic()
    pool.close()
    pool.close()
    took = time.monotonic() - start
    try:
        pool.step(ZEROS)
    except shoal.errors.ClosedPool as error:
        return f"close() twice after a death: {took:.2f} s, no error; then step: ClosedPool: {error}"
    return "step after close works"


def f30() -> str:
    pool = good()
    pids = pool.engine.pids  # type: ignore[attr-defined]
    del pool
    gc.collect()
    return f"workers alive after the last reference went: {sum(os.path.exists(f'/proc/{pid}') for pid in pids)}"


class Huge(CountingEnv):
    pixels = gym.spaces.Box(0, 255, (2**26,), np.uint8)

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = self.pixels


def f32() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
    shoal.make_pool(CountingEnv, 24, engine="process", num_workers=24)


def f33() -> None:
    stop = threading.Event()
    threading.Thread(target=stop.wait, name="my-thread", daemon=True).start()
    try:
        shoal.make_pool(CountingEnv, 2, engine="process", start_method="fork")
    finally:
        stop.set()


def f34() -> None:
    lock = threading.Lock()
    shoal.make_pool(lambda: CountingEnv(tag=int(lock.locked())), 2, engine="process")


def f35() -> str:
    with good() as pool:
        told: list[str] = []

        def use() -> None:
            for _ in range(200):
                try:
                    pool.step(ZEROS)
                except shoal.errors.BusyPool as error:
                    told.append(f"BusyPool: {error}")

        threads = [threading.Thread(target=use) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return f"{len(told)} of 400 steps: {told[0] if told else 'none refused'}"


def f36() -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        shoal.make_pool(CountingEnv, 8, engine="process", num_workers=8).close()
    return "; ".join(str(w.message) for w in caught) or "silent"


CASES: dict[str, Callable[[], Any]] = {
    "F01": lambda: run("raise"),
    "F02": lambda: run("raise_two_args"),
    "F03": lambda: run("raise_unpicklable"),
    "F04": lambda: run("sys_exit"),
    "F05": lambda: run("kill"),
    "F06": lambda: run("hang"),
    "F07": f07,
    "F08": lambda: run("raise", settings={"where": "init"}),
    "F09": lambda: run("kill", settings={"where": "init"}),
    "F10": lambda: run("raise", settings={"where": "reset", "at": 1}),
    "F11": lambda: refused(lambda pool: pool.step([0, 0])),
    "F12": lambda: refused(lambda pool: pool.step([0, 0, 0, 0])),
    "F13": lambda: refused(lambda pool: pool.step([0, 99, 0])),
    "F14": lambda: refused(lambda pool: pool.step([0, 0], env_id=[1, 1])),
    "F15": lambda: run("bad_shape"),
    "F16": lambda: run("scalar_obs"),
    "F17": lambda: run("overflow", dtype=np.float32),
    "F18": lambda: run("nan_obs"),
    "F19": lambda: run("reward_none"),
    "F20": lambda: run("reward_str"),
    "F21": lambda: run("four_tuple"),
    "F22": lambda: run("info_unpicklable"),
    "F23": f23,
    "F24": f24,
    "F25": lambda: end_of_trainer(signal.SIGINT, group=True),
    "F26": lambda: end_of_trainer(signal.SIGINT),
    "F27": lambda: end_of_trainer(signal.SIGTERM),
    "F28": lambda: end_of_trainer(signal.SIGKILL),
    "F29": f29,
    "F30": f30,
    "F31": lambda: shoal.make_pool(Huge, 1024, engine="process", num_workers=2),
    "F32": f32,
    "F33": f33,
    "F34": f34,
    "F35": f35,
    "F36": f36,
}

if __name__ == "__main__":
    multiprocessing.set_start_method("forkserver")
    try:
        result = CASES[sys.argv[1]]()
    except shoal.errors.ShoalError as error:
        print(f"{type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", []):
            print(note)
    else:
        print(result)
