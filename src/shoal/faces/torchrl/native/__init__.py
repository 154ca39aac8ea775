"""Envs written in torch: no simulator behind them, and a batch of any size in one step.

random_env    an env with a generator of its own, and one whose parameters travel in its data
pendulum      PendulumEnv
tictactoe     TicTacToeEnv
financial     FinancialRegimeEnv
hashing       SipHash: rows of tensors to integers
llm_hashing   LLMHashingEnv
chess         ChessEnv, on python-chess
"""

from __future__ import annotations

from shoal.faces.torchrl.native.financial import FinancialRegimeEnv
from shoal.faces.torchrl.native.hashing import SipHash
from shoal.faces.torchrl.native.llm_hashing import LLMHashingEnv
from shoal.faces.torchrl.native.pendulum import PendulumEnv
from shoal.faces.torchrl.native.tictactoe import TicTacToeEnv

__all__ = ["FinancialRegimeEnv", "LLMHashingEnv", "PendulumEnv", "SipHash", "TicTacToeEnv"]
