"""ModelBasedEnvBase: an env whose steps are predictions of a world model."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from tensordict import TensorDictBase
from torch.func import functional_call

from shoal.faces.torchrl.env_base import EnvBase

if TYPE_CHECKING:
    import torch
    from torch import nn

_SPECS = ("full_observation_spec", "full_reward_spec", "full_done_spec", "full_action_spec", "full_state_spec")


class ModelBasedEnvBase(EnvBase):
    """An env whose steps are predictions of a world model.

    The model reads the state and the action from a TensorDict and writes what follows: observations, reward, and done
    flags if it predicts any. A subclass says where episodes begin, in ``_reset``, and sets the specs, or takes those of
    the env that the model imitates with `set_specs_from_env`. Data may have any batch size, and gradients flow through
    the steps.

    Args:
        world_model: Reads and writes TensorDicts.
        params: Parameters to use in place of the model's own, by name: a TensorDict or a dict.
        buffers: Buffers to use in place of the model's own.
        device: Where the model and the data are.
        batch_size: The batch size of the env, when it has a fixed one.
        run_type_checks: Whether the dtypes of predictions are compared with the specs.
        allow_done_after_reset: Whether a reset may return an episode that has already ended.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from shoal.faces.torchrl import Composite, ModelBasedEnvBase, Unbounded
        >>> class Drift(ModelBasedEnvBase):
        ...     def __init__(self, world_model):
        ...         super().__init__(world_model)
        ...         self.observation_spec = Composite(x=Unbounded((1,)))
        ...         self.state_spec = Composite(x=Unbounded((1,)))
        ...         self.action_spec = Unbounded((1,))
        ...
        ...     def _reset(self, tensordict=None, **kwargs):
        ...         return TensorDict({"x": torch.zeros(1)})
        >>> model = TensorDictModule(lambda x, a: (x + a, -x.abs()), in_keys=["x", "action"], out_keys=["x", "reward"])
        >>> Drift(model).rollout(2, lambda x: torch.ones(1))["next", "x"].flatten()
        tensor([1., 2.])
    """

    batch_locked = False

    def __init__(
        self,
        world_model: nn.Module,
        params: Any = None,
        buffers: Any = None,
        device: torch.device | str | int | None = "cpu",
        batch_size: Any = None,
        run_type_checks: bool = False,
        allow_done_after_reset: bool = False,
    ) -> None:
        super().__init__(
            device=device,
            batch_size=batch_size,
            run_type_checks=run_type_checks,
            allow_done_after_reset=allow_done_after_reset,
        )
        self.world_model = world_model.to(self.device)
        self.world_model_params = params
        self.world_model_buffers = buffers

    def set_specs_from_env(self, env: EnvBase) -> None:
        """Take the specs of another env, but with the batch size of this one.

        Args:
            env: The env that the model imitates.
        """
        for name in _SPECS:
            setattr(self, f"{name}_unbatched", getattr(env, f"{name}_unbatched").clone())

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        given = tensordict.copy()
        predicted = self._predict(given)
        following = predicted.select(*self.observation_keys, *self.reward_keys, *self.done_keys, strict=False)
        if following is tensordict or following is given:
            following = following.copy()
        for key in (*self.done_keys, *self.reward_keys):
            # What the model has not written is what came in with the data, and says nothing about the next step.
            if following.get(key, None) is tensordict.get(key, None) and following.get(key, None) is not None:
                following.pop(key)
        return following

    def _predict(self, td: TensorDictBase) -> TensorDictBase:
        replaced = {**_by_name(self.world_model_params), **_by_name(self.world_model_buffers)}
        predicted: TensorDictBase = (
            functional_call(self.world_model, replaced, (td,)) if replaced else self.world_model(td)
        )
        return predicted

    def _set_seed(self, seed: int | None) -> None:
        warnings.warn(
            f"{type(self).__name__} has nothing random of its own to seed: use torch.manual_seed for a random model",
            stacklevel=3,
        )


def _by_name(tensors: Any) -> dict[str, torch.Tensor]:
    """Parameters or buffers by the dotted names that modules give them."""
    if tensors is None:
        return {}
    if isinstance(tensors, TensorDictBase):
        return dict(tensors.flatten_keys(".").items())
    return dict(tensors)
