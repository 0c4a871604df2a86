"""A quick look at plain PNG pictures: those of which it is sure that Pillow decodes them in full, at half its price.

Pillow makes pixels of what it inflates; here the data are inflated and measured alone. Whatever is rare, odd or damaged
- interlacing, animation, chunks beyond the common ones, a wrong checksum - is left to Pillow, which has the last word.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

SIGNATURE = b"\x89PNG\r\n\x1a\n"

MOST_INFLATED_BYTES = 64 << 20
"""Larger pictures are left to Pillow, which does not hold what it inflates."""

_CHANNELS = {(depth, 0): 1 for depth in (1, 2, 4, 8, 16)} | {(depth, 3): 1 for depth in (1, 2, 4, 8)}
_CHANNELS |= {(depth, kind): channels for depth in (8, 16) for kind, channels in ((2, 3), (4, 2), (6, 4))}
"""By bit depth and colour type."""
_FIXED_BYTES = {b"gAMA": 4, b"cHRM": 32, b"sRGB": 1, b"pHYs": 9, b"tIME": 7}
_SHORT_BYTES = {b"bKGD": 6, b"sBIT": 4, b"hIST": 512}
_MOST_TEXT_BYTES = 1 << 16
_FILTERS = bytes(range(5))


def sound_size(data: bytes) -> tuple[int, int] | None:
    """Width and height of a picture without any fault; None where Pillow must be asked."""
    chunks = _chunks(data)
    kind, head = next(chunks, (b"", memoryview(b"")))
    if kind != b"IHDR" or len(head) != 13:
        return None
    width, height, depth, colours, *methods = struct.unpack(">IIBBBBB", head)
    channels = _CHANNELS.get((depth, colours))
    if channels is None or any(methods) or not width or not height:
        return None
    row_bytes = 1 + (width * channels * depth + 7) // 8
    if row_bytes * height > MOST_INFLATED_BYTES:
        return None
    packed = _packed(chunks, colours)
    return (width, height) if packed is not None and _is_whole(packed, row_bytes, height) else None


def _chunks(data: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Type and body of each chunk; ends early at one that is cut short, has a wrong checksum, or follows the last."""
    view = memoryview(data)
    at = len(SIGNATURE)
    while at + 12 <= len(data):
        end = at + 8 + int.from_bytes(view[at : at + 4], "big")
        if end + 4 > len(data) or zlib.crc32(view[at + 4 : end]) != int.from_bytes(view[end : end + 4], "big"):
            return
        yield bytes(view[at + 4 : at + 8]), view[at + 8 : end]
        at = end + 4


def _packed(chunks: Iterator[tuple[bytes, memoryview]], colours: int) -> bytes | None:
    """The compressed data, if all chunks up to the end of the picture are common ones in a common order."""
    packed: list[memoryview] = []
    text_bytes = 0
    seen: set[bytes] = set()
    before = b""
    for kind, body in chunks:
        if kind == b"IEND":
            return b"".join(packed) if packed and not body and (colours != 3 or b"PLTE" in seen) else None
        if kind == b"IDAT":
            if before != kind and packed:
                return None
            packed.append(body)
        elif kind == b"tEXt":
            text_bytes += len(body)
            if text_bytes > _MOST_TEXT_BYTES:
                return None
        elif kind in seen or not _is_common(kind, len(body), colours, late=bool(packed)):
            return None
        seen.add(kind)
        before = kind
    return None


def _is_common(kind: bytes, size_bytes: int, colours: int, *, late: bool) -> bool:
    if kind == b"PLTE":
        return not late and size_bytes % 3 == 0 and 3 <= size_bytes <= 768 and colours in (2, 3, 6)
    if kind == b"tRNS":
        return not late and (0 < size_bytes <= 256 if colours == 3 else size_bytes == {0: 2, 2: 6}.get(colours))
    return _FIXED_BYTES.get(kind) == size_bytes or 0 < size_bytes <= _SHORT_BYTES.get(kind, 0)


def _is_whole(packed: bytes, row_bytes: int, height: int) -> bool:
    """Whether the data inflate to just the rows, each of which begins with the number of a filter."""
    inflater = zlib.decompressobj()
    try:
        rows = inflater.decompress(packed, row_bytes * height + 1)
    except zlib.error:
        return False
    if not inflater.eof or inflater.unused_data or len(rows) != row_bytes * height:
        return False
    return not rows[::row_bytes].translate(None, _FILTERS)
