"""What makes an audio or video file usable: one set of rules for whatever was found out, and by whichever way.

Imports the standard library alone: worker processes load it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

Fact = int | float | str | bool

TOLERANCE = 0.05
"""Share of the promised length that may be missing at the end."""
GRACE_FRAMES = 1.5
"""Frames that may be missing whatever their share: one damaged last frame is no reason to drop a short clip."""
HEARD_FRAMES = 16
"""Decoded audio frames after which a stream counts as decodable."""
LEAST_HEARD_SHARE = 0.5
"""Share of the time up to the last of these frames that must have been decoded: noise decodes by chance at times."""
SILENT_PEAK = 2
"""Loudest 16-bit sample of a silent track."""
SILENCE_S = 120.0
"""How much of a track is listened to before it counts as silent."""
MOST_PIXELS = 1 << 26
"""Largest video frame."""

# Containers that hold their media themselves. Everything else (playlists, `concat`, image sequences, devices, streams
# described elsewhere) is refused by both ways of looking, whatever the file is called.
FORMATS = (
    "mov,matroska,avi,mpegts,mpeg,flv,asf,ogg,gif,ivf,mpegvideo,m4v,h264,hevc,"
    "wav,w64,aiff,au,caf,flac,mp3,aac,ac3,eac3,amr,ape,tta,wv"
)

# Where the length in the header is a promise and not an estimate from the file's size or last time stamp.
_OF_STREAMS = {"mov", "wav", "w64", "aiff", "au", "caf", "flac"}
_OF_CONTAINERS = {"matroska", "flv", "asf"}
SEEKABLE = _OF_STREAMS | _OF_CONTAINERS | {"avi"}
"""Formats whose time stamps after a jump are those of the packets and not guesses."""


class Verdict(NamedTuple):
    """The judgement of one media item: `reason` is empty for a usable one, else a drop reason in snake_case."""

    reason: str
    facts: Mapping[str, Fact]


class Stream(NamedTuple):
    """One stream as its container describes it; what is unknown is None, zero or empty."""

    number: int
    kind: str
    codec: str = ""
    start_s: float = 0.0
    duration_s: float | None = None
    frames: int = 0
    time_base_s: float = 0.0
    picture: bool = False
    """A cover or thumbnail: one still picture beside the media."""
    width: int = 0
    height: int = 0
    fps: float = 0.0
    rotation: int = 0
    """Degrees clockwise by which a player turns the frames: 0, 90, 180 or 270."""
    sample_rate_hz: int = 0
    channels: int = 0


class Found:
    """What was found out about one file."""

    def __init__(self) -> None:
        self.refers = False
        """The file refers to other files."""
        self.format = ""
        """First of the demuxer's names; empty if the file did not open."""
        self.duration_s: float | None = None
        self.promised_s: float | None = None
        """A length promised by a header that the demuxer does not pass on."""
        self.streams: list[Stream] = []
        self.ends: dict[int, float] = {}
        """Stream index -> end of the latest packet with data that was seen, in seconds."""
        self.starts: dict[int, float] = {}
        """Stream index -> time of the first packet."""
        self.forget_frames()
        self.silent = False
        self.sure = True
        """A thorough look cannot come to another verdict if this one is that the file is usable."""

    def forget_frames(self) -> None:
        """Start decoding anew."""
        self.seen = False
        """At least one video frame was decoded."""
        self.heard_frames = 0
        self.heard_s = 0.0
        """Length of the audio that was decoded, up to `HEARD_FRAMES` frames."""
        self.heard_until_s = 0.0
        """End of the last of these frames."""

    @property
    def video(self) -> Stream | None:
        return next((one for one in self.streams if one.kind == "video" and not one.picture), None)

    @property
    def audio(self) -> Stream | None:
        return next((one for one in self.streams if one.kind == "audio"), None)

    def promise(self, stream: Stream) -> float | None:
        """Seconds of `stream` that the header promises; None where it promises nothing."""
        if self.promised_s:
            return self.promised_s
        if self.format in _OF_STREAMS:
            return stream.duration_s or None
        if self.format == "avi":
            # The demuxer cuts the duration to fit the file's size, but not the number of frames.
            return stream.frames * stream.time_base_s or None
        return self.duration_s or None if self.format in _OF_CONTAINERS else None

    def reached(self, stream: Stream) -> float:
        """How far the data of `stream` were seen to go, in the terms of its promise."""
        if self.format in _OF_CONTAINERS:
            # One length stands for all streams; the longest of them must reach it.
            return max(self.ends.values(), default=0.0)
        end = self.ends.get(stream.number)
        return 0.0 if end is None else end - (stream.start_s if self.format in _OF_STREAMS else 0.0)

    def is_whole(self, stream: Stream) -> bool:
        """Whether the data of `stream` go as far as the header promises."""
        promised = self.promise(stream)
        if promised is None:
            return True
        missing = promised - self.reached(stream)
        return missing <= max(TOLERANCE * promised, GRACE_FRAMES * self._frame_s(stream))

    def hears(self, stream: Stream) -> bool:
        """Whether the audio decodes, and not just by chance."""
        if not self.heard_frames:
            return False
        until = self.heard_until_s
        if self.heard_frames < HEARD_FRAMES:
            until = max(until, self.ends.get(stream.number, 0.0))
        span = until - self.starts.get(stream.number, stream.start_s)
        return self.heard_s >= LEAST_HEARD_SHARE * span

    def _frame_s(self, stream: Stream) -> float:
        if stream.kind == "video":
            return 1 / stream.fps if stream.fps > 0 else 0.0
        # PCM comes in packets of any length, so a packet is no measure of what may be missing.
        if stream.codec.startswith("pcm_") or not self.heard_frames:
            return 0.0
        return self.heard_s / self.heard_frames


