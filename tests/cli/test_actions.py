"""Random actions are in the space, follow the seed, and come from few samples; names become callables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium import spaces

from shoal.cli.actions import load_callable, load_policy
from shoal.collect.random_actions import RandomActions
from shoal.errors import ArgumentError, PolicyFailed
from shoal.spec import SpaceTree

if TYPE_CHECKING:
    from pathlib import Path

SPACES = [
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([2, 5]),
    spaces.MultiBinary(4),
    spaces.Box(-1.0, 1.0, (2, 3), np.float32),
    spaces.Box(-np.inf, np.inf, (2,), np.float64),
    spaces.Box(0, 255, (3,), np.uint8),
    spaces.Text(4),
    spaces.Dict(a=spaces.Discrete(2), b=spaces.Tuple((spaces.Box(0, 1, (1,)), spaces.Text(2)))),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("rows", [1, 7])
def test_random_actions_are_accepted_by_the_pool(space: spaces.Space[Any], rows: int) -> None:
    tree = SpaceTree(space, "action")
    actions = RandomActions(tree, seed=1)
    for _ in range(5):
        leaves = tree.fit_batch(actions(None, rows), rows)
        assert all(len(leaf) == rows for leaf in leaves)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_the_seed_decides(space: spaces.Space[Any]) -> None:
    def draw(seed: int) -> str:
        actions = RandomActions(SpaceTree(space, "action"), seed)
        return repr([actions(None, 4) for _ in range(3)])

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_every_action_turns_up_and_none_is_repeated_over_blocks() -> None:
    actions = RandomActions(SpaceTree(spaces.Discrete(3), "action"), seed=1)
    blocks = [np.concatenate([actions(None, 1 << 14) for _ in range(4)]) for _ in range(2)]
    counts = np.bincount(blocks[0])
    assert counts.min() > 0.3 * len(blocks[0])
    assert not (blocks[0] == blocks[1]).all()


def test_more_rows_than_a_block_holds() -> None:
    actions = RandomActions(SpaceTree(spaces.Box(-1, 1, (1 << 15,)), "action"), seed=1)
    assert actions(None, 5).shape == (5, 1 << 15)


def test_a_callable_in_the_current_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "policy_of_a_test.py").write_text("class A:\n    act = staticmethod(lambda obs: 1)\n")
    monkeypatch.chdir(tmp_path)
    assert load_callable("policy_of_a_test:A.act", "--policy")(None) == 1


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nothing", "expected module:callable"),
        (":act", "expected module:callable"),
        ("math:", "expected module:callable"),
        ("no_such_module:act", "'no_such_module' cannot be imported"),
        ("..math:sin", "not the name of a module"),
        ("math:no_such", "'math' has no 'no_such'"),
        ("math:pi", "cannot be called"),
    ],
)
def test_what_is_no_callable_is_explained(name: str, told: str) -> None:
    with pytest.raises(ArgumentError, match=rf"^--policy: .*{told}"):
        load_callable(name, "--policy")


@pytest.mark.parametrize(
    ("path", "module"),
    [("mine.py", "mine"), ("./mine", "mine"), ("a/mine.py", "a.mine"), ("/a/mine.py", "mine"), ("../mine", "mine")],
)
def test_a_path_in_place_of_a_module_is_told_so(
    path: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=f"ENV: '{path}' is a path; name the module as in an import: '{module}'$"):
        load_callable(f"{path}:act", "ENV")


def test_a_module_or_a_policy_that_exits_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "exiting_at_import.py").write_text("raise SystemExit(0)\n")
    (tmp_path / "exiting_later.py").write_text("def act(obs):\n    raise SystemExit(0)\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=r"fails when it is imported \(SystemExit: 0\)"):
        load_callable("exiting_at_import:act", "--policy")
    with pytest.raises(PolicyFailed, match="raised SystemExit: 0"):
        load_policy("exiting_later:act")(None)


def test_modules_are_found_after_the_current_directory_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert load_callable("math:sin", "--policy")(0.0) == 0.0
