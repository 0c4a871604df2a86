"""Whether an engine gives media the positions that the trainer gives them.

Plain vLLM up to 0.28 is off by one for every picture, and nothing fails: only the log-probabilities drift apart. So the
question is asked at every start, instead of trusting a version.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from omnirl.engine.rollout.calls import EngineFailure

SECONDS_PER_PATCH = 1.0


@dataclass(frozen=True)
class Probe:
    """A made-up prompt with media, and the trainer's positions for it.

    Attributes:
        media: what `media_positions` of the worker extension takes.
        wanted: three rows: temporal, height, width.
    """

    name: str
    token_ids: list[int]
    media: list[dict[str, Any]]
    wanted: list[list[int]] = field(default_factory=list)


def probes(processor: Any) -> list[Probe]:
    """Prompts with a picture, two pictures, a sound, both, and a video.

    Args:
        processor: `omnirl.engine.processor.OmniProcessor`, which computes the trainer's positions.
    """
    image, second, audio, video = ("image", (1, 14, 20)), ("image", (1, 8, 8)), ("audio", 200), ("video", (3, 8, 8))
    cases = {
        "image": [image],
        "two images": [image, second],
        "audio": [audio],
        "image and audio": [image, audio],
        "audio and image": [audio, image],
        "video": [video],
        "video and audio": [video, audio],
    }
    return [_probe(processor, name, parts) for name, parts in cases.items()]


def _probe(processor: Any, name: str, parts: list[tuple[str, Any]]) -> Probe:
    config = processor.config
    merge = config.vision_config.spatial_merge_size
    ids, media = [1, 2, 3], []
    grids: dict[str, list[tuple[int, int, int]]] = {"image": [], "video": []}
    lengths: list[int] = []
    for modality, shape in parts:
        edge = "audio" if modality == "audio" else "vision"
        ids.append(getattr(config, f"{edge}_start_token_id"))
        if modality == "audio":
            count = _audio_tokens(shape)
            lengths.append(shape)
            data: dict[str, Any] = {"audio_feature_lengths": shape}
        else:
            frames, height, width = shape
            count = frames * (height // merge) * (width // merge)
            grids[modality].append(shape)
            data = {f"{modality}_grid_thw": list(shape)}
            if modality == "video":
                data |= {"second_per_grid_ts": SECONDS_PER_PATCH, "use_audio_in_video": False}
        media.append({"modality": modality, "offset": len(ids), "length": count, "data": data})
        ids += [getattr(config, f"{modality}_token_id")] * count
        ids.append(getattr(config, f"{edge}_end_token_id"))
        ids += [4, 5]
    row = torch.tensor([ids])
    positions, _ = processor.get_rope_index(
        input_ids=row,
        attention_mask=torch.ones_like(row),
        image_grid_thw=torch.tensor(grids["image"]) if grids["image"] else None,
        video_grid_thw=torch.tensor(grids["video"]) if grids["video"] else None,
        audio_seqlens=torch.tensor(lengths) if lengths else None,
        second_per_grids=torch.tensor([SECONDS_PER_PATCH] * len(grids["video"])) if grids["video"] else None,
    )
    return Probe(name, ids, media, positions[:, 0].tolist())


def _audio_tokens(frames: int) -> int:
    from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import _get_feat_extract_output_lengths

    return int(_get_feat_extract_output_lengths(torch.tensor(frames)))


def differing(probe: Probe, found: list[list[int]]) -> int:
    """How many tokens of the probe have other positions in the engine; all of them when the lengths differ."""
    if [len(row) for row in found] != [len(row) for row in probe.wanted]:
        return len(probe.token_ids)
    columns = zip(zip(*probe.wanted, strict=True), zip(*found, strict=True), strict=True)
    return sum(wanted != given for wanted, given in columns)


async def compare(processor: Any, ask: Callable[[list[int], list[dict[str, Any]]], Awaitable[list[Any]]]) -> None:
    """Let an engine pass that gives media the trainer's positions.

    Args:
        ask: calls `media_positions` of every worker.

    Raises:
        EngineFailure: it does not, for the media named.
    """
    wrong = []
    for probe in probes(processor):
        found = (await ask(probe.token_ids, probe.media))[0]
        if count := differing(probe, found):
            wrong.append(f"{probe.name} ({count} of {len(probe.token_ids)} tokens)")
    if wrong:
        raise EngineFailure(f"the rollout engine gives media other positions than the trainer: {', '.join(wrong)}")
