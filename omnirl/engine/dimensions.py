"""The model's dimensions without its weights, for plans that must not wait for torch.

`python -m omnirl.engine.dimensions` writes `omnirl/plan/dimensions.json` anew: the parts of the released checkpoint's
config.json, and of the tiny one's, that decide how much memory a run takes, and the released checkpoint's parameters.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3OmniMoeConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeForConditionalGeneration

from omnirl.data.sources import toy
from omnirl.engine import skeleton, tiny

FILE = Path(__file__).resolve().parent.parent / "plan" / "dimensions.json"

KEPT = {
    "text_config": (
        "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
        "num_experts", "num_experts_per_tok", "moe_intermediate_size",
    ),
    "vision_config": (
        "depth", "hidden_size", "intermediate_size", "out_hidden_size", "in_channels", "patch_size",
        "temporal_patch_size", "spatial_merge_size", "num_position_embeddings", "deepstack_visual_indexes",
    ),
    "audio_config": (
        "d_model", "encoder_layers", "encoder_ffn_dim", "output_dim", "num_mel_bins", "downsample_hidden_size",
    ),
}  # fmt: skip

# What the talker's part of the released config.json says and its class has no default for.
TALKER = {"text_config": {"shared_expert_intermediate_size": 768}, "spatial_merge_size": 2}


def trimmed(thinker: Any) -> dict[str, Any]:
    """A Thinker's configuration, without what decides nothing about sizes."""
    return {
        "thinker_config": {
            part: {key: getattr(getattr(thinker, part), key) for key in keys} for part, keys in KEPT.items()
        }
    }


def checkpoint() -> dict[str, int]:
    """Parameters of the whole released checkpoint, by part."""
    config = Qwen3OmniMoeConfig(
        thinker_config=skeleton.config().to_dict(), talker_config=dict(TALKER), code2wav_config={}
    )
    with torch.device("meta"):
        model = Qwen3OmniMoeForConditionalGeneration(config)
    return {name: sum(value.numel() for value in part.parameters()) for name, part in model.named_children()}


def text() -> str:
    """The file as it is shipped."""
    small = tiny.make_config(tiny.make_tokenizer(toy.wordings()))
    document = {
        "transformers": version("transformers"),
        "parameters": checkpoint(),
        "released": trimmed(skeleton.config()),
        "tiny": trimmed(small.thinker_config),
    }
    return json.dumps(document, indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
