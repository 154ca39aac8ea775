"""What an env may do wrong in the serial, thread and process engines: every fault is named, and harms nobody else."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shoal import errors
from shoal.testing import FAULT_FAMILIES, CountingEnv, Fault, FaultEnv, InjectedFault, fault_places, read_row

if TYPE_CHECKING:
    from collections.abc import Callable

    import shoal

FAULTY = 1
NEIGHBOURS = [0, 2, 3]
NEVER = 10**9
ZEROS = [0] * 4
CLOSE_LIMIT_S = 5.0
ERROR_OF = {"reset": errors.EnvResetError, "step": errors.EnvStepError}

# What the message says beside env and phase.
COMPLAINTS = {
    "bad_shape": r"observation.*: expected shape \(8,\), got \(9,\)",
    "scalar_obs": r"observation.*: expected shape \(8,\), got \(\)",
    "none_obs": r"observation.*: expected shape \(8,\), got \(\) \(NoneType None\)",
    "bad_dtype": "observation.*: expected dtype float64, got object",
    "complex_obs": "observation.*: expected dtype float64, got complex128",
    "str_obs": "observation.*: expected dtype float64, got <U",
    "overflow": "observation.*: a value of dtype float64 overflows float32",
    "missing_key": r"observation.*: keys do not match: missing \['row'\]",
    "extra_key": r"observation.*: keys do not match: extra \['extra'\]",
    "bad_nesting": r"observation\['row'\]: expected shape",
    "reward_none": "reward: expected a number, got NoneType",
    "reward_str": "reward: expected a number, got str",
    "reward_nan": "reward: expected a finite number, got nan",
    "reward_inf": "reward: expected a finite number, got inf",
    "reward_array": "reward: expected a number, got ndarray",
    "flag_int": "terminated: expected a bool, got int",
    "flag_none": "terminated: expected a bool, got NoneType",
    "four_tuple": "old Gym API",
    "info_none": "info",
}
RAISED = {
    "raise": ("InjectedFault: injected fault in {where}", InjectedFault),
    "raise_two_args": ("TwoArgFault: injected fault 3: injected fault in {where}", None),
    "raise_unpicklable": ("UnpicklableFault: injected fault in {where}", None),
    "sys_exit": ("SystemExit: 3", SystemExit),
    "keyboard_interrupt": ("KeyboardInterrupt", KeyboardInterrupt),
}


def envs_with(fault: str, where: str, at: int = 1, **settings: Any) -> list[Any]:
    """Four envs of the same spaces; only env 1 is faulty."""
    settings = {"episode_length": 50, **settings}
    if where in ("init", "close"):
        fns = [partial(CountingEnv, tag=i, **settings) for i in range(4)]
    else:
        fns = [partial(FaultEnv, fault, where=where, at=NEVER, tag=i, **settings) for i in range(4)]
    fns[FAULTY] = partial(FaultEnv, fault, where=where, at=at, tag=FAULTY, **settings)
    return fns


def options_of(engine: str) -> dict[str, Any]:
    return {"engine": engine, "num_workers": 2 if engine == "process" else None}


def provoke(pool: shoal.Pool, where: str) -> errors.FaultError:
    """The error that the first reset, or the first step after it, raises."""
    if where == "step":
        pool.reset(seed=0)
    call = partial(pool.reset, seed=0) if where == "reset" else partial(pool.step, ZEROS)
    with pytest.raises(ERROR_OF[where]) as caught:
        call()
    return caught.value


def rows_of(batch: shoal.Batch) -> list[Any]:
    return [read_row(obs) for obs in (batch.obs["row"] if isinstance(batch.obs, dict) else batch.obs)]


def assert_harmless(pool: shoal.Pool, where: str) -> None:
    """Neighbours answer, the env itself works after a reset, and the pool closes in time."""
    batch = pool.recv(timeout=10)
    assert batch.env_id.tolist() == NEIGHBOURS
    assert [(row.tag, row.step) for row in rows_of(batch)] == [(i, int(where == "step")) for i in NEIGHBOURS]
    assert [row.tag for row in rows_of(pool.reset())] == [0, 1, 2, 3]
    assert [row.step for row in rows_of(pool.step(ZEROS))] == [1] * 4
    start = monotonic()
    pool.close()
    assert monotonic() - start < CLOSE_LIMIT_S


@pytest.mark.parametrize("where", ["reset", "step"])
@pytest.mark.parametrize("fault", RAISED)
def test_an_exception_is_named_and_harms_nobody_else(
    fault: str, where: str, engine: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    if (fault, engine) == ("keyboard_interrupt", "serial"):
        pytest.skip("in the caller's own thread it is the user's Ctrl-C")
    pool = make_pool(envs_with(fault, where), **options_of(engine))
    error = provoke(pool, where)
    text, cause = RAISED[fault]
    assert (error.env_ids, error.where.phase) == ((FAULTY,), where)
    assert f"{where} failed in env 1" in str(error)
    assert text.format(where=where) in str(error)
    assert "Traceback" in error.remote_traceback
    assert "kinds.py" in error.remote_traceback
    if cause is not None:
        assert type(error.__cause__) is cause
    assert_harmless(pool, where)


@pytest.mark.parametrize("fault", RAISED)
def test_an_exception_in_a_constructor_is_named(fault: str, engine: str, make_pool: Callable[..., shoal.Pool]) -> None:
    if (fault, engine) == ("keyboard_interrupt", "serial"):
        pytest.skip("in the caller's own thread it is the user's Ctrl-C")
    with pytest.raises(errors.EnvConstructError) as caught:
        make_pool(envs_with(fault, "init"), **options_of(engine))
    text, cause = RAISED[fault]
    assert caught.value.env_ids == (FAULTY,)
    assert "env 1" in str(caught.value)
    assert text.format(where="init") in str(caught.value)
    assert "kinds.py" in caught.value.remote_traceback
    if cause is not None:
        assert type(caught.value.__cause__) is cause


@pytest.mark.parametrize("fault", RAISED)
def test_an_exception_in_close_stays_inside(
    fault: str,
    engine: str,
    make_pool: Callable[..., shoal.Pool],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    pool = make_pool(envs_with(fault, "close"), **options_of(engine))
    pool.reset(seed=0)
    start = monotonic()
    pool.close()
    assert monotonic() - start < CLOSE_LIMIT_S
    if engine != "process":  # a worker's log is its own
        assert "close failed in env 1" in caplog.text
    assert capfd.readouterr().err == ""


def test_ctrl_c_inside_a_serial_env_is_the_users_own(make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(envs_with("keyboard_interrupt", "step"), engine="serial")
    pool.reset(seed=0)
    with pytest.raises(KeyboardInterrupt):
        pool.step(ZEROS)


@pytest.mark.parametrize(
    ("fault", "where"), [(fault, where) for fault in COMPLAINTS for where in fault_places(fault)], ids=str
)
def test_a_broken_contract_is_named_by_env_and_field(
    fault: str, where: str, engine: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(envs_with(fault, where), **options_of(engine))
    error = provoke(pool, where)
    assert (error.env_ids, error.where.phase) == ((FAULTY,), where)
    assert isinstance(error.__cause__, errors.SpecError)
    assert f"{where} failed in env 1" in str(error)
    with pytest.raises(errors.SpecError, match=COMPLAINTS[fault]):
        raise error.__cause__
    assert_harmless(pool, where)


def test_every_spoilt_result_is_accounted_for() -> None:
    spoils = {kind for family in ("obs", "dict_obs", "reward", "flags", "info") for kind in FAULT_FAMILIES[family]}
    allowed = {Fault.LIST_OBS, Fault.NAN_OBS}
    info = {Fault.INFO_UNPICKLABLE, Fault.INFO_LAMBDA, Fault.INFO_BIG}
    assert spoils == {Fault(name) for name in COMPLAINTS} | allowed | info


@pytest.mark.parametrize("where", ["reset", "step"])
def test_a_list_of_the_right_shape_is_an_observation(
    where: str, engine: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(envs_with("list_obs", where), **options_of(engine))
    assert [row.tag for row in rows_of(pool.reset(seed=0))] == [0, 1, 2, 3]
    assert [row.step for row in rows_of(pool.step(ZEROS))] == [1] * 4


def test_nan_in_an_observation_passes_if_it_may(engine: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(envs_with("nan_obs", "step"), on_nan="pass", **options_of(engine))
    pool.reset(seed=0)
    obs = pool.step(ZEROS).obs
    assert np.argwhere(np.isnan(obs)).tolist() == [[FAULTY, 0]]
    assert pool.stats().nans == 1


@pytest.mark.parametrize("where", ["reset", "step"])
@pytest.mark.parametrize(("fault", "key"), [("info_unpicklable", "lock"), ("info_lambda", "lambda")])
def test_an_info_that_is_no_data_stays_in_its_process(
    fault: str, key: str, where: str, engine: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(envs_with(fault, where), **options_of(engine))
    if engine == "process":
        error = provoke(pool, where)
        assert (error.env_ids, error.where.phase) == ((FAULTY,), where)
        assert f"info['{key}']" in str(error)
        assert "allow_pickle" in str(error)
        assert_harmless(pool, where)
    else:
        batch = pool.reset(seed=0) if where == "reset" else (pool.reset(seed=0), pool.step(ZEROS))[1]
        assert [(row, set(info)) for row, info in batch.infos] == [(FAULTY, {key})]


@pytest.mark.parametrize("fault", ["slow", "leak_memory"])
@pytest.mark.parametrize("where", ["init", "reset", "step", "close"])
def test_a_nuisance_is_no_fault(fault: str, where: str, engine: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(envs_with(fault, where), **options_of(engine))
    pool.reset(seed=0)
    assert [row.step for row in rows_of(pool.step(ZEROS))] == [1] * 4


def test_several_faults_in_one_batch_are_all_told(engine: str, make_pool: Callable[..., shoal.Pool]) -> None:
    fns = envs_with("raise", "step")
    fns[3] = partial(FaultEnv, "raise", at=1, tag=3, episode_length=50)
    pool = make_pool(fns, **options_of(engine))
    error = provoke(pool, "step")
    assert error.env_ids == (FAULTY,)
    assert any("failed in env 3" in note for note in error.__notes__)
    assert pool.recv(timeout=10).env_id.tolist() == [0, 2]


def test_a_fault_in_an_asynchronous_pool_comes_once_and_the_others_go_on(
    engine: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(envs_with("raise", "step"), batch_size=1, **options_of(engine))
    pool.reset(seed=0)
    pool.send(ZEROS)
    came, faults = [], []
    for _ in range(4):
        try:
            came += pool.recv(timeout=10).env_id.tolist()
        except errors.EnvStepError as error:
            faults += error.env_ids
    assert (sorted(came), faults) == (NEIGHBOURS, [FAULTY])
    with pytest.raises(errors.NothingInFlight):
        pool.recv(timeout=0)


def test_a_fault_under_same_step_in_the_reset_that_follows_the_end_is_a_step_fault(
    engine: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(envs_with("raise", "reset", at=2, episode_length=1), autoreset="same_step", **options_of(engine))
    pool.reset(seed=0)
    with pytest.raises(errors.EnvStepError, match="injected fault in reset") as caught:
        pool.step(ZEROS)
    assert caught.value.env_ids == (FAULTY,)
    batch = pool.recv(timeout=10)
    assert batch.env_id.tolist() == NEIGHBOURS
    assert sorted(batch.finals) == [0, 1, 2]
