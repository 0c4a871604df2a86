"""Noise for one tensor, block by block, so that a tensor of any size takes a few megabytes.

Which noise an element gets depends on the seed, the tensor's name and the element's number, and on nothing else: not on
files, their order, or how many threads there are.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from omnirl.errors import InvalidInput
from omnirl.noise.shards import SIZES, Tensor

FLOATS = ("F64", "F32", "F16", "BF16")
"""Types whose values get noise."""
BLOCK = 1 << 19
"""Elements of a block. Part of what a seed means: another size gives other noise."""


@dataclass(frozen=True, slots=True)
class Disturbed:
    """What became of one tensor: sums of squares of its values and of what was added to them, after rounding."""

    values: float
    noise: float


def disturb(source: int, target: int, tensor: Tensor, *, ratio: float, seed: int) -> Disturbed:
    """Copy a tensor from one open file to the same place of another, with noise of `ratio` times its RMS.

    Sums are made in float32 (float64 for F64) and rounded to the tensor's own type, to even in a tie.

    Raises:
        InvalidInput: the tensor holds NaN or infinities, or a sum is too large for its type.
        OSError: from the disk.
    """
    import numpy as np

    if tensor.dtype not in FLOATS:
        raise ValueError(f"{tensor.dtype} takes no noise")
    total = 0.0
    for _, raw in _blocks(source, tensor):
        total += float(np.square(_decode(raw, tensor.dtype), dtype=np.float64).sum())
    if not np.isfinite(total):
        raise InvalidInput(f"`{tensor.name}` holds NaN or infinity", hint="noise needs a checkpoint of finite weights")
    deviation = ratio * float(np.sqrt(total / max(1, tensor.elements)))
    key = int.from_bytes(hashlib.blake2b(f"{seed} {tensor.name}".encode(), digest_size=16).digest(), "little")
    size, place, added = SIZES[tensor.dtype], tensor.start, 0.0
    for number, raw in _blocks(source, tensor):
        values = _decode(raw, tensor.dtype)
        chance = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, number]))
        noise = chance.standard_normal(values.size, dtype=values.dtype)
        noise *= values.dtype.type(deviation)
        noise += values
        encoded = _encode(noise, tensor.dtype)
        rounded = _decode(encoded, tensor.dtype)
        if not np.isfinite(rounded).all():
            raise InvalidInput(f"`{tensor.name}`: with noise some values are too large for {tensor.dtype}")
        added += float(np.square(rounded - values, dtype=np.float64).sum())
        _write(target, encoded.tobytes(), place)
        place += values.size * size
    return Disturbed(total, added)


def copy(source: int, target: int, start: int, size_bytes: int) -> None:
    """Copy bytes to the same place of another open file; raises OSError."""
    while size_bytes:
        piece = _read(source, min(size_bytes, 4 << 20), start)
        _write(target, piece, start)
        start += len(piece)
        size_bytes -= len(piece)


def _blocks(source: int, tensor: Tensor) -> Iterator[tuple[int, Any]]:
    """Numbered blocks of a tensor's raw elements."""
    import numpy as np

    size = SIZES[tensor.dtype]
    kind = np.dtype({"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}[tensor.dtype])
    for number, first in enumerate(range(0, tensor.elements, BLOCK)):
        count = min(BLOCK, tensor.elements - first)
        yield number, np.frombuffer(_read(source, count * size, tensor.start + first * size), dtype=kind)


def _decode(raw: Any, dtype: str) -> Any:
    """Elements as float32, or float64 where they are."""
    import numpy as np

    if dtype == "BF16":
        return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return raw.astype(np.float64 if dtype == "F64" else np.float32)


def _encode(values: Any, dtype: str) -> Any:
    import numpy as np

    if dtype == "BF16":
        bits = values.view(np.uint32)
        # half of what is cut off, and one more where the last kept bit is odd: to the nearest, and to even in a tie
        return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")
    with np.errstate(over="ignore"):
        return values.astype({"F64": "<f8", "F32": "<f4", "F16": "<f2"}[dtype])


def _read(file: int, size_bytes: int, place: int) -> bytes:
    pieces = []
    while size_bytes:
        piece = os.pread(file, size_bytes, place)
        if not piece:
            raise InvalidInput("a file of the checkpoint became shorter while it was read")
        pieces.append(piece)
        place, size_bytes = place + len(piece), size_bytes - len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _write(file: int, content: bytes, place: int) -> None:
    view = memoryview(content)
    while view:
        done = os.pwrite(file, view, place)
        view, place = view[done:], place + done
