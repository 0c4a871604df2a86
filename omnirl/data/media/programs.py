"""Looking at an audio or video file with the programs ffprobe and ffmpeg, which are killed when they take too long."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import IO, Any
from zlib import crc32

from omnirl.data.media.rules import (
    FORMATS,
    HEARD_FRAMES,
    SILENCE_S,
    SILENT_PEAK,
    Found,
    Stream,
    fault_of_contents,
)
from omnirl.data.media.sniff import promised_seconds, refers_elsewhere
from omnirl.errors import EnvironmentLacks

MEMORY_BYTES = 4 << 30
"""Address space of one program."""
_LONGEST_LINE = 1 << 16
_LARGEST_PACKET = 1 << 26
_INPUT = {"protocol_whitelist": "file", "format_whitelist": FORMATS}
_ENTRIES = ":".join(
    (
        "format=format_name,duration",
        "stream=index,codec_type,codec_name,width,height,avg_frame_rate,r_frame_rate,nb_frames,start_time,duration,"
        "time_base,sample_rate,channels",
        "stream_disposition=attached_pic",
        "stream_side_data=rotation",
        "packet=stream_index,pts_time,dts_time,duration_time,size,data_hash",
    )
)


class Overrun(Exception):
    """A program was killed because its time was up."""


def lacking() -> str:
    """Which of the programs is not installed; empty if both are."""
    return next((name for name in ("ffprobe", "ffmpeg") if shutil.which(name) is None), "")


class Programs:
    """Runs the programs, each with a deadline of its own.

    Args:
        timeout_s: deadline of each run of a program.
        suspicious: most files will be unusable, so that each is asked for one thing after another.

    Raises:
        EnvironmentLacks: a program or the package ffmpeg-python is missing.
    """

    def __init__(self, timeout_s: float, *, suspicious: bool = False) -> None:
        missing = lacking()
        if missing:
            raise EnvironmentLacks(
                f"the program `{missing}` is not installed", hint="apt-get install ffmpeg (or conda install ffmpeg)"
            )
        try:
            import ffmpeg
        except ImportError as error:
            raise EnvironmentLacks("ffmpeg-python is not installed", hint="pip install ffmpeg-python") from error
        if not hasattr(ffmpeg, "merge_outputs"):
            raise EnvironmentLacks(
                f"`import ffmpeg` finds `{getattr(ffmpeg, '__file__', None)}`, which is not ffmpeg-python",
                hint="pip uninstall ffmpeg python-ffmpeg; pip install --force-reinstall ffmpeg-python",
            )
        self._ffmpeg: Any = ffmpeg
        self._timeout_s = timeout_s
        self._suspicious = suspicious
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def close(self) -> None:
        """Kill what is running and start nothing more."""
        with self._lock:
            self._closed = True
            for process in self._running:
                process.kill()

    def look(self, path: Path, kind: str) -> Found:
        """What the programs find in a file that is to be good for `kind` (audio, video or soundtrack).

        Raises:
            Overrun: a program took longer than its time.
            OSError: the file cannot be read, or a program not started.
        """
        found = Found()
        found.refers = refers_elsewhere(path)
        if found.refers:
            return found
        self._probe(path, found)
        found.promised_s = promised_seconds(found.format, path)
        video = found.video if kind != "audio" else None
        audio = found.audio if kind != "video" else None
        if fault_of_contents(kind, found):
            return found
        quiet = False
        if video is None or audio is None or not self._suspicious:
            quiet = self._decode(path, found, video, audio)
        if video is not None and audio is not None and not (found.seen and found.hears(audio)):
            # One stream that does not decode may end ffmpeg before it comes to the other, or make it read on to the end
            # and decode the other in full.
            found.forget_frames()
            quiet = self._decode(path, found, None, audio)
            if found.hears(audio):
                self._decode(path, found, video, None)
        if quiet:
            found.silent = self._is_silent(path)
        return found

    def _probe(self, path: Path, found: Found) -> None:
        """Describe the streams and see how far their packets go; ffmpeg-python's own `probe` has no deadline."""
        options = ["-v", "quiet", *(word for name, value in _INPUT.items() for word in (f"-{name}", value))]
        shape = ["-show_entries", _ENTRIES, "-show_data_hash", "crc32", "-of", "compact=escape=c"]
        streams: dict[int, Stream] = {}
        ends: dict[int, float] = {}
        filled: dict[int, float] = {}
        with self._run(["ffprobe", *options, *shape, "-i", f"file:{path}"]) as lines:
            for line in lines:
                section, *pairs = line.decode("utf-8", "replace").rstrip("\n").split("|")
                values = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
                if section == "packet":
                    _note(found, ends, filled, values)
                elif section == "stream" and "index" in values:
                    # A stream of a transport stream is listed under its program too.
                    streams[int(values["index"])] = _stream(values)
                elif section == "format":
                    found.format = values.get("format_name", "").split(",")[0]
                    found.duration_s = _number(values.get("duration"))
        found.streams = [streams[index] for index in sorted(streams)]
        pcm = {one.number for one in found.streams if one.codec.startswith("pcm_")}
        found.ends = {index: end for index, end in ends.items() if index in pcm} | {
            index: end for index, end in filled.items() if index not in pcm
        }

    def _decode(self, path: Path, found: Found, video: Stream | None, audio: Stream | None) -> bool:
        """Decode the first frames; whether all of the audio among them is silent."""
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb") as seen:
            try:
                source = self._ffmpeg.input(f"file:{path}", v="quiet", nostdin=None, copyts=None, threads=1, **_INPUT)
                outputs = []
                if video is not None:
                    one = {"frames:v": 1}
                    outputs.append(self._ffmpeg.output(source["V:0"], f"pipe:{writing}", format="framecrc", **one))
                if audio is not None:
                    # A sample that is silent becomes zero, and the checksum of zeros is zero.
                    scale = 1 / (2 * SILENT_PEAK)
                    some = {"frames:a": HEARD_FRAMES, "af": f"volume=volume={scale}:precision=float"}
                    outputs.append(self._ffmpeg.output(source["a:0"], "pipe:1", format="framecrc", **some))
                words = self._ffmpeg.compile(self._ffmpeg.merge_outputs(*outputs))
                with self._run(words, pass_fds=(writing,)) as lines:
                    quiet = _hear(found, lines)
            finally:
                os.close(writing)
            found.seen = found.seen or any(not line.startswith(b"#") for line in seen)
        return quiet

    def _is_silent(self, path: Path) -> bool:
        """Whether all of a track that began silent is silent, as far as it is listened to."""
        source = self._ffmpeg.input(f"file:{path}", v="quiet", nostdin=None, threads=1, **_INPUT)
        filters = f"volume=volume={1 / (2 * SILENT_PEAK)}:precision=float"
        output = self._ffmpeg.output(source["a:0"], "pipe:1", format="s16le", t=SILENCE_S, af=filters)
        with self._run(self._ffmpeg.compile(output), split=False) as pieces:
            return not any(piece.strip(b"\0") for piece in pieces)

    @contextmanager
    def _run(
        self, words: list[str], *, pass_fds: tuple[int, ...] = (), split: bool = True
    ) -> Iterator[Iterator[bytes]]:
        """Run a program and give its output, in lines or in pieces; it is killed at the end of the block."""
        # FFREPORT makes ffmpeg write files.
        environment = {name: value for name, value in os.environ.items() if name != "FFREPORT"}
        with self._lock:
            if self._closed:
                raise Overrun
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=pass_fds,
                cwd="/",
                env=environment,
                start_new_session=True,  # Ctrl-C is for the parent, which ends its programs
            )
            self._running.add(process)
        timer = threading.Timer(self._timeout_s, process.kill)
        timer.daemon = True
        timer.start()
        try:
            self._bind(process.pid)
            stdout: IO[bytes] = process.stdout  # type: ignore[assignment]
            yield _whole_lines(stdout) if split else iter(lambda: stdout.read(_LONGEST_LINE), b"")
            # A program that was killed, by the timer, its bound on CPU time or a stranger, says nothing about the file.
            killed = split and process.wait() in (-signal.SIGKILL, -signal.SIGXCPU)
        finally:
            timer.cancel()
            process.kill()
            with self._lock:
                self._running.discard(process)
            process.wait()
            process.stdout.close()  # type: ignore[union-attr]
        if killed or self._closed:
            raise Overrun

    def _bind(self, pid: int) -> None:
        """Bound what a program may use, also when this process is gone and can no longer kill it."""
        seconds = int(self._timeout_s) + 2
        for kind, most in (
            (resource.RLIMIT_AS, MEMORY_BYTES),
            (resource.RLIMIT_CPU, seconds),
            (resource.RLIMIT_FSIZE, 0),
            (resource.RLIMIT_CORE, 0),
        ):
            try:
                resource.prlimit(pid, kind, (most, most))
            except ProcessLookupError:
                return


