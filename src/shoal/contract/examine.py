"""From an env's name or maker to a report on all rules."""

from __future__ import annotations

import contextlib
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gymnasium.envs.registration import EnvSpec as RegisteredSpec

from shoal.adapters import adapt
from shoal.build import own_recipe
from shoal.contract import belongings
from shoal.contract.compare import GlobalRandom
from shoal.contract.findings import RULES, Finding, Findings, telling
from shoal.contract.replay import STEPS, Replays
from shoal.contract.walk import Walk, tell_global_random
from shoal.errors import ArgumentError, SpecError
from shoal.recipes import recipe_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.recipes import Recipe

DEFAULT_STEPS = 1000


@dataclass(frozen=True)
class Report:
    """The result of an examination.

    Attributes:
        env: The name of the env.
        findings: What was found, in the order of the rules.
        judged: Names of the rules that could be checked. For the others, the env failed too early.
    """

    env: str
    findings: tuple[Finding, ...]
    judged: frozenset[str]

    def verdict(self, rule: str) -> str:
        """``"error"``, ``"warning"``, ``"note"``, ``"ok"`` or ``"skipped"``."""
        found = {finding.severity for finding in self.findings if finding.rule == rule}
        worst = next((severity for severity in ("error", "warning", "note") if severity in found), None)
        return worst or ("ok" if rule in self.judged else "skipped")


def check_env(env: Any, *, seed: int = 0, steps: int = DEFAULT_STEPS) -> list[Finding]:
    """What is wrong with an env; an empty list if nothing is.

    The env runs in this process, with random actions. Nothing is raised for what it does wrong.

    Args:
        env: What ``make_vec`` takes: an id, or a class or function that makes the env.
        seed: The first seed to use; a few above it are used too.
        steps: How many steps to watch it for. A few more short episodes are played to compare seeds and instances.

    Raises:
        ArgumentError: If there is no such env.

    Example:
        >>> check_env("CartPole-v1", steps=100)
        []
    """
    return list(examine(env, seed=seed, steps=steps).findings)


def examine(
    env: Any,
    *,
    seed: int = 0,
    steps: int = DEFAULT_STEPS,
    on_progress: Callable[[str, int], None] | None = None,
) -> Report:
    """``check_env`` with a full report; ``on_progress`` is called with the current task and the steps done so far."""
    if steps < 1:
        raise ArgumentError(f"steps: expected at least 1, got {steps}")
    if seed < 0:
        raise ArgumentError(f"seed: expected at least 0, got {seed}")
    recipe = _recipe(env)
    examination = _Examination(recipe, seed, on_progress)
    with examination.closing():
        examination.run(steps)
    found = examination.found
    return Report(recipe.name, tuple(found.listed()), frozenset(found.judged & RULES.keys()))


def _recipe(env: Any) -> Recipe:
    # Any engine but the kernel engine runs the env as Python, which can be watched.
    own = own_recipe(env, "serial", 1, None, None, None)
    if own is not None:
        return own
    is_registered = isinstance(env, (str, RegisteredSpec))
    # Gymnasium's own checker would raise at the first mistake, in its own words, and hide all others.
    return recipe_for(env, 1, {"disable_env_checker": True} if is_registered else None)


class _Examination:
    """The examination of one env, from building to closing."""

    def __init__(self, recipe: Recipe, seed: int, on_progress: Callable[[str, int], None] | None) -> None:
        self.found = Findings()
        self._recipe = recipe
        self._factory = recipe.factories[0]
        self._seed = seed
        self._on_progress = on_progress
        self._doing = "building"
        self._steps_done = 0
        self._built: list[Any] = []

    def run(self, steps: int) -> None:
        found = self.found
        belongings.judge_shipping(self._factory, found)
        env = self._first()
        if env is None:
            return
        if belongings.judge_spaces(env, found):
            self._examine(env, steps)
        self._tell("closing")
        belongings.judge_close(env, found)

    @contextlib.contextmanager
    def closing(self) -> Any:
        """Close whatever was built."""
        try:
            yield
        finally:
            for env in self._built:
                with contextlib.suppress(Exception, SystemExit):
                    env.close()

    def _examine(self, env: Any, steps: int) -> None:
        found, limit = self.found, self._recipe.max_episode_steps
        before = (env.observation_space, env.action_space)
        actions = deepcopy(env.action_space)
        self._tell("stepping")
        walk = Walk(env, found, self._seed, limit, self._on_step)
        walk.go(steps)
        belongings.judge_spaces_stay(env, before, found)
        belongings.judge_render(env, found)
        if not walk.is_sound:
            return
        self._tell("comparing seeds and instances")
        actions.seed(self._seed)
        registered = getattr(env, "spec", None)
        Replays(
            self._another(env),
            [actions.sample() for _ in range(min(STEPS, steps))],
            found,
            seed=self._seed,
            limit=limit,
            severity="note" if getattr(registered, "nondeterministic", False) is True else "error",
            on_step=self._on_step,
        ).compare()

    def _first(self) -> Any:
        """The first env, or None if it cannot be built."""
        found = self.found
        found.judge("build")
        before = GlobalRandom()
        try:
            env = self._build()
        except SpecError as error:
            hint = "Let the callable return an env: the instance of a class that derives from gymnasium.Env."
            found.add("error", "build", str(error), hint)
            return None
        except (Exception, SystemExit) as error:
            is_call = isinstance(error, TypeError) and "argument" in str(error)
            hint = (
                "The env is made by a call without arguments: give them defaults, or name a function that passes them."
                if is_call
                else "Make the env in Python to see the whole traceback."
            )
            found.add("error", "build", f"making the env raised {telling(error)}", hint)
            return None
        for generator in before.changed():
            tell_global_random("__init__", generator, found)
        return env

    def _another(self, first: Any) -> Callable[[], Any]:
        def build() -> Any:
            env = self._build()
            belongings.judge_twins(first, env, self.found)
            return env

        return build

    def _build(self) -> Any:
        env = adapt(self._factory())
        self._built.append(env)
        return env

    def _tell(self, doing: str) -> None:
        self._doing = doing
        self._on_step(0)

    def _on_step(self, steps: int = 1) -> None:
        self._steps_done += steps
        if self._on_progress is not None:
            self._on_progress(self._doing, self._steps_done)
