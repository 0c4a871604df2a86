"""Arithmetic of media in a prompt: which frames are taken, what size a picture gets, how many tokens it takes.

Plain numbers in, plain numbers out. The engine's decoding follows the same rules; tests hold the two together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SAMPLE_RATE_HZ = 16_000
HOP = 160
"""Samples of one mel frame."""
PIXEL_FACTOR = 32
"""Side of the smallest square of a video frame that becomes one token."""
FRAME_FACTOR = 2
"""Frames that become one temporal patch."""
DEFAULT_VIDEO = {"fps": 2.0, "min_pixels": 128 * 32 * 32, "max_pixels": 768 * 32 * 32, "max_frames": 768}
"""How a video is sampled where its row does not say."""
MOST_ASPECT = 200
"""Longest side over shortest at which the image processor still accepts a picture."""


@dataclass(frozen=True, slots=True)
class Vision:
    """How a processor cuts pictures: side of a patch, patches merged per side, frames a patch, pixels of an image.

    `resize` is whether images are brought into the pixel bounds at all.
    """

    patch: int
    merge: int
    temporal_patch: int
    min_pixels: int
    max_pixels: int
    resize: bool = True

    def image_tokens(self, height: int, width: int) -> int:
        """Tokens of one image of this size in pixels; raises ValueError for a shape that the processor refuses."""
        if self.resize:
            height, width = fit_image(height, width, self.patch * self.merge, self.min_pixels, self.max_pixels)
        return (height // self.patch) * (width // self.patch) // self.merge**2

    def video_tokens(self, frames: int, height: int, width: int) -> int:
        """Tokens of `frames` frames that have their final size."""
        grid = -(-frames // self.temporal_patch) * (height // self.patch) * (width // self.patch)
        return grid // self.merge**2


def fit_image(height: int, width: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Height and width that Qwen's image processor resizes to: multiples of `factor` within the pixel bounds.

    Raises ValueError for a side of 0 and for an aspect ratio beyond 200.
    """
    if min(height, width) < 1:
        raise ValueError(f"a picture of {width} x {height} pixels")
    if max(height, width) / min(height, width) > MOST_ASPECT:
        raise ValueError(f"{width} x {height} pixels: the longer side is over {MOST_ASPECT} times the shorter")
    rounded = round(height / factor) * factor, round(width / factor) * factor
    area = rounded[0] * rounded[1]
    if area > max_pixels:
        shrink = math.sqrt((height * width) / max_pixels)
        sides = (max(factor, math.floor(side / shrink / factor) * factor) for side in (height, width))
    elif area < min_pixels:
        stretch = math.sqrt(min_pixels / (height * width))
        sides = (math.ceil(side * stretch / factor) * factor for side in (height, width))
    else:
        return rounded
    return next(sides), next(sides)


def fit_frame(height: int, width: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Height and width of a sampled video frame: multiples of 32, never below 32, near the pixel bounds."""

    def whole(side: float, rounding: Callable[[float], int]) -> int:
        return max(PIXEL_FACTOR, rounding(side / PIXEL_FACTOR) * PIXEL_FACTOR)

    fitted = whole(height, round), whole(width, round)
    area = fitted[0] * fitted[1]
    if area > max_pixels:
        scale = math.sqrt(max_pixels / (height * width))
        return whole(height * scale, math.floor), whole(width * scale, math.floor)
    if area < min_pixels:
        scale = math.sqrt(min_pixels / (height * width))
        return whole(height * scale, math.ceil), whole(width * scale, math.ceil)
    return fitted


def frame_indices(total: int, source_fps: float, fps: float, max_frames: int) -> list[int]:
    """Which of `total` frames are taken: an even number, at least 2, evenly spread from the first to the last."""
    wanted = min(int(total / source_fps * fps), max_frames, total)
    count = max(FRAME_FACTOR, wanted - wanted % FRAME_FACTOR)
    step = (total - 1) / (count - 1)
    return [round(at * step) for at in range(count - 1)] + [total - 1]


def moments(times_s: Sequence[float], taken: Sequence[int]) -> list[float]:
    """When the frames are taken, in seconds since the first of all frames, whose sorted `times_s` are given.

    Frames that come at a constant rate are evenly spread in time if they are in number. Otherwise as many moments are
    evenly spread, and what is on the screen then is taken.
    """
    first, last = times_s[0], times_s[-1]
    frame_s = (last - first) / max(1, len(times_s) - 1)
    if all(abs(time - first - at * frame_s) <= frame_s / 2 for at, time in enumerate(times_s)):
        return [times_s[at] - first for at in taken]
    return [(last - first) * at / (len(taken) - 1) for at in range(len(taken))]


def sampling(item: Mapping[str, Any]) -> dict[str, float]:
    """How a video item of a row is sampled: what it says, and the defaults for what it leaves out."""
    said = {key: value for key in DEFAULT_VIDEO if (value := item.get(key))}
    return DEFAULT_VIDEO | said


def resampled(samples: int, rate_hz: int) -> int:
    """Samples at 16 kHz that `samples` at another rate become."""
    return (2 * samples * SAMPLE_RATE_HZ + rate_hz) // (2 * rate_hz)


def mel_frames(samples: int) -> int:
    """Mel frames of so many samples at 16 kHz; the last one is padded."""
    return -(-samples // HOP)
