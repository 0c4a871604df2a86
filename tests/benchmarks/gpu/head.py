"""Fused LM head against verl's logits path: time and peak memory of a forward and backward pass.

    python -m tests.benchmarks.gpu.head [--positions 8192] [--width 2048] [--vocabulary 151936] [--device cuda]

On the CPU take small sizes; the ratio of the two is what can be compared. `verl` is its own functions on a full tensor
of logits; without verl (or with `--rivals plain`) the same formulas on float32 logits stand for it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch

from omnirl.engine.head import BANNED_LOGIT, log_probs_and_entropy

Pass = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def fused(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, banned: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return log_probs_and_entropy(hidden, weight, labels, banned=banned)


def plain(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, banned: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = (hidden @ weight.t()).index_fill(-1, banned, BANNED_LOGIT)
    log_probs = torch.log_softmax(logits.float(), dim=-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    shares = torch.softmax(logits, dim=-1)
    return log_probs, torch.logsumexp(logits, dim=-1) - (shares * logits).sum(-1)


def of_verl(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, banned: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    from verl.utils.torch_functional import entropy_from_logits, logprobs_from_logits

    logits = (hidden @ weight.t()).index_fill(-1, banned, BANNED_LOGIT)
    entropy = entropy_from_logits(logits)
    return logprobs_from_logits(logits, labels, inplace_backward=False), entropy


def measure(name: str, run: Pass, arguments: argparse.Namespace) -> dict[str, object]:
    """Median seconds of a forward and backward pass, and the peak of memory above its inputs."""
    device = torch.device(arguments.device)
    on_gpu = device.type == "cuda"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    random = torch.Generator(device).manual_seed(0)
    hidden = torch.randn(arguments.positions, arguments.width, device=device, dtype=dtype, generator=random)
    weight = torch.randn(arguments.vocabulary, arguments.width, device=device, dtype=dtype, generator=random)
    weight *= arguments.width**-0.5
    labels = torch.randint(8, arguments.vocabulary, (arguments.positions,), device=device, generator=random)
    banned = torch.arange(7, device=device)
    hidden.requires_grad_()
    weight.requires_grad_(not arguments.frozen)
    seconds, peak = [], 0
    for round_ in range(arguments.rounds + 1):
        hidden.grad = weight.grad = None
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        start = time.perf_counter()
        log_probs, entropy = run(hidden, weight, labels, banned)
        (log_probs.mean() + 0.01 * entropy.mean()).backward()
        if on_gpu:
            torch.cuda.synchronize()
            peak = max(peak, torch.cuda.max_memory_allocated() - before)
        if round_:
            seconds.append(time.perf_counter() - start)
        result = (log_probs.detach().double().mean().item(), entropy.detach().double().mean().item())
    if not on_gpu:
        peak = _cpu_peak(lambda: run(hidden, weight, labels, banned))
    return {
        "name": name,
        "seconds": round(statistics.median(seconds), 5),
        "spread": [round(min(seconds), 5), round(max(seconds), 5)],
        "peak_bytes": peak,
        "mean_log_prob": result[0],
        "mean_entropy": result[1],
    }


def _cpu_peak(step: Callable[[], tuple[torch.Tensor, torch.Tensor]]) -> int:
    """Peak of what a forward and backward pass allocate through torch, by its profiler."""
    with torch.profiler.profile(profile_memory=True) as profile:
        log_probs, entropy = step()
        (log_probs.mean() + 0.01 * entropy.mean()).backward()
    held = peak = 0
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--positions", type=int, default=8192)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--frozen", action="store_true", help="the head's weight takes no gradient, as with LoRA")
    parser.add_argument("--rivals", nargs="*", default=["verl"], choices=["verl", "plain"])
    arguments = parser.parse_args()
    rivals = {"verl": of_verl, "plain": plain}
    own = measure("fused", fused, arguments)
    sys.stdout.write(json.dumps(own) + "\n")
    for name in arguments.rivals:
        other = measure(name, rivals[name], arguments)
        ratio = {
            "memory": round(other["peak_bytes"] / max(1, own["peak_bytes"]), 2),  # type: ignore[operator]
            "time": round(other["seconds"] / own["seconds"], 2),  # type: ignore[operator]
        }
        sys.stdout.write(json.dumps({**other, "ratio_to_fused": ratio}) + "\n")


if __name__ == "__main__":
    main()
