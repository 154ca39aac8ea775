"""Files that are there as a whole or not at all."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest
from full_disk import NO_ROOM, no_room

from shoal.files import write_whole

if TYPE_CHECKING:
    from pathlib import Path


def test_a_new_file_replaces_the_old_one_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (b"first", b"and second"):
        write_whole(path, data)
        assert path.read_bytes() == data
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    other, path = tmp_path / "other", tmp_path / "file"
    other.write_text("mine")
    path.symlink_to(other)
    write_whole(path, b"new")
    assert (other.read_text(), path.read_bytes(), path.is_symlink()) == ("mine", b"new", False)


@pytest.mark.parametrize("name", ["file", "another"])
def test_without_room_nothing_is_left_but_what_was_there(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")
    with pytest.raises(OSError, match=NO_ROOM), no_room():
        write_whole(tmp_path / name, b"larger than that")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
