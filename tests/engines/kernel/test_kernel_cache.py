"""Compiled code on disk: it is found again, never stale, and never in the way.

What a digest covers is tested on the digest itself, which costs nothing. What happens on disk is tested by programs
that run in processes of their own, with a cache folder of their own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import shoal
from shoal.adapters import describe
from shoal.adapters.kernel_env import PlainKernelEnv
from shoal.kernel import KernelEnv

numba = pytest.importorskip("numba")

from shoal.engines.kernel import shelf  # noqa: E402
from shoal.engines.kernel.loading import kind_digest  # noqa: E402
from shoal.engines.kernel.source import loop_source  # noqa: E402

# ---------------------------------------------------------------------- what a digest covers

HEAD = """
import ctypes, enum, math
from collections import namedtuple
import numpy as np
from gymnasium import spaces
from shoal.kernel import KernelEnv
"""
WALK = """
GAIN = 2.0
TABLE = np.arange(5.0)
TABLES = (np.zeros(5000), np.ones(3))
Point = namedtuple("Point", ("x", "y"), defaults=(1.0,))
START = Point(1.0, 2.0)

class Side(enum.IntEnum):
    LEFT = 0
    RIGHT = 1

def helper(x, scale=3.0):
    return inner(x) * scale + START.x + Point(0.0).y

def inner(x):
    return x + 1.0

class Walk(KernelEnv):
    observation_space = spaces.Dict([("near", spaces.Box(-9, 9, (1,))), ("far", spaces.Box(-9, 9, (1,)))])
    action_space = spaces.Discrete(2)
    state = {"x": np.float64}
    constants = {"speed": 1.0}

    def reset(env, rng, obs):
        env.x = 0.0
        obs.near[0] = obs.far[0] = 0.0

    def step(env, action, rng, obs):
        env.x += helper(GAIN) + TABLE[action] + TABLES[0][4] + physics.gravity
        obs.near[0] = env.x
        obs.far[0] = 0.5 if action == Side.RIGHT else 0.0
        return 1.0, env.x > 1e6
"""


def digest(text: str = WALK, gravity: float = 9.8, **constants: Any) -> str | None:
    """The digest of the env in ``text``, as a process would compute it that runs this text."""
    module = types.ModuleType("walk")
    module.physics = types.SimpleNamespace()  # type: ignore[attr-defined]
    exec(HEAD, vars(module))
    physics = types.ModuleType("physics")
    physics.gravity = gravity  # type: ignore[attr-defined]
    module.physics = physics  # type: ignore[attr-defined]
    exec(text, vars(module))
    kind = module.Walk(**constants)
    return kind_digest(kind, loop_source(describe(PlainKernelEnv(kind), "Walk")))


DIGESTS = """
from shoal.adapters import describe
from shoal.adapters.kernel_env import PlainKernelEnv
from shoal.engines.kernel.loading import kind_digest
from shoal.engines.kernel.source import loop_source
from shoal.envs import TASKS
from shoal.kernel import KernelEnv

for name, task in TASKS.items():
    if issubclass(task.load(), KernelEnv):
        kind = task.load()(**task.kwargs)
        print(name, kind_digest(kind, loop_source(describe(PlainKernelEnv(kind), name))))
