"""Opening media files with PyAV, and only files: no network, no playlists, nothing that names other files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av

from omnirl.data.media.rules import FORMATS

BACKEND = "pyav"
"""What decodes audio and video in every process of a run, whatever other readers are installed."""

_OPTIONS = {"protocol_whitelist": "file", "format_whitelist": FORMATS}


def open_media(path: str | Path) -> Any:
    """Open a media file, as a context manager.

    Raises:
        OSError, av.FFmpegError: it is missing, or no format that holds its own media.
    """
    # "file:" keeps a name such as `http://host/a.mp4` from being anything but the name of a file
    return av.open(f"file:{os.fspath(path)}", options=dict(_OPTIONS))


def decode(container: Any, stream: Any) -> Iterator[Any]:
    """Frames of a stream from where the container stands; packets that do not decode are passed over."""
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except av.FFmpegError:
            continue
        yield from frames
