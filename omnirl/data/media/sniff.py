"""What the first bytes of a file say: playlists, references to other files, and the length that some headers promise.

Imports the standard library alone: worker processes load it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_HEAD_BYTES = 4096
_MOST_BOXES = 20_000
_MOST_CHUNKS = 1_000
_UNKNOWN_SIZE = (1 << 32) - 1
_STREAMED_SIZE = 0x7FFF_0000
_FIXED_SAMPLES = {1, 3, 6, 7, 0xFFFE}
"""Format tags of WAV: PCM, floating point, A-law, mu-law, extensible."""
_ASF_PROPERTIES = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")

_TEXT = re.compile(
    rb"""
    \#EXTM3U | \#EXTINF | \#EXT-X- | ffconcat[ ]version | \[playlist\] | \[reference\] | RTSPtext | SMIL
    | (?:file|stream|duration|inpoint)[ \t]+\S      # an ffconcat list without its first line
    | v=0\s+o=                                      # session description
    | (?:https?|rtsp|rtmp|mms|ftp|file|concat|concatf|pipe|crypto|subfile|data|tcp|udp)://? \S
    | (?:concat|subfile|data|pipe|async|cache):\S
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_XML = re.compile(rb"<(?:MPD|SmoothStreamingMedia|asx|playlist|smil|CompositionPlaylist|AssetMap)\b", re.IGNORECASE)
_FIRST_BOXES = {b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"uuid", b"styp", b"sidx", b"moof"}
_NEST = {b"moov", b"trak", b"mdia", b"minf", b"dinf"}


def refers_elsewhere(path: Path) -> bool:
    """Whether a file is a playlist, or a QuickTime file with a track in another file. Raises OSError."""
    with _open(path) as file:
        head = file.read(_HEAD_BYTES)
        if head[4:8] in _FIRST_BOXES:
            file.seek(0, 2)
            return _has_outer_track(file, file.tell())
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return _TEXT.match(text) is not None or (text.startswith(b"<") and _XML.search(text) is not None)


def promised_seconds(form: str, path: Path) -> float | None:
    """The length that a header promises, for formats whose demuxer passes on one that is cut to what is there.

    None where the header promises nothing, and for other formats. Raises OSError.
    """
    parse = {"mp3": _mp3_seconds, "wav": _wav_seconds, "asf": _asf_seconds}.get(form)
    if parse is None:
        return None
    with _open(path) as file:
        return parse(file)


def _open(path: Path) -> BinaryIO:
    # A file that has become a FIFO since it was looked at would block a thread for good.
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


def _mp3_seconds(file: BinaryIO) -> float | None:
    """From the number of frames in the Xing or Info header."""
    head = file.read(10)
    start = 0
    if head.startswith(b"ID3") and len(head) == 10:
        start = 10 + sum((byte & 0x7F) << shift for byte, shift in zip(head[6:10], (21, 14, 7, 0), strict=True))
    file.seek(start)
    frame = file.read(256)
    if len(frame) < 64 or frame[0] != 0xFF or frame[1] & 0xE6 != 0xE2:
        return None
    version, rate = frame[1] >> 3 & 3, frame[2] >> 2 & 3
    if version == 1 or rate == 3:
        return None
    for mark in (b"Xing", b"Info"):
        at = frame.find(mark, 4, 48)
        if at > 0 and frame[at + 7] & 1:
            frames = int.from_bytes(frame[at + 8 : at + 12], "big")
            rate_hz = (44_100, 48_000, 32_000)[rate] >> {3: 0, 2: 1, 0: 2}[version]
            return frames * (1152 if version == 3 else 576) / rate_hz
    return None


def _wav_seconds(file: BinaryIO) -> float | None:
    """From the size of the samples, for sample formats whose size tells their number."""
    if file.read(12)[:4] not in (b"RIFF", b"RF64"):
        return None
    bytes_per_s = long_size = 0
    for _ in range(_MOST_CHUNKS):
        head = file.read(8)
        if len(head) < 8:
            return None
        size = int.from_bytes(head[4:], "little")
        if head[:4] == b"data":
            size = long_size if size == _UNKNOWN_SIZE else size
            # A program that wrote to a pipe could not know the size: it left none, or the largest.
            return size / bytes_per_s if bytes_per_s and 0 < size < max(_STREAMED_SIZE, long_size + 1) else None
        body = file.read(min(size, 40))
        if head[:4] == b"fmt " and int.from_bytes(body[:2], "little") in _FIXED_SAMPLES:
            bytes_per_s = int.from_bytes(body[4:8], "little") * int.from_bytes(body[12:14], "little")
        elif head[:4] == b"ds64":
            long_size = int.from_bytes(body[8:16], "little")
        file.seek(size - len(body) + size % 2, 1)
    return None


def _asf_seconds(file: BinaryIO) -> float | None:
    """From the file properties, which a broadcast does not fill."""
    head = file.read(1 << 16)
    at = head.find(_ASF_PROPERTIES)
    body = head[at + 24 : at + 96]
    if at < 0 or len(body) < 68 or body[64] & 1:
        return None
    return int.from_bytes(body[40:48], "little") / 1e7 - int.from_bytes(body[56:64], "little") / 1e3


def _has_outer_track(file: BinaryIO, size: int) -> bool:
    """Whether a QuickTime or MP4 file names media data outside itself."""
    for kind, start, end in _boxes(file, 0, size):
        if kind == b"rmra":
            return True
        if kind == b"dref":
            file.seek(start)
            body = file.read(min(end - start, 1 << 16))[8:]
            while len(body) >= 12:
                length = int.from_bytes(body[:4], "big")
                outside = not int.from_bytes(body[9:12], "big") & 1
                if outside and body[12 : max(length, 12)].strip(b"\0"):
                    return True
                body = body[max(length, 12) :]
    return False


def _boxes(file: BinaryIO, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """(type, start and end of the body) of the boxes that lead to the data references, in order; a bounded number."""
    todo = [(start, end)]
    for _ in range(_MOST_BOXES):
        while todo and todo[-1][0] + 8 > todo[-1][1]:
            todo.pop()
        if not todo:
            return
        at, limit = todo.pop()
        file.seek(at)
        head = file.read(16)
        if len(head) < 8:
            continue
        length, kind, body = int.from_bytes(head[:4], "big"), head[4:8], at + 8
        if length == 1 and len(head) == 16:
            length, body = int.from_bytes(head[8:], "big"), at + 16
        stop = limit if length == 0 else min(limit, at + length)
        if stop < body:
            continue
        todo.append((stop, limit))
        if kind in _NEST:
            todo.append((body, stop))
        yield kind, body, stop
