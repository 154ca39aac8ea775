"""A simulator in numpy for tests of the native engine: many points that drift, with infos, draws and trouble.

Drift    Box out, Box in; episodes end after a drawn number of steps or by the simulator's own limit
Pieces   Dict out, Dict in
Steady   never ends by itself, and leaves the flags alone
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from gymnasium import spaces

from shoal.native import Generators, NativeEnv
from shoal.spec import EnvSpec, Field, SpaceTree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.native import Array, BatchSim, Columns, Errors, Ids

NEVER = -1


class Drift(NativeEnv):
    """Points that drift. ``fail_at`` and ``nan_at`` are steps of an env, ``broken`` an option of a reset."""

    reset_options: ClassVar[tuple[str, ...]] = ("origin", "broken")
    explode: ClassVar[BaseException | None] = None  # what a step raises for all envs at once

    def __init__(
        self, *, gain: float = 1.0, longest: int = 7, fail_at: int = NEVER, nan_at: int = NEVER, cut_at: int = 6
    ) -> None:
        self.gain, self.longest, self.fail_at, self.nan_at, self.cut_at = gain, longest, fail_at, nan_at, cut_at

    def describe(self, name: str) -> EnvSpec:
        return EnvSpec(
            SpaceTree(spaces.Box(-np.inf, np.inf, (3,), np.float64), "observation"),
            SpaceTree(spaces.Box(-1.0, 1.0, (2,), np.float32), "action"),
            name,
            info=(
                Field("place", np.dtype(np.float64), (2,)),
                Field("speed", np.dtype(np.float64), (), at_reset=False),
                Field("lap", np.dtype(np.int64), ()),
            ),
        )

    def simulate(self, num_envs: int, num_threads: int) -> BatchSim:
        return DriftSim(self, num_envs)


class Pieces(Drift):
    """The same with structured spaces."""

    def describe(self, name: str) -> EnvSpec:
        flat = super().describe(name)
        shape = {"near": spaces.Box(-np.inf, np.inf, (2,), np.float64), "count": spaces.Discrete(100)}
        action = {"push": spaces.Box(-1.0, 1.0, (2,), np.float32), "gear": spaces.Discrete(3)}
        return EnvSpec(
            SpaceTree(spaces.Dict(shape), "observation"), SpaceTree(spaces.Dict(action), "action"), name, info=flat.info
        )


class Steady(Drift):
    """The same without an end."""


class DriftSim:
    """N points. ``thread`` is the one that took the last step."""

    def __init__(self, kind: Drift, num_envs: int) -> None:
        self.kind = kind
        self.ends = self.cuts = not isinstance(kind, Steady)
        self.thread: threading.Thread | None = None
        self.has_stepped = threading.Event()
        self.is_closed = False
        self.is_nested = isinstance(kind, Pieces)
        self.generators = Generators(num_envs)
        self.renewed: list[int] = []
        self.x = np.zeros((num_envs, 2))
        self.count = np.zeros(num_envs, np.int64)
        self.end = np.zeros(num_envs, np.int64)
        self.lap = np.zeros(num_envs, np.int64)

    def reset(
        self, ids: Ids, seeds: Mapping[int, int], options: Mapping[int, Mapping[str, Any]], out: Columns
    ) -> Errors:
        self.generators.seed(seeds)
        errors: Errors = {}
        for i in ids.tolist():
            wish = options.get(i, {})
            if wish.get("broken"):
                errors[i] = ValueError("the drift is broken")
                continue
            rng = self.generators[i]
            self.x[i] = wish.get("origin", 0.0) + rng.uniform(-1.0, 1.0, 2)
            self.end[i] = rng.integers(1, self.kind.longest + 1)
            self.count[i] = 0
            self.lap[i] += 1
        out.info["speed"][ids] = 0.0
        self._look(ids, out)
        return errors

    def step(self, ids: Ids | None, action: Sequence[Array], out: Columns) -> Errors:
        self.thread = threading.current_thread()
        self.has_stepped.set()
        if self.kind.explode:
            raise self.kind.explode
        chosen = np.arange(len(self.x)) if ids is None else ids
        stuck = {i for i in chosen.tolist() if self.count[i] + 1 == self.kind.fail_at}
        rows = np.array([i for i in chosen.tolist() if i not in stuck], np.int32)
        # Spaces of a Dict are in the order of their names: gear, push.
        push = action[-1][rows] * (action[0][rows, None] if self.is_nested else 1)
        noise = np.array([self.generators[i].normal() for i in rows.tolist()])
        self.x[rows] += self.kind.gain * push + noise[:, None]
        self.count[rows] += 1
        out.info["speed"][rows] = noise
        out.reward[rows] = np.where(self.count[rows] == self.kind.nan_at, np.nan, noise)
        if self.ends:
            out.terminated[rows] = self.count[rows] >= self.end[rows]
            out.truncated[rows] = self.count[rows] >= self.kind.cut_at
        self._look(rows, out)
        return {i: ValueError("the drift has run aground") for i in stuck}

    def _look(self, ids: Ids, out: Columns) -> None:
        out.obs[-1][ids, :2] = self.x[ids]
        if self.is_nested:
            out.obs[0][ids] = self.count[ids]
        else:
            out.obs[0][ids, 2] = self.count[ids]
        out.info["place"][ids] = self.x[ids]
        out.info["lap"][ids] = self.lap[ids]

    def snapshot(self, ids: Ids) -> dict[str, Array]:
        own = {name: getattr(self, name)[ids] for name in ("x", "count", "end", "lap")}
        return {**own, "words": self.generators.words(ids)}

    def restore(self, ids: Ids, state: Mapping[str, Array]) -> None:
        for name in ("x", "count", "end", "lap"):
            getattr(self, name)[ids] = state[name]
        self.generators.set_words(ids, state["words"])

    def renew(self, env_id: int) -> None:
        self.renewed.append(env_id)
        self.lap[env_id] = 0

    def view(self, env_id: int) -> Any:
        return DriftView(self, env_id)

    def close(self) -> None:
        self.is_closed = True


class DriftView:
    """One point."""

    def __init__(self, sim: DriftSim, env_id: int) -> None:
        self._sim, self._env_id = sim, env_id

    @property
    def np_random(self) -> np.random.Generator:
        return self._sim.generators[self._env_id]

    @np_random.setter
    def np_random(self, value: np.random.Generator) -> None:
        self._sim.generators[self._env_id] = value

    @property
    def total(self) -> int:
        return int(self._sim.count[self._env_id])

    def render(self) -> Any:
        return np.full((4, 4, 3), self._env_id, np.uint8)
