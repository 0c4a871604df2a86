"""Weight names and prompts as vLLM's engines want them; nothing here needs vLLM."""

from __future__ import annotations

import os
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence

import torch

from omnirl.engine.phase import ATTEMPT_DIR

PREFIX = "thinker."
"""What a full Qwen3-Omni checkpoint puts before the Thinker's names, and vLLM's loaders take off again."""

_PEFT = "base_model.model."
_PACKED = (".mlp.experts.gate_up_proj", ".mlp.experts.down_proj")


def checkpoint_name(name: str) -> str:
    """The name of a Thinker's weight, or of a LoRA weight on it, in a full Qwen3-Omni checkpoint.

    `model.norm.weight` -> `thinker.model.norm.weight`, and
    `base_model.model.model.layers.0...lora_A.weight` -> `base_model.model.thinker.model.layers.0...lora_A.weight`.
    A name that has the prefix keeps it once.
    """
    before, rest = (_PEFT, name.removeprefix(_PEFT)) if name.startswith(_PEFT) else ("", name)
    return f"{before}{rest}" if rest.startswith(PREFIX) else f"{before}{PREFIX}{rest}"


def split_experts(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Packed experts as one matrix each, in views: `X.gate_up_proj` (experts, 2 x inner, hidden) becomes
    `X.<i>.gate_proj.weight` and `X.<i>.up_proj.weight` (inner, hidden), and `X.down_proj` (experts, hidden, inner)
    becomes `X.<i>.down_proj.weight`.

    Raises:
        ValueError: a packed weight that is no such block.
    """
    for name, weight in weights:
        if not name.endswith(_PACKED):
            yield name, weight
            continue
        stem, _, kind = name.rpartition(".")
        if weight.dim() != 3 or (kind == "gate_up_proj" and weight.shape[1] % 2):
            raise ValueError(f"`{name}` of shape {tuple(weight.shape)} holds no experts")
        for index, expert in enumerate(weight.unbind(0)):
            if kind == "down_proj":
                yield f"{stem}.{index}.down_proj.weight", expert
            else:
                gate, up = expert.chunk(2, dim=0)
                yield f"{stem}.{index}.gate_proj.weight", gate
                yield f"{stem}.{index}.up_proj.weight", up


def checkpoint_weights(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """The trainer's weights under the names that vLLM loads a checkpoint by, experts one by one."""
    for name, weight in split_experts(weights):
        yield checkpoint_name(name), weight


def collapse_media(token_ids: Sequence[int], placeholders: Collection[int]) -> list[int]:
    """A prompt with each run of one placeholder shortened to a single token: vLLM expands it by the media itself."""
    kept: list[int] = []
    for token in map(int, token_ids):
        if not (kept and token == kept[-1] and token in placeholders):
            kept.append(token)
    return kept


def transfer_key(job: str) -> str:
    """The part of a socket's name that tells runs on one machine apart: every Ray calls its first job 01000000."""
    return f"{job}-{zlib.crc32(os.environ.get(ATTEMPT_DIR, '').encode()):08x}"
