"""The Thinker's modules without its weights, for checks that must not wait for torch.

`python -m omnirl.engine.skeleton` writes `omnirl/recipe/module_names.json` anew: the modules that own parameters, their
shapes, and the numbers that a rollout is split by. Modules that differ only in the number of their layer are one entry.
"""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeThinkerConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeThinkerForConditionalGeneration

from omnirl.engine import tiny

FILE = Path(__file__).resolve().parent.parent / "recipe" / "module_names.json"

# What the config.json of Qwen3-Omni-30B-A3B (Instruct and Thinking) says where it differs from the class's defaults.
CHECKPOINT = "Qwen/Qwen3-Omni-30B-A3B-Instruct"
TEXT = {
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 65536,
    "vocab_size": 152064,
}
AUDIO, VISION = {"output_dim": 2048}, {"out_hidden_size": 2048}


def config() -> Any:
    """The released Thinker's configuration."""
    return Qwen3OmniMoeThinkerConfig(text_config=TEXT, audio_config=AUDIO, vision_config=VISION)


def build() -> Any:
    """The released Thinker on the meta device: every module and shape, no memory."""
    with torch.device("meta"):
        return Qwen3OmniMoeThinkerForConditionalGeneration(config())


def describe(model: Any) -> dict[str, Any]:
    """What the file holds for a Thinker."""
    text, audio, vision = model.config.text_config, model.config.audio_config, model.config.vision_config
    return {
        "checkpoint": CHECKPOINT,
        "transformers": version("transformers"),
        "context": text.max_position_embeddings,
        "tiny_context": tiny.MAX_POSITIONS,
        "heads": {
            "attention": text.num_attention_heads,
            "key_value": text.num_key_value_heads,
            "audio_tower": audio.encoder_attention_heads,
            "visual": vision.num_heads,
        },
        "modules": modules(model),
    }


def modules(model: Any) -> list[dict[str, Any]]:
    """Each module with parameters of its own: name, class, parameters; `*` and `count` stand for numbers from 0."""
    groups: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for name, module in model.named_modules():
        shapes = {key: list(value.shape) for key, value in module.named_parameters(recurse=False)}
        if shapes:
            entry = {
                "class": type(module).__name__,
                "linear": isinstance(module, torch.nn.Linear),
                "parameters": shapes,
            }
            key = re.sub(r"\.\d+(?=\.|$)", ".*", name, count=1) + json.dumps(entry)
            groups.setdefault(key, []).append((name, entry))
    found: list[dict[str, Any]] = []
    for members in groups.values():
        first, entry = members[0]
        pattern = re.sub(r"\.\d+(?=\.|$)", ".*", first, count=1)
        names = [name for name, _ in members]
        if len(names) > 1 and names == [pattern.replace("*", str(number)) for number in range(len(names))]:
            found.append({"name": pattern, "count": len(names), **entry})
        else:
            found += [{"name": name, "count": 1, **entry} for name in names]
    return found


def text() -> str:
    """The file as it is shipped: an entry of `modules` a line."""
    described = describe(build())
    lines = ",\n  ".join(json.dumps(entry) for entry in described.pop("modules"))
    head = json.dumps(described, indent=1).removesuffix("\n}")
    return f'{head},\n "modules": [\n  {lines}\n ]\n}}\n'


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
