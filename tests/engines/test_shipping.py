"""What can be sent to a worker process, how, and what the error says when it cannot."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium
import pytest

import shoal
from shoal import errors
from shoal.engines.base import Request
from shoal.engines.process import shipping
from shoal.testing import CountingEnv, read_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

METHODS = ["fork!", "forkserver", "spawn"]


@dataclass
class Settings:
    """Something that travels with a factory."""

    tag: int
    lock: Any = None


def closure(tag: int) -> Callable[[], CountingEnv]:
    def make_env() -> CountingEnv:
        return CountingEnv(tag=tag)

    return make_env


def local_class() -> type[CountingEnv]:
    class Local(CountingEnv):
        def __init__(self) -> None:
            super().__init__(tag=7)

    return Local


class Maker:
    """A callable object that knows what to make."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def __call__(self) -> CountingEnv:
        return CountingEnv(tag=self.settings.tag)

    def method(self) -> CountingEnv:
        return CountingEnv(tag=self.settings.tag)


FACTORIES = {
    "lambda": lambda: CountingEnv(tag=7),
    "closure": closure(7),
    "partial": partial(CountingEnv, tag=7),
    "local class": local_class(),
    "callable object": Maker(Settings(7)),
    "bound method": Maker(Settings(7)).method,
}


