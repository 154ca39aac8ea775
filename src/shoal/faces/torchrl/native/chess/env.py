"""ChessEnv: chess in TorchRL's dialect."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from shoal.errors import ArgumentError, BackendUnavailable, TensorEnvError
from shoal.faces.torchrl.env_base import EnvBase
from shoal.faces.torchrl.fast_td import build
from shoal.faces.torchrl.gym_making import ClassProperty
from shoal.faces.torchrl.native.chess.vocabulary import san_vocabulary
from shoal.faces.torchrl.specs import Binary, Bounded, Categorical, Composite, NonTensor, Unbounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import chess
    from tensordict import TensorDictBase

    from shoal.faces.torchrl.native.chess.position import Position
    from shoal.faces.torchrl.specs import TensorSpec

# No position is known to have more than 218 legal moves; one extra place shows where they end.
_MOST_MOVES = 219
_RECENT = 4096
_STATES = ("pgn", "fen")


class ChessEnv(EnvBase):
    """Chess between two players who share one interface: every step is a move by the side to move.

    An action is the index of a move's name in ``san_moves``. A move gets 1 for mate, 0.5 for ending the game in a draw
    (stalemate, insufficient material, the fifty-move rule, fivefold repetition), and otherwise 0.

    With ``mask_actions`` the constructor returns the env inside a `TransformedEnv` with an `ActionMask`, so that random
    actions are legal; the env itself is its ``base_env``.

    Args:
        stateful: Whether the env keeps the game. If not, the game is in the data (``include_fen`` or ``include_pgn``)
            and a step takes any batch of games.
        include_san: Whether ``"san"`` holds the last move, ``"<start>"`` before the first.
        include_fen: Whether ``"fen"`` holds the position, in Forsyth-Edwards notation.
        include_pgn: Whether ``"pgn"`` holds the game, in portable game notation.
        include_legal_moves: Whether ``"legal_moves"`` lists the legal actions, padded with ``len(san_moves)``.
        include_hash: Whether each of these texts has a hash beside it: ``"fen_hash"`` and so on, 32 bytes.
        include_hash_inv: Whether a hash that the env has written can stand in for its text in the data it is given.
        mask_actions: Whether ``"action_mask"`` says which actions are legal.
        pixels: Whether ``"pixels"`` shows the board, which needs ``shoal[chess-pixels]``.

    Example:
        >>> from shoal.faces.torchrl import ChessEnv
        >>> env = ChessEnv(include_san=True, include_fen=True)
        >>> td = env.reset()
        >>> td["action"] = env.san_moves.index("e4")
        >>> env.step(td)["next", "fen"]
        'rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1'
    """

    def __init__(
        self,
        *,
        stateful: bool = True,
        include_san: bool = False,
        include_fen: bool = False,
        include_pgn: bool = False,
        include_legal_moves: bool = False,
        include_hash: bool = False,
        include_hash_inv: bool = False,
        mask_actions: bool = True,
        pixels: bool = False,
    ) -> None:
        self._check(stateful, include_fen or include_pgn, include_hash, include_hash_inv)
        rules = _rules(pixels)
        super().__init__()
        own = self.__dict__
        own["_rules"] = rules
        own["_batch_locked"] = stateful
        own["_position"] = rules.Position.first()
        own["_recent"] = OrderedDict()
        own["_hashed"] = {}
        self.stateful = stateful
        self.include_hash_inv = include_hash_inv
        self.mask_actions = mask_actions
        self._makers = self._makers_of(include_legal_moves, pixels)
        texts = {"san": include_san, "pgn": include_pgn, "fen": include_fen}
        self._texts = [name for name, wanted in texts.items() if wanted]
        self._hashes = list(self._texts) if include_hash else []
        self._set_specs()

    _position: Position
    _recent: OrderedDict[str, Position]
    _hashed: dict[bytes, str]

    @staticmethod
    def _check(stateful: bool, told: bool, hashes: bool, inverse: bool) -> None:
        if not stateful and not told:
            raise TensorEnvError("ChessEnv: stateful=False keeps the game in the data: set include_fen or include_pgn")
        if inverse and not hashes:
            raise ArgumentError("ChessEnv: include_hash_inv needs include_hash")

    def _makers_of(self, legal_moves: bool, pixels: bool) -> dict[str, Callable[[Position], torch.Tensor]]:
        """How to make each tensor entry from a position."""
        makers: dict[str, Callable[[Position], torch.Tensor]] = {"turn": _turn_of}
        if self.mask_actions:
            makers["action_mask"] = _mask_of
        if legal_moves:
            makers["legal_moves"] = _list_of
        if pixels:
            makers["pixels"] = self._picture_of
        return makers

    def _picture_of(self, position: Position) -> torch.Tensor:
        picture: torch.Tensor = self._rules.pixels_of(position.board)
        return picture

    def _set_specs(self) -> None:
        count = len(san_vocabulary())
        known: dict[str, TensorSpec] = {
            "turn": Categorical(2, shape=(), dtype=torch.bool),
            "action_mask": Binary(count, dtype=torch.bool),
            "legal_moves": Bounded(0, count, shape=(_MOST_MOVES,), dtype=torch.int64),
        }
        if "pixels" in self._makers:
            side = self._rules.SIZE
            known["pixels"] = Unbounded((3, side, side), dtype=torch.uint8)
        observed: dict[str, TensorSpec] = {name: known[name] for name in self._makers}
        first = self._position
        observed |= {name: NonTensor(shape=(), example_data=getattr(first, name)) for name in self._texts}
        observed |= {f"{name}_hash": Unbounded((32,), dtype=torch.uint8) for name in self._hashes}
        self.observation_spec = Composite(observed)
        self.state_spec = Composite({name: observed[name].clone() for name in self._state_names()})
        self.action_spec = Categorical(count, shape=())
        self.reward_spec = Unbounded((1,))

    def _state_names(self) -> list[str]:
        """The entries that a game can be read from."""
        texts = [name for name in _STATES if name in self._texts]
        hashes = [f"{name}_hash" for name in texts if name in self._hashes]
        return texts + (hashes if self.include_hash_inv else [])

    def _after_init(self) -> EnvBase:
        if not self.mask_actions:
            return self
        from shoal.faces.torchrl.transforms import TransformedEnv
        from shoal.faces.torchrl.transforms.action_mask import ActionMask

        return TransformedEnv(self, ActionMask())

    # -- reset and step -----------------------------------------------------------------------------------------------

    @property
    def supports_set_state(self) -> bool:
        """True: a reset can begin with the game it is given."""
        return True

    def _state_given(self, tensordict: TensorDictBase) -> bool:
        names = (*_STATES, *(f"{name}_hash" for name in _STATES if self.include_hash_inv))
        return any(tensordict.get(name, None) is not None for name in names)

    def _reset(
        self, tensordict: TensorDictBase | None = None, set_state: bool | None = None, **kwargs: Any
    ) -> TensorDictBase:
        size = torch.Size() if tensordict is None else tensordict.batch_size
        if set_state and tensordict is not None:
            positions = self._positions(tensordict)
            for position in positions:
                if position.value is not None:
                    raise ArgumentError(f"ChessEnv.reset: the game is over in the state to begin with, {position.fen}")
        else:
            positions = [self._rules.Position.first()] * size.numel()
        return build(self._observed(positions, [position.san for position in positions], size), size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        size = tensordict.batch_size
        actions = tensordict.get("action").reshape(-1).tolist()
        before = [self._position] if self.stateful else self._positions(tensordict)
        keeps_past = self.stateful or "pgn" in self._texts
        after = [
            position.after(action, keeps_past=keeps_past) for position, action in zip(before, actions, strict=True)
        ]
        names = san_vocabulary()
        following = self._observed(after, [names[action] for action in actions], size)
        values = [position.value for position in after]
        following["reward"] = torch.tensor([value or 0.0 for value in values]).reshape(*size, 1)
        ended = torch.tensor([value is not None for value in values]).reshape(*size, 1)
        following["terminated"], following["done"] = ended, ended.clone()
        return build(following, size)

    def _observed(self, positions: Sequence[Position], names: Sequence[str], size: torch.Size) -> dict[str, Any]:
        """The observations of positions, which are also remembered."""
        if self.stateful:
            self.__dict__["_position"] = positions[0]
        observed: dict[str, Any] = {
            name: _shaped([make(position) for position in positions], size) for name, make in self._makers.items()
        }
        for name in self._texts:
            texts = list(names) if name == "san" else [getattr(position, name) for position in positions]
            observed[name] = _texts_shaped(texts, size)
            if name in self._hashes:
                observed[f"{name}_hash"] = _shaped([self._hash(text) for text in texts], size)
            if not self.stateful and name in _STATES:
                for text, position in zip(texts, positions, strict=True):
                    self._remember(text, position)
        return observed

    def _hash(self, text: str) -> torch.Tensor:
        digest = hashlib.sha256(text.encode()).digest()
        if self.include_hash_inv:
            self._hashed[digest] = text
        return torch.frombuffer(bytearray(digest), dtype=torch.uint8)

    # -- games in data ------------------------------------------------------------------------------------------------

    def _remember(self, text: str, position: Position) -> None:
        """Keep a position under its text, by which the next step will ask for it."""
        recent = self._recent
        recent[text] = position
        recent.move_to_end(text)
        if len(recent) > _RECENT:
            recent.popitem(last=False)

    def _positions(self, td: TensorDictBase) -> list[Position]:
        """The positions that data describes, one per row."""
        told = {name: self._told(td, name) for name in _STATES}
        games, boards = told["pgn"], told["fen"]
        if games is None and boards is None:
            raise TensorEnvError(
                f"ChessEnv: no game in the data, which has {list(td.keys())}: expected a fen or a pgn, and an env "
                "built with include_fen or include_pgn to read it"
            )
        count = td.batch_size.numel()
        return [
            self._position_of(games[row] if games else None, boards[row] if boards else None) for row in range(count)
        ]

    def _position_of(self, pgn: str | None, fen: str | None) -> Position:
        """The position at the end of a game, which knows its past; the FEN's if there is no game, or they differ."""
        if pgn is not None:
            position = self._recalled(pgn, self._rules.Position.from_pgn)
            if fen is None or position.fen == fen:
                return position
        return self._recalled(str(fen), self._rules.Position.from_fen)

    def _recalled(self, text: str, read: Callable[[str], Position]) -> Position:
        position = self._recent.get(text)
        if position is None:
            position = read(text)
            self._remember(text, position)
        return position

    def _told(self, td: TensorDictBase, name: str) -> list[str] | None:
        """The texts of all rows under a name, or those that their hashes stand for."""
        entry = td.get(name, None)
        if entry is not None:
            return _flat(entry)
        hashes = td.get(f"{name}_hash", None) if self.include_hash_inv else None
        if hashes is None:
            return None
        digests = [bytes(row) for row in hashes.reshape(-1, 32).tolist()]
        unknown = [digest.hex() for digest in digests if digest not in self._hashed]
        if unknown:
            raise ArgumentError(
                f"ChessEnv: {name}_hash {unknown[0]} was not written by this env: its text is not known"
            )
        return [self._hashed[digest] for digest in digests]

    # -- legal moves --------------------------------------------------------------------------------------------------

    @ClassProperty
    def san_moves(cls) -> list[str]:
        """The names of all moves; an action is the index of one."""
        return list(san_vocabulary())

    def _one_position(self, td: TensorDictBase | None, call: str) -> Position:
        if td is not None and td.batch_size:
            raise ArgumentError(f"ChessEnv.{call}: one game is expected, got a batch of {tuple(td.batch_size)}")
        if td is not None and self._state_given(td):
            return self._positions(td)[0]
        if not self.stateful:
            raise ArgumentError(f"ChessEnv.{call}: with stateful=False the game must be in the data that is given")
        return self._position

    @property
    def board(self) -> chess.Board:
        """The env's own position, as a board of python-chess: a copy, on which moves can be tried."""
        return self._one_position(None, "board").board.copy()

    def get_legal_moves(self, tensordict: TensorDictBase | None = None, uci: bool = False) -> list[str]:
        """The names of the legal moves.

        Args:
            tensordict: Data that describes a position; the env's own position if it does not.
            uci: Whether to return squares (``"e2e4"``) rather than names (``"e4"``).
        """
        legal = self._one_position(tensordict, "get_legal_moves").legal
        if uci:
            return [move.uci() for move in legal.values()]
        names = san_vocabulary()
        return [names[action] for action in legal]

    def cardinality(self, tensordict: TensorDictBase | None = None) -> int:
        """The number of legal moves, in the position of ``tensordict`` or the env's own."""
        return len(self._one_position(tensordict, "cardinality").legal)

    def all_actions(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """The legal actions, one per row."""
        legal = sorted(self._one_position(tensordict, "all_actions").legal)
        return TensorDict({"action": torch.tensor(legal, dtype=torch.int64)}, [len(legal)])

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Write a random legal move into ``tensordict``; the empty name if the game is over."""
        if tensordict is None:
            tensordict = TensorDict({}, [])
        if self.stateful:
            positions = [self._position]
        elif self._state_given(tensordict):
            positions = self._positions(tensordict)
        else:
            positions = [self._rules.Position.first()] * tensordict.batch_size.numel()
        return tensordict.set("action", torch.tensor([_draw(p) for p in positions]).reshape(tensordict.batch_size))

    def _set_seed(self, seed: int | None) -> None:
        """Do nothing: nothing here is random."""


def _rules(pixels: bool) -> Any:
    """The modules that need python-chess."""
    try:
        import chess  # noqa: F401
    except ImportError as error:
        raise BackendUnavailable(f"ChessEnv needs python-chess ({error}): pip install 'shoal[chess]'") from error
    from types import SimpleNamespace

    from shoal.faces.torchrl.native.chess import position

    if not pixels:
        return SimpleNamespace(Position=position.Position)
    from shoal.faces.torchrl.native.chess import pixels as pictures

    pictures.check_pixels()
    return SimpleNamespace(Position=position.Position, pixels_of=pictures.pixels_of, SIZE=pictures.SIZE)


def _draw(position: Position) -> int:
    legal = list(position.legal)
    return legal[int(torch.randint(len(legal), ()))] if legal else len(san_vocabulary()) - 1


def _turn_of(position: Position) -> torch.Tensor:
    return torch.tensor(position.is_white_to_move)


def _mask_of(position: Position) -> torch.Tensor:
    mask = torch.zeros(len(san_vocabulary()), dtype=torch.bool)
    if position.legal:
        mask[list(position.legal)] = True
    return mask


def _list_of(position: Position) -> torch.Tensor:
    legal = sorted(position.legal)
    return torch.tensor(legal + [len(san_vocabulary())] * (_MOST_MOVES - len(legal)))


def _shaped(rows: Sequence[torch.Tensor], size: torch.Size) -> torch.Tensor:
    return torch.stack(list(rows)).reshape(*size, *rows[0].shape) if size else rows[0]


def _texts_shaped(texts: Sequence[str], size: torch.Size) -> NonTensorData | NonTensorStack:
    if not size:
        return NonTensorData(texts[0])
    part = len(texts) // size[0]
    return NonTensorStack(*(_texts_shaped(texts[i * part : (i + 1) * part], size[1:]) for i in range(size[0])))


def _flat(entry: Any) -> list[str]:
    """The texts of all rows in order."""
    texts = entry.tolist() if hasattr(entry, "tolist") else entry
    if isinstance(texts, str):
        return [texts]
    nested: Iterable[list[str]] = (_flat(text) for text in texts)
    return list(chain.from_iterable(nested))
