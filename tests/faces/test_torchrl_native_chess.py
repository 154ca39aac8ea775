"""ChessEnv: names and numbers of moves, games kept and games in data, texts, hashes and pictures."""

from __future__ import annotations

import hashlib
import io
import pickle
import random
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from shoal.faces.torchrl import ActionMask, ChessEnv, SerialEnv, check_env_specs
from shoal.faces.torchrl.native.chess import san_vocabulary

chess = pytest.importorskip("chess")
pgn = pytest.importorskip("chess.pgn")

from shoal.faces.torchrl.native.chess.legal import named_moves  # noqa: E402

MATE_IN_ONE = "7k/8/6K1/8/8/8/8/1Q6 w - - 0 1"
MATED = "7k/6Q1/6K1/8/8/8/8/8 b - - 0 1"
STALEMATE_IN_ONE = "7k/8/8/6K1/8/8/5Q2/8 w - - 0 1"
FOOLS_MATE = ("f3", "e5", "g4", "Qh4#")


def play(env: Any, *moves: str, td: Any = None) -> Any:
    """The last step of a game."""
    td = env.reset() if td is None else td
    for move in moves:
        td = env.step_mdp(td) if "next" in td.keys() else td  # noqa: SIM118 - a TensorDict is no dict
        td = env.step(td.set("action", torch.tensor(san_vocabulary().index(move))))
    return td


# -- moves ------------------------------------------------------------------------------------------------------------


def test_the_vocabulary_is_the_agreed_one() -> None:
    names = san_vocabulary()
    assert len(names) == 29275 == len(set(names))
    assert [names.index(name) for name in ("f3", "e5", "g4", "Qh4#", "")] == [31, 27, 38, 3037, 29274]
    text = "\n".join(names).encode()
    assert hashlib.sha256(text).hexdigest() == "518e6b3e01f48aee64ca5d16f0d21a557f014c2f8b3917aa74b7032c8606bfa8"


@given(st.integers(0, 2**32), st.integers(0, 70))
@settings(max_examples=40, deadline=None)
def test_moves_are_named_as_python_chess_does(seed: int, plies: int) -> None:
    rng = random.Random(seed)
    board = chess.Board()
    for _ in range(plies):
        moves = list(board.legal_moves)
        if not moves:
            break
        board.push(rng.choice(moves))
    assert named_moves(board) == {board.san(move): move for move in board.legal_moves}


@pytest.mark.parametrize(
    ("fen", "names"),
    [
        ("4k3/8/8/3pP3/8/8/8/4K2R w K d6 0 2", {"exd6", "O-O", "Rh8+"}),
        ("8/P6k/8/8/8/8/8/K7 w - - 0 1", {"a8=Q", "a8=N", "a8=R", "a8=B"}),
        ("7k/P7/8/8/8/8/8/K7 w - - 0 1", {"a8=Q+", "a8=R+", "a8=N"}),
        ("k7/8/1K6/8/8/8/8/7R w - - 0 1", {"Rh8#"}),
        ("6k1/8/8/2Q1Q3/8/2Q5/8/K7 w - - 0 1", {"Qc5d4", "Qed4", "Q3d4"}),
        ("4k3/8/8/8/8/8/4N3/4RK2 w - - 0 1", {"Nc3+", "Nd4+"}),
        ("3k4/8/8/2pP4/8/8/8/3QK3 w - c6 0 1", {"dxc6+", "d6"}),
        ("3k4/8/8/8/8/8/8/R3K3 w Q - 0 1", {"O-O-O+"}),
        ("8/8/8/K1Pp3r/8/8/8/7k w - d6 0 2", {"c6"}),
        ("7k/8/6K1/8/8/8/8/Q7 w - - 0 1", {"Kg5+"}),
    ],
)
def test_special_moves_have_their_names(fen: str, names: set[str]) -> None:
    board = chess.Board(fen)
    found = named_moves(board)
    assert found == {board.san(move): move for move in board.legal_moves}
    assert names <= set(found)


def test_a_crowded_position_fits() -> None:
    # The position with the most legal moves that is known.
    fen = "R6R/3Q4/1Q4Q1/4Q3/2Q4Q/Q4Q2/pp1Q4/kBNN1KB1 w - - 0 1"
    env = ChessEnv(include_fen=True, include_legal_moves=True)
    td = env.reset(TensorDict(fen=fen), set_state=True)
    assert env.cardinality() == td["action_mask"].sum() == 218
    assert td["legal_moves"].shape == (219,)
    assert td["legal_moves"][-1] == 29275
    assert env.observation_spec.is_in(td)


# -- games ------------------------------------------------------------------------------------------------------------