"""


def test_every_process_has_the_same_digest_for_the_envs_that_ship() -> None:
    """Addresses and hashes differ from process to process; a digest with one in it would never be found again."""
    one, two = (
        subprocess.run(
            [sys.executable, "-c", DIGESTS],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout.splitlines()
        for seed in ("1", "2")
    )
    assert len(one) > 10
    assert one == two
    assert not any(line.endswith("None") for line in one), "everything in them can be named"


def test_the_same_text_has_the_same_digest() -> None:
    assert digest() == digest()
    assert digest(speed=5.0) == digest(), "a constant is a field, not code"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("GAIN = 2.0", "GAIN = 2.5"),
        ("GAIN = 2.0", "GAIN = 2"),
        ("np.arange(5.0)", "np.arange(5.0) + 1"),
        ("np.arange(5.0)", "np.arange(5)"),
        ("return x + 1.0", "return x + 1.5"),
        ("return x + 1.0", "return x - 1.0"),
        ("scale=3.0", "scale=4.0"),
        ('state = {"x": np.float64}', 'state = {"x": np.float32}'),
        ('state = {"x": np.float64}', 'state = {"x": np.float64, "y": np.int64}'),
        ("obs.near[0] = env.x", "obs.near[0] = -env.x"),
        ("env.x = 0.0\n", "env.x = 0.5\n"),
        ("(1,))", "(2,))"),
        ("Discrete(2)", "MultiBinary(2)"),
        ("np.zeros(5000)", "np.where(np.arange(5000) == 2500, 7.0, 0.0)"),
        ("    RIGHT = 1", "    RIGHT = 5"),
        ('("x", "y")', '("y", "x")'),
        ("defaults=(1.0,)", "defaults=(2.0,)"),
        ("def inner(x)", "import numba\n@numba.njit\ndef inner(x)"),
        (
            '[("near", spaces.Box(-9, 9, (1,))), ("far", spaces.Box(-9, 9, (1,)))]',
            '[("far", spaces.Box(-9, 9, (1,))), ("near", spaces.Box(-9, 9, (1,)))]',
        ),
    ],
    ids=[
        "a number that step uses",
        "its type",
        "an array that step uses",
        "the type of the array",
        "a number in a helper of a helper",
        "an operation in a helper of a helper",
        "a default of a helper",
        "the type of a field",
        "another field",
        "the code of step",
        "the code of reset",
        "the shape of an observation",
        "the space of actions",
        "one number in a large array in a tuple",
        "the value of an enum",
        "the order of a named tuple's fields",
        "a default of a named tuple",
        "a helper that numba compiles by itself",
        "the order of keys",
    ],
)
def test_every_change_that_changes_the_code_changes_the_digest(old: str, new: str) -> None:
    changed = WALK.replace(old, new)
    assert changed != WALK
    assert digest(changed) != digest()


@pytest.mark.parametrize(
    "inner",
    [
        "import numba\n@numba.vectorize\ndef inner(x): return x",
        "import numba\n@numba.experimental.jitclass([])\nclass inner:\n    def __init__(self, x): pass",
        "inner = ctypes.CDLL(None).abs",
        "inner = {}",
    ],
    ids=["a ufunc", "a class", "a function in C", "a dict"],
)
def test_code_that_uses_what_nothing_can_name_is_not_kept(inner: str) -> None:
    """An edit of such a thing would not show, so there must be nothing to be found again."""
    opaque = WALK.replace("def inner(x):\n    return x + 1.0", inner)
    assert opaque != WALK
    assert digest(opaque) is None


def test_a_global_with_the_name_of_a_field_does_not_count() -> None:
    assert digest("x = object()\n" + WALK) == digest()


def test_the_signature_of_a_compiled_helper_is_part_of_the_code() -> None:
    """Numba casts to it."""
    free, bound = numba.njit(_doubled), numba.njit("f4(f4)")(_doubled)
    assert kind_digest(lift(1.5, free)(), "") != kind_digest(lift(1.5, bound)(), "")


def test_a_number_that_is_read_from_a_module_is_part_of_the_code() -> None:
    """Numba freezes ``physics.gravity`` when it compiles."""
    assert digest(gravity=1.6) != digest()


def test_a_number_that_is_read_from_a_module_in_a_module_is_part_of_the_code() -> None:
    """``import world`` and ``world.physics.gravity``; nothing else leads to ``physics``."""
    head = "import types; world = types.ModuleType('world'); world.physics = physics; del physics"
    nested = head + WALK.replace("physics.gravity", "world.physics.gravity")
    assert digest(nested, gravity=1.6) != digest(nested)
    assert digest(nested) == digest(nested)


def test_a_number_that_is_read_from_a_module_in_a_closure_is_part_of_the_code() -> None:
    def weight(gravity: float) -> Any:
        physics: Any = types.ModuleType("physics")
        physics.gravity = gravity
        return lambda x: x * physics.gravity

    heavy, light, again = (kind_digest(lift(1.5, weight(g))(), "") for g in (9.8, 1.6, 9.8))
    assert heavy != light
    assert heavy == again


def test_a_number_in_a_closure_is_part_of_the_code() -> None:
    def walk(gain: float) -> Any:
        class Walk(KernelEnv):
            observation_space = spaces.Box(-9, 9, (1,))
            action_space = spaces.Discrete(2)
            state = {"x": np.float64}

            def reset(env: Any, rng: Any, obs: Any) -> None:
                obs[0] = 0.0

            def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
                obs[0] = gain
                return 1.0, False

        return Walk()

    digests = {kind_digest(kind, "") for kind in (walk(1.0), walk(2.0), walk(1.0))}
    assert len(digests) == 2


def test_how_a_helper_was_compiled_is_part_of_the_code() -> None:
    """Numba inlines what is compiled already, with the liberties that its author has given it."""
    helpers = (numba.njit(_doubled), numba.njit(fastmath=True)(_doubled), numba.njit(_doubled))
    exact, fast, again = (kind_digest(lift(1.5, helper)(), "") for helper in helpers)
    assert exact != fast
    assert exact == again


def test_checks_of_bounds_are_part_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """NUMBA_BOUNDSCHECK is how an author finds a write outside an array; the cache must not hide it."""
    before = digest()
    monkeypatch.setattr(numba.config, "BOUNDSCHECK", 1)
    checked = digest()
    assert checked != before
    monkeypatch.delitem(sys.modules, "numba")
    assert digest() == before, "the same whether numba is loaded or not"
    monkeypatch.setenv("NUMBA_BOUNDSCHECK", "1")
    assert digest() == checked


# ---------------------------------------------------------------------- what is on disk

PROGRAM = """
import logging, os, sys, time
logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="LOG %(message)s")
import numpy as np
import shoal
from gymnasium import spaces
from shoal.kernel import KernelEnv

