"""Sound: mono samples at 16 kHz, from audio files and from videos alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np

from omnirl.data.tokens import HOP, SAMPLE_RATE_HZ
from omnirl.engine.container import decode, open_media
from omnirl.errors import InvalidInput

LEAST_SAMPLES = 2 * HOP
"""The feature extractor fails on sounds that are shorter than half of its window."""
MAX_DURATION_S = 3600
"""Longer audio is refused: it would be 47,000 tokens, and fill the memory of every process that hears it."""
# What is heard of a whole file falls short of its header by an encoder's delay, hardly more.
_LEAST_SHARE, _SLACK_S = 0.95, 0.1
# Containers whose header says how long a stream is. The rest is estimated from bit rates.
_TELL_DURATION = {"mov", "flac"}


def audio(path: str | Path) -> np.ndarray:
    """Decode the first audio stream of a file; mono is the mean of its channels, as the model's own tools make it.

    Returns:
        float32 mono samples at 16 kHz, zero-padded to a multiple of 160, so that samples and mel frames agree, and to
        320 at least.

    Raises:
        InvalidInput: no file, no audio stream, nothing decodes, less than 95 % of what the header says decodes, or
            more than an hour.
    """
    try:
        with open_media(path) as container:
            if not container.streams.audio:
                raise InvalidInput(f"`{path}` has no audio stream")
            stream = container.streams.audio[0]
            pieces = _pieces(container, stream, path)
            told_s = _told_duration_s(container, stream)
    except (av.FFmpegError, OSError, ValueError) as error:
        raise InvalidInput(f"cannot decode audio of `{path}`: {error}") from error
    samples = np.concatenate(pieces).astype(np.float32, copy=False) if pieces else np.empty(0, np.float32)
    if not samples.size:
        raise InvalidInput(f"the audio stream of `{path}` is empty, or nothing of it decodes")
    heard_s = samples.size / SAMPLE_RATE_HZ
    if heard_s < _LEAST_SHARE * told_s - _SLACK_S:
        raise InvalidInput(f"of the audio of `{path}` only {heard_s:.2f} s decode; its header says {told_s:.2f} s")
    return np.pad(samples, (0, max(-samples.size % HOP, LEAST_SAMPLES - samples.size)))


def soundtrack(path: str | Path) -> np.ndarray:
    """The first audio stream of a video file, as `audio` returns it; a mute video raises InvalidInput."""
    return audio(path)


def _pieces(container: Any, stream: Any, path: str | Path) -> list[np.ndarray]:
    """The samples in pieces, resampled; a stream may change its rate or channels on the way."""
    pieces: list[np.ndarray] = []
    resampler, resampled = None, None
    count = 0

    def keep(frames: list[Any]) -> int:
        # FFmpeg's own mix of two equal channels to float is 3 dB louder than either, and leaves the range of -1 to 1
        arrays = [frame.to_ndarray().mean(axis=0) for frame in frames]
        pieces.extend(arrays)
        return sum(array.size for array in arrays)

    for frame in decode(container, stream):
        found = frame.format.name, frame.layout.name, frame.sample_rate
        if found != resampled:
            if resampler is not None:
                count += keep(resampler.resample(None))
            resampler, resampled = av.AudioResampler(format="fltp", rate=SAMPLE_RATE_HZ), found
        count += keep(resampler.resample(frame))
        if count > MAX_DURATION_S * SAMPLE_RATE_HZ:
            raise InvalidInput(f"the audio of `{path}` is longer than {MAX_DURATION_S} s")
    if resampler is not None:
        keep(resampler.resample(None))
    return pieces


def _told_duration_s(container: Any, stream: Any) -> float:
    """Seconds of the stream by the file's header, 0 where it does not say."""
    known = not _TELL_DURATION.isdisjoint(container.format.name.split(","))
    return float(stream.duration * stream.time_base) if known and stream.duration and stream.time_base else 0.0
