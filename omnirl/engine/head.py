"""Log-probabilities and entropy straight from hidden states: the logits of a batch never exist as a whole.

At 151,936 tokens of vocabulary the logits of 8,192 positions take 5 GB in float32, and verl's path holds several copies
of them. Here they are made a few hundred positions at a time, in the forward pass and once more in the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch

BANNED_LOGIT = -1e4
"""Logit of a media placeholder in an answer. Finite, so that entropy and gradients stay so."""

CHUNK_BYTES = 512 * 2**20
"""Logits that exist at a time, in bytes of the type they are computed in."""


def chunk_rows(vocabulary: int, element_bytes: int, limit_bytes: int = CHUNK_BYTES) -> int:
    """How many positions are computed at a time: a multiple of 64 where the limit allows, and at least one."""
    rows = max(1, limit_bytes // (vocabulary * element_bytes))
    return rows - rows % 64 if rows > 64 else rows


def log_probs_and_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    *,
    temperature: float = 1.0,
    banned: torch.Tensor | None = None,
    rows: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The log-probability of each label and the entropy of its distribution, differentiable in `hidden` and `weight`.

    Args:
        hidden: (..., width), what goes into the LM head.
        weight: (vocabulary, width) of the LM head, which has no bias.
        labels: (...), token ids.
        temperature: logits are divided by it.
        banned: token ids whose logits are `BANNED_LOGIT` before that division; they get no gradient.
        rows: positions computed at a time; by `CHUNK_BYTES` when None.

    Returns:
        Two tensors (...), float32, or float64 where the inputs are.

    Raises:
        ValueError: a temperature that is not above zero.
    """
    if not temperature > 0:
        raise ValueError(f"log-probabilities at temperature {temperature} do not exist")
    shape = labels.shape
    flat = hidden.reshape(-1, hidden.shape[-1]).to(weight.dtype)
    if rows is None:
        rows = chunk_rows(weight.shape[0], _wide(weight.dtype).itemsize)
    with torch.autocast(hidden.device.type, enabled=False):
        log_probs, entropy = _Head.apply(flat, weight, labels.reshape(-1), float(temperature), banned, rows)
    return log_probs.view(shape), entropy.view(shape)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype == torch.float64 else torch.float32


def _logits(
    hidden: torch.Tensor, weight: torch.Tensor, temperature: float, banned: torch.Tensor | None
) -> torch.Tensor:
    """Logits of a chunk, in the weight's type unless they have to be divided."""
    logits = hidden @ weight.t()
    if banned is not None:
        logits.index_fill_(-1, banned, BANNED_LOGIT)
    return logits if temperature == 1.0 else logits.to(_wide(weight.dtype)).div_(temperature)


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """`total += left.T @ right`, with `total` in the wider type."""
    if total.dtype == left.dtype:
        total.addmm_(left.t(), right)
    elif total.device.type == "cuda":
        torch.addmm(total, left.t(), right, out_dtype=total.dtype, out=total)
    else:
        total += left.t() @ right


class _Head(torch.autograd.Function):
    """Elementwise passes over a chunk of logits are what costs time here, so there are as few as torch allows."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        labels: torch.Tensor,
        temperature: float,
        banned: torch.Tensor | None,
        rows: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wide = _wide(weight.dtype)
        log_probs = torch.empty(len(labels), dtype=wide, device=hidden.device)
        entropy, totals = torch.empty_like(log_probs), torch.empty_like(log_probs)
        for start in range(0, len(labels), rows):
            part = slice(start, start + rows)
            logits = _logits(hidden[part], weight, temperature, banned)
            chosen = logits.gather(1, labels[part].unsqueeze(1)).squeeze(1).to(wide)
            top = logits.amax(dim=-1).to(wide)
            logits = logits - top.unsqueeze(1)  # widens
            shares = logits.exp()
            mass = shares.sum(dim=-1)
            totals[part] = top + mass.log()
            log_probs[part] = chosen - totals[part]
            entropy[part] = mass.log() - torch.linalg.vecdot(shares, logits) / mass
            del logits, shares  # or the next chunk's would stand beside these
        ctx.save_for_backward(hidden, weight, labels, totals, entropy, banned)
        ctx.temperature, ctx.rows = temperature, rows
        ctx.set_materialize_grads(False)
        return log_probs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        grad_log_probs, grad_entropy = grads
        hidden, weight, labels, totals, entropy, banned = ctx.saved_tensors
        for_hidden, for_weight, *_ = ctx.needs_input_grad
        grad_hidden = torch.empty_like(hidden) if for_hidden else None
        # sums over many chunks, which bfloat16 would round each time
        grad_weight = torch.zeros_like(weight, dtype=totals.dtype) if for_weight else None
        if grad_log_probs is None:
            grad_log_probs = torch.zeros_like(totals)
        by_temperature = grad_log_probs / ctx.temperature
        for start in range(0, len(labels), ctx.rows):
            part = slice(start, start + ctx.rows)
            logits = _logits(hidden[part], weight, ctx.temperature, banned)
            logits = logits - totals[part].unsqueeze(1)  # widens
            if grad_entropy is None:
                grad = logits.exp_().mul_(-by_temperature[part].unsqueeze(1))
            else:
                # d log p = onehot - p, and d entropy = -p (log p + entropy)
                pull = grad_entropy[part] / ctx.temperature
                shares = logits.exp()
                offset = -pull * entropy[part] - by_temperature[part]
                grad = logits.mul_(-pull.unsqueeze(1)).add_(offset.unsqueeze(1)).mul_(shares)
                del shares
            del logits
            grad.scatter_add_(1, labels[part].unsqueeze(1), by_temperature[part].unsqueeze(1))
            if banned is not None:
                grad.index_fill_(-1, banned, 0)
            grad = grad.to(weight.dtype)
            if grad_hidden is not None:
                torch.mm(grad, weight, out=grad_hidden[part])
            if grad_weight is not None:
                _add_product(grad_weight, grad, hidden[part])
            del grad
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype)
        return grad_hidden, grad_weight, None, None, None, None
