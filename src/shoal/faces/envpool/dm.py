"""EnvPool's dm_env dialect: ``TimeStep`` with one row per env."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.adapters.dm_env import TELLS_DISCOUNT
from shoal.errors import BackendUnavailable
from shoal.faces.envpool import dm_specs
from shoal.faces.envpool.arrayspec import INT32
from shoal.faces.envpool.base import EnvPool
from shoal.faces.envpool.infos import DISCOUNT, STEPS
from shoal.faces.envpool.players import PlayerBatch
from shoal.faces.envpool.trees import as_tuple

try:
    import dm_env
except ImportError as error:
    raise BackendUnavailable("dm_env is not installed: pip install 'shoal[dm]'") from error

if TYPE_CHECKING:
    from shoal.batch import Batch

_FLOAT32 = np.dtype(np.float32)
_ELSEWHERE = (STEPS, DISCOUNT)  # a ``TimeStep`` has these elsewhere


class DMEnvPool(EnvPool, dm_env.Environment):
    """A pool with EnvPool's dm_env interface, made by ``make_dm``.

    Every field of a ``TimeStep`` is an array with one row per env, even after a reset, where rewards are 0 and
    discounts 1. The observation is a namedtuple ``State`` of ids, observations and infos. Where several play in an
    env, observations, rewards and discounts have one row per player.
    """

    env_type = "dm"

    def observation_spec(self) -> Any:
        """What one env observes and reports."""
        return self.spec.observation_spec()

    def action_spec(self) -> Any:
        """The action of one env."""
        return self.spec.action_spec()

    def reward_spec(self) -> Any:
        """The reward of one env."""
        return dm_specs.reward_spec()

    def discount_spec(self) -> Any:
        """The discount of one env: 0 where an episode ends, for whatever reason, else 1; dm_env envs have their own."""
        return dm_specs.discount_spec()

    def _step_result(self, batch: Batch) -> Any:
        done = batch.terminated | batch.truncated
        # FIRST is 0, MID is 1, LAST is 2.
        step_type = (batch.elapsed_step > 0).astype(INT32)
        step_type += done
        if isinstance(batch, PlayerBatch):
            done = batch.players["terminated"] | batch.players["truncated"]
        # An env may know better: one that discounts a lost life, or whose time limit is not the end of the world.
        own = batch.fields.get(DISCOUNT)
        if own is None:
            discount = (~done).astype(_FLOAT32)
        elif self.pool.spec.metadata.get(TELLS_DISCOUNT):
            discount = np.where(batch.first, 1.0, own).astype(_FLOAT32)
        else:
            discount = own * ~done
        return dm_env.TimeStep(step_type, batch.reward.astype(_FLOAT32), discount, self._state(batch))

    def _reset_result(self, batch: Batch) -> Any:
        return self._step_result(batch)

    def _state(self, batch: Batch) -> Any:
        obs = self._given(batch.obs)
        players = batch.players if isinstance(batch, PlayerBatch) else {"env_id": batch.env_id.copy()}
        fields = {"env_id": batch.env_id, "players": players}
        fields.update(obs if isinstance(obs, dict) else {"obs": obs})
        if batch.fields or batch.infos or batch.finals:
            reported = self._info.reported(batch)
            fields = {**fields, **{k: v for k, v in reported.items() if k not in fields and k not in _ELSEWHERE}}
        return as_tuple("State", fields)
