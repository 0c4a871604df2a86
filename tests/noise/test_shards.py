"""Reading the headers of safetensors files, against the format's own library and against damage."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnirl.errors import InvalidInput
from omnirl.noise import shards


def write(path: Path, header: Any, content: bytes = b"") -> Path:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + content)
    return path


def entry(start: int, end: int, dtype: str = "U8", shape: list[int] | None = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - start] if shape is None else shape, "data_offsets": [start, end]}


def test_what_the_library_writes(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    tensors = {
        "b.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.ones(3, np.float16),
        "none": np.ones((0, 4), np.float64),
        "one": np.array(7, np.int64),
        "flags": np.array([True, False]),
    }
    library.save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (shard,) = shards.find(tmp_path)
    content = shard.path.read_bytes()
    assert {tensor.name for tensor in shard.tensors} == set(tensors)
    for tensor in shard.tensors:
        assert tensor.elements == tensors[tensor.name].size
        assert content[tensor.start : tensor.start + tensor.size_bytes] == tensors[tensor.name].tobytes()
    assert content[shard.header_bytes :][:4] in {value.tobytes()[:4] for value in tensors.values()}
    assert shard.size_bytes == len(content)


@pytest.mark.parametrize(
    ("header", "content", "fault"),
    [
        (b"{]", b"", "damaged header"),
        (b"[1]", b"", "damaged header"),
        (b"[" * 100_000, b"", "damaged header"),
        ({"a": 3}, b"", "damaged header, at `a`"),
        ({"a": entry(0, 4) | {"shape": [4.0]}}, b"1234", "damaged header, at `a`"),
        ({"a": entry(0, 4) | {"shape": [True, 4]}}, b"1234", "damaged header, at `a`"),
        ({"a": entry(-4, 4) | {"shape": [8]}}, b"1234", "damaged header, at `a`"),
        ({"a": entry(0, 4, dtype="Q4")}, b"1234", "unknown type `Q4`"),
        ({"a": entry(0, 4, shape=[3])}, b"1234", "4 bytes for 3 elements of U8"),
        ({"a": entry(0, 4, shape=[10**6] * 9)}, b"1234", "4 bytes for"),
        ({"a": entry(0, 4), "b": entry(2, 6)}, b"123456", "do not follow"),
        ({"a": entry(0, 4), "b": entry(5, 6)}, b"123456", "do not follow"),
        ({"a": entry(0, 4)}, b"123", "has [0-9]+ bytes, and its header tells"),
        ({"a": entry(0, 4)}, b"12345", "header tells"),
    ],
)
def test_damage(tmp_path: Path, header: Any, content: bytes, fault: str) -> None:
    with pytest.raises(InvalidInput, match=fault):
        shards.read(write(tmp_path / "model.safetensors", header, content))


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "cut short"),
        (b"1234567", "cut short"),
        (struct.pack("<Q", 1 << 60), "cut short"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    ],
)
def test_no_header(tmp_path: Path, content: bytes, fault: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(InvalidInput, match=fault):
        shards.find(tmp_path)


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no folder"):
        shards.find(tmp_path / "Qwen" / "absent")
    with pytest.raises(InvalidInput, match="has neither"):
        shards.find(tmp_path)


@pytest.mark.parametrize(
    ("weight_map", "fault"),
    [
        (None, "damaged"),
        ({}, "damaged"),
        ({"a": 1}, "damaged"),
        ({"a": "../model.safetensors"}, "damaged"),
        ({"a": "/etc/x.safetensors"}, "damaged"),
        ({"a": "3.safetensors"}, "cannot be read: no such file"),
        ({"a": "1.safetensors", "z": "1.safetensors"}, "says that `z` is in `1.safetensors`, and it is not"),
        ({"a": "1.safetensors", "b": "1.safetensors", "c": "2.safetensors"}, "says that `b`"),
        ({"a": "1.safetensors", "b": "copy.safetensors"}, "`a` is in `1.safetensors` and in `copy.safetensors`"),
    ],
)
def test_an_index_that_disagrees(tmp_path: Path, weight_map: Any, fault: str) -> None:
    write(tmp_path / "1.safetensors", {"a": entry(0, 1)}, b"1")
    write(tmp_path / "copy.safetensors", {"a": entry(0, 1), "b": entry(1, 2)}, b"12")
    write(tmp_path / "2.safetensors", {"c": entry(0, 1)}, b"1")
    (tmp_path / shards.INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(InvalidInput, match=fault):
        shards.find(tmp_path)


def test_the_files_that_an_index_names(tmp_path: Path) -> None:
    write(tmp_path / "2.safetensors", {"b": entry(0, 1)}, b"1")
    write(tmp_path / "1.safetensors", {"a": entry(0, 1)}, b"1")
    write(tmp_path / "left.safetensors", b"{]", b"")
    (tmp_path / shards.INDEX).write_text(json.dumps({"weight_map": {"b": "2.safetensors", "a": "1.safetensors"}}))
    assert [shard.path.name for shard in shards.find(tmp_path)] == ["1.safetensors", "2.safetensors"]
