"""T13: infos that cannot leave their process are named by key, large ones never lock anything up, keys may change."""

from __future__ import annotations

import enum
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fault_cases import (
    FAULTY,
    NEIGHBOURS,
    SEED,
    SOON_S,
    WAYS,
    ZEROS,
    assert_harmless,
    assert_placed,
    close_in_time,
    envs_with,
    options_of,
    provoke,
    returning,
    rows_of,
    slow_unless,
    with_faulty,
)

import shoal
from shoal import errors
from shoal.testing import FAULT_FAMILIES, CountingEnv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BIG = 50 * 2**20
NO_DATA = {"info_unpicklable": "lock", "info_lambda": "lambda"}


def test_t13_every_spoilt_info_is_accounted_for() -> None:
    assert set(FAULT_FAMILIES["info"]) == {*NO_DATA, "info_big", "info_none"}


@pytest.mark.parametrize("where", ["reset", "step"])
@pytest.mark.parametrize("fault", NO_DATA)
@pytest.mark.parametrize("way", ["serial", "thread"])
def test_t13_any_info_may_be_had_within_one_process(
    way: str, fault: str, where: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(envs_with(fault, where), **options_of(way))
    batch = pool.reset(seed=0) if where == "reset" else (pool.reset(seed=0), pool.step(ZEROS))[1]
    assert [(row, set(info)) for row, info in batch.infos] == [(FAULTY, {NO_DATA[fault]})]


@pytest.mark.parametrize("where", ["reset", "step"])
@pytest.mark.parametrize("fault", NO_DATA)
def test_t13_an_info_that_is_no_data_stays_in_its_worker(
    fault: str, where: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(envs_with(fault, where, 2), **options_of("process"))
    error = provoke(pool, where, 2)
    assert_placed(error, pool, where)
    assert isinstance(error.__cause__, errors.SpecError)
    assert f"info['{NO_DATA[fault]}']" in str(error)
    assert "allow_pickle=True" in str(error)
    assert_harmless(pool, where, 2)


def test_t13_an_info_that_cannot_leave_is_told_with_step_and_seed(make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(envs_with("info_lambda", "step", 2), **options_of("process"))
    error = provoke(pool, "step", 2)
    assert error.where.seed == SEED + FAULTY
    assert error.where.episode_step is not None


@pytest.mark.parametrize("way", WAYS[2:])
def test_t13_the_start_method_makes_no_difference(way: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(envs_with("info_lambda", "step", 2), **options_of(way))
    assert "info['lambda']" in str(provoke(pool, "step", 2))
    assert_harmless(pool, "step", 2)


def test_t13_an_info_that_does_not_pickle_is_named_even_if_pickles_are_allowed(
    make_pool: Callable[..., shoal.Pool],
) -> None:
    pool = make_pool(envs_with("info_unpicklable", "step", 2), allow_pickle=True, **options_of("process"))
    error = provoke(pool, "step", 2)
    assert_placed(error, pool, "step")
    assert "info['lock']" in str(error)
    assert_harmless(pool, "step", 2)


class Colour(enum.Enum):
    RED = 1


def dead_reference() -> Any:
    """What is left of an object of the simulator that is gone: any look at it raises."""
    return weakref.proxy(type("Gone", (), {})())


def endless() -> dict[str, Any]:
    info: dict[str, Any] = {}
    info["self"] = info
    return info


# Made in the env, since some of them cannot be sent to it; and what the error says of the place.
HIDDEN: dict[str, tuple[Callable[[], dict[Any, Any]], str]] = {
    "deep inside": (lambda: {"a": [1, {"b": (0, threading.Lock())}]}, "info['a'][1]['b'][1]"),
    "in an array": (lambda: {"a": np.array([1, threading.Lock()], object)}, "info['a'][1]"),
    "records": (lambda: {"a": np.zeros(2, [("x", "i4")])}, "info['a']"),
    "masked": (lambda: {"a": np.ma.masked_array([1, 2], [0, 1])}, "info['a']"),
    "key": (lambda: {"fine": 1, threading.Lock: 2}, "info"),
    "endless": (endless, "info['self']['self']"),
    "dead reference": (lambda: {"a": dead_reference()}, "info['a']"),
}


def telling(make: Callable[[], Any], at: int = 2) -> type[CountingEnv]:
    """An env that makes its info itself, at step ``at``."""

    class Telling(CountingEnv):
        def step(self, action: Any) -> Any:
            *row, info = super().step(action)
            return (*row, make() if self._step == at else info)

    return Telling


@pytest.mark.parametrize("case", slow_unless(lambda case: case in ("deep inside", "dead reference"), HIDDEN))
def test_t13_what_is_no_data_is_named_by_its_path(case: str, make_pool: Callable[..., shoal.Pool]) -> None:
    make, path = HIDDEN[case]
    pool = make_pool(with_faulty(telling(make)), **options_of("process"))
    error = provoke(pool, "step", 2)
    assert_placed(error, pool, "step")
    assert path in str(error)
    assert_harmless(pool, "step", 2)


# ---------------------------------------------------------------------- large ones


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [None, 1], ids=["sync", "async"])
def test_t13_a_big_info_from_every_env_crosses(batch_size: int | None, make_pool: Callable[..., shoal.Pool]) -> None:
    env = returning("info", {"blob": bytes(BIG)})
    pool = make_pool([env] * 4, batch_size=batch_size, **options_of("process"))
    pool.reset(seed=0)
    pool.send(ZEROS)
    sizes: dict[int, int] = {}
    while len(sizes) < 4:
        batch = pool.recv(timeout=20)
        assert [row.step for row in rows_of(batch)] == [1] * len(batch)
        sizes.update({int(batch.env_id[row]): len(info["blob"]) for row, info in batch.infos})
    assert sizes == dict.fromkeys(range(4), BIG)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["forkserver", "fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_t13_a_pipe_that_is_full_in_both_directions_does_not_lock_up(
    way: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool([returning("info", {"blob": bytes(BIG)})] * 4, batch_size=1, **options_of(way))
    pool.reset(seed=0)
    pool.send([0, 0], env_id=[0, 2])
    # While the workers cannot get rid of their infos, the pool sends them options that do not fit the pipe either.
    pool.async_reset(options={"blob": bytes(BIG)}, env_id=[1, 3])
    came = []
    for _ in range(4):
        batch = pool.recv(timeout=20)
        came += batch.env_id.tolist()
    assert sorted(came) == [0, 1, 2, 3]
    assert [len(options["blob"]) for options in pool.get_attr("last_options", env_id=[1, 3])] == [BIG, BIG]
    close_in_time(pool)


@pytest.mark.slow
def test_t13_a_big_info_that_nobody_takes_does_not_hold_up_close(make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool([returning("info", {"blob": bytes(BIG)})] * 4, close_timeout=1.0, **options_of("process"))
    pool.reset(seed=0)
    pool.send(ZEROS)
    close_in_time(pool)


@pytest.mark.slow
def test_t13_a_big_info_that_nobody_wants_is_dropped_by_a_reset(make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool([returning("info", {"blob": bytes(BIG)})] * 4, **options_of("process"))
    pool.reset(seed=0)
    pool.send(ZEROS)
    batch = pool.reset(seed=0)
    assert ([row.step for row in rows_of(batch)], list(batch.infos)) == ([0] * 4, [])


# ---------------------------------------------------------------------- changing keys


def changing() -> type[CountingEnv]:
    """An env whose info has another key, and another kind of value, at every step; a local class travels by value."""

    class Changing(CountingEnv):
        def step(self, action: Any) -> Any:
            *row, _ = super().step(action)
            kinds = (7, "text", None, np.arange(3), [1, (2, 3)], {"inner": {"x": 0.5}}, np.float32(2), b"bytes", {1, 2})
            number = self._step + self.tag
            info = {f"key {number}": kinds[number % len(kinds)]} if number % 4 else {}
            return *row, info

    return Changing


@pytest.mark.parametrize("way", ["thread", "process"])
def test_t13_keys_and_kinds_may_change_at_every_step(way: str, make_pool: Callable[..., shoal.Pool]) -> None:
    kwargs = [{"tag": i, "episode_length": 50} for i in range(4)]
    expected = make_pool(changing(), 4, env_kwargs=kwargs, engine="serial")
    pool = make_pool(changing(), 4, env_kwargs=kwargs, **options_of(way))
    expected.reset(seed=0)
    pool.reset(seed=0)
    for _ in range(20):
        assert repr(list(pool.step(ZEROS).infos)) == repr(list(expected.step(ZEROS).infos))


def test_t13_changing_keys_do_not_stay_in_the_faces_infos() -> None:
    with shoal.make_vec(changing(), 2, engine="serial", env_kwargs={"episode_length": 50}) as envs:
        envs.reset(seed=0)
        for step in range(1, 10):
            *_, infos = envs.step(np.zeros(2, int))
            own = {key for key in infos if key not in ("env_id", "elapsed_step", "first")}
            assert own == ({f"key {step}", f"_key {step}"} if step % 4 else set())


@pytest.fixture
def make_vec() -> Iterator[Callable[..., Any]]:
    """``shoal.make_vec`` of two envs whose infos at the second step are given."""
    opened: list[Any] = []

    def make(infos: list[dict[str, Any]], **options: Any) -> Any:
        fns = [lambda info=info: telling(lambda: info)(episode_length=50) for info in infos]
        opened.append(shoal.make_vec(fns, **options))
        return opened[-1]

    yield make
    while opened:
        opened.pop().close()


MISMATCHED: dict[str, list[dict[str, Any]]] = {
    "number and text": [{"speed": 1}, {"speed": "fast"}],
    "number and None": [{"speed": 1}, {"speed": None}],
    "number and dict": [{"speed": 1}, {"speed": {"x": 1}}],
    "number and array": [{"speed": 1}, {"speed": np.zeros(2)}],
    "shapes": [{"speed": np.zeros(2)}, {"speed": np.zeros(3)}],
    "large number": [{"speed": 1}, {"speed": 2**70}],
}


@pytest.mark.parametrize("case", MISMATCHED)
def test_t13_values_that_do_not_fit_one_column_stay_what_they_are(case: str, make_vec: Callable[..., Any]) -> None:
    envs = make_vec(MISMATCHED[case], engine="serial")
    envs.reset(seed=0)
    actions = np.zeros(2, int)
    envs.step(actions)
    obs, *_, infos = envs.step(actions)
    assert obs[:, 3].tolist() == [2, 2]
    assert infos["speed"].dtype == object
    assert repr(list(infos["speed"])) == repr([info["speed"] for info in MISMATCHED[case]])
    assert infos["_speed"].tolist() == [True, True]


def test_t13_a_whole_number_from_one_env_does_not_round_those_of_the_others(make_vec: Callable[..., Any]) -> None:
    envs = make_vec([{"speed": 1}, {"speed": 1.5}], engine="serial")
    envs.reset(seed=0)
    envs.step(np.zeros(2, int))
    assert envs.step(np.zeros(2, int))[-1]["speed"].tolist() == [1.0, 1.5]


@pytest.mark.parametrize("way", ["serial", "thread", "process"])
def test_t13_an_info_of_a_faulty_step_is_not_shown_later(way: str, make_pool: Callable[..., shoal.Pool]) -> None:
    class TellsAndBreaks(CountingEnv):
        def step(self, action: Any) -> Any:
            obs, reward, *flags, _ = super().step(action)
            return (obs, reward, *flags, {"t": self._step}) if self._step != 2 else (obs[:3], reward, *flags, {"t": 2})

    pool = make_pool(with_faulty(TellsAndBreaks), **options_of(way))
    provoke(pool, "step", 2)
    batch = pool.recv(timeout=SOON_S)
    assert (batch.env_id.tolist(), list(batch.infos)) == (NEIGHBOURS, [])
    assert list(pool.reset(seed=0).infos) == []
    assert list(pool.step(ZEROS).infos) == [(FAULTY, {"t": 1})]
