"""The bridge to TorchRL itself: a genuine TorchRL env over one of this library's envs.

TorchRL's collectors, losses, trainers and replay buffers treat what ``to_torchrl`` returns as one of their own envs;
the envs behind it run in a pool. TorchRL is imported when ``to_torchrl`` is called, and not before.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from shoal.errors import BackendUnavailable

if TYPE_CHECKING:
    from shoal.faces.torchrl.bridge_env import ShoalEnv


def to_torchrl(env: Any, **options: Any) -> ShoalEnv:
    """A genuine ``torchrl.envs.EnvBase`` over an env or a pool.

    Args:
        env: An env of this dialect (``GymEnv``, ``ParallelEnv``, ``AsyncEnvPool`` ...), a pool, a vector env or a
            Gymnasium env. It is closed when the result is.
        **options: For pools and Gymnasium envs: arguments of ``GymWrapper``, such as
            ``categorical_action_encoding``.

    Raises:
        BackendUnavailable: TorchRL is not installed.

    Example:
        >>> from shoal import make_pool
        >>> env = to_torchrl(make_pool("CartPole-v1", 8, autoreset="disabled"))  # doctest: +SKIP
        >>> from torchrl.collectors import Collector  # doctest: +SKIP
        >>> collector = Collector(env, frames_per_batch=256, total_frames=1024)  # doctest: +SKIP
    """
    if find_spec("torchrl") is None:
        raise BackendUnavailable("the bridge to TorchRL needs TorchRL: pip install torchrl")
    from shoal.faces.torchrl.bridge_env import bridged
    from shoal.faces.torchrl.env_base import EnvBase

    if isinstance(env, EnvBase):
        if options:
            raise TypeError(f"{type(env).__name__} has its options already: {sorted(options)}")
        return bridged(env)
    from shoal.faces.torchrl.gym import GymWrapper

    return bridged(GymWrapper(env, **options))
