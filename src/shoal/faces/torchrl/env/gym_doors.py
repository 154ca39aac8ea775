"""An env of this dialect under a gymnasium id: observations as a dict, of tensors or of arrays."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch

from shoal.errors import ArgumentError
from shoal.faces.torchrl.env.keys import key_of, path_of
from shoal.faces.torchrl.spaces import torchrl_to_gym_spec_transform

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict import TensorDictBase

    from shoal.faces.torchrl.env.keys import NestedKey
    from shoal.faces.torchrl.env_base import EnvBase

# Options that other versions of Gym took when an env was registered, and that Gymnasium no longer takes.
_FORMER_OPTIONS = ("autoreset", "apply_api_compatibility")


class TensorGym(gymnasium.Env[Any, Any]):
    """A Gymnasium env over an env that reads and writes TensorDicts.

    Args:
        env: The env, with an empty batch size.
        info_keys: Entries that go into the info dict rather than into the observation.
        to_numpy: Whether observations are arrays rather than tensors.
    """

    def __init__(self, env: EnvBase, info_keys: list[NestedKey] | None = None, to_numpy: bool = False) -> None:
        if env.batch_size:
            raise ArgumentError(f"a Gymnasium env is a single one, this one has batch size {tuple(env.batch_size)}")
        self.env = env
        self._info_keys = list(info_keys or ())
        self._to_numpy = to_numpy
        shown = env.observation_spec.clone()
        for key in self._info_keys:
            del shown[key]
        self._shown = shown
        self.observation_space = torchrl_to_gym_spec_transform(shown)
        self.action_space = torchrl_to_gym_spec_transform(env.action_spec)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        if seed is not None:
            self.env.set_seed(seed)
        td = self.env.reset() if options is None else self.env.reset(options=options)
        self._root = td
        return self._observation(td), self._infos(td)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Make a step."""
        td = self._root
        if isinstance(action, dict):
            td.update(self.env.full_action_spec.encode(action))
        else:
            encoded = action if isinstance(action, torch.Tensor) else self.env.action_spec.encode(action)
            td.set(self.env.action_key, encoded)
        stepped = self.env.step(td)
        following = stepped.get("next")
        self._root = self.env.step_mdp(stepped)
        reward = sum(float(following.get(key).sum()) for key in self.env.reward_keys)
        terminated, truncated = (self._any(following, flag) for flag in ("terminated", "truncated"))
        if not terminated and not truncated:
            terminated = self._any(following, "done")
        return self._observation(following), reward, terminated, truncated, self._infos(following)

    def _any(self, td: TensorDictBase, flag: str) -> bool:
        keys = [key_of((*level.path, flag)) for level in self.env._plan().deciding if flag in level.flags]
        return any(bool(td.get(key).any()) for key in keys)

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
        return self.env.render()

    def close(self) -> None:
        """Close the env."""
        if not self.env.is_closed:
            self.env.close(raise_if_closed=False)


def _arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _arrays(inner) for key, inner in value.items()}
    return np.asarray(value.cpu()) if isinstance(value, torch.Tensor) else value


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

    def make(**kwargs: Any) -> TensorGym:
        env = maker(**kwargs)
        if transform is not None:
            env = env.append_transform(transform.clone() if hasattr(transform, "clone") else transform)
        return TensorGym(env, info_keys, to_numpy)

    known = set(inspect.signature(gymnasium.register).parameters) - {"id", "entry_point", "kwargs"}
    for_gym = {name: options.pop(name) for name in list(options) if name in known}
    for name in _FORMER_OPTIONS:
        options.pop(name, None)
    # Observations are tensors and dicts: Gymnasium's checker would complain about every one of them.
    for_gym.setdefault("disable_env_checker", True)
    gymnasium.register(id=id, entry_point=make, kwargs=options, **for_gym)
