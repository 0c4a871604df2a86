"""The quick look at PNG: sure of nothing that Pillow would not decode in full, and of all that is plain."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile, PngImagePlugin

from omnirl.data.media import png
from omnirl.data.media.images import MOST_PIXELS, look

Chunks = list[tuple[bytes, bytes]]
SIZE = (7, 5)


def picture(mode: str = "RGB", size: tuple[int, int] = SIZE) -> Image.Image:
    values = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 4), np.uint8)
    return Image.fromarray(values, "RGBA").convert(mode)


def encoded(image: Image.Image, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", **options)
    return buffer.getvalue()


def split(data: bytes) -> Chunks:
    found: Chunks = []
    at = 8
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        found.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + size]))
        at += size + 12
    return found


def join(chunks: Chunks) -> bytes:
    """A file of these chunks, whose checksums are right."""
    parts = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
    return png.SIGNATURE + b"".join(parts)


def head(
    depth: int = 8, colours: int = 0, size: tuple[int, int] = SIZE, methods: bytes = b"\0\0\0"
) -> tuple[bytes, bytes]:
    return b"IHDR", struct.pack(">IIBB", *size, depth, colours) + methods


def made(rows: bytes, *, before: Chunks = [], after: Chunks = [], first: tuple[bytes, bytes] | None = None) -> bytes:  # noqa: B006
    return join([first or head(), *before, (b"IDAT", zlib.compress(rows)), *after, (b"IEND", b"")])


def decoded_size(data: bytes) -> tuple[int, int] | None:
    """What a plain, full decode says; of what is too large, nothing."""
    assert not ImageFile.LOAD_TRUNCATED_IMAGES
    try:
        with PngImagePlugin.PngImageFile(io.BytesIO(data)) as image:
            if image.width * image.height > MOST_PIXELS:
                return None
            image.load()
            return image.size
    except (OSError, ValueError, SyntaxError, EOFError, KeyError, IndexError, struct.error, zlib.error):
        return None


def agrees(data: bytes) -> bool:
    """Whether the quick look is right or undecided, and the verdict is that of a full decode; whether it was sure."""
    sure, full = png.sound_size(data), decoded_size(data)
    assert sure in (None, full), (sure, full)
    if full is None or max(full) <= 200 * min(full):
        assert (look(data).reason == "") == (full is not None)
    return sure is not None


def in_small_chunks(data: bytes, size: int) -> bytes:
    first, *rest = split(data)
    packed = b"".join(body for kind, body in rest if kind == b"IDAT")
    pieces = [(b"IDAT", packed[at : at + size]) for at in range(0, len(packed), size)]
    return join([first, *pieces, (b"IDAT", b""), (b"IEND", b"")])


def with_text() -> bytes:
    info = PngImagePlugin.PngInfo()
    info.add_text("by", "hand")
    return encoded(picture(), pnginfo=info)


PALETTE = picture("RGB").quantize(5)
PLAIN = {
    **{mode: encoded(picture(mode)) for mode in ("1", "L", "LA", "RGB", "RGBA", "I;16")},
    "palette": encoded(PALETTE),
    "whole palette": encoded(picture("P")),
    "alpha of a palette": encoded(PALETTE, transparency=bytes(range(5))),
    "two bits": encoded(PALETTE, bits=2),
    "small chunks": in_small_chunks(encoded(picture()), 60),
    "resolution": encoded(picture(), dpi=(72, 72)),
    "text": with_text(),
    "colour key": encoded(picture(), transparency=(1, 2, 3)),
    "grey key": encoded(picture("L"), transparency=9),
    "stored": encoded(picture(), compress_level=0),
    "one pixel": encoded(picture(size=(1, 1))),
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_pictures_are_known_without_pillow(name):
    data = PLAIN[name]
    assert agrees(data)
    with Image.open(io.BytesIO(data)) as image:
        assert png.sound_size(data) == image.size


@pytest.mark.parametrize("name", ["RGB", "alpha of a palette", "text", "small chunks"])
def test_every_cut_and_every_changed_byte_has_the_verdict_of_a_full_decode(name):
    whole = PLAIN[name]
    damaged = [whole[:end] for end in range(8, len(whole))]
    for at in range(8, len(whole)):
        damaged += [whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :] for mask in (1, 32, 255)]
        damaged += [whole[:at] + whole[at + 1 :], whole[:at] + b"\0" + whole[at:]]
    sure = sum(map(agrees, damaged))
    # zeroes that end the last chunk's checksum, or follow it, are no damage
    assert sure <= 2


@pytest.mark.parametrize("name", ["alpha of a palette", "text", "resolution", "grey key"])
def test_damage_below_right_checksums_has_the_verdict_of_a_full_decode(name):
    chunks = split(PLAIN[name])
    for number, (kind, body) in enumerate(chunks):
        for other in ([], [(kind, body)] * 2, [(kind, b"")], [(kind, body[:-1])], [(kind, body + b"\0")]):
            agrees(join([*chunks[:number], *other, *chunks[number + 1 :]]))
        for at, mask in product(range(len(body)), (1, 4, 128)):
            changed = body[:at] + bytes([body[at] ^ mask]) + body[at + 1 :]
            agrees(join([*chunks[:number], (kind, changed), *chunks[number + 1 :]]))
        for place in range(len(chunks)):
            moved = chunks[:number] + chunks[number + 1 :]
            moved.insert(place, (kind, body))
            agrees(join(moved))


def faulty_rows() -> Iterator[tuple[str, bytes]]:
    width, height = SIZE
    row = b"\0" + bytes(width)
    yield "too few", made(row * (height - 1))
    yield "a byte too few", made((row * height)[:-1])
    yield "a byte too many", made(row * height + b"\0")
    yield "a row too many", made(row * (height + 1))
    for filter in (5, 255):
        yield f"filter {filter}", made(row * (height - 1) + bytes([filter]) + row[1:])
    packed = zlib.compress(row * height)
    for end in (1, 4, 5):
        yield f"{end} bytes of the stream missing", join([head(), (b"IDAT", packed[:-end]), (b"IEND", b"")])
    yield "another sum", join([head(), (b"IDAT", packed[:-1] + b"\0"), (b"IEND", b"")])
    yield "more behind the stream", join([head(), (b"IDAT", packed + b"more"), (b"IEND", b"")])
    yield "no stream", join([head(), (b"IDAT", b""), (b"IEND", b"")])
    yield "no data", join([head(), (b"IEND", b"")])
    yield "no end", join([head(), (b"IDAT", packed)])
    yield (
        "data in two places",
        join([head(), (b"IDAT", packed[:9]), (b"tIME", bytes(7)), (b"IDAT", packed[9:]), (b"IEND", b"")]),
    )


@pytest.mark.parametrize(("_name", "data"), [pytest.param(*one, id=one[0]) for one in faulty_rows()])
def test_rows_that_are_not_what_the_head_promises_are_left_to_pillow(_name, data):
    assert not agrees(data)


ROWS = (b"\0" + bytes(SIZE[0])) * SIZE[1]
LEFT = {
    "interlaced": made(ROWS, first=head(methods=b"\0\0\1")),
    "compression": made(ROWS, first=head(methods=b"\1\0\0")),
    "filtering": made(ROWS, first=head(methods=b"\0\1\0")),
    "depth": made(ROWS, first=head(depth=3)),
    "colours": made(ROWS, first=head(colours=1)),
    "long head": made(ROWS, first=(b"IHDR", head()[1] + b"\0")),
    "no width": made(b"\0" * 5, first=head(size=(0, 5))),
    "large": made(ROWS, first=head(size=(60_000, 60_000))),
    "no palette": made(ROWS, first=head(colours=3)),
    "animation": made(ROWS, before=[(b"acTL", struct.pack(">II", 1, 0))]),
    "packed text": made(ROWS, before=[(b"zTXt", b"k\0\0" + zlib.compress(b"said"))]),
    "late packed text": made(ROWS, after=[(b"zTXt", b"k\0\0" + zlib.compress(b"said"))]),
    "much text": made(ROWS, before=[(b"tEXt", b"k\0" + bytes(1 << 17))]),
    "profile": made(ROWS, before=[(b"iCCP", b"p\0\0" + zlib.compress(b"said"))]),
    "own chunk": made(ROWS, before=[(b"abCd", b"x")]),
    "odd name": made(ROWS, before=[(b"a\xffCd", b"x")]),
    "second head": made(ROWS, before=[head()]),
    "short gamma": made(ROWS, before=[(b"gAMA", b"\0")]),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_odd_is_left_to_pillow(name):
    data = LEFT[name]
    assert png.sound_size(data) is None
    if name != "large":
        agrees(data)


def test_a_bomb_is_not_inflated_beyond_its_head():
    data = join([head(), (b"IDAT", zlib.compress(bytes(16 << 20), 9)), (b"IEND", b"")])
    assert png.sound_size(data) is None


@given(
    name=st.sampled_from(sorted(PLAIN)),
    changes=st.lists(
        st.tuples(st.integers(0, 10_000), st.binary(max_size=4), st.integers(0, 4)), min_size=1, max_size=3
    ),
    mended=st.booleans(),
)
def test_whatever_is_done_to_a_picture_the_verdict_is_that_of_a_full_decode(name, changes, mended):
    data = PLAIN[name]
    if mended:
        chunks = split(data)
        for at, new, lost in changes:
            kind, body = chunks[at % len(chunks)]
            place = at // len(chunks) % (len(body) + 1)
            chunks[at % len(chunks)] = (kind, body[:place] + new + body[place + lost :])
        agrees(join(chunks))
    else:
        for at, new, lost in changes:
            place = 8 + at % (len(data) - 7)
            data = data[:place] + new + data[place + lost :]
        agrees(data)
