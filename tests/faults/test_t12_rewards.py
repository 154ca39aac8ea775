"""T12: a reward is a finite number, a flag is a bool, a step is a tuple of five; what means the same passes."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
from fault_cases import (
    FAULTY,
    WAYS,
    ZEROS,
    assert_dated,
    assert_harmless,
    assert_placed,
    envs_with,
    options_of,
    provoke,
    returning,
    rows_of,
    slow_unless,
    with_faulty,
)

from shoal import errors
from shoal.testing import FAULT_FAMILIES, CountingEnv

if TYPE_CHECKING:
    from collections.abc import Callable

    import shoal

# What FaultEnv does to rewards and flags, and what is said of it.
COMPLAINTS = {
    "reward_none": "reward: expected a number, got NoneType None",
    "reward_str": "reward: expected a number, got str '3.0'",
    "reward_nan": "reward: expected a finite number, got nan",
    "reward_inf": "reward: expected a finite number, got inf",
    "reward_array": "reward: expected a number, got ndarray",
    "flag_int": "terminated: expected a bool, got int 0",
    "flag_none": "terminated: expected a bool, got NoneType None",
    "four_tuple": "step must return .*, got a tuple of 4; this looks like the old Gym API",
    "info_none": "info: expected a dict, got NoneType",
}


def test_t12_every_spoilt_reward_and_flag_is_accounted_for() -> None:
    spoils = {*FAULT_FAMILIES["reward"], *FAULT_FAMILIES["flags"], "info_none"}
    assert spoils == set(COMPLAINTS)


def assert_spec_error(error: errors.FaultError, text: str) -> None:
    assert isinstance(error.__cause__, errors.SpecError), f"{error.__cause__!r}"
    with pytest.raises(errors.SpecError, match=text):
        raise error.__cause__
    assert str(error.__cause__) in str(error)


@pytest.mark.parametrize("fault", COMPLAINTS)
@pytest.mark.parametrize("way", slow_unless(lambda way: way == "serial", ["serial", "thread", "process"]))
def test_t12_a_broken_contract_is_named(way: str, fault: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(envs_with(fault, "step", 3), **options_of(way))
    error = provoke(pool, "step", 3)
    assert_placed(error, pool, "step")
    assert_dated(error, 2)
    assert_spec_error(error, COMPLAINTS[fault])
    assert_harmless(pool, "step", 3)


@pytest.mark.parametrize("way", WAYS)
def test_t12_the_start_method_makes_no_difference(way: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(envs_with("four_tuple", "step", 3), **options_of(way))
    assert_spec_error(provoke(pool, "step", 3), COMPLAINTS["four_tuple"])
    assert_harmless(pool, "step", 3)


WRONG: dict[str, tuple[str, Any, str]] = {
    "array of one": ("reward", np.array([1.0]), "reward: expected a number, got ndarray"),
    "list of one": ("reward", [1.0], "reward: expected a number, got list"),
    "complex": ("reward", 1j, "reward: expected a number, got complex"),
    "complex array": ("reward", np.array(1j), "reward: expected a number, got ndarray"),
    "decimal": ("reward", Decimal(1), "reward: expected a number, got Decimal"),
    "text": ("reward", np.str_("1"), "reward: expected a number, got str_"),
    "nan of numpy": ("reward", np.float32("nan"), "reward: expected a finite number"),
    "0-d nan": ("reward", np.array(np.nan), "reward: expected a finite number"),
    "minus infinity": ("reward", -np.inf, "reward: expected a finite number, got -inf"),
    "beyond every float": ("reward", 10**400, "reward: expected a finite number"),
    "truncated 1": ("truncated", 1, "truncated: expected a bool, got int 1"),
    "truncated int64": ("truncated", np.int64(0), "truncated: expected a bool, got int64"),
    "truncated None": ("truncated", None, "truncated: expected a bool, got NoneType"),
    "terminated text": ("terminated", "False", "terminated: expected a bool, got str 'False'"),
    "terminated array": ("terminated", np.array([False]), "terminated: expected a bool, got ndarray"),
    "terminated 0-d int": ("terminated", np.array(0), "terminated: expected a bool, got ndarray"),
    "info list": ("info", [], "info: expected a dict, got list"),
    "info array": ("info", np.zeros(3), "info: expected a dict, got ndarray"),
    "info empty array": ("info", np.zeros(0), "info: expected a dict, got ndarray"),
    "three": ("all", lambda parts: parts[:3], "got a tuple of 3"),
    "six": ("all", lambda parts: (*parts, 0), "got a tuple of 6"),
    "list": ("all", list, "step must return .*, got list"),
    "generator": ("all", iter, "step must return .*, got tuple_iterator"),
    "nothing": ("all", lambda parts: None, "step must return .*, got NoneType"),
    "reset": ("all", lambda parts: (parts[0], parts[4]), "got a tuple of 2"),
}


# The first step after a reset and those in the middle of an episode are judged in different places.
@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("check", ["first", "off"])
def test_t12_a_reward_that_is_none_is_dated_without_checks_as_well(
    check: str, at: int, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(with_faulty(returning("reward", None, at)), engine="serial", check=check)
    error = provoke(pool, "step", at)
    assert_placed(error, pool, "step")
    assert_dated(error, at - 1)


@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("case", WRONG)
def test_t12_what_is_no_step_result_is_named(case: str, at: int, make_pool: Callable[..., shoal.Pool]) -> None:
    part, value, text = WRONG[case]
    pool = make_pool(with_faulty(returning(part, value, at)), engine="serial")
    error = provoke(pool, "step", at)
    assert_placed(error, pool, "step")
    assert_dated(error, at - 1)
    assert_spec_error(error, text)
    assert pool.recv(timeout=0).env_id.tolist() == [0, 2, 3]


@pytest.mark.parametrize("case", ["info array", "three", "list", "truncated 1"])
def test_t12_a_registered_env_is_judged_in_the_same_words(case: str, make_pool: Callable[..., shoal.Pool]) -> None:
    part, value, text = WRONG[case]
    gymnasium.register("OfT12-v0", entry_point=returning(part, value), kwargs={"episode_length": 50})
    try:
        pool = make_pool("OfT12-v0", 2, engine="serial")
    finally:
        del gymnasium.registry["OfT12-v0"]
    pool.reset(seed=0)
    with pytest.raises(errors.EnvStepError) as caught:
        pool.step([0, 0])
    assert_spec_error(caught.value, text)


NUMBERS: dict[str, tuple[Any, float]] = {
    "int": (7, 7.0),
    "bool": (True, 1.0),
    "large int": (2**60, 2.0**60),
    "float64": (np.float64(0.5), 0.5),
    "float32": (np.float32(0.5), 0.5),
    "float16": (np.float16(0.5), 0.5),
    "int8": (np.int8(-3), -3.0),
    "uint8": (np.uint8(3), 3.0),
    "uint64": (np.uint64(3), 3.0),
    "numpy bool": (np.bool_(True), 1.0),
    "0-d float": (np.array(0.5), 0.5),
    "0-d int": (np.array(5), 5.0),
    "0-d bool": (np.array(True), 1.0),
}


@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("case", NUMBERS)
def test_t12_every_real_number_is_a_reward(case: str, at: int, make_pool: Callable[..., shoal.Pool]) -> None:
    given, stored = NUMBERS[case]
    pool = make_pool(with_faulty(returning("reward", given, at)), engine="serial")
    pool.reset(seed=0)
    rewards = [pool.step(ZEROS).reward.tolist() for _ in range(at + 1)]
    assert rewards[at - 1] == [at, stored, at, at]
    assert rewards[at] == [at + 1] * 4


@pytest.mark.parametrize("raised", [False, True])
@pytest.mark.parametrize("kind", [bool, np.bool_, np.array], ids=["bool", "numpy bool", "0-d"])
@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("part", ["terminated", "truncated"])
def test_t12_every_bool_is_a_flag(
    part: str, at: int, kind: Callable[[bool], Any], raised: bool, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(with_faulty(returning(part, kind(raised), at)), engine="serial", autoreset="disabled")
    pool.reset(seed=0)
    batch = [pool.step(ZEROS) for _ in range(at)][-1]
    other = "truncated" if part == "terminated" else "terminated"
    assert getattr(batch, part).tolist() == [False, raised, False, False]
    assert getattr(batch, other).tolist() == [False] * 4
    assert batch.reward.tolist() == [at] * 4


def mixed() -> type[CountingEnv]:
    """An env that returns what means the same as a plain result, in another form at each step."""

    class Mixed(CountingEnv):
        def step(self, action: Any) -> Any:
            obs, reward, terminated, truncated, info = super().step(action)
            number = (int, np.float32, np.array, np.uint8)[self._step % 4](reward)
            flag = (bool, np.bool_, np.array)[self._step % 3]
            return obs, number, flag(terminated), flag(truncated), info

    return Mixed


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("way", ["thread", "process"])
def test_t12_what_means_the_same_gives_the_same_rows_over_episodes(
    way: str, mode: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    kwargs = [{"tag": i} for i in range(4)]
    plain = make_pool(CountingEnv, 4, env_kwargs=kwargs, engine="serial", autoreset=mode)
    pool = make_pool(mixed(), 4, env_kwargs=kwargs, autoreset=mode, **options_of(way))
    for a, b in [(plain.reset(seed=5), pool.reset(seed=5))] + [
        (plain.step(ZEROS), pool.step(ZEROS)) for _ in range(20)
    ]:
        assert rows_of(a) == rows_of(b)
        for name in ("reward", "terminated", "truncated", "elapsed_step", "first"):
            assert getattr(a, name).tolist() == getattr(b, name).tolist()


OLD_RESETS = {
    "observation alone": (lambda obs, info: obs, "got ndarray"),
    "list": (lambda obs, info: [obs, info], "got list"),
    "three": (lambda obs, info: (obs, info, 0), "got a tuple of 3"),
    "no dict": (lambda obs, info: (obs, []), "got a tuple of 2"),
    "nothing": (lambda obs, info: None, "got NoneType"),
}


@pytest.mark.parametrize("case", OLD_RESETS)
@pytest.mark.parametrize("way", slow_unless(lambda way: way == "serial", ["serial", "process"]))
def test_t12_a_reset_returns_an_observation_and_an_info(
    way: str, case: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    change, text = OLD_RESETS[case]

    class OldReset(CountingEnv):
        calls = 0

        def reset(self, **kwargs: Any) -> Any:
            self.calls += 1
            result = super().reset(**kwargs)
            return change(*result) if self.calls == 2 else result

    pool = make_pool(with_faulty(OldReset), **options_of(way))
    error = provoke(pool, "reset", 2)
    assert error.env_ids == (FAULTY,)
    assert_spec_error(error, rf"reset must return \(observation, info dict\), {text}")
    assert_harmless(pool, "reset")
