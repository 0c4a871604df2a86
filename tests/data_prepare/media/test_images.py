"""Pictures: what is usable, what is too large, and that the cheap decode finds what a plain one finds."""

from __future__ import annotations

import io
import struct
import sys
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from omnirl.data.media import Judge
from omnirl.data.media.images import MOST_PIXELS, look
from omnirl.data.media.judge import MOST_INLINE_BYTES


def picture(width: int = 96, height: int = 80) -> Image.Image:
    rng = np.random.default_rng(0)
    smooth = np.add.outer(np.arange(height), np.arange(width))[..., None] + rng.integers(0, 40, (height, width, 3))
    return Image.fromarray((smooth % 256).astype(np.uint8))


def encoded(form: str, image: Image.Image | None = None, **options: object) -> bytes:
    buffer = io.BytesIO()
    (image or picture()).save(buffer, form, **options)
    return buffer.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *chunks: bytes) -> bytes:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(chunks) + chunk(b"IEND", b"")


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_usable_formats(form: str, tmp_path: Path) -> None:
    data = encoded(form)
    verdict = look(data)
    assert verdict.reason == ""
    assert dict(verdict.facts) == {"size_bytes": len(data), "width": 96, "height": 80, "format": form}
    path = tmp_path / "named.txt"
    path.write_bytes(data)
    assert look(path) == verdict


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "I;16", "CMYK"])
def test_usable_modes(mode: str) -> None:
    assert look(encoded("JPEG" if mode == "CMYK" else "PNG", picture().convert(mode))).reason == ""


def test_one_pixel_is_usable() -> None:
    assert look(encoded("PNG", picture(1, 1))).reason == ""


@pytest.mark.parametrize("form", ["TIFF", "EPS", "PDF", "ICO", "PPM"])
def test_other_formats_are_refused(form: str) -> None:
    assert look(encoded(form)).reason == "unreadable_image"


@pytest.mark.parametrize(
    "data", [b"x", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"BM", b"RIFF\0\0\0\0WEBP", bytes(99)]
)
def test_heads_alone_are_unreadable(data: bytes) -> None:
    assert look(data).reason == "unreadable_image"


@pytest.mark.parametrize(("width", "height", "reason"), [(1800, 8, "extreme_aspect_ratio"), (1600, 8, "")])
def test_aspect_ratio(width: int, height: int, reason: str) -> None:
    for size in ((width, height), (height, width)):
        assert look(encoded("PNG", picture(*size))).reason == reason


def test_bomb_is_refused_before_it_is_decoded() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # The data would be damaged if they were looked at.
        assert look(png(30_000, 30_000, chunk(b"IDAT", b"no data"))).reason == "image_too_large"
        side = int(MOST_PIXELS**0.5) + 2
        assert look(png(side, side, chunk(b"IDAT", b"no data"))).reason == "image_too_large"
        assert look(png(1000, 1000, chunk(b"IDAT", b"no data"))).reason == "unreadable_image"
        assert look(png(0, 10, chunk(b"IDAT", b""))).reason == "unreadable_image"


@pytest.mark.parametrize("kind", [b"iTXt", b"zTXt", b"iCCP"])
@pytest.mark.parametrize("before", [True, False])
def test_text_bomb_is_a_reason_and_no_crash(kind: bytes, before: bool) -> None:
    packed = zlib.compress(bytes(80 << 20), 9)
    body = {b"iTXt": b"k\0\1\0\0\0", b"zTXt": b"k\0\0", b"iCCP": b"k\0\0"}[kind] + packed
    pixels = chunk(b"IDAT", zlib.compress(bytes(11 * 10)))
    bomb = chunk(kind, body)
    data = png(10, 10, *((bomb, pixels) if before else (pixels, bomb)))
    # What training reads it with decides: a colour profile that is too long is passed over there.
    assert look(data).reason == ("" if plainly_readable(data) else "unreadable_image")
    if kind != b"iCCP":
        assert look(data).reason == "unreadable_image"


def plainly_readable(data: bytes) -> bool:
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.convert("RGB")
    except (OSError, ValueError, SyntaxError):
        return False
    return True


JPEGS = {
    "baseline": {},
    "progressive": {"progressive": True},
    "full_colour": {"subsampling": 0, "quality": 95},
    "restarts": {"restart_marker_rows": 1},
}


@pytest.mark.parametrize("form", [*JPEGS, "PNG", "WEBP", "GIF", "BMP"])
def test_cuts_and_damage_are_found_as_by_a_plain_decode(form: str) -> None:
    whole = encoded("JPEG", **JPEGS[form]) if form in JPEGS else encoded(form)
    rng = np.random.default_rng(1)
    tries = [whole[: len(whole) * share // 40] for share in range(1, 40)] + [whole[:-1], whole[:-2], whole[:-3]]
    for _ in range(150):
        damaged = bytearray(whole)
        at = int(rng.integers(0, len(whole) - 8))
        damaged[at : at + 8] = rng.integers(0, 256, 8, dtype=np.uint8).tobytes()
        tries.append(bytes(damaged))
    assert not ImageFile.LOAD_TRUNCATED_IMAGES
    differ = {len(data): look(data).reason for data in tries if (look(data).reason == "") != plainly_readable(data)}
    refused = sum(not plainly_readable(data) for data in tries)
    assert refused > 30
    # A damaged head may ask for another size, or be one of another format that is not on the list.
    assert set(differ.values()) <= {"image_too_large", "extreme_aspect_ratio"}


def test_half_a_photograph_is_unreadable() -> None:
    whole = encoded("JPEG", picture(640, 480), quality=90)
    assert look(whole).reason == ""
    assert [look(whole[: int(len(whole) * share)]).reason for share in (0.3, 0.6, 0.9, 0.98)] == [
        "unreadable_image"
    ] * 4


def test_inline_pictures(judge: Judge) -> None:
    whole = encoded("PNG")
    asked = [judge.ask("image", data) for data in (whole, whole[:200], b"")]
    assert [one.result().reason for one in asked] == ["", "unreadable_image", "empty_image"]
    assert judge.probed == 2


def test_inline_pictures_are_let_go() -> None:
    pictures = [encoded("PNG", picture(40 + side, 40)) for side in range(30)]
    other = [encoded("PNG", picture(40, 40))]
    with Judge(workers=2) as judge:
        asked = [judge.ask("image", data) for data in pictures]
        assert {one.result().reason for one in asked} == {""}
    assert {sys.getrefcount(data) for data in pictures} == {sys.getrefcount(data) for data in other}


def test_asking_waits_while_too_much_is_in_hand() -> None:
    data = encoded("BMP", Image.new("RGB", (3300, 3000)))
    assert 2 * len(data) < MOST_INLINE_BYTES < 3 * len(data)
    with Judge(workers=1) as judge:
        asked = []
        for _ in range(8):
            asked.append(judge.ask("image", data))
            # Two that count, and one whose answer is being written down.
            assert sum(not one.done() for one in asked) <= 3
        assert {one.result().reason for one in asked} == {""}
