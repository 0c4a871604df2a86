"""vLLM's Thinker with the positions that the trainer gives media. Imported in vLLM's processes only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vllm.model_executor.models.qwen3_omni_moe_thinker import Qwen3OmniMoeThinkerForConditionalGeneration


class Thinker(Qwen3OmniMoeThinkerForConditionalGeneration):
    """vLLM (0.24 to 0.28) takes the start token before a medium for the first of its placeholders, and gives it a
    position of its own; the placeholders come one token later. What is sound within a video it counts otherwise.
    """

    def iter_mm_features(self, mm_features: list[Any]) -> Iterator[tuple[int, str, dict[str, Any]]]:
        for offset, modality, data in super().iter_mm_features(mm_features):
            yield offset if data.get("use_audio_in_video") else offset - 1, modality, data
