"""Media of a row: the chat messages that name them, decoding, and the processor call.

Training, rollout and the warm-up of the tiny checkpoint all read media through this module, so that every part of a run
sees the same pixels and the same samples. Decoding uses PyAV's own FFmpeg libraries; no `ffmpeg` program is started,
and other video readers are not looked at, installed or not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from omnirl.data.tokens import fit_frame as fit_pixels
from omnirl.data.tokens import frame_indices
from omnirl.engine.audio import audio, soundtrack
from omnirl.engine.image import image
from omnirl.engine.video import Video, video
from omnirl.errors import InvalidInput

__all__ = [
    "Message",
    "Video",
    "audio",
    "fit_pixels",
    "frame_indices",
    "image",
    "load",
    "messages",
    "processor_inputs",
    "sampled_fps",
    "soundtrack",
    "video",
]

PLACEHOLDER = re.compile(r"(<image>|<audio>|<video>)")

Message = dict[str, Any]


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
