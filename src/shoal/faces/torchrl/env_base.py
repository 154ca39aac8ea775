"""EnvBase: the base class of every env in TorchRL's dialect.

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
    ...
    ...     def _reset(self, tensordict=None, **kwargs):
    ...         self.count = torch.zeros(1)
    ...         return TensorDict({"count": self.count})
    ...
    ...     def _step(self, tensordict):
    ...         self.count = self.count + 1
    ...         return TensorDict({"count": self.count, "reward": torch.ones(1), "done": self.count >= 3})
    ...
    ...     def _set_seed(self, seed):
    ...         pass
    >>> Counter().rollout(10)["next", "count"].flatten()
    tensor([1., 2., 3.])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from shoal.errors import ArgumentError, StateError
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
from shoal.faces.torchrl.env.stepping import Stepping
from shoal.faces.torchrl.env.tools import EnvTools
from shoal.faces.torchrl.fast_td import build, entries_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tensordict import TensorDictBase

    from shoal.faces.torchrl.env.policies import Policy


class EnvBase(Stepping, EnvTools, metaclass=EnvMeta):
    """An env that reads and writes TensorDicts.

    Args:
        device: Where data is expected and returned; None to leave it open.
        batch_size: How many envs there are in this one, as the leading dims of all data and specs.
        run_type_checks: Whether the dtypes of what ``_step`` returns are compared with the specs.
        allow_done_after_reset: Whether a reset may return an episode that has already ended.
        spec_locked: Whether the specs are locked once the env is built.
        auto_reset: Whether the env resets itself inside ``_step``; the constructor then returns it wrapped in an
            `AutoResetEnv`.
    """

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
            # Kept under another name, so that the property still refuses to be set.
            cls._batch_locked = declared
            del cls.batch_locked

    # -- construction -------------------------------------------------------------------------------------------------

    def _after_init(self) -> EnvBase:
        """What the caller of the constructor gets: the env itself, or a wrapper that it cannot do without."""
        return self

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
            policy: Chooses the actions, at random when None; see `policy_for` for what qualifies.
            callback: Called with the env and its data after every step but the last.
            actions: Actions to take instead of a policy's; there are no more steps than actions.
            auto_reset: Whether to begin with a reset; without one, ``tensordict`` says where the env is.
            auto_cast_to_device: Whether data is moved to the policy's device and back.
            break_when_any_done: Stop as soon as any episode ends (the default). False goes on, resetting what ends.
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
            The steps, with time as the last batch dim.
        """
        if break_when_any_done and break_when_all_done:
            raise ConflictingBreaks("rollout: break_when_any_done and break_when_all_done cannot both be True")
        if set_truncated:
            check_truncated(self)
        if actions is None:
            act = policy_for(self, policy, trust_policy)
        else:
            act, max_steps = self._replay(actions, policy, max_steps)
        if auto_cast_to_device:
            act = casting(act, policy, self.device)
        rolling = Rolling(
            self, act, max_steps, callback, None if storing_device is None else torch.device(storing_device)
        )
        start = self._first_root(tensordict, auto_reset, set_state)
        steps = rolling.steps(start, break_when_any_done, break_when_all_done)
        if set_truncated and steps:
            mark_truncated(self, steps[-1])
        return stack_steps(steps, return_contiguous, out, self)

    def _replay(self, actions: Iterable[Any], policy: Any, max_steps: int) -> tuple[Policy, int]:
        """A policy that replays the given actions, and how many steps they last."""
        if policy is not None:
            raise ArgumentError("rollout: policy and actions exclude each other")
        chosen = list(actions)
        return replay(self, chosen), min(max_steps, len(chosen))

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
            static_seed: Whether the next env should have the same seed.

        Returns:
            The seed for the next env: far from this one, and always the same for the same seed.
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
        else:
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

    # -- the rest of the life cycle -----------------------------------------------------------------------------------

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
        """Close the env; a second call does nothing."""
        self.__dict__["is_closed"] = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse to be called: an env is not a function of its input."""
        raise NotImplementedError(
            f"{type(self).__name__} was called like a function; where a constructor of envs is expected, pass the "
            "class, or a function that builds one"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_size={tuple(self.batch_size)}, device={self.device})"
