"""Bytes of what a run trains and keeps, on one device and in all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omnirl.plan.architecture import Architecture, known
from omnirl.recipe.model import Recipe
from omnirl.recipe.rules import adapter

WIDTHS = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2}
"""Bytes of an element by the name of its type."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes in bytes; `_shard` is one device's part.

    Attributes:
        weights: the Thinker, frozen parts included, as it is stored.
        adapter: LoRA's parameters; 0 without LoRA.
        trained: parameters that get a gradient (a number, no bytes).
        gradient_shard, optimizer_shard: as stored: FSDP2 casts reduced gradients to the parameter's type, and AdamW's
            two moments have it too.
        head: the gathered output projection.
        width: bytes of an element in a pass; `compute` of a gathered parameter, which is the same.
        expert_adapters: LoRA reaches into the stacked experts.
    """

    weights: int
    shard: float
    adapter: int
    adapter_shard: float
    trained: int
    gradient_shard: float
    optimizer_shard: float
    head: int
    width: int
    adapters_only: bool
    expert_adapters: bool
    optimizer_offload: bool

    @property
    def compute(self) -> int:
        return self.width


def sizes(recipe: Recipe, architecture: Architecture, adapter_parameters: int) -> Sizes:
    """The sizes of a recipe; `adapter_parameters` as `adapter_size` counts them."""
    tune, devices = recipe.tune, recipe.devices
    stored = WIDTHS[recipe.actor.dtype]
    width = 4 if recipe.hardware.device == "cpu" else 2
    weights = architecture.parameters * stored
    if tune.kind == "lora":
        trained, kind = adapter_parameters, WIDTHS[tune.dtype]
    else:
        frozen = architecture.vision.parameters if recipe.model.freeze_vision_tower else 0
        trained, kind = architecture.parameters - frozen, stored
    held = adapter_parameters * kind if tune.kind == "lora" else 0
    return Sizes(
        weights=weights,
        shard=weights / devices,
        adapter=held,
        adapter_shard=held / devices,
        trained=trained,
        gradient_shard=trained * kind / devices,
        optimizer_shard=2 * trained * kind / devices,
        head=architecture.text.head_parameters * width,
        width=width,
        adapters_only=tune.kind == "lora",
        expert_adapters=tune.kind == "lora" and bool(tune.target_parameters),
        optimizer_offload=recipe.actor.optimizer_offload,
    )


def adapter_size(recipe: Recipe, architecture: Architecture) -> int:
    """LoRA's parameters: exact for the released shapes, scaled by layers and width for others; 0 without LoRA."""
    if recipe.tune.kind != "lora":
        return 0
    text, released = architecture.text, known("released").text
    counted = adapter.size(recipe)
    if counted is None:
        queries, keys = text.heads * text.head_dim, text.key_value_heads * text.head_dim
        return recipe.tune.rank * text.layers * (4 * text.hidden + 2 * queries + 2 * keys)
    scale = text.layers * text.hidden / (released.layers * released.hidden)
    return round(int(counted["parameters"]) * scale)


def verl_value(recipe: Recipe, key: str) -> Any:
    """What the recipe's `[verl]` table says for a dotted key, written as one word or as nested tables; else None."""
    found: Any = recipe.verl
    if key in found:
        return found[key]
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found
