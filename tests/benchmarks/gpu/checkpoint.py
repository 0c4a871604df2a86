"""Random Qwen3-Omni checkpoints for measuring on a GPU.

    python -m tests.benchmarks.gpu.checkpoint small DIR [--seed 0]
    python -m tests.benchmarks.gpu.checkpoint wide DIR [--layers 4] [--device cuda]

`small` has 3 layers of 256 hidden units and 8 experts. `wide` has the Thinker's true widths: 2048 hidden, 128 experts
of which 8 are taken, 32 heads of 128, a vocabulary of 151,936; its towers are those of `small`. LM head and routers are
scaled so that the distributions are neither flat nor certain: agreement of two engines then means something.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

SIZES: dict[str, dict[str, Any]] = {
    "small": {
        "text": {
            "hidden_size": 256,
            "intermediate_size": 256,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 128,
        },
        "section": [16, 8, 8],
    },
    "wide": {
        "text": {
            "hidden_size": 2048,
            "intermediate_size": 768,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "vocab_size": 151_936,
        },
        "section": [24, 20, 20],
    },
}
POSITIONS = 32_768


def build(output: Path, kind: str, *, layers: int, seed: int, device: str) -> int:
    """Write a checkpoint; returns its parameters."""
    from transformers import GenerationConfig, Qwen3OmniMoeForConditionalGeneration

    from omnirl.data.sources import toy
    from omnirl.engine import tiny

    tokenizer = tiny.make_tokenizer(toy.wordings())
    tokenizer.model_max_length = POSITIONS
    config = tiny.make_config(tokenizer)
    thinker = config.thinker_config
    text, vision, audio = thinker.text_config, thinker.vision_config, thinker.audio_config
    sizes = SIZES[kind]
    for name, value in {**sizes["text"], "num_hidden_layers": layers, "max_position_embeddings": POSITIONS}.items():
        setattr(text, name, value)
    text.norm_topk_prob, text.tie_word_embeddings = True, False
    text.decoder_sparse_step, text.mlp_only_layers = 1, []
    text.use_sliding_window, text.sliding_window = False, None
    text.rope_parameters = {**text.rope_parameters, "mrope_section": sizes["section"], "interleaved": True}
    text.rope_scaling = dict(text.rope_parameters)
    hidden = sizes["text"]["hidden_size"]
    towers: dict[str, Any] = {
        "depth": 4,
        "hidden_size": 256,
        "intermediate_size": 256,
        "num_heads": 4,
        "out_hidden_size": hidden,
    }
    towers |= {"num_position_embeddings": 2304, "deepstack_visual_indexes": [1, 2, 3]}
    # what released checkpoints say too, and vLLM reads
    towers |= {"image_size": 768, "in_chans": 3, "in_channels": 3, "spatial_patch_size": 16, "tokens_per_second": 2}
    towers |= {"apply_vit_abs_pos_embed": True, "hidden_act": "gelu_pytorch_tanh"}
    for name, value in towers.items():
        setattr(vision, name, value)
    ears: dict[str, Any] = {"d_model": 256, "encoder_attention_heads": 4, "encoder_ffn_dim": 256, "output_dim": hidden}
    ears |= {"num_hidden_layers": 2, "encoder_layers": 2, "downsample_hidden_size": 64, "max_source_positions": 1500}
    ears |= {"conv_chunksize": 500, "scale_embedding": False, "activation_function": "gelu"}
    for name, value in ears.items():
        setattr(audio, name, value)
    torch.manual_seed(seed)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = Qwen3OmniMoeForConditionalGeneration(config)
    torch.set_default_dtype(torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("lm_head.weight"):
                weight.normal_(0, 3.0 / hidden**0.5)
            elif ".mlp.gate." in name:
                weight.normal_(0, 2.0 / hidden**0.5)
            elif "thinker.model.layers" in name and weight.dim() >= 2 and "norm" not in name:
                weight.normal_(0, weight.shape[-1] ** -0.5)
            elif "embed_tokens" in name:
                weight.normal_(0, 1.0)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    model.save_pretrained(output, max_shard_size="5GB")
    processor = tiny.make_processor(tokenizer)
    processor.save_pretrained(output)
    # vLLM's profiling reads the limits of pictures and sounds from the older file
    parts: dict[str, Any] = {**processor.feature_extractor.to_dict(), **processor.image_processor.to_dict()}
    limits = {"min_pixels": tiny.MIN_PIXELS, "max_pixels": tiny.MAX_PIXELS}
    parts |= {"processor_class": "Qwen3OmniMoeProcessor", **limits}
    (output / "preprocessor_config.json").write_text(json.dumps(parts, indent=1, default=str), encoding="utf-8")
    return sum(weight.numel() for weight in model.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("kind", choices=sorted(SIZES))
    parser.add_argument("output", type=Path)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    start = time.perf_counter()
    layers = arguments.layers or (3 if arguments.kind == "small" else 4)
    count = build(arguments.output, arguments.kind, layers=layers, seed=arguments.seed, device=arguments.device)
    seconds = round(time.perf_counter() - start, 1)
    sys.stdout.write(json.dumps({"kind": arguments.kind, "parameters": count, "seconds": seconds}) + "\n")


if __name__ == "__main__":
    main()
