"""The same episodes again: with the same seed and others, in one instance and several, alone and in company.

    rows      episode 0, begun with the seed | episode 1, begun without | episode 2, begun without | ...

Long episodes are cut short by a reset, so that a few hundred steps see several beginnings. Comparisons are exact: an
env that is asked the same has to answer the same.
"""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.contract.compare import difference
from shoal.contract.findings import telling
from shoal.slot import copy_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shoal.contract.findings import Findings, Severity

STEPS = 200
_CUT = 50
_OTHER_SEEDS = 8
_UNSEEDED = 8
_NAMES = ("observation", "reward", "terminated", "truncated")

_SAME_HINT = (
    "Draw every random number from self.np_random after super().reset(seed=seed), and let reset set everything that "
    "step changes."
)
_RESEED_HINT = (
    "With seed=None, reset has to go on with the generator it has: make a new one only if seed is not None. "
    "super().reset(seed=seed) does just that."
)
_FRESH_HINT = (
    "Something is decided outside of reset: a random draw in __init__, or a class or module variable that envs "
    "change. Draw it in reset from self.np_random, and keep what changes in self."
)
_INSTANCES_HINT = (
    "They share something that changes: a mutable class attribute, a module variable, a file or a port. Make it in "
    "__init__ and keep it in self."
)
_OTHER_HINT = (
    "If there is no chance in the env, all is well. Otherwise pass the seed on with super().reset(seed=seed), and draw "
    "from self.np_random."
)
_NEXT_HINT = "Seed the generator only if a seed is given: super().reset(seed=seed) leaves it alone if seed is None."


class Row(NamedTuple):
    """The results of one call that are compared; ``call`` is for messages."""

    call: str
    episode: int
    values: tuple[Any, ...]


class Replays:
    """Plays a sound env again and again, and writes down where the plays differ."""

    def __init__(
        self,
        build: Callable[[], Any],
        actions: list[Any],
        found: Findings,
        *,
        seed: int,
        limit: int | None,
        severity: Severity,
        on_step: Callable[[], None],
    ) -> None:
        self._build = build
        self._actions = actions
        self._found = found
        self._seed = seed
        self._cut = min(_CUT, limit or _CUT)
        self._severity: Severity = severity
        self._on_step = on_step

    def compare(self) -> None:
        """Make all comparisons; an exception is a finding under the rule that was being checked."""
        rule = "same-seed"
        try:
            env = self._build()
            base = list(self._rows(env, self._seed))
            if not self._judge_again(env, base):
                return  # where nothing is ever the same, differences prove nothing
            rule = "other-seed"
            self._judge_other_seeds(env, base)
            rule = "instances"
            if self._judge_fresh(base):
                self._judge_company(base)
        except (Exception, SystemExit) as error:
            message = f"playing it again raised {telling(error)}"
            self._found.add("error", rule, message, "Follow the exception; the first play went well.")

    def _judge_again(self, env: Any, base: list[Row]) -> bool:
        self._found.judge("same-seed")
        found = first_difference(base, self._rows(env, self._seed))
        if found is None:
            return True
        row, told = found
        if row.episode == 0:
            message, hint = f"seed {self._seed} gave two different episodes: {told}", _SAME_HINT
        else:
            message = f"after seed {self._seed}, the episodes begun by reset() without a seed differ: {told}"
            hint = _RESEED_HINT if row.call == "reset" else _SAME_HINT
        self._found.add(self._severity, "same-seed", message, hint)
        return False

    def _judge_fresh(self, base: list[Row]) -> bool:
        found = first_difference(base, self._rows(self._build(), self._seed))
        if found is None:
            return True
        message = f"seed {self._seed} gives other episodes in another instance: {found[1]}"
        self._found.add(self._severity, "same-seed", message, _FRESH_HINT, key="fresh")
        return False

    def _judge_other_seeds(self, env: Any, base: list[Row]) -> None:
        found, others = self._found, range(self._seed + 1, self._seed + 1 + _OTHER_SEEDS)
        found.judge("other-seed", "next-episode")
        if all(first_difference(base, self._rows(env, other)) is None for other in others):
            message = f"seeds {self._seed} to {others[-1]} all give the same episodes"
            found.add("warning", "other-seed", message, _OTHER_HINT)
            return
        # Only single episodes can show whether resets repeat themselves, and only if other seeds change them.
        first = list(self._episode(env, self._seed))
        if any(first_difference(first, self._episode(env, None)) for _ in range(_UNSEEDED)):
            return
        if any(first_difference(first, self._episode(env, other)) for other in others):
            message = f"{_UNSEEDED} resets without a seed all repeated the episode of seed {self._seed}"
            found.add("warning", "next-episode", message, _NEXT_HINT)

    def _judge_company(self, base: list[Row]) -> None:
        """Play one instance while another plays, and go on after the other is closed."""
        found = self._found
        found.judge("instances")
        mine, other = self._build(), self._build()
        if mine is other:
            message = "two calls of the factory returned the same object"
            found.add("error", "instances", message, "Make a new env in every call.")
            return
        company = self._rows(other, self._seed + 1, self._actions[len(self._actions) // 2 :])
        seen: list[Row] = []
        is_alone = False
        for row in self._rows(mine, self._seed):
            seen.append(row)
            if not is_alone and next(company, None) is None:
                with suppress(Exception, SystemExit):  # closing has a rule of its own
                    other.close()
                is_alone = True
        differs = first_difference(base, seen)
        if differs:
            message = f"an env plays another episode while a second instance plays: {differs[1]}"
            found.add("error", "instances", message, _INSTANCES_HINT)

    def _rows(self, env: Any, seed: int, actions: list[Any] | None = None) -> Iterator[Row]:
        """Episodes until the actions run out; only the first has a seed."""
        rest = self._actions if actions is None else actions
        episode = 0
        while rest:
            taken = -1  # the first row of an episode takes no action
            for row in self._episode(env, None if episode else seed, rest, episode):
                taken += 1
                yield row
            rest = rest[taken:]
            episode += 1

    def _episode(self, env: Any, seed: int | None, actions: list[Any] | None = None, episode: int = 0) -> Iterator[Row]:
        obs, _ = env.reset() if seed is None else env.reset(seed=seed)
        yield Row("reset", episode, (copy_leaves(obs),))
        steps = (self._actions if actions is None else actions)[: self._cut]
        for number, action in enumerate(steps, 1):
            obs, reward, terminated, truncated, _ = env.step(deepcopy(action))
            self._on_step()
            yield Row(f"step {number}", episode, (copy_leaves(obs), reward, terminated, truncated))
            if terminated or truncated:
                return


def first_difference(ones: Iterable[Row], others: Iterable[Row]) -> tuple[Row, str] | None:
    """The first row that is not the same in both, and what differs in it; takes no more rows than it needs."""
    for one, other in zip(ones, others, strict=False):
        for name, a, b in zip(_NAMES, one.values, other.values, strict=False):
            if told := difference(a, b, name):
                return one, f"{told}, in {one.call} of episode {one.episode + 1}"
    return None
