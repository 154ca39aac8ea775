"""EnvPool's Gymnasium dialect: five results per step, ``(obs, info)`` from reset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Env
from gymnasium.vector import AutoresetMode, VectorEnv

from shoal.faces.envpool.base import EnvPool

if TYPE_CHECKING:
    from shoal.batch import Batch
    from shoal.faces.envpool.spec import EnvSpec

_FLOAT32 = np.dtype(np.float32)


class GymnasiumEnvPool(EnvPool, VectorEnv[Any, Any, Any], Env[Any, Any]):  # type: ignore[misc]
    """A pool with EnvPool's Gymnasium interface, made by ``make_gymnasium``.

    It is a ``gymnasium.vector.VectorEnv``, with two deviations taken from EnvPool: ``observation_space`` and
    ``action_space`` are those of one env, and rewards are float32. Like EnvPool's, it is a ``gymnasium.Env`` as well.

    Attributes:
        single_observation_space: The observation space of one env.
        single_action_space: The action space of one env.
        metadata: Render modes and ``autoreset_mode``.
        render_mode: What ``render`` does.
        is_vector_env: True, for code that asks.
    """

    env_type = "gymnasium"
    is_vector_env = True

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec)
        self.single_observation_space = self.observation_space
        self.single_action_space = self.action_space
        self.render_mode = spec.settings.rendering.mode
        mode = AutoresetMode[self.pool.autoreset.name]
        self.metadata = {**self.pool.spec.metadata, "autoreset_mode": mode}
        if (modes := self.metadata.get("render_modes")) and "human" not in modes:
            self.metadata["render_modes"] = [*modes, "human"]  # there is a window for envs that only draw

    def _step_result(self, batch: Batch) -> Any:
        obs = self._given(batch.obs)
        return obs, batch.reward.astype(_FLOAT32), batch.terminated, batch.truncated, self._info(batch)

    def _reset_result(self, batch: Batch) -> Any:
        return self._given(batch.obs), self._info(batch)
