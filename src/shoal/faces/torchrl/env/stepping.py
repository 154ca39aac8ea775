"""How an env resets and steps: what it is given, what it returns, and how the two are merged."""

from __future__ import annotations

import warnings
from abc import ABCMeta, abstractmethod
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, TensorDictBase

from shoal.errors import TensorEnvError
from shoal.faces.torchrl.env import masks as masking
from shoal.faces.torchrl.env.plan import EnvPlan
from shoal.faces.torchrl.env.specs import EnvSpecs
from shoal.faces.torchrl.fast_td import entries_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.faces.torchrl.env.keys import NestedKey


class Stepping(EnvSpecs, metaclass=ABCMeta):
    """Reset and step of `EnvBase`.

    Attributes:
        run_type_checks: Whether the dtypes of what ``_step`` returns are compared with the specs.
    """

    run_type_checks: bool
    _allow_done_after_reset: bool
    _has_own_any_done = False
    # Whether _step itself fills the rows that a partial step leaves out.
    _fills_skipped_rows = False
    # What a step puts into its input, besides ``next``; the state spec declares it.
    _recorded_keys: Sequence[NestedKey] = ()

    # -- what a subclass defines --------------------------------------------------------------------------------------

    @abstractmethod
    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        """Begin an episode, and return its first observations in a new TensorDict."""

    @abstractmethod
    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Make a step, and return what follows (observations, reward, done flags) in a new TensorDict."""

    @abstractmethod
    def _set_seed(self, seed: int | None) -> Any:
        """Seed whatever is random in the env."""

    @property
    def supports_set_state(self) -> bool:
        """Whether ``reset(td, set_state=True)`` can put the env into the state that ``td`` holds."""
        return False

    def _complete_specs(self) -> None:
        """Fill in the specs that the constructor left out, and check that all fit together."""
        self.input_spec, self.output_spec  # noqa: B018 - reading them completes them
        self.check_key_collisions()

    def _plan(self) -> EnvPlan:
        plan: EnvPlan | None = self._kept.get("plan")
        return self._keep("plan", lambda: EnvPlan(self)) if plan is None else plan

    # -- reset --------------------------------------------------------------------------------------------------------

    def reset(
        self,
        tensordict: TensorDictBase | None = None,
        *,
        set_state: bool | None = None,
        select_reset_only: bool = False,
        **kwargs: Any,
    ) -> TensorDictBase:
        """Begin an episode, in all of the env or where ``"_reset"`` masks say so.

        Args:
            tensordict: What the env may read for its reset. It is updated in place and returned. Rows that a mask
                leaves out keep their values, and get zeros for entries that were not there; the masks are removed.
            set_state: Whether to put the env into the state that ``tensordict`` holds, for envs that can.
            select_reset_only: Whether the data is that of episodes that have ended, as in `maybe_reset`. ``_reset``
                then sees only the masks, and ``"params"`` if the state spec names them: an env that begins with what
                it is given would otherwise go on where the episode has ended.
            **kwargs: Given to ``_reset`` (``seed`` and ``options`` for Gym envs).

        Returns:
            ``tensordict``, or a new TensorDict when there was none.
        """
        return self._start_episodes(tensordict, set_state, select_reset_only, kwargs)

    def _start_episodes(
        self,
        tensordict: TensorDictBase | None,
        set_state: bool | None,
        select_reset_only: bool,
        kwargs: dict[str, Any],
        *,
        keeps_absent: bool = False,
    ) -> TensorDictBase:
        """What `reset` returns.

        With ``keeps_absent``, entries that were not there are not made zero in rows that a mask leaves out, but are
        what ``_reset`` has returned: the env's own, where it knows them.
        """
        plan = self._plan()
        masks: masking.Masks = []
        if tensordict is not None:
            plan.check_batch(tensordict, "reset")
            if not plan.is_flat:
                self._check_reset_masks(tensordict)
            masks = masking.take_reset_masks(tensordict, plan)
        if set_state is not None or self.supports_set_state:
            kwargs = self._with_state(tensordict, set_state, kwargs)
        shown = plan.shown_at_ends(tensordict) if select_reset_only and tensordict is not None else tensordict
        fresh = self._reset(shown, **kwargs)
        self._check_returned(fresh, shown, "_reset")
        plan.check_batch(fresh, "_reset")
        plan.complete_done(fresh)
        if not self._allow_done_after_reset:
            self._check_running(fresh, masks, plan)
        if tensordict is not None:
            if masks:
                known = fresh.copy().update(tensordict) if keeps_absent else tensordict
                fresh = masking.keep_unreset(fresh, known, masks, plan)
            fresh = tensordict.update(fresh)
        masking.drop_reset_masks(fresh)
        return fresh

    def _check_reset_masks(self, td: TensorDictBase) -> None:
        """Refuse masks that a reset cannot follow; a level without one is reset as a whole here."""

    def _with_state(self, td: TensorDictBase | None, set_state: bool | None, kwargs: dict[str, Any]) -> dict[str, Any]:
        if not self.supports_set_state:
            if set_state:
                raise NotImplementedError(f"{type(self).__name__} cannot be put into a state by reset(set_state=True)")
            return kwargs
        if set_state is None:
            # A mask asks for new episodes where others have ended: the state that is there is that of the end.
            set_state = td is not None and not self._holds_reset_mask(td) and self._state_given(td)
            if set_state:
                warnings.warn(
                    f"{type(self).__name__}.reset was given a state without set_state; the state is taken, "
                    "say set_state=True to keep that, or set_state=False for a random one",
                    FutureWarning,
                    stacklevel=3,
                )
        return {**kwargs, "set_state": set_state}

    def _state_given(self, tensordict: TensorDictBase) -> bool:
        """Whether data given to a reset holds a state to begin in."""
        return any(key in tensordict.keys(True) for key in self.state_keys)

    def _holds_reset_mask(self, td: TensorDictBase) -> bool:
        return any(key in td.keys(True) for key in self.reset_keys)

    def _check_returned(self, out: Any, given: TensorDictBase | None, call: str) -> None:
        if out is given and given is not None:
            raise TensorEnvError(f"{type(self).__name__}.{call} returned its input; it has to return a new TensorDict")
        if not isinstance(out, TensorDictBase):
            raise TensorEnvError(
                f"{type(self).__name__}.{call}: expected a TensorDict to be returned, got {type(out).__name__}"
            )

    def _check_running(self, fresh: TensorDictBase, masks: masking.Masks, plan: EnvPlan) -> None:
        mask_of = dict(masks)
        for level in plan.levels:
            mask = mask_of.get((), mask_of.get(level.path))
            for key in level.keys:
                flag = fresh.get(key)
                ended = flag if mask is None else flag & masking.over(mask, flag)
                if ended.item() if ended.numel() == 1 else ended.any():
                    raise TensorEnvError(
                        f"{type(self).__name__}._reset: {key!r} is True right after a reset; "
                        "allow_done_after_reset=True accepts that"
                    )

    # -- step ---------------------------------------------------------------------------------------------------------

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Make a step with the action that ``tensordict`` holds.

        Args:
            tensordict: The action, and whatever else the env reads. Rows that a ``"_step"`` mask leaves out are not
                stepped: under ``"next"`` they keep the observations they have here.

        Returns:
            The same TensorDict, with what follows under ``"next"``; a new one if the env takes any batch and rows are
            left out.
        """
        entries = entries_of(tensordict)
        if entries is None or "_step" in entries:
            tensordict = self._kept_apart(tensordict)
            entries = entries_of(tensordict)
        out = self._following(tensordict)
        if entries is not None and out.batch_size == tensordict.batch_size:
            device = tensordict.device
            if device is None or device == out.device:
                entries["next"] = out
                return tensordict
        return tensordict.set("next", out)

    def _kept_apart(self, td: TensorDictBase) -> TensorDictBase:
        """What a step is written to: a copy if the env takes any batch and only some rows are stepped."""
        mask = None if self._plan().fixed_batch else td.get("_step", None)
        if mask is None or mask.all():
            return td
        apart = td.copy()
        td.pop("_step")
        return apart

    def _following(self, td: TensorDictBase) -> TensorDictBase:
        """What goes under ``"next"``."""
        plan = self._plan()
        entries = entries_of(td)
        if entries is None or "next" in entries or "_step" in entries:
            return self._following_presets(td, plan)
        if plan.fixed_batch and td.batch_size != plan.batch_size:
            plan.check_batch(td, "step")
        return self._stepped(td, plan)

    def _stepped(self, td: TensorDictBase, plan: EnvPlan) -> TensorDictBase:
        """What ``_step`` returns, completed."""
        out = self._step(td)
        if out is td or type(out) is not TensorDict:
            self._check_returned(out, td, "_step")
        plan.complete_step(out, td)
        if self.run_type_checks:
            self._check_types(out)
        return out

    def _following_presets(self, td: TensorDictBase, plan: EnvPlan) -> TensorDictBase:
        """A step of data that has a ``"_step"`` mask, already has a ``"next"``, or is not a plain TensorDict."""
        plan.check_batch(td, "step")
        preset = td.get("next", None)
        mask = masking.step_mask(td)
        if mask is None or mask.all():
            if mask is not None and plan.fixed_batch:
                td.set("_step", mask)
            out = self._stepped(td, plan)
        elif not mask.any():
            out = self._skipped(td)
        elif plan.fixed_batch:
            td.set("_step", mask)
            out = self._stepped(td, plan)
            if not self._fills_skipped_rows:
                out = masking.select(mask, out, self._carried(td))
        else:
            out = self._step_rows(td, mask, plan)
        if preset is not None:
            out = preset.copy().update(out)
        return out

    def _carried(self, td: TensorDictBase) -> TensorDictBase:
        """What rows keep when they are not stepped: all of the root except rewards that are not read back."""
        return td.exclude("next", "_step", *self._plan().dropped)

    def _skipped(self, td: TensorDictBase) -> TensorDictBase:
        """What follows for rows that are not stepped."""
        zeros = self._zeros_of_next(td.batch_size[: len(td.batch_size) - len(self.batch_size)])
        nothing = torch.zeros(td.batch_size, dtype=torch.bool, device=td.device)
        skipped: TensorDictBase = masking.select(nothing, zeros, self._carried(td))
        return skipped

    def _step_rows(self, td: TensorDictBase, mask: torch.Tensor, plan: EnvPlan) -> TensorDictBase:
        """Step some rows of an env that takes any batch, and put them among the others."""
        rows = self._stepped(td[mask], plan)
        # Every row of the result gets one of those that were stepped; where none was, it is replaced.
        places = (mask.reshape(-1).long().cumsum(0) - 1).clamp_min(0).reshape(mask.shape)
        out: TensorDictBase = masking.select(mask, rows[places], self._carried(td))
        return out

    def _zeros_of_next(self, lead: torch.Size) -> TensorDictBase:
        zeros = self.full_observation_spec.zero(lead)
        for spec in (self.full_reward_spec, self.full_done_spec):
            zeros.update(spec.zero(lead))
        return zeros

    def _check_types(self, out: TensorDictBase) -> None:
        for spec in (self.full_observation_spec, self.full_reward_spec, self.full_done_spec):
            for key in spec.keys(True, True):
                value = out.get(key, None)
                if isinstance(value, torch.Tensor) and value.dtype is not spec[key].dtype:
                    raise _WrongType(
                        f"{type(self).__name__}._step: {key!r} should be {spec[key].dtype}, got {value.dtype}"
                    )

    # -- step and reset -----------------------------------------------------------------------------------------------

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Make a step, and reset what has ended.

        Returns:
            The same TensorDict as `step`, with the last data of the episode under ``"next"``, and the root of the next
            step, where new episodes have replaced those that ended.
        """
        tensordict = self.step(tensordict)
        return tensordict, self.maybe_reset(self.step_mdp(tensordict))

    def step_mdp(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        """The root of the next step: what is under ``"next"``, except rewards, laid over what the root holds."""
        return self._plan().advance(next_tensordict)

    def any_done(self, tensordict: TensorDictBase) -> bool | torch.Tensor:
        """Whether any episode has ended; if so, the masks for the reset are written into the data."""
        return torch.tensor(self._mark_ended(tensordict))

    def _mark_ended(self, td: TensorDictBase) -> bool:
        """Whether any episode has ended, with the masks written."""
        ended = self._plan().ended(td)
        for level, mask in ended:
            td.set(level.reset_key, mask.clone())
        return bool(ended)

    def _must_reset(self, td: TensorDictBase) -> bool:
        """What `any_done` says; no tensor is made for it where no subclass has its own."""
        return bool(self.any_done(td)) if self._has_own_any_done else self._mark_ended(td)

    @property
    def _decides_ends(self) -> bool:
        """Whether the env has an `any_done` of its own, to be asked in place of the flags."""
        return self._has_own_any_done

    def _has_ended(self, td: TensorDictBase) -> bool:
        """Whether a rollout stops here: any flag is set, whatever ``done`` says."""
        return self._must_reset(td) if self._decides_ends else self._plan().has_flag(td)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._has_own_any_done = cls.any_done is not Stepping.any_done

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Reset what has ended, if anything has; ``_reset`` does not see the data of the end.

        Returns:
            ``tensordict`` itself, updated.
        """
        return self.reset(tensordict, select_reset_only=True) if self._must_reset(tensordict) else tensordict


class _WrongType(TensorEnvError, TypeError):
    """An env returned a dtype other than that of its spec."""
