"""TransformedEnv: an env seen through transforms.

step    td -> inv of the last transform ... inv of the first -> env -> first transform ... last transform -> next
reset   the masks and the state reach the env; what it returns passes the transforms in the same order
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn

from shoal.errors import TensorEnvError
from shoal.faces.torchrl.env.done import complete_done_spec
from shoal.faces.torchrl.env.masks import select
from shoal.faces.torchrl.env_base import EnvBase
from shoal.faces.torchrl.transforms.compose import Compose
from shoal.faces.torchrl.transforms.functions import as_transform

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict import TensorDictBase

    from shoal.faces.torchrl.env.keys import NestedKey
    from shoal.faces.torchrl.env.plan import EnvPlan
    from shoal.faces.torchrl.specs import Composite
    from shoal.faces.torchrl.transforms.base import Transform


class TransformedEnv(EnvBase):
    """An env seen through transforms.

    Attributes that it lacks are looked up on the env inside.

    Args:
        base_env: The env. A `TransformedEnv` is unwrapped, and clones of its transforms come first here.
        transform: A transform, a callable, or nothing yet.
        cache_specs: Whether the transformed specs are cached.
        auto_unwrap: False to wrap a transformed env as it is, with its own transforms inside it.
        device: Where data is expected and returned; the env is moved there. Its own device by default.

    Example:
        >>> from shoal.faces.torchrl import GymEnv, StepCounter, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter(max_steps=5))
        >>> env.rollout(100).shape
        torch.Size([5])
    """

    _fills_skipped_rows = True
    # The env inside may offer to be stepped as arrays, but that would bypass the transforms.
    _array_env = None

    def __init__(
        self,
        base_env: EnvBase,
        transform: Transform | Callable[..., Any] | None = None,
        cache_specs: bool = True,
        *,
        auto_unwrap: bool | None = None,
        device: torch.device | str | int | None = None,
        **kwargs: Any,
    ) -> None:
        chain: Transform = Compose() if transform is None else as_transform(transform)
        # A subclass may reset or step in a way of its own, which would be lost.
        if type(base_env) is TransformedEnv and auto_unwrap is not False:
            merged = Compose(base_env.transform.clone())
            chain, base_env = merged.append(chain), base_env.base_env
        if device is not None:
            base_env = base_env.to(device)
        super().__init__(
            batch_size=chain.transform_env_batch_size(base_env.batch_size),
            device=chain.transform_env_device(base_env.device),
            **{"allow_done_after_reset": base_env._allow_done_after_reset, **kwargs},
        )
        own = self.__dict__
        own["_cache_specs"] = cache_specs
        own["_specs_age"] = base_env.__dict__["_age"]
        own["_wants_lock"] = base_env.is_spec_locked
        self.base_env = base_env
        own["_base"] = base_env
        self._install(chain)
        chain.set_container(self)

    def _install(self, chain: Transform) -> None:
        # Registered as a module for its parameters, and kept in the dict so that calls find it without the slow
        # attribute lookup of nn.Module.
        self._modules["transform"] = chain
        self.__dict__["_chain"] = chain

    base_env: EnvBase
    _base: EnvBase
    _chain: Transform
    _cache_specs: bool

    @property
    def transform(self) -> Transform:
        """The transform, or the `Compose` of several."""
        return self._chain

    @transform.setter
    def transform(self, value: Transform | Callable[..., Any]) -> None:
        chain = as_transform(value)
        chain.set_container(self)
        self.transform.reset_parent()
        self._install(chain)
        self.empty_cache()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "transform":  # a module that has a setter of its own
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def append_transform(self, transform: Any) -> TransformedEnv:
        """Add a transform, or a callable, after all others.

        Returns:
            The env itself.
        """
        self._as_compose().append(transform)
        return self

    def insert_transform(self, index: int, transform: Any) -> TransformedEnv:
        """Add a transform, or a callable, before the one at ``index``.

        Returns:
            The env itself.
        """
        self._as_compose().insert(index, transform)
        return self

    def _as_compose(self) -> Compose:
        chain = self.transform
        if isinstance(chain, Compose):
            return chain
        chain.reset_parent()
        several = Compose(chain)
        several.set_container(self)
        self._install(several)
        return several

    def _env_below(self, link: Transform) -> EnvBase:
        return self._base

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._chain._go_back_to(self)

    # -- specs --------------------------------------------------------------------------------------------------------

    def _group(self, name: str) -> Composite:
        self._refresh()
        own = self.__dict__
        if not self._has_specs(own[name]):
            base, chain = own["_base"], own["_chain"]
            if name == "_input_spec":
                own[name] = chain.transform_input_spec(base.input_spec.clone())
            else:
                own[name] = chain.transform_output_spec(base.output_spec.clone())
                self._complete_done(own[name]["full_done_spec"])
            self._apply_lock()
        group: Composite = own[name]
        return group

    def _complete_done(self, spec: Composite) -> None:
        """Give every level the flags it needs, except those that a transform has left out."""
        left_out = [key for key in self._base.full_done_spec.keys(True, True) if key not in spec]
        if left_out and not list(spec.keys(True, True)):
            return
        complete_done_spec(spec, self._default_flag())
        for key in left_out:
            if key in spec:
                del spec[key]

    def _complete_specs(self) -> None:
        """Do nothing yet: a transform may need to be prepared before it knows its specs."""

    def _has_specs(self, group: Composite | None) -> bool:
        return group is not None and not group.is_empty() and (self._cache_specs or not self.__dict__["_built"])

    def _refresh(self) -> None:
        """Forget the specs if those of the env below have changed."""
        base = self._base
        if isinstance(base, TransformedEnv):
            base._refresh()
        age = base.__dict__["_age"]
        if age != self.__dict__["_specs_age"]:
            self.__dict__["_specs_age"] = age
            self.empty_cache()

    def _plan(self) -> EnvPlan:
        self._refresh()
        return super()._plan()

    def empty_cache(self) -> None:
        """Forget the transformed specs and whatever was derived from them."""
        super().empty_cache()
        own = self.__dict__
        if "_chain" in own:
            from shoal.faces.torchrl.specs import Composite

            own["_input_spec"] = Composite(shape=self.batch_size)
            own["_output_spec"] = Composite(shape=self.batch_size)
            own["_chain"].empty_cache()

    def add_truncated_keys(self) -> TransformedEnv:
        """Give the env inside truncated flags."""
        self._base.add_truncated_keys()
        return self

    @property
    def batch_size(self) -> torch.Size:
        """The batch size of the env inside, as the transforms leave it."""
        size: torch.Size = self.__dict__["_batch_size"]
        return size

    @batch_size.setter
    def batch_size(self, value: Any) -> None:
        raise TensorEnvError("TransformedEnv.batch_size follows from the env inside: change that one's")

    def set_spec_lock_(self, mode: bool = True) -> TransformedEnv:
        """Lock or unlock the specs, including those of the env inside."""
        self._base.set_spec_lock_(mode)
        super().set_spec_lock_(mode)
        return self

    @property
    def batch_locked(self) -> bool:
        """The same as for the env inside."""
        return self._base.batch_locked

    @batch_locked.setter
    def batch_locked(self, value: bool) -> None:
        raise TensorEnvError("TransformedEnv.batch_locked is read-only: it is that of the env inside")

    @property
    def supports_set_state(self) -> bool:
        """The same as for the env inside."""
        return self._base.supports_set_state

    # -- reset and step -----------------------------------------------------------------------------------------------

    def _check_reset_masks(self, td: TensorDictBase) -> None:
        self._base._check_reset_masks(td)

    def _with_state(self, td: Any, set_state: bool | None, kwargs: dict[str, Any]) -> dict[str, Any]:
        # Whether there is a state in the data, and whether it can be set, is for the env inside to say.
        return kwargs if set_state is None else {**kwargs, "set_state": set_state}

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        chain, set_state = self._chain, kwargs.pop("set_state", None)
        given = None if tensordict is None else tensordict.select(*self.reset_keys, *self.state_keys, strict=False)
        given = chain._reset_env_preprocess(given)
        # A reset updates what it is given and takes the masks out, which transforms ask for. They may also look at rows
        # that are not reset, which are not to be zero for want of their data here.
        shown = None if given is None else given.copy()
        fresh = self._base._start_episodes(shown, set_state, False, kwargs, keeps_absent=True)
        return chain._reset(fresh.empty() if given is None else given, fresh)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        chain, base = self._chain, self._base
        given = tensordict
        if chain.changes_inputs:
            given = chain._inv_call(tensordict.copy())
            for key, value in chain.recorded.items():
                tensordict.set(key, value)
        mask = given.get("_step", None)
        if mask is not None and not mask.any():
            return self._skipped(tensordict)
        following = base._following(given)
        for key in base._recorded_keys:
            tensordict.set(key, given.get(key))
        following = chain._step(given, following)
        if mask is None or mask.all():
            return following
        self._plan().complete_step(following)
        return select(mask.reshape(tensordict.batch_size), following, self._carried(tensordict))

    @property
    def _recorded_keys(self) -> list[NestedKey]:  # type: ignore[override]  # it depends on the transforms
        return [*self._base._recorded_keys, *self._chain.recorded]

    # -- the rest passes through --------------------------------------------------------------------------------------

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """A random action, chosen by the env inside if it has its own method and no transform changes actions."""
        if self._leaves_actions_to_base("rand_action"):
            return self._base.rand_action(tensordict)
        return super().rand_action(tensordict)

    def cardinality(self, tensordict: TensorDictBase | None = None) -> int:
        """The number of different actions, as the env inside counts them if no transform changes actions."""
        if self._leaves_actions_to_base("cardinality"):
            return self._base.cardinality(tensordict)
        return super().cardinality(tensordict)

    def all_actions(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """All actions, one per row, as the env inside lists them if no transform changes actions."""
        if self._leaves_actions_to_base("all_actions"):
            return self._base.all_actions(tensordict)
        return super().all_actions(tensordict)

    def _leaves_actions_to_base(self, method: str) -> bool:
        own_way = getattr(type(self._base), method) is not getattr(EnvBase, method)
        return own_way and not self._chain.changes_actions

    @property
    def _decides_ends(self) -> bool:
        return self._base._decides_ends

    def _must_reset(self, td: TensorDictBase) -> bool:
        return self._base._must_reset(td) if self._base._decides_ends else super()._must_reset(td)

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seed the env inside."""
        return self._base.set_seed(seed, static_seed=static_seed)

    def _set_seed(self, seed: int | None) -> None:
        self._base.set_seed(seed)

    @property
    def is_closed(self) -> bool:
        """Whether the env inside is closed."""
        return bool(self._base.is_closed)

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the transforms and the env inside."""
        self._chain.close()
        self._base.close(raise_if_closed=raise_if_closed)

    def set_missing_tolerance(self, mode: bool = False) -> None:
        """Set whether transforms skip keys that are missing from the data."""
        self.transform.set_missing_tolerance(mode)

    def state_dict(self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """The state of the transforms, and that of the env inside under ``base_env``."""
        state = self.transform.state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)
        # A batched env would have to be started to tell the state of its envs.
        inside = TransformedEnv if isinstance(self._base, TransformedEnv) else EnvBase
        inside.state_dict(self._base, destination=state, prefix=f"{prefix}base_env.", keep_vars=keep_vars)
        return state

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        modules = tuple(f"{prefix}{name}." for name in self._modules)
        for name in [name for name in state_dict if name.startswith(prefix) and not name.startswith(modules)]:
            state_dict[f"{prefix}transform.{name.removeprefix(prefix)}"] = state_dict.pop(name)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def to(self, device: Any, *args: Any, **kwargs: Any) -> Self:
        """Move the env and its transforms.

        Returns:
            The env itself.
        """
        self._base.to(device)
        nn.Module.to(self.transform, torch.device(device))
        self.__dict__["_device"] = self.transform.transform_env_device(torch.device(device))
        self.empty_cache()
        return self

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            base = self.__dict__.get("_base")
            if base is None or name.startswith("__"):
                raise
            return getattr(base, name)

    def __len__(self) -> int:
        return len(self._base)

    def __repr__(self) -> str:
        return f"TransformedEnv({self._base!r}, {self.transform!r})"
