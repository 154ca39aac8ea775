"""T01 to T04: an env raises, in its step, reset, constructor or close, and the error says who, where and why.

T01 is an ordinary exception, T02 one that pickles but does not load again, T03 one that does not pickle, T04 an env
that wants to exit.
"""

from __future__ import annotations

import asyncio
import os
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
from fault_cases import (
    FAULTY,
    WAYS,
    assert_dated,
    assert_harmless,
    assert_neighbours_kept,
    assert_placed,
    assert_usable,
    close_in_time,
    envs_with,
    options_of,
    provoke,
    run_python,
    slow_unless,
    with_faulty,
)

from shoal import errors
from shoal.testing import CountingEnv, InjectedFault, TwoArgFault, UnpicklableFault

if TYPE_CHECKING:
    from collections.abc import Callable

    import shoal

# What the error says, the exception's class, and whether that can cross a process border.
KINDS = {
    "raise": ("InjectedFault: injected fault in {where}, call {at} of env 1", InjectedFault, True),
    "raise_two_args": ("TwoArgFault: injected fault 3: injected fault in {where}", TwoArgFault, False),
    "raise_unpicklable": ("UnpicklableFault: injected fault in {where}", UnpicklableFault, False),
    "sys_exit": ("SystemExit: 3", SystemExit, True),
    "keyboard_interrupt": ("KeyboardInterrupt: injected fault in {where}", KeyboardInterrupt, True),
}
IDS = dict(zip(KINDS, ("T01", "T02", "T03", "T04-exit", "T04-interrupt"), strict=True))
kinds = pytest.mark.parametrize("fault", [pytest.param(kind, id=IDS[kind]) for kind in KINDS])
every_kind_everywhere = pytest.mark.parametrize(
    ("fault", "way"),
    [
        pytest.param(fault, way, id=f"{IDS[fault]}-{way}", marks=[pytest.mark.slow] * (way == "thread"))
        for fault in KINDS
        for way in ("serial", "thread", "process")
        # In the caller's own thread a KeyboardInterrupt is the user's Ctrl-C and goes through.
        if (fault, way) != ("keyboard_interrupt", "serial")
    ],
)


def assert_told(error: errors.FaultError, fault: str, where: str, at: int, crossed: bool) -> None:
    """Type and text of the exception, its traceback from the env's side, and itself where it could come along."""
    text, kind, can_cross = KINDS[fault]
    text = text.format(where=where, at=at)
    assert text in str(error)
    assert error.remote_traceback.startswith("Traceback (most recent call last):")
    assert "testing/kinds.py" in error.remote_traceback
    assert text in error.remote_traceback
    assert f"In the env:\n{error.remote_traceback.rstrip()}" in error.__notes__
    if can_cross or not crossed:
        assert type(error.__cause__) is kind
    else:
        # The words above stand in for it: never a second error from the attempt to carry it over.
        assert error.__cause__ is None or isinstance(error.__cause__, errors.FaultError)


