"""A position of a chess game: how it came about, what can be played, how it has ended, and its texts."""

from __future__ import annotations

import io
from functools import cached_property

import chess
import chess.pgn

from shoal.errors import ActionError, ArgumentError
from shoal.faces.torchrl.native.chess.legal import legal_moves
from shoal.faces.torchrl.native.chess.vocabulary import san_vocabulary

START = "<start>"
WIN, DRAW = 1.0, 0.5
_TAGS = ("Event", "Site", "Date", "Round", "White", "Black")


class IllegalMove(ActionError, chess.IllegalMoveError):
    """An action that is not a legal move in this position."""


class Position:
    """An immutable position, with the moves that led to it.

    Args:
        board: The board, which nobody else may change.
        start: The FEN of the first position of the game.
        names: The moves played since, in standard algebraic notation.
    """

    def __init__(self, board: chess.Board, start: str = chess.STARTING_FEN, names: tuple[str, ...] = ()) -> None:
        self.board = board
        self.start = start
        self.names = names

    @classmethod
    def first(cls) -> Position:
        """The position a game begins with."""
        return cls(chess.Board())

    @classmethod
    def from_fen(cls, text: str) -> Position:
        """A position without a past.

        Raises:
            ArgumentError: The text describes no position.
        """
        try:
            return cls(chess.Board(text), text)
        except ValueError as error:
            raise ArgumentError(f"ChessEnv: fen {text!r} describes no position: {error}") from error

    @classmethod
    def from_pgn(cls, text: str) -> Position:
        """The last position of a game.

        Raises:
            ArgumentError: The text describes no game.
        """
        game = chess.pgn.read_game(io.StringIO(text))
        if game is None or game.errors:
            reason = "it is empty" if game is None else game.errors[0]
            raise ArgumentError(f"ChessEnv: pgn {text!r} describes no game: {reason}")
        board = game.board()
        start = board.fen()
        names = tuple(board.san_and_push(move) for move in game.mainline_moves())
        return cls(board, start, names)

    @cached_property
    def legal(self) -> dict[int, chess.Move]:
        """The legal moves, by action."""
        return legal_moves(self.board)

    @property
    def is_white_to_move(self) -> bool:
        """Whether it is White's turn."""
        return bool(self.board.turn)

    @cached_property
    def value(self) -> float | None:
        """What the last move was worth to its player, if it ended the game: 1 for mate, 0.5 for a draw."""
        board = self.board
        if not self.legal:
            return WIN if board.is_check() else DRAW
        drawn = board.is_insufficient_material() or board.is_fifty_moves() or board.is_fivefold_repetition()
        return DRAW if drawn else None

    def after(self, action: int, *, keeps_past: bool = True) -> Position:
        """The position after a move.

        Args:
            action: The move; its name may leave out a check, or say more about the piece's origin than it has to.
            keeps_past: Whether the new position knows how it came about.

        Raises:
            IllegalMove: The move cannot be played here.
        """
        move = self.legal.get(action) or self._meant(action)
        board = self.board.copy(stack=keeps_past)
        board.push(move)
        if keeps_past:
            return Position(board, self.start, (*self.names, san_vocabulary()[action]))
        board.clear_stack()
        return Position(board, board.fen())

    def _meant(self, action: int) -> chess.Move:
        """The legal move that a name means although it is not exactly the name of that move."""
        names = san_vocabulary()
        name = names[action] if 0 <= action < len(names) else None
        try:
            return self.board.parse_san(name or "")
        except ValueError:
            told = "no move at all" if name is None else repr(name)
            raise IllegalMove(f"ChessEnv: action {action} is {told}, which is illegal in {self.fen}") from None

    # -- texts --------------------------------------------------------------------------------------------------------

    @cached_property
    def fen(self) -> str:
        """The position in Forsyth-Edwards notation."""
        return str(self.board.fen())

    @property
    def san(self) -> str:
        """The last known move."""
        return self.names[-1] if self.names else START

    @cached_property
    def pgn(self) -> str:
        """The game up to here in portable game notation."""
        result = self._result()
        tags = [f'[{name} "{"????.??.??" if name == "Date" else "?"}"]' for name in _TAGS]
        tags.append(f'[Result "{result}"]')
        if self.start != chess.STARTING_FEN:
            tags += [f'[FEN "{self.start}"]', '[SetUp "1"]']
        return "\n".join([*tags, "", " ".join([*self._numbered(), result])])

    def _numbered(self) -> list[str]:
        """The moves with their numbers: before each of White's, and before the first if it is Black's."""
        _, turn, *_, number = self.start.split()
        count = int(number) * 2 + (turn == "b")
        words = []
        for place, name in enumerate(self.names, start=count):
            if place % 2 == 0:
                words.append(f"{place // 2}.")
            elif place == count:
                words.append(f"{place // 2}...")
            words.append(name)
        return words

    def _result(self) -> str:
        if self.value is None:
            return "*"
        if self.value == DRAW:
            return "1/2-1/2"
        return "0-1" if self.is_white_to_move else "1-0"
