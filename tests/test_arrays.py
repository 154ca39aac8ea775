"""The memory of a pool: where columns lie, how it is reserved, and what a writer lets through."""

from __future__ import annotations

import errno
import os
import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from shoal.arrays import Arena, Layout, RowLayout, Rows, RowWriter, tree_writer
from shoal.errors import ResourceError, SpecError
from shoal.spec import EnvSpec, SpaceTree
from shoal.testing import DictTupleEnv

CACHE_LINE = 64


def spec_of(observation: spaces.Space[Any], action: spaces.Space[Any] | None = None) -> EnvSpec:
    return EnvSpec(SpaceTree(observation, "observation"), SpaceTree(action or spaces.Discrete(2), "action"), "env")


# ---------------------------------------------------------------------- layout

COLUMNS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 5), max_size=3).map(tuple),
        st.sampled_from([np.bool_, np.uint8, np.int16, np.float32, np.float64, np.int64]),
    ),
    max_size=6,
)


def laid_out(columns: list[tuple[tuple[int, ...], Any]]) -> Layout:
    layout = Layout()
    for number, (shape, dtype) in enumerate(columns):
        layout.add(f"column{number}", shape, dtype)
    return layout


@given(columns=COLUMNS)
def test_columns_begin_at_cache_lines_and_do_not_overlap(columns: Any) -> None:
    layout = laid_out(columns)
    end = 0
    for offset, shape, dtype in layout.columns.values():
        assert offset % CACHE_LINE == 0
        assert offset >= end
        end = offset + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    assert layout.size_bytes == end


@given(columns=COLUMNS)
def test_columns_are_views_that_share_nothing_with_each_other(columns: Any) -> None:
    layout = laid_out(columns)
    buffer = bytearray(layout.size_bytes)
    views = layout.view(buffer)
    for number, view in enumerate(views.values()):
        view[...] = number % 2 + 1
    for number, ((shape, dtype), view) in enumerate(zip(columns, views.values(), strict=True)):
        assert (view.shape, view.dtype) == (shape, dtype)
        assert (view == np.asarray(number % 2 + 1).astype(dtype)).all()
    assert bool(sum(buffer)) == any(view.size for view in views.values())


def test_a_layout_can_be_sent_to_a_worker() -> None:
    layout = laid_out([((2, 3), np.float32), ((4,), np.bool_)])
    assert pickle.loads(pickle.dumps(layout)) == layout


def test_rows_have_a_column_for_everything() -> None:
    spec = spec_of(
        spaces.Dict({"a": spaces.Box(0, 1, (2,)), "b": spaces.Text(3)}),
        spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 1, (4,)))),
    )
    layout = RowLayout(spec, num_envs=5, blocks=3, with_final=True)
    rows = Rows(layout, layout.private())
    assert [None if column is None else column.shape for column in rows.obs] == [(3, 5, 2), None]
    assert [None if column is None else column.shape for column in rows.final] == [(5, 2), None]
    assert [column.shape for column in rows.action if column is not None] == [(5,), (5, 4)]
    for column, dtype in (
        (rows.reward, np.float64),
        (rows.elapsed, np.int32),
        (rows.terminated, np.bool_),
        (rows.truncated, np.bool_),
        (rows.first, np.bool_),
    ):
        assert (column.shape, column.dtype) == ((3, 5), dtype)
        assert not column.any()


def test_only_same_step_keeps_last_observations() -> None:
    layout = RowLayout(spec_of(spaces.Box(0, 1, (2,))), 2)
    rows = Rows(layout, layout.private())
    assert rows.final == []
    assert RowWriter(rows, 0).put_final is None


# ---------------------------------------------------------------------- arena


@pytest.fixture
def shared_fd() -> Any:
    fd = Arena.open_file()
    yield fd
    os.close(fd)


@pytest.mark.parametrize("size", [0, 1, 5000])
def test_reserved_memory_is_zeroed_and_as_large_as_asked(shared_fd: int, size: int) -> None:
    arena = Arena.reserve(shared_fd, size)
    assert arena.size_bytes == max(size, 1)
    assert bytes(arena.buffer) == bytes(max(size, 1))
    assert os.fstat(shared_fd).st_size >= size
    arena.buffer.close()


def test_two_maps_of_one_file_are_the_same_memory(shared_fd: int) -> None:
    mine, yours = Arena.reserve(shared_fd, 64), Arena(shared_fd, 64)
    mine.buffer[3] = 7
    assert yours.buffer[3] == 7
    mine.buffer.close()
    yours.buffer.close()


def test_shared_memory_is_not_inherited_and_has_no_name(shared_fd: int) -> None:
    assert not os.get_inheritable(shared_fd)
    assert "(deleted)" in os.readlink(f"/proc/self/fd/{shared_fd}")


def test_the_address_is_where_the_array_lies(shared_fd: int) -> None:
    arena = Arena.reserve(shared_fd, 256)
    layout = laid_out([((3,), np.int64), ((2,), np.int64)])
    views = layout.view(arena.buffer)
    assert arena.address(views["column1"]) - arena.address(views["column0"]) == CACHE_LINE
    assert arena.address(views["column0"]) % CACHE_LINE == 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ENOMEM, errno.EFBIG])
