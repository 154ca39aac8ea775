"""Where the envs of a pool can run, as options of ``make_pool``."""

from __future__ import annotations

from typing import Any

PLACES: dict[str, dict[str, Any]] = {
    "serial": {"engine": "serial"},
    "thread": {"engine": "thread"},
    "process": {"engine": "process", "num_workers": 2},
    "inline": {"engine": "process", "num_workers": 2, "inline": True},
}