GAIN = float(os.environ.get("GAIN", 2.0))

def helper(x):
    return x + GAIN

class Walk(KernelEnv):
    observation_space = spaces.Dict({"near": spaces.Box(-9, 9, (1,)), "far": spaces.Box(-9, 9, (1,))})
    action_space = spaces.Discrete(2)
    state = {"x": np.float64}

    def reset(env, rng, obs):
        env.x = 0.0
        obs.near[0] = obs.far[0] = 0.0

    def step(env, action, rng, obs):
        env.x = helper(env.x)
        obs.near[0] = env.x
        obs.far[0] = rng.random()
        return 1.0, env.x > 1e6

with shoal.make_pool(Walk, 2, engine="kernel") as pool:
    pool.reset(seed=1)
    batch = pool.step([0, 0])
print("ROWS", batch.obs["near"].ravel().tolist(), batch.obs["far"].ravel().tolist())
print("NUMBA" if "numba" in sys.modules else "LOADED")
"""


def run(folder: Path, **environment: str) -> dict[str, str]:
    """What the program prints, by first word, with this cache folder."""
    known = {**os.environ, "SHOAL_CACHE_DIR": str(folder), **environment}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False, env=known
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    return {
        word: "\n".join(line for line in lines if line.startswith(word)) for word in ("ROWS", "NUMBA", "LOADED", "LOG")
    }


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder in which a first process has kept its code, and what that process printed."""
    folder = tmp_path_factory.mktemp("kernels") / "first"
    return folder, run(folder)


@pytest.fixture
def folder(filled: tuple[Path, dict[str, str]], tmp_path: Path) -> Path:
    """A copy of that folder."""
    return Path(shutil.copytree(filled[0], tmp_path / "cache"))


@pytest.mark.slow
def test_a_second_process_runs_what_the_first_has_compiled_without_numba(filled: tuple[Path, dict[str, str]]) -> None:
    folder, first = filled
    kept = files(folder)
    second = run(folder)
    assert first["NUMBA"]
    assert second["LOADED"]
    assert first["ROWS"] == second["ROWS"]
    assert first["LOG"] == second["LOG"] == ""
    assert files(folder) == kept
    assert sorted(name.partition("_")[0] for name in kept) == ["Walk", "Walk", "numba", "seed", "take"]


@pytest.mark.slow
def test_a_changed_number_is_compiled_anew_and_the_old_code_stays(folder: Path) -> None:
    changed = run(folder, GAIN="5.0")
    assert changed["NUMBA"]
    assert changed["ROWS"].startswith("ROWS [5.0, 5.0]")
    assert sum(name.startswith("Walk_step_rows") for name in files(folder)) == 2
    assert run(folder)["LOADED"]


@pytest.mark.slow
@pytest.mark.parametrize("kept_bytes", [0, 20, 40, -1])
def test_a_damaged_file_costs_time_and_a_warning(
    kept_bytes: int, folder: Path, filled: tuple[Path, dict[str, str]]
) -> None:
    for path in folder.glob("Walk_step*.code"):
        path.write_bytes(path.read_bytes()[:kept_bytes])
    again = run(folder)
    assert again["ROWS"] == filled[1]["ROWS"]
    assert again["LOG"].count("LOG") == 1
    assert "compiling Walk_step_rows anew" in again["LOG"]
    mended = run(folder)
    assert mended["LOADED"]
    assert mended["LOG"] == ""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["below a file", "a file", "forbidden"])
