"""Many envs of an ``EnvPoolEnv``, in one or several of EnvPool's pools.

EnvPool seeds its envs when it makes them and never again. So a seed means new envs, in a pool of their own: all envs
that get their seeds together move into one pool, and a pool that no env lives in any more is released.

    reset(seed=7)                     one pool with every env
    reset(seed=[3], env_id=[2])       env 2 moves into a pool of one; the others stay

Every call gives each pool its commands and then takes the results of all pools, so no more than one batch of a pool is
ever under way, and its rows come in the order of the ids. Whatever EnvPool is given has been checked before: EnvPool
itself would trust ids, counts and shapes blindly.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import ArgumentError, StateError
from shoal.seeding import entropy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shoal.envs.envpool.env import EnvPoolEnv
    from shoal.envs.envpool.layout import Layout
    from shoal.native import Array, Columns, Errors, Ids

_NOWHERE = -1
_SEEDS = 2**32
_houses: weakref.WeakSet[House] = weakref.WeakSet()


class House:
    """One of EnvPool's pools, and the envs that live in it.

    Attributes:
        pool: The pool.
        places: The place in the pool of each env that has ever lived there, by env id.
    """

    def __init__(self, pool: Any, layout: Layout, ids: Sequence[int], num_envs: int) -> None:
        self.pool = pool
        self.places = np.full(num_envs, _NOWHERE, np.int32)
        self.places[ids] = np.arange(len(ids), dtype=np.int32)
        self._layout = layout
        self._pid = os.getpid()
        self._is_under_way = False
        _houses.add(self)

    def start_reset(self, ids: Ids) -> None:
        """Start resetting envs."""
        self._begin()
        self.pool._reset(self.places[ids])

    def start_step(self, ids: Ids, action: Sequence[Array]) -> None:
        """Start a step of envs; those whose episode has ended begin the next one instead."""
        self._begin()
        places = self.places[ids]
        layout = self._layout
        # Copies, even of all rows: EnvPool's threads read them while the next actions may be written here.
        arrays = [
            np.ascontiguousarray(leaf[ids], dtype).reshape(len(ids), *shape)
            for leaf, dtype, shape in zip(action, layout.action_dtypes, layout.action_shapes, strict=True)
        ]
        self.pool._send([places, places.copy(), *(arrays[leaf] for leaf in layout.action_order)])

    def finish(self) -> dict[str, Array]:
        """The results of the envs, in the order of the command."""
        rows = dict(zip(self._layout.state_keys, self.pool._recv(), strict=True))
        self._is_under_way = False
        return rows

    def _begin(self) -> None:
        if os.getpid() != self._pid:
            raise StateError("this pool was made in another process: EnvPool's threads are not in this one")
        if self._is_under_way:
            # An interrupt came between a command and its result: drop that. If it came just before the command or just
            # after the result, no env is at work, and EnvPool returns an empty batch without waiting.
            self.pool._recv()
        self._is_under_way = True


def _abandon_houses() -> None:
    """Never destroy pools inherited through a fork: that would wait for threads that do not exist here."""
    for house in _houses:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(house.pool))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_houses)


class EnvPoolSim:
    """The envs of an ``EnvPoolEnv``.

    Attributes:
        kind: The kind of env that they are.
        ends: Always True: nobody knows which of EnvPool's envs never terminate.
        cuts: Always True: EnvPool has the time limit too, since some of its envs use it.
    """

    ends = True
    cuts = True

    def __init__(self, kind: EnvPoolEnv, num_envs: int, num_threads: int) -> None:
        self.kind = kind
        self._layout = kind.layout
        self._num_envs, self._num_threads = num_envs, num_threads
        self._homes: list[House | None] = [None] * num_envs
        self._all = np.arange(num_envs, dtype=np.int32)
        self._is_over = np.zeros(num_envs, np.bool_)
        self._only: House | None = None  # the house, if all envs live in one
        self._blank = [np.broadcast_to(leaf.blank(), (num_envs, *leaf.shape)) for leaf in self._layout.action.leaves]

    # ------------------------------------------------------------------ resets and steps

    def reset(
        self, ids: Ids, seeds: Mapping[int, int], options: Mapping[int, Mapping[str, Any]], out: Columns
    ) -> Errors:
        """Begin episodes, in new envs where there is a seed. Options are refused, since EnvPool's envs take none."""
        refused: Errors = {
            i: ArgumentError(f"options: EnvPool's envs take none at a reset, got {wish!r}")
            for i, wish in options.items()
        }
        if refused:
            ids = np.array([i for i in ids.tolist() if i not in refused], np.int32)
        homeless = [i for i in ids.tolist() if i in seeds or self._homes[i] is None]
        if homeless:
            self._move_in(homeless, [_seed(seeds.get(i, entropy())) for i in homeless])
        self._run([(house, members, None) for house, members in self._at_home(ids)], out)
        return refused

    def next_episode(self, ids: Ids, out: Columns) -> Errors:
        """Go on where episodes have ended, as EnvPool does on its own; those that shoal's pool cut short are reset."""
        over = self._is_over[ids]
        if not over.all():
            self.reset(ids[~over], {}, {}, out)
        self._run([(house, members, self._blank) for house, members in self._at_home(ids[over])], out)
        return {}

    def step(self, ids: Ids | None, action: Sequence[Array], out: Columns) -> Errors:
        """Take a step in each of these envs."""
        everyone = self._all if ids is None else ids
        self._run([(house, members, action) for house, members in self._at_home(everyone)], out, is_step=True)
        return {}

    def _run(self, jobs: list[tuple[House, Ids, Any]], out: Columns, *, is_step: bool = False) -> None:
        for house, members, action in jobs:
            if action is None:
                house.start_reset(members)
            else:
                house.start_step(members, action)
        for house, members, _ in jobs:
            self._write(members, house.finish(), out, is_step)

    def _write(self, ids: Ids, rows: Mapping[str, Array], out: Columns, is_step: bool) -> None:
        which: Any = slice(None) if len(ids) == self._num_envs else ids
        for column, key in zip(out.obs, self._layout.obs_keys, strict=True):
            column[which] = rows[key].reshape(len(ids), *column.shape[1:])
        for name, key in self._layout.info_keys.items():
            out.info[name][which] = rows[key]
        self._is_over[which] = done = rows["done"]
        if is_step:
            out.reward[which] = rows["reward"]
            cut = rows["trunc"]
            out.terminated[which] = done & ~cut
            out.truncated[which] = cut

    # ------------------------------------------------------------------ who lives where

    def _at_home(self, ids: Ids) -> Iterator[tuple[House, Ids]]:
        """The houses of some envs, and which of these envs live in each."""
        if self._only is not None:
            if len(ids):
                yield self._only, ids
            return
        members: dict[House, list[int]] = {}
        for i in ids.tolist():
            house = self._homes[i]
            if house is None:
                raise StateError(f"env {i} was never reset")
            members.setdefault(house, []).append(i)
        for house, own in members.items():
            yield house, np.array(own, np.int32)

    def _move_in(self, ids: list[int], seeds: list[int]) -> None:
        for i in ids:
            self.renew(i)  # first, so that a house that becomes empty is torn down before the next is built
        house = House(self.kind.make(seeds, self._num_threads), self._layout, ids, self._num_envs)
        for i in ids:
            self._homes[i] = house
        if len(ids) == self._num_envs:
            self._only = house
        self._is_over[ids] = False

    # ------------------------------------------------------------------ outside episodes

    def snapshot(self, ids: Ids) -> dict[str, Array]:
        """Refused: EnvPool gives no access to the state of an env."""
        raise StateError(f"{self.kind.task_id}: EnvPool cannot take snapshots of its envs")

    def restore(self, ids: Ids, state: Mapping[str, Array]) -> None:
        """Refused, like ``snapshot``."""
        raise StateError(f"{self.kind.task_id}: EnvPool cannot restore its envs")

    def renew(self, env_id: int) -> None:
        """Leave the env behind; the next reset builds another."""
        self._homes[env_id] = self._only = None

    def view(self, env_id: int) -> EnvPoolView:
        """One env as an object."""
        return EnvPoolView(self, env_id)

    def close(self) -> None:
        """Release the pools. Their threads end with them."""
        self._homes, self._only = [None] * self._num_envs, None

    def render(self, env_id: int) -> Array:
        """A picture of one env."""
        house = self._homes[env_id]
        if self.kind.render_mode is None:
            raise StateError(f"{self.kind.task_id}: to render, make it with render_mode='rgb_array'")
        if house is None:
            raise StateError(f"env {env_id} was never reset, so there is nothing to render")
        picture: Array = np.array(house.pool.render(env_ids=house.places[[env_id]])[0])
        return picture


class EnvPoolView:
    """What can be asked of one env: its picture, and the options that all envs share."""

    def __init__(self, sim: EnvPoolSim, env_id: int) -> None:
        self.__dict__.update(_sim=sim, _env_id=env_id)

    if TYPE_CHECKING:
        _sim: EnvPoolSim
        _env_id: int

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{self._sim.kind.task_id}: {name!r} cannot be set in an env of EnvPool's")

    @property
    def unwrapped(self) -> EnvPoolView:
        """The view itself: nothing is wrapped around it."""
        return self

    @property
    def config(self) -> dict[str, Any]:
        """The options of the task, with their current values."""
        kind = self._sim.kind
        return {**kind.defaults, **kind.options}

    def render(self) -> Array:
        """A picture of the env."""
        return self._sim.render(self._env_id)


def _seed(seed: int) -> int:
    """A seed as EnvPool takes it, an int32: small ones unchanged, so that EnvPool on its own has the same episodes."""
    if seed >= _SEEDS:
        seed = int(np.random.SeedSequence(seed).generate_state(1)[0])
    return seed - _SEEDS if seed >= _SEEDS // 2 else seed