def test_a_mate_ends_the_game() -> None:
    env = ChessEnv(include_san=True, include_fen=True, include_pgn=True)
    td, masks, rewards = env.reset(), [], []
    assert td["turn"].item() is True
    assert td["san"] == "<start>"
    for move in FOOLS_MATE:
        masks.append(td["action_mask"].sum().item())
        td = play(env, move, td=td)
        rewards.append(td["next", "reward"].item())
        assert td["next", "san"] == move
        td = env.step_mdp(td)
    assert rewards == [0, 0, 0, 1]
    assert [*masks, td["action_mask"].sum().item()] == [20, 20, 19, 30, 0]
    assert td["done"].item()
    assert td["terminated"].item()
    assert env.get_legal_moves() == []


@pytest.mark.parametrize(
    ("fen", "move", "reward", "done"),
    [
        (MATE_IN_ONE, "Qb8#", 1.0, True),
        (STALEMATE_IN_ONE, "Kg6", 0.0, False),
        (STALEMATE_IN_ONE, "Qf7", 0.5, True),
        ("7k/8/8/8/8/8/p7/K7 w - - 0 1", "Kxa2", 0.5, True),
        ("7k/8/8/8/8/8/8/K5R1 w - - 98 80", "Kb2", 0.0, False),
        ("7k/8/8/8/8/8/8/K5R1 w - - 99 80", "Kb2", 0.5, True),
    ],
)
def test_ends_are_worth_what_they_are(fen: str, move: str, reward: float, done: bool) -> None:
    for options in ({}, {"stateful": False}):
        env = ChessEnv(include_fen=True, **options)
        following = play(env, move, td=env.reset(TensorDict(fen=fen), set_state=True))["next"]
        assert following["reward"].item() == reward
        assert following["done"].item() is done


@pytest.mark.parametrize("options", [{}, {"stateful": False, "include_pgn": True}])
def test_a_position_that_returns_five_times_ends_the_game(options: dict[str, Any]) -> None:
    env = ChessEnv(include_fen=True, **options)
    td = play(env, *("Nf3", "Nf6", "Ng1", "Ng8") * 4)
    assert td["next", "done"].item()
    assert td["next", "reward"] == 0.5


def test_a_name_may_say_less_or_more_than_it_should() -> None:
    assert ChessEnv.san_moves == ChessEnv().san_moves
    env = ChessEnv(include_san=True)
    following = play(env, "f3", "e5", "g4", "Qh4")["next"]  # which is mate
    assert (following["reward"].item(), following["done"].item(), following["san"]) == (1.0, True, "Qh4")
    assert play(ChessEnv(), "Ngf3")["next", "reward"].item() == 0.0
    assert play(ChessEnv(), "e4", "d5", "Bb5")["next", "done"].item() is False


def test_illegal_moves_are_refused() -> None:
    env = ChessEnv()
    with pytest.raises(chess.IllegalMoveError, match=r"'Qh4#'.*rnbqkbnr"):
        play(env, "Qh4#")
    with pytest.raises(ValueError, match="no move"):
        env.step(env.reset().set("action", torch.tensor(29999)))


def test_legal_moves_are_listed() -> None:
    env = ChessEnv(include_fen=True, include_legal_moves=True)
    td = env.reset()
    assert sorted(env.get_legal_moves()) == sorted(named_moves(chess.Board()))
    assert "e2e4" in env.get_legal_moves(uci=True)
    assert env.cardinality() == 20 == len(env.all_actions())
    assert torch.equal(env.all_actions()["action"], td["action_mask"].nonzero().flatten())
    assert torch.equal(td["legal_moves"][:20], env.all_actions()["action"])
    assert (td["legal_moves"][20:] == 29275).all()
    there = TensorDict(fen=MATE_IN_ONE)
    assert env.cardinality(there) == len(env.all_actions(there)) == len(env.get_legal_moves(there)) != 20
    stateless = ChessEnv(stateful=False, include_fen=True)
    assert stateless.cardinality(there) == env.cardinality(there)
    with pytest.raises(ValueError, match="stateful=False"):
        stateless.get_legal_moves()


