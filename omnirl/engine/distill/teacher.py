"""A teacher out of a finished run: `python -m omnirl.engine.distill.teacher RUN DIR`.

Puts the run's newest weights into a copy of the checkpoint that it started from. The whole model is held in memory, so
this is for checkpoints of the tiny kind; adapters are not merged.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Shard
from transformers import Qwen3OmniMoeForConditionalGeneration

from omnirl.errors import InvalidInput, OmniError, UsageMistake
from omnirl.run import checkpoints
from omnirl.run.record import Run


def export(run: Path, output: Path) -> int:
    """Write a checkpoint folder with the weights of the run's newest checkpoint; returns its step.

    Raises:
        InvalidInput: the run has no whole checkpoint, or one with an adapter.
        UsageMistake: `output` exists.
    """
    if output.exists():
        raise UsageMistake(f"`{output}` exists", hint="name a new folder")
    saved = checkpoints.latest_complete(Run(run).checkpoints)
    base = run / "model"
    if saved is None or not (base / "config.json").is_file():
        raise InvalidInput(f"run `{run}` has no whole checkpoint of a model that it built")
    weights = whole(saved.path / "actor")
    if any("lora_" in name for name in weights):
        raise InvalidInput(f"run `{run}` trained an adapter, which is not merged here")
    model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(base, dtype="auto")
    model.thinker.load_state_dict(weights)
    scratch = output.with_name(f".{output.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        shutil.copytree(base, scratch, ignore=shutil.ignore_patterns("*.safetensors", "ready", "warmup.json"))
        model.save_pretrained(scratch)
        scratch.replace(output)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return saved.step


def whole(actor: Path) -> dict[str, torch.Tensor]:
    """Full tensors from the files of all ranks, which hold what FSDP2 gave each of them."""
    files = sorted(actor.glob("model_world_size_*_rank_*.pt"), key=lambda file: int(file.stem.rpartition("_")[2]))
    ranks: list[Mapping[str, Any]] = [torch.load(file, map_location="cpu", weights_only=False) for file in files]
    return {name: _join([rank[name] for rank in ranks]) for name in ranks[0]}


def _join(parts: list[Any]) -> torch.Tensor:
    first = parts[0]
    if not isinstance(first, DTensor):
        return first
    (placement,) = first.placements
    locals_ = [part.to_local() for part in parts]
    return torch.cat(locals_, dim=placement.dim) if isinstance(placement, Shard) else locals_[0]


if __name__ == "__main__":
    try:
        step = export(Path(sys.argv[1]), Path(sys.argv[2]))
    except OmniError as fault:
        sys.exit(f"error: {fault.message}")
    sys.stdout.write(f"weights of step {step} in {sys.argv[2]}\n")
