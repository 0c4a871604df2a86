"""Looking at an audio or video file with PyAV: quickly, to accept it, or thoroughly, to know what is wrong with it.

Runs in worker processes, since a decoder may hang or crash on a hostile file. Loads PyAV and the standard library
alone.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

from omnirl.data.media.rules import (
    FORMATS,
    HEARD_FRAMES,
    SEEKABLE,
    SILENCE_S,
    SILENT_PEAK,
    Found,
    Stream,
    fault_of_contents,
)
from omnirl.data.media.sniff import promised_seconds, refers_elsewhere

# Only the file itself is read: no other protocol, no other container than these, no track in another file.
_OPTIONS = {
    "protocol_whitelist": "file",
    "format_whitelist": FORMATS,
    "enable_drefs": "0",
    "use_absolute_path": "0",
}
_SAMPLE = {"u8": "B", "s16": "h", "s32": "i", "flt": "f", "dbl": "d"}
_FULL_SCALE = {"u8": 1 << 7, "s16": 1 << 15, "s32": 1 << 31, "flt": 1.0, "dbl": 1.0}
_NEAR_END = 0.97
_MOST_QUICK_PACKETS = 2_000


def look(path: Path, kind: str, *, thorough: bool) -> Found:
    """What PyAV finds in a file that is to be good for `kind` (audio, video or soundtrack).

    The quick look decodes the first frames and jumps to the end; only what makes the file usable can be relied upon.
    The thorough look reads the whole file.

    Raises:
        OSError: the file cannot be read.
    """
    found = Found()
    found.refers = refers_elsewhere(path)
    if found.refers:
        return found
    import av

    try:
        container = av.open(f"file:{path}", "r", options=_OPTIONS, metadata_errors="replace")
    except (av.FFmpegError, ValueError, MemoryError):
        return found
    with container:
        found.format = container.format.name.split(",")[0]
        found.promised_s = promised_seconds(found.format, path)
        _describe(container, found)
        video = found.video if kind != "audio" else None
        audio = found.audio if kind != "video" else None
        if fault_of_contents(kind, found) in ("no_video", "no_audio"):
            return found
        # A stream of an unknown codec has no decoder to ask.
        first = _Beginning(container, found, *(one if one and one.codec else None for one in (video, audio)))
        try:
            (first.thorough if thorough else first.quick)()
            if not thorough:
                # Where no header tells the length, the whole file must be read for it.
                found.sure = found.sure and found.duration_s is not None
                for stream in (video, audio):
                    if stream is not None:
                        _reach(container, found, stream)
            if first.quiet and found.heard_frames and audio is not None:
                found.silent = _is_silent(container, audio)
        except (av.FFmpegError, MemoryError, IndexError):
            # What was found up to here decides, if the whole file was to be read. PyAV raises IndexError when a stream
            # appears in the middle.
            found.sure = thorough
    return found


def _describe(container: Any, found: Found) -> None:
    if container.duration is not None and container.duration > 0:
        found.duration_s = container.duration / 1_000_000
    for stream in container.streams:
        context = stream.codec_context
        base = float(stream.time_base or 0)
        known: dict[str, Any] = {
            "codec": "" if context is None else context.codec.canonical_name,
            "start_s": (stream.start_time or 0) * base,
            "duration_s": stream.duration * base if stream.duration and stream.duration > 0 else None,
            "frames": stream.frames,
            "time_base_s": base,
        }
        if context is not None and stream.type in ("audio", "video"):
            # The pool has one process a core already.
            context.thread_count = 1
        if context is not None and stream.type == "video":
            rate = stream.average_rate or stream.guessed_rate
            known |= {"width": context.width, "height": context.height, "fps": float(rate or 0)}
            known["picture"] = bool(stream.disposition & type(stream.disposition).attached_pic)
        elif context is not None and stream.type == "audio":
            known |= {"sample_rate_hz": context.sample_rate, "channels": context.channels}
        found.streams.append(Stream(stream.index, stream.type, **known))


class _Beginning:
    """Reads a container from its start and decodes the first frames of the streams that matter."""

    def __init__(self, container: Any, found: Found, video: Stream | None, audio: Stream | None) -> None:
        self.container = container
        self.found = found
        self.video = video
        self.audio = audio
        self.quiet = audio is not None
        """All of the audio that was decoded is silent."""

    def quick(self) -> None:
        """Stop at the first frames; a decoding error is left to the thorough look."""
        wanted = [self.container.streams[one.number] for one in (self.video, self.audio) if one is not None]
        if not wanted:
            return
        for count, packet in enumerate(self.container.demux(wanted)):
            _note(self.found, packet)
            index = packet.stream.index
            if self.video is not None and index == self.video.number and not self.found.seen:
                # Draining the decoder yields the first frame at once; otherwise it waits for B-frames.
                self._see(packet.decode() or (packet.size and packet.stream.decode(None)) or ())
                if not self.found.seen:
                    break
            elif self.audio is not None and index == self.audio.number:
                self._hear(packet.decode())
            if self._is_done():
                return
            if count > _MOST_QUICK_PACKETS:
                break
        else:
            return
        self.found.sure = False

    def thorough(self) -> None:
        """Read all packets; decode until enough frames came, whatever fails on the way."""
        import av

        for packet in self.container.demux(list(self.container.streams)):
            _note(self.found, packet)
            index = packet.stream.index
            of_video = self.video is not None and index == self.video.number and not self.found.seen
            of_audio = self.audio is not None and index == self.audio.number
            if not of_video and not (of_audio and self.found.heard_frames < HEARD_FRAMES):
                continue
            try:
                frames = packet.decode()
            except (av.FFmpegError, MemoryError):
                continue
            if of_video:
                self._see(frames)
            else:
                self._hear(frames)

    def _is_done(self) -> bool:
        seen = self.video is None or self.found.seen
        return seen and (self.audio is None or self.found.heard_frames >= HEARD_FRAMES)

    def _see(self, frames: Any) -> None:
        if frames and self.video is not None:
            self.found.seen = True
            turned = self.video._replace(rotation=-frames[0].rotation % 360)
            self.found.streams[self.video.number] = self.video = turned

    def _hear(self, frames: Any) -> None:
        for frame in frames:
            if self.found.heard_frames >= HEARD_FRAMES:
                return
            seconds = frame.samples / frame.sample_rate if frame.sample_rate else 0.0
            self.found.heard_frames += 1
            self.found.heard_s += seconds
            if frame.time is not None:
                self.found.heard_until_s = max(self.found.heard_until_s, frame.time + seconds)
            self.quiet = self.quiet and is_quiet(frame)


def _note(found: Found, packet: Any) -> float:
    """Record how far a packet goes; its end, or -1 for one without data."""
    time = packet.pts if packet.pts is not None else packet.dts
    if time is None or not packet.size:
        return -1.0
    index, base = packet.stream.index, float(packet.time_base)
    found.starts.setdefault(index, time * base)
    # A file that was reserved in full and never filled reads as zeros; samples may well be zero.
    if not _is_pcm(found, index) and not bytes(packet).strip(b"\0"):
        return -1.0
    end: float = (time + (packet.duration or 0)) * base
    found.ends[index] = max(found.ends.get(index, end), end)
    return end


def _is_pcm(found: Found, index: int) -> bool:
    return found.streams[index].codec.startswith("pcm_")


def _reach(container: Any, found: Found, stream: Stream) -> None:
    """Read packets near the end that the header promises; jump there where the container has an index."""
    promised = found.promise(stream)
    if promised is None or not stream.time_base_s:
        return
    # A fragmented MP4 has none, and its number of frames is unknown.
    jumps = found.format in SEEKABLE and (found.format != "mov" or stream.frames > 0)
    if jumps:
        at = round((stream.start_s + _NEAR_END * promised) / stream.time_base_s)
        container.seek(at, stream=container.streams[stream.number], any_frame=True)
    for count, packet in enumerate(container.demux(list(container.streams))):
        _note(found, packet)
        if found.is_whole(stream) or (jumps and count > _MOST_QUICK_PACKETS):
            return


def is_quiet(frame: Any) -> bool:
    """Whether no sample of a decoded audio frame is louder than a silent track's."""
    kind = frame.format.name.removesuffix("p")
    code = _SAMPLE.get(kind)
    if code is None:
        return False
    count = frame.samples if frame.format.is_planar else frame.samples * len(frame.layout.channels)
    loudest = SILENT_PEAK * _FULL_SCALE[kind] / (1 << 15)
    for plane in frame.planes:
        data = bytes(plane)[: count * array(code).itemsize]
        if not data.strip(b"\0") and code != "B":
            continue
        samples = array(code, data)
        centre = 1 << 7 if code == "B" else 0
        if max(samples) - centre > loudest or centre - min(samples) > loudest:
            return False
    return True


def _is_silent(container: Any, audio: Stream) -> bool:
    """Whether all of a track that began silent is silent, as far as it is listened to."""
    import av

    container.seek(0)
    heard_s = 0.0
    for packet in container.demux(container.streams[audio.number]):
        try:
            frames = packet.decode()
        except (av.FFmpegError, MemoryError):
            continue
        for frame in frames:
            heard_s += frame.samples / frame.sample_rate if frame.sample_rate else 0.0
            if not is_quiet(frame):
                return False
            if heard_s > SILENCE_S:
                return True
    return True
