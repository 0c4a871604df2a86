"""What media files say about themselves: size, rate, duration, times of frames. Read without decoding a picture.

Only local files are opened, whatever a container refers to. Needs the packages of the extra `train` (PyAV, Pillow).
"""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omnirl.data.media.rules import FORMATS
from omnirl.data.tokens import SAMPLE_RATE_HZ, resampled
from omnirl.errors import InvalidInput

PACKAGES = ("av", "PIL", "numpy")
_AAC_FRAME = 1024
_FALLBACK_FPS = 25.0
_RATE_TOLERANCE = 0.02
"""How far a header's frame rate may be off the frames' own times."""
_MOST_S = 3600
"""Longest sound that is decoded."""
_LEAST_SHARE, _SLACK_S = 0.95, 0.1
"""How much of the length that a header tells must be there."""
_TELL_DURATION = {"mov", "wav", "flac"}
_MOST_FRAMES = 5_000_000
"""Frames or packets after which a file is refused; 46 hours at 30 a second."""
_IMAGE_MARKS = (
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpeg"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"BM", "bmp"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
)


@dataclass(frozen=True, slots=True)
class Image:
    """A picture: its size in pixels and its format, such as `png`."""

    width: int
    height: int
    format: str


@dataclass(frozen=True, slots=True)
class Audio:
    """The first audio stream of a file."""

    codec: str
    rate_hz: int
    channels: int
    duration_s: float | None


@dataclass(frozen=True, slots=True)
class Video:
    """The first video stream of a file: `times_s` are the presentation times of all frames, sorted."""

    codec: str
    width: int
    height: int
    fps: float
    times_s: tuple[float, ...]
    sound: Audio | None

    @property
    def frames(self) -> int:
        return len(self.times_s)

    @property
    def duration_s(self) -> float:
        """From the first frame to the end of the last one, if each is shown as long as the average."""
        return self.times_s[-1] - self.times_s[0] + 1 / self.fps


def missing() -> list[str]:
    """Packages that reading media takes and that are not installed."""
    return [name for name in PACKAGES if find_spec(name) is None]


def image_format(start: bytes) -> str:
    """The format of a picture from its first 16 bytes; empty when they are of no format that is known."""
    for mark, name in _IMAGE_MARKS:
        if start.startswith(mark):
            return name
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "webp"
    return "avif" if start[4:12] in (b"ftypavif", b"ftypheic") else ""


def image(content: Path | bytes) -> Image:
    """Size and format of a picture, from its header. Raises InvalidInput when it is none."""
    from PIL import Image as Pillow
    from PIL import UnidentifiedImageError

    name = "the picture in the row" if isinstance(content, bytes) else f"`{content}`"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Pillow.DecompressionBombWarning)
            with Pillow.open(io.BytesIO(content) if isinstance(content, bytes) else content) as picture:
                return Image(picture.width, picture.height, (picture.format or "").lower())
    except (
        *(OSError, UnidentifiedImageError, Pillow.DecompressionBombError, SyntaxError),
        *(ValueError, TypeError, IndexError, struct.error),
    ) as error:
        raise InvalidInput(f"{name} is no readable image") from error


def audio(path: Path) -> Audio:
    """The first audio stream of a file. Raises InvalidInput when there is none."""
    with _opened(path) as container:
        return _audio(_stream(container, path, "audio"))


def samples_16khz(path: Path) -> int:
    """How many samples the first audio stream has after conversion to 16 kHz; resamplers differ by one.

    From the header for WAV, from the packets for AAC, and by decoding, which is cheap for sound, otherwise.
    Raises InvalidInput when there is no sound, less than the header says, or more than an hour.
    """
    with _opened(path) as container:
        stream = _stream(container, path, "audio")
        exact = _from_header(container, stream, path)
        if exact is None and stream.codec_context.name == "aac" and stream.profile == "LC":
            exact = _from_packets(container, stream)
        rate_hz = stream.rate
        known = not _TELL_DURATION.isdisjoint(container.format.name.split(","))
        told_s = float(stream.duration * stream.time_base) if known and stream.duration else 0.0
    if exact is None:
        exact, rate_hz = _decoded(path)
    found = resampled(exact, rate_hz) if rate_hz else 0
    if found < 1:
        raise InvalidInput(f"the audio stream of `{path}` is empty")
    if found < (_LEAST_SHARE * told_s - _SLACK_S) * SAMPLE_RATE_HZ:
        there_s = found / SAMPLE_RATE_HZ
        raise InvalidInput(f"of the audio of `{path}` only {there_s:.2f} s are there; its header says {told_s:.2f} s")
    if found > _MOST_S * SAMPLE_RATE_HZ:
        raise InvalidInput(f"the audio of `{path}` is longer than {_MOST_S} s")
    return found


