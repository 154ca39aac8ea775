"""Parts of a dataset as files: Parquet through pyarrow, or numpy's npz.

A part is written under a name that begins with a dot, and gets its own name once all of it is on disk. So a file with
a part's name is a whole part at any moment.
"""

from __future__ import annotations

import os
import zipfile
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, Protocol

import numpy as np

from shoal.arguments import check_choice
from shoal.collect.columns import TEXT, Column, Columns
from shoal.errors import ArgumentError, BackendUnavailable, ResourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

FORMATS = ("parquet", "npz")
# Rows go to disk in groups of about this size, so that a large part need not fit into memory.
_GROUP_BYTES = 32 * 2**20
_GROUP_ROWS = 2**16


class PartWriter(Protocol):
    """Takes the rows of one part."""

    def add(self, rows: Columns) -> None:
        """Append rows."""

    def finish(self) -> None:
        """Write what is left."""

    def abandon(self) -> None:
        """Let go of the file; what is in it will be deleted."""


def check_format(name: str, columns: Sequence[Column]) -> None:
    """Raise if parts of this format cannot be written here, before anything is collected."""
    check_choice("format", name, FORMATS)
    if name == "parquet":
        _schema(columns)


@contextmanager
def part_writer(
    path: Path, name: str, columns: Sequence[Column], make_way: Callable[[], None] | None = None
) -> Iterator[PartWriter]:
    """A writer of one part, which appears under its name if the block ends well, and not at all if it does not.

    ``make_way`` is called when the part is complete and on disk, just before it gets its name.
    """
    with atomic_file(path, make_way) as file:
        writer: PartWriter = (_ParquetWriter if name == "parquet" else _NpzWriter)(path, file, columns)
        try:
            yield writer
            writer.finish()
        except BaseException:
            writer.abandon()
            raise


@contextmanager
def atomic_file(path: Path, make_way: Callable[[], None] | None = None) -> Iterator[IO[bytes]]:
    """A file that gets its name when it is complete and on disk; if anything goes wrong, the old one stays.

    ``make_way`` is called in between.
    """
    draft = draft_of(path)
    with disk_errors(path):
        file = open(draft, "wb")  # noqa: SIM115 - closing it can fail too, and must not hide why
    try:
        yield file
        with disk_errors(path):
            file.flush()
            os.fsync(file.fileno())
            file.close()
        if make_way is not None:
            make_way()
        with disk_errors(path):
            draft.replace(path)
    except BaseException:
        with suppress(OSError):
            file.close()
        with suppress(OSError):
            draft.unlink()
        raise


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn errors of the disk into shoal's; only around writing, since policies and envs have errors of their own."""
    try:
        yield
    except OSError as error:
        raise ResourceError(f"{path}: cannot be written ({error.strerror or error})") from error


def draft_of(path: Path) -> Path:
    """The name of a file while it is being written; readers of Parquet folders skip names that begin with a dot."""
    return path.with_name(f".{path.name}.draft")


def read_part(path: Path, name: str, columns: Sequence[Column]) -> Columns:
    """The requested columns of a part.

    Raises:
        ArgumentError: If the file is not the part that it should be.
    """
    with _reading_errors(path):
        return (_read_parquet if name == "parquet" else _read_npz)(path, columns)


def rows_in(path: Path, name: str) -> int:
    """How many rows a part has, according to its footer or header, so that this takes no time.

    Raises:
        ArgumentError: If the file is missing, cut off, or something else.
    """
    with _reading_errors(path):
        return (_rows_in_parquet if name == "parquet" else _rows_in_npz)(path)


@contextmanager
def _reading_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ArgumentError(f"{path}: not a part that can be read ({reason})") from error


class _NpzWriter:
    """Writes all columns as arrays of one npz, uncompressed: numpy would take longer to compress than envs to step."""

    def __init__(self, path: Path, file: IO[bytes], columns: Sequence[Column]) -> None:
        self._path, self._file, self._columns = path, file, columns
        self._rows: list[Columns] = []

    def add(self, rows: Columns) -> None:
        self._rows.append(rows)

    def finish(self) -> None:
        whole: dict[str, Any] = {}
        for column in self._columns:
            values = np.concatenate([rows[column.name] for rows in self._rows])
            whole[column.name] = _as_unicode(column, values) if column.dtype == TEXT else values
        with disk_errors(self._path):
            np.savez(self._file, **whole)

    def abandon(self) -> None:
        self._rows = []


def _as_unicode(column: Column, values: Any) -> np.ndarray[Any, Any]:
    texts: np.ndarray[Any, Any] = np.array(values.tolist(), np.str_)
    if texts.tolist() != values.tolist():
        raise ArgumentError(f"{column.name}: a text that ends with a NUL cannot be kept in an npz; use Parquet")
    return texts


