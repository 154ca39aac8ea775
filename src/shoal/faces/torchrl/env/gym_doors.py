"""An env of this dialect under a gymnasium id: results are tensors or arrays, observations a dict of them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium
import torch

from shoal.errors import ArgumentError
from shoal.faces.torchrl.env.keys import key_of, path_of
from shoal.faces.torchrl.spaces import torchrl_to_gym_spec_transform
from shoal.faces.torchrl.specs import Binary, Categorical, OneHot

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict import TensorDictBase

    from shoal.faces.torchrl.env.keys import NestedKey
    from shoal.faces.torchrl.env_base import EnvBase
    from shoal.faces.torchrl.specs import TensorSpec

# Options that other versions of Gym took when an env was registered, and that Gymnasium no longer takes.
_FORMER_OPTIONS = ("autoreset", "apply_api_compatibility")
# Options that may also be given to ``gymnasium.make``, and then take the place of those of the registration.
_OWN_OPTIONS = ("transform", "info_keys", "to_numpy")


class TensorGym(gymnasium.Env[Any, Any]):
    """A Gymnasium env over an env that reads and writes TensorDicts.

    Args:
        env: The env, with an empty batch size.
        info_keys: Entries that go into the info dict rather than into the observation.
        to_numpy: Whether observations, rewards, flags and infos are arrays rather than tensors.

    Attributes:
        torchrl_env: The env.
        returns_tensors: Whether rewards and flags are tensors or arrays; a pool takes the number out of each.
    """

    returns_tensors = True

    def __init__(self, env: EnvBase, info_keys: list[NestedKey] | None = None, to_numpy: bool = False) -> None:
        if env.batch_size:
            raise ArgumentError(f"a Gymnasium env is a single one, this one has batch size {tuple(env.batch_size)}")
        self.torchrl_env = env
        self._info_keys = list(info_keys or ())
        self._to_numpy = to_numpy
        shown = env.observation_spec.clone()
        for key in self._info_keys:
            del shown[key]
        self._shown = shown
        self.observation_space = torchrl_to_gym_spec_transform(shown)
        self.action_space = torchrl_to_gym_spec_transform(_lone_choice(env.action_spec))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        if seed is not None:
            self.torchrl_env.set_seed(seed)
        td = self.torchrl_env.reset() if options is None else self.torchrl_env.reset(options=options)
        self._root = td
        return self._observation(td), self._infos(td)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Make a step."""
        td = self._root
        if isinstance(action, dict):
            td.update(self.torchrl_env.full_action_spec.encode(action))
        else:
            encoded = action if isinstance(action, torch.Tensor) else self.torchrl_env.action_spec.encode(action)
            td.set(self.torchrl_env.action_key, encoded)
        stepped = self.torchrl_env.step(td)
        following = stepped.get("next")
        self._root = self.torchrl_env.step_mdp(stepped)
        terminated, truncated = (self._flag(following, name) for name in ("terminated", "truncated"))
        if not terminated and not truncated:
            terminated = self._flag(following, "done")
        results = (self._reward(following), terminated, truncated)
        reward, terminated, truncated = map(_arrays, results) if self._to_numpy else results
        return self._observation(following), reward, terminated, truncated, self._infos(following)

    def _reward(self, td: TensorDictBase) -> torch.Tensor:
        rewards = [td.get(key) for key in self.torchrl_env.reward_keys]
        if len(rewards) == 1:
            return rewards[0]
        return torch.tensor([sum(float(reward.sum()) for reward in rewards)])

    def _flag(self, td: TensorDictBase, name: str) -> torch.Tensor:
        """A flag of the env: that of its root, or whether it is set at any of the levels that decide."""
        levels = [level for level in self.torchrl_env._plan().deciding if name in level.flags]
        flags = [td.get(key_of((*level.path, name))) for level in levels]
        if len(flags) == 1 and flags[0].numel() == 1:
            return flags[0]
        return torch.tensor([any(bool(flag.any()) for flag in flags)])

    def _observation(self, td: TensorDictBase) -> dict[str, Any]:
        shown: dict[str, Any] = td.select(*self._shown.keys(True, True)).to_dict()
        return _arrays(shown) if self._to_numpy else shown

    def _infos(self, td: TensorDictBase) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        for key in self._info_keys:
            value = td.get(key)
            infos[path_of(key)[-1]] = _arrays(value) if self._to_numpy else value
        return infos

    def render(self) -> Any:
        """Whatever the env renders."""
        return self.torchrl_env.render()

    def close(self) -> None:
        """Close the env."""
        if not self.torchrl_env.is_closed:
            self.torchrl_env.close(raise_if_closed=False)


def _lone_choice(spec: TensorSpec) -> TensorSpec:
    """The spec of a choice without the dim that a single one may have: Gymnasium has such choices as integers."""
    if not isinstance(spec, (Categorical, OneHot)) or isinstance(spec, Binary):
        return spec
    lead = spec.shape[:-1] if isinstance(spec, OneHot) else spec.shape
    return spec.squeeze(0) if lead == (1,) else spec


def _arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _arrays(inner) for key, inner in value.items()}
    return value.numpy(force=True) if isinstance(value, torch.Tensor) else value


@dataclass(frozen=True)
class TensorGymMaker:
    """What is registered with Gymnasium: makes an env of this dialect, with transforms, and a `TensorGym` over it."""

    maker: Callable[..., EnvBase]

    def __call__(self, **kwargs: Any) -> TensorGym:
        """Make the env."""
        transform, info_keys, to_numpy = (kwargs.pop(name) for name in _OWN_OPTIONS)
        env = self.maker(**kwargs)
        if transform is not None:
            env = env.append_transform(transform.clone() if hasattr(transform, "clone") else transform)
        return TensorGym(env, info_keys, to_numpy)


def register(
    env_class: type[EnvBase],
    id: str,
    *,
    entry_point: Callable[..., EnvBase] | None = None,
    transform: Any = None,
    info_keys: list[NestedKey] | None = None,
    backend: str | None = None,
    to_numpy: bool = False,
    **options: Any,
) -> None:
    """Register an env class with Gymnasium; see ``EnvBase.register_gym``."""
    if backend not in (None, "gymnasium"):
        raise ArgumentError(f"register_gym: backend {backend!r} is not supported, only 'gymnasium' is")
    maker = env_class if entry_point is None else entry_point

    known = set(inspect.signature(gymnasium.register).parameters) - {"id", "entry_point", "kwargs"}
    for_gym = {name: options.pop(name) for name in list(options) if name in known}
    for name in _FORMER_OPTIONS:
        options.pop(name, None)
    # Observations are tensors and dicts: Gymnasium's checker would complain about every one of them.
    for_gym.setdefault("disable_env_checker", True)
    options |= dict(zip(_OWN_OPTIONS, (transform, info_keys, to_numpy), strict=True))
    gymnasium.register(id=id, entry_point=TensorGymMaker(maker), kwargs=options, **for_gym)
