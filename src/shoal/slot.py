"""One env under the boundary rule: what a step means when an episode has ended.

    next_step   the step after the last one resets; its action is ignored, its reward is 0
    same_step   the last step resets at once: the row has the last reward and flags, the first observation of the
                next episode, and the true last observation and info as ``final``
    disabled    nothing happens on its own; the caller resets

Everything that runs Python envs runs them through a ``Slot``. Compiled and native envs, many of which run at once, have
the same rule over arrays (``engines.kernel.source``, ``engines.native.boundary``); laws compare the three row by row.
"""

from __future__ import annotations

from collections import deque
from copy import copy, deepcopy
from enum import StrEnum
from math import isfinite
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from shoal.errors import ArgumentError, SpecError

Info = dict[str, Any]
Row = tuple[Any, Any, Any, Any, Info]

_NUMBERS = frozenset({float, int, bool, np.float64, np.float32, np.float16, np.int64, np.int32, np.int16, np.int8})
_FLAGS = frozenset({bool, np.bool_})
_ATOMS = frozenset({*_NUMBERS, *_FLAGS, str, bytes, type(None)})  # immutable, so never copied


class Autoreset(StrEnum):
    """What happens when an episode ends; see the module's docstring.

    Example:
        >>> Autoreset.parse("same_step") is Autoreset.SAME_STEP
        True
    """

    NEXT_STEP = "next_step"
    SAME_STEP = "same_step"
    DISABLED = "disabled"

    @classmethod
    def parse(cls, value: Any) -> Autoreset:
        """An ``Autoreset`` from its name, or from Gymnasium's ``AutoresetMode``."""
        name = str(getattr(value, "name", value)).lower()
        try:
            return cls({mode.replace("_", ""): mode for mode in cls}.get(name, name))
        except ValueError:
            raise ArgumentError(f"autoreset: expected one of {[m.value for m in cls]}, got {value!r}") from None


class SlotState(NamedTuple):
    """Where in its episodes an env is; see ``Slot``."""

    elapsed: int
    first: bool
    is_over: bool
    is_mid_episode: bool
    seed: int | None


class Slot:
    """The place of one env in a pool.

    Attributes:
        env: The env, with Gymnasium's ``reset`` and ``step``.
        elapsed: Steps taken in the episode that the last row belongs to.
        first: Whether the last row's observation is the first of an episode.
        final: ``(observation, info)`` of the episode that the last row ended, under ``same_step``; else None.
        is_mid_episode: Whether the last row was neither first nor last, so that the next may take the fast path.
        seed: The last seed the env was reset with.
        defers: Whether, under ``same_step``, an episode is left at its end, because the next one begins elsewhere.

    Args:
        quick_reset_s: Under ``same_step``, an episode is also left at its end if the env's last reset took longer than
            this, or was its first, which says nothing about the others: whoever waits for the row should not wait for a
            reset too, and resets the env afterwards. The same goes if the reset fails (the caller's own reset then
            raises the error), and if the env has an attribute ``leaves_end`` that is true at the end of the episode.
    """

    __slots__ = (
        "_check_always",
        "_checked",
        "_finite",
        "_next_step",
        "_over",
        "_quick_reset_s",
        "_reset_error",
        "_same_step",
        "_was_slow",
        "defers",
        "elapsed",
        "env",
        "final",
        "first",
        "is_mid_episode",
        "limit",
        "seed",
    )

    def __init__(
        self,
        env: Any,
        autoreset: Autoreset,
        max_episode_steps: int | None = None,
        check: str = "always",
        *,
        finite_rewards: bool = True,
        quick_reset_s: float | None = None,
    ) -> None:
        self.env = env
        self._quick_reset_s = quick_reset_s
        self._was_slow: bool | None = False if quick_reset_s is None else None  # None before the first reset
        self._reset_error: Exception | None = None
        self._finite = finite_rewards
        self.limit = max_episode_steps
        self._checked = check != "off"
        self._check_always = check == "always"
        self.elapsed = 0
        self.first = True
        self.final: tuple[Any, Info] | None = None
        self.seed: int | None = None
        self.is_mid_episode = False
        self._over = False
        self._same_step = autoreset is Autoreset.SAME_STEP
        self.defers = False
        self._next_step = autoreset is Autoreset.NEXT_STEP

    def reset(self, seed: int | None = None, options: Info | None = None) -> Row:
        """Start an episode at the caller's request."""
        if seed is not None:
            self.seed = seed
        if self._reset_error is not None:
            error, self._reset_error = self._reset_error, None
            raise error
        return self._begin(seed=seed, options=options)

    def step(self, action: Any) -> Row:
        """Give the env one action, or its reset when that is due, and return the row."""
        if self._over and self._next_step:
            return self._begin()
        return self.conclude(self.env.step(action))

    def conclude(self, result: Any) -> Row:
        """Turn what the env's ``step`` returned into the row."""
        if self._checked:
            self._check(result)
        obs, reward, terminated, truncated, info = result
        if self.first:
            # The step after a same_step boundary is the first of its episode, whatever the last row counted.
            self.elapsed = 0
            self.first = False
            self.final = None
        self.elapsed = elapsed = self.elapsed + 1
        if self.limit is not None and elapsed >= self.limit:
            truncated = True
        if terminated or truncated:
            self._over = True
            self.is_mid_episode = False
            if self._same_step and not self.defers and self._was_slow is False and not self._is_to_be_left():
                return self._finish(obs, reward, terminated, truncated, info)
        else:
            self.is_mid_episode = self.limit is None
        return result if truncated is result[3] else (obs, reward, terminated, truncated, info)

    def _is_to_be_left(self) -> bool:
        """Whether the env itself wants to be left at the end of this episode."""
        return self._quick_reset_s is not None and bool(getattr(self.env, "leaves_end", False))

    def _check(self, result: Any) -> None:
        """Check what ``step`` returned: a few set lookups in the usual case, ``explain_step`` in all others."""
        if result.__class__ is tuple and len(result) == 5:
            _, reward, terminated, truncated, info = result
            if (
                terminated.__class__ in _FLAGS
                and truncated.__class__ in _FLAGS
                and reward.__class__ in _NUMBERS
                and info.__class__ is dict
                and (_is_finite(reward) if reward.__class__ is int else isfinite(reward))  # type: ignore[arg-type]
            ):
                self._checked = self._check_always
                return
        explain_step(result, finite=self._finite)

    def _finish(self, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Info) -> Row:
        """End the episode and begin the next in one row; ``elapsed`` stays that of the finished one."""
        length = self.elapsed
        # The env may reuse its observation, whatever that is, and its info dict in reset.
        final = (_copy_of(obs), copy_leaves(info))
        try:
            obs, _, _, _, info = self._begin()
        except BaseException as error:
            self.elapsed = length
            if self._quick_reset_s is not None and isinstance(error, Exception):
                self._reset_error, self.first = error, False
                return final[0], reward, terminated, truncated, final[1]
            self.take_back()
            raise
        self.final = final
        self.elapsed = length
        return obs, reward, terminated, truncated, info

    @property
    def taken(self) -> int:
        """Steps taken in the episode that the env is in; after a ``same_step`` boundary that is the next one."""
        return 0 if self.first else self.elapsed

    @property
    def state(self) -> SlotState:
        """Where in its episodes the env is."""
        return SlotState(self.elapsed, self.first, self._over, self.is_mid_episode, self.seed)

    @state.setter
    def state(self, state: SlotState) -> None:
        self.elapsed, self.first, self._over, self.is_mid_episode, self.seed = state
        self.is_mid_episode = self.is_mid_episode and self.limit is None
        self.final = None

    def take_back(self) -> None:
        """Count the last step as not taken: its row cannot be handed out."""
        self.is_mid_episode = False  # the row that is there is an older one, whose flags may be up
        if self.elapsed:
            self.elapsed -= 1
            self.first = False

    def _begin(self, **wishes: Any) -> Row:
        # Before the reset, which may fail, because steps of the old episode must not count for the next one.
        self.elapsed = 0
        self.first = True
        self.final = None
        self.is_mid_episode = False
        begun_at = perf_counter()
        result = self.env.reset(**wishes)
        if self._quick_reset_s is not None:
            self._was_slow = self._was_slow is None or perf_counter() - begun_at > self._quick_reset_s
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            raise SpecError(f"reset must return (observation, info dict), got {_shape_of(result)}")
        self._over = False
        return result[0], 0.0, False, False, result[1]


