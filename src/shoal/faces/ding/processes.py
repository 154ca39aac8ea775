"""Managers that run their envs in worker processes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from shoal.faces.ding.base import BaseEnvManager
from shoal.faces.ding.config import Manners

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.faces.ding.config import Settings

QUICK_RESET_S = 0.1
"""How long an env that resets by itself is waited for."""


class AsyncSubprocessEnvManager(BaseEnvManager):
    """Envs in processes of their own, each at its own pace.

    A step waits for ``wait_num`` answers, and until it has taken ``step_wait_timeout`` seconds. It returns the envs
    that have answered by then, which need not be those it was given: envs that have not answered are not in
    ``ready_obs``, and a later step returns them. With a ``step_wait_timeout`` of None or 0 it waits for all envs.
    """

    config: ClassVar[dict[str, Any]] = {
        **BaseEnvManager.config,
        "shared_memory": True,
        "copy_on_get": True,
        "context": "fork",
        "wait_num": 2,
        "step_wait_timeout": 0.01,
        "connect_timeout": 60,
        "reset_inplace": False,
    }
    _has_processes = True

    def _settings(self, cfg: Mapping[str, Any]) -> Settings:
        return replace(super()._settings(cfg), is_uneven=True)

    def _manners(self, settings: Settings) -> Manners:
        return Manners(engine="process", waits_for_all=False, closes_on_failure=True, spares_recordings=False)

    @property
    def ready_obs_id(self) -> list[int]:
        """Ids of the envs that run, among them those that have not answered yet; ``ready_env`` leaves these out."""
        return self._core.running() if self._core.is_open else []


class SyncSubprocessEnvManager(AsyncSubprocessEnvManager):
    """Envs in worker processes, in lockstep.

    A step returns exactly the envs that it was given. Envs whose episode has ended are reset meanwhile: one that is
    back within a tenth of a second is in the next ``ready_obs``; one that takes longer delays at most the envs in the
    same process. With ``reset_inplace`` a step waits for its resets, however long they take.
    """

    config: ClassVar[dict[str, Any]] = {
        **AsyncSubprocessEnvManager.config,
        "wait_num": float("inf"),
        "step_wait_timeout": None,
    }

    def _settings(self, cfg: Mapping[str, Any]) -> Settings:
        return replace(super()._settings(cfg), is_uneven=False)

    def _manners(self, settings: Settings) -> Manners:
        return replace(super()._manners(settings), waits_for_all=True, quick_reset_s=QUICK_RESET_S)
