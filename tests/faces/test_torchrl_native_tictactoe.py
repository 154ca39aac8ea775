"""TicTacToeEnv: every game against rules written another way."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from shoal.faces.torchrl import TicTacToeEnv, check_env_specs


def winner(cells: list[str]) -> str | None:
    """Whose line there is on a board written as nine letters."""
    rows = ["".join(cells[i : i + 3]) for i in (0, 3, 6)]
    columns = ["".join(column) for column in zip(*rows, strict=True)]
    diagonals = [cells[0] + cells[4] + cells[8], cells[2] + cells[4] + cells[6]]
    return next((line[0] for line in rows + columns + diagonals if line in ("AAA", "BBB")), None)


@given(st.permutations(range(9)))
@settings(max_examples=60, deadline=None)
def test_games_are_played_by_the_rules(moves: list[int]) -> None:
    env = TicTacToeEnv()
    td = env.reset()
    cells = ["."] * 9
    for turn, move in enumerate(moves):
        me, other = ("A", "B") if turn % 2 == 0 else ("B", "A")
        cells[move] = me
        following = env.step(td.set("action", torch.tensor(move)))["next"]
        seen = {".": -1, other: 1, me: 0}
        assert following["board"].flatten().tolist() == [seen[cell] for cell in cells]
        assert following["mask"].tolist() == [cell == "." for cell in cells]
        assert following["turn"].item() == 1 - turn % 2
        won = winner(cells)
        assert following["player0", "reward"].item() == (won == "A")
        assert following["player1", "reward"].item() == (won == "B")
        over = won is not None or "." not in cells
        assert following["done"].item() == following["terminated"].item() == over
        assert not following["truncated"].any()
        if over:
            break
        td = env.step_mdp(td)


@pytest.mark.parametrize("single_player", [False, True])
@pytest.mark.parametrize("size", [(), (4,), (2, 3)])
def test_keeps_to_its_specs_in_any_batch(single_player: bool, size: tuple[int, ...]) -> None:
    env = TicTacToeEnv(single_player=single_player)
    check_env_specs(env, tensordict=TensorDict(batch_size=size), break_when_any_done="both")
    data = env.rollout(20, tensordict=TensorDict(batch_size=size), break_when_all_done=True)
    assert data["next", "done"][..., -1, :].all()
    assert data.batch_size[-1] <= (5 if single_player else 9)


def test_random_play_keeps_to_free_cells() -> None:
    env = TicTacToeEnv()
    data = env.rollout(40, tensordict=TensorDict(batch_size=[16]), break_when_any_done=False)
    assert data["mask"].gather(-1, data["action"].unsqueeze(-1)).all()
    assert data["action"].unique().numel() == 9


def test_the_opponent_answers_only_where_the_game_goes_on() -> None:
    env = TicTacToeEnv(single_player=True)
    env.set_seed(0)
    td = env.reset(TensorDict(batch_size=[2]))
    # In the first game the next move wins, in the second it does not.
    td["board"][:, 0] = torch.tensor([[1, 1, -1], [1, -1, -1]], dtype=torch.int32)
    following = env.step(td.set("action", torch.tensor([2, 1])))["next"]
    assert following["done"].flatten().tolist() == [True, False]
    assert following["player0", "reward"].flatten().tolist() == [1.0, 0.0]
    assert following["turn"].flatten().tolist() == [1, 0]
    assert following["mask"].sum(-1).tolist() == [6, 6]


def test_a_seed_makes_the_answers() -> None:
    def boards(seed: int) -> torch.Tensor:
        env = TicTacToeEnv(single_player=True)
        env.set_seed(seed)
        td = env.reset(TensorDict(batch_size=[20]))
        return env.step(td.set("action", torch.full((20,), 4)))["next", "board"]

    assert torch.equal(boards(1), boards(1))
    assert not torch.equal(boards(1), boards(2))


def test_without_a_mask_any_cell_is_drawn() -> None:
    env = TicTacToeEnv()
    assert 0 <= env.rand_action()["action"] < 9
    full = TensorDict({"mask": torch.zeros(3, 9, dtype=torch.bool)}, [3])
    assert env.rand_action(full)["action"].shape == (3,)
