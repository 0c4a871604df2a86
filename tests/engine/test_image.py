"""Pictures of every mode become the RGB picture that a viewer shows."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from omnirl.engine import media
from omnirl.errors import InvalidInput


def encoded(picture: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def pixels(data: bytes) -> np.ndarray:
    picture = media.image(data)
    assert picture.mode == "RGB"
    return np.asarray(picture).astype(int)


def halves(mode: str, left: Any, right: Any) -> Image.Image:
    picture = Image.new(mode, (8, 4), left)
    picture.paste(right, (4, 0, 8, 4))
    return picture


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_a_picture(orientation: int) -> None:
    shown = np.zeros((4, 6, 3), np.uint8)
    shown[:2, :3], shown[:2, 3:], shown[2:, :3] = (250, 0, 0), (0, 250, 0), (0, 0, 250)
    back = {
        **{1: shown, 2: shown[:, ::-1], 3: shown[::-1, ::-1], 4: shown[::-1]},
        **{5: shown.swapaxes(0, 1), 6: np.rot90(shown), 7: np.rot90(shown, 2).swapaxes(0, 1), 8: np.rot90(shown, -1)},
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert np.array_equal(pixels(encoded(Image.fromarray(back), exif=exif)), shown)


@pytest.mark.parametrize("exif", [b"Exif\x00\x00", b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\xff", b"\xff" * 40])
def test_broken_exif_is_no_reason_to_fail(exif: bytes) -> None:
    assert pixels(encoded(Image.new("RGB", (4, 4), "red"), "JPEG", exif=exif)).shape == (4, 4, 3)


def transparent() -> dict[str, bytes]:
    """Black on the left, and on the right what nobody sees: black too, but transparent."""
    palette = Image.new("P", (8, 4), 0)
    palette.putpalette([0, 0, 0, 10, 10, 10])
    palette.paste(1, (4, 0, 8, 4))
    return {
        "RGBA": encoded(halves("RGBA", (0, 0, 0, 255), (0, 0, 0, 0))),
        "LA": encoded(halves("LA", (0, 255), (0, 0))),
        "P": encoded(palette, transparency=1),
        "L": encoded(halves("L", 0, 10), transparency=10),
        "RGB": encoded(halves("RGB", (0, 0, 0), (10, 10, 10)), transparency=(10, 10, 10)),
        "GIF": encoded(palette, "GIF", transparency=1),
    }


@pytest.mark.parametrize("mode", transparent())
def test_what_is_transparent_is_white(mode: str) -> None:
    found = pixels(transparent()[mode])
    assert (found[:, :4] == 0).all()
    assert (found[:, 4:] == 255).all()


def test_half_transparent_is_half_white() -> None:
    assert pixels(encoded(Image.new("RGBA", (2, 2), (255, 0, 0, 128))))[0, 0].tolist() == [255, 127, 127]


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_16_bit_grey_keeps_its_upper_half(kind: str) -> None:
    levels = (np.arange(256, dtype=np.uint16) * 257).reshape(16, 16)
    found = pixels(encoded(Image.fromarray(levels), kind))
    assert np.array_equal(found, np.repeat(np.arange(256).reshape(16, 16, 1), 3, 2))


def test_other_modes() -> None:
    assert pixels(encoded(Image.new("1", (4, 4), 1))).min() == 255
    red = pixels(encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"))
    assert red.mean((0, 1)).tolist() == pytest.approx([254, 0, 0], abs=3)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_the_first_picture_of_an_animation(kind: str) -> None:
    frames = [Image.new("RGB", (16, 16), color) for color in ("red", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert pixels(data)[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("size", [(8, 1800), (1800, 8), (1, 201)])
def test_extreme_shapes_are_named(size: tuple[int, int], tmp_path: Path) -> None:
    path = tmp_path / "long.png"
    Image.new("RGB", size).save(path)
    with pytest.raises(InvalidInput, match=rf"long\.png` is {size[0]} x {size[1]} pixels"):
        media.image({"image": str(path), "bytes": None})
    assert media.image(encoded(Image.new("RGB", (1, 200)))).size == (1, 200)


def test_a_bomb_is_named() -> None:
    data = bytearray(encoded(Image.new("RGB", (8, 8))))
    at = data.index(b"IHDR") + 4
    data[at : at + 8] = (60_000).to_bytes(4, "big") * 2
    with pytest.raises(InvalidInput, match="cannot read picture in the row"):
        media.image(bytes(data))
