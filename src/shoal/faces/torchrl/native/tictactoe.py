"""TicTacToeEnv: three in a row, for two players or one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from shoal.faces.torchrl.env.masks import select
from shoal.faces.torchrl.fast_td import build
from shoal.faces.torchrl.native.random_env import RandomEnv, entries
from shoal.faces.torchrl.specs import Categorical, Composite, Unbounded

if TYPE_CHECKING:
    from tensordict import TensorDictBase

_EMPTY = -1
_LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


class TicTacToeEnv(RandomEnv):
    """Tic-tac-toe, any number of games at once.

    The state is in the data. ``board`` is seen from the side of the player to move: -1 is a free cell, 1 one of their
    stones, 0 one of the opponent's. ``turn`` says whose move it is, ``mask`` which of the nine cells are free; an
    action is a cell, ``row * 3 + column``. Whoever completes a line gets 1 under ``("player0", "reward")`` or
    ``("player1", "reward")``; all other rewards are 0. A stone on a taken cell replaces the one there, so keep to the
    mask.

    Args:
        single_player: Whether player 1 answers at random inside each step.
        device: Where data is expected and returned.

    Example:
        >>> from tensordict import TensorDict
        >>> from shoal.faces.torchrl import TicTacToeEnv
        >>> env = TicTacToeEnv()
        >>> env.reset(TensorDict(batch_size=[4]))["board"].shape
        torch.Size([4, 3, 3])
        >>> 5 <= len(env.rollout(20)) <= 9
        True
    """

    def __init__(self, *, single_player: bool = False, device: torch.device | str | int | None = None) -> None:
        super().__init__(device=device)
        self.single_player = single_player
        where = self.device
        self.observation_spec = Composite(
            board=Unbounded((3, 3), dtype=torch.int32, device=where),
            turn=Categorical(2, shape=(1,), dtype=torch.int32, device=where),
            mask=Categorical(2, shape=(9,), dtype=torch.bool, device=where),
            device=where,
        )
        self.state_spec = self.observation_spec.clone()
        self.action_spec = Categorical(9, shape=(), device=where)
        self.full_reward_spec = Composite(
            {(f"player{player}", "reward"): Unbounded((1,), device=where) for player in range(2)}, device=where
        )
        self.full_done_spec = Composite(
            {
                flag: Categorical(2, shape=(1,), dtype=torch.bool, device=where)
                for flag in ("done", "terminated", "truncated")
            },
            device=where,
        )
        self.register_buffer("_lines", torch.tensor(_LINES, device=where), persistent=False)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        size = self._batch_of(tensordict)
        first = {
            "board": torch.full((*size, 3, 3), _EMPTY, dtype=torch.int32, device=self.device),
            "turn": torch.zeros((*size, 1), dtype=torch.int32, device=self.device),
            "mask": torch.ones((*size, 9), dtype=torch.bool, device=self.device),
        }
        return build(first, size, self.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        given = entries(tensordict)
        board, turn = given["board"], given["turn"]
        after = self._moved(board, turn, given["action"], tensordict)
        if not self.single_player:
            return after
        over = after.get("terminated")
        if over.all():
            return after
        reply = _draw(after.get("mask"), self.rng)
        replied = self._moved(after.get("board"), after.get("turn"), reply, tensordict)
        return select(~over, replied, after)

    def _moved(
        self, board: torch.Tensor, turn: torch.Tensor, action: torch.Tensor, like: TensorDictBase
    ) -> TensorDictBase:
        """The games after one move in each."""
        size, device = like.batch_size, like.device
        cells = board.flatten(-2).scatter(-1, action.long().reshape(*size, 1), 1)
        won = (cells[..., self._lines] == 1).all(-1).any(-1, keepdim=True)
        free = cells == _EMPTY
        ended = won | ~free.any(-1, keepdim=True)
        rewards = {
            f"player{player}": build({"reward": (won & (turn == player)).float()}, size, device) for player in range(2)
        }
        seen_by_other = torch.where(free, cells, 1 - cells)
        following = {
            "board": seen_by_other.unflatten(-1, (3, 3)),
            "turn": 1 - turn,
            "mask": free,
            "done": ended,
            "terminated": ended.clone(),
            "truncated": torch.zeros_like(ended),
            **rewards,
        }
        return build(following, size, device)

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Write a random free cell into ``tensordict``; any cell if it has no ``mask``, or the board is full."""
        mask = None if tensordict is None else tensordict.get("mask", None)
        if tensordict is None or mask is None:
            return super().rand_action(tensordict)
        return tensordict.set("action", _draw(mask))


def _draw(mask: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """The index of a random True entry of each row; of any entry if there is none."""
    weights = torch.where(mask.any(-1, keepdim=True), mask, True).float().reshape(-1, mask.shape[-1])
    return torch.multinomial(weights, 1, generator=generator).reshape(mask.shape[:-1])
