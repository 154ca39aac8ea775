"""The last observations of every env stacked into one, by a simulator around another."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space, spaces

from shoal.native import Columns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.native import Array, BatchSim, Errors, Ids
    from shoal.spec import SpaceTree

_NAME = "stack"


def stacked(space: Space[Any], count: int) -> Space[Any]:
    """The space of the last ``count`` observations, oldest first, on an axis of their own."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict(OrderedDict((key, stacked(child, count)) for key, child in space.spaces.items()))
    assert isinstance(space, spaces.Box)  # noqa: S101
    low, high = (np.repeat(bound[None], count, axis=0) for bound in (space.low, space.high))
    return spaces.Box(low, high, dtype=space.dtype.type)


class StackedSim:
    """The envs of a simulator, each showing its last observations; an episode begins with copies of its first.

    Args:
        sim: The simulator.
        tree: The space of the stacks.
        num_envs: How many envs it has.
    """

    def __init__(self, sim: BatchSim, tree: SpaceTree, num_envs: int) -> None:
        self._sim = sim
        self.ends, self.cuts = sim.ends, sim.cuts
        self._latest = [np.zeros((num_envs, *leaf.shape[1:]), leaf.dtype) for leaf in tree.leaves]
        self._stacks = [np.zeros((num_envs, *leaf.shape), leaf.dtype) for leaf in tree.leaves]

    def reset(
        self, ids: Ids, seeds: Mapping[int, int], options: Mapping[int, Mapping[str, Any]], out: Columns
    ) -> Errors:
        """Begin episodes."""
        errors = self._sim.reset(ids, seeds, options, self._inner(out))
        for stack, latest, column in zip(self._stacks, self._latest, out.obs, strict=True):
            column[ids] = stack[ids] = latest[ids][:, None]
        return errors

    def step(self, ids: Ids | None, action: Sequence[Array], out: Columns) -> Errors:
        """Take steps."""
        errors = self._sim.step(ids, action, self._inner(out))
        which: Any = slice(None) if ids is None else ids
        for stack, latest, column in zip(self._stacks, self._latest, out.obs, strict=True):
            column[which] = stack[which] = np.concatenate((stack[which][:, 1:], latest[which][:, None]), axis=1)
        return errors

    def _inner(self, out: Columns) -> Columns:
        return Columns(self._latest, out.reward, out.terminated, out.truncated, out.info)

    def snapshot(self, ids: Ids) -> dict[str, Array]:
        """The whole state of the envs, including their stacks."""
        stacks = {f"{_NAME}{j}": stack[ids] for j, stack in enumerate(self._stacks)}
        return {**self._sim.snapshot(ids), **stacks}

    def restore(self, ids: Ids, state: Mapping[str, Array]) -> None:
        """Put envs into the states of others."""
        self._sim.restore(ids, state)
        for j, stack in enumerate(self._stacks):
            stack[ids] = state[f"{_NAME}{j}"]

    def renew(self, env_id: int) -> None:
        """Make an env as good as new."""
        self._sim.renew(env_id)

    def view(self, env_id: int) -> Any:
        """One env as an object."""
        return self._sim.view(env_id)

    def close(self) -> None:
        """End the simulator."""
        self._sim.close()