def _copy_of(obs: Any) -> Any:
    """``deepcopy(obs)``, but for most observations in a fraction of the time."""
    return obs.copy() if obs.__class__ is np.ndarray and not obs.dtype.hasobject else deepcopy(obs)


def copy_leaves(value: Any) -> Any:
    """A copy of a nested observation or info whose arrays and containers are its own."""
    if isinstance(value, np.ndarray):
        return value.copy() if value.dtype != object else _copy_of_objects(value)
    if isinstance(value, dict):
        return {key: item if item.__class__ in _ATOMS else copy_leaves(item) for key, item in value.items()}
    if isinstance(value, tuple):
        items = [copy_leaves(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [copy_leaves(item) for item in value]
    # The items of a set are immutable, and deques and bytearrays know how to copy themselves.
    return copy(value) if isinstance(value, (set, deque, bytearray)) else value


def _copy_of_objects(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    own = np.empty(array.size, object)
    for place, item in enumerate(array.flat):
        own[place] = copy_leaves(item)
    return own.reshape(array.shape)


def explain_step(result: Any, *, finite: bool = True) -> None:
    """Raise the error that names what is wrong with the result of ``step``; return if, on a closer look, it is fine."""
    if not isinstance(result, tuple) or len(result) != 5:
        old = isinstance(result, tuple) and len(result) == 4
        hint = "; this looks like the old Gym API (obs, reward, done, info)" if old else ""
        raise SpecError(f"step must return (obs, reward, terminated, truncated, info), got {_shape_of(result)}{hint}")
    _, reward, terminated, truncated, info = result
    if not isinstance(reward, (int, float)) and not _is_real_scalar(reward):
        raise SpecError(f"reward: expected a number, got {type(reward).__name__} {reward!r:.60}")
    if finite and not _is_finite(reward):
        raise SpecError(f"reward: expected a finite number, got {reward!r:.60}")
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if type(flag) not in _FLAGS and not (isinstance(flag, np.ndarray) and flag.shape == () and flag.dtype == bool):
            raise SpecError(f"{name}: expected a bool, got {type(flag).__name__} {flag!r:.60}")
    if not isinstance(info, dict):
        raise SpecError(f"info: expected a dict, got {type(info).__name__}")


def _is_real_scalar(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    return isinstance(dtype, np.dtype) and dtype.kind in "?biuf" and getattr(value, "shape", None) == ()


def _is_finite(number: Any) -> bool:
    try:
        return isfinite(number)
    except OverflowError:  # an int too large for a float
        return False


def _shape_of(result: Any) -> str:
    return f"a tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__
