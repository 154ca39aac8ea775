"""Blackjack: draw cards to come closer to 21 than the dealer, without going over.

Cards come from a deck that never runs out. All that counts in a hand is its sum with aces as one, whether it has an
ace, and how many cards there are. The dealer's open card also gets a suit and, if it is a ten, a face: no rule depends
on them, but Gymnasium draws them from the same generator, to show them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.kernel import KernelEnv

BEST = 21
DEALER_STANDS = 17
_SUITS = "CDHS"
_FACES = "JQK"


class Blackjack(KernelEnv):
    """One point for a hand won, minus one for a hand lost.

    A natural is an ace and a ten from the start. With ``sab``, the rules of Sutton and Barto's book, it wins against
    everything but another natural. Without ``sab``, and with ``natural``, it pays one and a half if it wins.
    """

    observation_space = spaces.Tuple((spaces.Discrete(32), spaces.Discrete(11), spaces.Discrete(2)))
    action_space = spaces.Discrete(2)
    state = {
        "player_sum": np.int64,
        "player_cards": np.int64,
        "player_has_ace": np.bool_,
        "dealer_sum": np.int64,
        "dealer_cards": np.int64,
        "dealer_has_ace": np.bool_,
        "open_card": np.int64,
        "suit": np.int64,
        "face": np.int64,
    }
    constants = {"natural": False, "sab": False}
    gymnasium_id = "Blackjack-v1"
    render_fps = 4

    def reset(env: Any, rng: Any, obs: Any) -> None:
        """Deal two cards to the dealer and two to the player."""
        env.player_sum = env.player_cards = env.dealer_sum = env.dealer_cards = 0
        env.player_has_ace = env.dealer_has_ace = False
        _deal_to_dealer(env, rng)
        env.open_card = env.dealer_sum
        _deal_to_dealer(env, rng)
        _deal_to_player(env, rng)
        _deal_to_player(env, rng)
        env.suit = rng.integers(0, 4)
        env.face = rng.integers(0, 3) if env.open_card == 10 else 0
        _observe(env, obs)

    def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
        """Stick (0) or hit (1)."""
        if action == 1:
            _deal_to_player(env, rng)
            _observe(env, obs)
            is_bust = env.player_sum > BEST
            return -1.0 if is_bust else 0.0, is_bust
        while _value(env.dealer_sum, env.dealer_has_ace) < DEALER_STANDS:
            _deal_to_dealer(env, rng)
        _observe(env, obs)
        return _payout(env), True

    def pose(env: Any, twin: Any) -> None:
        """Put hands of the same value on the twin's table, for drawing."""
        total = int(env.player_sum)
        card = int(env.open_card)
        twin.player = [1, total - 1] if env.player_has_ace else [total]
        twin.dealer = [card]
        twin.dealer_top_card_suit = _SUITS[env.suit]
        twin.dealer_top_card_value_str = "A" if card == 1 else _FACES[env.face] if card == 10 else str(card)


def _card(rng: Any) -> Any:
    """A card's value, with an ace as one; four cards out of thirteen are worth ten."""
    return min(rng.integers(0, 13) + 1, 10)


def _deal_to_player(env: Any, rng: Any) -> None:
    card = _card(rng)
    env.player_sum += card
    env.player_cards += 1
    env.player_has_ace = env.player_has_ace or card == 1


def _deal_to_dealer(env: Any, rng: Any) -> None:
    card = _card(rng)
    env.dealer_sum += card
    env.dealer_cards += 1
    env.dealer_has_ace = env.dealer_has_ace or card == 1


def _value(total: int, has_ace: bool) -> int:
    """What a hand is worth with one ace as eleven, if that is not too much."""
    return total + 10 if has_ace and total + 10 <= BEST else total


def _is_natural(total: int, cards: int, has_ace: bool) -> bool:
    return cards == 2 and has_ace and total == 11


def _payout(env: Any) -> float:
    """What the player gets for the hands on the table; the player is not bust."""
    player = _value(env.player_sum, env.player_has_ace)
    dealer = _value(env.dealer_sum, env.dealer_has_ace)
    is_natural = _is_natural(env.player_sum, env.player_cards, env.player_has_ace)
    if env.sab and is_natural and not _is_natural(env.dealer_sum, env.dealer_cards, env.dealer_has_ace):
        return 1.0
    if dealer > BEST or player > dealer:
        return 1.5 if is_natural and env.natural and not env.sab else 1.0
    return 0.0 if player == dealer else -1.0


def _observe(env: Any, obs: Any) -> None:
    value = _value(env.player_sum, env.player_has_ace)
    obs[0][0] = value
    obs[1][0] = env.open_card
    obs[2][0] = 1 if value > env.player_sum else 0
