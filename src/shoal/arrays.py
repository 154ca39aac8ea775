"""The memory of a pool: every number that N envs exchange with their caller, as a struct of arrays.

    Layout    where each named column is in one block of memory; plain data, so it can be sent to a worker
    Arena     the block itself, which other processes can map through an unnamed file
    Rows      the result columns, indexed by env id: observation leaves, reward, flags, elapsed steps
    RowWriter puts one env's result into its row, checking it on the way

Shared memory is a memfd (or, where there is none, a temporary file that is unlinked at once). It has no name that
could be left behind or guessed, and its pages are reserved before use, so that a full disk or tmpfs is an error at
startup rather than a SIGBUS in the middle of a run.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np

from shoal.errors import ResourceError, SpecError
from shoal.machine import available_memory_bytes
from shoal.spec import EnvSpec, Leaf, SpaceTree, flattener, numpys_own
from shoal.streams import keep_streams_taken

ALIGNMENT = 64  # a cache line, so that two workers never write to the same one at a column border
Columns = dict[str, np.ndarray[Any, Any]]


@dataclass
class Layout:
    """Names, shapes and offsets of columns in one block of memory."""

    size_bytes: int = 0
    columns: dict[str, tuple[int, tuple[int, ...], np.dtype[Any]]] = field(default_factory=dict)

    def add(self, name: str, shape: tuple[int, ...], dtype: Any) -> None:
        """Reserve room for one column."""
        offset = -(-self.size_bytes // ALIGNMENT) * ALIGNMENT
        dtype = np.dtype(dtype)
        self.columns[name] = (offset, shape, dtype)
        self.size_bytes = offset + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize

    def view(self, buffer: Any) -> Columns:
        """The columns as arrays over ``buffer``; nothing is copied."""
        return {
            name: np.ndarray(shape, numpys_own(dtype), buffer, offset)
            for name, (offset, shape, dtype) in self.columns.items()
        }


class Arena:
    """A block of zeroed memory that several processes can map through its file descriptor."""

    def __init__(self, fd: int, size_bytes: int) -> None:
        self.fd = fd
        self.size_bytes = max(size_bytes, 1)
        keep_streams_taken()  # the mapping keeps its own duplicate of the file descriptor
        self.buffer = mmap.mmap(fd, self.size_bytes)

    @classmethod
    def reserve(cls, fd: int, size_bytes: int) -> Arena:
        """Give the file behind ``fd`` its pages now, so that no later write can fail.

        Raises:
            ResourceError: If the system has no room for them.
        """
        # Reserving more than there is would wake the out-of-memory killer, so the size is checked first.
        if size_bytes > available_memory_bytes():
            raise no_room(size_bytes, errno.ENOMEM)
        try:
            os.posix_fallocate(fd, 0, max(size_bytes, 1))
            return cls(fd, size_bytes)
        except (OSError, ValueError) as error:
            raise no_room(size_bytes, getattr(error, "errno", None) or errno.ENOMEM) from error

    @staticmethod
    def open_file() -> int:
        """A file descriptor for shared memory that has no name anywhere."""
        if hasattr(os, "memfd_create"):
            return os.memfd_create("shoal", os.MFD_CLOEXEC)
        with tempfile.TemporaryFile(prefix="shoal") as file:
            return os.dup(file.fileno())

    def address(self, array: np.ndarray[Any, Any]) -> int:
        """The address, in this process, of an array in this arena."""
        return int(array.ctypes.data)


def no_room(size_bytes: int, code: int) -> ResourceError:
    """The error for memory that cannot be allocated."""
    return ResourceError(
        code,
        f"no room for {size_bytes / 2**20:.1f} MiB of shared memory ({os.strerror(code)}); "
        "use fewer envs, smaller observations, or raise the memory limit",
    )


@dataclass(frozen=True)
class RowLayout:
    """Which columns hold the results and actions of ``num_envs`` envs of one spec.

    ``blocks`` is how many generations of results are kept: one when every batch is copied out, more when
    callers get views that must outlive the next step.
    """

    spec: EnvSpec
    num_envs: int
    blocks: int = 1
    with_final: bool = False

    def reserve(self, layout: Layout) -> None:
        """Add all columns to ``layout``."""
        rows = (self.blocks, self.num_envs)
        for name, leaf in _array_leaves("obs", self.spec.observation):
            layout.add(name, (*rows, *leaf.shape), leaf.dtype)
        layout.add("reward", rows, np.float64)
        layout.add("elapsed", rows, np.int32)
        for name in ("terminated", "truncated", "first"):
            layout.add(name, rows, np.bool_)
        for told in self.spec.info:
            layout.add(f"info.{told.name}", (*rows, *told.shape), told.dtype)
        if self.with_final:
            for name, leaf in _array_leaves("final", self.spec.observation):
                layout.add(name, (self.num_envs, *leaf.shape), leaf.dtype)
            for told in self.spec.info:
                layout.add(f"final_info.{told.name}", (self.num_envs, *told.shape), told.dtype)
        for name, leaf in _array_leaves("action", self.spec.action):
            layout.add(name, (self.num_envs, *leaf.shape), leaf.dtype)

    def private(self) -> Columns:
        """All columns, in memory private to this process."""
        layout = Layout()
        self.reserve(layout)
        return layout.view(bytearray(layout.size_bytes))


class Rows:
    """The result and action columns, by meaning; leaf columns are lists in leaf order, with None for object leaves."""

    def __init__(self, layout: RowLayout, columns: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self.layout = layout
        self.spec = layout.spec
        self.reward = columns["reward"]
        self.terminated = columns["terminated"]
        self.truncated = columns["truncated"]
        self.elapsed = columns["elapsed"]
        self.first = columns["first"]
        self.obs = _leaf_columns("obs", self.spec.observation, columns)
        self.final = _leaf_columns("final", self.spec.observation, columns) if layout.with_final else []
        self.action = _leaf_columns("action", self.spec.action, columns)
        fields = [field.name for field in self.spec.info]
        self.info = {name: columns[f"info.{name}"] for name in fields}
        self.final_info = {name: columns[f"final_info.{name}"] for name in fields} if layout.with_final else {}

    def of_block(self, block: int) -> Columns:
        """The columns of one block, by name, without object leaves."""
        return {
            **{name: getattr(self, name)[block] for name in ("reward", "elapsed", "terminated", "truncated", "first")},
            **{f"obs{j}": column[block] for j, column in enumerate(self.obs) if column is not None},
            **{f"info_{name}": column[block] for name, column in self.info.items()},
        }


def span(ids: Sequence[int] | np.ndarray[Any, Any]) -> slice | None:
    """Sorted ids as a slice if they are consecutive, because views cost next to nothing; else None.

    Example:
        >>> span([4, 5, 6]), span([4, 6])
        (slice(4, 7, None), None)
    """
    if not len(ids):
        return None
    first, last = int(ids[0]), int(ids[-1])
    return slice(first, last + 1) if last - first == len(ids) - 1 else None


def ordered_span(ids: Sequence[int]) -> slice | None:
    """``span`` for ids in any order: None unless each is followed by the next.

    Example:
        >>> ordered_span([4, 5, 6]), ordered_span([4, 6, 5, 7])
        (slice(4, 7, None), None)
    """
    part = span(ids)
    return part if part is not None and list(ids) == list(range(part.start, part.stop)) else None


def has_true(mask: np.ndarray[Any, Any]) -> bool:
    """``mask.any()``, but for a few flags in a tenth of the time.

    Example:
        >>> has_true(np.array([False, True])), has_true(np.array([False]))
        (True, False)
    """
    return b"\1" in mask.tobytes()


def words(array: np.ndarray[Any, Any]) -> memoryview:
    """A one-dimensional array as a memoryview: reading and writing single items takes a third of the time."""
    return memoryview(array)  # type: ignore[arg-type]


def _array_leaves(prefix: str, tree: SpaceTree) -> list[tuple[str, Leaf]]:
    return [(f"{prefix}{j}", leaf) for j, leaf in enumerate(tree.leaves) if leaf.is_array]


def _leaf_columns(prefix: str, tree: SpaceTree, columns: Mapping[str, Any]) -> list[np.ndarray[Any, Any] | None]:
    return [columns[f"{prefix}{j}"] if leaf.is_array else None for j, leaf in enumerate(tree.leaves)]


class RowWriter:
    """Writes results of single envs into one block of rows.

    Scalars go through memoryviews, which take a third of the time of a numpy item assignment.
    """

    __slots__ = ("_fields", "elapsed", "first", "put_final", "put_obs", "reward", "terminated", "truncated")

    def __init__(self, rows: Rows, block: int, check: str = "always") -> None:
        self.reward = words(rows.reward[block])
        self.terminated = words(rows.terminated[block])
        self.truncated = words(rows.truncated[block])
        self.elapsed = words(rows.elapsed[block])
        self.first = words(rows.first[block])
        tree = rows.spec.observation
        self.put_obs = tree_writer(tree, [column if column is None else column[block] for column in rows.obs], check)
        self.put_final = tree_writer(tree, rows.final, check) if rows.layout.with_final else None
        self._fields = {name: column[block] for name, column in rows.info.items()}

    def put_info(self, row: int, info: dict[str, Any]) -> dict[str, Any]:
        """Store the info fields that have columns, with zeros for missing ones, and return the other fields."""
        fields = self._fields
        if not fields:
            return info
        for name, column in fields.items():
            column[row] = info.get(name, 0)
        return {name: value for name, value in info.items() if name not in fields}


Put = Callable[[int, Any], "list[Any] | None"]


def tree_writer(tree: SpaceTree, columns: list[np.ndarray[Any, Any] | None], check: str = "always") -> Put:
    """A function ``put(row, value)`` that stores a nested value and returns what no column can hold.

    What it returns is None, or the values of the object leaves in leaf order.
    """
    writers = [_leaf_writer(leaf, column, check) for leaf, column in zip(tree.leaves, columns, strict=True)]
    if tree.is_single:
        write = writers[0]
        return (lambda row, value: [write(row, value)]) if tree.has_objects else write
    flatten = flattener(tree)
    if not tree.has_objects:
        return _vectors_writer(tree, columns, writers, flatten)
    are_objects = [column is None for column in columns]

    def put_mixed(row: int, value: Any) -> list[Any]:
        written = [write(row, item) for write, item in zip(writers, flatten(value), strict=True)]
        return list(compress(written, are_objects))

    return put_mixed


def _vectors_writer(
    tree: SpaceTree,
    columns: list[Any],
    writers: list[Callable[[int, Any], Any]],
    flatten: Callable[[Any], list[Any]],
) -> Put:
    """A writer of nested arrays; if all are vectors, it does what ``_vector_writer`` does, without a call for each."""
    are_exact = all(_is_plain_vector(leaf) for leaf in tree.leaves)
    homes = [_places_of_rows(column) for column in columns] if are_exact else []

    def put_arrays(row: int, value: Any) -> None:
        nonlocal are_exact
        values = flatten(value)
        if are_exact:
            try:
                for (items, places), item in zip(homes, values, strict=True):
                    items[places[row]] = item
                return
            except (TypeError, ValueError):
                are_exact = False
        for write, item in zip(writers, values, strict=True):
            write(row, item)

    return put_arrays


def _leaf_writer(leaf: Leaf, column: np.ndarray[Any, Any] | None, check: str) -> Callable[[int, Any], Any]:
    """A function that puts a value into its row of the column or, if there is no column, returns it to be carried."""
    if column is None:
        return _object_carrier(leaf, check)
    if leaf.shape:
        judge = _as_it_is if check == "off" else leaf.fit
        return (_vector_writer if len(leaf.shape) == 1 else _array_writer)(leaf, column, judge)
    if check == "off":
        return column.__setitem__
    dtype, fit = leaf.dtype, leaf.fit
    view: Any = words(column) if _is_common(dtype) else column
    exact = (int, np.int64) if dtype == np.int64 else (dtype.type,)

    def write_scalar(row: int, value: Any) -> None:
        if value.__class__ in exact:
            try:
                view[row] = value
            except ValueError as error:
                raise SpecError(f"{leaf.path}: {value} does not fit {dtype}") from error
        else:
            view[row] = fit(value).item()

    return write_scalar


def _vector_writer(leaf: Leaf, column: np.ndarray[Any, Any], judge: Callable[[Any], Any]) -> Callable[[int, Any], None]:
    """A function that writes vectors through a memoryview.

    A memoryview accepts exactly its own length and type, so the copy is also the check. That takes half the time of
    numpy's assignment, which would broadcast and cast.
    """
    write_any = _array_writer(leaf, column, judge)
    if not _is_plain_vector(leaf):
        return write_any
    items, places = _places_of_rows(column)
    is_exact = True

    def write_vector(row: int, value: Any) -> None:
        nonlocal is_exact
        if is_exact:
            try:
                items[places[row]] = value
                return
            except (TypeError, ValueError):
                is_exact = False  # an env that returns lists, or doubles for floats, will keep doing so
        write_any(row, value)

    return write_vector


def _is_plain_vector(leaf: Leaf) -> bool:
    """Whether rows of this leaf can be written through a memoryview."""
    return leaf.is_array and len(leaf.shape) == 1 and leaf.dtype.kind in "?biuf" and _is_common(leaf.dtype)


def _is_common(dtype: np.dtype[Any]) -> bool:
    """Whether memoryviews support the dtype: no half or long floats, and only the machine's own byte order."""
    return dtype.isnative and dtype.char not in "eg"


