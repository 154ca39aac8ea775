"""nerveX's env managers, the forebears of DI-engine's: results are lists, or dicts when ids are given.

>>> from shoal.faces.ding.nervex import BaseEnvManager, SubprocessEnvManager
"""

from shoal.faces.ding.nervex.env import BaseEnv, EnvInfo, Timestep
from shoal.faces.ding.nervex.managers import BaseEnvManager, SubprocessEnvManager

__all__ = ["BaseEnv", "BaseEnvManager", "EnvInfo", "SubprocessEnvManager", "Timestep"]
