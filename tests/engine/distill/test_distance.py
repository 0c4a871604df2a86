"""The divergence that a run reports is the one that its two distributions have."""

from __future__ import annotations

import pytest
import torch

from omnirl.engine.distill.distance import distance

PROMPT = 3


def answers(student: torch.Tensor, teacher: torch.Tensor, lengths: list[int], seed: int = 0):
    """Tokens drawn from `student`, with the log-probabilities of both as a run has them."""
    generator = torch.Generator().manual_seed(seed)
    mine, its = [], []
    for length in lengths:
        tokens = torch.multinomial(student, length, replacement=True, generator=generator) if length else []
        mine.append(student.log()[tokens] if length else torch.zeros(0))
        seen = [*[-9.0] * (PROMPT - 1), *(teacher.log()[tokens].tolist() if length else []), -9.0]
        its.append(torch.tensor(seen)[:, None])
    return mine, its


def test_it_is_the_divergence() -> None:
    student, teacher = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.3, 0.5])
    wanted = (student * (student / teacher).log()).sum().item()
    lengths = torch.randint(0, 9, (5000,), generator=torch.Generator().manual_seed(1)).tolist()
    found = distance(*answers(student, teacher, lengths))
    assert found["distillation/reverse_kl"] == pytest.approx(wanted, abs=0.02)
    assert found["distillation/reverse_kl_k3"] == pytest.approx(wanted, abs=0.02)


def test_a_token_weighs_the_same_in_a_long_answer() -> None:
    mine = [torch.tensor([-1.0]), torch.tensor([-1.0, -2.0, -3.0])]
    its = [torch.tensor([[-9.0], [-3.0], [-9.0]]), torch.tensor([[-1.5], [-2.5], [-3.5], [-9.0]])]
    assert distance(mine, its)["distillation/reverse_kl"] == pytest.approx((2 + 0.5 * 3) / 4)


def test_equal_and_empty() -> None:
    same = torch.tensor([0.6, 0.4])
    found = distance(*answers(same, same, [4, 0, 2]))
    assert found == {"distillation/reverse_kl": 0.0, "distillation/reverse_kl_k3": 0.0}
    assert distance(*answers(same, same, [0, 0])) == {}