def _read_npz(path: Path, columns: Sequence[Column]) -> Columns:
    # Opened here, because numpy leaves the file open if it is not a zip.
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
        return {
            column.name: arrays[column.name].astype(object) if column.dtype == TEXT else arrays[column.name]
            for column in columns
        }


def _rows_in_npz(path: Path) -> int:
    with zipfile.ZipFile(path) as archive, archive.open("reward.npy") as file:
        np.lib.format.read_magic(file)
        shape, _, _ = np.lib.format.read_array_header_1_0(file)
    return int(shape[0])


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise BackendUnavailable(
            "Parquet needs pyarrow, which is not installed: pip install 'shoal[collect]', or use the format npz"
        ) from error
    return pyarrow


def _schema(columns: Sequence[Column]) -> Any:
    pa = _pyarrow()
    fields = []
    for column in columns:
        try:
            kind = pa.string() if column.dtype == TEXT else pa.from_numpy_dtype(np.dtype(column.dtype))
        except (pa.ArrowNotImplementedError, TypeError) as error:
            raise ArgumentError(f"{column.name}: Parquet has no {column.dtype}; use the format npz") from error
        # Any shape becomes a list of fixed size. A leaf without numbers has no column: Parquet has no lists of size 0.
        if column.shape and column.size:
            kind = pa.list_(kind, column.size)
        if column.size:
            fields.append(pa.field(column.name, kind, nullable=False, metadata={"shape": str(list(column.shape))}))
    return pa.schema(fields)


class _ParquetWriter:
    """Writes groups of equally many rows, however many come at a time, so that the same rows make the same file."""

    def __init__(self, path: Path, file: IO[bytes], columns: Sequence[Column]) -> None:
        pa = _pyarrow()
        self._path = path
        row_bytes = sum(column.row_bytes for column in columns)
        self._group_rows = max(1, min(_GROUP_ROWS, _GROUP_BYTES // max(1, row_bytes)))
        self._columns = [column for column in columns if column.size]
        self._schema = _schema(columns)
        # The numbers of envs and episodes repeat themselves; observations do not, and gain nothing from a dictionary.
        counts = [column.name for column in self._columns if column.dtype in ("int32", TEXT) and not column.shape]
        self._writer = pa.parquet.ParquetWriter(file, self._schema, compression="zstd", use_dictionary=counts)
        self._waiting: list[Columns] = []
        self._num_waiting = 0

    def add(self, rows: Columns) -> None:
        self._waiting.append(rows)
        self._num_waiting += len(rows["reward"])
        while self._num_waiting >= self._group_rows:
            self._write(self._group_rows)

    def finish(self) -> None:
        if self._num_waiting:
            self._write(self._num_waiting)
        with disk_errors(self._path):
            self._writer.close()

    def abandon(self) -> None:
        # Otherwise it would try to write the footer when it is garbage-collected, into a file that is closed by then.
        with suppress(Exception):
            self._writer.close()

    def _write(self, count: int) -> None:
        names = [column.name for column in self._columns]
        whole = {name: np.concatenate([rows[name] for rows in self._waiting]) for name in names}
        self._waiting = [{name: values[count:] for name, values in whole.items()}]
        self._num_waiting -= count
        pa = _pyarrow()
        arrays = [_to_arrow(pa, column, whole[column.name][:count]) for column in self._columns]
        with disk_errors(self._path):
            self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))


def _to_arrow(pa: Any, column: Column, values: Any) -> Any:
    if column.dtype == TEXT:
        return pa.array(values.tolist(), pa.string())
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, column.size) if column.shape else flat


def _read_parquet(path: Path, columns: Sequence[Column]) -> Columns:
    pa = _pyarrow()
    with pa.parquet.ParquetFile(path) as file:
        table = file.read(columns=[column.name for column in columns if column.size])
        rows = file.metadata.num_rows
    return {
        column.name: _from_arrow(table.column(column.name), column)
        if column.size
        else np.empty((rows, *column.shape), column.dtype)
        for column in columns
    }


def _rows_in_parquet(path: Path) -> int:
    return int(_pyarrow().parquet.read_metadata(path).num_rows)


def _from_arrow(chunked: Any, column: Column) -> np.ndarray[Any, Any]:
    if column.dtype == TEXT:
        return np.array(chunked.to_pylist(), object)
    parts = [
        (chunk.flatten() if column.shape else chunk).to_numpy(zero_copy_only=False).reshape(-1, *column.shape)
        for chunk in chunked.chunks
    ]
    # A copy even of a single part: Arrow's memory is read-only, and whoever reads the data may want to change it.
    return np.concatenate(parts) if parts else np.empty((0, *column.shape), column.dtype)
