"""The plan of the house: who may import whom, where pickle may be, how large things may grow."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import shoal

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(shoal.__file__).parent

# Low to high: a module may import from its own layer and the ones before it.
LAYERS: list[set[str]] = [
    {"cgroups", "errors", "files", "machine", "quick", "streams", "trigonometry"},
    {"arguments", "faults"},
    {"spec", "seeding"},
    {"arrays", "batch", "kernel", "native"},
    {"slot", "adapters", "keeping"},
    {"stats", "trace"},
    {"engines", "envs"},
    {"nan_watch", "readiness", "recipes", "recording", "recovery", "registry", "snapshot", "traffic"},
    {"asking", "black_box", "dispatch", "fault_desk", "fault_rows", "gate", "pool", "reading", "receiving", "sending"},
    {"build", "contract", "replaying"},
    {"collect"},
    {"faces"},
    {"doors", "doctor", "minigrid"},
    {"testing", "cli", "__main__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60
# What may be longer than that, up to which length, and why.
LARGE_FUNCTIONS: dict[str, int] = {
    "shoal.doors.make_vec": 90,  # two thirds of it document the arguments
    "shoal.build.make_pool": 98,  # one line per argument, twice
}
PICKLING_MODULES = {"shoal.engines.process.shipping"}
PICKLERS = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
HEAVY_LIBRARIES = ("torch", "ray", "gymnasium", "numpy", "multiprocessing")


@dataclass(frozen=True)
class Module:
    """One source file."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def room(self) -> str:
        """The part of the house it is in: the first name below ``shoal``."""
        return room_of(self.name)

    @property
    def lines(self) -> int:
        return len(self.path.read_text().splitlines())

    @property
    def functions(self) -> dict[str, int]:
        """Lines of every function, methods and nested ones included."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        found = [node for node in ast.walk(self.tree) if isinstance(node, kinds)]
        return {f"{self.name}.{node.name}": (node.end_lineno or 0) - node.lineno + 1 for node in found}

    def imports(self) -> Iterator[str]:
        """Full names of all modules it imports, wherever in the file and for whatever reason."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                stem = self._absolute(node)
                # What is imported from a package may be one of its modules.
                names = [f"{stem}.{alias.name}" for alias in node.names]
                yield from (name if is_module(name) else stem for name in names)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self.name.split(".") + ["x"] * (self.path.name == "__init__.py")
        return ".".join(package[: -node.level] + ([node.module] if node.module else []))


def is_module(name: str) -> bool:
    place = ROOT.parent.joinpath(*name.split("."))
    return name.startswith("shoal") and (place.with_suffix(".py").exists() or (place / "__init__.py").exists())


@cache
def modules() -> tuple[Module, ...]:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Module(name, path, ast.parse(path.read_text())))
    return tuple(found)


def room_of(name: str) -> str:
    return [*name.split("."), "__init__"][1]


def own_imports() -> list[tuple[Module, str]]:
    return [(module, name) for module in modules() for name in module.imports() if name.split(".")[0] == "shoal"]


def test_the_walk_sees_the_house() -> None:
    names = {module.name for module in modules()}
    assert {"shoal", "shoal.pool", "shoal.engines.process", "shoal.engines.process.wire"} <= names
    arrows = {(module.name, name) for module, name in own_imports()}
    assert ("shoal.dispatch", "shoal.traffic") in arrows
    assert ("shoal.engines.process.notes", "shoal.engines.process.codec") in arrows  # from a package import a module


def test_every_module_has_its_layer() -> None:
    assert {module.room for module in modules()} - RANK.keys() - {"__init__"} == set()


def test_no_import_points_up() -> None:
    up = [
        f"{module.name} -> {name}"
        for module, name in own_imports()
        if module.room in RANK and RANK.get(room_of(name), -1) > RANK[module.room]
    ]
    assert up == []


def test_faces_do_not_import_each_other() -> None:
    crossing = [
        f"{module.name} -> {name}"
        for module, name in own_imports()
        if module.room == room_of(name) == "faces"
        and module.name.split(".")[2:3] not in ([], name.split(".")[2:3])
        and name.split(".")[2:3]
    ]
    assert crossing == []


def test_nothing_inside_imports_the_front_page() -> None:
    """``shoal`` itself loads its names lazily: a module inside that imports from it would go in circles."""
    circles = [module.name for module, name in own_imports() if name == "shoal" and module.room not in LAYERS[-1]]
    assert circles == []


def test_every_library_that_mypy_skips_is_imported_somewhere() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    skipping = [rule["module"] for rule in project["tool"]["mypy"]["overrides"] if "follow_imports" in rule]
    imported = {name.split(".")[0] for module in modules() for name in module.imports()}
    assert [name for names in skipping for name in names if name.removesuffix(".*") not in imported] == []


def test_pickle_is_touched_in_one_place_only() -> None:
    touching = {module.name for module in modules() for name in module.imports() if name.split(".")[0] in PICKLERS}
    assert touching == PICKLING_MODULES


def test_modules_stay_small() -> None:
    large = {m.name: m.lines for m in modules() if m.lines > MAX_MODULE_LINES}
    assert large == {}


def test_functions_stay_small() -> None:
    sizes = {name: lines for module in modules() for name, lines in module.functions.items()}
    large = {name: n for name, n in sizes.items() if n > LARGE_FUNCTIONS.get(name, MAX_FUNCTION_LINES)}
    assert large == {}


def test_exceptions_are_still_needed() -> None:
    functions = {name: n for module in modules() for name, n in module.functions.items()}
    assert [name for name in LARGE_FUNCTIONS if functions.get(name, 0) <= MAX_FUNCTION_LINES] == []


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import shoal", HEAVY_LIBRARIES),
        ("import shoal.errors", HEAVY_LIBRARIES),
        ("import shoal; shoal.make_pool", ("torch", "ray", "shoal.engines.process", "shoal.faces")),
    ],
    ids=["shoal", "errors", "make_pool"],
)
def test_importing_loads_no_more_than_is_needed(statement: str, absent: tuple[str, ...]) -> None:
    script = f"import sys; {statement}; print(*[name for name in {absent!r} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == []
