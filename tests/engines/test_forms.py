"""Infos that look alike cross in shared memory, and arrive as they would through the socket."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sameness import is_same

import shoal
from shoal.engines.base import Extra
from shoal.engines.process import codec
from shoal.engines.process.forms import SLIP_BYTES, Form, FormError
from shoal.testing import CountingEnv

if TYPE_CHECKING:
    from collections.abc import Callable

dtypes = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="="),
    hnp.unsigned_integer_dtypes(endianness="="),
    hnp.floating_dtypes(endianness="=", sizes=(32, 64)),
)
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=2))
scalars = hnp.arrays(dtypes, ()).map(lambda array: array[()])
values = st.one_of(st.booleans(), st.floats(), st.integers(-(2**63), 2**63 - 1), arrays, scalars)
infos = st.dictionaries(st.text(max_size=3), values, max_size=3)
extras = st.builds(Extra, info=infos) | st.builds(
    lambda info, final: Extra(info or None, final_info=final or None, has_final=True), infos, infos
)


@settings(max_examples=200, deadline=None)
@given(extras)
@example(Extra({"x": np.float32("nan")}))
@example(Extra({"x": np.array([[1, 2], [3, 4]], order="F")}))
@example(Extra({"x": np.arange(10)[::-3]}))
@example(Extra(None, has_final=True))
def test_what_is_in_a_slip_comes_back_as_it_was(extra: Extra) -> None:
    form = Form.of(extra)
    slips = memoryview(bytearray(3 * SLIP_BYTES))
    assert form.put(slips, SLIP_BYTES, extra)
    told = Form.from_description(codec.decode(codec.encode(form.described())))
    back = told.read(slips, SLIP_BYTES)
    assert is_same((back.info, back.final_info, back.has_final), (extra.info, extra.final_info, extra.has_final))
    assert not any(slips[:SLIP_BYTES]), "it reached into the slip before"
    assert not any(slips[2 * SLIP_BYTES :]), "it reached into the slip behind"


@pytest.mark.parametrize(
    "value",
    ["text", None, [1.0], {"y": 1.0}, np.zeros(33), np.array(["a"]), np.array(1.0, ">f8"), np.array([None]), 1j],
    ids=repr,
)
def test_what_has_no_form_says_so(value: Any) -> None:
    with pytest.raises(FormError):
        Form.of(Extra({"x": value}))


def test_names_that_are_no_strings_have_no_form() -> None:
    with pytest.raises(FormError, match="no string: True"):
        Form.of(Extra({True: 1.0}))  # type: ignore[dict-item]


def test_values_that_do_not_fit_their_form_are_left_to_the_socket() -> None:
    slips = memoryview(bytearray(SLIP_BYTES))
    assert not Form.of(Extra({"x": 1})).put(slips, 0, Extra({"x": 2**64}))
    assert not Form.of(Extra({"x": np.zeros(2)})).put(slips, 0, Extra({"x": np.zeros(3)}))
    assert not Form.of(Extra({"x": np.zeros(2)})).put(slips, 0, Extra({"x": np.zeros(2, np.float32)}))


# ---------------------------------------------------------------------- in a pool


class Telling(CountingEnv):
    """Tells what it is told to, by the number of the step."""

    stories: tuple[dict[str, Any], ...] = (
        {"x": 0.5, "n": 1},
        {},
        {"x": -0.0, "n": 2},
        {"x": 0.25, "n": 2**70},
        {"a": np.arange(3), "b": np.float32(0.1), "c": True},
        {"a": np.arange(4), "b": np.float32(0.2), "c": False},
        {"a": np.arange(3), "b": np.float32(0.3), "c": False},
        {"word": "odd"},
        {"n": 3, "x": 1.5},
        {"x": 7, "n": 3.5},
    )

    def reset(self, **wishes: Any) -> Any:
        obs, _ = super().reset(**wishes)
        return obs, {"began": self.total_steps}

    def step(self, action: Any) -> Any:
        *row, _ = super().step(action)
        return *row, {**self.stories[self.total_steps % len(self.stories)]}


def envs(num_envs: int = 4) -> list[Any]:
    return [partial(Telling, tag=i, episode_length=5 + i) for i in range(num_envs)]


def told_by(batch: shoal.Batch) -> Any:
    return [*batch.infos], {row: info for row, (_, info) in batch.finals.items()}


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.parametrize("options", [{}, {"inline": True}, {"threads_per_worker": 2}], ids=str)
def test_infos_are_those_of_the_serial_engine(
    autoreset: str, options: dict[str, Any], make_pool: Callable[..., shoal.Pool]
) -> None:
    pools = [
        make_pool(envs(), engine="process", num_workers=2, autoreset=autoreset, **options),
        make_pool(envs(), engine="serial", autoreset=autoreset),
    ]
    ours, theirs = ([pool.reset(seed=1), *(pool.step([0] * 4) for _ in range(40))] for pool in pools)
    for one, other in zip(ours, theirs, strict=True):
        assert is_same(told_by(one), told_by(other))


def test_the_socket_is_silent_once_forms_are_known(make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(CountingEnv, 4, engine="process", num_workers=2, env_kwargs={"infos": True, "episode_length": 3})
    pool.reset(seed=1)
    for _ in range(8):
        pool.step([0] * 4)
    before = pool.engine.control.notes.tolist()
    batches = [pool.step([0] * 4) for _ in range(8)]
    assert pool.engine.control.notes.tolist() == before
    assert any(batch.infos for batch in batches)


def test_rows_of_a_part_of_the_pool_keep_their_infos_until_they_are_read(make_pool: Callable[..., shoal.Pool]) -> None:
    pools = [make_pool(envs(), engine=engine, num_workers=2, batch_size=2) for engine in ("process", "serial")]
    ours, theirs = ({i: [] for i in range(4)} for _ in pools)
    for pool, heard in zip(pools, (ours, theirs), strict=True):
        pool.async_reset(seed=1)
        while min(map(len, heard.values())) < 30:
            batch = pool.recv()
            infos = dict(batch.infos)
            for row, i in enumerate(batch.env_id.tolist()):
                heard[i].append(infos.get(row))
            pool.send([0] * len(batch), batch.env_id)
    for i in range(4):
        assert is_same(ours[i][:30], theirs[i][:30])


def test_the_next_worker_in_a_place_has_forms_of_its_own(make_pool: Callable[..., shoal.Pool]) -> None:
    restart = shoal.Restart(backoff_s=0.0)
    pool = make_pool(envs(), engine="process", num_workers=2, on_fault=restart)
    pool.reset(seed=1)
    for _ in range(12):
        pool.step([0] * 4)
    os.kill(pool.engine.pids[0], signal.SIGKILL)
    while pool.stats().restarts < 2:
        pool.step([0] * 4)
    for _ in range(12):
        batch = pool.step([0] * 4)
        for row, info in batch.infos:
            first = batch.first[row]
            total = pool.get_attr("total_steps", [row])[0]
            expected = {"began": total} if first else Telling.stories[total % len(Telling.stories)]
            assert is_same(info, expected)
