"""The table of ids: what is in it, and that reading it is cheap."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shoal.envs import TASKS
from shoal.errors import ArgumentError
from shoal.kernel import KernelEnv

IDS = [
    "CartPole-v0",
    "CartPole-v1",
    "Pendulum-v0",
    "Pendulum-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Acrobot-v1",
    "Catch-v0",
    "FrozenLake-v1",
    "FrozenLake8x8-v1",
    "Taxi-v3",
    "Taxi-v4",
    "NChain-v0",
    "CliffWalking-v0",
    "CliffWalking-v1",
    "CliffWalkingSlippery-v1",
    "Blackjack-v1",
]


def test_ids_in_order() -> None:
    assert list(TASKS) == IDS


@pytest.mark.parametrize("task", IDS)
def test_every_task_is_a_kind_that_can_be_compiled(task: str) -> None:
    kind = TASKS[task].load()(**TASKS[task].kwargs)
    assert isinstance(kind, KernelEnv)
    kind.check()


def test_reading_the_table_imports_no_env() -> None:
    script = "import sys, shoal.envs; print([name for name in sys.modules if name.startswith(('numba', 'gymnasium'))])"
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("task", "options", "complaint"),
    [
        ("FrozenLake-v1", {"map_name": "5x5"}, "map_name"),
        ("FrozenLake-v1", {"map_name": None}, "map_name"),
        ("FrozenLake-v1", {"desc": ["SF", "FFG"]}, "equal length"),
        ("FrozenLake-v1", {"desc": ["SX", "FG"]}, "letters"),
        ("FrozenLake-v1", {"desc": ["FF", "FG"]}, "no S"),
        ("FrozenLake-v1", {"reward_schedule": (1, 0)}, "reward_schedule"),
        ("Catch-v0", {"height": 1}, "height"),
        ("NChain-v0", {"n": 0}, "n:"),
        ("NChain-v0", {"slips": 0.1}, "no constant called slips"),
        ("Pendulum-v0", {"version": 2}, "version"),
    ],
)
def test_options_that_make_no_sense(task: str, options: dict[str, object], complaint: str) -> None:
    with pytest.raises(ArgumentError, match=complaint):
        TASKS[task].load()(**{**TASKS[task].kwargs, **options})
