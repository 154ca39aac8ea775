"""shoal runs many reinforcement-learning environments as one.

    >>> import shoal
    >>> envs = shoal.make_vec("CartPole-v1", num_envs=4, engine="serial")
    >>> obs, infos = envs.reset(seed=1)
    >>> envs.close()

Names are loaded on first use, so that ``import shoal`` costs next to nothing.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal import collect as collect
    from shoal import errors as errors
    from shoal import minigrid as minigrid
    from shoal.batch import Batch as Batch
    from shoal.build import make_pool as make_pool
    from shoal.collect import Collector as Collector
    from shoal.doors import make_vec as make_vec
    from shoal.envs.mujoco.env import MujocoEnv as MujocoEnv
    from shoal.faces.envpool.base import EnvPool as EnvPool
    from shoal.faces.envpool.dm import DMEnvPool as DMEnvPool
    from shoal.faces.envpool.doors import make as make
    from shoal.faces.envpool.doors import make_dm as make_dm
    from shoal.faces.envpool.doors import make_gym as make_gym
    from shoal.faces.envpool.doors import make_gymnasium as make_gymnasium
    from shoal.faces.envpool.doors import make_spec as make_spec
    from shoal.faces.envpool.gymnasium import GymnasiumEnvPool as GymnasiumEnvPool
    from shoal.faces.envpool.spec import EnvSpec as EnvSpec
    from shoal.faces.gymnasium import ShoalVectorEnv as ShoalVectorEnv
    from shoal.kernel import KernelEnv as KernelEnv
    from shoal.pool import Pool as Pool
    from shoal.recovery import Restart as Restart
    from shoal.registry import list_all_envs as list_all_envs
    from shoal.registry import register as register
    from shoal.slot import Autoreset as Autoreset
    from shoal.stats import PoolStats as PoolStats

__version__ = "0.1.0"

_HOMES = {
    "Autoreset": "shoal.slot",
    "Batch": "shoal.batch",
    "Collector": "shoal.collect",
    "Pool": "shoal.pool",
    "PoolStats": "shoal.stats",
    "Restart": "shoal.recovery",
    "ShoalVectorEnv": "shoal.faces.gymnasium",
    "KernelEnv": "shoal.kernel",
    "MujocoEnv": "shoal.envs.mujoco",
    "list_all_envs": "shoal.registry",
    "make": "shoal.faces.envpool.doors",
    "make_dm": "shoal.faces.envpool.doors",
    "make_gym": "shoal.faces.envpool.doors",
    "make_gymnasium": "shoal.faces.envpool.doors",
    "make_pool": "shoal.build",
    "make_spec": "shoal.faces.envpool.doors",
    "register": "shoal.registry",
    "make_vec": "shoal.doors",
}
# For annotations in programs written for EnvPool. A star import leaves them out, since the faces behind them need
# libraries of their own.
_TYPES = {
    "DMEnvPool": "shoal.faces.envpool.dm",
    "EnvPool": "shoal.faces.envpool.base",
    "EnvSpec": "shoal.faces.envpool.spec",
    "GymnasiumEnvPool": "shoal.faces.envpool.gymnasium",
}
_MODULES = ("collect", "errors", "testing")
# A module of EnvPool's; a star import leaves it out, too.
_ENVPOOLS = ("minigrid",)

__all__ = [*sorted(_HOMES), *_MODULES, "__version__"]

logging.getLogger("shoal").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name) or _TYPES.get(name)
    if home is not None:
        value = getattr(importlib.import_module(home), name)
    elif name in _MODULES or name in _ENVPOOLS:
        value = importlib.import_module(f"shoal.{name}")
    else:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_TYPES, *_ENVPOOLS})