def test_a_folder_that_cannot_be_used_is_replaced_by_one_that_can(where: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "forbidden").mkdir(mode=0o500)
    if where == "forbidden" and os.access(tmp_path / "forbidden", os.W_OK):
        pytest.skip("root may write everywhere")
    folder = tmp_path / {"below a file": "file/cache", "a file": "file", "forbidden": "forbidden"}[where]
    assert run(folder, TMPDIR=str(tmp_path))["ROWS"].startswith("ROWS [2.0, 2.0]")
    assert list(tmp_path.glob("shoal-kernels-*/Walk_step_rows_*.code"))


# ---------------------------------------------------------------------- one process, with folders that misbehave


class Small(KernelEnv):
    """As little to compile as there can be."""

    observation_space = spaces.Box(-9, 9, (1,))
    action_space = spaces.Discrete(2)
    state = {"x": np.float64}

    def reset(env: Any, rng: Any, obs: Any) -> None:
        obs[0] = 0.0

    def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
        obs[0] = shifted(action)
        return 1.0, False


def shifted(x: Any) -> Any:
    return _doubled(x) + 1


def _doubled(x: Any) -> Any:
    return x * 2


def stepped() -> list[float]:
    with shoal.make_pool(Small, 2, engine="kernel") as pool:
        pool.reset(seed=1)
        return pool.step([0, 1]).obs.ravel().tolist()  # type: ignore[no-any-return]


@pytest.mark.slow
def test_helpers_are_compiled_though_nothing_decorates_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path))
    assert stepped() == [1.0, 3.0]
    assert isinstance(shifted, types.FunctionType), "the author's own names are left alone"
    assert shifted.__globals__["_doubled"] is _doubled


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["create", "rename"])
def test_a_disk_that_is_full_costs_no_pool(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last byte may be taken at any time."""
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path))

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OSError(28, "not here")

    if broken == "rename":
        monkeypatch.setattr(os, "replace", refuse)
    else:
        monkeypatch.setattr(tempfile, "mkstemp", refuse)
    assert stepped() == [1.0, 3.0]
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.slow
def test_nothing_half_written_is_left_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path))
    stepped()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [name.partition("_")[0] for name in names] == ["Small", "Small", "numba", "seed", "take"]
    assert not [name for name in names if name.endswith(".tmp")]


def test_the_folder_is_made_with_all_folders_above_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "a" / "b"))
    assert shelf.cache_folder() == tmp_path / "a" / "b"
    monkeypatch.delenv("SHOAL_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    assert shelf.cache_folder() == tmp_path / "c" / "shoal" / "kernels"


def test_a_folder_of_somebody_else_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(shelf.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    with pytest.raises(shoal.errors.ShoalError, match="belongs to someone else; set SHOAL_CACHE_DIR"):
        shelf.cache_folder()


# ---------------------------------------------------------------------- kinds made by functions


def lift(by: float, through: Any = None) -> type[KernelEnv]:
    """A kind made in a function: it has a number in its closure, and perhaps a function."""

    class Lift(Small):
        def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
            obs[0] = by
            return 1.0, False

    class LiftThrough(Small):
        def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
            obs[0] = through(by)
            return 1.0, False

    return Lift if through is None else LiftThrough


def height(kind: type[KernelEnv]) -> float:
    with shoal.make_pool(kind, 1, engine="kernel") as pool:
        pool.reset(seed=1)
        return float(pool.step([0]).obs[0, 0])


@pytest.mark.slow
def test_a_kind_may_have_numbers_in_its_closure() -> None:
    assert (height(lift(1.5)), height(lift(2.5)), height(lift(1.5))) == (1.5, 2.5, 1.5)


@pytest.mark.slow
def test_a_kind_may_have_functions_in_its_closure() -> None:
    assert height(lift(1.5, _doubled)) == 3.0


@pytest.mark.slow
def test_a_kind_may_call_what_is_compiled_already() -> None:
    assert height(lift(1.5, numba.njit(_doubled))) == 3.0


@pytest.mark.slow
def test_two_kinds_of_one_name_do_not_mix() -> None:
    text = textwrap.dedent("""
        class Small(Base):
            def step(env, action, rng, obs):
                obs[0] = {}
                return 1.0, False
    """)
    found = []
    for number in (4.0, 5.0):
        names: dict[str, Any] = {"Base": Small}
        exec(text.format(number), names)
        found.append(height(names["Small"]))
    assert found == [4.0, 5.0]
