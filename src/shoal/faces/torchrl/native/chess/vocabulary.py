"""All possible moves, in standard algebraic notation.

How much of its origin a move names depends on the other pieces that could go to the same square: nothing, the file it
comes from, its rank, or both. A name is in the list if some position calls for it. Each is there three times: plain,
with ``+`` for check and with ``#`` for mate. The list is sorted by length and then by character, and ends with an empty
name.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_FILES = "abcdefgh"
_SIDE = range(1, 9)
_INNER = range(2, 8)


@cache
def san_vocabulary() -> tuple[str, ...]:
    """The names of all moves; the index of a name is the action that stands for it.

    Example:
        >>> from shoal.faces.torchrl.native.chess import san_vocabulary
        >>> len(san_vocabulary()), san_vocabulary()[3037]
        (29275, 'Qh4#')
    """
    plain = {"O-O", "O-O-O"}
    for file, rank in product(_SIDE, _SIDE):
        plain.update(_pawn_moves(file, rank))
        for origin in _origins(file, rank):
            plain.update(f"{origin}{taking}{_square(file, rank)}" for taking in ("", "x"))
    return (*sorted((name + end for name in plain for end in ("", "+", "#")), key=lambda name: (len(name), name)), "")


@cache
def san_indices() -> dict[str, int]:
    """The action that stands for each name."""
    return {name: action for action, name in enumerate(san_vocabulary())}


def _square(file: int, rank: int) -> str:
    return f"{_FILES[file - 1]}{rank}"


def _pawn_moves(file: int, rank: int) -> Iterator[str]:
    """Moves of a pawn to a square: pushes, captures from both sides, and promotions on the last ranks."""
    target = _square(file, rank)
    ends = [""] if rank in _INNER else [f"={piece}" for piece in "BNQR"]
    for end in ends:
        yield target + end
        yield from (f"{_FILES[side - 1]}x{target}{end}" for side in (file - 1, file + 1) if side in _SIDE)


def _origins(file: int, rank: int) -> Iterator[str]:
    """What may come before the square that a piece goes to: the piece, and as much of its origin as is needed."""
    yield from "BKNQR"
    for from_file in _SIDE:
        yield from (f"{piece}{_FILES[from_file - 1]}" for piece in _told_by_file(abs(from_file - file), file, rank))
    for from_rank in _SIDE:
        yield from (f"{piece}{from_rank}" for piece in _told_by_rank(from_rank, file, rank))
    for from_file, from_rank in product(_SIDE, _SIDE):
        yield from (
            piece + _square(from_file, from_rank) for piece in _told_by_both((from_file, from_rank), file, rank)
        )


def _told_by_file(across: int, file: int, rank: int) -> Iterator[str]:
    yield from "QR"
    in_corner = file not in _INNER and rank not in _INNER
    if across and not in_corner and (rank + across in _SIDE or rank - across in _SIDE):
        yield "B"
    if across in (1, 2):
        yield "N"


def _told_by_rank(from_rank: int, file: int, rank: int) -> Iterator[str]:
    along = abs(from_rank - rank)
    mirrored = 2 * rank - from_rank in _SIDE
    if along and rank in _INNER:
        yield "R"
    if along and mirrored:
        yield "B"
    if along in (1, 2) and mirrored:
        yield "N"
    if not along or file + along in _SIDE or file - along in _SIDE or rank in _INNER:
        yield "Q"


def _told_by_both(origin: tuple[int, int], file: int, rank: int) -> Iterator[str]:
    from_file, from_rank = origin
    across, along = abs(from_file - file), abs(from_rank - rank)
    diagonal = across == along > 0
    mirrored = 2 * rank - from_rank in _SIDE and 2 * file - from_file in _SIDE
    if diagonal and mirrored:
        yield "B"
    if {across, along} == {1, 2} and mirrored:
        yield "N"
    down_a_file = not across and along and rank in _INNER and (file + along in _SIDE or file - along in _SIDE)
    along_a_rank = not along and across and file in _INNER and (rank + across in _SIDE or rank - across in _SIDE)
    if diagonal or down_a_file or along_a_rank:
        yield "Q"
