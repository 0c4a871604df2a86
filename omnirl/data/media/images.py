"""Whether a picture can be trained on: sound to its last byte, under bounds on pixels and bytes.

A plain PNG whose data are all there and right is known for one without Pillow; whatever else is decoded by it.

Formats are an allow list: PNG, JPEG, WebP, GIF and BMP, which data sets are made of. Each is decoded by Pillow itself
or one well-kept library. TIFF (one file, many codecs) stays out, and so do EPS, which starts ghostscript, and the other
eighty formats that Pillow would try.
"""

from __future__ import annotations

import io
import os
import stat
import struct
import zlib
from pathlib import Path
from typing import Any, BinaryIO

from omnirl.data.media import png
from omnirl.data.media.rules import Fact, Verdict

MOST_PIXELS = 89_478_485
"""Pillow warns above it; such a picture would take a quarter of a gigabyte."""
MOST_BYTES = 256 << 20
MOST_ASPECT_RATIO = 200
"""Longer pictures crash the image processor."""

# What Pillow raises for damaged files, in its loaders and in the libraries below.
_DAMAGE = (OSError, ValueError, SyntaxError, TypeError, EOFError, KeyError, IndexError, OverflowError, MemoryError)


def look(content: Path | bytes) -> Verdict:
    """Judge a picture, a file or encoded bytes."""
    if isinstance(content, bytes):
        return _judge(content)
    try:
        # What is no regular file would block or never end; it may have become one since it was looked at.
        descriptor = os.open(content, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return Verdict("unreadable_image", {})
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return Verdict("not_a_file", {})
        return _judge(file.read(MOST_BYTES + 1))


def _judge(data: bytes) -> Verdict:
    size_bytes = len(data)
    if size_bytes > MOST_BYTES:
        return Verdict("image_too_large", {})
    sound = png.sound_size(data) if data.startswith(png.SIGNATURE) else None
    if sound is None:
        return _decode(io.BytesIO(data), size_bytes)
    fault = _fault_of_size(*sound)
    return Verdict(fault, {} if fault else _facts(size_bytes, *sound, "PNG"))


def _decode(file: BinaryIO, size_bytes: int) -> Verdict:
    from PIL import Image

    try:
        picture = _open(file)
        if picture is None:
            return Verdict("unreadable_image", {})
        width, height = picture.size
        fault = _fault_of_size(width, height)
        if fault:
            return Verdict(fault, {})
        kind = str(picture.format)
        # All data of a JPEG are read and decoded, but pixels are made for one in eight each way only.
        picture.draft("L", (max(1, width // 8), max(1, height // 8)))
        picture.load()
    except Image.DecompressionBombError:
        return Verdict("image_too_large", {})
    except (*_DAMAGE, struct.error, zlib.error):
        return Verdict("unreadable_image", {})
    return Verdict("", _facts(size_bytes, width, height, kind))


def _fault_of_size(width: int, height: int) -> str:
    """The reason why no picture of this size is looked at any further, or nothing."""
    if width * height > MOST_PIXELS:
        return "image_too_large"
    if min(width, height) < 1:
        return "unreadable_image"
    return "extreme_aspect_ratio" if max(width, height) > MOST_ASPECT_RATIO * min(width, height) else ""


def _facts(size_bytes: int, width: int, height: int, kind: str) -> dict[str, Fact]:
    return {"size_bytes": size_bytes, "width": width, "height": height, "format": kind}


def _open(file: BinaryIO) -> Any:
    """The picture, its header read; None if it is of no format on the list."""
    from PIL import BmpImagePlugin, GifImagePlugin, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

    head = file.read(16)
    file.seek(0)
    # Not `Image.open`, which warns on stderr of a picture that is refused here, and asks every plugin.
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return PngImagePlugin.PngImageFile(file)
    if head.startswith(b"\xff\xd8\xff"):
        return JpegImagePlugin.JpegImageFile(file)
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return WebPImagePlugin.WebPImageFile(file)
    if head.startswith((b"GIF87a", b"GIF89a")):
        return GifImagePlugin.GifImageFile(file)
    if head.startswith(b"BM"):
        return BmpImagePlugin.BmpImageFile(file)
    return None
