"""T11: an observation that breaks its space is an error that names env, key, what was expected and what came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fault_cases import (
    FAULTY,
    WAYS,
    ZEROS,
    assert_harmless,
    assert_placed,
    envs_with,
    options_of,
    provoke,
    rows_of,
)
from gymnasium import Env, spaces

from shoal import errors
from shoal.testing import FAULT_FAMILIES

if TYPE_CHECKING:
    from collections.abc import Callable

    import shoal

# What the message says of key, expectation and result, for every way of FaultEnv to spoil an observation.
COMPLAINTS = {
    "bad_shape": r"observation: expected shape \(8,\), got \(9,\)",
    "scalar_obs": r"observation: expected shape \(8,\), got \(\)",
    "none_obs": r"observation: expected shape \(8,\), got \(\) \(NoneType None\)",
    "bad_dtype": "observation: expected dtype float64, got object",
    "complex_obs": "observation: expected dtype float64, got complex128",
    "str_obs": "observation: expected dtype float64, got <U",
    "overflow": "observation: a value of dtype float64 overflows float32",
    "missing_key": r"observation: keys do not match: missing \['row'\]",
    "extra_key": r"observation: keys do not match: extra \['extra'\]",
    "bad_nesting": r"observation\['row'\]: expected shape \(8,\), got \(\)",
}
ALLOWED = ("list_obs", "nan_obs")


def test_t11_every_spoilt_observation_is_accounted_for() -> None:
    assert {*FAULT_FAMILIES["obs"], *FAULT_FAMILIES["dict_obs"]} == {*COMPLAINTS, *ALLOWED}


def assert_spec_error(error: errors.FaultError, text: str) -> None:
    assert isinstance(error.__cause__, errors.SpecError)
    with pytest.raises(errors.SpecError, match=text):
        raise error.__cause__
    assert str(error.__cause__) in str(error)


# The third step is written on another path than the first after a reset, and so is the row of a reset.
@pytest.mark.parametrize(("where", "at"), [("step", 1), ("step", 3), ("reset", 2)])
@pytest.mark.parametrize("fault", COMPLAINTS)
def test_t11_a_broken_observation_is_named(
    fault: str, where: str, at: int, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(envs_with(fault, where, at), engine="serial")
    error = provoke(pool, where, at)
    assert_placed(error, pool, where)
    assert_spec_error(error, COMPLAINTS[fault])
    assert_harmless(pool, where, at)


@pytest.mark.slow
@pytest.mark.parametrize("fault", COMPLAINTS)
@pytest.mark.parametrize("way", ["thread", "process"])
def test_t11_a_broken_observation_is_named_on_every_engine(
    way: str, fault: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(envs_with(fault, "step", 3), **options_of(way))
    error = provoke(pool, "step", 3)
    assert_placed(error, pool, "step")
    assert_spec_error(error, COMPLAINTS[fault])
    assert_harmless(pool, "step", 3)


@pytest.mark.parametrize("at", [1, 3])
def test_t11_the_step_of_a_refused_observation_depends_neither_on_the_engine_nor_on_infos(
    at: int, make_pool: Callable[..., shoal.Pool]
) -> None:
    steps = {
        (way, infos): provoke(
            make_pool(envs_with("bad_shape", "step", at, infos=infos), **options_of(way)), "step", at
        ).where.episode_step
        for way in ("serial", "thread", "process")
        for infos in (False, True)
    }
    # An exception in the same step is told with the steps that went well before it.
    assert steps == dict.fromkeys(steps, at - 1)


# Episodes have two steps. Which call of the env fails, in which step of the pool that is, and what came before it.
BOUNDARIES = {
    "first step after a boundary": ("same_step", "step", 3, 3, 0),
    "last step": ("same_step", "step", 4, 4, 1),
    "reset within a step": ("same_step", "reset", 2, 2, 1),
    "reset instead of a step": ("next_step", "reset", 2, 3, 0),
    "first step after a reset": ("next_step", "step", 3, 4, 0),
}


def step_all(pool: shoal.Pool, times: int) -> None:
    for _ in range(times):
        pool.send(ZEROS)
        for _ in range(4 // pool.batch_size):
            pool.recv()


@pytest.mark.parametrize("fault", ["bad_shape", "raise"])
@pytest.mark.parametrize("case", BOUNDARIES)
def test_t11_the_step_of_a_fault_is_that_of_its_episode(
    case: str, fault: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    mode, where, call, step, taken = BOUNDARIES[case]
    fns = envs_with(fault, where, call, episode_length=2)
    for batch_size in (4, 1):  # all in one go, or one by one
        pool = make_pool(fns, engine="serial", autoreset=mode, batch_size=batch_size)
        pool.reset(seed=0)
        with pytest.raises(errors.EnvStepError) as caught:
            step_all(pool, step)
        assert caught.value.where.episode_step == taken


@pytest.mark.parametrize("way", WAYS)
def test_t11_the_start_method_makes_no_difference(way: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(envs_with("missing_key", "reset", 2), **options_of(way))
    assert_spec_error(provoke(pool, "reset", 2), COMPLAINTS["missing_key"])
    assert_harmless(pool, "reset", 2)


@pytest.mark.parametrize("where", ["reset", "step"])
@pytest.mark.parametrize("way", ["serial", "thread", "process"])
def test_t11_a_list_of_the_right_shape_is_an_observation(
    way: str, where: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(envs_with("list_obs", where), **options_of(way))
    assert [row.tag for row in rows_of(pool.reset(seed=0))] == [0, 1, 2, 3]
    assert [row.step for row in rows_of(pool.step(ZEROS))] == [1] * 4


@pytest.mark.parametrize("way", ["serial", "thread", "process"])
def test_t11_nan_in_an_observation_passes_if_it_may(way: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(envs_with("nan_obs", "step"), on_nan="pass", **options_of(way))
    pool.reset(seed=0)
    obs = pool.step(ZEROS).obs
    assert np.argwhere(np.isnan(obs)).tolist() == [[FAULTY, 0]]


# ---------------------------------------------------------------------- every sort of leaf


def showing(space: spaces.Space[Any], obs: Any, at: int) -> type[Env[Any, Any]]:
    """An env that shows blanks of its space, and ``obs`` at step ``at``; a class of its own travels by value."""

    class Showing(Env[Any, Any]):
        observation_space = space
        action_space = spaces.Discrete(5)

        def __init__(self) -> None:
            self.steps = 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.steps = 0
            self.observation_space.seed(0)
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> Any:
            self.steps += 1
            return (obs if self.steps == at else self.observation_space.sample()), 0.0, False, False, {}

    return Showing


IMAGE = spaces.Box(0, 255, (2, 2), np.uint8)
NESTED = spaces.Dict({"eye": IMAGE, "arm": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)))})
ZERO_EYE = np.zeros((2, 2), np.uint8)
LONG = np.zeros(3, np.float32)
ARM = (np.int64(0), np.zeros(2, np.float32))

# A space, an observation, and what the complaint says.
LEAVES: dict[str, tuple[spaces.Space[Any], Any, str]] = {
    "wraps around": (IMAGE, np.full((2, 2), 300), r"observation: a value of dtype int64 overflows uint8"),
    "negative": (IMAGE, np.full((2, 2), -1), r"observation: a value of dtype int64 overflows uint8"),
    "float image": (IMAGE, np.zeros((2, 2)), r"observation: expected dtype uint8, got float64"),
    "transposed": (spaces.Box(0, 1, (2, 3), np.float32), np.zeros((3, 2), np.float32), r"expected shape \(2, 3\)"),
    "an axis of one": (spaces.Box(0, 1, (2,), np.float32), np.zeros((1, 2), np.float32), r"got \(1, 2\)"),
    "0-d": (spaces.Box(0, 1, (2,), np.float32), np.array(1, np.float32), r"expected shape \(2,\), got \(\)"),
    "ragged": (IMAGE, [[1, 2], [3]], r"observation: expected shape \(2, 2\), got a ragged"),
    "row for a scalar": (spaces.Discrete(3), np.array([1]), r"observation: expected shape \(\), got \(1,\)"),
    "float for a scalar": (spaces.Discrete(3), 1.0, r"observation: expected dtype int64, got float64"),
    "none for a scalar": (spaces.Discrete(3), None, r"observation: expected dtype int64, got object"),
    "text for a scalar": (spaces.Discrete(3), "1", r"observation: expected dtype int64, got <U1"),
    "far too large": (spaces.Discrete(3), 2**70, r"observation: .*does not fit int64"),
    "scalar overflow": (spaces.Box(-9, 9, (), np.float32), 1.5e300, r"observation: .*overflows float32"),
    "floats for bits": (spaces.MultiBinary(3), np.zeros(3), r"observation: expected dtype int8, got float64"),
    "array for a dict": (NESTED, ZERO_EYE, r"observation: expected a dict with keys \['eye', 'arm'\]|'arm', 'eye'"),
    "dict for an array": (NESTED, {"eye": {"left": ZERO_EYE}, "arm": ARM}, r"observation\['eye'\]: expected shape"),
    "dict for a tuple": (NESTED, {"eye": ZERO_EYE, "arm": {0: 0}}, r"observation\['arm'\]: expected a tuple of 2"),
    "short tuple": (NESTED, {"eye": ZERO_EYE, "arm": ARM[:1]}, r"observation\['arm'\]: expected a tuple of 2"),
    "deep inside": (
        NESTED,
        {"eye": ZERO_EYE, "arm": (0, np.zeros(3, np.float32))},
        r"observation\['arm'\]\[1\]: .*\(3,\)",
    ),
}


@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("case", LEAVES)
def test_t11_every_sort_of_leaf_is_enforced(case: str, at: int, make_pool: Callable[..., shoal.Pool]) -> None:
    space, obs, text = LEAVES[case]
    fns = [showing(space, obs, at if i == FAULTY else -1) for i in range(4)]
    pool = make_pool(fns, engine="serial")
    error = provoke(pool, "step", at)
    assert error.env_ids == (FAULTY,)
    assert_spec_error(error, text)
    assert pool.recv(timeout=0).env_id.tolist() == [0, 2, 3]


@pytest.mark.parametrize("case", ["wraps around", "far too large", "deep inside"])
def test_t11_leaves_are_enforced_in_a_worker_too(case: str, make_pool: Callable[..., shoal.Pool]) -> None:
    space, obs, text = LEAVES[case]
    pool = make_pool([showing(space, obs, 3 if i == FAULTY else -1) for i in range(4)], **options_of("process"))
    error = provoke(pool, "step", 3)
    assert error.env_ids == (FAULTY,)
    assert_spec_error(error, text)
    assert pool.recv(timeout=10).env_id.tolist() == [0, 2, 3]


# Spaces whose values are no arrays, so that they are carried beside the columns.
OBJECTS: dict[str, tuple[spaces.Space[Any], Any, str]] = {
    "number for text": (spaces.Text(5), 7, r"observation: .*7"),
    "nothing for text": (spaces.Dict({"say": spaces.Text(5)}), {"say": None}, r"observation\['say'\]: .*None"),
    "text for a sequence": (spaces.Sequence(spaces.Discrete(3)), "ab", r"observation: .*ab"),
}


@pytest.mark.parametrize("way", ["serial", "process"])
@pytest.mark.parametrize("case", OBJECTS)
def test_t11_what_is_no_array_has_a_space_too(case: str, way: str, make_pool: Callable[..., shoal.Pool]) -> None:
    space, obs, text = OBJECTS[case]
    pool = make_pool([showing(space, obs, 3 if i == FAULTY else -1) for i in range(4)], **options_of(way))
    error = provoke(pool, "step", 3)
    assert error.env_ids == (FAULTY,)
    assert_spec_error(error, text)
    assert pool.recv(timeout=10).env_id.tolist() == [0, 2, 3]


@pytest.mark.parametrize(("check", "looks"), [("always", 3), ("first", 1), ("off", 0)])
def test_t11_what_is_no_array_is_looked_at_as_often_as_is_wanted(
    check: str, looks: int, make_pool: Callable[..., shoal.Pool]
) -> None:
    class Counted(spaces.Text):
        looks = 0

        def contains(self, x: Any) -> bool:
            Counted.looks += 1
            return super().contains(x)

    pool = make_pool(showing(Counted(5), "hello", 2), 1, engine="serial", check=check)
    pool.reset(seed=0)
    pool.step([0])
    pool.step([0])
    assert Counted.looks == looks


@pytest.mark.parametrize(
    ("space", "obs", "stored"),
    [
        (IMAGE, np.array([[0, 255], [1, 2]]), [[0, 255], [1, 2]]),
        (spaces.Box(-9, 9, (2,), np.float32), np.array([0.5, 2]), [0.5, 2.0]),
        (spaces.Box(-9, 9, (2,), np.float64), np.array([1, 2], np.int8), [1.0, 2.0]),
        (spaces.Box(-np.inf, np.inf, (2,), np.float32), np.array([-np.inf, 1]), [-np.inf, 1.0]),
        (spaces.Discrete(3), np.array(2), 2),
        (spaces.Discrete(3), np.uint8(2), 2),
        (spaces.Box(-9, 9, (), np.float32), 0.5, 0.5),
    ],
    ids=["ints", "float64", "int8 for floats", "infinite", "0-d", "uint8", "scalar"],
)
def test_t11_a_cast_that_keeps_every_value_is_made(
    space: spaces.Space[Any], obs: Any, stored: Any, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool([showing(space, obs, 1)], engine="serial")
    pool.reset(seed=0)
    batch = pool.step([0])
    assert batch.obs.dtype == space.dtype
    assert batch.obs[0].tolist() == stored
