"""The safetensors files of a checkpoint folder: what tensors they hold and where, read from headers and checked whole.

A file is the length of its header in eight bytes, the header in JSON, and the tensors one after the other.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

from omnirl.errors import InvalidInput

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
METADATA = "__metadata__"

SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
"""Bytes of one element by the format's name of its type."""

_LONGEST_HEADER, _LONGEST_INDEX, _MOST_FILES = 100 << 20, 256 << 20, 4096
_WHOLE = "copy or download the checkpoint again"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a file. `start` counts bytes from the beginning of the file."""

    name: str
    dtype: str
    elements: int
    start: int

    @property
    def size_bytes(self) -> int:
        return self.elements * SIZES[self.dtype]


@dataclass(frozen=True, slots=True)
class Shard:
    """One file: its tensors in the order of their bytes, which follow the header without a gap up to `size_bytes`."""

    path: Path
    tensors: tuple[Tensor, ...]
    header_bytes: int
    size_bytes: int


def find(folder: Path) -> tuple[Shard, ...]:
    """The files that hold a checkpoint's weights, in the order of their names.

    Raises:
        InvalidInput: no folder, no weights, a missing, damaged or cut file, an index that does not agree with the
            headers, or a tensor that is in two files.
    """
    if not folder.is_dir():
        raise InvalidInput(f"there is no folder `{folder}`", hint=f"hf download {folder} --local-dir DIR")
    index = folder / INDEX
    wanted = _indexed(index) if index.is_file() else {}
    names = sorted(set(wanted.values())) or [SINGLE]
    if not wanted and not (folder / SINGLE).is_file():
        raise InvalidInput(f"`{folder}` has neither `{SINGLE}` nor `{INDEX}`", hint="name a checkpoint folder")
    shards = tuple(read(folder / name) for name in names)
    held: dict[str, str] = {}
    for shard in shards:
        for tensor in shard.tensors:
            if tensor.name in held:
                raise InvalidInput(f"`{tensor.name}` is in `{held[tensor.name]}` and in `{shard.path.name}`")
            held[tensor.name] = shard.path.name
    if wrong := next((name for name, file in wanted.items() if held.get(name) != file), None):
        raise InvalidInput(f"`{index}` says that `{wrong}` is in `{wanted[wrong]}`, and it is not", hint=_WHOLE)
    return shards


def read(path: Path) -> Shard:
    """The header of one file, checked against the file's length.

    Raises:
        InvalidInput: it is missing, or no safetensors file, or damaged, or cut short.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            if start.startswith(b"version "):
                raise InvalidInput(f"`{path}` is a Git LFS pointer, not the weights", hint="git lfs pull")
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            if not 2 <= length <= min(_LONGEST_HEADER, size - 8):
                raise InvalidInput(f"`{path}` is no safetensors file, or cut short", hint=_WHOLE)
            header = json.loads(file.read(length))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InvalidInput(f"`{path}` cannot be read: {reason}", hint=_WHOLE) from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"`{path}` has a damaged header", hint=_WHOLE) from error
    if not isinstance(header, dict):
        raise InvalidInput(f"`{path}` has a damaged header", hint=_WHOLE)
    tensors = [_tensor(path, 8 + length, name, entry) for name, entry in header.items() if name != METADATA]
    tensors.sort(key=lambda tensor: (tensor.start, tensor.size_bytes))
    end = 8 + length
    for tensor in tensors:
        if tensor.start != end:
            raise InvalidInput(f"`{path}`: the bytes of `{tensor.name}` do not follow the ones before", hint=_WHOLE)
        end += tensor.size_bytes
    if end != size:
        raise InvalidInput(f"`{path}` has {size} bytes, and its header tells {end}", hint=_WHOLE)
    return Shard(path, tuple(tensors), 8 + length, size)


def _tensor(path: Path, origin: int, name: str, entry: Any) -> Tensor:
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not (_counts(shape) and _counts(offsets) and len(offsets) == 2 and isinstance(dtype, str)):
        raise InvalidInput(f"`{path}` has a damaged header, at `{name}`", hint=_WHOLE)
    if dtype not in SIZES:
        raise InvalidInput(f"`{path}`: `{name}` is of the unknown type `{dtype}`")
    tensor = Tensor(name, dtype, prod(shape), origin + offsets[0])
    if tensor.size_bytes != offsets[1] - offsets[0]:
        told = f"{offsets[1] - offsets[0]} bytes for {tensor.elements} elements of {dtype}"
        raise InvalidInput(f"`{path}`: `{name}` has {told}", hint=_WHOLE)
    return tensor


def _indexed(index: Path) -> dict[str, str]:
    """File by tensor, as the index tells."""
    try:
        if index.stat().st_size > _LONGEST_INDEX:
            raise InvalidInput(f"`{index}` is larger than any index")
        found = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"`{index}` cannot be read: {error}", hint=_WHOLE) from error
    names = found.get("weight_map") if isinstance(found, dict) else None
    files = set(names.values()) if isinstance(names, dict) and all(_plain(name) for name in names.values()) else set()
    if not 0 < len(files) <= _MOST_FILES or not isinstance(names, dict):
        raise InvalidInput(f"`{index}` is damaged", hint=_WHOLE)
    return names


def _plain(name: Any) -> bool:
    """Whether a file's name stays in its folder."""
    return isinstance(name, str) and name.endswith(".safetensors") and Path(name).name == name and "\0" not in name


def _counts(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)