def _whole_lines(stdout: IO[bytes]) -> Iterator[bytes]:
    """Lines up to the first that a killed program left torn."""
    while (line := stdout.readline(_LONGEST_LINE)).endswith(b"\n"):
        yield line


def _note(found: Found, ends: dict[int, float], filled: dict[int, float], values: dict[str, str]) -> None:
    """Record how far a packet goes, and how far if a packet of zeros is no data."""
    time = _number(values.get("pts_time"))
    time = _number(values.get("dts_time")) if time is None else time
    index, size = int(_number(values.get("stream_index")) or 0), int(_number(values.get("size")) or 0)
    if time is None or not size:
        return
    found.starts.setdefault(index, time)
    end = time + (_number(values.get("duration_time")) or 0.0)
    ends[index] = max(ends.get(index, end), end)
    if values.get("data_hash", "").partition(":")[2] != _hash_of_zeros(size):
        filled[index] = max(filled.get(index, end), end)


@lru_cache(4096)
def _hash_of_zeros(size: int) -> str:
    return f"{crc32(bytes(min(size, _LARGEST_PACKET))):08x}"


def _hear(found: Found, lines: Iterator[bytes]) -> bool:
    """Read the checksums of audio frames; whether there are any and all are of silence."""
    base_s, quiet = 0.0, True
    for line in lines:
        if line.startswith(b"#tb 0:"):
            base_s = _ratio(line[6:].decode())
        if line.startswith(b"#"):
            continue
        _, _, pts, length, _, checksum, *_ = (part.strip() for part in line.split(b","))
        found.heard_frames += 1
        found.heard_s += int(length) * base_s
        found.heard_until_s = max(found.heard_until_s, (int(pts) + int(length)) * base_s)
        quiet = quiet and int(checksum, 16) == 0
    return quiet and found.heard_frames > 0


def _stream(values: dict[str, str]) -> Stream:
    return Stream(
        number=int(values["index"]),
        kind=values.get("codec_type", ""),
        codec=values.get("codec_name", ""),
        start_s=_number(values.get("start_time")) or 0.0,
        duration_s=_number(values.get("duration")),
        frames=int(_number(values.get("nb_frames")) or 0),
        time_base_s=_ratio(values.get("time_base", "")),
        picture=values.get("disposition:attached_pic") == "1",
        width=int(_number(values.get("width")) or 0),
        height=int(_number(values.get("height")) or 0),
        fps=_ratio(values.get("avg_frame_rate", "")) or _ratio(values.get("r_frame_rate", "")),
        rotation=-int(_number(values.get("rotation")) or 0) % 360,
        sample_rate_hz=int(_number(values.get("sample_rate")) or 0),
        channels=int(_number(values.get("channels")) or 0),
    )


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text else None
    except ValueError:
        return None
    return number if number is not None and isfinite(number) else None


def _ratio(text: str) -> float:
    over, _, under = text.strip().partition("/")
    return (_number(over) or 0.0) / (_number(under) or 1.0) if _number(under) != 0 else 0.0
