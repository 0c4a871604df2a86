"""What an algorithm does in a run: its parts, and which of them are switched on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from omnirl.plan.sizes import verl_value
from omnirl.recipe.kinds import Dapo, Dpo, Opd, PolicyLoss
from omnirl.recipe.model import Recipe

_LOSS, _CLIP = "distillation.distillation_loss", 0.2
"""verl's keys for the loss of a teacher's rewards, and its default on either side."""


def parts(recipe: Recipe) -> list[dict[str, Any]]:
    """`part`, whether it is `on`, and `how`, in words with the recipe's numbers; what is off is told too."""
    return [{"part": part, "on": on, "how": how if on else ""} for part, on, how in _parts(recipe)]


def _parts(recipe: Recipe) -> Iterator[tuple[str, bool, str]]:
    algo = recipe.algo
    if isinstance(algo, Dpo):
        yield "loss", True, f"{algo.loss_type} of a pair's margin, beta {algo.beta:g}"
        yield "label smoothing", algo.label_smoothing > 0, f"{algo.label_smoothing:g}"
        return
    if isinstance(algo, Opd):
        low, high = (verl_value(recipe, f"{_LOSS}.clip_ratio_{side}") or _CLIP for side in ("low", "high"))
        clipped = f"as a reward of each token, whose ratio is clipped to {1 - low:.6g}-{1 + high:.6g}"
        use = clipped if algo.policy_gradient else "differentiated"
        yield "teacher", True, f"`{algo.divergence}` from {algo.teacher.path}, {use}"
        yield "task rewards", algo.task_rewards, f"{_ratio(algo, 'sequence')}, beside the teacher's"
    elif isinstance(algo, Dapo):
        yield "loss", True, _ratio(algo, "token")
        yield "dynamic sampling", algo.filter_groups, f"groups of equal `{algo.filter_metric}` are replaced"
        span = f"the last {algo.overlong_tokens} of {recipe.data.max_response_tokens} tokens"
        yield "overlong buffer", algo.overlong_buffer, f"up to {algo.overlong_penalty:g} off over {span}"
        yield "entropy bonus", algo.entropy_coeff > 0, f"{algo.entropy_coeff:g}"
    else:
        yield "loss", True, _ratio(algo, "sequence")
    yield "KL term", algo.kl_loss_coef > 0, f"{algo.kl_loss_coef:g} x divergence from the first model"


def _ratio(algo: PolicyLoss, unit: str) -> str:
    low, high = 1 - algo.clip_low, 1 + algo.clip_high
    return f"one ratio a {unit}, clipped to {low:.6g}-{high:.6g}, {algo.loss_aggregation}"
