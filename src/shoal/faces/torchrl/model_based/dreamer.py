"""DreamerEnv: a latent world model as an env."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from shoal.errors import ArgumentError
from shoal.faces.torchrl.env.plan import EnvPlan
from shoal.faces.torchrl.model_based.base import ModelBasedEnvBase
from shoal.faces.torchrl.model_based.decoder import DreamerDecoder
from shoal.faces.torchrl.specs import Composite, Unbounded

if TYPE_CHECKING:
    from tensordict import TensorDictBase
    from torch import nn

    from shoal.faces.torchrl.env.done import DoneLevel
    from shoal.faces.torchrl.env_base import EnvBase
    from shoal.faces.torchrl.specs import TensorSpec

__all__ = ["DreamerDecoder", "DreamerEnv"]


class _Endless(EnvPlan):
    """The plan of an env whose episodes do not end."""

    __slots__ = ()

    def ended(self, td: TensorDictBase) -> list[tuple[DoneLevel, torch.Tensor]]:
        return []

    def flagged(self, td: TensorDictBase) -> list[torch.Tensor]:
        return []


class DreamerEnv(ModelBasedEnvBase):
    """A latent world model as an env: its state is a stochastic ``state`` and a deterministic ``belief``.

    Imagined episodes go on as long as the rollout does: a predicted end is data for the losses, and stops nothing.

    Args:
        world_model: Reads state, belief and action, and writes the next ones with a reward.
        prior_shape: The shape of ``state``.
        belief_shape: The shape of ``belief``.
        obs_decoder: Writes observations from state and belief.
        device: Where the models and the data are.
        batch_size: The batch size of the env, when it has a fixed one.

    Example:
        >>> import torch
        >>> from tensordict.nn import TensorDictModule
        >>> from shoal.faces.torchrl import DreamerEnv, GymEnv
        >>> model = TensorDictModule(
        ...     lambda state, belief: (state + 1, belief, state.sum(-1, keepdim=True)),
        ...     in_keys=["state", "belief"],
        ...     out_keys=["state", "belief", "reward"],
        ... )
        >>> env = DreamerEnv(model, prior_shape=(2,), belief_shape=(3,))
        >>> env.set_specs_from_env(GymEnv("CartPole-v1"))
        >>> env.rollout(4)["next", "state"].shape
        torch.Size([4, 2])
    """

    def __init__(
        self,
        world_model: nn.Module,
        prior_shape: tuple[int, ...],
        belief_shape: tuple[int, ...],
        obs_decoder: nn.Module | None = None,
        device: torch.device | str | int | None = "cpu",
        batch_size: Any = None,
    ) -> None:
        super().__init__(world_model, device=device, batch_size=batch_size)
        self.obs_decoder = None if obs_decoder is None else obs_decoder.to(self.device)
        self.prior_shape = prior_shape
        self.belief_shape = belief_shape
        self._latents: dict[str, TensorSpec] = {
            "state": Unbounded(torch.Size(prior_shape), device=self.device),
            "belief": Unbounded(torch.Size(belief_shape), device=self.device),
        }

    def set_specs_from_env(self, env: EnvBase) -> None:
        """Take the specs of an env; those of ``state`` and ``belief`` among its observations become the state spec.

        Args:
            env: The env that the model imitates. Where it does not observe the latents, they have the shapes given to
                the constructor.
        """
        super().set_specs_from_env(env)
        observed = self.full_observation_spec_unbatched.clone()
        latents = {name: observed.get(name, None) for name in self._latents}
        latents = {name: self._latents[name] if spec is None else spec for name, spec in latents.items()}
        for name, spec in latents.items():
            observed[name] = spec.clone()
        self.full_observation_spec_unbatched = observed
        self.full_state_spec_unbatched = Composite(latents, device=self.device).clone()

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        if tensordict is not None:
            return tensordict.clone()
        begun: TensorDictBase = self.full_state_spec.rand()
        begun.update(self.full_action_spec.rand()).update(self.full_observation_spec.rand())
        return begun.set("next", self.full_reward_spec.rand())

    def _plan(self) -> EnvPlan:
        plan: EnvPlan | None = self.__dict__["_kept"].get("plan")
        return self._keep("plan", lambda: _Endless(self)) if plan is None else plan

    def any_done(self, tensordict: TensorDictBase) -> bool:
        """False: imagined episodes do not end."""
        return False

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The data as it is: imagined episodes do not end."""
        return tensordict

    def decode_obs(self, tensordict: TensorDictBase, compute_latents: bool = False) -> TensorDictBase:
        """Write the observations that belong to latents.

        Args:
            tensordict: The latents.
            compute_latents: Whether the world model first predicts them, from the given latents and action.

        Returns:
            What the decoder returns: usually ``tensordict`` itself, with the observations in it.
        """
        if self.obs_decoder is None:
            raise ArgumentError(f"{type(self).__name__}.decode_obs: the env was built without an obs_decoder")
        decoded: TensorDictBase = self.obs_decoder(self._predict(tensordict) if compute_latents else tensordict)
        return decoded
