"""Small files: whole or not at all, and faults of the disk by name."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from omnirl.errors import EnvironmentLacks
from omnirl.files import disk_faults, link, read_json, write_json, write_text


def test_a_document_comes_back_and_nothing_else_is_left(tmp_path: Path) -> None:
    document = {"name": "Größe", "path": tmp_path, "n": 1}
    write_json(tmp_path / "a.json", {"old": True})
    write_json(tmp_path / "a.json", document)
    assert read_json(tmp_path / "a.json") == {**document, "path": str(tmp_path)}
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000, "\xff"])
def test_what_is_no_document_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text, encoding="latin-1")
    assert read_json(tmp_path / "a.json") is None
    assert read_json(tmp_path / "absent.json") is None


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "first")
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.txt", {("not", "a key"): 1})
    assert (tmp_path / "a.txt").read_text() == "first"
    with pytest.raises(EnvironmentLacks, match="cannot be written"):
        write_text(tmp_path / "a.txt" / "b.txt", "second")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_a_link_is_replaced(tmp_path: Path) -> None:
    link(tmp_path / "latest", "attempts/1")
    link(tmp_path / "latest", "attempts/2")
    assert (tmp_path / "latest").readlink() == Path("attempts/2")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EDQUOT, errno.ENOSPC, errno.EFBIG, errno.ENOTDIR])
def test_faults_of_the_disk_are_the_environments(number: int, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacks) as caught, disk_faults(tmp_path / "x.parquet"):
        raise OSError(number, os.strerror(number))
    assert str(tmp_path) in caught.value.message
    assert caught.value.hint