def video(path: Path) -> Video:
    """The first video stream of a file that is no cover picture.

    The rate is the header's where it agrees with the times of the frames, else what these come to.
    Raises InvalidInput when there is no such stream or it holds no frame.
    """
    with _opened(path) as container:
        stream = _moving(container, path)
        sound = _audio(container.streams.audio[0]) if container.streams.audio else None
        found: list[tuple[int | None, int]] = []
        for packet in container.demux(stream):
            if packet.size and not packet.is_discard:
                found.append((packet.pts, packet.duration or 0))
            if len(found) > _MOST_FRAMES:
                raise InvalidInput(f"`{path}` has over {_MOST_FRAMES} frames")
        size = stream.codec_context.width, stream.codec_context.height
        codec = stream.codec_context.name
        told = float(stream.average_rate or stream.guessed_rate or 0)
        # what avi calls the time of showing is that of decoding
        numbered = container.format.name == "avi"
        unit_s = float(stream.time_base)
    if not found or min(size) < 1:
        raise InvalidInput(f"the video stream of `{path}` is empty")
    timed = sorted((time, duration) for time, duration in found if time is not None)
    if numbered or len(timed) < len(found):
        fps = told or _FALLBACK_FPS
        return Video(codec, *size, fps, tuple(number / fps for number in range(len(found))), sound)
    times = tuple(time * unit_s for time, _ in timed)
    span = times[-1] - times[0]
    counted = len(times) / (span + (timed[-1][1] * unit_s or span / (len(times) - 1))) if span else 0.0
    right = not counted or (told and abs(counted / told - 1) <= _RATE_TOLERANCE)
    return Video(codec, *size, (told or _FALLBACK_FPS) if right else counted, times, sound)


def _from_header(container: Any, stream: Any, path: Path) -> int | None:
    """Samples that the header of a WAV tells, if the file is long enough for them."""
    codec = stream.codec_context
    if container.format.name != "wav" or not stream.duration or not stream.rate:
        return None
    samples: int = round(stream.duration * stream.time_base * stream.rate)
    stored_bytes = samples * (codec.bit_rate or 0) / stream.rate / 8
    return samples if codec.name.startswith("pcm_") and 0 < stored_bytes <= path.stat().st_size else None


def _from_packets(container: Any, stream: Any) -> int | None:
    """Samples of an AAC stream: each packet that is shown decodes to 1024. None where samples are to be skipped."""
    count = 0
    for packet in container.demux(stream):
        if not packet.size or packet.is_discard:
            continue
        if packet.has_sidedata("skip_samples"):
            return None
        count += 1
        if count > _MOST_FRAMES:
            return None
    return count * _AAC_FRAME


def _decoded(path: Path) -> tuple[int, int]:
    """Samples that really decode, and their rate."""
    import av

    count = rate_hz = 0
    with _opened(path) as container:
        for packet in container.demux(_stream(container, path, "audio")):
            try:
                frames = packet.decode()
            except av.InvalidDataError:
                continue
            for frame in frames:
                count += frame.samples
                rate_hz = frame.sample_rate
            if count > (_MOST_S + 1) * (rate_hz or 1):
                break
    return count, rate_hz


def _audio(stream: Any) -> Audio:
    duration = float(stream.duration * stream.time_base) if stream.duration else None
    if duration is None and stream.container.duration:
        duration = stream.container.duration / 1_000_000
    return Audio(stream.codec_context.name, stream.rate or 0, stream.channels or 0, duration)


def _moving(container: Any, path: Path) -> Any:
    from av.stream import Disposition

    for stream in container.streams.video:
        if not stream.disposition & Disposition.attached_pic:
            return stream
    raise InvalidInput(f"`{path}` has no video stream")


def _stream(container: Any, path: Path, kind: str) -> Any:
    streams = getattr(container.streams, kind)
    if not streams:
        raise InvalidInput(f"`{path}` has no {kind} stream")
    return streams[0]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    import av

    try:
        # "file:" keeps a name such as `http://host/a.mp4` from being anything but the name of a file
        with av.open(f"file:{path}", options={"protocol_whitelist": "file", "format_whitelist": FORMATS}) as container:
            yield container
    except (av.FFmpegError, OSError, ValueError) as error:
        raise InvalidInput(f"`{path}` cannot be read: {' '.join(str(error).split())[:200]}") from error
