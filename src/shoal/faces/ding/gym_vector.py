"""A manager for envs that do not know DI-engine's dialect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from shoal.errors import WrongSetting
from shoal.faces.ding.config import Config
from shoal.faces.ding.processes import SyncSubprocessEnvManager
from shoal.faces.ding.wrapper import DingEnvWrapper

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True)
class Wrapped:
    """Builds a Gymnasium env and wraps it."""

    env_fn: Callable[[], Any]

    def __call__(self) -> DingEnvWrapper:
        """Build it."""
        return DingEnvWrapper(self.env_fn())


class GymVectorEnvManager(SyncSubprocessEnvManager):
    """Gymnasium envs in worker processes, all of which move in every step.

    ``reset`` opens the manager, so there is no need to ``launch``. Envs for which a step has no action get a random
    one. A step waits for the resets that it causes.

    Args:
        env_fn: One function per env.
        cfg: ``episode_num`` and ``shared_memory``; missing keys default to those of ``SyncSubprocessEnvManager``.

    Example:
        >>> import gymnasium
        >>> fns = [lambda: gymnasium.make("CartPole-v1")] * 2
        >>> manager = GymVectorEnvManager(fns, GymVectorEnvManager.default_config())
        >>> manager.reset()
        >>> sorted(manager.step({0: 1}))
        [0, 1]
        >>> manager.close()
    """

    config: ClassVar[dict[str, Any]] = {"shared_memory": False, "episode_num": float("inf")}

    def __init__(self, env_fn: Sequence[Callable[[], Any]], cfg: Mapping[str, Any]) -> None:
        whole = {**SyncSubprocessEnvManager.config, "reset_inplace": True, **Config(cfg)}
        super().__init__([Wrapped(function) for function in env_fn], whole)

    def reset(self, reset_param: Mapping[int, Mapping[str, Any] | None] | None = None) -> None:
        """Reset all envs, building them first if there are none."""
        if reset_param is not None:
            raise WrongSetting("reset_param: envs of this manager are reset all together, and without keywords")
        if self.closed:
            self.launch()
        else:
            super().reset()

    def step(self, actions: Mapping[int, Any]) -> dict[int, Any]:
        """Step all envs that run; those without an action get a random one."""
        self._check_open()
        missing = {i: self.action_space.sample() for i in self.ready_obs_id if i not in actions}
        return self._core.step({**actions, **missing} if missing else actions)
