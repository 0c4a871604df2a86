"""Media for tests, made with PyAV: clips whose frames can be told apart, and tones."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

MILLISECOND = Fraction(1, 1000)
LEVELS = 20
"""Frame n of `numbered` has this times its number, modulo 13, as its brightness above 8."""


def numbered(count: int, width: int = 96, height: int = 64) -> list[np.ndarray]:
    """Grey pictures (H, W, 3) that differ clearly from their neighbours."""
    return [np.full((height, width, 3), 8 + LEVELS * (number % 12), np.uint8) for number in range(count)]


def number_of(pixels: Any) -> list[int]:
    """The numbers modulo 12 of frames (T, C, H, W) that `numbered` made."""
    return [round((float(level) - 8) / LEVELS) for level in pixels.float().mean((1, 2, 3))]


def tone(seconds: float, rate_hz: int = 16_000, hz: float = 440.0, amplitude: float = 0.5) -> np.ndarray:
    """Mono float32 samples."""
    times = np.arange(round(seconds * rate_hz)) / rate_hz
    return (amplitude * np.sin(2 * np.pi * hz * times)).astype(np.float32)


def write_clip(
    path: Path,
    pictures: Sequence[np.ndarray],
    *,
    rate: int = 10,
    times_ms: Sequence[int] | None = None,
    codec: str = "libx264",
    options: dict[str, str] | None = None,
    sound: np.ndarray | None = None,
    matrix: Sequence[int] | None = None,
    container_options: dict[str, str] | None = None,
) -> Path:
    """A video of the pictures, at a constant rate or at given times, with 16 kHz sound where wanted."""
    height, width, _ = pictures[0].shape
    with av.open(str(path), "w", options=container_options or {}) as container:
        stream = container.add_stream(codec, rate=1000 if times_ms else rate, options=options or {})
        stream.width, stream.height = width, height
        stream.pix_fmt = {"libx264": "yuv420p", "mpeg4": "yuv420p", "libvpx-vp9": "yuv420p", "mjpeg": "yuvj420p"}[codec]
        if codec == "mpeg4":
            stream.codec_context.qmax = 2
        if matrix is not None:
            stream.set_display_matrix(list(matrix))
        track = None if sound is None else container.add_stream("aac", rate=16_000, layout="mono")
        for number, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            if times_ms:
                frame.pts, frame.time_base = times_ms[number], MILLISECOND
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if track is not None:
            container.mux(track.encode(_audio_frame(np.asarray(sound)[None], 16_000, "mono")))
            container.mux(track.encode(None))
    return path


def write_sound(
    path: Path,
    samples: np.ndarray,
    rate_hz: int,
    codec: str,
    *,
    layout: str = "mono",
    cover: bool = False,
    options: dict[str, str] | None = None,
) -> Path:
    """An audio file of samples (n,) or (channels, n), with a cover picture where wanted."""
    with av.open(str(path), "w", options=(options or {}) if path.suffix == ".mp4" else {}) as container:
        stream = container.add_stream(codec, rate=rate_hz, layout=layout)
        if cover:
            picture = container.add_stream("png", rate=1)
            picture.width = picture.height = 16
            picture.pix_fmt = "rgb24"
            picture.disposition = av.stream.Disposition.attached_pic
        resampler = av.AudioResampler(format=stream.format, layout=layout, rate=rate_hz)
        if cover:
            still = av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8), format="rgb24")
            container.mux(picture.encode(still))
            container.mux(picture.encode(None))
        for frame in resampler.resample(_audio_frame(np.atleast_2d(samples), rate_hz, layout)):
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def _audio_frame(samples: np.ndarray, rate_hz: int, layout: str) -> av.AudioFrame:
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples), format="fltp", layout=layout)
    frame.sample_rate = rate_hz
    return frame


def spoil(path: Path, numbers: Sequence[int], kind: str = "video") -> Path:
    """Overwrite whole packets of a stream; negative numbers count from the end."""
    with av.open(str(path)) as container:
        stream = getattr(container.streams, kind)[0]
        places = [(packet.pos, packet.size) for packet in container.demux(stream) if packet.size]
    data = bytearray(path.read_bytes())
    for number in numbers:
        start, size = places[number]
        data[start : start + size] = b"\xff" * size
    path.write_bytes(data)
    return path
