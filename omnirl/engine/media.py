"""Media of a row: decoding, the chat messages that name them, and the processor call.

Training, rollout and the warm-up of the tiny checkpoint all read media through this module, so that every part of a run
sees the same pixels and the same samples. Decoding uses PyAV's own FFmpeg libraries; no `ffmpeg` program is started.
"""

from __future__ import annotations

import io
import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from omnirl.errors import InvalidInput

SAMPLE_RATE_HZ = 16_000
HOP = 160
"""Samples per mel frame; audio is padded to a multiple of it, so that samples and frames agree."""
PIXEL_FACTOR = 32
"""Side of the smallest square that becomes one token: patch 16, merged 2 x 2."""
FRAME_FACTOR = 2
"""Frames that become one temporal patch."""
DEFAULT_VIDEO = {"fps": 2.0, "min_pixels": 128 * 32 * 32, "max_pixels": 768 * 32 * 32, "max_frames": 768}
PLACEHOLDER = re.compile(r"(<image>|<audio>|<video>)")

Message = dict[str, Any]
Video = tuple[torch.Tensor, dict[str, Any]]


def image(item: Mapping[str, Any] | bytes | str | Path) -> Image.Image:
    """Decode one picture to RGB.

    Args:
        item: encoded bytes, a path, or a row's `{"bytes": ..., "path": ...}` (bytes win) or `{"image": path}`.

    Raises:
        InvalidInput: nothing there, or not a picture.
    """
    source: Any = item
    if isinstance(item, Mapping):
        source = next((item[key] for key in ("bytes", "image", "path") if item.get(key)), None)
    if isinstance(source, Image.Image):
        return source.convert("RGB")
    name = "picture in the row" if isinstance(source, bytes) else f"`{source}`"
    if not source:
        raise InvalidInput("an image item holds neither bytes nor a path")
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else Path(source)) as picture:
            return picture.convert("RGB")
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError, SyntaxError, ValueError) as error:
        raise InvalidInput(f"cannot read {name} as an image: {error}") from error


def audio(path: str | Path) -> np.ndarray:
    """Decode the first audio stream of a file.

    Returns:
        float32 mono samples at 16 kHz, zero-padded to a multiple of 160.

    Raises:
        InvalidInput: no file, no audio stream, or nothing decodes.
    """
    pieces: list[np.ndarray] = []
    resampler = av.AudioResampler(format="flt", layout="mono", rate=SAMPLE_RATE_HZ)
    try:
        with av.open(str(path)) as container:
            if not container.streams.audio:
                raise InvalidInput(f"`{path}` has no audio stream")
            for frame in container.decode(container.streams.audio[0]):
                pieces.extend(part.to_ndarray()[0] for part in resampler.resample(frame))
            if pieces:
                pieces.extend(part.to_ndarray()[0] for part in resampler.resample(None))
    except (av.FFmpegError, OSError, ValueError) as error:
        raise InvalidInput(f"cannot decode audio of `{path}`: {error}") from error
    samples = np.concatenate(pieces).astype(np.float32, copy=False) if pieces else np.empty(0, np.float32)
    if not samples.size:
        raise InvalidInput(f"the audio stream of `{path}` is empty")
    return np.pad(samples, (0, -samples.size % HOP))


def soundtrack(path: str | Path) -> np.ndarray:
    """The first audio stream of a video file, as `audio` returns it."""
    return audio(path)


