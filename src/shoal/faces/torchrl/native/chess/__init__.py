"""Chess, on python-chess.

vocabulary   all possible moves, in standard algebraic notation, each with an index
legal        the legal moves of a position, named and indexed
position     a position: its board, its legal moves, how it ended, and its texts
pixels       a position as a picture
env          ChessEnv
"""

from __future__ import annotations

from shoal.faces.torchrl.native.chess.env import ChessEnv
from shoal.faces.torchrl.native.chess.vocabulary import san_vocabulary

__all__ = ["ChessEnv", "san_vocabulary"]
