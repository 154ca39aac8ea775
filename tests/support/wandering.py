"""Envs that may move from one worker to another, and pairs of pools that must not differ for it.

    pair = Pair(make_pool, autoreset="same_step")      # a process pool that recycles, and a serial one that does not
    pair.recycle()                                     # now the oldest worker is to be replaced
    pair.walk(50)                                      # steps both, and compares each row

Everything that a `WanderingEnv` does follows from its generator, so between two episodes it can be built elsewhere.
"""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from shoal.testing import CountingEnv, InjectedFault

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import shoal

SOON_S = 20.0


def _raise() -> None:
    raise InjectedFault("as ordered")


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hang() -> None:
    threading.Event().wait()


ACTS = {"raise": _raise, "kill": _kill, "hang": _hang}


class WanderingEnv(CountingEnv):
    """A `CountingEnv` that begins to count anew in each episode, and draws a number in every step.

    Args:
        orders: A folder. If the file ``<tag>-<place>`` is in it when a method begins (``init``, ``reset``, ``step``,
            ``close``), the env takes it away and does what is in it: ``raise``, ``kill`` or ``hang``.
        leak_bytes: What each step holds on to.
        **counting: Settings of `CountingEnv`.
    """

    def __init__(self, *, orders: Path | None = None, leak_bytes: int = 0, **counting: Any) -> None:
        super().__init__(**counting)
        self.orders = orders
        self.leak_bytes = leak_bytes
        self.leaked: list[Any] = []
        self._obey("init")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._obey("reset")
        self._episode, self._total = -1, 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self._obey("step")
        self._draw = int(self.np_random.integers(1000))
        if self.leak_bytes:
            self.leaked.append(np.ones(self.leak_bytes, np.uint8))
        return super().step(action)

    def close(self) -> None:
        self._obey("close")
        super().close()

    def pid(self) -> int:
        return os.getpid()

    def cpus(self) -> set[int]:
        return os.sched_getaffinity(0)

    def _obey(self, place: str) -> None:
        if self.orders is not None:
            order = self.orders / f"{self.tag}-{place}"
            if order.exists():
                act = order.read_text()
                order.unlink()
                ACTS[act]()


