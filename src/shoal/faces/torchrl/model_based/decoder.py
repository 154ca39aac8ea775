"""DreamerDecoder: observations decoded from latents, as a transform."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.errors import StateError
from shoal.faces.torchrl.transforms import Transform

if TYPE_CHECKING:
    from tensordict import TensorDictBase


class DreamerDecoder(Transform):
    """Applies the ``obs_decoder`` of a `DreamerEnv` to what it returns, at resets and steps.

    The specs are left alone: declare what the decoder writes in the observation spec of the env, where it matters.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> from shoal.faces.torchrl import DreamerDecoder, DreamerEnv, GymEnv
        >>> model = TensorDictModule(
        ...     lambda state: (state, state.sum(-1, keepdim=True)), in_keys=["state"], out_keys=["state", "reward"]
        ... )
        >>> decoder = TensorDictModule(lambda state: state * 10, in_keys=["state"], out_keys=["pixels"])
        >>> env = DreamerEnv(model, (2,), (3,), obs_decoder=decoder)
        >>> env.set_specs_from_env(GymEnv("CartPole-v1"))
        >>> env.append_transform(DreamerDecoder()).rollout(4)["next", "pixels"].shape
        torch.Size([4, 2])
    """

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        env = self._lower
        if env is None:
            raise StateError("DreamerDecoder: it decodes with the obs_decoder of its env, and has none")
        decoded: TensorDictBase = env.decode_obs(next_tensordict)
        return decoded

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict_reset)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Decode the latents of data."""
        return self._call(tensordict)
