"""Whether a recipe's rollout engine and attention can run here at all."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from omnirl import machine
from omnirl.doctor.check import Check, Device, Target, of_problem
from omnirl.doctor.packages import find

_FLASH = "flash_attention_2"
_SDPA = "--set 'model.attention = \"sdpa\"'"


def check(target: Target) -> Iterator[Check]:
    """Rollout engine and attention of the recipe; nothing without one."""
    if target.recipe is None or target.device is None:
        return
    engine = target.recipe.rollout.engine
    problem = machine.rollout_engine(engine)
    yield of_problem("rollout engine", problem, "hf") if problem else Check("rollout engine", "ok", engine)
    yield attention(target.recipe.model.attention, target.device, sys.path)


def attention(wanted: str | None, device: Device, path: Sequence[str]) -> Check:
    """Whether an attention implementation can be had; without one verl takes flash_attention_2."""
    name, kind = "attention", wanted or _FLASH
    if kind != _FLASH or device == "npu":  # torch-npu brings its own
        return Check(name, "ok", kind)
    if device == "cpu":
        return Check(name, "fail", f"{kind} needs a GPU", "sdpa on the CPU", _SDPA)
    package = find("flash-attn", path)
    if package is None:
        hint = f"pip install 'flash-attn>=2.8.3' --no-build-isolation  # or {_SDPA}"
        return Check(name, "fail", f"{kind} needs flash-attn, which is not installed", "flash-attn 2.8.3", hint)
    return Check(name, "ok", f"{kind}, flash-attn {package.version}")