def test_no_room_is_an_error_at_the_start(shared_fd: int, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ResourceError, match=r"no room for 3\.0 MiB of shared memory \(.*\); use fewer envs") as caught:
        Arena.reserve(shared_fd, 3 * 2**20)
    assert caught.value.errno == code
    assert os.strerror(code) in str(caught.value)


# ---------------------------------------------------------------------- writers


def writer_for(space: spaces.Space[Any], rows: int = 2, check: str = "always") -> tuple[Any, Any]:
    """A ``put`` for values of the space, and a function that shows the columns."""
    tree = SpaceTree(space, "observation")
    columns = [np.zeros((rows, *leaf.shape), leaf.dtype) if leaf.is_array else None for leaf in tree.leaves]
    return tree_writer(tree, columns, check), columns


SCALAR_SPACES = [
    spaces.Discrete(9),
    *(spaces.Box(0, 9, (), dtype) for dtype in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32)),
    *(spaces.Box(0, 9, (), dtype) for dtype in (np.int64, np.uint64, np.float16, np.float32, np.float64)),
    *(spaces.Box(0, 9, (), np.dtype(name)) for name in (">i4", ">f8", "longdouble")),
]


@pytest.mark.parametrize("space", SCALAR_SPACES, ids=lambda space: f"{type(space).__name__} {space.dtype}")
def test_scalars_of_every_dtype_are_stored(space: Any) -> None:
    put, (column,) = writer_for(space)
    for value in (space.dtype.type(5), np.array(5, space.dtype), 5):
        column[:] = 0
        assert put(1, value) is None
        assert column.tolist() == [0, 5]


@pytest.mark.parametrize("name", ["float16", "longdouble", ">i2", ">i8", ">f4", ">f8"])
def test_vectors_of_uncommon_types_are_stored(name: str) -> None:
    put, (column,) = writer_for(spaces.Box(0, 9, (3,), np.dtype(name)))
    put(1, np.array([1, 2, 3], name))
    assert column.tolist() == [[0, 0, 0], [1, 2, 3]]


@pytest.mark.parametrize("value", [2.5, np.float32(2.5), np.array(2.5), np.float16(2.5)], ids=repr)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_scalar_floats_are_cast(dtype: Any, value: Any) -> None:
    put, (column,) = writer_for(spaces.Box(-9, 9, (), dtype))
    put(0, value)
    assert column.tolist() == [2.5, 0.0]


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (spaces.Discrete(3), 10**30, "observation: "),
        (spaces.Discrete(3), -(10**30), "observation: "),
        (spaces.Discrete(3), 1.0, "expected dtype int64, got float64"),
        (spaces.Discrete(3), None, "observation: "),
        (spaces.Discrete(3), np.array([1]), r"expected shape \(\), got \(1,\)"),
        (spaces.Box(0, 9, (), np.uint8), 256, "overflows uint8"),
        (spaces.Box(0, 9, (), np.uint8), -1, "overflows uint8"),
        (spaces.Box(0, 9, (), np.float32), 1e300, "overflows float32"),
        (spaces.Box(0, 9, (), np.float32), "1", "expected dtype float32"),
        (spaces.Box(0, 9, (2,)), np.float32(1), r"expected shape \(2,\), got \(\)"),
        (spaces.Box(0, 9, (2,)), np.zeros(1, np.float32), r"expected shape \(2,\), got \(1,\)"),
        (spaces.Box(0, 9, (2,)), np.zeros((1, 2), np.float32), r"expected shape \(2,\), got \(1, 2\)"),
        (spaces.Box(0, 9, (2,)), np.full(2, 1e300), "overflows float32"),
        (spaces.Box(0, 9, (2,)), None, "observation: "),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_does_not_fit_is_refused_and_leaves_the_row(space: Any, value: Any, message: str) -> None:
    put, (column,) = writer_for(space)
    with pytest.raises(SpecError, match=message):
        put(0, value)
    assert not column.any()


@pytest.mark.parametrize(
    "value",
    [
        np.array([1, 2], np.float32),
        np.array([1, 2], ">f4"),
        np.array([1.0, 2.0]),
        np.array([9, 1, 9, 2], np.float32)[1::2],
        np.array([1, 2], np.float32).view(np.ndarray),
        [1, 2],
        (1.0, 2.0),
    ],
    ids=["exact", "other byte order", "float64", "strided", "view", "list", "tuple"],
)
def test_arrays_are_stored_by_value(value: Any) -> None:
    put, (column,) = writer_for(spaces.Box(0, 9, (2,)))
    put(1, value)
    if isinstance(value, np.ndarray):
        value[:] = 7
    assert column.tolist() == [[0, 0], [1, 2]]


