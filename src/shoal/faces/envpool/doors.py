"""EnvPool's front doors: from a task id to a pool behind one of its three faces."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from shoal.errors import ArgumentError, WrongSetting
from shoal.faces.envpool.spec import EnvSpec, stem_of
from shoal.registry import envpool_task, find

if TYPE_CHECKING:
    from shoal.faces.envpool.base import EnvPool
    from shoal.faces.envpool.classic_gym import GymEnvPool
    from shoal.faces.envpool.dm import DMEnvPool
    from shoal.faces.envpool.gymnasium import GymnasiumEnvPool

ENV_TYPES = ("dm", "gym", "gymnasium")
_SEEDS = {"seed", "env_seed"}


def make(task_id: Any, env_type: str = "gymnasium", **config: Any) -> Any:
    """Many envs as one, with the interface of EnvPool.

    Args:
        task_id: One of ``list_all_envs()``, an env class or a function that makes an env, or the ``spec`` of another
            pool, to make a pool like it.
        env_type: ``"gymnasium"`` (five results per step), ``"gym"`` (four) or ``"dm"`` (a ``TimeStep``).
        **config: Options of the env, and any of

            - ``num_envs``: how many envs, 1 by default.
            - ``batch_size``: rows per ``recv``. Smaller than ``num_envs``, it makes the pool asynchronous.
            - ``num_threads``: workers; 0 leaves the number to shoal.
            - ``seed``: one int (env ``i`` gets ``seed + i``), one seed per env, or None for a fresh one; 42 by default.
              ``env_seed`` is the same with one seed per env, and counts where both are given.
            - ``max_episode_steps``, ``reward_threshold``: in place of the task's own.
            - ``thread_affinity_offset``: the first CPU to pin workers to; -1 pins none.
            - ``autoreset``: ``"next_step"`` as in EnvPool, ``"same_step"``, which has the last observations in
              ``info["final_obs"]``, or ``"disabled"``.
            - ``engine``: ``"auto"`` runs compiled envs on the kernel engine and chooses for others, ``"envpool"`` has
              EnvPool itself run them; see ``make_vec``.
            - ``on_fault``, ``on_nan``, ``fault_dir``, ``construct_timeout``, ``reset_timeout``, ``step_timeout``,
              ``close_timeout``: what happens to envs that fail or hang; see ``make_vec``.
            - ``gym_reset_return_info``: whether the classic ``reset`` returns an info, too.
            - ``render_mode`` (``"rgb_array"`` or ``"human"``), ``render_env_id``, ``render_width``, ``render_height``,
              ``render_camera_id``: for ``render``.
            - ``max_num_players``: how many may play in one env; by default, as many as the env has players.
            - ``base_path``: accepted for compatibility with EnvPool; envs here have no assets.

    Raises:
        ArgumentError: If there is no such task or env type, or a value makes no sense.
        TypeError: If a key is unknown.

    Example:
        >>> import shoal
        >>> envs = shoal.make("CartPole-v1", env_type="gym", num_envs=3)
        >>> envs.reset().shape
        (3, 4)
        >>> envs.close()
    """
    if env_type not in ENV_TYPES:
        raise WrongSetting(f"env_type: expected one of {ENV_TYPES}, got {env_type!r}")
    spec = _spec(task_id, config, reset_returns_info=env_type != "gym")
    if env_type != "gym" and not spec.settings.config["gym_reset_return_info"]:
        raise ArgumentError(f"gym_reset_return_info: only env_type='gym' has a choice, and this is {env_type!r}")
    return face_of(stem_of(spec.task.id), env_type)(spec)


def make_gymnasium(task_id: Any, **config: Any) -> GymnasiumEnvPool:
    """``make(task_id, "gymnasium")``: a ``gymnasium.vector.VectorEnv`` with ``send`` and ``recv``.

    Example:
        >>> import shoal
        >>> with shoal.make_gymnasium("CartPole-v1", num_envs=3, engine="serial") as envs:
        ...     obs, info = envs.reset()
        >>> obs.shape, info["env_id"].tolist()
        ((3, 4), [0, 1, 2])
    """
    pool: GymnasiumEnvPool = make(task_id, "gymnasium", **config)
    return pool


def make_gym(task_id: Any, **config: Any) -> GymEnvPool:
    """``make(task_id, "gym")``: the interface of gym before 0.26.

    Example:
        >>> import shoal
        >>> with shoal.make_gym("CartPole-v1", num_envs=3, engine="serial") as envs:
        ...     obs = envs.reset()
        ...     obs, reward, done, info = envs.step([0, 1, 0])
        >>> reward.tolist(), done.tolist()
        ([1.0, 1.0, 1.0], [False, False, False])
    """
    pool: GymEnvPool = make(task_id, "gym", **config)
    return pool


def make_dm(task_id: Any, **config: Any) -> DMEnvPool:
    """``make(task_id, "dm")``: a ``dm_env.Environment`` with ``send`` and ``recv``.

    Example:
        >>> import shoal
        >>> with shoal.make_dm("CartPole-v1", num_envs=3, engine="serial") as envs:
        ...     timestep = envs.reset()
        >>> timestep.step_type.tolist(), timestep.observation.obs.shape
        ([0, 0, 0], (3, 4))
    """
    pool: DMEnvPool = make(task_id, "dm", **config)
    return pool


def make_spec(task_id: Any, **config: Any) -> EnvSpec:
    """What ``make`` would make: its config, spaces and arrays, without the pool.

    Example:
        >>> import shoal
        >>> spec = shoal.make_spec("CartPole-v1", num_envs=3)
        >>> spec.config.num_envs, spec.action_space
        (3, Discrete(2))
    """
    return _spec(task_id, config, reset_returns_info=True)


def _spec(task_id: Any, config: dict[str, Any], *, reset_returns_info: bool) -> EnvSpec:
    if isinstance(task_id, EnvSpec):
        # New seeds, in whichever form, take the place of those that the spec has.
        replaced = _SEEDS if config.keys() & _SEEDS else set()
        kept = {name: value for name, value in task_id.given.items() if name not in replaced}
        return EnvSpec(task_id.found, {**kept, **config}, reset_returns_info)
    task = envpool_task(task_id) if config.get("engine") == "envpool" else find(task_id)
    return EnvSpec(task, config, reset_returns_info)


@cache
def face_of(stem: str, env_type: str) -> type[EnvPool]:
    """The class of a kind of pool, such as ``CartPoleGymnasiumEnvPool``; the same for all pools of its kind."""
    # Imported on demand, since each face needs another library.
    base: type[EnvPool]
    if env_type == "dm":
        from shoal.faces.envpool.dm import DMEnvPool as base
    elif env_type == "gym":
        from shoal.faces.envpool.classic_gym import GymEnvPool as base
    else:
        from shoal.faces.envpool.gymnasium import GymnasiumEnvPool as base
    return type(f"{stem}{base.__name__}", (base,), {"__doc__": base.__doc__, "__module__": base.__module__})
