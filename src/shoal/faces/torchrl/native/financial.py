"""FinancialRegimeEnv: buy, hold and sell one asset whose price is a geometric Brownian motion."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from shoal.errors import ArgumentError
from shoal.faces.torchrl.fast_td import build
from shoal.faces.torchrl.native.random_env import ParametricEnv, entries, params_td, twin
from shoal.faces.torchrl.specs import Binary, Categorical, Composite, Unbounded

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict import TensorDict, TensorDictBase

_DAY = 1 / 252  # as a fraction of a trading year
_BUY, _SELL = 1, 2
_WINDOW = 50
# The weight of price changes in the reward while the asset is held, on top of the profit when it is sold.
_SHAPING = 0.1


def _gen_params(
    window_size: int = _WINDOW,
    initial_price: float = 100.0,
    volatility: float = 0.2,
    drift: float = 0.05,
    transaction_cost: float = 0.001,
    max_steps: int = 252,
    batch_size: Any = None,
    device: torch.device | str | int | None = None,
) -> TensorDict:
    """Parameters of markets, for a reset.

    Args:
        window_size: How many prices are observed; when called on an env, the env's own by default.
        initial_price: The price to begin with.
        volatility: The standard deviation of its logarithm over a year.
        drift: The growth of its logarithm over a year.
        transaction_cost: The fraction of the price that each trade costs.
        max_steps: After how many steps episodes are truncated.
        batch_size: How many markets there are; None for a single one without a batch dim.
        device: Where they are.
    """
    values = {
        "window_size": int(window_size),
        "initial_price": float(initial_price),
        "volatility": float(volatility),
        "drift": float(drift),
        "transaction_cost": float(transaction_cost),
        "max_steps": int(max_steps),
    }
    return params_td(values, batch_size, device)


class _GenParams:
    """`_gen_params` as a method of the class and of its envs, where the env's own window is the default."""

    __doc__ = _gen_params.__doc__

    def __get__(self, env: FinancialRegimeEnv | None, owner: type) -> Callable[..., TensorDict]:
        return _gen_params if env is None else partial(_gen_params, window_size=env.window_size)


class FinancialRegimeEnv(ParametricEnv):
    """A market with one asset that is held or not: action 0 waits, 1 buys, 2 sells.

    The state is in the data: the last prices (``price_history``), whether the asset is held (``current_holdings``), the
    price it was bought at (``entry_price``), ``step_count`` and ``params``. The reward of a purchase is minus a
    fraction of the price, that of a sale is the relative profit less the same cost, and each day of holding adds a
    tenth of the relative change in price. Episodes are truncated after ``max_steps``.

    Args:
        td_params: Parameters for resets that are given none, as made by `gen_params`.
        seed: The seed of the prices; 0 if None.
        device: Where data is expected and returned.
        window_size: How many prices are observed, unless ``td_params`` says so; 50 by default.

    Example:
        >>> from shoal.faces.torchrl import FinancialRegimeEnv
        >>> env = FinancialRegimeEnv(window_size=10)
        >>> env.reset(env.gen_params(batch_size=[4], volatility=0.4))["price_history"].shape
        torch.Size([4, 10])
    """

    gen_params = _GenParams()

    def __init__(
        self,
        td_params: TensorDictBase | None = None,
        seed: int | None = None,
        device: torch.device | str | int | None = None,
        window_size: int | None = None,
    ) -> None:
        given = _gen_params(_WINDOW if window_size is None else window_size) if td_params is None else td_params
        super().__init__(given, 0 if seed is None else seed, device)
        self.window_size = _window_of(self._default_params)
        size, where = self.batch_size, self.device
        self.observation_spec = Composite(
            price_history=Unbounded((*size, self.window_size), device=where),
            current_holdings=Binary(1, shape=(*size, 1), dtype=torch.bool, device=where),
            entry_price=Unbounded((*size, 1), device=where),
            step_count=Unbounded(size, dtype=torch.int64, device=where),
            params=self._params_spec(),
            shape=size,
            device=where,
        )
        self.state_spec = self.observation_spec.clone()
        self.action_spec = Categorical(3, shape=(*size, 1), device=where)
        self.reward_spec = Unbounded((*size, 1), device=where)
        flag = Categorical(2, shape=(*size, 1), dtype=torch.bool, device=where)
        self.full_done_spec = Composite(
            {name: flag.clone() for name in ("done", "terminated", "truncated")}, shape=size, device=where
        )

    def _noise(self, size: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(size, generator=self.rng, device=self.device)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        params = self._params_of(tensordict)
        size = params.batch_size
        window = _window_of(params)
        spread = params.get("volatility").unsqueeze(-1) * math.sqrt(_DAY)
        growth = (self._noise((*size, window)) * spread).cumsum(-1)
        first = {
            "price_history": params.get("initial_price").unsqueeze(-1) * growth.exp(),
            "current_holdings": torch.zeros((*size, 1), dtype=torch.bool, device=self.device),
            "entry_price": torch.zeros((*size, 1), device=self.device),
            "step_count": torch.zeros(size, dtype=torch.int64, device=self.device),
            "params": params,
        }
        return build(first, size, self.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        given = entries(tensordict)
        size = tensordict.batch_size
        p = {name: value.unsqueeze(-1) for name, value in entries(given["params"]).items()}
        history, held, entry = given["price_history"], given["current_holdings"], given["entry_price"]
        action = given["action"].reshape(*size, 1)
        price = history[..., -1:]
        noise = self._noise((*size, 1)) * p["volatility"] * math.sqrt(_DAY)
        new_price = price * (p["drift"] * _DAY + noise).exp()

        buys, sells = (action == _BUY) & ~held, (action == _SELL) & held
        holds = (held | buys) & ~sells
        profit = torch.where(sells, (price - entry) / entry.clamp_min(1e-6), 0.0)
        cost = torch.where(buys | sells, p["transaction_cost"] * price, 0.0)
        shaping = torch.where(holds, _SHAPING * (new_price - price) / price, 0.0)
        steps = given["step_count"] + 1
        late = steps.unsqueeze(-1) >= p["max_steps"]
        following = {
            "price_history": torch.cat([history[..., 1:], new_price], -1),
            "current_holdings": holds,
            "entry_price": torch.where(buys, price, torch.where(sells, 0.0, entry)),
            "step_count": steps,
            "params": twin(given["params"]),
            "reward": profit - cost + shaping,
            "done": late,
            "terminated": torch.zeros_like(late),
            "truncated": late.clone(),
        }
        return build(following, size, tensordict.device)


def _window_of(params: TensorDictBase) -> int:
    """The window size of a batch of markets, which all rows must share."""
    sizes = params.get("window_size").unique().tolist()
    if len(sizes) != 1 or sizes[0] < 1:
        raise ArgumentError(
            f"FinancialRegimeEnv: params/window_size must be one positive number for the whole batch, got {sizes}"
        )
    return int(sizes[0])