@pytest.mark.parametrize("dtype", "?bBhHiIlLqQefd")
def test_vectors_of_every_dtype_are_stored(dtype: str) -> None:
    put, (column,) = writer_for(spaces.Box(0, 1, (2,), np.dtype(dtype).type))
    put(1, np.array([0, 1], dtype))
    assert column.tolist() == [[0, 0], [0, 1]]


def test_a_writer_that_has_seen_something_odd_still_judges() -> None:
    put, (column,) = writer_for(spaces.Box(0, 9, (2,)))
    put(0, [1, 2])
    put(1, np.array([3, 4], np.float32))
    assert column.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(SpecError, match="expected shape"):
        put(1, np.zeros(1, np.float32))
    assert column.tolist() == [[1, 2], [3, 4]]


def test_unchecked_writers_leave_it_to_numpy() -> None:
    put, (column,) = writer_for(spaces.Box(0, 9, (2,)), check="off")
    put(0, 3)
    assert column.tolist() == [[3, 3], [0, 0]]


VECTORS = spaces.Dict({"near": spaces.Box(0, 9, (2,)), "far": spaces.Box(0, 9, (3,), np.int16)})


def test_many_vectors_are_written_whatever_form_they_come_in() -> None:
    put, (far, near) = writer_for(VECTORS, rows=3)
    put(0, {"near": np.array([1, 2], np.float32), "far": np.array([3, 4, 5], np.int16)})
    put(1, {"near": [6, 7], "far": np.array([1, 2, 3])})
    put(2, {"near": np.array([8, 9], np.float32), "far": np.array([7, 8, 9], np.int16)})
    assert near.tolist() == [[1, 2], [6, 7], [8, 9]]
    assert far.tolist() == [[3, 4, 5], [1, 2, 3], [7, 8, 9]]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"near": np.zeros(3, np.float32), "far": np.zeros(3, np.int16)}, r"near.*expected shape \(2,\), got \(3,\)"),
        ({"near": np.zeros(2, np.float32), "far": np.zeros(3)}, "far.*expected dtype int16"),
        ({"near": np.zeros(2, np.float32)}, "far"),
    ],
)
def test_many_vectors_are_judged_one_by_one(value: Any, told: str) -> None:
    put, _ = writer_for(VECTORS)
    for _ in range(2):
        with pytest.raises(SpecError, match=told):
            put(0, value)


def test_nothing_can_be_written_too() -> None:
    put, columns = writer_for(spaces.Dict({}))
    assert put(0, {}) is None
    assert columns == []


def test_a_nested_value_goes_to_its_columns() -> None:
    env = DictTupleEnv()
    tree = SpaceTree(env.observation_space, "observation")
    put, columns = writer_for(env.observation_space)
    obs, _ = env.reset(seed=0)
    assert put(1, obs) is None
    for column, leaf in zip(columns, tree.flatten(obs), strict=True):
        np.testing.assert_array_equal(column[1], leaf)
        assert not column[0].any()


def test_objects_come_back_in_leaf_order() -> None:
    space = spaces.Dict({"a": spaces.Text(3), "b": spaces.Discrete(3), "c": spaces.Sequence(spaces.Discrete(2))})
    put, columns = writer_for(space)
    assert put(0, {"a": "x", "b": 2, "c": (0, 1)}) == ["x", (0, 1)]
    assert columns[0] is columns[2] is None
    assert columns[1].tolist() == [2, 0]


def test_a_single_object_comes_back_alone() -> None:
    put, columns = writer_for(spaces.Text(3))
    assert put(0, "abc") == ["abc"]
    assert columns == [None]


@pytest.mark.parametrize("value", [{"a": 1}, {"a": 1, "b": 2, "c": 3}, (1, 2), None], ids=repr)
@pytest.mark.parametrize("other", [spaces.Discrete(3), spaces.Text(3)], ids=["array", "object"])
def test_a_nested_value_of_another_structure_is_refused(other: Any, value: Any) -> None:
    put, _ = writer_for(spaces.Dict({"a": spaces.Discrete(3), "b": other}))
    with pytest.raises(SpecError, match="observation: "):
        put(0, value)


def test_blocks_are_written_apart() -> None:
    layout = RowLayout(spec_of(spaces.Box(0, 9, (1,), np.int64)), num_envs=2, blocks=2, with_final=True)
    rows = Rows(layout, layout.private())
    writer = RowWriter(rows, 1)
    writer.put_obs(0, np.array([4]))
    writer.reward[0] = 0.5
    writer.elapsed[1] = 3
    writer.terminated[1] = writer.truncated[0] = writer.first[1] = True
    assert writer.put_final is not None
    writer.put_final(1, np.array([8]))
    assert rows.obs[0] is not None
    assert rows.obs[0].tolist() == [[[0], [0]], [[4], [0]]]
    assert rows.reward.tolist() == [[0, 0], [0.5, 0]]
    assert rows.elapsed.tolist() == [[0, 0], [0, 3]]
    assert rows.terminated.tolist() == rows.first.tolist() == [[False, False], [False, True]]
    assert rows.truncated.tolist() == [[False, False], [True, False]]
    assert rows.final[0] is not None
    assert rows.final[0].tolist() == [[0], [8]]
