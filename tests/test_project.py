"""What pyproject.toml names is there, and a source distribution has what its tests read."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tools() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]


def test_every_place_with_lint_rules_of_its_own_is_there(tools: Any) -> None:
    places = tools["ruff"]["lint"]["per-file-ignores"]
    assert [place for place in places if not any(ROOT.glob(place))] == []


def test_a_source_distribution_has_what_its_tests_read(tools: Any) -> None:
    included = set(tools["hatch"]["build"]["targets"]["sdist"]["include"])
    assert [name for name in included if not (ROOT / name.removeprefix("/")).exists()] == []
    assert included >= {"/src", "/tests", "/examples", "/docs", "/benchmarks"}
