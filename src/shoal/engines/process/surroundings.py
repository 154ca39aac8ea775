"""What a worker process has around its envs: environment, generators of its own, and libraries with one thread each."""

from __future__ import annotations

import contextlib
import os
import random
import sys
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# The variables that tell numeric libraries how many threads to use, and how threadpoolctl finds each library.
_THREAD_VARIABLES = {
    "OMP_NUM_THREADS": ("user_api", "openmp"),
    "OPENBLAS_NUM_THREADS": ("internal_api", "openblas"),
    "MKL_NUM_THREADS": ("internal_api", "mkl"),
    "NUMEXPR_NUM_THREADS": None,
}


def adopt_environment(environ: Mapping[str, str]) -> None:
    """Take over the variables that the pool's process has now; a fork server has those from when it was started."""
    for name in os.environ.keys() - environ.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in environ.items() if os.environ.get(name) != value})


def seed_generators(seeds: Sequence[int]) -> None:
    """Seed the global generators: forked workers have copies of the parent's, so their envs would draw the same."""
    random.seed(seeds[0])
    np.random.seed(seeds[1])


def seed_torch(seeds: Sequence[int]) -> None:
    """Do the same for torch, whose generator is also the same in every process that has just imported it."""
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(seeds[2])


def unset_thread_variables() -> tuple[str, ...]:
    """The variables that the user has left to us; OMP_NUM_THREADS speaks for all, as other libraries obey it too."""
    if "OMP_NUM_THREADS" in os.environ:
        return ()
    return tuple(name for name in _THREAD_VARIABLES if name not in os.environ)


@contextlib.contextmanager
def single_threaded_libraries(variables: tuple[str, ...]) -> Iterator[None]:
    """Tell numeric libraries that load meanwhile to use one thread: the envs are the parallelism."""
    os.environ.update(dict.fromkeys(variables, "1"))
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)


def limit_loaded_libraries(variables: tuple[str, ...]) -> None:
    """Limit to one thread the libraries that were loaded before the environment could set the limit."""
    if "torch" in sys.modules and {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}.issubset(variables):
        sys.modules["torch"].set_num_threads(1)
    with contextlib.suppress(ImportError):
        from threadpoolctl import ThreadpoolController

        for key, name in filter(None, (_THREAD_VARIABLES[variable] for variable in variables)):
            ThreadpoolController().select(**{key: name}).limit(limits=1)
