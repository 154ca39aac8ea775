"""A position as a picture.

python-chess draws a board as SVG, and cairo renders that to pixels, which takes a tenth of a second. Squares do not
overlap, so this is done once, for a board that has every piece on a light and on a dark square; all pictures are
assembled from its squares.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import chess
import chess.svg
import numpy as np
import torch

from shoal.errors import BackendUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    Pixels = npt.NDArray[np.uint8]

SIZE = 390
_MARGIN, _SIDE = 15, 45


def check_pixels() -> None:
    """Raise an error if pictures cannot be made here."""
    try:
        import cairosvg.surface  # noqa: F401
    except (ImportError, OSError) as error:  # an OSError where the cairo library itself is missing
        raise BackendUnavailable(
            f"ChessEnv: pixels=True needs cairosvg and the cairo library ({error}): pip install 'shoal[chess-pixels]'"
        ) from error


def pixels_of(board: chess.Board) -> torch.Tensor:
    """The picture of a board: uint8, of shape (3, 390, 390)."""
    empty, squares = _parts()
    picture = empty.copy()
    for square, piece in board.piece_map().items():
        rows, columns = _place(square)
        picture[:, rows, columns] = squares[piece.symbol(), _is_light(square)]
    return torch.from_numpy(picture)


@cache
def _parts() -> tuple[Pixels, dict[tuple[str, bool], Pixels]]:
    """The picture of an empty board, and each piece on each kind of square."""
    board = chess.Board(None)
    for square, piece in zip(_spread_out(), [*chess.UNICODE_PIECE_SYMBOLS] * 2, strict=True):
        board.set_piece_at(square, chess.Piece.from_symbol(piece))
    picture = rendered(board)
    squares = {}
    for square, piece in board.piece_map().items():
        rows, columns = _place(square)
        squares[piece.symbol(), _is_light(square)] = picture[:, rows, columns].copy()
    return rendered(chess.Board(None)), squares


def _spread_out() -> Iterator[int]:
    """Twelve light squares, then twelve dark ones."""
    for light in (True, False):
        yield from [square for square in chess.SQUARES if _is_light(square) == light][:12]


def _is_light(square: int) -> bool:
    return bool(chess.BB_LIGHT_SQUARES & chess.BB_SQUARES[square])


def _place(square: int) -> tuple[slice, slice]:
    """The rows and columns of a square, seen from white's side."""
    top = _MARGIN + (7 - chess.square_rank(square)) * _SIDE
    left = _MARGIN + chess.square_file(square) * _SIDE
    return slice(top, top + _SIDE), slice(left, left + _SIDE)


def rendered(board: chess.Board) -> Pixels:
    """The picture of a board as cairo draws it."""
    from cairosvg.parser import Tree
    from cairosvg.surface import PNGSurface

    surface = PNGSurface(Tree(bytestring=chess.svg.board(board, size=SIZE).encode()), None, 96).cairo
    width, height, stride = surface.get_width(), surface.get_height(), surface.get_stride()
    pixels = np.frombuffer(surface.get_data(), np.uint32)
    numbers = pixels.reshape(height, stride // 4)[:, :width]
    # Cairo packs a pixel into one number: alpha, red, green, blue. The board is opaque, so alpha can be dropped.
    return np.stack([(numbers >> shift & 0xFF).astype(np.uint8) for shift in (16, 8, 0)])
