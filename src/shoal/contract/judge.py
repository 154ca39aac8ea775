"""Judges what one call returned, by the spaces and by what ``reset`` and ``step`` have to return.

Whatever shoal itself would refuse is found with shoal's own checks, so that the two cannot disagree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.contract.compare import brief, index
from shoal.engines.process.codec import encode
from shoal.errors import SpecError
from shoal.slot import explain_step

if TYPE_CHECKING:
    from shoal.contract.findings import Findings
    from shoal.spec import Leaf, SpaceTree

_RESET_HINT = "Return two things: the observation and a dict, which may be empty: return obs, {}."
_STEP_HINT = "Return obs, float(reward), terminated, truncated, info."
_OLD_STEP_HINT = (
    "Split done in two: terminated if the task itself is over, truncated if only time ran out. "
    "Return obs, reward, terminated, truncated, info."
)


def judge_reset(result: Any, found: Findings, when: str) -> tuple[Any, Any]:
    """Judge the form of what ``reset`` returned, and salvage an observation and an info from it."""
    found.judge("reset")
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        return result
    if isinstance(result, tuple) and len(result) == 2:
        got = f"an info of type {type(result[1]).__name__}"
        found.add("error", "reset", f"reset must return (observation, info dict), got {got}", _RESET_HINT, when=when)
        return result[0], {}
    got = f"a tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__
    old = "; this looks like the old Gym API, which returned the observation alone"
    found.add(
        "error",
        "reset",
        f"reset must return (observation, info dict), got {got}{'' if isinstance(result, tuple) else old}",
        _RESET_HINT,
        when=when,
    )
    return result, {}


def judge_step(result: Any, found: Findings, when: str) -> tuple[Any, bool, Any] | None:
    """Judge what ``step`` returned besides the observation.

    Returns:
        The observation, whether the episode is over, and the info; None if that cannot be determined.
    """
    found.judge("step")
    if not isinstance(result, tuple) or len(result) != 5:
        is_old = isinstance(result, tuple) and len(result) == 4
        _ask(result, "step", _OLD_STEP_HINT if is_old else _STEP_HINT, found, when)
        if not is_old:
            return None
        result = (*result[:3], False, result[3])
    obs, reward, terminated, truncated, info = result
    # One at a time, with valid values for the others, so that the first mistake does not hide the next.
    _ask((None, reward, False, False, {}), "reward", _reward_hint(reward), found, when)
    _ask((None, 0.0, terminated, False, {}), "flags", "Return bool(terminated).", found, when)
    _ask((None, 0.0, False, truncated, {}), "flags", "Return bool(truncated).", found, when)
    _ask((None, 0.0, False, False, info), "info", "Return a dict; an empty one if there is nothing.", found, when)
    try:
        over = bool(terminated) or bool(truncated)
    except Exception:
        return None
    return obs, over, info


def _ask(result: Any, rule: str, hint: str, found: Findings, when: str) -> None:
    found.judge(rule)
    try:
        explain_step(result)
    except SpecError as error:
        found.add("error", rule, str(error), hint, key=str(error).partition(":")[0], when=when)


def _reward_hint(reward: Any) -> str:
    if np.size(reward) == 1 and np.shape(reward):
        return "It is an array of one: return float(reward[0]), or reward.item()."
    if isinstance(reward, (int, float, np.number)):
        return "Look for a division by zero, a log of zero, or an overflow; np.seterr(all='raise') stops at the place."
    return "Return float(reward)."


def judge_info(info: Any, found: Findings, when: str) -> None:
    """Judge whether an info can leave a worker process."""
    if isinstance(info, dict):
        _judge_plain(info, "info", found, when)


def _judge_plain(value: Any, path: str, found: Findings, when: str) -> None:
    found.judge("plain-data")
    try:
        encode(value, path)
    except SpecError as error:
        message, _, hint = str(error).partition("; ")
        where = message.partition(":")[0]
        advice = f"{hint[:1].upper()}{hint[1:]}." if hint else "Turn it into numbers, strings or arrays of them."
        found.add("warning", "plain-data", message, advice, key=where, when=when)


def judge_observation(obs: Any, tree: SpaceTree, found: Findings, when: str) -> None:
    """Judge nesting, shape, dtype and range of an observation."""
    found.judge("observation", "bounds")
    try:
        leaves = tree.flatten(obs)
    except SpecError as error:
        hint = f"Return what the space describes: {tree.space}."
        found.add("error", "observation", str(error), hint, key="nesting", when=when)
        return
    for leaf, value in zip(tree.leaves, leaves, strict=True):
        if leaf.is_array:
            _judge_array(leaf, value, found, when)
        else:
            _judge_object(leaf, value, found, when)


def _judge_object(leaf: Leaf, value: Any, found: Findings, when: str) -> None:
    _judge_plain(value, leaf.path, found, when)
    try:
        inside = leaf.space.contains(value)
    except Exception:
        inside = False
    if not inside:
        message = f"{leaf.path}: {brief(value)} is not in {leaf.space}"
        hint = f"{leaf.space.__class__.__name__}.contains() refuses it: return what the space describes, or widen it."
        found.add("error", "bounds", message, hint, key=leaf.path, when=when)


def _judge_array(leaf: Leaf, value: Any, found: Findings, when: str) -> None:
    try:
        fitted = leaf.fit(value)
    except SpecError as error:
        found.add("error", "observation", str(error), _misfit_hint(leaf, value), key=leaf.path, when=when)
        return
    _judge_type(leaf, value, found, when)
    _judge_range(leaf, np.asarray(fitted), found, when)


def _misfit_hint(leaf: Leaf, value: Any) -> str:
    try:
        array = np.asarray(value)
    except ValueError:
        return "The rows have different lengths: pad them, or use a Sequence space."
    if array.shape != leaf.shape:
        if array.size == np.prod(leaf.shape, dtype=int):
            return f"Return it with .reshape({leaf.shape}), or declare the space with shape {array.shape}."
        return f"Declare the space with the shape that is returned, {array.shape}, or return all of {leaf.shape}."
    return f"Return it with .astype(np.{leaf.dtype}), or declare the space with dtype {array.dtype}."


def _judge_type(leaf: Leaf, value: Any, found: Findings, when: str) -> None:
    """Warn about a type that shoal casts, but other libraries may not."""
    if not leaf.shape and leaf.dtype.kind in "iu":
        return  # a Discrete takes every kind of integer
    if not isinstance(value, (np.ndarray, np.generic)):
        got, fix = f"a {type(value).__name__}, not an array", f"np.array(obs, np.{leaf.dtype})"
    elif value.dtype != leaf.dtype:
        got, fix = f"{value.dtype}, but its space says {leaf.dtype}", f".astype(np.{leaf.dtype})"
    else:
        return
    hint = f"Return it as the space has it, with {fix}. shoal casts it for you; other libraries may not."
    found.add("warning", "observation", f"{leaf.path} is {got}", hint, key=f"{leaf.path} type", when=when)


def _judge_range(leaf: Leaf, array: np.ndarray[Any, Any], found: Findings, when: str) -> None:
    # Written so that NaN, for which every comparison is false, counts as outside.
    inside = (array >= leaf.low) & (array <= leaf.high)
    if np.all(inside):
        return
    place = tuple(int(i) for i in np.argwhere(~np.asarray(inside))[0])
    value = array[place]
    path = f"{leaf.path}{index(place)}"
    if value != value:  # NaN
        hint = "Look for 0/0, inf - inf, or a root of a negative number; np.seterr(all='raise') stops at the place."
        found.add("error", "bounds", f"{path} is NaN", hint, key=f"{leaf.path} nan", when=when)
        return
    low, high = np.broadcast_to(leaf.low, array.shape)[place], np.broadcast_to(leaf.high, array.shape)[place]
    side = f"above its upper bound {brief(high)}" if value > high else f"below its lower bound {brief(low)}"
    hint = "Widen the bounds of observation_space to what can occur, or np.clip the observation to them."
    found.add("error", "bounds", f"{path} is {brief(value)}, {side}", hint, key=leaf.path, when=when)
