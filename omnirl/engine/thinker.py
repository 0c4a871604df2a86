"""What of Qwen3-Omni is trained: the Thinker alone, with every tower alive on every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeThinkerForConditionalGeneration,
)
from transformers.utils import ModelOutput

from omnirl.engine.head import BANNED_LOGIT, log_probs_and_entropy

FSDP_UNITS = ["Qwen3OmniMoeThinkerTextDecoderLayer", "Qwen3OmniMoeVisionBlock", "Qwen3OmniMoeAudioEncoderLayer"]

_MEDIA_TOKENS = (
    "image_token_id",
    "video_token_id",
    "audio_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
    "audio_start_token_id",
    "audio_end_token_id",
)


def thinker_config(config: PretrainedConfig) -> PretrainedConfig:
    """The Thinker's part of a full Qwen3-Omni configuration (a Thinker's own passes through)."""
    return getattr(config, "thinker_config", config)


def media_token_ids(config: PretrainedConfig) -> list[int]:
    """Token ids that stand for media and must never be part of an answer.

    A sampled placeholder claims features that do not exist: the trainer's forward then fails on the count, and a start
    token breaks the position index. The rollout and the trainer both take these ids out of the distribution.
    """
    thinker = thinker_config(config)
    found = (getattr(thinker, name, None) for name in _MEDIA_TOKENS)
    return sorted({token for token in found if token is not None})


def ban_media_tokens(logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """`logits` (..., vocabulary) with the media placeholders at `BANNED_LOGIT`."""
    return logits.index_fill(-1, token_ids.to(logits.device), BANNED_LOGIT)


@dataclass
class FusedOutput(ModelOutput):
    """What the Thinker gives where nobody wants logits: two tensors (batch, tokens)."""

    log_probs: torch.Tensor | None = None
    entropy: torch.Tensor | None = None


@dataclass(frozen=True)
class Question:
    """What the LM head is asked instead of logits: see `log_probs_and_entropy`."""

    labels: torch.Tensor
    temperature: float
    banned: torch.Tensor


class Head(nn.Linear):
    """The LM head. While it has a `question` it answers that, as (..., 2): log-probability and entropy.

    It has to happen in here: a head that is sharded by itself has its whole weight in its own forward pass alone.
    """

    question: Question | None = None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        asked = self.question
        if asked is None:
            return super().forward(hidden)
        found = log_probs_and_entropy(
            hidden, self.weight, asked.labels, temperature=asked.temperature, banned=asked.banned
        )
        return torch.stack(found, dim=-1)


_INPUTS = {"audio": "input_features", "image": "pixel_values", "video": "pixel_values_videos"}
"""What a batch has its media in, in the order in which the Thinker takes them."""


def _turns(there: Sequence[str]) -> dict[str, tuple[list[str], list[str]]]:
    """Which kinds that a batch lacks have their turn before each kind that it has, and which after the last."""
    turns: dict[str, tuple[list[str], list[str]]] = {}
    waiting: list[str] = []
    for kind in _INPUTS:
        if kind in there:
            turns[kind] = (waiting, [])
            waiting = []
        else:
            waiting.append(kind)
    turns[there[-1]][1].extend(waiting)
    return turns


class Thinker(Qwen3OmniMoeThinkerForConditionalGeneration):
    """The Thinker, which can run its idle towers too, and can keep its logits to itself.

    With `towers_always` set, each batch goes through the towers as often and in one order: sound, pictures, videos.
    What it lacks is the smallest dummy, of which zero times the result is added. Ranks whose batches bring other media
    would otherwise gather other weights at a time: gloo aborts on the mismatch and NCCL waits for ever.

    A `temperature` among the inputs, which verl hands on with `use_fused_kernels`, asks for `FusedOutput`.
    """

    _no_split_modules = FSDP_UNITS
    towers_always = False
    _idle: dict[str, tuple[list[str], list[str]]] | None = None
    """What to run idly before and after each medium that the batch has."""

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(config)
        self.lm_head.__class__ = Head  # the same parameters under the same names, and no random number drawn

    def forward(self, input_ids: torch.Tensor | None = None, **inputs: Any) -> Any:
        # verl hands on the patch counts of its own throughput estimate
        inputs.pop("images_seqlens", None)
        temperature = inputs.pop("temperature", None)
        labels = inputs.pop("shift_labels", None)
        if self.towers_always and inputs.get("inputs_embeds") is None:
            there = [kind for kind, name in _INPUTS.items() if inputs.get(name) is not None]
            if there:
                self._idle = _turns(there)
            else:
                embeddings = self.get_input_embeddings()(input_ids)
                inputs["inputs_embeds"] = embeddings + self._idle_towers(list(_INPUTS), embeddings)
        if temperature is None:
            return super().forward(input_ids=input_ids, **inputs)
        labels = torch.roll(input_ids, -1, dims=1) if labels is None else labels
        banned = torch.tensor(media_token_ids(self.config), device=labels.device)
        self.lm_head.question = Question(labels, temperature, banned)
        try:
            found = super().forward(input_ids=input_ids, **inputs).logits
        finally:
            self.lm_head.question = None
        return FusedOutput(*found.unbind(-1))

    def get_audio_features(self, *given: Any, **named: Any) -> Any:
        return self._in_turn("audio", super().get_audio_features, "last_hidden_state", given, named)

    def get_image_features(self, *given: Any, **named: Any) -> Any:
        return self._in_turn("image", super().get_image_features, "pooler_output", given, named)

    def get_video_features(self, *given: Any, **named: Any) -> Any:
        return self._in_turn("video", super().get_video_features, "pooler_output", given, named)

    def _in_turn(self, kind: str, run: Callable[..., Any], field: str, given: Any, named: Any) -> Any:
        """Features of a medium, with the towers that are idle run where their turn is."""
        if kind not in (self._idle or {}):
            return run(*given, **named)
        before, after = self._idle.pop(kind)
        like = given[0].new_zeros((), dtype=self.dtype)
        zero = self._idle_towers(before, like)
        output = run(*given, **named)
        output[field] = output[field] + (zero + self._idle_towers(after, like))
        return output

    def _idle_towers(self, kinds: Iterable[str], like: torch.Tensor) -> torch.Tensor:
        """Zero, computed through the tower of each kind."""
        zero = like.new_zeros(())
        for kind in kinds:
            zero = zero + (self._idle_audio(like) if kind == "audio" else self._idle_vision(like))
        return zero

    def _idle_vision(self, like: torch.Tensor) -> torch.Tensor:
        """Zero, computed through the vision tower from one 2x2 patch grid."""
        vision = self.config.vision_config
        side = vision.spatial_merge_size
        patch_values = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        grid = torch.tensor([[1, side, side]], device=like.device)
        features = super().get_image_features(like.new_zeros(side * side, patch_values), grid, return_dict=True)
        outputs = [features.pooler_output, *features.deepstack_features]
        return torch.stack([output.sum() for output in outputs]).sum() * 0

    def _idle_audio(self, like: torch.Tensor) -> torch.Tensor:
        """Zero, computed through the audio tower from 160 ms of silence."""
        frames = 16
        silence = like.new_zeros(1, self.config.audio_config.num_mel_bins, frames)
        mask = torch.ones(1, frames, dtype=torch.long, device=like.device)
        return super().get_audio_features(silence, mask, return_dict=True).last_hidden_state.sum() * 0
