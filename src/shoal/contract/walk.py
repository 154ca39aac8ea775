"""A walk with one env: many steps with random actions, every call watched.

before a call   what is the state of the global generators, the result of the last call, and the action?
after it        has any of that changed? is the new observation what its space says, the info plain, ...?
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from shoal.contract.compare import GlobalRandom, difference
from shoal.contract.findings import telling
from shoal.contract.judge import judge_info, judge_observation, judge_reset, judge_step
from shoal.slot import copy_leaves
from shoal.spec import SpaceTree

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.contract.findings import Findings

_SAME_LENGTH_EPISODES = 3

_SIGNATURE_HINT = (
    "Write it as def reset(self, *, seed=None, options=None), and begin it with super().reset(seed=seed), which seeds "
    "self.np_random."
)
_GLOBAL_HINT = (
    "Draw from self.np_random, which reset(seed=) seeds. All code of a process shares {name}, so what an env gets from "
    "it depends on whatever else runs there."
)
_ALIASING_HINT = (
    "The env hands out memory that it goes on using: return a copy, for example obs.copy() or dict(info). shoal copies "
    "for you; a replay buffer or another library that keeps the object may not."
)
_ACTION_HINT = (
    "Work on a copy: action = np.array(action), and np.clip(action, low, high) without out=. A learner that stores "
    "the action after the step would store the changed one."
)


class Walk:
    """Steps an env and writes down what is wrong.

    Attributes:
        is_sound: Whether the env did everything needed to play it again: it took seeds and raised nothing.
        lengths: Lengths of the episodes that ended.
    """

    def __init__(self, env: Any, found: Findings, seed: int, limit: int | None, on_step: Callable[[], None]) -> None:
        self._env = env
        self._found = found
        self._seed = seed
        self._limit = limit
        self._declared = getattr(getattr(env, "spec", None), "max_episode_steps", None)
        self._on_step = on_step
        self._tree = SpaceTree(env.observation_space, "observation")
        self._actions = deepcopy(env.action_space)
        self._actions.seed(seed)
        self._held: tuple[str, Any, Any] | None = None
        self.is_sound = True
        self.lengths: list[int] = []
        self._endings: set[str] = set()

    def go(self, steps: int) -> None:
        """Walk as far as the env allows."""
        if not self._first_reset():
            return
        self._found.judge("aliasing", "global-random")
        elapsed = 0
        for number in range(1, steps + 1):
            over = self._step(f"step {number:,}")
            if over is None:
                return
            elapsed += 1
            self._watch_limit(elapsed, f"step {number:,}")
            if over or elapsed == self._limit:
                self.lengths.append(elapsed)
                elapsed = 0
                if not self._reset("reset()"):
                    return
        self._judge_episodes(steps)

    def _first_reset(self) -> bool:
        seed = self._seed
        if self._reset(f"reset(seed={seed})", seed=seed) and self._reset("reset(options={})", seed=seed, options={}):
            return self._reset("reset()")
        # Other mistakes can still be found, and an author would rather know them all at once. Without the wrappers,
        # because they pass on a seed even if there is none.
        self.is_sound = False
        self._env = getattr(self._env, "unwrapped", self._env)
        self._declared = None
        return self._reset("reset()")

    def _reset(self, call: str, **arguments: Any) -> bool:
        found = self._found
        try:
            result = self._watched(call, lambda: self._env.reset(**arguments))
        except (Exception, SystemExit) as error:
            unknown = isinstance(error, TypeError) and "unexpected keyword" in str(error)
            hint = _SIGNATURE_HINT if unknown else "Follow the exception: shoal calls reset exactly like this."
            # The same exception from the next form of the call would be nothing new.
            found.add("error", "reset", f"{call} raised {telling(error)}", hint, key=telling(error))
            self.is_sound = False
            return False
        obs, info = judge_reset(result, found, call)
        if found.has_error("reset"):
            self.is_sound = False
        self._judge(call, obs, info)
        return True

    def _step(self, call: str) -> bool | None:
        """Take one step; returns whether it ended the episode, or None if the walk cannot go on."""
        action = self._actions.sample()
        kept = deepcopy(action)
        try:
            result = self._watched(call, lambda: self._env.step(action))
        except (Exception, SystemExit) as error:
            self._tell_failed_step(call, kept, error)
            self.is_sound = False
            return None
        self._on_step()
        self._found.judge("action")
        if changed := difference(kept, action, "action"):
            message = f"step changes the action it is given: {changed.replace(' and ', ' before and ')} after"
            self._found.add("warning", "action", message, _ACTION_HINT, when=call)
        judged = judge_step(result, self._found, call)
        if judged is None or not isinstance(result, tuple) or len(result) != 5:
            self.is_sound = False
        if judged is None:
            return None
        obs, over, info = judged
        if over and len(result) == 5:
            self._endings.add("truncated" if result[3] else "terminated")
        self._judge(call, obs, info)
        return over

    def _tell_failed_step(self, call: str, action: Any, error: BaseException) -> None:
        message, hint = f"{call} raised {telling(error)}", "Follow the exception; the action was in action_space."
        bare = getattr(self._env, "unwrapped", self._env)
        if bare is not self._env:
            # A wrapper unpacks the tuple before it gets here, and fails with a message that does not help.
            try:
                result = bare.step(action)
            except (Exception, SystemExit):
                result = (None,) * 5  # the env itself fails: its first failure says why
            if not isinstance(result, tuple) or len(result) != 5:
                judge_step(result, self._found, call)
                return
        self._found.add("error", "step", message, hint, key="raised")

    def _watched(self, call: str, function: Callable[[], Any]) -> Any:
        """Call the env, and check what that does to things that are not its own."""
        before = GlobalRandom()
        result = function()
        name = call.partition("(")[0].partition(" ")[0]
        for generator in before.changed():
            tell_global_random(name, generator, self._found)
        if self._held is not None:
            earlier, live, kept = self._held
            if changed := difference(kept, live, ""):
                what = "info" if changed.startswith("[1]") else "observation"
                message = (
                    f"the {what} that {earlier}() returned was changed by the next {name}(): {_read(changed, what)}"
                )
                self._found.add("warning", "aliasing", message, _ALIASING_HINT, key=f"{what} {earlier}")
        return result

    def _judge(self, call: str, obs: Any, info: Any) -> None:
        judge_observation(obs, self._tree, self._found, call)
        judge_info(info, self._found, call)
        name = call.partition("(")[0].partition(" ")[0]
        self._held = (name, (obs, info), copy_leaves((obs, info)))

    def _watch_limit(self, elapsed: int, call: str) -> None:
        """Warn if neither the env nor the wrapper that should be there enforces the registered time limit."""
        declared = self._declared
        if isinstance(declared, int) and elapsed == declared + 1:
            message = f"an episode went on past the {declared:,} steps that its registration allows"
            hint = "Make the env with gymnasium.make, which adds the limit, or with max_episode_steps=."
            self._found.add("warning", "time-limit", message, hint, when=call)

    def _judge_episodes(self, steps: int) -> None:
        found, lengths = self._found, self.lengths
        found.judge("episode-end", "time-limit")
        if not lengths:
            hint = "If episodes have no end of their own, give them one: make_vec(..., max_episode_steps=1000)."
            found.add("note", "episode-end", f"no episode ended within {steps:,} steps of random actions", hint)
            return
        is_uniform = len(lengths) >= _SAME_LENGTH_EPISODES and len(set(lengths)) == 1 and lengths[0] > 1
        if is_uniform and self._endings == {"terminated"}:
            message = f"all {len(lengths)} episodes were terminated after exactly {lengths[0]:,} steps"
            hint = (
                "If that is a time limit, return truncated=True in place of terminated=True: a learner takes the "
                "value of a terminated state for zero. If the task is over then, all is well."
            )
            found.add("note", "time-limit", message, hint)


def _read(changed: str, what: str) -> str:
    """A difference within (observation, info), in words: its path begins with the place in that pair."""
    return changed.replace("[0]" if what == "observation" else "[1]", what, 1).replace(" and ", ", then ", 1)


def tell_global_random(name: str, generator: str, found: Findings) -> None:
    """Note that a call used a generator that all code shares."""
    message = f"{name}() draws from the global generator {generator}, or seeds it"
    found.add("warning", "global-random", message, _GLOBAL_HINT.format(name=generator), key=f"{name} {generator}")