def fit_pixels(height: int, width: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Height and width, multiples of 32, inside the pixel budget and near the given aspect ratio.

    A side never falls below 32, so a very long picture may stay above `max_pixels`.
    """

    def whole(side: float, rounding: Any) -> int:
        return max(PIXEL_FACTOR, int(rounding(side / PIXEL_FACTOR)) * PIXEL_FACTOR)

    fitted = whole(height, round), whole(width, round)
    area = fitted[0] * fitted[1]
    if area > max_pixels:
        scale = math.sqrt(max_pixels / (height * width))
        fitted = whole(height * scale, math.floor), whole(width * scale, math.floor)
    elif area < min_pixels:
        scale = math.sqrt(min_pixels / (height * width))
        fitted = whole(height * scale, math.ceil), whole(width * scale, math.ceil)
    return fitted


def frame_indices(total: int, source_fps: float, fps: float, max_frames: int) -> list[int]:
    """Which frames to take: an even number, at least 2, evenly spread; the last one repeats where a clip has one."""
    wanted = min(int(total / source_fps * fps), max_frames, total)
    count = max(FRAME_FACTOR, wanted - wanted % FRAME_FACTOR)
    return [round(index) for index in np.linspace(0, total - 1, count)]


def video(item: Mapping[str, Any]) -> Video:
    """Decode the sampled frames of one video.

    Args:
        item: `video` (path) and optionally `fps`, `min_pixels`, `max_pixels`, `max_frames`.

    Returns:
        uint8 frames (T, C, H, W), T even and at least 2, H and W multiples of 32; and their metadata: `fps` of the
        file, `frames_indices`, `total_num_frames`, `video_backend`.

    Raises:
        InvalidInput: no file, no video stream, or nothing decodes.
    """
    setting = DEFAULT_VIDEO | {key: value for key, value in item.items() if key in DEFAULT_VIDEO and value}
    path = item.get("video")
    if not path:
        raise InvalidInput("a video item holds no path")
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise InvalidInput(f"`{path}` has no video stream")
            times, keys = _timeline(container)
            if not times:
                raise InvalidInput(f"the video stream of `{path}` is empty")
            rate = container.streams.video[0].average_rate or container.streams.video[0].guessed_rate
            fps = float(rate) if rate else 25.0
            indices = frame_indices(len(times), fps, float(setting["fps"]), int(setting["max_frames"]))
            frames = _frames(container, [times[index] for index in indices], keys)
    except (av.FFmpegError, OSError, ValueError) as error:
        raise InvalidInput(f"cannot decode video of `{path}`: {error}") from error
    if not frames:
        raise InvalidInput(f"no frame of `{path}` decodes")
    height, width = fit_pixels(
        frames[0].height, frames[0].width, int(setting["min_pixels"]), int(setting["max_pixels"])
    )
    pixels = np.stack([_resized(frame, height, width) for frame in frames])
    metadata = {
        "fps": fps,
        "frames_indices": indices,
        "total_num_frames": len(times),
        "video_backend": "pyav",
    }
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), metadata


def _timeline(container: Any) -> tuple[list[int], list[int]]:
    """Sorted presentation times of all frames and of the key frames, read without decoding."""
    times: list[int] = []
    keys: list[int] = []
    for packet in container.demux(container.streams.video[0]):
        time = packet.pts if packet.pts is not None else packet.dts
        if time is None or not packet.size:
            continue
        times.append(time)
        if packet.is_keyframe:
            keys.append(time)
    return sorted(times), sorted(keys)


def _frames(container: Any, targets: Sequence[int], keys: Sequence[int]) -> list[Any]:
    """Decode the frames shown at the given times, jumping ahead where a key frame lies between two of them."""
    stream = container.streams.video[0]
    container.seek(targets[0], stream=stream)
    decoder = container.decode(stream)
    taken: list[Any] = []
    frame: Any = None
    for target in targets:
        position = frame.pts if frame is not None else targets[0]
        if bisect_right(keys, target) > bisect_right(keys, position):
            container.seek(target, stream=stream)
            decoder = container.decode(stream)
            frame = None
        while frame is None or (frame.pts is not None and frame.pts < target):
            following = next(decoder, None)
            if following is None:
                break
            frame = following
        if frame is not None:
            taken.append(frame)
        elif taken:
            taken.append(taken[-1])
    return taken


def _resized(frame: Any, height: int, width: int) -> np.ndarray:
    if (frame.height, frame.width) == (height, width):
        return np.asarray(frame.to_ndarray(format="rgb24"))
    return np.asarray(frame.to_image().resize((width, height), Image.Resampling.BICUBIC))


def messages(row: Mapping[str, Any], soundtrack: bool = False) -> list[Message]:
    """Turn a row's prompt into chat messages whose content is a list of typed items.

    `<image>`, `<audio>` and `<video>` in the text stand for the row's media, in order. With `soundtrack`, an audio item
    with `of_video` set follows each video.

    Raises:
        InvalidInput: the text names more or fewer media than the row holds.
    """
    media = {f"<{kind}>": list(row.get(f"{kind}s") or ()) for kind in ("image", "audio", "video")}
    used = dict.fromkeys(media, 0)
    result: list[Message] = []
    for message in row["prompt"]:
        content: list[Message] = []
        for piece in PLACEHOLDER.split(message["content"]):
            if piece not in media:
                if piece:
                    content.append({"type": "text", "text": piece})
                continue
            if used[piece] < len(media[piece]):
                content.extend(_items(piece, media[piece][used[piece]], soundtrack))
            used[piece] += 1
        result.append({"role": message["role"], "content": content})
    for piece, count in used.items():
        if count != len(media[piece]):
            raise InvalidInput(f"the prompt names {count} `{piece}` and the row holds {len(media[piece])}")
    return result


def _items(piece: str, item: Any, soundtrack: bool) -> list[Message]:
    if piece == "<image>":
        return [{"type": "image", "image": item}]
    if piece == "<audio>":
        return [{"type": "audio", "audio": item}]
    fields = dict(item) if isinstance(item, Mapping) else {"video": item}
    track = [{"type": "audio", "audio": fields["video"], "of_video": True}] if soundtrack else []
    return [{"type": "video", **fields}, *track]


def load(
    chat: Sequence[Message],
) -> tuple[list[Image.Image] | None, list[Video] | None, list[np.ndarray] | None]:
    """Decode the media of chat messages, in order: images, videos, audios; None for a kind that does not occur.

    Raises:
        InvalidInput: a file is missing or does not decode.
    """
    items = [item for message in chat if not isinstance(message["content"], str) for item in message["content"]]
    images = [image(item["image"]) for item in items if item["type"] == "image"]
    videos = [video(item) for item in items if item["type"] == "video"]
    audios = [audio(item["audio"]) for item in items if item["type"] == "audio"]
    return images or None, videos or None, audios or None


def processor_inputs(
    processor: Any,
    text: str,
    images: Sequence[Image.Image] | None,
    videos: Sequence[Video] | None,
    audios: Sequence[np.ndarray] | None,
    **options: Any,
) -> dict[str, Any]:
    """Call the processor as verl's trainer does for the same media; `options` are flat processor arguments.

    Frames are taken as they are when the processor's configuration says `do_resize: false` for videos, which the tiny
    checkpoint's does. Returns the tensors of one sequence.
    """
    arguments: dict[str, Any] = {"return_tensors": "pt", **options}
    if videos:
        arguments["videos"] = [frames for frames, _ in videos]
        arguments["video_metadata"] = [metadata for _, metadata in videos]
        arguments["do_sample_frames"] = False
    if audios:
        arguments["audio"] = list(audios)
        arguments.setdefault("sampling_rate", processor.feature_extractor.sampling_rate)
    if images:
        arguments["images"] = list(images)
    inputs = dict(processor(text=[text], **arguments))
    if videos:
        # The processor takes one rate for all videos and knows nothing of the frames that were really sampled.
        seconds = [processor.video_processor.temporal_patch_size / sampled_fps(metadata) for _, metadata in videos]
        inputs["video_second_per_grid"] = torch.tensor(seconds)
    return inputs


def sampled_fps(metadata: Mapping[str, Any]) -> float:
    """Frames a second among the sampled frames of a video, from the spacing of their indices; 1.0 where unknown."""
    indices = metadata["frames_indices"]
    spacing = (indices[-1] - indices[0]) / (len(indices) - 1)
    return float(metadata["fps"] / spacing) if spacing > 0 else 1.0