def _places_of_rows(column: np.ndarray[Any, Any]) -> tuple[memoryview, list[slice]]:
    """A column of vectors as one flat run of numbers, and the slice that holds each vector."""
    flat = column.view()
    flat.shape = (-1,)  # unlike reshape, never a copy
    length = column.shape[1]
    return words(flat), [slice(row * length, (row + 1) * length) for row in range(len(column))]


def _array_writer(leaf: Leaf, column: np.ndarray[Any, Any], judge: Callable[[Any], Any]) -> Callable[[int, Any], None]:
    shape, dtype, ndarray = leaf.shape, leaf.dtype, np.ndarray

    def write_array(row: int, value: Any) -> None:
        # Numpy would broadcast a smaller value and cast any number, so all but exact matches are judged first.
        if value.__class__ is ndarray and value.dtype is dtype and value.shape == shape:
            column[row] = value
        else:
            column[row] = judge(value)

    return write_array


def _as_it_is(value: Any) -> Any:
    return value


def _object_carrier(leaf: Leaf, check: str) -> Callable[[int, Any], Any]:
    """A function that returns a copy of the value to carry; with ``check="first"`` it checks each row only once."""
    seen: set[int] = set()

    def carry(row: int, value: Any) -> Any:
        # Some spaces check every character of a text, so unlike the check of an array, this one is not cheap.
        if check == "always" or (check == "first" and row not in seen):
            leaf.fit(value)
            seen.add(row)
        # A later step may change the object before the row is read.
        return deepcopy(value)

    return carry
