"""EnvPool's classic dialect, that of gym before 0.26: four results per step, only observations from reset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Env

from shoal.faces.envpool.base import EnvPool

if TYPE_CHECKING:
    from shoal.batch import Batch
    from shoal.faces.envpool.spec import EnvSpec

_FLOAT32 = np.dtype(np.float32)


class GymEnvPool(EnvPool, Env[Any, Any]):  # type: ignore[misc]
    """A pool with EnvPool's classic gym interface, made by ``make_gym``.

    ``step`` returns ``(obs, reward, done, info)``, and ``info["TimeLimit.truncated"]`` says where an episode was cut
    short. ``reset`` returns observations, or ``(obs, info)`` if the pool was made with ``gym_reset_return_info``.

    Like EnvPool's, it is a ``gymnasium.Env``, so that wrappers take it. It is no ``VectorEnv``: those have five results
    per step.

    Attributes:
        metadata: Render modes.
        render_mode: What ``render`` does.
        is_vector_env: True, for code that asks.
    """

    env_type = "gym"
    is_vector_env = True

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec)
        self.render_mode = spec.settings.rendering.mode
        self.metadata = dict(self.pool.spec.metadata)
        self._return_info: bool = spec.settings.config["gym_reset_return_info"]

    def _step_result(self, batch: Batch) -> Any:
        obs = self._given(batch.obs)
        return obs, batch.reward.astype(_FLOAT32), batch.terminated | batch.truncated, self._full_info(batch)

    def _reset_result(self, batch: Batch) -> Any:
        return self._received_reset(batch, self._return_info)

    def _received_reset(self, batch: Batch, return_info: bool) -> Any:
        obs = self._given(batch.obs)
        return (obs, self._full_info(batch)) if return_info else obs

    def _full_info(self, batch: Batch) -> dict[str, Any]:
        info = self._info(batch)
        info["TimeLimit.truncated"] = batch.truncated
        return info
