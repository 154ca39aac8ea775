"""What step and reset need to know about an env's specs, worked out once and kept until the specs change.

Most envs have flat keys: observations, "reward", and done flags at the root. For them a step is a handful of look-ups
in a dict; the same functions serve nested and stacked data through the methods of their TensorDicts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack

from shoal.errors import TensorEnvError
from shoal.faces.torchrl.env.declared import Names, has_strays, names_of, strays
from shoal.faces.torchrl.env.done import Checked, DoneLevel, complete_flags, done_levels, shaped
from shoal.faces.torchrl.env.keys import NestedKey, Path, drop, hollow_keys, leaf_keys, level_of, path_of
from shoal.faces.torchrl.fast_td import build, entries_of
from shoal.faces.torchrl.mdp import step_mdp

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from shoal.faces.torchrl.env.specs import EnvSpecs
    from shoal.faces.torchrl.specs import TensorSpec

_NOT_CARRIED = ("next", "_step", "_reset")
# Where envs that keep their state in the data have what holds for all episodes: masses, lengths, limits.
_PARAMETERS = "params"


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf of a spec."""

    key: NestedKey
    path: Path
    spec: TensorSpec
    shape: torch.Size


class EnvPlan:
    """The specs of an env as step and reset use them.

    Attributes:
        batch_size: That of the env.
        fixed_batch: Whether data must have exactly that batch size.
        levels: The levels that have done flags, the root first.
        root_done: Whether the root is one of them; it then decides alone whether the env is reset.
        deciding: The levels that decide about resets.
        dropped: What the reward spec declares and the env does not read back: it exists only under ``next``.
        is_flat: Whether rewards, flags and actions are all at the root.
    """

    __slots__ = (
        "_declared",
        "_env",
        "_flat_rewards",
        "_is_plain",
        "_leaves",
        "_root_level",
        "_root_shape",
        "_shown_at_ends",
        "_strays",
        "actions",
        "batch_size",
        "deciding",
        "device",
        "dropped",
        "fixed_batch",
        "is_flat",
        "levels",
        "lone_action",
        "rewards",
        "root_done",
    )

    def __init__(self, env: EnvSpecs) -> None:
        self._env = env
        self.batch_size = env.batch_size
        self.device = env.device
        self.fixed_batch = env.batch_locked or bool(env.batch_size)
        self.rewards = _leaves(env.full_reward_spec)
        self.actions = _leaves(env.full_action_spec)
        self.levels: list[DoneLevel] = done_levels(env.full_done_spec)
        self.root_done = bool(self.levels) and self.levels[0].path == ()
        self.deciding = self.levels[:1] if self.root_done else self.levels
        flat_leaves = all(len(leaf.path) == 1 for leaf in (*self.rewards, *self.actions))
        self.is_flat = flat_leaves and len(self.levels) == 1 and self.root_done
        self._is_plain = self.is_flat and self.fixed_batch
        self._root_level = self.levels[0] if self.is_flat else None
        self._root_shape = self.levels[0].shape if self.is_flat else torch.Size()
        self._flat_rewards = [(leaf.path[0], leaf.shape) for leaf in self.rewards] if self.is_flat else []
        others = (env.full_observation_spec, env.full_done_spec, env.full_state_spec)
        rewards = (*(leaf.key for leaf in self.rewards), *hollow_keys(env.full_reward_spec))
        self.dropped = tuple(key for key in rewards if not any(key in spec for spec in others))
        self._declared: Names = names_of(*others, env.full_reward_spec)
        self._leaves = frozenset(name for name, below in self._declared.items() if below is None)
        # Kept by the env, which outlives its plans.
        self._strays: set[Path] = env._strays
        self.lone_action = self.actions[0] if self.is_flat and len(self.actions) == 1 else None
        parameters = [_PARAMETERS] if _PARAMETERS in env.full_state_spec else []
        self._shown_at_ends = (*(level.reset_key for level in self.levels), *parameters)

    # -- checks -------------------------------------------------------------------------------------------------------

    def check_batch(self, td: TensorDictBase, call: str) -> None:
        """Refuse data whose batch size is not that of the env, where that is fixed."""
        if self.fixed_batch and td.batch_size != self.batch_size:
            raise TensorEnvError(
                f"{type(self._env).__name__}.{call}: expected a TensorDict of batch size {tuple(self.batch_size)}, "
                f"as the env has, got {tuple(td.batch_size)}"
            )

    def lead(self, td: TensorDictBase) -> torch.Size:
        """The dims that data has before those of the specs: none, unless the env takes its batch from its input."""
        return torch.Size() if self.fixed_batch else td.batch_size

    # -- completion ---------------------------------------------------------------------------------------------------

    def complete_step(self, out: TensorDictBase, given: TensorDictBase | None = None) -> None:
        """Give what ``_step`` returned the rewards' and flags' shapes, and the flags it left out.

        Args:
            out: What it returned, changed in place.
            given: What it was given. Anything under ``next`` in that does not come from the env.
        """
        entries = entries_of(out) if self._is_plain else None
        if entries is None:
            self._complete_rewards(out)
            self.complete_done(out)
            self._note_strays(out, given)
            return
        for name, shape in self._flat_rewards:
            reward = entries.get(name)
            if reward is None:
                raise self._no_reward(name)
            if reward.shape != shape:
                entries[name] = shaped(reward, shape, self._env, (name,))
        complete_flags(entries, self._root_level, self._root_shape, self._env)  # type: ignore[arg-type]
        if not self._leaves.issuperset(entries):
            self._note_strays(out, given)

    def _note_strays(self, out: TensorDictBase, given: TensorDictBase | None) -> None:
        if has_strays(out, self._declared):
            preset = None if given is None else given.get("next", None)
            self._strays.update(strays(out, preset, self._declared))

    def complete_done(self, out: TensorDictBase) -> None:
        """Infer the flags that are missing at any level."""
        lead = self.lead(out)
        for level in self.levels:
            here = level_of(out, level.path)
            if here is None:
                here = _make_level(out, level, self.batch_size if self.fixed_batch else lead)
            entries = entries_of(here)
            shape = torch.Size((*lead, *level.shape))
            complete_flags(Checked(here) if entries is None else entries, level, shape, self._env)

    def _complete_rewards(self, out: TensorDictBase) -> None:
        lead = self.lead(out)
        for leaf in self.rewards:
            reward = out.get(leaf.key, None)
            if reward is None:
                raise self._no_reward(leaf.key)
            shape = torch.Size((*lead, *leaf.shape))
            if reward.shape != shape:
                out.set(leaf.key, shaped(reward, shape, self._env, leaf.path))

    def _no_reward(self, key: NestedKey) -> TensorEnvError:
        return TensorEnvError(f"{type(self._env).__name__}: _step returned no {key!r}, which the reward spec declares")

    # -- from one step to the next ------------------------------------------------------------------------------------

    def advance(self, td: TensorDictBase) -> TensorDictBase:
        """The root of the next step: what ``next`` holds, without rewards that are not read back, over what it held.

        What the env returns and no spec declares is left behind, unless the root held it before: otherwise the roots of
        a rollout would not be alike. What others have put under ``next`` is carried along.
        """
        entries = entries_of(td)
        inside = None if entries is None else entries_of(entries.get("next"))
        if not self.is_flat or entries is None or inside is None:
            return self._advance_nested(td)
        root = dict(entries)
        for key in _NOT_CARRIED:
            root.pop(key, None)
        root.update(inside)
        for dropped in self.dropped:
            root.pop(dropped, None)  # type: ignore[arg-type]  # keys are names here, all at the root
        for key, value in root.items():
            if type(value) is not torch.Tensor:
                joined = _joined(entries.get(key), inside.get(key))
                if joined is None:
                    return self._advance_nested(td)
                root[key] = joined
        advanced = build(root, td.batch_size, td.device)
        return self._without_strays(advanced, td) if self._strays else advanced

    def _advance_nested(self, td: TensorDictBase) -> TensorDictBase:
        if isinstance(td, LazyStackedTensorDict):
            rows = [self.advance(row) for row in td.unbind(td.stack_dim)]
            stacked: TensorDictBase = LazyStackedTensorDict.lazy_stack(rows, td.stack_dim)
            return stacked
        advanced = step_mdp(
            td,
            exclude_action=False,
            reward_keys=self.dropped,
            done_keys=[key for level in self.levels for key in level.keys],
            action_keys=[leaf.key for leaf in self.actions],
        )
        advanced = advanced.exclude("_step", "_reset", inplace=True)
        return self._without_strays(advanced, td) if self._strays else advanced

    def _without_strays(self, advanced: TensorDictBase, before: TensorDictBase) -> TensorDictBase:
        for path in self._strays:
            here = level_of(before, path[:-1])
            if here is None or here.get(path[-1], None) is None:
                drop(advanced, path)
        return advanced

    # -- ends of episodes ---------------------------------------------------------------------------------------------

    def ended(self, td: TensorDictBase) -> list[tuple[DoneLevel, torch.Tensor]]:
        """The mask of ended rows of each level that decides about resets; empty when nothing has ended."""
        if self.is_flat:
            entries = entries_of(td)
            done = None if entries is None else entries.get("done")
            # item() is ten times faster than any() on the one flag of an unbatched env.
            if done is not None and done.numel() == 1 and not done.item():
                return []
        masks = []
        for level in self.deciding:
            mask = _ended_at(td, level)
            if mask is not None:
                masks.append((level, mask))
        return masks if any(bool(mask.any()) for _, mask in masks) else []

    def shown_at_ends(self, td: TensorDictBase) -> TensorDictBase:
        """What a reset of ended episodes may read: its masks, and the parameters of envs that keep them in the data."""
        shown: TensorDictBase = td.select(*self._shown_at_ends, strict=False)
        return shown

    def has_flag(self, td: TensorDictBase) -> bool:
        """Whether any flag is set, whatever ``done`` says, at a level that decides about resets."""
        entries = entries_of(td) if self.is_flat else None
        if entries is None:
            return any(bool(flags.any()) for flags in self.flagged(td))
        flags = [entries.get(flag) for level in self.deciding for flag in level.flags]
        # As in ``ended``: item() is faster where there is only one flag.
        return any(bool(flag.item() if flag.numel() == 1 else flag.any()) for flag in flags if flag is not None)

    def flagged(self, td: TensorDictBase) -> list[torch.Tensor]:
        """The rows in which any flag is set, for each level that decides about resets."""
        found = []
        for level in self.deciding:
            here = level_of(td, level.path)
            flags = [] if here is None else [here.get(flag, None) for flag in level.flags]
            if present := [flag.bool() for flag in flags if flag is not None]:
                found.append(torch.stack(present).any(0) if len(present) > 1 else present[0])
        return found