@pytest.mark.parametrize("method", METHODS)
def test_factories_of_every_kind_reach_their_worker(method: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(list(FACTORIES.values()), engine="process", num_workers=2, start_method=method)
    assert [read_row(obs).tag for obs in pool.reset(seed=0).obs] == [7] * len(FACTORIES)


@pytest.fixture
def local_id() -> Iterator[str]:
    """An id that only this process knows."""
    name = "shoal-test/OnlyHere-v0"
    gymnasium.register(name, entry_point=lambda **kwargs: CountingEnv(**kwargs), max_episode_steps=3)
    yield name
    del gymnasium.registry[name]


@pytest.mark.parametrize("method", METHODS)
def test_an_id_registered_here_is_known_in_the_workers(
    method: str, local_id: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    options = {"engine": "process", "num_workers": 2, "start_method": method}
    pool = make_pool(local_id, 2, env_kwargs={"tag": 7, "episode_length": 9}, **options)
    assert [read_row(obs).tag for obs in pool.reset(seed=0).obs] == [7, 7]
    ends = [pool.step([0, 0]).truncated.tolist() for _ in range(3)]
    assert ends == [[False, False], [False, False], [True, True]]


LOCK = threading.Lock()


def uses_global() -> CountingEnv:
    with LOCK:
        return CountingEnv()


def with_closure(lock: Any) -> Callable[[], CountingEnv]:
    def make_env() -> CountingEnv:
        with lock:
            return CountingEnv()

    return make_env


def by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy that cannot be found by its name, and so has to travel by value."""
    function.__qualname__ = f"<locals>.{function.__name__}"
    return function


@pytest.mark.parametrize(
    ("factory", "path"),
    [
        (with_closure(threading.Lock()), "closure.lock"),
        (partial(CountingEnv, tag=threading.Lock()), "tag"),
        (partial(lambda lock: CountingEnv(), threading.Lock()), "args[0]"),
        (Maker(Settings(7, threading.Lock())), "settings.lock"),
        (by_value(uses_global), "globals.LOCK"),
        (with_closure({"inner": [threading.Lock()]}), "closure.lock.'inner'.[0]"),
    ],
    ids=["closure", "keyword", "argument", "attribute", "global", "nested"],
)
def test_what_cannot_be_sent_is_named_by_its_path(
    factory: Callable[[], Any], path: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    with pytest.raises(errors.ShippingError) as caught:
        make_pool(factory, 2, engine="process")
    assert f"{path} (lock)" in str(caught.value)
    assert "engine='thread'" in str(caught.value)


def test_the_path_is_one_that_the_user_knows(make_pool: Callable[..., shoal.Pool]) -> None:
    with pytest.raises(errors.ShippingError, match=r": env_fn\.closure\.lock \(lock\)"):
        make_pool(with_closure(threading.Lock()), 2, engine="process")


def test_what_a_method_of_a_class_reaches_is_found_past_the_cell_of_its_class() -> None:
    lock = threading.Lock()

    class Reaches(CountingEnv):
        def __init__(self) -> None:
            super().__init__()

        def step(self, action: Any) -> Any:
            with lock:
                return super().step(action)

    assert shipping.find_culprit(Reaches, "env_fn") == "env_fn.step.closure.lock (lock)"
    assert shipping.find_culprit(Maker(Settings(7, lock)).method, "env_fn") == "env_fn.__self__.settings.lock (lock)"


def test_the_factory_that_cannot_be_sent_is_named_among_many(make_pool: Callable[..., shoal.Pool]) -> None:
    fns = [CountingEnv, CountingEnv, with_closure(threading.Lock())]
    with pytest.raises(errors.ShippingError, match=r"closure\.lock \(lock\)"):
        make_pool(fns, engine="process", num_workers=1)


def test_a_factory_that_fails_to_load_in_the_worker_is_a_construction_error(
    make_pool: Callable[..., shoal.Pool],
) -> None:
    with pytest.raises(errors.EnvConstructError, match="no loading today") as caught:
        make_pool([FailsToLoad()] * 3, engine="process", num_workers=2)
    assert caught.value.env_ids == (0, 1, 2)


def refuse() -> None:
    raise RuntimeError("no loading today")


class FailsToLoad:
    """Pickles, and raises when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return refuse, ()

    def __call__(self) -> CountingEnv:
        return CountingEnv()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("ask", ["reset", "call"])
def test_an_argument_that_fails_to_load_in_the_worker_costs_its_env_alone(
    ask: str, threads: int, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(CountingEnv, 4, engine="process", num_workers=1, threads_per_worker=threads, reset_timeout=5.0)
    pool.reset(seed=0)
    calls = {
        "reset": lambda: pool.reset(options={"odd": FailsToLoad()}, env_id=[3]),
        "call": lambda: pool.call("render", FailsToLoad(), env_id=[3]),
    }
    with pytest.raises({"reset": errors.EnvResetError, "call": errors.EnvCallError}[ask]) as caught:
        calls[ask]()
    assert caught.value.env_ids == (3,)
    assert isinstance(caught.value.__cause__, errors.ShippingError)
    assert "RuntimeError: no loading today" in str(caught.value)
    assert [read_row(obs).step for obs in pool.step([0, 0, 0], env_id=[0, 1, 2]).obs] == [1, 1, 1]
    assert [read_row(obs).step for obs in pool.reset(env_id=[3]).obs] == [0]
    assert pool.stats().restarts == 0


@pytest.mark.parametrize("value", [{"a": [1, {"b": threading.Lock()}]}, (threading.Lock(),)], ids=["nested", "tuple"])
def test_a_value_that_does_not_pickle_is_named_by_its_path(value: Any) -> None:
    with pytest.raises(errors.ShippingError, match=r"the thing\..*\(lock\) cannot be pickled"):
        shipping.pickle_value(value, "the thing")


def test_what_does_not_pickle_is_found_behind_slots_too() -> None:
    request = Request(seed=1, options={"level": 2, "x": threading.Lock()})
    with pytest.raises(errors.ShippingError, match=r"^the request\.options\.'x' \(lock\) cannot be pickled"):
        shipping.pickle_value(request, "the request")


def test_find_culprit_finds_nothing_in_what_pickles() -> None:
    assert shipping.find_culprit({"a": [1, lambda: 2]}, "x") is None


class NeedsTwo(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


class Turns(Exception):
    """Becomes something else on its way, or ends the program."""

    def __reduce__(self) -> Any:
        if self.args == ("exits",):
            raise SystemExit(3)
        return str, ("no exception",)


@pytest.mark.parametrize(
    "error",
    [NeedsTwo(1, 2), ValueError(threading.Lock()), None, Turns("text"), Turns("exits")],
    ids=["two", "lock", "none", "text", "exits"],
)
def test_an_exception_is_sent_only_if_it_will_load(error: Exception | None) -> None:
    assert shipping.pickle_exception(error) == b""


def test_an_exception_that_loads_is_sent_whole() -> None:
    error = shipping.unpickle_value(shipping.pickle_exception(KeyError("a", 2)))
    assert (type(error), error.args) == (KeyError, ("a", 2))
