"""How far a student is from its teacher, on the student's own answers."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def distance(student: Sequence[torch.Tensor], teacher: Sequence[torch.Tensor]) -> dict[str, float]:
    """Estimates of the reverse KL divergence of a token, from samples of the student at temperature 1.

    Args:
        student: a tensor (response tokens,) an answer: log-probabilities before the step's first update.
        teacher: a tensor (prompt and response tokens, 1) an answer; a place is about the token after it.

    Returns:
        `distillation/reverse_kl`: the mean of log student - log teacher, which can fall below 0 by chance.
        `distillation/reverse_kl_k3`: the same in expectation, never below 0 and less noisy where both are close.
        Nothing when there is no token.
    """
    gaps = [own - its[-len(own) - 1 : -1, 0] for own, its in zip(student, teacher, strict=True) if len(own)]
    if not gaps:
        return {}
    gap = torch.cat(gaps).double()
    return {
        "distillation/reverse_kl": gap.mean().item(),
        "distillation/reverse_kl_k3": (torch.exp(-gap) + gap - 1).mean().item(),
    }
