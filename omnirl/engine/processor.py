"""The Thinker's processor and model configuration, as verl's agent loop wants to find them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, BatchFeature
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeThinkerForConditionalGeneration,
    _get_feat_extract_output_lengths,
)
from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import Qwen3OmniMoeProcessor
from verl.workers.config import HFModelConfig

from omnirl.engine.cache import BoundedCache, content_key
from omnirl.engine.thinker import thinker_config

_FEATURE_CACHE_BYTES = 256 * 2**20


class OmniProcessor(Qwen3OmniMoeProcessor):
    """Qwen3-Omni's processor with media features remembered, video times kept and positions on board.

    verl asks for the features of the same media several times: once for the prompt and twice more for each of a
    group's answers. They depend on the media alone, so all but the first come from a cache keyed by content.
    """

    # of the class: the stock class reads the signature of `__init__` for its parts
    _features = BoundedCache(_FEATURE_CACHE_BYTES)

    def __call__(
        self, text: Any = None, images: Any = None, videos: Any = None, audio: Any = None, **kwargs: Any
    ) -> BatchFeature:
        if images is None and videos is None and audio is None:
            return super().__call__(text=text, **kwargs)
        if not isinstance(text, list):
            text = [text]
        key = content_key(images, videos, audio, kwargs)
        features = self._features.get(key, lambda: self._media_features(images, videos, audio, kwargs))
        lengths = features.get("feature_attention_mask")
        expanded = self.replace_multimodal_special_tokens(
            text,
            iter([] if lengths is None else _get_feat_extract_output_lengths(lengths.sum(-1))),
            iter(features.get("image_grid_thw", [])),
            iter(features.get("video_grid_thw", [])),
            video_second_per_grid=iter(features.get("video_second_per_grid", [])),
            use_audio_in_video=False,
            position_id_per_seconds=self.config.position_id_per_seconds,
            seconds_per_chunk=None,
        )
        tokens = self.tokenizer(expanded, return_tensors=kwargs.get("return_tensors"), add_special_tokens=False)
        return BatchFeature(data={**tokens, **features}, tensor_type=kwargs.get("return_tensors"))

    def _media_features(self, images: Any, videos: Any, audio: Any, kwargs: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Features of the media of one prompt, from the stock processor with a text of bare placeholders.

        Returns: the processor's own fields (`pixel_values`, `image_grid_thw`, `pixel_values_videos`, `video_grid_thw`,
        `input_features`, `feature_attention_mask`), and `video_second_per_grid` (videos,) in seconds, from the times
        of the frames that were really sampled.
        """
        placeholders = (
            self.image_token * _count(images) + self.video_token * _count(videos) + self.audio_token * _count(audio)
        )
        output = super().__call__(text=[placeholders], images=images, videos=videos, audio=audio, **kwargs)
        features = dict(output.convert_to_tensors("pt"))
        for name in ("input_ids", "attention_mask", "mm_token_type_ids"):
            features.pop(name, None)
        if videos is not None:
            metadata = kwargs.get("video_metadata") or [{}] * len(videos)
            features["video_second_per_grid"] = torch.tensor(
                [self.video_processor.temporal_patch_size / _sampled_fps(item) for item in metadata]
            )
        return features

    def get_rope_index(self, **inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions (3, batch, tokens), int64: temporal, height, width; and the rope deltas (batch, 1)."""
        inputs.pop("mm_token_type_ids", None)
        positions, deltas = Qwen3OmniMoeThinkerForConditionalGeneration.get_rope_index(self, **inputs)
        return positions.long(), deltas

    def get_llm_pos_ids_for_vision(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return Qwen3OmniMoeThinkerForConditionalGeneration.get_llm_pos_ids_for_vision(self, *args, **kwargs)

    def get_rope_index_kwargs(self, multi_modal_inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What positions need beyond the grids: audio lengths (frames) and seconds per temporal patch."""
        found = {}
        if "feature_attention_mask" in multi_modal_inputs:
            found["audio_seqlens"] = multi_modal_inputs["feature_attention_mask"].sum(-1)
        if "video_second_per_grid" in multi_modal_inputs:
            found["second_per_grids"] = multi_modal_inputs["video_second_per_grid"]
        return found


# checkpoints name their processor's class, and what is saved must load with transformers alone
OmniProcessor.__name__ = Qwen3OmniMoeProcessor.__name__


def _count(media: Any) -> int:
    return 0 if media is None else len(media)


def _sampled_fps(metadata: Any) -> float:
    """Frames a second that were sampled from a video, from the spacing of their indices."""
    read = metadata.get if isinstance(metadata, dict) else lambda name: getattr(metadata, name, None)
    fps, indices = read("fps"), read("frames_indices")
    if not fps or indices is None or len(indices) < 2:
        return 1.0
    spacing = (float(indices[-1]) - float(indices[0])) / (len(indices) - 1)
    return float(fps) / spacing if spacing > 0 else 1.0


def load_processor(path: str, *, trust_remote_code: bool = False) -> OmniProcessor:
    """The processor of a Qwen3-Omni checkpoint folder, carrying the Thinker's configuration for its positions."""
    processor = OmniProcessor.from_pretrained(path, trust_remote_code=trust_remote_code)
    processor.config = thinker_config(AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code))
    processor.video_processor.do_resize = False  # frames are sampled and sized when they are decoded
    processor.spatial_merge_size = processor.config.vision_config.spatial_merge_size
    return processor


@dataclass
class OmniModelConfig(HFModelConfig):
    """verl's model configuration with the Omni processor, which verl itself does not know how to build."""

    model_type: str = "omni_model"
    lora_dtype: str | None = None
    """Type of an adapter's weights; the base's when None."""
    freeze_vision_tower: bool = False
    """Keep the vision tower as it is: verl has the setting, and its FSDP engine does not read it."""

    def __post_init__(self) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Failed to create processor")
            super().__post_init__()
        if self.load_tokenizer:
            self.processor = load_processor(self.local_tokenizer_path, trust_remote_code=self.trust_remote_code)
            template = self.processor.chat_template or self.tokenizer.chat_template
            self.processor.chat_template = self.tokenizer.chat_template = template
