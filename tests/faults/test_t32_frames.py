"""T32: what a worker's socket may carry. Frames that are no frames, or not what belongs there, are refused: nothing is
executed, no memory is taken on their word, and only the worker that sent them is lost.

The frames come from where they would come from in earnest: an env that writes to the socket of its worker.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import struct
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from fault_cases import SOON_S, ZEROS, close_in_time, options_of, rows_of, slow_unless

from shoal import errors
from shoal.engines.process import codec
from shoal.engines.process.wire import Channel, Kind
from shoal.testing import CountingEnv

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import shoal

HEADER = struct.Struct("<4sBiQ")
LENGTH = struct.Struct("<I")
BAD = 1
STEP_TIMEOUT_S = 2.0


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def frame(kind: int, payload: bytes, env_id: int = -1) -> bytes:
    return HEADER.pack(b"SHOA", kind, env_id, len(payload)) + payload


def extras(env_id: Any, info: Any, has_final: bool = False) -> bytes:
    return frame(Kind.EXTRAS, codec.join([codec.encode((env_id, info, None, None, None, has_final))]))


def form(number: int, description: Any, lane: int = 0) -> bytes:
    return frame(Kind.FORM, codec.encode((number, description)), lane)


def pickled_info(bomb: bytes) -> bytes:
    """An extra whose info claims to be a pickle, as a pool with ``allow_pickle`` would take it."""
    nothing = codec.encode(None)
    info = b"P" + LENGTH.pack(len(bomb)) + bomb
    parts = [codec.encode(BAD), info, nothing, nothing, nothing, codec.encode(False)]
    return frame(Kind.EXTRAS, codec.join([b"u" + LENGTH.pack(len(parts)) + b"".join(parts)]))


def sending(data: bytes, where: str) -> type[CountingEnv]:
    """An env that writes bytes to the socket of its worker; a local class travels by value."""

    class Sending(CountingEnv):
        def __init__(self, **counting: Any) -> None:
            super().__init__(**counting)
            if where == "init":
                self.write()

        def write(self) -> None:
            [channel] = [thing for thing in gc.get_objects() if isinstance(thing, Channel)]
            channel.socket.setblocking(True)
            channel.socket.sendall(data)
            channel.socket.setblocking(False)

        def step(self, action: Any) -> Any:
            *row, _ = super().step(action)
            if where == "step" and self._step == 2:
                self.write()
                # An info makes the pool look at the socket.
                return *row, {"t": 2}
            return *row, {}

    return Sending


def pool_of(data: bytes, where: str, make_pool: Callable[..., shoal.Pool]) -> shoal.Pool:
    fns: list[Any] = [partial(CountingEnv, tag=i, episode_length=50) for i in range(4)]
    fns[BAD] = partial(sending(data, where), tag=BAD, episode_length=50)
    limits = {"step_timeout": STEP_TIMEOUT_S, "construct_timeout": STEP_TIMEOUT_S, "close_timeout": 1.0}
    return make_pool(fns, **limits, **options_of("process"))


# Each is made from the bytes of a pickle that must never be loaded.
NO_FRAMES: dict[str, Callable[[bytes], bytes]] = {
    "wrong magic": lambda bomb: b"HTTP/1.1 200 OK\r\n\r\n" + bomb,
    "magic of a pickle": lambda bomb: bomb,
    "unknown kind": lambda bomb: frame(99, bomb),
    "kind 0": lambda bomb: frame(0, bomb),
    "huge length": lambda bomb: HEADER.pack(b"SHOA", Kind.EXTRAS, -1, 2**63) + bomb,
    "longest length": lambda bomb: HEADER.pack(b"SHOA", Kind.EXTRAS, -1, 2**64 - 1),
    "truncated": lambda bomb: frame(Kind.EXTRAS, bytes(2**16))[:200],
    "truncated at the largest length": lambda bomb: HEADER.pack(b"SHOA", Kind.EXTRAS, -1, 2**34) + bomb,
}
OUT_OF_PLACE: dict[str, Callable[[bytes], bytes]] = {
    "BUILT": lambda bomb: frame(Kind.BUILT, bomb, BAD),
    "READY": lambda bomb: frame(Kind.READY, bomb),
    "ATTACH": lambda bomb: frame(Kind.ATTACH, bomb),
    "REQUESTS": lambda bomb: frame(Kind.REQUESTS, bomb),
    "VALUE without a call": lambda bomb: frame(Kind.VALUE, bomb, BAD),
    "VALUE of nobody": lambda bomb: frame(Kind.VALUE, bomb, 999),
    "VALUE of a negative id": lambda bomb: frame(Kind.VALUE, bomb, -(2**31)),
}
NO_DATA: dict[str, Callable[[bytes], bytes]] = {
    "a pickle": lambda bomb: frame(Kind.EXTRAS, bomb),
    "a pickle inside": pickled_info,
    "nothing": lambda bomb: frame(Kind.EXTRAS, b""),
    "noise": lambda bomb: frame(Kind.EXTRAS, bytes(range(256))),
    "a number": lambda bomb: frame(Kind.EXTRAS, codec.encode(7)),
    "too many items": lambda bomb: frame(Kind.EXTRAS, b"l" + LENGTH.pack(2**32 - 1)),
    "too large an array": lambda bomb: frame(
        Kind.EXTRAS, b"a" + LENGTH.pack(3) + b"<f8" + codec.encode((2**40,)) + b"b" + LENGTH.pack(2**31)
    ),
    "too deep": lambda bomb: frame(Kind.EXTRAS, (b"l" + LENGTH.pack(1)) * 10**4 + b"n"),
    "too short an extra": lambda bomb: frame(Kind.EXTRAS, codec.encode([()])),
}
FORGED: dict[str, Callable[[bytes], bytes]] = {
    "an id that is no number": lambda bomb: extras("one", {"t": 2}),
    "an id that cannot be looked up": lambda bomb: extras([], {"t": 2}),
    "an env that is not there": lambda bomb: extras(999, {"t": 2}),
    "an env of another worker": lambda bomb: extras(3, {"forged": True}),
    "an info that is no dict": lambda bomb: extras(BAD, 7),
    "a last row that was none": lambda bomb: extras(BAD, {}, has_final=True),
}
NO_FORMS: dict[str, Callable[[bytes], bytes]] = {
    "a pickle": lambda bomb: frame(Kind.FORM, bomb, 0),
    "of another worker": lambda bomb: form(1, ((("x", "d", None),), None), lane=1),
    "of nobody": lambda bomb: form(1, ((("x", "d", None),), None), lane=-7),
    "with the number of none": lambda bomb: form(0, ((("x", "d", None),), None)),
    "with a number that is too large": lambda bomb: form(256, ((("x", "d", None),), None)),
    "with half of what belongs to it": lambda bomb: form(1, (("x", "d", None),)),
    "with a name that is none": lambda bomb: form(1, (((7, "d", None),), None)),
    "with an unknown type": lambda bomb: form(1, ((("x", "P", None),), None)),
    "with a type that is none": lambda bomb: form(1, ((("x", [], ()),), None)),
    "with an impossible shape": lambda bomb: form(1, ((("x", "float64", (-1,)),), None)),
    "of a last row where there is none": lambda bomb: form(1, ((), (("x", "d", None),))),
    "with the same name twice": lambda bomb: form(1, ((("x", "d", None), ("x", "d", None)), ())),
    "that fits no slip": lambda bomb: form(1, ((("x", "float64", (10**12,)),), None)),
}
GARBLED_FAULTS: dict[str, Callable[[bytes], bytes]] = {
    "noise": lambda bomb: frame(Kind.FAULT, b"no pickle", BAD),
    "nothing": lambda bomb: frame(Kind.FAULT, b"", BAD),
    "a number": lambda bomb: frame(Kind.FAULT, pickle.dumps(7), BAD),
    "two numbers": lambda bomb: frame(Kind.FAULT, pickle.dumps((7, 8)), BAD),
}


@pytest.fixture
def bomb(tmp_path: Path) -> Any:
    """The bytes of a pickle that makes a folder; whether they were loaded is seen at the end."""
    folder = tmp_path / "executed"
    yield pickle.dumps(Bomb(str(folder)))
    assert not folder.exists(), "a pickle from the socket was loaded"


def assert_only_its_worker_is_lost(pool: shoal.Pool) -> None:
    """The worker that sent it is given up, the other goes on, and the pool closes in time."""
    pool.reset(seed=0)
    pool.step(ZEROS)
    memory = psutil.Process().memory_info().rss
    with pytest.raises(errors.WorkerDied) as caught:
        pool.step(ZEROS)
    assert caught.value.env_ids == (0, 1)
    assert (caught.value.where.worker, caught.value.where.phase) == (0, "step")
    batch = pool.recv(timeout=SOON_S)
    assert (batch.env_id.tolist(), list(batch.infos)) == ([2, 3], [])
    assert [(row.tag, row.step) for row in rows_of(batch)] == [(2, 2), (3, 2)]
    assert [row.step for row in rows_of(pool.step([0, 0], env_id=[2, 3]))] == [3, 3]
    assert psutil.Process().memory_info().rss - memory < 64 * 2**20
    close_in_time(pool)


# What is truncated is given up at the deadline of the step.
@pytest.mark.parametrize("case", slow_unless(lambda case: "truncated" not in case, NO_FRAMES))
def test_t32_what_is_no_frame_loses_only_its_worker(
    case: str, bomb: bytes, make_pool: Callable[..., shoal.Pool]
) -> None:
    assert_only_its_worker_is_lost(pool_of(NO_FRAMES[case](bomb), "step", make_pool))


@pytest.mark.parametrize("case", slow_unless(lambda case: "VALUE" in case, OUT_OF_PLACE))
def test_t32_a_frame_where_none_belongs_loses_only_its_worker(
    case: str, bomb: bytes, make_pool: Callable[..., shoal.Pool]
) -> None:
    assert_only_its_worker_is_lost(pool_of(OUT_OF_PLACE[case](bomb), "step", make_pool))


@pytest.mark.parametrize("case", slow_unless(lambda case: "pickle" in case, NO_DATA))
def test_t32_what_is_no_data_loses_only_its_worker(
    case: str, bomb: bytes, make_pool: Callable[..., shoal.Pool]
) -> None:
    assert_only_its_worker_is_lost(pool_of(NO_DATA[case](bomb), "step", make_pool))


@pytest.mark.parametrize("case", FORGED)
def test_t32_extras_that_the_worker_cannot_have_lose_only_it(
    case: str, bomb: bytes, make_pool: Callable[..., shoal.Pool]
) -> None:
    assert_only_its_worker_is_lost(pool_of(FORGED[case](bomb), "step", make_pool))


@pytest.mark.parametrize("case", NO_FORMS)
def test_t32_what_is_no_form_loses_only_its_worker(
    case: str, bomb: bytes, make_pool: Callable[..., shoal.Pool]
) -> None:
    assert_only_its_worker_is_lost(pool_of(NO_FORMS[case](bomb), "step", make_pool))


def test_t32_a_slip_that_nobody_can_read_loses_only_its_worker(make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(CountingEnv, 4, env_kwargs={"episode_length": 50}, close_timeout=1.0, **options_of("process"))
    pool.reset(seed=0)
    pool.step(ZEROS)
    pool.engine.control.told[BAD] = 7
    with pytest.raises(errors.WorkerDied, match="an info of a form that nobody has told of") as caught:
        pool.step(ZEROS)
    assert caught.value.env_ids == (0, 1)
    assert pool.recv(timeout=SOON_S).env_id.tolist() == [2, 3]
    close_in_time(pool)


@pytest.mark.parametrize("case", GARBLED_FAULTS)
def test_t32_a_garbled_fault_loses_only_its_worker(
    case: str, bomb: bytes, make_pool: Callable[..., shoal.Pool]
) -> None:
    assert_only_its_worker_is_lost(pool_of(GARBLED_FAULTS[case](bomb), "step", make_pool))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["wrong magic", "huge length", "truncated"])
def test_t32_what_is_no_frame_in_a_constructor_is_a_construction_error(
    case: str, bomb: bytes, make_pool: Callable[..., shoal.Pool]
) -> None:
    with pytest.raises(errors.EnvConstructError) as caught:
        pool_of(NO_FRAMES[case](bomb), "init", make_pool)
    assert (caught.value.env_ids, caught.value.where.worker) == ((BAD,), 0)
    # The rest of what is truncated is waited for.
    expected = (errors.EnvTimeout, "no answer") if case == "truncated" else (errors.WorkerDied, "not a shoal frame")
    assert type(caught.value.__cause__) is expected[0]
    assert expected[1] in str(caught.value)


# A worker's READY is a pickle, as its factories are: start-up is code that we were given to run. All else is data.
EARLY = {
    **{case: OUT_OF_PLACE[case] for case in ("ATTACH", "REQUESTS", "VALUE without a call")},
    "EXTRAS": NO_DATA["a pickle"],
    "FAULT": lambda bomb: frame(Kind.FAULT, bomb, BAD),
    "READY that is none": lambda bomb: frame(Kind.READY, b"no pickle"),
    "READY with too little": lambda bomb: frame(Kind.READY, pickle.dumps((1, 2))),
}


@pytest.mark.parametrize("case", EARLY)
def test_t32_a_frame_that_comes_too_early_is_a_construction_error(
    case: str, bomb: bytes, make_pool: Callable[..., shoal.Pool]
) -> None:
    with pytest.raises(errors.EnvConstructError) as caught:
        pool_of(EARLY[case](bomb), "init", make_pool)
    assert caught.value.where.worker == 0


# ---------------------------------------------------------------------- towards the worker


@pytest.mark.parametrize("case", slow_unless(lambda case: "magic" in case, ["wrong magic", "huge length"]))
def test_t32_a_worker_that_hears_noise_ends_and_says_so(
    case: str, bomb: bytes, make_pool: Callable[..., shoal.Pool]
) -> None:
    limits = {"step_timeout": STEP_TIMEOUT_S, "reset_timeout": STEP_TIMEOUT_S, "close_timeout": 1.0}
    pool = make_pool(CountingEnv, 4, env_kwargs={"episode_length": 50}, **limits, **options_of("process"))
    pool.reset(seed=0)
    pool.engine.crew.workers[0].channel.socket.sendall(NO_FRAMES[case](bomb))
    # A step needs nothing from the socket, so nobody has heard of it yet.
    assert [row.step for row in rows_of(pool.step(ZEROS))] == [1] * 4
    with pytest.raises(errors.WorkerDied) as caught:
        pool.reset(seed=0)
    assert caught.value.env_ids == (0, 1)
    assert pool.recv(timeout=SOON_S).env_id.tolist() == [2, 3]
    close_in_time(pool)


@pytest.mark.parametrize(
    "kind", [Kind.EXTRAS, Kind.VALUE, Kind.FAULT, Kind.READY, Kind.ATTACH], ids=lambda kind: kind.name
)
def test_t32_a_worker_does_not_load_what_is_not_meant_for_it(
    kind: Kind, bomb: bytes, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(CountingEnv, 4, close_timeout=1.0, reset_timeout=STEP_TIMEOUT_S, **options_of("process"))
    pool.reset(seed=0)
    pool.engine.crew.workers[0].channel.socket.sendall(frame(kind, bomb))
    with contextlib.suppress(errors.WorkerDied):
        pool.reset(seed=0)
    close_in_time(pool)