def _leaves(spec: Any) -> list[Leaf]:
    return [Leaf(key, path_of(key), spec[key], torch.Size(spec[key].shape)) for key in leaf_keys(spec)]


def _joined(old: Any, new: Any) -> Any:
    """A nested TensorDict for the next root, which must not share it with this one; None for kinds without entries."""
    value = old if new is None else new
    if type(value) in (NonTensorData, NonTensorStack):
        return value
    parts = [entries_of(part) for part in (old, new) if part is not None]
    joined: dict[str, Any] = {}
    for part in parts:
        if part is None:
            return None
        joined.update(part)
    for key, inner in joined.items():
        if type(inner) is not torch.Tensor:
            joined[key] = _joined(*(None if part is None else part.get(key) for part in (parts[0], parts[-1])))
            if joined[key] is None:
                return None
    return build(joined, value.batch_size, value.device)


def _make_level(out: TensorDictBase, level: DoneLevel, batch_size: torch.Size) -> TensorDictBase:
    """A level that the env returned nothing for; its batch size is the shape of its flags without the last dim."""
    shape = level.shape[:-1] if len(level.shape) > len(batch_size) else batch_size
    made = build({}, torch.Size((*batch_size, *shape[len(batch_size) :])), out.device)
    out.set(level.path, made)
    found = level_of(out, level.path)
    return made if found is None else found


def _ended_at(td: TensorDictBase, level: DoneLevel) -> torch.Tensor | None:
    """The rows of a level that have ended: its ``done``, or the union of its flags when there is no ``done``."""
    here = level_of(td, level.path)
    if here is None:
        return None
    entries = entries_of(here)
    read: Any = Checked(here) if entries is None else entries
    done = read.get("done")
    if done is not None:
        return done.bool() if done.dtype is not torch.bool else done
    flags = [read.get(flag) for flag in level.flags]
    ended: torch.Tensor | None = None
    for flag in flags:
        if flag is not None:
            ended = flag.bool() if ended is None else ended | flag.bool()
    return ended
