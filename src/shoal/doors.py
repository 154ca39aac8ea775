"""Gymnasium's front door: from a name to a running pool behind the face of a vector env."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.build import make_pool

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from shoal.faces.gymnasium import ShoalVectorEnv
    from shoal.recipes import EnvKwargs, Wrapper
    from shoal.recovery import Restart
    from shoal.seeding import Seed


def make_vec(
    env: Any,
    num_envs: int | None = None,
    *,
    engine: str = "auto",
    num_workers: int | None = None,
    batch_size: int | None = None,
    autoreset: Any = "next_step",
    seed: Seed = None,
    env_kwargs: EnvKwargs = None,
    wrappers: Sequence[Wrapper] | None = None,
    max_episode_steps: int | None = None,
    start_method: str | None = None,
    affinity: Sequence[int] | None = None,
    copy: bool = True,
    check: str = "always",
    on_fault: str | Restart = "raise",
    on_nan: str = "raise",
    fault_dir: str | os.PathLike[str] | None = None,
    recycle_above: int | None = None,
    construct_timeout: float | None = 60.0,
    reset_timeout: float | None = 60.0,
    step_timeout: float | None = 60.0,
    close_timeout: float = 5.0,
    threads_per_worker: int = 1,
    inline: bool = False,
    allow_pickle: bool = False,
) -> ShoalVectorEnv:
    """Many envs as one ``gymnasium.vector.VectorEnv``.

    Args:
        env: A registered id (without a version, the latest one), a Gymnasium ``EnvSpec``, a ``KernelEnv`` class, a
            callable that makes an env (Gymnasium's, dm_env's or a parallel one of PettingZoo's), or a list of such
            callables, one per env.
        num_envs: How many envs; for a list, its length.
        engine: ``"serial"``, ``"thread"``, ``"process"``, ``"kernel"`` for compiled envs, ``"native"`` for envs that a
            native simulator runs, ``"envpool"`` for EnvPool's own envs if that package is installed, or ``"auto"``,
            which takes the kernel or native engine if it can, and otherwise measures the env and chooses;
            ``stats().engine_reason`` says why.
        num_workers: Threads or processes; by default one thread per env, or one process per usable core.
        batch_size: Rows per ``recv``. If smaller than ``num_envs``, the pool is asynchronous.
        autoreset: ``"next_step"``, ``"same_step"`` or ``"disabled"``, as in Gymnasium.
        seed: Seed for the first reset, unless that reset is given its own: env ``i`` gets ``seed + i``.
        env_kwargs: Keyword arguments for every env, or a list with one mapping per env.
        wrappers: Applied to each env where it runs, innermost first.
        max_episode_steps: A time limit in place of the registered one.
        start_method: ``"forkserver"`` (default), ``"fork"`` or ``"spawn"``.
        affinity: CPUs to pin workers (processes or threads) to, assigned in turn. The threads of native simulators are
            left alone.
        copy: Whether observations are copies. If False, they are views that stay valid for one further call.
        check: When the results of envs are checked against their contract: ``"always"``, on the ``"first"`` step, or
            not at all (``"off"``).
        on_fault: What becomes of an env that fails: it raises a ``shoal.errors.FaultError`` (``"raise"``), is built
            anew (``"restart"``, or a ``shoal.Restart`` with its own budget), or is out for good (``"drop"``). Unless it
            raises, its row reports the fault.
        on_nan: What becomes of rows with NaN: they are faults too (``"raise"``), end their episode (``"truncate"``), or
            are only counted (``"pass"``).
        recycle_above: Bytes of memory above which a worker process is replaced, for envs that leak. Each env moves to
            the new worker at the end of an episode; the rows stay the same.
        fault_dir: A folder to record faults in: the commands an env got since its last seed, for ``shoal replay``.
        construct_timeout: Seconds an env may take to be built; None waits for ever.
        reset_timeout: Seconds an env may take to reset.
        step_timeout: Seconds an env may take to step.
        close_timeout: Seconds that ``close`` may take before it ends workers by force.
        threads_per_worker: How many envs of a worker process may run at the same time; for envs that mostly wait.
        inline: Whether your thread is one of the ``num_workers`` and steps the last share of the envs itself while the
            worker processes step theirs. Nothing is faster for cheap envs, but if one of these hangs or crashes, so
            does your program.
        allow_pickle: Whether infos and observations that are not plain data may leave a worker as pickles.

    Example:
        >>> import shoal
        >>> envs = shoal.make_vec("CartPole-v1", num_envs=3, engine="serial")
        >>> obs, infos = envs.reset(seed=1)
        >>> obs, rewards, terminated, truncated, infos = envs.step(envs.action_space.sample())
        >>> obs.shape, rewards
        ((3, 4), array([1., 1., 1.]))
        >>> envs.close()
    """
    options = dict(locals())
    from shoal.faces.gymnasium import ShoalVectorEnv

    return ShoalVectorEnv(make_pool(options.pop("env"), options.pop("num_envs"), **options))
