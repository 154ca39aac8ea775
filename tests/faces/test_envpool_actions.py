"""Actions and ids in every form that EnvPool takes, and in the forms that would crash it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium import spaces

from shoal.errors import ActionError, NothingInFlight
from shoal.testing import CountingEnv, DictTupleEnv, SampleEnv, read_row

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def make(open_pool: Callable[..., Any]) -> Callable[..., Any]:
    return lambda task_id, env_type="gymnasium", **config: open_pool(task_id, env_type, **config)


def counting(action_space: spaces.Space[Any] | None = None) -> Any:
    return functools.partial(CountingEnv, episode_length=99, action_space=action_space)


def received(pool: Any, action: Any, env_id: Any = None) -> list[float]:
    """What the envs say their actions were."""
    return [read_row(row).action for row in pool.step(action, env_id)[0]]


def obs_of(result: Any) -> Any:
    """The observations in a result of any dialect."""
    return result.observation.obs if hasattr(result, "observation") else result[0]


# ---------------------------------------------------------------------- arrays


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (np.array([0, 1, 4]), [0, 1, 4]),
        (np.array([0, 1, 4], np.int32), [0, 1, 4]),
        (np.array([0, 1, 4], np.int8), [0, 1, 4]),
        (np.array([0, 1, 4], np.uint8), [0, 1, 4]),
        (np.array([0, 1, 4], np.uint64), [0, 1, 4]),
        (np.array([0, 1, 4], ">i4"), [0, 1, 4]),
        (np.array([0.0, 1.9, 4.99]), [0, 1, 4]),
        (np.array([0.0, 1.9, -0.9], np.float16), [0, 1, 0]),
        (np.array([True, False, True]), [1, 0, 1]),
        (np.arange(6)[::2], [0, 2, 4]),
        ([0, 1, 4], [0, 1, 4]),
        ((0.5, 1, True), [0, 1, 1]),
        (range(3), [0, 1, 2]),
    ],
    ids=str,
)
def test_numbers_of_any_kind_are_cast(make: Any, action: Any, expected: list[float]) -> None:
    pool = make(counting())
    pool.reset()
    assert received(pool, action) == expected
    pool.send(action)
    assert [read_row(row).action for row in pool.recv()[0]] == expected
    assert received(pool, action, [2, 0, 1]) == expected


def test_continuous_actions_are_cast_too(make: Any) -> None:
    pool = make("Pendulum-v1")
    pool.reset()
    for action in (np.zeros((3, 1)), np.asfortranarray(np.zeros((3, 1))), np.zeros((3, 1), int), [[0], [0.5], [1]]):
        assert pool.step(action)[0].shape == (3, 3)


def test_continuous_actions_may_leave_the_space(make: Any) -> None:
    pool = make(counting(spaces.Box(-1, 1, (2,), np.float32)))
    pool.reset()
    assert received(pool, np.full((3, 2), 50.0)) == [100.0] * 3
    assert received(pool, np.full((3, 2), -np.inf))[0] == -np.inf


@pytest.mark.parametrize(
    ("space", "action"),
    [
        (spaces.MultiDiscrete([3, 4]), [[1.5, 3], [0, 0], [2, 1]]),
        (spaces.MultiBinary(2), [[True, False], [False, True], [True, True]]),
        (spaces.Box(0, 200, (2,), np.uint8), [[1, 199], [2, 3], [4, 5]]),
    ],
    ids=["multi-discrete", "multi-binary", "bytes"],
)
def test_arrays_of_whole_numbers(make: Any, space: Any, action: Any) -> None:
    pool = make(counting(space))
    pool.reset()
    assert received(pool, action) == [sum(map(int, row)) for row in action]
    assert received(pool, np.array(action)) == [sum(map(int, row)) for row in action]


@pytest.mark.parametrize(
    "action", [1, True, 1.9, np.int32(1), np.array(1), np.array(1.5), [1], np.ones(1, np.int32)], ids=repr
)
def test_one_env_takes_a_bare_number(make: Any, env_type: str, action: Any) -> None:
    pool = make("CartPole-v1", env_type, num_envs=1)
    pool.reset()
    assert obs_of(pool.step(action)).shape == (1, 4)


def test_one_id_of_many_takes_a_bare_number(make: Any) -> None:
    pool = make(counting())
    pool.reset()
    assert received(pool, 3, [1]) == [3]
    assert received(pool, np.array(2), np.array([1])) == [2]


# ---------------------------------------------------------------------- what cannot be an action


CARTPOLE_NONSENSE = [
    np.array(1),
    1,
    np.zeros((3, 1), int),
    np.zeros(2, int),
    np.zeros(4, int),
    np.zeros(0, int),
    np.zeros((1, 3), int),
    np.array([0, 1, 2]),
    np.array([0, 1, -1], np.int32),
    np.array([0, 1, 2**33]),
    np.array([0, 1, 2**64 - 1], np.uint64),
    np.array([0.0, 1.0, np.nan]),
    np.array([0.0, 1.0, np.inf]),
    np.array([0.0, 1.0, 1e300]),
    np.array([0, 1, 1j]),
    np.array(["0", "1", "1"]),
    np.array([0, 1, None]),
    [0, 1, [1]],
    None,
    "011",
]


@pytest.mark.parametrize("action", CARTPOLE_NONSENSE, ids=repr)
@pytest.mark.parametrize("engine", ["serial", "kernel"])
def test_nonsense_is_refused_on_every_call_and_nothing_moves(make: Any, action: Any, engine: str) -> None:
    pool = make("CartPole-v1", engine=engine)
    pool.reset()
    for _ in range(2):
        for call in (lambda: pool.step(action), lambda: pool.send(action), lambda: pool.step(action, [0, 1, 2])):
            with pytest.raises(ActionError):
                call()
        assert pool.step(np.zeros(3, int))[4]["elapsed_step"].tolist() == [_ + 1] * 3


@pytest.mark.parametrize(
    "action",
    [np.zeros(3), np.zeros((3, 2)), np.zeros((1, 3)), np.full((3, 1), np.nan), np.full((3, 1), 1e300), [[0], [1]], 0.5],
    ids=repr,
)
def test_nonsense_is_refused_in_continuous_spaces(make: Any, action: Any) -> None:
    pool = make("Pendulum-v1")
    pool.reset()
    for _ in range(2):
        with pytest.raises(ActionError):
            pool.step(action)
    assert pool.step(np.zeros((3, 1)))[4]["elapsed_step"].tolist() == [1, 1, 1]


def test_one_env_does_not_make_a_wrong_shape_right(make: Any) -> None:
    pool = make("Pendulum-v1", num_envs=1)
    pool.reset()
    for action in (0.5, np.array(0.5), [0.5], np.zeros(1)):
        with pytest.raises(ActionError, match="shape"):
            pool.step(action)


# ---------------------------------------------------------------------- ids


@pytest.mark.parametrize("ids", [np.array([2, 0]), np.array([2, 0], np.int32), [2, 0], (2, 0)], ids=repr)
def test_some_envs_step_and_their_rows_come_in_that_order(make: Any, ids: Any) -> None:
    pool = make(counting())
    pool.reset()
    *_, info = pool.step([3, 4], ids)
    assert info["env_id"].tolist() == info["players"]["env_id"].tolist() == [2, 0]
    assert received(pool, [3, 4, 2]) == [3, 4, 2]
    assert pool.step([0, 0, 0])[4]["elapsed_step"].tolist() == [3, 2, 3]
    assert pool.reset(ids)[1]["env_id"].tolist() == [2, 0]


@pytest.mark.parametrize("nobody", [[], np.array([], np.int32)], ids=repr)
def test_a_call_for_nobody_returns_no_rows(make: Any, env_type: str, nobody: Any) -> None:
    pool = make("CartPole-v1", env_type)
    pool.reset()
    assert obs_of(pool.step(np.zeros(0, int), nobody)).shape == (0, 4)
    first = pool.reset(nobody)
    assert (first if env_type == "gym" else obs_of(first)).shape == (0, 4)
    pool.send(np.zeros(0, int), nobody)
    with pytest.raises(ActionError):
        pool.step(np.zeros(1, int), nobody)
    assert len(obs_of(pool.step(np.zeros(3, int)))) == 3


@pytest.mark.parametrize("config", [{}, {"batch_size": 2}], ids=["sync", "async"])
def test_a_send_for_nobody_has_a_batch_without_rows(make: Any, env_type: str, config: dict[str, int]) -> None:
    pool = make("CartPole-v1", env_type, **config)
    pool.reset()
    nobody = np.zeros(0, np.int32)
    pool.send(nobody, nobody)
    assert obs_of(pool.recv()).shape == (0, 4)
    with pytest.raises(NothingInFlight):
        pool.recv()
    assert obs_of(pool.step(nobody, nobody)).shape == (0, 4)
    pool.send(nobody, nobody)
    pool.send(np.zeros(2, int), [2, 0])
    assert obs_of(pool.recv()).shape == (2, 4)
    pool.reset()
    with pytest.raises(NothingInFlight):
        pool.recv()


@pytest.mark.parametrize("config", [{}, {"batch_size": 2}], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("action", "env_id"),
    [
        (np.zeros((3, 1), np.int32), None),
        (np.zeros((3, 1), np.int64), None),
        (np.zeros((3, 2)), None),
        ({"action": np.zeros((3, 1), np.int32)}, None),
        (np.zeros((2, 1), np.int32), [0, 1]),
        (np.zeros(2, np.int32), np.zeros((2, 1), np.int32)),
        ({"action": np.zeros(2, np.int32), "env_id": np.zeros((1, 2), np.int32)}, None),
    ],
    ids=str,
)
def test_a_wrong_shape_is_told_in_envpools_words(make: Any, config: Any, action: Any, env_id: Any) -> None:
    pool = make("CartPole-v1", **config)
    pool.reset()
    for call in (pool.step, pool.send):
        with pytest.raises(RuntimeError, match=r"^Expected shape") as caught:
            call(action, env_id)
        assert isinstance(caught.value, ActionError)


@pytest.mark.parametrize("action", [np.zeros((3, 1), np.int32), np.zeros((3, 2), np.int32), 7], ids=repr)
def test_a_wrong_shape_is_an_error_of_both_kinds(make: Any, env_type: str, action: Any) -> None:
    pool = make("CartPole-v1", env_type)
    pool.reset()
    for kind in (ValueError, RuntimeError):
        with pytest.raises(kind, match=r"expected shape \(3,\)"):
            pool.step(action)


@pytest.mark.parametrize(
    "ids", [[3], [-1], [0, 0], [0.0], ["0"], 3, -1, True, [[0]], np.array([True, False, True]), [None]], ids=repr
)
def test_bad_ids_are_refused_on_every_call(make: Any, env_type: str, ids: Any) -> None:
    pool = make("CartPole-v1", env_type)
    pool.reset()
    count = max(1, np.size(ids))
    for _ in range(2):
        for call in (pool.step, pool.send):
            with pytest.raises(ActionError):
                call(np.zeros(count, int), ids)
        with pytest.raises(ActionError):
            pool.reset(ids)
    assert len(obs_of(pool.step(np.zeros(3, int)))) == 3


@pytest.mark.parametrize("one", [1, np.int32(1), np.array(1, np.int32), [1]], ids=repr)
def test_a_single_id_is_a_list_of_one(make: Any, one: Any) -> None:
    pool = make(counting())
    assert pool.reset(one)[1]["env_id"].tolist() == [1]
    pool.reset()
    for action in (3, [3], np.array([3]), {"action": [3]}):
        obs, *_, info = pool.step(action, one)
        assert (info["env_id"].tolist(), read_row(obs[0]).action) == ([1], 3)
    pool.send({"action": [2], "env_id": one})
    assert pool.recv()[4]["env_id"].tolist() == [1]


@pytest.mark.parametrize("count", [1, 3])
def test_there_must_be_as_many_actions_as_ids(make: Any, count: int) -> None:
    pool = make("CartPole-v1")
    pool.reset()
    for action in (np.zeros(count, int), {"action": np.zeros(count, np.int32)}):
        with pytest.raises(ActionError, match="one action per env"):
            pool.step(action, np.array([0, 1]))


# ---------------------------------------------------------------------- dicts

IDS = np.array([1, 0, 2], np.int32)
ACT = np.array([4, 3, 2], np.int32)


@pytest.mark.parametrize(
    ("action", "ids"),
    [
        ({"action": ACT}, [0, 1, 2]),
        ({"action": ACT, "env_id": IDS}, [1, 0, 2]),
        ({"action": ACT, "env_id": IDS, "players.env_id": IDS}, [1, 0, 2]),
        ({"action": ACT, "env_id": IDS, "players": {"env_id": IDS}}, [1, 0, 2]),
        ({"action": ACT, "players.env_id": np.arange(3, dtype=np.int32)}, [0, 1, 2]),
        ({"action": [4, 3, 2], "env_id": [1, 0, 2]}, [1, 0, 2]),
        ({"action": ACT, "something": "else"}, [0, 1, 2]),
    ],
    ids=str,
)
def test_dicts_say_what_and_for_whom(make: Any, action: dict[str, Any], ids: list[int]) -> None:
    pool = make(counting())
    pool.reset()
    obs, *_, info = pool.step(action)
    assert info["env_id"].tolist() == ids
    assert [read_row(row).action for row in obs] == [4, 3, 2]
    pool.send(action)
    assert pool.recv()[4]["env_id"].tolist() == ids


def test_ids_in_the_call_win_over_those_in_the_dict(make: Any) -> None:
    pool = make(counting())
    pool.reset()
    for more in ({}, {"players.env_id": IDS}, {"players": {"env_id": IDS[:2]}}):
        action = {"action": ACT[:2], "env_id": IDS, **more}
        assert pool.step(action, np.array([2, 1]))[4]["env_id"].tolist() == [2, 1]


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ({"action": ACT.astype(np.int64)}, 'Expected dtype int32 with action "action", got int64'),
        ({"action": ACT.astype(float)}, 'Expected dtype int32 with action "action", got float64'),
        ({"action": ACT, "env_id": IDS.astype(np.int64)}, 'Expected dtype int32 with action "env_id", got int64'),
        (
            {"action": ACT, "env_id": IDS, "players.env_id": IDS.astype(np.int64)},
            'Expected dtype int32 with action "players.env_id", got int64',
        ),
    ],
    ids=["action", "float", "env_id", "players"],
)
def test_types_in_dicts_are_exact_on_every_call(make: Any, action: dict[str, Any], message: str) -> None:
    pool = make(counting())
    pool.reset()
    for _ in range(2):
        with pytest.raises(ActionError, match=message) as caught:
            pool.step(action)
        assert isinstance(caught.value, RuntimeError)
        pool.step({"action": ACT})


def test_continuous_actions_in_dicts_are_exact_too(make: Any) -> None:
    pool = make("Pendulum-v1")
    pool.reset()
    pool.step({"action": np.zeros((3, 1), np.float32)})
    with pytest.raises(ActionError, match='Expected dtype float32 with action "action", got float64'):
        pool.step({"action": np.zeros((3, 1))})


@pytest.mark.parametrize("action", [{}, {"actions": ACT}, {"env_id": IDS}], ids=str)
def test_a_dict_without_the_action_is_a_key_error(make: Any, action: dict[str, Any]) -> None:
    pool = make(counting())
    pool.reset()
    with pytest.raises(ActionError, match="no 'action'") as caught:
        pool.step(action)
    assert isinstance(caught.value, KeyError)
    assert str(caught.value).startswith("the action dict")


@pytest.mark.parametrize(
    "action",
    [
        {"action": ACT[:2]},
        {"action": ACT, "env_id": IDS[:2]},
        {"action": ACT, "env_id": np.array([0, 1, 3], np.int32)},
        {"action": ACT, "env_id": IDS, "players.env_id": IDS[:2]},
        {"action": ACT, "env_id": IDS, "players": {"env_id": IDS[::-1].copy()}},
        {"action": ACT[:, None]},
        {"action": np.array(1, np.int32)},
        {"action": {"action": ACT}},
    ],
    ids=str,
)
def test_dicts_that_do_not_fit_are_refused(make: Any, action: dict[str, Any]) -> None:
    pool = make(counting())
    pool.reset()
    for _ in range(2):
        with pytest.raises(ActionError):
            pool.step(action)
    assert received(pool, ACT) == [4, 3, 2]


# ---------------------------------------------------------------------- actions with parts


def parts(count: int = 2) -> dict[str, Any]:
    return {
        "gear": np.array([-1, 1], np.int32)[:count],
        "force": np.full((count, 2), 0.5, np.float32),
        "mix": (np.ones((count, 2), np.int8), np.array([3, 2], np.int32)[:count]),
    }


def flat(count: int = 2) -> dict[str, Any]:
    whole = parts(count)
    first, second = whole.pop("mix")
    return {**whole, "mix.0": first, "mix.1": second}


@pytest.mark.parametrize(
    "action",
    [
        parts(),
        flat(),
        {**flat(), "env_id": np.array([0, 1], np.int32)},
        {**parts(), "mix": {"0": np.ones((2, 2), np.int8), "1": np.array([3, 2], np.int32)}},
        {"action": parts(), "env_id": np.array([0, 1], np.int32)},
        {"gear": [-1, 1], "force": [[0.5, 0.5]] * 2, "mix": [[[1, 1]] * 2, [3, 2]]},
    ],
    ids=["nested", "dots", "with ids", "tuple as dict", "as action", "lists"],
)
def test_parts_may_be_nested_or_joined_by_dots(make: Any, action: Any) -> None:
    pool = make(DictTupleEnv, num_envs=2)
    pool.reset()
    echo = pool.step(action)[0]["echo"]
    assert echo["gear"].tolist() == [-1, 1]
    assert echo["force"].tolist() == [[0.5, 0.5]] * 2
    assert echo["mix"]["0"].tolist() == [[1, 1]] * 2
    assert echo["mix"]["1"].tolist() == [3, 2]


def test_parts_for_some_envs(make: Any) -> None:
    pool = make(DictTupleEnv, num_envs=2)
    pool.reset()
    *_, info = pool.step({**flat(1), "env_id": np.array([1], np.int32)})
    assert info["env_id"].tolist() == [1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gear": np.array([-1, 1])}, 'Expected dtype int32 with action "gear", got int64'),
        ({"mix.1": np.array([1, 1])}, 'Expected dtype int32 with action "mix.1", got int64'),
        ({"gear": np.array([-2, 1], np.int32)}, "outside"),
        ({"force": np.zeros((2, 3), np.float32)}, "shape"),
    ],
    ids=["type", "type below", "range", "shape"],
)
def test_parts_are_checked(make: Any, change: dict[str, Any], message: str) -> None:
    pool = make(DictTupleEnv, num_envs=2)
    pool.reset()
    with pytest.raises(ActionError, match=message):
        pool.step({**flat(), **change})


@pytest.mark.parametrize("missing", ["gear", "mix.0"])
def test_a_missing_part_is_named(make: Any, missing: str) -> None:
    pool = make(DictTupleEnv, num_envs=2)
    pool.reset()
    action = flat()
    del action[missing]
    with pytest.raises(ActionError, match=f"no {missing!r}") as caught:
        pool.step(action)
    assert isinstance(caught.value, KeyError)


def test_a_tuple_of_actions(make: Any) -> None:
    space = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,))))
    pool = make(functools.partial(SampleEnv, spaces.Discrete(2), space), num_envs=2)
    pool.reset()
    whole, force = np.array([0, 2], np.int32), np.zeros((2, 2), np.float32)
    assert list(pool.spec.action_array_spec)[2:] == ["0", "1"]
    for action in ((whole, force), [whole.astype(float), force], {"0": whole, "1": force}, {"action": (whole, force)}):
        assert pool.step(action)[0].shape == (2,)
    for bad in ((whole,), whole, {"0": whole}, {"action": whole}, None):
        with pytest.raises(ActionError):
            pool.step(bad)


def test_an_action_space_may_have_a_key_called_action(make: Any) -> None:
    space = spaces.Dict({"action": spaces.Discrete(3), "aim": spaces.Discrete(2)})
    pool = make(functools.partial(SampleEnv, spaces.Discrete(2), space), num_envs=2)
    pool.reset()
    two = np.array([1, 1], np.int32)
    assert pool.step({"action": two, "aim": two, "env_id": np.array([1, 0], np.int32)})[4]["env_id"].tolist() == [1, 0]


def test_actions_that_are_no_arrays(make: Any) -> None:
    pool = make(functools.partial(SampleEnv, spaces.Discrete(2), spaces.Text(5)), num_envs=2)
    pool.reset()
    assert pool.step(["go", "stop"])[0].shape == (2,)
    assert pool.step({"action": np.array(["go", "stop"], object)})[0].shape == (2,)
    with pytest.raises(ActionError):
        pool.step("go")


# ---------------------------------------------------------------------- whose arrays


@pytest.mark.parametrize("wrap", [lambda a: a, lambda a: {"action": a}], ids=["array", "dict"])
def test_actions_may_be_overwritten_once_they_are_sent(make: Any, wrap: Any) -> None:
    pool = make(counting())
    pool.reset()
    action = np.array([1, 1, 1], np.int32)
    pool.send(wrap(action))
    action[:] = 2
    pool.send(wrap(action))
    action[:] = 4
    for expected in (1, 2):
        assert [read_row(row).action for row in pool.recv()[0]] == [expected] * 3
