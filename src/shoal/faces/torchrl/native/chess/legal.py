"""The legal moves of a position, each under the action that stands for it.

The name of a move says whether it gives check, and to find that out the move must be played. Few moves can give check:
those that end in line with the king, or leave a line on which a piece behind them attacks it. Only these are tried.
"""

from __future__ import annotations

from collections import defaultdict

import chess

from shoal.faces.torchrl.native.chess.vocabulary import san_indices

_LINES = {
    chess.BISHOP: frozenset({"diagonal"}),
    chess.ROOK: frozenset({"straight"}),
    chess.QUEEN: frozenset({"diagonal", "straight"}),
}


def legal_moves(board: chess.Board) -> dict[int, chess.Move]:
    """The legal moves of a position, by action."""
    actions = san_indices()
    return {actions[name]: move for name, move in named_moves(board).items()}


def named_moves(board: chess.Board) -> dict[str, chess.Move]:
    """The legal moves of a position, by their names in standard algebraic notation."""
    moves = list(board.generate_legal_moves())
    rivals: dict[tuple[int, int], list[int]] = defaultdict(list)
    for move in moves:
        rivals[board.piece_type_at(move.from_square) or 0, move.to_square].append(move.from_square)
    suspects = _Suspects(board)
    named = {}
    for move in moves:
        piece = board.piece_type_at(move.from_square) or 0
        name = _plain_name(board, move, piece, rivals[piece, move.to_square])
        named[name + (suspects.ending(move) if suspects.may_check(move, piece) else "")] = move
    return named


def _plain_name(board: chess.Board, move: chess.Move, piece: int, origins: list[int]) -> str:
    """The name of a move without the mark for check or mate."""
    if piece == chess.KING and board.is_castling(move):
        return "O-O-O" if board.is_queenside_castling(move) else "O-O"
    origin, target = move.from_square, chess.SQUARE_NAMES[move.to_square]
    if piece == chess.PAWN:
        taking = f"{chess.FILE_NAMES[chess.square_file(origin)]}x" if origin % 8 != move.to_square % 8 else ""
        promoted = f"={chess.piece_symbol(move.promotion).upper()}" if move.promotion else ""
        return f"{taking}{target}{promoted}"
    taking = "x" if board.occupied & chess.BB_SQUARES[move.to_square] else ""
    return f"{chess.piece_symbol(piece).upper()}{_told_apart(origin, origins)}{taking}{target}"


def _told_apart(origin: int, origins: list[int]) -> str:
    """As much of a piece's origin as tells it apart from others of its kind that can go to the same square."""
    if len(origins) == 1:
        return ""
    others = [square for square in origins if square != origin]
    needs_rank = any(square % 8 == origin % 8 for square in others)
    needs_file = not needs_rank or any(square // 8 == origin // 8 for square in others)
    square = chess.SQUARE_NAMES[origin]
    return (square[0] if needs_file else "") + (square[1] if needs_rank else "")


class _Suspects:
    """Which moves of a position may give check, and which do."""

    def __init__(self, board: chess.Board) -> None:
        self._board = board
        us = board.turn
        king = board.king(not us)
        self._king = king
        # Impossible in a game, but a position may be set up like this; a move that does not end the check gives check.
        self._is_in_check_already = king is not None and board.was_into_check()
        self._sliders = board.occupied_co[us] & (board.bishops | board.rooks | board.queens)
        self._knight_squares = 0 if king is None else chess.BB_KNIGHT_ATTACKS[king]
        self._pawn_squares = 0 if king is None else chess.BB_PAWN_ATTACKS[not us][king]

    def may_check(self, move: chess.Move, piece: int) -> bool:
        """Whether a move has to be tried; never False for a move that gives check."""
        king = self._king
        if king is None:
            return False
        origin, target = move.from_square, move.to_square
        line = chess.ray(origin, king)
        opens_line = line & self._sliders & ~chess.BB_SQUARES[origin]
        if opens_line or move.promotion or self._is_in_check_already:
            return True
        if piece == chess.KNIGHT:
            return bool(self._knight_squares & chess.BB_SQUARES[target])
        if piece == chess.PAWN:
            # An en passant capture takes two pieces off their lines.
            return target == self._board.ep_square or bool(self._pawn_squares & chess.BB_SQUARES[target])
        if piece == chess.KING:
            return bool(self._board.is_castling(move))
        if not chess.ray(target, king):
            return False
        straight = target % 8 == king % 8 or target // 8 == king // 8
        return ("straight" if straight else "diagonal") in _LINES[piece]

    def ending(self, move: chess.Move) -> str:
        """What the name of a move ends with: ``+`` for check, ``#`` for mate."""
        board = self._board
        board.push(move)
        try:
            if not board.is_check():
                return ""
            return "+" if any(board.generate_legal_moves()) else "#"
        finally:
            board.pop()
