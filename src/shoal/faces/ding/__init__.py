"""DI-engine's dialect: env managers that take actions by env id, with a pool behind them.

    base, processes, v2, supervisor    the managers
    gym_vector, pool_manager           managers for envs that speak other dialects
    env, wrapper                       what a single env looks like, and Gymnasium's envs wrapped to look like that
    checking                           whether an env keeps to the dialect
    factory, env_classes               managers and envs by their names in a config
    nervex                             the managers of nerveX, from which these descend

Every public name can be imported from here:

    >>> import gymnasium
    >>> from shoal.faces.ding import BaseEnvManager, DingEnvWrapper
    >>> fns = [lambda: DingEnvWrapper(gymnasium.make("CartPole-v1"))] * 4
    >>> manager = BaseEnvManager(fns, BaseEnvManager.default_config())
    >>> manager.launch()
    >>> sorted(manager.ready_obs)
    [0, 1, 2, 3]
    >>> manager.close()

DI-engine itself is not needed.
"""

from shoal.faces.ding.base import BaseEnvManager
from shoal.faces.ding.checking import (
    check_all,
    check_obs_deepcopy,
    check_reset,
    check_space_dtype,
    check_step,
    demonstrate_correct_procedure,
)
from shoal.faces.ding.config import Config, deep_merge_dicts
from shoal.faces.ding.env import BaseEnv, BaseEnvTimestep
from shoal.faces.ding.env_classes import ENV_REGISTRY, create_model_env, get_env_cls, get_vec_env_setting
from shoal.faces.ding.factory import (
    ENV_MANAGER_REGISTRY,
    create_env_manager,
    get_env_manager_cls,
    setup_ding_env_manager,
)
from shoal.faces.ding.gym_vector import GymVectorEnvManager
from shoal.faces.ding.monitor import VectorEvalMonitor
from shoal.faces.ding.pool_manager import PoolEnvManager
from shoal.faces.ding.processes import AsyncSubprocessEnvManager, SyncSubprocessEnvManager
from shoal.faces.ding.states import EnvState
from shoal.faces.ding.supervisor import ChildType, EnvSupervisor, RecvPayload
from shoal.faces.ding.tree import TreeArray
from shoal.faces.ding.v2 import BaseEnvManagerV2, SubprocessEnvManagerV2
from shoal.faces.ding.wrapper import DingEnvWrapper

__all__ = [
    "ENV_MANAGER_REGISTRY",
    "ENV_REGISTRY",
    "AsyncSubprocessEnvManager",
    "BaseEnv",
    "BaseEnvManager",
    "BaseEnvManagerV2",
    "BaseEnvTimestep",
    "ChildType",
    "Config",
    "DingEnvWrapper",
    "EnvState",
    "EnvSupervisor",
    "GymVectorEnvManager",
    "PoolEnvManager",
    "RecvPayload",
    "SubprocessEnvManagerV2",
    "SyncSubprocessEnvManager",
    "TreeArray",
    "VectorEvalMonitor",
    "check_all",
    "check_obs_deepcopy",
    "check_reset",
    "check_space_dtype",
    "check_step",
    "create_env_manager",
    "create_model_env",
    "deep_merge_dicts",
    "demonstrate_correct_procedure",
    "get_env_cls",
    "get_env_manager_cls",
    "get_vec_env_setting",
    "setup_ding_env_manager",
]
