"""Videos: frames evenly spread in time, sized into a pixel budget, with the time of each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import av
import numpy as np
import torch
from PIL import Image

from omnirl.data.tokens import fit_frame, frame_indices, sampling
from omnirl.engine.container import BACKEND, decode, open_media
from omnirl.engine.image import check_aspect_ratio
from omnirl.errors import InvalidInput

_FALLBACK_FPS = 25.0
# of what the header says may be missing at the end
_TOLERATED_SHARE, _TOLERATED_FRAMES = 0.05, 1.5
# A header's frame rate that is further off than this from the frames' own times is not believed.
_RATE_TOLERANCE = 0.02

Video = tuple[torch.Tensor, dict[str, Any]]


def video(item: Mapping[str, Any]) -> Video:
    """Decode the sampled frames of one video, turned as the file says they are to be shown.

    Args:
        item: `video` (path) and optionally `fps`, `min_pixels`, `max_pixels`, `max_frames`.

    Returns:
        uint8 frames (T, C, H, W), T even and at least 2, H and W multiples of 32; and their metadata: `fps` of the
        file, `frames_indices`, `total_num_frames`, `video_backend`. An index divided by `fps` is the time of its frame
        in seconds since the first frame of the file. Where frames do not come at a constant rate the indices are
        therefore no whole numbers: they count frames of the mean rate.

    Raises:
        InvalidInput: no file, no video stream, nothing decodes, less than 95 % of what the header says is there, what
            was to be sampled does not decode, or one side is more than 200 times the other.
    """
    setting = sampling(item)
    path = item.get("video")
    if not path:
        raise InvalidInput("a video item holds no path")
    name = f"`{path}`"
    try:
        timeline = _timeline(path)
        sampled = frame_indices(len(timeline.times), timeline.fps, float(setting["fps"]), int(setting["max_frames"]))
        indices, targets = _evenly_in_time(timeline, sampled)
        pixels = _pixels(_frames(path, targets, timeline), targets, timeline, name, setting)
    except (av.FFmpegError, OSError, ValueError) as error:
        raise InvalidInput(f"cannot decode video of {name}: {error}") from error
    metadata = {
        "fps": timeline.fps,
        "frames_indices": indices,
        "total_num_frames": len(timeline.times),
        "video_backend": BACKEND,
    }
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous(), metadata


@dataclass(slots=True)
class _Timeline:
    """When the frames of a file are shown, read without decoding.

    Attributes:
        times: of all frames, sorted, in units of `unit_s` seconds.
        keys: times of the key frames, sorted.
        fps: mean frames a second.
        numbered: the container knows no times of showing; `times` are the frames' numbers.
    """

    times: Sequence[int]
    keys: Sequence[int]
    unit_s: float
    fps: float
    numbered: bool

    def per_frame(self) -> float:
        """Mean time of a frame, 0 where there is one alone."""
        return (self.times[-1] - self.times[0]) / max(1, len(self.times) - 1)


def _moving(container: Any, path: Any) -> Any:
    """The first video stream that is no cover picture."""
    cover = av.stream.Disposition.attached_pic
    for stream in container.streams.video:
        if not stream.disposition & cover:
            return stream
    raise InvalidInput(f"`{path}` has no video stream")


def _timeline(path: Any) -> _Timeline:
    """Raises: InvalidInput: no video stream, or less of it than the header says."""
    with open_media(path) as container:
        stream = _moving(container, path)
        found: list[tuple[int | None, int]] = []
        keys: list[int] = []
        end_s = 0.0
        for packet in container.demux():
            if not packet.size or packet.is_discard:
                continue
            time = packet.pts if packet.pts is not None else packet.dts
            if time is not None:
                end_s = max(end_s, float((time + (packet.duration or 0)) * packet.time_base))
            if packet.stream_index == stream.index:
                found.append((packet.pts, packet.duration or 0))
                if packet.is_keyframe and packet.pts is not None:
                    keys.append(packet.pts)
        if not found:
            raise InvalidInput(f"the video stream of `{path}` is empty")
        told = float(stream.average_rate or stream.guessed_rate or 0)
        timed = sorted((pts, duration) for pts, duration in found if pts is not None)
        kinds = container.format.name.split(",")
        # what avi calls the time of showing is that of decoding
        numbered = len(timed) < len(found) or "avi" in kinds
        unit_s = float(stream.time_base)
        if numbered:
            fps = told or _FALLBACK_FPS
            timeline = _Timeline(range(len(found)), [], 1 / fps, fps, numbered)
        else:
            times = [time for time, _ in timed]
            timeline = _Timeline(times, sorted(keys), unit_s, _rate(told, times, timed[-1][1], unit_s), numbered)
        if "avi" in kinds:
            _check_whole(path, len(found) / timeline.fps, stream.frames / timeline.fps, timeline.fps)
        elif "mov" in kinds and not numbered:
            reached = timed[-1][0] + timed[-1][1] - (stream.start_time or 0)
            _check_whole(path, reached * unit_s, (stream.duration or 0) * unit_s, timeline.fps)
        elif "matroska" in kinds:
            # one length stands for all streams
            _check_whole(path, end_s, (container.duration or 0) / av.time_base, timeline.fps)
        return timeline


def _check_whole(path: Any, found_s: float, told_s: float, fps: float) -> None:
    """Raises: InvalidInput: the frames end well before the length in the header, as in a file cut short."""
    if told_s - found_s > max(_TOLERATED_SHARE * told_s, _TOLERATED_FRAMES / fps):
        raise InvalidInput(f"of the video of `{path}` only {found_s:.2f} s are there; its header says {told_s:.2f} s")


def _rate(told: float, times: Sequence[int], last_duration: int, unit_s: float) -> float:
    """Mean frames a second: the header's number where it agrees with the frames' times."""
    span = times[-1] - times[0]
    if not span:
        return told or _FALLBACK_FPS
    counted = len(times) / ((span + max(last_duration, span / (len(times) - 1))) * unit_s)
    return told if told and abs(counted / told - 1) <= _RATE_TOLERANCE else counted


def _evenly_in_time(timeline: _Timeline, sampled: list[int]) -> tuple[list[int] | list[float], list[int]]:
    """Indices for the metadata, and the times of the frames to take.

    At a constant rate frames that are evenly spread in number are so in time, and `sampled` is used as it is. Otherwise
    even moments are chosen, and the frames that are on the screen then.
    """
    times = timeline.times
    span = times[-1] - times[0]
    late = np.asarray(times) - times[0] - np.linspace(0, span, len(times))
    if np.abs(late).max() <= timeline.per_frame() / 2:
        return sampled, [times[index] for index in sampled]
    moments = np.linspace(0, span, len(sampled))
    shown = [times[bisect_right(times, times[0] + moment) - 1] for moment in moments]
    return [float(moment) * timeline.unit_s * timeline.fps for moment in moments], shown


def _pixels(
    frames: Iterator[tuple[int, Any] | None],
    targets: Sequence[int],
    timeline: _Timeline,
    name: str,
    setting: Mapping[str, Any],
) -> list[np.ndarray]:
    """The frames for the given times as uint8 (H, W, 3), each sized as soon as it is decoded."""
    # a damaged frame is replaced by a neighbour, a damaged stretch is not
    tolerance = max((targets[-1] - targets[0]) / max(1, len(targets) - 1) / 2, 2 * timeline.per_frame())
    taken: list[np.ndarray] = []
    former, size = None, None
    for target, found in zip(targets, frames, strict=True):
        if found is None or abs(found[0] - target) > tolerance:
            second = (target - timeline.times[0]) * timeline.unit_s
            raise InvalidInput(f"the frames of {name} around second {second:.1f} do not decode")
        _, frame = found
        if frame is former:
            taken.append(taken[-1])
            continue
        former = frame
        turn = _turn(frame)
        if size is None:
            width, height = (frame.height, frame.width) if turn and turn[0] else (frame.width, frame.height)
            check_aspect_ratio(name, width, height)
            size = fit_frame(height, width, int(setting["min_pixels"]), int(setting["max_pixels"]))
        taken.append(_resized(frame, turn, *size))
    return taken


def _frames(path: Any, targets: Sequence[int], timeline: _Timeline) -> Iterator[tuple[int, Any] | None]:
    """Time and frame for each target, the nearest one after it that decodes, or else the last; None for no frame.

    Jumps ahead where a key frame lies between two targets. A container that lands behind the wanted frame, since it
    cannot seek precisely, is read from its start.
    """
    keys = timeline.keys
    done = 0
    found = None
    with open_media(path) as container:
        stream = _moving(container, path)
        decoder = _timed(container, stream, timeline.numbered)
        for target in targets:
            key = bisect_right(keys, target)
            if found is not None and key > bisect_right(keys, found[0]):
                # to the key frame's own time: some containers seek by decoding time, and would land behind the target
                container.seek(keys[key - 1], stream=stream)
                decoder = _timed(container, stream, timeline.numbered)
                found = next(decoder, None)
                if found is None or found[0] > target:
                    break
            found = _advance(decoder, found, target)
            yield found
            done += 1
    if done < len(targets):
        with open_media(path) as container:
            decoder, found = _timed(container, _moving(container, path), timeline.numbered), None
            for target in targets[done:]:
                found = _advance(decoder, found, target)
                yield found


def _timed(container: Any, stream: Any, numbered: bool) -> Iterator[tuple[int, Any]]:
    for number, frame in enumerate(decode(container, stream)):
        if numbered or frame.pts is not None:
            yield number if numbered else frame.pts, frame


def _advance(decoder: Iterator[tuple[int, Any]], found: tuple[int, Any] | None, target: int) -> tuple[int, Any] | None:
    while found is None or found[0] < target:
        following = next(decoder, None)
        if following is None:
            break
        found = following
    return found


def _turn(frame: Any) -> tuple[bool, bool, bool] | None:
    """How the frame is to be turned for showing: sides exchanged, then mirrored left to right, then top to bottom."""
    data = frame.side_data.get("DISPLAYMATRIX")
    if data is None:
        return None
    across, down, right, below = (int(value) for value in np.frombuffer(data, np.int32, 5)[[0, 1, 3, 4]])
    exchanged = abs(down) + abs(right) > abs(across) + abs(below)
    turn = (True, right < 0, down < 0) if exchanged else (False, across < 0, below < 0)
    return turn if any(turn) else None


def _resized(frame: Any, turn: tuple[bool, bool, bool] | None, height: int, width: int) -> np.ndarray:
    if turn is None and (frame.height, frame.width) == (height, width):
        return np.asarray(frame.to_ndarray(format="rgb24"))
    picture = frame.to_image()
    if turn is not None:
        exchanged, mirrored, flipped = turn
        picture = picture.transpose(Image.Transpose.TRANSPOSE) if exchanged else picture
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else picture
        picture = picture.transpose(Image.Transpose.FLIP_TOP_BOTTOM) if flipped else picture
    return np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC))
