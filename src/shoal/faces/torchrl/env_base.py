"""EnvBase: what every env of TorchRL's dialect is.

A subclass sets its specs in ``__init__`` and says how it resets, steps and is seeded. What it returns is completed
(done flags, shapes) and merged with what it was given:

    td = env.reset()              observations and done flags at the root
    td = policy(td)               the action beside them
    td = env.step(td)             what follows under "next": observations, reward, done flags
    td = env.step_mdp(td)         "next" becomes the root of the next step

Example:
    >>> import torch
    >>> from tensordict import TensorDict
    >>> from shoal.faces.torchrl import Categorical, Composite, EnvBase, Unbounded
    >>> class Counter(EnvBase):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.observation_spec = Composite(count=Unbounded((1,)))
    ...         self.action_spec = Categorical(2)
    ...     def _reset(self, tensordict=None, **kwargs):
    ...         self.count = torch.zeros(1)
    ...         return TensorDict({"count": self.count})
    ...     def _step(self, tensordict):
    ...         self.count = self.count + 1
    ...         return TensorDict({"count": self.count, "reward": torch.ones(1), "done": self.count >= 3})
    ...     def _set_seed(self, seed):
    ...         pass
    >>> Counter().rollout(10)["next", "count"].flatten()
    tensor([1., 2., 3.])
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Self

import torch
from tensordict import TensorDictBase

from shoal.errors import ArgumentError, StateError, TensorEnvError
from shoal.faces.torchrl.env import masks as masking
from shoal.faces.torchrl.env.plan import EnvPlan
from shoal.faces.torchrl.env.policies import casting, policy_for, replay
from shoal.faces.torchrl.env.post_init import EnvMeta
from shoal.faces.torchrl.env.rolling import (
    ConflictingBreaks,
    Rolling,
    check_truncated,
    mark_truncated,
    stack_steps,
)
from shoal.faces.torchrl.env.seeds import next_seed
from shoal.faces.torchrl.env.specs import EnvSpecs
from shoal.faces.torchrl.env.tools import EnvTools
from shoal.faces.torchrl.fast_td import build, entries_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class EnvBase(EnvTools, EnvSpecs, metaclass=EnvMeta):
    """An env that reads and writes TensorDicts.

    Args:
        device: Where data is expected and returned; None to leave it open.
        batch_size: How many envs there are in this one, as the leading dims of all data and specs.
        run_type_checks: Whether the dtypes of what ``_step`` returns are compared with the specs.
        allow_done_after_reset: Whether a reset may return an episode that has already ended.
        spec_locked: Whether the specs are locked once the env is built.
        auto_reset: The env resets itself inside ``_step``; it comes wrapped in an `AutoResetEnv`.
    """

    # Whether _step itself fills the rows that a partial step leaves out.
    _fills_skipped_rows = False

    def __init__(
        self,
        *,
        device: torch.device | str | int | None = None,
        batch_size: Any = None,
        run_type_checks: bool = False,
        allow_done_after_reset: bool = False,
        spec_locked: bool = True,
        auto_reset: bool = False,
    ) -> None:
        super().__init__(
            torch.Size([batch_size] if isinstance(batch_size, int) else batch_size or ()),
            None if device is None else torch.device(device),
        )
        own = self.__dict__
        own["run_type_checks"] = run_type_checks
        own["_allow_done_after_reset"] = allow_done_after_reset
        own["_wants_lock"] = spec_locked
        own["_wants_auto_reset"] = auto_reset
        own["is_closed"] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        declared = cls.__dict__.get("batch_locked")
        if isinstance(declared, bool):
            # Kept under another name, so that the property goes on refusing to be set.
            cls._batch_locked = declared
            del cls.batch_locked

    # -- what a subclass says -----------------------------------------------------------------------------------------

    @abstractmethod
    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        """Begin an episode, and return its first observations in a new TensorDict."""
        raise NotImplementedError(f"{type(self).__name__} has no _reset")

    @abstractmethod
    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Make a step, and return what follows (observations, reward, done flags) in a new TensorDict."""
        raise NotImplementedError(f"{type(self).__name__} has no _step")

    @abstractmethod
    def _set_seed(self, seed: int | None) -> Any:
        """Seed whatever is random in the env."""
        raise NotImplementedError(f"{type(self).__name__} has no _set_seed")

    @property
    def supports_set_state(self) -> bool:
        """Whether ``reset(td, set_state=True)`` can put the env into the state that ``td`` holds."""
        return False

    def _after_init(self) -> EnvBase:
        """What the caller of the constructor gets: the env itself, or a wrapper that it cannot do without."""
        return self

    def _complete_specs(self) -> None:
        """Fill in the specs that the constructor left out, and check that all fit together."""
        self.input_spec, self.output_spec  # noqa: B018 - reading them completes them
        self.check_key_collisions()

    def _plan(self) -> EnvPlan:
        plan: EnvPlan | None = self.__dict__["_kept"].get("plan")
        return self._keep("plan", lambda: EnvPlan(self)) if plan is None else plan

    # -- reset --------------------------------------------------------------------------------------------------------

    def reset(
        self, tensordict: TensorDictBase | None = None, *, set_state: bool | None = None, **kwargs: Any
    ) -> TensorDictBase:
        """Begin an episode, in all of the env or where ``"_reset"`` masks say so.

        Args:
            tensordict: What the env may read for its reset. It is updated in place and returned. Rows that a mask
                leaves out keep their values, and get zeros for what it does not hold; the masks are removed.
            set_state: Whether to put the env into the state that ``tensordict`` holds, for envs that can.
            **kwargs: Given to ``_reset`` (``seed`` and ``options`` for Gym envs).

        Returns:
            ``tensordict``, or a new TensorDict when there was none.
        """
        plan = self._plan()
        masks: masking.Masks = []
        if tensordict is not None:
            plan.check_batch(tensordict, "reset")
            masks = masking.take_reset_masks(tensordict, plan)
        if set_state is not None or self.supports_set_state:
            kwargs = self._with_state(tensordict, set_state, kwargs)
        fresh = self._reset(tensordict, **kwargs)
        self._check_returned(fresh, tensordict, "_reset")
        plan.check_batch(fresh, "_reset")
        plan.complete_done(fresh)
        if not self._allow_done_after_reset:
            self._check_running(fresh, masks, plan)
        masking.drop_reset_masks(fresh, plan)
        if tensordict is None:
            return fresh
        if masks:
            fresh = masking.keep_unreset(fresh, tensordict, masks)
        masking.drop_reset_masks(tensordict, plan)
        return tensordict.update(fresh)

    def _with_state(self, td: TensorDictBase | None, set_state: bool | None, kwargs: dict[str, Any]) -> dict[str, Any]:
        if not self.supports_set_state:
            if set_state:
                raise NotImplementedError(f"{type(self).__name__} cannot be put into a state by reset(set_state=True)")
            return kwargs
        if set_state is None:
            set_state = td is not None and any(key in td.keys(True) for key in self.state_keys)
            if set_state:
                warnings.warn(
                    f"{type(self).__name__}.reset was given a state without set_state; the state is taken, "
                    "say set_state=True to keep that, or set_state=False for a random one",
                    FutureWarning,
                    stacklevel=3,
                )
        return {**kwargs, "set_state": set_state}

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
            The same TensorDict, with what follows under ``"next"``.
        """
        out = self._following(tensordict)
        entries = entries_of(tensordict)
        if (
            entries is not None
            and out.batch_size == tensordict.batch_size
            and (tensordict.device is None or tensordict.device == out.device)
        ):
            entries["next"] = out
            return tensordict
        return tensordict.set("next", out)

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
        if out is td or not isinstance(out, TensorDictBase):
            self._check_returned(out, td, "_step")
        plan.complete_step(out)
        if self.run_type_checks:
            self._check_types(out)
        return out

    def _following_presets(self, td: TensorDictBase, plan: EnvPlan) -> TensorDictBase:
        """A step of data that has a ``"_step"`` mask, something under ``"next"`` already, or insides of its own."""
        plan.check_batch(td, "step")
        preset = td.get("next", None)
        mask = masking.step_mask(td)
        if mask is None or mask.all():
            if mask is not None:
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
        """What rows keep when they are not stepped: all of the root but rewards."""
        return td.exclude("next", "_step", *self.reward_keys)

    def _skipped(self, td: TensorDictBase) -> TensorDictBase:
        """What follows for rows that are not stepped."""
        zeros = self._zeros_of_next(td.batch_size[: len(td.batch_size) - len(self.batch_size)])
        nothing = torch.zeros(td.batch_size, dtype=torch.bool, device=td.device)
        skipped: TensorDictBase = masking.select(nothing, zeros, self._carried(td))
        return skipped

    def _step_rows(self, td: TensorDictBase, mask: torch.Tensor, plan: EnvPlan) -> TensorDictBase:
        """Step some rows of an env that takes any batch, and put them among the others."""
        rows = self._stepped(td[mask], plan)
        out = self._skipped(td)
        for key in rows.keys(True, True):
            if key not in out.keys(True, True):
                value = rows.get(key)
                out.set(key, value.new_zeros((*td.batch_size, *value.shape[1:])))
        out[mask] = rows.select(*out.keys(True, True))
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
            step, where ended episodes have begun anew.
        """
        tensordict = self.step(tensordict)
        return tensordict, self.maybe_reset(self.step_mdp(tensordict))

    def step_mdp(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        """The root of the next step: what is under ``"next"`` but rewards, over what the root holds."""
        return self._plan().advance(next_tensordict)

    def any_done(self, tensordict: TensorDictBase) -> bool | torch.Tensor:
        """Whether any episode has ended; the masks for its reset are then written into the data."""
        ended = self._plan().ended(tensordict)
        for level, mask in ended:
            tensordict.set(level.reset_key, mask.clone())
        return torch.tensor(bool(ended))

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Reset what has ended, if anything has.

        Returns:
            ``tensordict`` itself, updated.
        """
        ended = self._plan().ended(tensordict)
        if not ended:
            return tensordict
        for level, mask in ended:
            tensordict.set(level.reset_key, mask.clone())
        return self.reset(tensordict)

    # -- rollouts -----------------------------------------------------------------------------------------------------

    def rollout(
        self,
        max_steps: int,
        policy: Callable[..., Any] | None = None,
        callback: Callable[[EnvBase, TensorDictBase], Any] | None = None,
        *,
        actions: Iterable[Any] | None = None,
        auto_reset: bool = True,
        auto_cast_to_device: bool = False,
        break_when_any_done: bool | None = None,
        break_when_all_done: bool | None = None,
        return_contiguous: bool | None = False,
        tensordict: TensorDictBase | None = None,
        set_truncated: bool = False,
        out: TensorDictBase | None = None,
        trust_policy: bool = False,
        storing_device: torch.device | str | int | None = None,
        set_state: bool | None = None,
    ) -> TensorDictBase:
        """Make up to ``max_steps`` steps in a row.

        Args:
            max_steps: How many steps at most.
            policy: Chooses the actions, at random when None. A callable with one parameter named ``td`` or
                ``tensordict`` gets the data, others get the observations.
            callback: Called with the env and its data after every step but the last.
            actions: Actions to take instead of a policy's; there are no more steps than actions.
            auto_reset: Whether to begin with a reset; without, ``tensordict`` says where the env is.
            auto_cast_to_device: Whether data is moved to the policy's device and back.
            break_when_any_done: Stop as soon as any episode ends (the default). False goes on, and resets what ends.
            break_when_all_done: Go on until all episodes have ended; ended rows repeat their last step meanwhile.
            return_contiguous: True for a dense result, False for a lazy stack where shapes differ, None to let the
                specs decide.
            tensordict: Given to the reset, or where to go on from. It is not changed.
            set_truncated: Mark the last step as truncated.
            out: Where to write the result.
            trust_policy: Whether the policy reads and writes TensorDicts, whatever it looks like.
            storing_device: Where to keep the steps.
            set_state: Given to the reset.

        Returns:
            The steps, with the time as the last batch dim.
        """
        if break_when_any_done and break_when_all_done:
            raise ConflictingBreaks("rollout: break_when_any_done and break_when_all_done cannot both be True")
        if actions is not None:
            if policy is not None:
                raise ArgumentError("rollout: policy and actions exclude each other")
            actions = list(actions)
            max_steps = min(max_steps, len(actions))
        if set_truncated:
            check_truncated(self)
        act = policy_for(self, policy, trust_policy) if actions is None else replay(self, actions)
        if auto_cast_to_device:
            act = casting(act, policy, self.device)
        keep_at = None if storing_device is None else torch.device(storing_device)
        start = self._first_root(tensordict, auto_reset, set_state)
        rolling = Rolling(self, act, max_steps, callback, keep_at)
        if break_when_all_done:
            steps = rolling.until_all_done(start)
        elif break_when_any_done is False:
            steps = rolling.without_stopping(start)
        else:
            steps = rolling.until_any_done(start)
        if set_truncated and steps:
            mark_truncated(self, steps[-1])
        return stack_steps(steps, return_contiguous, out, self)

    def _first_root(self, td: TensorDictBase | None, auto_reset: bool, set_state: bool | None) -> TensorDictBase:
        if td is not None:
            td = td.copy()
        if auto_reset:
            return self.reset(td) if set_state is None else self.reset(td, set_state=set_state)
        if td is None:
            raise StateError(f"{type(self).__name__}.rollout: auto_reset=False needs a tensordict to go on from")
        return self.maybe_reset(td)

    # -- seeds and actions --------------------------------------------------------------------------------------------

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seed the env.

        Args:
            seed: None leaves it to the env.
            static_seed: Whether the next env is to have the same seed.

        Returns:
            The seed for the next env: far from this one, and always the same.
        """
        self._set_seed(seed)
        return seed if seed is None or static_seed else next_seed(seed)

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Write a random action into ``tensordict``, or into a new one."""
        plan = self._plan()
        if tensordict is None:
            tensordict = build({}, plan.batch_size, plan.device)
        lead = torch.Size()
        if not plan.fixed_batch:
            lead = tensordict.batch_size
        elif not self.batch_locked:
            plan.check_batch(tensordict, "rand_action")
        lone, entries = plan.lone_action, entries_of(tensordict)
        if lone is not None and entries is not None:
            action = lone.spec.rand(lead) if lead else lone.spec.rand()
            if type(action) is torch.Tensor and (tensordict.device is None or action.device == tensordict.device):
                entries[lone.path[0]] = action
                return tensordict
            return tensordict.set(lone.key, action)
        return tensordict.update(self.full_action_spec.rand(lead))

    def rand_step(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """A step with a random action."""
        return self.step(self.rand_action(tensordict))

    # -- the rest of a life -------------------------------------------------------------------------------------------

    def to(self, device: Any, *args: Any, **kwargs: Any) -> Self:
        """Move the env: data is expected and returned there from now on.

        Returns:
            The env itself.
        """
        target = torch.device(device)
        if target != self.device:
            self.__dict__["_device"] = target
            self._move_specs(target)
            super().to(target)
        return self

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the env. A second call does nothing."""
        self.__dict__["is_closed"] = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """An env is no function of its input: nothing calls it."""
        raise NotImplementedError(
            f"{type(self).__name__} was called like a function; where a constructor of envs is expected, pass the class "
            "or a function that builds one"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_size={tuple(self.batch_size)}, device={self.device})"


class _WrongType(TensorEnvError, TypeError):
    """An env returned another dtype than its spec says."""