def decide(kind: str, found: Found, size_bytes: int) -> Verdict:
    """Judge what was found for `kind`: audio, video or soundtrack."""
    reason = fault_of_contents(kind, found) or _fault_of_data(kind, found)
    return Verdict(reason, {} if reason else _facts(kind, found, size_bytes))


def fault_of_contents(kind: str, found: Found) -> str:
    """What is wrong with a file as far as it shows without decoding; empty for nothing."""
    if found.refers:
        return "playlist"
    if not found.format:
        return "undecodable_audio" if kind == "audio" else "undecodable_video"
    video, audio = found.video, found.audio
    if kind != "audio" and video is None:
        return "no_video"
    if kind != "video" and audio is None:
        return "no_audio"
    if kind != "audio" and video is not None:
        if not found.is_whole(video):
            return "truncated_video"
        if video.width * video.height > MOST_PIXELS:
            return "undecodable_video"
    return ""


def _fault_of_data(kind: str, found: Found) -> str:
    audio = found.audio
    if kind != "video" and audio is not None:
        if not found.is_whole(audio):
            return "truncated_audio"
        if not found.hears(audio):
            return "undecodable_audio" if audio.number in found.starts else "empty_audio"
    return "undecodable_video" if kind != "audio" and not found.seen else ""


def _facts(kind: str, found: Found, size_bytes: int) -> dict[str, Fact]:
    facts: dict[str, Fact] = {"size_bytes": size_bytes}
    length = found.duration_s or max(found.ends.values(), default=0.0)
    facts["duration_s"] = round(length, 3)
    video, audio = found.video, found.audio
    if video is not None and kind != "audio":
        facts |= {"width": video.width, "height": video.height, "rotation": video.rotation, "video_codec": video.codec}
        if video.fps > 0:
            facts["fps"] = round(video.fps, 3)
        frames = video.frames or round((video.duration_s or length) * video.fps)
        if frames:
            facts["frames"] = frames
    facts["audio_streams"] = sum(one.kind == "audio" for one in found.streams)
    if audio is not None:
        facts |= {"audio_codec": audio.codec, "sample_rate_hz": audio.sample_rate_hz, "channels": audio.channels}
        heard = audio.duration_s or length
        facts["audio_duration_s"] = round(heard, 3)
        if found.silent:
            facts["silent"] = True
    return facts
