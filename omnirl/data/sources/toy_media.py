"""Pictures, tones and clips of the toy task, drawn from a random generator and written with PyAV's own encoders.

The same generator state gives the same bytes on one machine: encoders run on one thread and write no time stamps.
"""

from __future__ import annotations

import wave
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

SIDE = 64
COLOURS = {"red": (220, 40, 40), "green": (40, 190, 60), "blue": (50, 70, 220), "yellow": (230, 210, 50)}
PITCHES_HZ = {"low": 250.0, "high": 1500.0}
WAV_RATE_HZ = 8_000
TRACK_RATE_HZ = 16_000
CLIP_FPS = 8
CLIP_FRAMES = 4


def square(rng: np.random.Generator, colour: str) -> np.ndarray:
    """A noisy grey picture with one coloured square of random place, size and shade: uint8 (64, 64, 3)."""
    picture = _background(rng)
    side = int(rng.integers(24, 41))
    left, top = rng.integers(0, SIDE - side + 1, 2)
    picture[top : top + side, left : left + side] = _shade(rng, colour)
    return picture


def motion(rng: np.random.Generator, colour: str) -> np.ndarray:
    """A coloured square moving between two random places: uint8 (frames, 64, 64, 3)."""
    import numpy as np

    still = _background(rng)
    side = int(rng.integers(24, 41))
    ends = rng.integers(0, SIDE - side + 1, (2, 2))
    shade = _shade(rng, colour)
    frames: np.ndarray = np.repeat(still[None], CLIP_FRAMES, axis=0)
    for index, (left, top) in enumerate(np.linspace(ends[0], ends[1], CLIP_FRAMES).round().astype(int)):
        frames[index, top : top + side, left : left + side] = shade
    return frames


def tone(rng: np.random.Generator, pitch: str, rate_hz: int) -> np.ndarray:
    """Half a second of one jittered tone with a little noise: float32 samples in [-1, 1]."""
    import numpy as np

    time = np.arange(rate_hz // 2) / rate_hz
    frequency = PITCHES_HZ[pitch] * 2 ** rng.normal(0, 0.04)
    clean = rng.uniform(0.2, 0.6) * np.sin(2 * np.pi * frequency * time + rng.uniform(0, 2 * np.pi))
    samples: np.ndarray = np.clip(clean + rng.normal(0, 0.01, time.size), -1, 1).astype(np.float32)
    return samples


def write_png(path: Path, picture: np.ndarray) -> None:
    from PIL import Image

    Image.fromarray(picture).save(path)


def write_wav(path: Path, samples: np.ndarray) -> None:
    """Write 16-bit mono at 8 kHz."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(WAV_RATE_HZ)
        file.writeframes((samples * 32767).astype("<i2").tobytes())


def write_mp4(path: Path, frames: np.ndarray, samples: np.ndarray) -> None:
    """Write frames at 8 frames a second with a 16 kHz mono AAC soundtrack.

    The picture codec is H.264 where this build of PyAV has x264, else MPEG-4 part 2.
    """
    import av

    with av.open(str(path), "w", format="mp4", options={"fflags": "+bitexact"}) as container:
        video = _video_stream(container)
        audio = container.add_stream("aac", rate=TRACK_RATE_HZ, layout="mono", options={"flags": "+bitexact"})
        for picture in frames:
            container.mux(video.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(video.encode(None))
        size = audio.codec_context.frame_size or 1024
        for start in range(0, samples.size, size):
            piece = av.AudioFrame.from_ndarray(samples[None, start : start + size], format="fltp", layout="mono")
            piece.sample_rate = TRACK_RATE_HZ
            piece.pts = start
            container.mux(audio.encode(piece))
        container.mux(audio.encode(None))


def _video_stream(container: Any) -> Any:
    import av

    if "libx264" in av.codecs_available:
        stream = container.add_stream(
            "libx264", rate=CLIP_FPS, options={"preset": "ultrafast", "crf": "18", "flags": "+bitexact"}
        )
    else:
        stream = container.add_stream("mpeg4", rate=CLIP_FPS, options={"qscale": "2", "flags": "+bitexact+qscale"})
    stream.width = stream.height = SIDE
    stream.pix_fmt = "yuv420p"
    stream.codec_context.thread_count = 1
    return stream


def _background(rng: np.random.Generator) -> np.ndarray:
    """Grey with noise in 4 x 4 blocks, so that a picture takes one or two kilobytes."""
    import numpy as np

    blocks = rng.normal(rng.integers(90, 150), 12, (SIDE // 4, SIDE // 4, 3)).clip(0, 255).astype(np.uint8)
    background: np.ndarray = blocks.repeat(4, axis=0).repeat(4, axis=1)
    return background


def _shade(rng: np.random.Generator, colour: str) -> np.ndarray:
    import numpy as np

    shade: np.ndarray = (np.array(COLOURS[colour]) + rng.normal(0, 10, 3)).clip(0, 255).astype(np.uint8)
    return shade
