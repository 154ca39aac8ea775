"""Many envs on one pool, with TorchRL's interface to EnvPool: no trailing dim of 1, actions as integers.

``MultiThreadedEnv`` makes the pool. Compiled envs run on the kernel engine, which splits large batches among several
threads; any other env runs on the engine that suits it. ``MultiThreadedEnvWrapper`` takes a pool, an env from
``shoal.make`` or ``shoal.make_vec``, or a pool from the EnvPool package.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from shoal.build import make_pool
from shoal.errors import ArgumentError
from shoal.faces.torchrl.envpool_source import EnvPoolSource, is_envpool
from shoal.faces.torchrl.gym import GymWrapper
from shoal.faces.torchrl.gym_making import ClassProperty, make_gym_pool
from shoal.pool import Pool
from shoal.registry import list_all_envs

if TYPE_CHECKING:
    from tensordict import TensorDictBase

_POOL_OPTIONS = frozenset(inspect.signature(make_pool).parameters) - {"env", "num_envs", "autoreset", "env_kwargs"}
# EnvPool's names for options that have other names here.
_RENAMED = {"num_threads": "num_workers"}


class MultiThreadedEnvWrapper(GymWrapper):
    """The envs of a pool as one batch.

    Rewards and flags have the shape of the batch, and discrete actions are integers. Each env can be reset and stepped
    on its own. ``next`` has the last observation of an episode, and the root of the following step the first of the
    next one.

    Args:
        env: A ``shoal.Pool``, an env that has one (from ``shoal.make`` or ``shoal.make_vec``), or a synchronous pool
            from ``envpool.make`` with Gym's or Gymnasium's interface. The latter can only be seeded when it is made.
        **kwargs: See ``GymWrapper``.

    Example:
        >>> import shoal
        >>> from shoal.faces.torchrl import MultiThreadedEnvWrapper
        >>> env = MultiThreadedEnvWrapper(shoal.make("CartPole-v1", num_envs=4))
        >>> env.rollout(10, break_when_any_done=False)["next", "reward"].shape
        torch.Size([4, 10])
        >>> env.close()
    """

    libname = "shoal"
    git_url = None
    _names_pixels = False

    def __init__(self, env: Any = None, **kwargs: Any) -> None:
        if kwargs.pop("categorical_action_encoding", True) is not True:
            raise ArgumentError("categorical_action_encoding: actions of a MultiThreadedEnv are always integers")
        super().__init__(env, categorical_action_encoding=True, **kwargs)

    def _build_env(  # type: ignore[override]
        self, env: Any, from_pixels: bool = False, pixels_only: bool = False, **kwargs: Any
    ) -> Any:
        if kwargs:
            raise TypeError(f"{type(self).__name__} does not know {sorted(kwargs)}")
        pool = env if isinstance(env, Pool) else getattr(env, "pool", None)
        if isinstance(pool, Pool):
            return self._adopt(pool, from_pixels, pixels_only)
        if not is_envpool(env):
            raise ArgumentError(
                "env: expected a pool, or an env of shoal.make, shoal.make_vec or envpool.make, "
                f"got {type(env).__name__}"
            )
        self._adopt(EnvPoolSource(env), from_pixels, pixels_only)
        return env

    def _set_seed(self, seed: int | None) -> None:
        if self._many is None or not isinstance(self._many.source, EnvPoolSource):
            super()._set_seed(seed)

    @property
    def _flag_shape(self) -> tuple[int, ...]:
        return tuple(self.batch_size)

    @property
    def lib(self) -> Any:
        """The library."""
        import shoal.pool

        return shoal.pool

    @ClassProperty
    def available_envs(cls) -> list[str]:
        """The ids that can be made."""
        return list_all_envs()


class MultiThreadedEnv(MultiThreadedEnvWrapper):
    """Many envs of one id, as one batch.

    Args:
        num_workers: How many envs.
        env_name: The id of a task: one of ``available_envs``.
        create_env_kwargs: Options of the env, and of the pool (``engine``, ``num_threads``, ``seed``, ``on_fault`` and
            others, see ``shoal.make_vec``).
        frame_skip: How many times each action is applied.
        **kwargs: See ``GymWrapper``.

    Example:
        >>> from shoal.faces.torchrl import MultiThreadedEnv
        >>> env = MultiThreadedEnv(8, "CartPole-v1")
        >>> env.rand_step(env.reset())["next", "observation"].shape
        torch.Size([8, 4])
        >>> env.close()
    """

    def __init__(
        self, num_workers: int, env_name: str, *, create_env_kwargs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        self.__dict__["_pending_seed"] = None
        super().__init__(num_workers=num_workers, env_name=env_name, create_env_kwargs=create_env_kwargs, **kwargs)

    @property
    def env_name(self) -> str:
        """The id."""
        name: str = self._constructor_kwargs["env_name"]
        return name

    @property
    def num_workers(self) -> int:
        """How many envs."""
        count: int = self._constructor_kwargs["num_workers"]
        return count

    def _check_kwargs(self, kwargs: dict[str, Any]) -> None:
        if isinstance(kwargs["num_workers"], bool) or not isinstance(kwargs["num_workers"], int):
            raise ArgumentError(f"num_workers: expected how many envs, got {kwargs['num_workers']!r}")

    def _build_env(  # type: ignore[override]
        self,
        num_workers: int,
        env_name: str,
        create_env_kwargs: dict[str, Any] | None = None,
        from_pixels: bool = False,
        pixels_only: bool = True,
        **kwargs: Any,
    ) -> Any:
        given = {_RENAMED.get(name, name): value for name, value in {**(create_env_kwargs or {}), **kwargs}.items()}
        options = {name: value for name, value in given.items() if name in _POOL_OPTIONS}
        own = {name: value for name, value in given.items() if name not in _POOL_OPTIONS}
        if options.get("num_workers") == 0:  # EnvPool's way to say "as many as you like"
            del options["num_workers"]
        if from_pixels:
            own.setdefault("render_mode", "rgb_array")
        # One call for steps and resets; but once an env has been reset, its last picture cannot be drawn.
        options["autoreset"] = "disabled" if from_pixels else "same_step"
        pool = make_gym_pool(env_name, num_workers, own, self.frame_skip, options)
        self.wrapper_frame_skip = 1
        return self._adopt(pool, from_pixels, pixels_only)

    def _set_seed(self, seed: int | None) -> None:
        # Env i gets the seed plus i, at the next reset: as if the pool had just been made with it.
        self._pending_seed = seed

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        if self._pending_seed is not None:
            kwargs.setdefault("seed", self._pending_seed)
            self._pending_seed = None
        return super()._reset(tensordict, **kwargs)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(env={self.env_name}, num_workers={self.num_workers}, "
            f"batch_size={self.batch_size}, device={self.device})"
        )
