"""The fused LM head: equal to the plain computation, in less memory."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("verl")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from omnirl.engine.head import BANNED_LOGIT, chunk_rows, log_probs_and_entropy  # noqa: E402


def _plain(hidden: Any, weight: Any, labels: Any, temperature: float, banned: Any) -> tuple[Any, Any]:
    logits = hidden @ weight.t()
    if banned is not None:
        logits = logits.index_fill(-1, banned, BANNED_LOGIT)
    log_probs = torch.log_softmax(logits / temperature, dim=-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    return log_probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1), entropy


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    positions=st.integers(1, 40),
    vocabulary=st.integers(3, 90),
    width=st.integers(1, 12),
    rows=st.integers(1, 50),
    temperature=st.floats(0.3, 3.0),
    banned_count=st.integers(0, 2),
    use_log_probs=st.booleans(),
    use_entropy=st.booleans(),
    scale=st.floats(0.1, 30.0),
)
def test_values_and_gradients_equal_the_plain_computation(
    seed: int,
    positions: int,
    vocabulary: int,
    width: int,
    rows: int,
    temperature: float,
    banned_count: int,
    use_log_probs: bool,
    use_entropy: bool,
    scale: float,
) -> None:
    random = torch.Generator().manual_seed(seed)
    hidden = (torch.randn(positions, width, generator=random, dtype=torch.float64) * scale).requires_grad_()
    weight = torch.randn(vocabulary, width, generator=random, dtype=torch.float64).requires_grad_()
    banned = torch.randperm(vocabulary, generator=random)[:banned_count] if banned_count else None
    allowed = [token for token in range(vocabulary) if banned is None or token not in banned.tolist()]
    labels = torch.tensor(allowed)[torch.randint(len(allowed), (positions,), generator=random)]

    mine = log_probs_and_entropy(hidden, weight, labels, temperature=temperature, banned=banned, rows=rows)
    plain = _plain(hidden, weight, labels, temperature, banned)
    for left, right in zip(mine, plain, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)

    wanted = [use_log_probs or not use_entropy, use_entropy]
    pulls = [torch.randn(positions, generator=random, dtype=torch.float64) for _ in range(2)]

    def gradients(outputs: tuple[Any, Any]) -> tuple[Any, ...]:
        parts = zip(outputs, pulls, wanted, strict=True)
        total = sum((output * pull).sum() for output, pull, want in parts if want)
        return torch.autograd.grad(total, (hidden, weight))

    for left, right in zip(gradients(mine), gradients(plain), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-8, atol=1e-8)


def test_shapes_and_float32_are_kept_for_bfloat16() -> None:
    hidden = torch.randn(2, 5, 16, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(64, 16, dtype=torch.bfloat16)
    log_probs, entropy = log_probs_and_entropy(hidden, weight, torch.zeros(2, 5, dtype=torch.long))
    assert log_probs.shape == entropy.shape == (2, 5)
    assert log_probs.dtype == entropy.dtype == torch.float32
    (log_probs.sum() + entropy.sum()).backward()
    assert hidden.grad is not None
    assert torch.isfinite(hidden.grad).all()


def test_a_frozen_head_gets_no_gradient() -> None:
    hidden = torch.randn(3, 4, requires_grad=True)
    weight = torch.randn(9, 4)
    log_probs, _ = log_probs_and_entropy(hidden, weight, torch.tensor([1, 2, 3]))
    log_probs.sum().backward()
    assert weight.grad is None


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_without_log_probabilities_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature"):
        log_probs_and_entropy(torch.ones(1, 2), torch.ones(3, 2), torch.tensor([0]), temperature=temperature)


@pytest.mark.parametrize(
    ("vocabulary", "limit", "rows"), [(151_936, 512 * 2**20, 832), (1000, 2**20, 256), (10, 40, 1), (10, 1, 1)]
)
def test_chunks_stay_under_the_limit(vocabulary: int, limit: int, rows: int) -> None:
    assert chunk_rows(vocabulary, 4, limit) == rows


def test_memory_does_not_grow_with_the_positions() -> None:
    """The largest tensor that autograd or a chunk makes is a chunk of logits or the weight's gradient."""
    positions, vocabulary, width, rows = 512, 4096, 8, 32
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, tuple) else [result]:
                if isinstance(tensor, torch.Tensor):
                    largest = max(largest, tensor.numel())
            return result

    hidden = torch.randn(positions, width, requires_grad=True)
    weight = torch.randn(vocabulary, width, requires_grad=True)
    with Watch():
        log_probs, entropy = log_probs_and_entropy(hidden, weight, torch.zeros(positions, dtype=torch.long), rows=rows)
        (log_probs.sum() + entropy.sum()).backward()
    assert largest == max(rows * vocabulary, vocabulary * width)
