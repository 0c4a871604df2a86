"""What checkpoints and the model take on disk, in bytes. verl writes each device's shard as torch saves it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omnirl.plan.architecture import Architecture, released_parameters
from omnirl.plan.sizes import adapter_size, sizes
from omnirl.recipe.model import Recipe
from omnirl.recipe.rules.finding import TINY

GB = 1e9


@dataclass(frozen=True, slots=True)
class Disk:
    """Sizes in bytes.

    Attributes:
        weights: of a checkpoint: every parameter of the Thinker, frozen ones too, and the adapter.
        optimizer: of a checkpoint: AdamW's two moments of what is trained.
        kept: checkpoints that are on disk at the end; None when the number of steps is not known.
        model: the checkpoint that the run starts from.
        teacher: the teacher's, which is taken to have the same architecture; None without one.
    """

    weights: int
    optimizer: int
    kept: int | None
    model: int
    teacher: int | None = None

    @property
    def checkpoint(self) -> int:
        return self.weights + self.optimizer

    @property
    def total(self) -> int | None:
        """All checkpoints that are kept. verl removes the oldest before it writes the next one."""
        return None if self.kept is None else self.kept * self.checkpoint

    def as_dict(self) -> dict[str, Any]:
        """The `disk` of the document `omnirl/plan/1`; sizes in GB (10**9 bytes)."""
        return {
            "checkpoint_gb": _gb(self.checkpoint),
            "weights_gb": _gb(self.weights),
            "optimizer_gb": _gb(self.optimizer),
            "checkpoints": self.kept,
            "checkpoints_gb": _gb(self.total),
            "model_gb": _gb(self.model),
            "teacher_gb": _gb(self.teacher),
        }


def disk(recipe: Recipe, architecture: Architecture, *, saved: int | None) -> Disk:
    """Disk space of a run.

    Args:
        saved: checkpoints that the run writes, `schedule()["checkpoints"]`; None when not known.
    """
    size = sizes(recipe, architecture, adapter_size(recipe, architecture))
    keep = recipe.train.keep_checkpoints
    kept = keep if saved is None else min(saved, keep or saved)
    if recipe.train.save_every == -1:
        kept = 0
    speech = 0 if recipe.model.path == TINY else sum(released_parameters().values()) - released_parameters()["thinker"]
    width = 4 if recipe.model.path == TINY else 2
    model = (architecture.parameters + speech) * width
    return Disk(
        weights=size.weights + size.adapter,
        optimizer=round(size.optimizer_shard * recipe.devices),
        kept=kept,
        model=model,
        teacher=model if recipe.algo.kind == "opd" else None,
    )


def _gb(size: int | None) -> float | None:
    return None if size is None else round(size / GB, 6)
