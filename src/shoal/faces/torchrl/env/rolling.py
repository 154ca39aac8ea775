"""rollout: steps of an env in a row, stacked along a last dim named "time".

stop at the first end     step, take next as the new root, check whether anything has ended      (the default)
never stop                step and reset what has ended                            break_when_any_done=False
stop when all have ended  step the others only, ended rows repeat their last step  break_when_all_done=True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

from shoal.errors import ArgumentError, StateError, TensorEnvError
from shoal.faces.torchrl.env.keys import level_of
from shoal.faces.torchrl.env.masks import select
from shoal.faces.torchrl.fast_td import stack

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.faces.torchrl.env.policies import Policy
    from shoal.faces.torchrl.env_base import EnvBase


class ConflictingBreaks(ArgumentError, TypeError):
    """A rollout was told to stop both at the first end and at the last."""


@dataclass(frozen=True)
class Rolling:
    """One rollout.

    Attributes:
        env: The env.
        policy: Writes the actions.
        max_steps: How many steps at most.
        callback: Called with the env and its data after every step but the last.
        storing_device: Where the steps are kept.
    """

    env: EnvBase
    policy: Policy
    max_steps: int
    callback: Callable[[EnvBase, TensorDictBase], Any] | None = None
    storing_device: torch.device | None = None

    def steps(self, td: TensorDictBase, any_done: bool | None, all_done: bool | None) -> list[TensorDictBase]:
        """The steps from a root on, until the kind of end that was asked for."""
        if all_done:
            return self.until_all_done(td)
        return self.without_stopping(td) if any_done is False else self.until_any_done(td)

    def until_any_done(self, td: TensorDictBase) -> list[TensorDictBase]:
        """Steps until any flag says that an episode ends."""
        env, steps = self.env, []
        for left in range(self.max_steps - 1, -1, -1):
            td = env.step(self.policy(td))
            steps.append(self._stored(td))
            if not left:
                break
            td = env.step_mdp(td)
            if env._has_ended(td):
                break
            if self.callback is not None:
                self.callback(env, td)
        return steps

    def without_stopping(self, td: TensorDictBase) -> list[TensorDictBase]:
        """All steps, with a reset of whatever ends."""
        env, steps = self.env, []
        for left in range(self.max_steps - 1, -1, -1):
            td = self.policy(td)
            if not left:
                steps.append(self._stored(env.step(td)))
                break
            stepped, td = env.step_and_maybe_reset(td)
            steps.append(self._stored(stepped))
            if self.callback is not None:
                self.callback(env, stepped)
        return steps

    def until_all_done(self, td: TensorDictBase) -> list[TensorDictBase]:
        """Steps until every env has ended; those that have are not stepped, and repeat their last step."""
        env, steps = self.env, []
        running: torch.Tensor | None = None
        before: TensorDictBase | None = None
        for left in range(self.max_steps - 1, -1, -1):
            td = self.policy(td)
            if running is not None:
                td.set("_step", running)
            stepped = env.step(td)
            if running is not None:
                stepped = select(running, stepped.exclude("_step"), before)
            steps.append(self._stored(stepped))
            ended = self._ended_rows(stepped.get("next"))
            if not left or ended.all():
                break
            running = ~ended if ended.any() else None
            before = stepped
            td = env.step_mdp(stepped)
            if self.callback is not None:
                self.callback(env, td)
        return steps

    def _ended_rows(self, following: TensorDictBase) -> torch.Tensor:
        """One bool per env: whether all of it has ended."""
        rows = following.batch_size
        ended = torch.ones(rows, dtype=torch.bool)
        flags = self.env._plan().flagged(following)
        for mask in flags:
            ended &= mask.reshape(*rows, -1).all(-1)
        return ended if flags else ~ended

    def _stored(self, td: TensorDictBase) -> TensorDictBase:
        return td if self.storing_device is None else td.to(self.storing_device)


def mark_truncated(env: EnvBase, last: TensorDictBase) -> None:
    """Set truncated and done in the last step, at every level that has a truncated flag."""
    for level in env._plan().levels:
        here = level_of(last.get("next"), level.path)
        if "truncated" in level.flags and here is not None:
            for flag in ("truncated", "done"):
                if flag in level.flags:
                    here.set(flag, torch.ones_like(here.get(flag)))


def check_truncated(env: EnvBase) -> None:
    """Refuse to set truncated flags in an env that has none."""
    if not any("truncated" in level.flags for level in env._plan().levels):
        raise TensorEnvError(
            f"{type(env).__name__}.rollout: set_truncated needs a truncated flag; env.add_truncated_keys() adds one"
        )


def stack_steps(steps: list[TensorDictBase], return_contiguous: bool | None, out: Any, env: EnvBase) -> TensorDictBase:
    """The steps of a rollout as one TensorDict, with time as its last batch dim.

    Args:
        steps: At least one.
        return_contiguous: True for a dense result or an error, False for a dense one where shapes allow it and a lazy
            stack where they do not, None to ask the specs which of the two.
        out: Where to write the result.
        env: The env that made the steps.
    """
    if not steps:
        raise StateError(f"{type(env).__name__}.rollout: no step was taken, max_steps must be at least 1")
    dim = steps[0].ndim
    stacked: TensorDictBase | None = stack(steps, dim)
    if stacked is None:
        steps = _with_equal_roots(steps)
        if return_contiguous is None:
            return_contiguous = not _has_dynamic_shapes(env)
        joined = torch.stack(steps, dim) if return_contiguous else LazyStackedTensorDict.maybe_dense_stack(steps, dim)
        stacked = joined.contiguous() if return_contiguous else joined
    if out is not None:
        out.update_(stacked)
        return _named(out)
    return _named(stacked)


def _with_equal_roots(steps: list[TensorDictBase]) -> list[TensorDictBase]:
    """Steps without what only later roots hold: a policy has put it under ``next``, and it is still there."""
    held, later = set(steps[0].keys(True)), set(steps[-1].keys(True))
    carried = [key for key in steps[0].get("next").keys(True) if key in later and key not in held]
    return [step.exclude(*carried) for step in steps] if carried else steps


def _named(stacked: TensorDictBase) -> TensorDictBase:
    return stacked.refine_names(..., "time")


def _has_dynamic_shapes(env: EnvBase) -> bool:
    return any(-1 in leaf.shape for leaf in env.output_spec.values(True, True))
