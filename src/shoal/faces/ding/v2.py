"""Managers that take and return arrays with a row per env, instead of dicts by id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import ManagerState
from shoal.faces.ding.base import BaseEnvManager
from shoal.faces.ding.processes import SyncSubprocessEnvManager
from shoal.faces.ding.tree import TreeArray, info_tree, rows_of, stack, tree_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_FLAGS = (np.array(False), np.array(True))


class ArrayForm(BaseEnvManager):
    """``ready_obs`` and ``step`` with rows in place of ids.

    The rows of an action belong to the envs that ``ready_obs`` last showed, whichever envs have become ready since. If
    their number differs, but matches the envs that wait now, the rows belong to those.
    """

    _shown: list[int] | None = None

    @property
    def ready_obs(self) -> Any:
        """Observations of the envs that wait for an action, as one array with a row for each, or a tree of arrays.

        If no env waits, it has no rows.
        """
        self._shown = ids = self._ready()
        observations = self._core.ready_obs
        if not ids:
            return np.empty((0, *(getattr(self.observation_space, "shape", None) or ())), np.float32)
        return stack([observations[i] for i in ids])

    def step(self, actions: Any) -> list[TreeArray]:
        """Step the envs of the last ``ready_obs``, one row each, in that order; a dict by id is accepted too.

        Returns:
            For each env, a tree with ``obs``, ``reward``, ``done``, ``info`` and ``env_id``.
        """
        self._core.check_open()
        if actions.__class__ is list or actions.__class__ is np.ndarray:  # as is usual
            by_id = self._by_id([*actions])
        else:
            by_id = actions if is_by_id(actions) else self._by_id(rows_of(actions))
        self._shown = None
        return [tree_timestep(i, timestep) for i, timestep in self._core.step(by_id).items()]

    def _by_id(self, rows: Sequence[Any]) -> dict[int, Any]:
        ids = self._core.ready() if self._shown is None or len(self._shown) != len(rows) else self._shown
        if len(rows) != len(ids):
            raise ManagerState(
                f"actions: expected {len(ids)} rows, one for each of the ready envs {ids}, got {len(rows)}"
            )
        return dict(zip(ids, rows, strict=True))

    def reset(self, reset_param: Mapping[int, Mapping[str, Any] | None] | None = None) -> None:
        """Reset all envs, or those in ``reset_param``, and wait for them."""
        self._shown = None
        super().reset(reset_param)


class BaseEnvManagerV2(ArrayForm):
    """``BaseEnvManager`` with arrays.

    Example:
        >>> import gymnasium
        >>> from shoal.faces.ding import BaseEnvManagerV2, DingEnvWrapper
        >>> fns = [lambda: DingEnvWrapper(gymnasium.make("CartPole-v1"))] * 2
        >>> manager = BaseEnvManagerV2(fns, BaseEnvManagerV2.default_config())
        >>> manager.launch()
        >>> manager.ready_obs.shape
        (2, 4)
        >>> [timestep.env_id.item() for timestep in manager.step(np.array([0, 1]))]
        [0, 1]
        >>> manager.close()
    """


class SubprocessEnvManagerV2(ArrayForm, SyncSubprocessEnvManager):
    """``SyncSubprocessEnvManager`` with arrays."""


def tree_timestep(env_id: int, timestep: Any, *, keeps_text: bool = False) -> TreeArray:
    """A timestep as a tree of arrays; its info has text only if asked for."""
    obs, reward, done, info = timestep.obs, timestep.reward, timestep.done, timestep.info
    return TreeArray.of(
        {
            "obs": obs if obs.__class__ is np.ndarray else tree_of(obs),
            "reward": reward if reward.__class__ is np.ndarray else tree_of(reward),
            "done": None if done is None else _FLAGS[bool(done)].copy(),
            "info": _info(info, keeps_text) if info else TreeArray.of({}),
            "env_id": np.array(env_id),
        }
    )


def _info(info: Any, keeps_text: bool) -> Any:
    if isinstance(info, (list, tuple)):  # each agent has its own
        return [info_tree(own, keeps_text=keeps_text) for own in info]
    return info_tree(info, keeps_text=keeps_text)


def is_by_id(actions: Any) -> bool:
    """Whether these actions are keyed by env id."""
    return isinstance(actions, Mapping) and all(isinstance(key, (int, np.integer)) for key in actions)
