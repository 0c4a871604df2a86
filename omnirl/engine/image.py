"""Pictures: decoded to RGB the same way wherever a run looks at them."""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from omnirl.data.tokens import MOST_ASPECT
from omnirl.errors import InvalidInput


def image(item: Mapping[str, Any] | bytes | str | Path) -> Image.Image:
    """Decode one picture to RGB, turned as its EXIF orientation says, on white where it is transparent.

    Grey of 16 bits keeps its upper eight, and of an animation the first picture counts.

    Args:
        item: encoded bytes, a path, or a row's `{"bytes": ..., "image" or "path": ...}` (bytes win).

    Raises:
        InvalidInput: nothing there, not a picture, or one side is more than 200 times the other.
    """
    source: Any = item
    if isinstance(item, Mapping):
        source = next((item[key] for key in ("bytes", "image", "path") if item.get(key)), None)
    if isinstance(source, Image.Image):
        return as_rgb(source)
    name = "picture in the row" if isinstance(source, bytes) else f"`{source}`"
    if not source:
        raise InvalidInput("an image item holds neither bytes nor a path")
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else Path(source)) as picture:
            check_aspect_ratio(name, *picture.size)
            return as_rgb(picture)
    except (
        *(OSError, UnidentifiedImageError, Image.DecompressionBombError, SyntaxError),
        *(ValueError, TypeError, IndexError, struct.error),
    ) as error:
        raise InvalidInput(f"cannot read {name} as an image: {error}") from error


def as_rgb(picture: Image.Image) -> Image.Image:
    """Any picture as an RGB picture of its own, as a viewer would show it."""
    picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith("I"):  # Pillow would cut everything above 255 to white
        levels = np.asarray(picture).clip(0, 65535) >> 8
        return Image.fromarray(levels.astype(np.uint8)).convert("RGB")
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture.convert("RGB")


def check_aspect_ratio(name: str, width: int, height: int) -> None:
    """Raises: InvalidInput: a side is 0, or more than 200 times the other."""
    if not min(width, height) or max(width, height) > MOST_ASPECT * min(width, height):
        raise InvalidInput(
            f"{name} is {width} x {height} pixels: one side may be {MOST_ASPECT} times the other at most"
        )
