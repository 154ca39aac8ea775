"""The same envs on every engine that can run them, in turns, and what ``engine="auto"`` would choose."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

from shoal.build import make_pool, own_recipe
from shoal.collect.random_actions import RandomActions
from shoal.doctor.diagnosis import Diagnosis, brief, plural
from shoal.engines.kernel.installed import has_numba
from shoal.errors import ShoalError
from shoal.recipes import recipe_for

if TYPE_CHECKING:
    from shoal.pool import Pool

# Engines take turns, so that whatever else the machine does affects all of them alike.
_TURNS = 3
_TURN_S = 0.1
_LONGEST_S = 15.0
_ACTIONS_AHEAD = 16
# A bare loop flatters processes, since a policy between two steps wants the cores too. A smaller lead is no reason.
_CLEARLY_FASTER = 1.5


@dataclass
class Race:
    """Pools of one env on several engines.

    Attributes:
        num_envs: Envs in each pool.
        auto: The engine that ``auto`` chose; empty if it could not start.
        reason: Why it chose that engine, or could not start.
        rates: Env steps per second by engine.
        failed: Engines that could not run the envs, and why.
    """

    num_envs: int
    auto: str = ""
    reason: str = ""
    rates: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def race(env: Any, num_envs: int, num_workers: int | None, *, can_ship: bool) -> Race:
    """Run the envs on every engine, and measure. Without ``can_ship`` there is no point in trying processes."""
    result = Race(num_envs)
    with ExitStack() as stack:
        pools: dict[str, Pool] = {}
        try:
            auto = stack.enter_context(make_pool(env, num_envs, num_workers=num_workers))
            stats = auto.stats()
            pools[stats.engine], result.auto, result.reason = auto, stats.engine, stats.engine_reason
        except (ShoalError, OSError) as error:
            result.reason = brief(error) if can_ship else "it tries the env in a worker process first"
        for name in ("serial", "thread", *["process"] * can_ship, *["kernel"] * can_be_compiled(env)):
            if name not in pools:
                try:
                    # Threads are for envs that wait, and then the point is to have one per env.
                    workers = num_workers if name == "process" else None
                    pools[name] = stack.enter_context(make_pool(env, num_envs, engine=name, num_workers=workers))
                except (ShoalError, OSError) as error:
                    result.failed[name] = brief(error)
        _take_turns({name: pools[name] for name in sorted(pools)}, result)
    return result


def can_be_compiled(env: Any) -> bool:
    """Whether the kernel engine can run the env, and numba is there to compile it."""
    recipe = own_recipe(env, "kernel", 1, None, None, None) or recipe_for(env, 1)
    return recipe.is_kernel and has_numba()


def _actions_ahead(pool: Pool) -> list[Any]:
    draw = RandomActions(pool.spec.action, seed=1)
    return [draw(None, pool.num_envs) for _ in range(_ACTIONS_AHEAD)]


def _take_turns(pools: dict[str, Pool], result: Race) -> None:
    spent: dict[str, tuple[int, float]] = dict.fromkeys(pools, (0, 0.0))
    # Drawn in advance: for a cheap env, sampling would be a good part of the result.
    actions = {name: _actions_ahead(pool) for name, pool in pools.items()}
    start = perf_counter()
    for turn in range(_TURNS + 1):
        for name, pool in list(pools.items()):
            try:
                if not turn:  # the first turn warms up
                    pool.reset(seed=1)
                batches, took_s = _turn(pool, actions[name], _TURN_S if turn else 0.0)
            except (ShoalError, OSError) as error:
                result.failed[name] = brief(error)
                del pools[name]
                continue
            done, so_far_s = spent[name]
            spent[name] = (done + batches, so_far_s + took_s) if turn else (0, 0.0)
        if turn and perf_counter() - start > _LONGEST_S:
            break
    result.rates = {name: spent[name][0] * pool.num_envs / spent[name][1] for name, pool in pools.items()}


def _turn(pool: Pool, actions: list[Any], least_s: float) -> tuple[int, float]:
    batches, start = 0, perf_counter()
    while True:
        pool.step(actions[batches % len(actions)])
        batches += 1
        took_s = perf_counter() - start
        if took_s >= least_s:
            return batches, took_s


def judge_auto(result: Race) -> Diagnosis:
    """Which engine ``auto`` chooses, and why."""
    if result.auto:
        reason = f": {result.reason}" if result.reason else ""
        return Diagnosis("engine='auto'", "ok", f"takes {result.auto}{reason}")
    fix = f"name an engine that works: engine='{best_of(result)}'" if result.rates else ""
    return Diagnosis("engine='auto'", "problem", f"cannot be used: {result.reason}", fix)


def judge_rates(result: Race, wanted: int) -> Diagnosis:
    """How fast each engine was, and whether ``auto`` is the one to use."""
    ranked = sorted(result.rates.items(), key=lambda pair: -pair[1])
    told = ", ".join(f"{name} {_rate(rate)}" for name, rate in ranked)
    found = f"{told} env-steps/s in a bare loop of {plural(result.num_envs, 'env')}" if ranked else "none can run it"
    if result.num_envs < wanted:
        found += f" (not {wanted}, to save time or memory)"
    found += "".join(f"; {name} cannot: {why}" for name, why in result.failed.items())
    if not ranked:
        return Diagnosis("engines", "problem", found)
    best, rate = ranked[0]
    if result.auto in result.rates and rate > _CLEARLY_FASTER * result.rates[result.auto]:
        times = rate / result.rates[result.auto]
        return Diagnosis(
            "engines", "warning", found, f"try engine='{best}', {times:.1f} times as fast as '{result.auto}'"
        )
    return Diagnosis("engines", "ok", found)


def best_of(result: Race) -> str:
    """The engine that was fastest."""
    return max(result.rates, key=lambda name: result.rates[name])


def _rate(per_s: float) -> str:
    for factor, unit in ((1e6, "M"), (1e3, "k")):
        if per_s >= factor:
            return f"{per_s / factor:.3g} {unit}"
    return f"{per_s:.3g}"
