"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import shoal
from shoal.errors import BackendUnavailable

ROOT = Path(shoal.__file__).parent
# What examples need beyond what their modules import.
NEEDED = {
    "shoal.envs.atari.env": "ale_py",
    "shoal.envs.dm_control.env": "dm_control",
    "shoal.envs.minigrid.env": "minigrid",
}


def modules_with_examples() -> list[str]:
    files = [path for path in sorted(ROOT.rglob("*.py")) if ">>> " in path.read_text("utf-8")]
    parts = [path.relative_to(ROOT.parent).with_suffix("").parts for path in files]
    return [".".join(names[:-1] if names[-1] == "__init__" else names) for names in parts]


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_show_what_happens(name: str) -> None:
    if name in NEEDED:
        pytest.importorskip(NEEDED[name])
    try:
        module = importlib.import_module(name)
    except (ImportError, BackendUnavailable) as error:
        pytest.skip(str(error))
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted
    assert not result.failed


def test_every_public_name_has_an_example() -> None:
    missing = [
        name
        for name in shoal.__all__
        if name != "__version__" and ">>> " not in (getattr(getattr(shoal, name), "__doc__", None) or "")
    ]
    assert missing == []