class DiaryEnv(WanderingEnv):
    """A `WanderingEnv` with a text beside its numbers, and another in its infos."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.observation_space = spaces.Dict({"row": self._row_layout, "note": spaces.Text(32)})

    def _observe(self, action: float) -> Any:
        return {"row": super()._observe(action), "note": f"draw{self._draw}step{self._step}"}

    def _info(self) -> dict[str, Any]:
        return {"t": self._step, "told": {"draw": self._draw, "words": ["a"] * self._step}}


def order(folder: Path, env_id: int, place: str, act: str) -> None:
    """Have an env do something the next time it comes to a place; complete at once for whoever looks."""
    draft = folder / f"draft-{env_id}-{place}"
    draft.write_text(act)
    draft.rename(folder / f"{env_id}-{place}")


def envs(num_envs: int, kind: Callable[..., Any] = WanderingEnv, **settings: Any) -> list[Any]:
    return [partial(kind, **{"tag": i, **settings}) for i in range(num_envs)]


def rows_of(batch: shoal.Batch) -> dict[int, tuple[Any, ...]]:
    """Everything that a batch says of each env."""
    infos = dict(batch.infos)
    return {
        env_id: (
            _at(batch.obs, row),
            float(batch.reward[row]),
            bool(batch.terminated[row]),
            bool(batch.truncated[row]),
            int(batch.elapsed_step[row]),
            bool(batch.first[row]),
            infos.get(row, {}),
            batch.finals.get(row),
        )
        for row, env_id in enumerate(batch.env_id.tolist())
    }


def _at(obs: Any, row: int) -> Any:
    return {key: _at(leaf, row) for key, leaf in obs.items()} if isinstance(obs, dict) else np.copy(obs[row])[()]


def assert_alike(got: Any, expected: Any, path: str) -> None:
    """Equal all the way down, dtypes included."""
    assert type(got) is type(expected), f"{path}: {got!r}, expected {expected!r}"
    if isinstance(expected, dict):
        assert list(got) == list(expected), f"{path}: {got!r}, expected {expected!r}"
        for key, value in expected.items():
            assert_alike(got[key], value, f"{path}[{key!r}]")
    elif isinstance(expected, tuple | list):
        assert len(got) == len(expected), path
        for k, (one, other) in enumerate(zip(got, expected, strict=True)):
            assert_alike(one, other, f"{path}[{k}]")
    elif isinstance(expected, np.ndarray):
        assert got.dtype == expected.dtype, path
        np.testing.assert_array_equal(got, expected, err_msg=path)
    else:
        assert got == expected, f"{path}: {got!r}, expected {expected!r}"


class Pair:
    """A process pool that recycles whenever it is told to, and a serial pool that gives the same rows.

    Args:
        make_pool: Makes pools that are closed at the end of the test.
        fns: The envs of both.
        twin_fns: The serial pool's own, where they must not be the same.
        autoreset: The boundary rule of both.
        on_fault: What both do about faults.
        **options: The process pool's alone.
    """

    def __init__(
        self,
        make_pool: Callable[..., shoal.Pool],
        fns: Sequence[Any] | None = None,
        *,
        twin_fns: Sequence[Any] | None = None,
        autoreset: str = "next_step",
        on_fault: Any = "raise",
        seed: int = 7,
        **options: Any,
    ) -> None:
        fns = envs(4) if fns is None else fns
        place = {"engine": "process", "num_workers": 2, "recycle_above": 1, "close_timeout": 1.0}
        self.pool = make_pool(fns, autoreset=autoreset, on_fault=on_fault, **{**place, **options})
        self.twin = make_pool(twin_fns or fns, engine="serial", autoreset=autoreset, on_fault=on_fault)
        self.all = list(range(self.pool.num_envs))
        self.expected: dict[int, tuple[Any, ...]] = {}
        self.over: set[int] = set()
        self._actions = np.random.default_rng(0)
        self.reset(seed=seed)

    @property
    def recycled(self) -> int:
        return self.pool.stats().recycled

    @property
    def pids(self) -> list[int]:
        return list(self.pool.engine.pids)

    @property
    def idle(self) -> list[int]:
        return [i for i in self.all if i not in self.expected]

    @property
    def steppable(self) -> list[int]:
        return [i for i in self.idle if i not in self.over]

    def recycle(self) -> None:
        """Look at the workers' memory, of which one byte is too much."""
        self.pool.engine.recycler.look()

    def reset(self, ids: list[int] | None = None, seed: int | None = None) -> None:
        named = self.all if ids is None else ids
        batch = self.pool.reset(seed, env_id=ids)
        assert batch.env_id.tolist() == named
        for i in named:
            self.expected.pop(i, None)  # a reset makes void what was under way
        self.expect(self.twin.reset(seed, env_id=ids))
        self.check(batch)

    def send(self, ids: list[int]) -> None:
        actions = self._actions.integers(5, size=len(ids))
        whole = ids == self.all
        self.pool.send(actions, None if whole else ids)
        self.expect(self.twin.step(actions, None if whole else ids))

    def recv(self) -> None:
        self.check(self.pool.recv(timeout=SOON_S))

    def step(self, ids: list[int] | None = None) -> shoal.Batch:
        ids = self.all if ids is None else ids
        actions = self._actions.integers(5, size=len(ids))
        named = None if ids == self.all else ids
        batch = self.pool.step(actions, named)
        assert batch.env_id.tolist() == ids
        self.expect(self.twin.step(actions, named))
        self.check(batch)
        return batch

    def turn(self) -> None:
        """One step of every env; under ``disabled``, a reset of those whose episode is over."""
        if over := sorted(self.over):
            self.reset(over)
            self.step([i for i in self.all if i not in over] or self.all)
        else:
            self.step()

    def walk(self, turns: int) -> None:
        for _ in range(turns):
            self.turn()

    def until_recycled(self, count: int) -> None:
        """Go on until so many workers have been replaced, each as soon as the one before is."""
        end = monotonic() + SOON_S
        while self.recycled < count:
            assert monotonic() < end, f"only {self.recycled} of {count} workers were replaced"
            self.recycle()
            self.turn()

    def expect(self, batch: shoal.Batch) -> None:
        rows = rows_of(batch)
        assert not rows.keys() & self.expected.keys()
        self.expected |= rows
        if str(self.pool.autoreset) == "disabled":
            self.over -= rows.keys()
            self.over |= {i for i, row in rows.items() if row[2] or row[3]}

    def check(self, batch: shoal.Batch) -> None:
        for i, row in rows_of(batch).items():
            assert_alike(_without_places(row), _without_places(self.expected.pop(i)), f"env {i}")


def _without_places(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row without what two engines cannot have in common: in which process a fault was, and how it looked there."""
    final = None if row[7] is None else (row[7][0], _placeless(row[7][1]))
    return (*row[:6], _placeless(row[6]), final)


def _placeless(info: dict[str, Any]) -> dict[str, Any]:
    if "fault" not in info:
        return info
    return {**info, "fault": {key: info["fault"][key] for key in ("env_id", "incarnation", "attempts", "phase")}}
