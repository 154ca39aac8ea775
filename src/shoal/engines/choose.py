"""Building an engine by name, and choosing one when the choice is left to shoal."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shoal.engines.base import Command, Engine, EngineConfig, Request, sharers
from shoal.engines.kernel.installed import has_numba
from shoal.envs.mujoco import check_installed
from shoal.errors import ArgumentError, ShippingError, ShoalError
from shoal.machine import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = ("auto", "serial", "thread", "process", "kernel", "native", "envpool")

# A batch that takes less than this is not worth handing to other processes: what they save in a bare stepping loop
# they take back from the policy that runs between two steps. See docs/performance.md for the measurements.
_WORTH_SHARING_S = 0.5e-3
_WAITS = 0.5  # an env that is on the CPU for less than this share of its step counts as waiting for something


def build_engine(name: str, config: EngineConfig) -> tuple[Engine, str]:
    """A started engine, and why this one, if it was chosen here."""
    reason, is_chosen_here = "", name == "auto"
    check_installed(getattr(config.factories[0], "spec", None), needs_batch=name == "native")
    if name == "inline":
        raise ArgumentError("engine: the caller joins the workers of engine='process' with inline=True")
    if is_chosen_here:
        name, reason = _choose(config)
    elif name == "kernel":
        name, reason = _compiled_or_plain(config)
    elif name == "envpool" and config.is_native:
        name, reason = "native", "EnvPool runs all envs at once"
    elif name in ("native", "envpool") and not config.is_native:
        raise ArgumentError(
            f"engine: the {name} engine runs NativeEnv classes without wrappers, and {config.name} is none"
        )
    if config.inline:
        name, reason = _with_caller(name, config, reason, is_chosen_here)
    try:
        return _started(name, config), reason
    except ShippingError as error:
        if not is_chosen_here or _wants_workers(config):
            raise
        return _started("serial", config), f"it has to stay in this process: {error}"


def _with_caller(name: str, config: EngineConfig, reason: str, is_chosen_here: bool) -> tuple[str, str]:
    """The engine to run when the caller is one of the workers; if it is the only one, that is the serial engine."""
    if name != "process":
        if not is_chosen_here:
            raise ArgumentError(f"inline: the caller can be one of the workers of engine='process', not of {name!r}")
        return name, reason
    return ("inline", reason) if sharers(config) > 1 else ("serial", "the caller is the only worker")


def _started(name: str, config: EngineConfig) -> Engine:
    engine = _class_of(name)(config)
    engine.start()
    return engine


def _wants_workers(config: EngineConfig) -> bool:
    return config.num_workers is not None or config.start_method is not None


def _class_of(name: str) -> Callable[[EngineConfig], Engine]:
    # Imported on demand: a serial pool has no use for multiprocessing.
    if name == "serial":
        from shoal.engines.serial import SerialEngine

        return SerialEngine
    if name == "thread":
        from shoal.engines.thread import ThreadEngine

        return ThreadEngine
    if name == "process":
        from shoal.engines.process import ProcessEngine

        return ProcessEngine
    if name == "inline":
        from shoal.engines.inline import InlineEngine

        return InlineEngine
    if name == "kernel":
        from shoal.engines.kernel.engine import KernelEngine

        return KernelEngine
    if name == "native":
        from shoal.engines.native.engine import NativeEngine

        return NativeEngine
    raise ArgumentError(f"engine: expected one of {NAMES}, got {name!r}")


def _choose(config: EngineConfig) -> tuple[str, str]:
    if config.is_kernel:
        return _compiled_or_plain(config)
    if config.is_native and len({id(config.factories[i]) for i in range(config.num_envs)}) == 1:
        return "native", "a simulator runs all envs at once"
    if config.num_envs == 1:
        return "serial", "one env gains nothing from workers"
    if config.start_method is None and (why := _why_no_workers()):
        # Nor can the env be measured: that is done in a worker, since envs may crash.
        return ("serial", why) if config.num_workers is None else ("thread", f"workers were asked for, but {why}")
    if _wants_workers(config):
        return "process", "workers were asked for"
    try:
        step_s, cpu_share, trapped = _measure(config)
    except ShoalError as error:
        # The real start will run into the same trouble and report it properly.
        return "process", f"the env could not be measured ({error})"
    told = f"a step takes {step_s * 1e6:.0f} µs"
    if cpu_share < _WAITS and step_s > 100e-6:
        return "thread", f"{told}, of which {100 * (1 - cpu_share):.0f} % is waiting, so threads serve it best"
    batch_s = step_s * config.num_envs
    if usable_cores() == 1 or batch_s < _WORTH_SHARING_S:
        return "serial", f"{told}, so a batch of {config.num_envs} is too short to share between processes"
    if trapped and not config.allow_pickle:
        return "serial", f"it has to stay in this process: {trapped}"
    return "process", f"{told}, so a batch of {config.num_envs} is worth sharing between {usable_cores()} cores"


def _why_no_workers() -> str:
    from shoal.engines.process.launch import why_no_workers

    return why_no_workers()


def _compiled_or_plain(config: EngineConfig) -> tuple[str, str]:
    if not config.is_kernel:
        raise ArgumentError(
            f"engine: the kernel engine runs KernelEnv classes without wrappers, and {config.name} is none"
        )
    if has_numba():
        return "kernel", "the env is compiled"
    warnings.warn(
        f"numba is not installed, so {config.name} runs as plain Python: the same rows, but slowly. "
        "Install it with: pip install 'shoal[kernels]'",
        stacklevel=5,  # the line that makes the pool
    )
    return "serial", "the env could be compiled, but numba is not installed"


def _measure(config: EngineConfig) -> tuple[float, float, str]:
    """Seconds per step of an env in its own process, the share of them on the CPU, and what cannot leave it."""
    process: Any = _class_of("process")
    engine = process(replace(config, factories=[config.factories[0]], num_workers=1, threads_per_worker=1))
    engine.start()
    try:
        engine.submit([0], Command.CALL, {0: Request(call=("measure", "", (), {}))})
        engine.collect(1, None)
        if 0 in engine.faults:
            raise engine.faults[0].to_error()
        step_s, cpu_share, trapped = engine.extras[0].value
        return float(step_s), float(cpu_share), str(trapped)
    finally:
        engine.close()