@pytest.mark.parametrize(("where", "at"), [("step", 2), ("reset", 2)])
@every_kind_everywhere
def test_t01_t04_an_exception_is_named_and_harms_nobody_else(
    fault: str, way: str, where: str, at: int, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(envs_with(fault, where, at), **options_of(way))
    error = provoke(pool, where, at)
    assert_placed(error, pool, where)
    assert_dated(error, at - 1 if where == "step" else 0)
    assert_told(error, fault, where, at, crossed=way == "process")
    assert_harmless(pool, where, at)


@pytest.mark.parametrize("way", WAYS)
def test_t01_the_start_method_makes_no_difference(way: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(envs_with("raise", "step", 2), **options_of(way))
    error = provoke(pool, "step", 2)
    assert_placed(error, pool, "step")
    assert_dated(error, 1)
    assert_told(error, "raise", "step", 2, crossed=True)
    assert_harmless(pool, "step", 2)


@every_kind_everywhere
def test_t01_t04_an_exception_in_a_constructor_is_named(
    fault: str, way: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    with pytest.raises(errors.EnvConstructError) as caught:
        make_pool(envs_with(fault, "init"), **options_of(way))
    error = caught.value
    assert (error.env_ids, error.where.phase) == ((FAULTY,), "construct")
    assert error.where.worker == {"serial": None, "thread": FAULTY, "process": 0}[way]
    assert "1 env(s) could not be built: env 1" in str(error)
    if way == "process":
        assert error.where.pid not in (None, os.getpid())
        assert f"pid {error.where.pid}" in str(error)
    else:
        assert error.where.pid == (None if way == "serial" else os.getpid())
    assert_told(error, fault, "init", 1, crossed=way == "process")


@every_kind_everywhere
def test_t01_t04_an_exception_in_close_stays_inside(
    fault: str,
    way: str,
    make_pool: Callable[..., shoal.Pool],
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool = make_pool(envs_with(fault, "close"), **options_of(way))
    pool.reset(seed=0)
    close_in_time(pool)
    close_in_time(pool)
    if way != "process":  # a worker's log is its own
        text, _, _ = KINDS[fault]
        assert "close failed in env 1" in caplog.text
        assert text.format(where="close", at=1) in caplog.text


@pytest.mark.slow
def test_t01_t04_exceptions_in_close_are_silent_and_do_not_change_the_exit_code() -> None:
    # A process of its own, since workers write to the stderr that the fork server was started with.
    script = dedent(f"""
        import shoal
        from functools import partial
        from shoal.testing import FaultEnv

        fns = [partial(FaultEnv, kind, where="close") for kind in {list(KINDS)!r}]
        pool = shoal.make_pool(fns, engine="process", num_workers=2)
        pool.reset(seed=0)
        pool.close()
        print("closed")
    """)
    result = run_python("-c", script)
    assert (result.stdout, result.stderr, result.returncode) == ("closed\n", "", 0)


@pytest.mark.parametrize("where", ["step", "reset"])
def test_t04_ctrl_c_inside_a_serial_env_is_the_users_own(where: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(envs_with("keyboard_interrupt", where, 2), engine="serial")
    pool.reset(seed=0)
    with pytest.raises(KeyboardInterrupt):
        _ = pool.reset(seed=0) if where == "reset" else [pool.step([0] * 4) for _ in range(2)]
    assert_usable(pool)


# ---------------------------------------------------------------------- stranger exceptions


def raising(make: Callable[[], BaseException]) -> type[CountingEnv]:
    """An env whose second step raises what ``make`` makes."""

    class Raising(CountingEnv):
        def step(self, action: Any) -> Any:
            if self._step == 1:
                raise make()
            return super().step(action)

    return Raising


def local(name: str, **members: Any) -> type[Exception]:
    return type(name, (Exception,), members)


def loads_as_text() -> BaseException:
    return local("LoadsAsText", __reduce__=lambda self: (str, ("no exception",)))("it turns into a string")


def has_no_text() -> BaseException:
    return local("HasNoText", __str__=lambda self: 1 / 0)()


def exits_when_pickled() -> BaseException:
    def leave(self: Any) -> Any:
        raise SystemExit(5)

    return local("ExitsWhenPickled", __reduce__=leave)("do not touch")


def exits_when_loaded() -> BaseException:
    return local("ExitsWhenLoaded", __reduce__=lambda self: (exec, ("raise SystemExit(5)",)))("do not touch")


def chained() -> BaseException:
    error = ValueError("the outer one")
    error.__cause__ = KeyError("the inner one")
    error.add_note("and a note")
    return error


STRANGE: dict[str, tuple[Callable[[], BaseException], str]] = {
    "loads as no exception": (loads_as_text, "LoadsAsText: it turns into a string"),
    "text cannot be had": (has_no_text, "HasNoText"),
    "exits when pickled": (exits_when_pickled, "ExitsWhenPickled: do not touch"),
    "exits when loaded": (exits_when_loaded, "ExitsWhenLoaded: do not touch"),
    "end of iteration": (lambda: StopIteration(7), "StopIteration: 7"),
    "end of a generator": (GeneratorExit, "GeneratorExit"),
    "cancelled": (asyncio.CancelledError, "CancelledError"),
    "group": (lambda: ExceptionGroup("both", [ValueError("a"), KeyError("b")]), "ExceptionGroup: both"),
    "closed pool": (lambda: errors.ClosedPool("a pool inside the env"), "ClosedPool: a pool inside the env"),
    "action error": (lambda: errors.ActionError("inside the env"), "ActionError: inside the env"),
    "worker died": (
        lambda: errors.WorkerDied("inside the env", errors.Where((7,), "step", 3, 99)),
        "WorkerDied: inside the env",
    ),
    "broken pipe": (lambda: BrokenPipeError(32, "the env's own pipe"), "BrokenPipeError: [Errno 32] the env's own"),
    "end of file": (EOFError, "EOFError"),
    "timeout": (lambda: TimeoutError("the env's own"), "TimeoutError: the env's own"),
    "large": (lambda: ValueError("x" * 2**22), "ValueError: xxx"),
}


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("way", slow_unless(lambda way: way == "serial", ["serial", "process"]))
def test_t02_t03_whatever_an_env_raises_is_its_own_fault(
    way: str, strange: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    make, text = STRANGE[strange]
    pool = make_pool(with_faulty(raising(make)), **options_of(way))
    error = provoke(pool, "step", 2)
    assert_placed(error, pool, "step")
    assert_dated(error, 1)
    assert text in str(error)
    assert "in step" in error.remote_traceback
    assert_neighbours_kept(pool, "step", 2)
    assert_usable(pool)


@pytest.mark.parametrize("way", ["thread", "process"])
def test_t01_the_traceback_shows_the_whole_chain(way: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(with_faulty(raising(chained)), **options_of(way))
    error = provoke(pool, "step", 2)
    inner, outer = (
        error.remote_traceback.find(text) for text in ("KeyError: 'the inner one'", "ValueError: the outer")
    )
    assert 0 <= inner < outer
    assert "and a note" in error.remote_traceback
    assert (type(error.__cause__), error.__cause__.args) == (ValueError, ("the outer one",))


@pytest.mark.parametrize("way", ["serial", "thread", "process"])
def test_t01_every_env_that_cannot_be_built_is_told(way: str, make_pool: Callable[..., shoal.Pool]) -> None:
    fns = envs_with("raise", "init")
    fns[3] = fns[FAULTY]
    with pytest.raises(errors.EnvConstructError) as caught:
        make_pool(fns, **options_of(way))
    assert caught.value.env_ids == (1, 3)
    told = str(caught.value)
    # What several of one worker say alike is told once.
    is_twice = way != "serial"
    assert all(f"env {i}," in told for i in (1, 3)) if is_twice else "envs 1, 3: " in told
    assert told.count("InjectedFault: injected fault in init") == 1 + is_twice
