"""How worker processes start, from wherever the user's code runs, and what they find when they have."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import random
import sys
import threading
from multiprocessing import spawn
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import shoal
from shoal import errors
from shoal.testing import CountingEnv

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

METHODS = ["fork!", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)]


def test_forkserver_is_the_default(make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(CountingEnv, 2, engine="process", num_workers=2)
    assert "2 processes, forkserver" in repr(pool)


def test_an_unknown_start_method_is_refused(make_pool: Callable[..., shoal.Pool]) -> None:
    with pytest.raises(errors.ArgumentError, match=r"start_method: expected one of .*forkserver.*, got 'thread'"):
        make_pool(CountingEnv, 2, engine="process", start_method="thread")


# ---------------------------------------------------------------------- a process that may have no children


@pytest.fixture
def daemonic(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process, as multiprocessing marks those that may have no children."""
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)


@pytest.mark.parametrize("options", [{"engine": "process"}, {"engine": "auto", "start_method": "spawn"}], ids=str)
def test_a_daemonic_process_has_no_workers_and_is_told_what_to_use(
    options: dict[str, Any], daemonic: None, make_pool: Callable[..., shoal.Pool]
) -> None:
    with pytest.raises(errors.ResourceError, match=r"daemonic.* Use engine='thread' or engine='serial'"):
        make_pool(CountingEnv, 2, **options)


@pytest.mark.parametrize(("num_workers", "engine"), [(None, "serial"), (2, "thread")])
def test_auto_does_without_workers_in_a_daemonic_process(
    num_workers: int | None, engine: str, daemonic: None, make_pool: Callable[..., shoal.Pool]
) -> None:
    stats = make_pool(CountingEnv, 2, engine="auto", num_workers=num_workers).stats()
    assert stats.engine == engine
    assert "this process is daemonic" in stats.engine_reason


# ---------------------------------------------------------------------- what others see meanwhile


@pytest.mark.parametrize("method", METHODS[1:])
def test_other_threads_have_their_script_while_a_worker_starts(
    method: str, make_pool: Callable[..., shoal.Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    script, prepare, starter = sys.modules["__main__"], spawn.get_preparation_data, threading.get_ident()
    seen: list[tuple[Any, dict[str, Any]]] = []

    def look() -> None:
        seen.append((sys.modules["__main__"], spawn.get_preparation_data("another's")))

    def prepare_and_look(name: str) -> dict[str, Any]:
        if threading.get_ident() == starter:
            other = threading.Thread(target=look)
            other.start()
            other.join()
        return prepare(name)

    monkeypatch.setattr(spawn, "get_preparation_data", prepare_and_look)
    make_pool(CountingEnv, 2, engine="process", num_workers=2, start_method=method)
    assert [main for main, _ in seen] == [script] * 2
    assert [data for _, data in seen] == [prepare("another's")] * 2


# ---------------------------------------------------------------------- what an env finds in its worker


def looking() -> type[CountingEnv]:
    """An env that tells about its process; local, so that workers need not import the tests."""

    class Looking(CountingEnv):
        def variables(self) -> dict[str, str]:
            return dict(os.environ)

        def cores(self) -> set[int]:
            return os.sched_getaffinity(0)

        def draws(self) -> tuple[float, float]:
            return random.random(), float(np.random.random())

        def torch_threads(self) -> int:
            import torch

            return torch.get_num_threads()

        def blas_threads(self) -> int | None:
            from shoal.doctor.trial import library_threads

            return (library_threads() or {}).get("openblas")

        def pid(self) -> int:
            return os.getpid()

    return Looking


@pytest.fixture(params=METHODS)
def make(request: pytest.FixtureRequest, make_pool: Callable[..., shoal.Pool]) -> Callable[..., shoal.Pool]:
    """A pool of three envs in three workers, for each start method."""
    options = {"engine": "process", "num_workers": 3, "start_method": request.param}
    return lambda **more: make_pool(looking(), 3, **{**options, **more})


def test_every_worker_draws_other_random_numbers(make: Callable[..., shoal.Pool]) -> None:
    draws = make().call("draws")
    assert len({draw for pair in draws for draw in pair}) == 6


def test_the_seed_of_a_pool_seeds_the_generators_of_its_workers(make: Callable[..., shoal.Pool]) -> None:
    first, again, other = (make(seed=seed).call("draws") for seed in (1, 1, 2))
    assert first == again
    assert set(first).isdisjoint(other)


def test_workers_have_the_environment_of_now(make: Callable[..., shoal.Pool], monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("one", "two"):  # the fork server is older than the second
        monkeypatch.setenv("SHOAL_TEST_VARIABLE", value)
        assert {told["SHOAL_TEST_VARIABLE"] for told in make().call("variables")} == {value}
    monkeypatch.delenv("SHOAL_TEST_VARIABLE")
    assert all("SHOAL_TEST_VARIABLE" not in told for told in make().call("variables"))


def test_numeric_libraries_in_workers_use_one_thread(
    make: Callable[..., shoal.Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    told = make().call("variables")
    assert {(env["OMP_NUM_THREADS"], env["MKL_NUM_THREADS"]) for env in told} == {("1", "1")}
    assert "OMP_NUM_THREADS" not in os.environ


@pytest.mark.parametrize("method", METHODS)
def test_a_thread_count_that_the_user_has_set_is_kept(
    method: str, make_pool: Callable[..., shoal.Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    pool = make_pool(looking(), 2, engine="process", num_workers=2, start_method=method)
    assert [env["OMP_NUM_THREADS"] for env in pool.call("variables")] == ["2", "2"]


@pytest.mark.skipif(importlib.util.find_spec("threadpoolctl") is None, reason="threadpoolctl is not installed")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="OpenBLAS uses no more threads than it has cores")
@pytest.mark.parametrize(
    ("variable", "threads"), [("OMP_NUM_THREADS", 2), ("OPENBLAS_NUM_THREADS", 2), ("MKL_NUM_THREADS", 1)]
)
def test_libraries_that_are_loaded_already_keep_what_the_user_has_set(
    variable: str, threads: int, make_pool: Callable[..., shoal.Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "2")
    pool = make_pool(looking(), 1, engine="process", num_workers=1, start_method="spawn")
    assert pool.call("blas_threads")[0] in (threads, None)


@pytest.mark.skipif(importlib.util.find_spec("threadpoolctl") is None, reason="threadpoolctl is not installed")
def test_libraries_that_are_loaded_already_use_one_thread(
    make: Callable[..., shoal.Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    assert set(make().call("blas_threads")) <= {1, None}


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.slow
def test_torch_in_workers_uses_one_thread(make: Callable[..., shoal.Pool]) -> None:
    assert make().call("torch_threads") == (1, 1, 1)


def test_workers_are_pinned_to_the_cores_given_in_turn(make: Callable[..., shoal.Pool]) -> None:
    cores = sorted(os.sched_getaffinity(0))
    given = [cores[-1], cores[0]]
    assert make(affinity=given).call("cores") == ({given[0]}, {given[1]}, {given[0]})
    assert os.sched_getaffinity(0) == set(cores)


def test_without_affinity_workers_may_use_every_core(make: Callable[..., shoal.Pool]) -> None:
    assert make().call("cores") == (os.sched_getaffinity(0),) * 3


def test_every_worker_is_a_process_of_its_own(make: Callable[..., shoal.Pool]) -> None:
    pool = make()
    assert list(pool.call("pid")) == pool.engine.pids
    assert len({os.getpid(), *pool.engine.pids}) == 4