@pytest.mark.parametrize("options", [{"mask_actions": False}, {"stateful": False, "include_fen": True}])
def test_random_games_are_legal(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    env = ChessEnv(include_san=True, **options)
    data = env.rollout(20)
    board = chess.Board()
    for name in data["next"]["san"]:
        board.push_san(name)
    assert data["turn"].tolist() == [place % 2 == 0 for place in range(len(data))]


# -- games in data ----------------------------------------------------------------------------------------------------


def test_batches_of_games_are_as_many_single_ones() -> None:
    env = ChessEnv(stateful=False, include_fen=True, include_san=True, include_legal_moves=True)
    fens = [chess.STARTING_FEN, MATE_IN_ONE, STALEMATE_IN_ONE, "7k/8/8/8/8/8/8/K5R1 w - - 99 80"]
    rows = torch.stack([TensorDict(fen=fen) for fen in fens]).reshape(2, 2)
    moves = torch.tensor([san_vocabulary().index(move) for move in ("e4", "Qb8#", "Qf7", "Kb2")]).reshape(2, 2)
    together = env.step(env.reset(rows, set_state=True).set("action", moves))["next"]
    assert together.batch_size == (2, 2)
    for row, fen in enumerate(fens):
        place = divmod(row, 2)
        alone = env.reset(TensorDict(fen=fen), set_state=True).set("action", moves[place])
        alone = env.step(alone)["next"]
        for key in ("turn", "action_mask", "legal_moves", "reward", "done"):
            assert torch.equal(together[place][key], alone[key]), key
        assert together[place]["fen"] == alone["fen"]
        assert together[place]["san"] == alone["san"]


def test_a_batch_begins_anew_game_by_game() -> None:
    env = ChessEnv(stateful=False, include_fen=True)
    rows = torch.stack([TensorDict(fen=fen) for fen in (chess.STARTING_FEN, MATE_IN_ONE)])
    td = env.reset(rows, set_state=True)
    td["action"] = torch.tensor([san_vocabulary().index(move) for move in ("e4", "Qb8#")])
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        _, root = env.step_and_maybe_reset(td)
    played, begun = list(root["fen"])
    assert played.startswith("rnbqkbnr/pppppppp/8/8/4P3")
    assert begun == chess.STARTING_FEN


def test_games_are_read_from_what_the_data_tells() -> None:
    env = ChessEnv(stateful=False, include_pgn=True, include_fen=True)
    game = "1. e4 e5 2. Nf3 *"
    td = env.reset(TensorDict(pgn=game), set_state=True)
    assert td["fen"] == "rnbqkbnr/pppp1ppp/8/4p3/4P3/5N2/PPPP1PPP/RNBQKB1R b KQkq - 1 2"
    following = play(env, "Nc6", td=td)["next"]
    assert following["pgn"].endswith("1. e4 e5 2. Nf3 Nc6 *")
    # Where the two do not fit together, the position counts.
    td = env.reset(TensorDict(pgn=game, fen=MATE_IN_ONE), set_state=True)
    assert td["fen"] == MATE_IN_ONE


@pytest.mark.parametrize("start", [None, MATE_IN_ONE, "rnbqkbnr/pppp1ppp/8/4p3/4P3/5N2/PPPP1PPP/RNBQKB1R b KQkq - 1 2"])
def test_games_are_written_as_python_chess_does(start: str | None) -> None:
    torch.manual_seed(1)
    env = ChessEnv(include_pgn=True, include_fen=True)
    td = env.reset() if start is None else env.reset(TensorDict(fen=start), set_state=True)
    board = chess.Board() if start is None else chess.Board(start)
    for _ in range(12):
        assert td["pgn"] == str(pgn.Game.from_board(board))
        assert pgn.read_game(io.StringIO(td["pgn"])).end().board().fen() == td["fen"] == board.fen()
        td = env.rand_step(td)
        board.push_san(san_vocabulary()[td["action"]])
        if td["next", "done"]:
            break
        td = env.step_mdp(td)


def test_a_state_is_set_when_asked_for() -> None:
    env = ChessEnv(include_fen=True)
    assert env.reset(TensorDict(fen=MATE_IN_ONE), set_state=True)["fen"] == MATE_IN_ONE
    assert env.reset(TensorDict(fen=MATE_IN_ONE), set_state=False)["fen"] == chess.STARTING_FEN
    with pytest.warns(FutureWarning, match="set_state"):
        assert env.reset(TensorDict(fen=MATE_IN_ONE))["fen"] == MATE_IN_ONE
    for fen, match in ((MATED, "over"), ("nonsense", "'nonsense'")):
        with pytest.raises(ValueError, match=match):
            env.reset(TensorDict(fen=fen), set_state=True)
    with pytest.raises(ValueError, match="no game"):
        ChessEnv(include_pgn=True).reset(TensorDict(pgn="1. e5 *"), set_state=True)
    with pytest.raises(RuntimeError, match="include_fen"):
        ChessEnv().reset(TensorDict(fen=MATE_IN_ONE), set_state=True)


def test_hashes_stand_for_texts() -> None:
    env = ChessEnv(stateful=False, include_fen=True, include_san=True, include_hash=True, include_hash_inv=True)
    td = env.step_mdp(env.rand_step(env.reset()))
    assert bytes(td["fen_hash"].tolist()) == hashlib.sha256(td["fen"].encode()).digest()
    assert bytes(td["san_hash"].tolist()) == hashlib.sha256(td["san"].encode()).digest()
    again = env.reset(TensorDict(fen_hash=td["fen_hash"]), set_state=True)
    assert again["fen"] == td["fen"]
    with pytest.raises(ValueError, match="fen_hash"):
        env.reset(TensorDict(fen_hash=torch.zeros(32, dtype=torch.uint8)), set_state=True)


def test_options_that_do_not_fit_are_refused() -> None:
    with pytest.raises(RuntimeError, match="include_fen or include_pgn"):
        ChessEnv(stateful=False)
    with pytest.raises(ValueError, match="include_hash"):
        ChessEnv(include_fen=True, include_hash_inv=True)


def test_hashes_of_no_text_are_none() -> None:
    for options in ({"include_hash": True}, {"include_hash": True, "include_hash_inv": True}):
        env = ChessEnv(**options)
        assert env.observation_keys == ChessEnv().observation_keys
        assert env.rollout(2).shape == (2,)


def test_the_board_can_be_seen_and_not_changed() -> None:
    for env in (ChessEnv(), ChessEnv(mask_actions=False)):
        play(env, "e4", "e5")
        assert env.board.fen() == chess.Board("rnbqkbnr/pppp1ppp/8/4p3/4P3/8/PPPP1PPP/RNBQKBNR w KQkq - 0 2").fen()
        assert [move.uci() for move in env.board.move_stack] == ["e2e4", "e7e5"]
        env.board.push_san("Nf3")
        assert env.board.turn is chess.WHITE
        assert "Nf3" in env.get_legal_moves()
    with pytest.raises(ValueError, match="in the data"):
        ChessEnv(stateful=False, include_fen=True).board  # noqa: B018


OPTIONS = [
    {},
    {"mask_actions": False},
    {"include_san": True, "include_fen": True, "include_pgn": True, "include_legal_moves": True, "include_hash": True},
    {"stateful": False, "include_fen": True, "include_hash": True, "include_hash_inv": True, "mask_actions": False},
    {"stateful": False, "include_pgn": True, "include_legal_moves": True},
    {"stateful": False, "include_pgn": True, "include_fen": True, "include_san": True, "include_hash": True},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_keeps_to_its_specs(options: dict[str, Any]) -> None:
    env = ChessEnv(**options)
    check_env_specs(env, break_when_any_done="both")
    if not options.get("stateful", True):
        check_env_specs(env, tensordict=TensorDict(batch_size=[2]))


def test_several_envs_side_by_side() -> None:
    env = SerialEnv(2, lambda: ChessEnv(include_fen=True)).append_transform(ActionMask())
    data = env.rollout(5, break_when_any_done=False)
    assert data["action_mask"].gather(-1, data["action"].unsqueeze(-1)).all()
    env.close()


def test_a_game_can_be_pickled() -> None:
    env = ChessEnv(include_fen=True)
    td = play(env, "e4", "e5")
    copy = pickle.loads(pickle.dumps(env))
    assert sorted(copy.get_legal_moves()) == sorted(env.get_legal_moves())
    assert play(copy, "Nf3", td=td)["next", "fen"] == play(env, "Nf3", td=td.exclude("next"))["next", "fen"]


@pytest.mark.slow
def test_pictures_show_the_board() -> None:
    try:
        import cairosvg  # noqa: F401
    except OSError as error:  # the library is there, and cairo, which belongs to the system, is not
        pytest.skip(str(error))
    from shoal.faces.torchrl.native.chess.pixels import rendered

    torch.manual_seed(0)
    env = ChessEnv(pixels=True, include_fen=True)
    check_env_specs(env)
    data = env.rollout(40)
    for step in (data[0], data[len(data) // 2], data[-1]["next"]):
        assert step["pixels"].shape == (3, 390, 390)
        assert torch.equal(step["pixels"], torch.from_numpy(rendered(chess.Board(step["fen"]))))
    assert not torch.equal(data[0]["pixels"], data[1]["pixels"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "options", "extra"), [("chess", "", "chess"), ("cairosvg", "pixels=True", "chess-pixels")]
)
def test_the_extra_is_named_where_a_library_is_missing(missing: str, options: str, extra: str) -> None:
    code = f"""
import sys
sys.modules[{missing!r}] = None
from shoal.faces.torchrl import ChessEnv
try:
    ChessEnv({options})
except ImportError as error:
    assert "shoal[{extra}]" in str(error), error
else:
    raise SystemExit("no error")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
