"""PendulumEnv: swing a pendulum up and hold it there, in torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from shoal.errors import TensorEnvError
from shoal.faces.torchrl.fast_td import build
from shoal.faces.torchrl.native.random_env import ParametricEnv, entries, params_td, twin
from shoal.faces.torchrl.specs import Bounded, Composite, Unbounded

if TYPE_CHECKING:
    from tensordict import TensorDict, TensorDictBase

_STATE = ("th", "thdot")


class PendulumEnv(ParametricEnv):
    """A pendulum that a torque swings up: the dynamics of Gymnasium's ``Pendulum-v1``, on tensors.

    The state is in the data: the angle ``th`` (0 is upright), the angular velocity ``thdot`` and the ``params``. A step
    takes a batch of any size, each row with parameters of its own, and gradients flow through it. Episodes do not end.

    Args:
        td_params: Parameters for resets that are given none, as made by `gen_params`.
        seed: The seed of the initial states; None for a random one.
        device: Where data is expected and returned.

    Example:
        >>> from shoal.faces.torchrl import PendulumEnv
        >>> env = PendulumEnv(seed=0)
        >>> env.rollout(3, tensordict=env.gen_params(batch_size=[5]))["next", "reward"].shape
        torch.Size([5, 3, 1])
        >>> still = env.gen_params().update({"th": 0.0, "thdot": 0.0})
        >>> env.reset(still, set_state=True)["th"]
        tensor(0.)
    """

    def __init__(
        self,
        td_params: TensorDictBase | None = None,
        seed: int | None = None,
        device: torch.device | str | int | None = None,
    ) -> None:
        super().__init__(self.gen_params() if td_params is None else td_params, seed, device)
        size = self.batch_size
        params = self._default_params
        speed, torque = params.get("max_speed"), params.get("max_torque")
        self.observation_spec = Composite(
            th=Bounded(-math.pi, math.pi, shape=size, dtype=torch.float32, device=self.device),
            thdot=Bounded(-speed, speed, shape=size, dtype=torch.float32, device=self.device),
            params=self._params_spec(),
            shape=size,
            device=self.device,
        )
        self.state_spec = self.observation_spec.clone()
        self.action_spec = Bounded(
            -torque.unsqueeze(-1), torque.unsqueeze(-1), shape=(*size, 1), dtype=torch.float32, device=self.device
        )
        self.reward_spec = Unbounded((*size, 1), device=self.device)

    @staticmethod
    def gen_params(g: float = 10.0, batch_size: Any = None, device: Any = None) -> TensorDict:
        """Parameters of pendulums, for a reset.

        Args:
            g: The gravity.
            batch_size: How many there are; None for a single one without a batch dim.
            device: Where they are.
        """
        values = {"max_speed": 8.0, "max_torque": 2.0, "dt": 0.05, "g": float(g), "m": 1.0, "l": 1.0}
        return params_td(values, batch_size, device)

    @property
    def supports_set_state(self) -> bool:
        """True: a reset can begin at the ``th`` and ``thdot`` it is given."""
        return True

    def _state_given(self, tensordict: TensorDictBase) -> bool:
        return all(tensordict.get(key, None) is not None for key in _STATE)

    def _reset(
        self, tensordict: TensorDictBase | None = None, set_state: bool | None = None, **kwargs: Any
    ) -> TensorDictBase:
        params = self._params_of(tensordict)
        if set_state and tensordict is not None:
            state = {key: tensordict.get(key, None) for key in _STATE}
            missing = [key for key, value in state.items() if value is None]
            if missing:
                raise TensorEnvError(
                    f"PendulumEnv.reset: set_state=True, but the data has no {' and no '.join(missing)}"
                )
        else:
            lead = self._batch_of(tensordict)
            th, thdot = (torch.rand(lead, generator=self.rng, device=self.device) * 2 - 1 for _ in _STATE)
            state = {"th": th * math.pi, "thdot": thdot}
        return build({**state, "params": params}, params.batch_size, self.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        given = entries(tensordict)
        th, thdot, params = given["th"], given["thdot"], given["params"]
        p = entries(params)
        torque, speed, dt, length = p["max_torque"], p["max_speed"], p["dt"], p["l"]
        u = given["action"].squeeze(-1).clamp(-torque, torque)
        # Each sum of products is one operation: on small batches, the number of operations is the cost of a step.
        angle = _wrapped(th)
        reward = torch.addcmul(torch.addcmul(-angle.square(), thdot, thdot, value=-0.1), u, u, value=-0.001)
        push = torch.addcmul(u / (p["m"] * length * length), p["g"] / length, th.sin(), value=0.5)
        new_thdot = torch.addcmul(thdot, push, dt, value=3).clamp(-speed, speed)
        following = {
            "th": _wrapped(torch.addcmul(th, new_thdot, dt)),
            "thdot": new_thdot,
            "params": twin(params),
            "reward": reward.unsqueeze(-1),
            "done": torch.zeros((*tensordict.batch_size, 1), dtype=torch.bool, device=th.device),
            "terminated": torch.zeros((*tensordict.batch_size, 1), dtype=torch.bool, device=th.device),
        }
        return build(following, tensordict.batch_size, tensordict.device)


def _wrapped(angle: torch.Tensor) -> torch.Tensor:
    """The angle, wrapped to between -pi and pi."""
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
