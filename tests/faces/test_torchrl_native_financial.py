"""FinancialRegimeEnv: trades, prices, windows and batches."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from shoal.faces.torchrl import FinancialRegimeEnv, check_env_specs

WAIT, BUY, SELL = 0, 1, 2


@pytest.mark.parametrize("window", [1, 7, 50])
@pytest.mark.parametrize("size", [(), (3,), (2, 2)])
def test_windows_and_batches_are_as_declared(window: int, size: tuple[int, ...]) -> None:
    env = FinancialRegimeEnv(window_size=window)
    given = env.gen_params(batch_size=size)
    assert env.reset()["price_history"].shape == (window,)
    assert env.reset()["params", "window_size"] == window
    assert env.reset(given)["price_history"].shape == (*size, window)
    assert env.reset(TensorDict(batch_size=size))["price_history"].shape == (*size, window)
    check_env_specs(env, tensordict=given, break_when_any_done="both")


def test_parameters_of_the_env_give_it_window_and_batch() -> None:
    env = FinancialRegimeEnv(FinancialRegimeEnv.gen_params(window_size=4, max_steps=2, batch_size=[3]))
    assert env.reset()["price_history"].shape == (3, 4)
    assert env.rollout(10).batch_size == (3, 2)
    check_env_specs(env)


def test_a_batch_has_one_window() -> None:
    mixed = torch.stack([FinancialRegimeEnv.gen_params(window_size=n) for n in (3, 4)])
    with pytest.raises(ValueError, match=r"window_size.*\[3, 4\]"):
        FinancialRegimeEnv().reset(mixed)


def test_every_trade_in_every_holding() -> None:
    env = FinancialRegimeEnv(window_size=3)
    td = env.reset(env.gen_params(batch_size=[6]))
    price = td["price_history"][:, -1:]
    held = torch.tensor([[False], [True]]).repeat_interleave(3, 0)
    entry = torch.where(held, 0.8 * price, 0.0)
    td.update({"current_holdings": held, "entry_price": entry, "action": torch.arange(3).repeat(2).unsqueeze(-1)})
    following = env.step(td)["next"]
    change = 0.1 * (following["price_history"][:, -1:] - price) / price
    cost = 0.001 * price
    expected = {
        (False, WAIT): (False, 0 * price, 0 * price),
        (False, BUY): (True, price, change - cost),
        (False, SELL): (False, 0 * price, 0 * price),
        (True, WAIT): (True, entry, change),
        (True, BUY): (True, entry, change),
        (True, SELL): (False, 0 * price, 0.25 - cost),
    }
    for row, (holds, bought_at, reward) in enumerate(expected.values()):
        assert following["current_holdings"][row].item() == holds
        assert following["entry_price"][row].item() == pytest.approx(bought_at[row].item())
        assert following["reward"][row].item() == pytest.approx(reward[row].item(), abs=1e-5), row


def test_prices_move_as_their_parameters_say() -> None:
    env = FinancialRegimeEnv(seed=5, window_size=2)
    td = env.reset(env.gen_params(volatility=0.3, drift=2.0, initial_price=50.0, batch_size=[20000]))
    assert td["price_history"][:, 0].log().std().item() == pytest.approx(0.3 / 252**0.5, rel=0.03)
    assert td["price_history"][:, 0].mean().item() == pytest.approx(50, rel=0.01)
    following = env.step(td.set("action", torch.zeros(20000, 1, dtype=torch.int64)))["next"]
    growth = (following["price_history"][:, 1] / td["price_history"][:, 1]).log()
    assert growth.mean().item() == pytest.approx(2 / 252, rel=0.05)
    assert growth.std().item() == pytest.approx(0.3 / 252**0.5, rel=0.03)
    assert torch.equal(following["price_history"][:, 0], td["price_history"][:, 1])


def test_episodes_are_truncated() -> None:
    env = FinancialRegimeEnv()
    rows = torch.stack([env.gen_params(max_steps=n) for n in (2, 4)])
    data = env.rollout(5, tensordict=rows, break_when_any_done=False)
    assert data["next", "truncated"].squeeze(-1).int().tolist() == [[0, 1, 0, 1, 0], [0, 0, 0, 1, 0]]
    assert torch.equal(data["next", "done"], data["next", "truncated"])
    assert not data["next", "terminated"].any()
    assert data["step_count"].tolist() == [[0, 1, 0, 1, 0], [0, 1, 2, 3, 0]]
    assert data["params", "max_steps"].tolist() == [[2] * 5, [4] * 5]


def test_the_seed_is_zero_unless_given() -> None:
    def prices(env: FinancialRegimeEnv) -> torch.Tensor:
        return env.reset()["price_history"]

    assert torch.equal(prices(FinancialRegimeEnv()), prices(FinancialRegimeEnv(seed=0)))
    assert not torch.equal(prices(FinancialRegimeEnv()), prices(FinancialRegimeEnv(seed=1)))
    env = FinancialRegimeEnv()
    assert not torch.equal(prices(env), prices(env))
