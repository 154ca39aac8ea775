"""Builds shoal's compiled part, if this machine can; without it, shoal runs the Python that it stands for."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "shoal._quick"
FOLDER = Path("src", "shoal")


class QuickBuildHook(BuildHookInterface[Any]):
    """Compiles ``csrc/`` into the package's folder, from where wheels and editable installs take it."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a wheel is put together."""
        if self.target_name != "wheel" or sys.platform != "linux" or os.environ.get("SHOAL_PURE_PYTHON"):
            return
        root = Path(self.root)
        try:
            library = _compile(root)
        except Exception as error:
            self.app.display_warning(f"shoal is installed without its compiled part, which makes it slower: {error}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["artifacts"].append(library.relative_to(root).as_posix())

    def clean(self, versions: list[str]) -> None:
        """Remove what was compiled."""
        for library in Path(self.root, FOLDER).glob("_quick.*.so"):
            library.unlink()


def _compile(root: Path) -> Path:
    import numpy
    from setuptools import Distribution, Extension

    extension = Extension(
        NAME,
        sources=[source.relative_to(root).as_posix() for source in sorted(root.glob("csrc/*.c"))],
        depends=["csrc/quick.h"],
        include_dirs=[numpy.get_include()],
        extra_compile_args=["-O3", "-std=gnu11", "-fno-math-errno"],
    )
    distribution = Distribution({"name": "shoal", "ext_modules": [extension]})
    command: Any = distribution.get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(FOLDER.parent), str(Path("build", "quick"))
    command.ensure_finalized()
    with contextlib.chdir(root):
        command.run()
    return root / command.get_outputs()[0]
