"""What passes through the Thinker take of a GPU's memory: the numbers that `omnirl plan` estimates with.

    python tests/benchmarks/activations.py

needs a GPU with 40 GB, torch, transformers and peft, no checkpoint and no omnirl. Shapes are those of
Qwen3-Omni-30B-A3B with fewer layers; weights are random. Prints one JSON object a line: KiB of a token, patch or mel
frame, and copies of the logits in 16 bits.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeThinkerConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeThinkerForConditionalGeneration

KIB = 1024
VOCABULARY = 152_064
TEXT = {
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 65536,
    "vocab_size": VOCABULARY,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e6,
        "mrope_section": [24, 20, 20],
        "mrope_interleaved": True,
    },
}


def main() -> None:
    for layers in (2, 6):
        model = thinker(layers)
        for tune in ("full", "lora"):
            if tune == "lora":
                adapt(model)
            for found in language(model, layers, tune):
                tell(found)
        if layers == 2:
            for found in logits(model):
                tell(found)
        del model
        gc.collect()
        torch.cuda.empty_cache()
    for found in towers(thinker(1, towers=True)):
        tell(found)


def tell(found: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def thinker(layers: int, *, towers: bool = False) -> Any:
    config = Qwen3OmniMoeThinkerConfig(
        text_config={**TEXT, "num_hidden_layers": layers},
        audio_config={"output_dim": 2048, "encoder_layers": 32 if towers else 1},
        vision_config={
            "out_hidden_size": 2048,
            "depth": 27 if towers else 1,
            "deepstack_visual_indexes": [8, 16, 24] if towers else [0],
        },
    )
    config._attn_implementation = "sdpa"
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Qwen3OmniMoeThinkerForConditionalGeneration._from_config(config, dtype=torch.bfloat16)
    torch.set_default_dtype(torch.float32)
    return model.train()


def adapt(model: Any) -> None:
    model.requires_grad_(False)
    model.enable_input_require_grads()
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    get_peft_model(
        model,
        LoraConfig(r=32, lora_alpha=64, target_modules=targets, exclude_modules=".*visual.*|.*audio_tower.*"),
    )


def inputs(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    positions = torch.arange(tokens, device="cuda").view(1, 1, -1).expand(3, 1, -1)
    return torch.randint(0, 150_000, (1, tokens), device="cuda"), positions


def held() -> int:
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def begin(model: Any) -> int:
    """Gradients are there from the start, so that they count for none of what follows."""
    model.zero_grad(set_to_none=False)
    gc.collect()
    base = held()
    torch.cuda.reset_peak_memory_stats()
    return base


def peak(base: int) -> int:
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - base


def language(model: Any, layers: int, tune: str) -> Iterator[dict[str, Any]]:
    for checkpointing in (True, False):
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        else:
            model.gradient_checkpointing_disable()
        for tokens in (8192, 8192, 16384) if checkpointing else (8192,):
            ids, positions = inputs(tokens)
            base = begin(model)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                embedded = model.get_input_embeddings()(ids)
                hidden = model.model(inputs_embeds=embedded, position_ids=positions, use_cache=False).last_hidden_state
            kept, forward = held() - base, peak(base)
            torch.cuda.reset_peak_memory_stats()
            hidden.sum().backward()
            of = {"what": "layers", "layers": layers, "tune": tune, "checkpointing": checkpointing, "tokens": tokens}
            sizes = {"kept": kept, "forward": forward, "backward": peak(base)}
            del hidden, embedded
            yield of | {f"{name}_kib": size / tokens / KIB for name, size in sizes.items()}


def logits(model: Any) -> Iterator[dict[str, Any]]:
    def entropy(x: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(x, -1) - (torch.softmax(x, -1) * x).sum(-1)

    def by_row(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        rows = (F.log_softmax(a, -1).gather(-1, b.unsqueeze(-1)).squeeze(-1) for a, b in zip(x, labels, strict=True))
        return torch.stack(list(rows))

    cases: dict[str, tuple[bool, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
        "log-probabilities, no gradient": (False, by_row),
        "log-probabilities": (True, by_row),
        "entropy": (False, lambda x, _: entropy(x)),
        "entropy in chunks of 2048": (False, lambda x, _: torch.cat([entropy(c.float()) for c in x.split(2048)])),
    }
    tokens = 8192
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for name, (gradient, compute) in cases.items():
        ids, positions = inputs(tokens)
        base = begin(model)
        with nullcontext() if gradient else torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
            output = model(input_ids=ids, position_ids=positions, use_cache=False)
            found = compute(output.logits.squeeze(0), ids[0])
        del output
        if gradient:
            found.float().mean().backward()
        yield {"what": name, "tokens": tokens, "copies": peak(base) / (tokens * VOCABULARY * 2)}
        del found


def towers(model: Any) -> Iterator[dict[str, Any]]:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for trained in (False, True):
        model.visual.requires_grad_(trained)
        for images, side in ((4, 32), (16, 32)):
            patches = images * side * side
            pixels = torch.randn(patches, 1536, device="cuda", dtype=torch.bfloat16)
            base = begin(model)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                grid = torch.tensor([[1, side, side]] * images, device="cuda")
                seen = model.get_image_features(pixels, grid, return_dict=True)
            sizes = {"kept": held() - base, "forward": peak(base)}
            of = {"what": "vision", "trained": trained, "patches": patches}
            yield of | {f"{name}_kib": size / patches / KIB for name, size in sizes.items()}
            del seen
    for graph in (False, True):
        model.audio_tower.requires_grad_(graph)
        frames = 12_000
        features = torch.randn(4, 128, frames // 4, device="cuda", dtype=torch.bfloat16)
        mask = torch.ones(4, frames // 4, dtype=torch.long, device="cuda")
        base = begin(model)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            heard = model.get_audio_features(features, mask, return_dict=True).last_hidden_state
        sizes = {"kept": held() - base, "forward": peak(base)}
        tokens = heard.shape[:-1].numel()
        of = {"what": "audio", "graph": graph, "frames_per_token": frames / tokens}
        yield of | {f"{name}_kib": size / frames / KIB for name, size in sizes.items()}
        del heard


if __name__ == "__main__":
    main()
