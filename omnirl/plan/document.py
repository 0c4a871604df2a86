"""The plan: everything that a training run will be told, without starting anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omnirl.plan.overrides import render
from omnirl.recipe import rules
from omnirl.recipe.model import Recipe
from omnirl.recipe.registry import Resolved


def plan(resolved: Resolved, extra: Sequence[str] = ()) -> dict[str, Any]:
    """The document `omnirl/plan/1`.

    `problems` holds the recipe's broken rules, errors and warnings; `memory` is null until it is estimated.

    Raises:
        InvalidInput: overrides that verl cannot take.
    """
    recipe = resolved.recipe
    rendered = render(resolved, extra=extra)
    problems = (*rules.check(resolved), *rendered.problems)
    return {
        "schema": "omnirl/plan/1",
        "task": resolved.task,
        "hardware": resolved.hardware,
        "algo": recipe.algo.kind,
        "tune": recipe.tune.kind,
        "evidence": recipe.evidence,
        "overrides": rendered.overrides,
        "settings": rendered.settings,
        "env": rendered.env,
        "batch": batch(recipe),
        "memory": None,
        "problems": [problem.as_dict() for problem in problems],
    }


def batch(recipe: Recipe) -> dict[str, Any]:
    """The arithmetic of one step: prompts, sequences, updates, and each device's share.

    Numbers are those of the recipe's settings; shares that do not come out even are rounded down (a rule reports them).
    """
    sizes, hardware = recipe.batch, recipe.hardware
    devices = hardware.nodes * hardware.devices_per_node
    sequences = sizes.prompts * sizes.group_size
    return {
        "prompts": sizes.prompts,
        "group_size": sizes.group_size,
        "sequences": sequences,
        "mini_prompts": sizes.mini_prompts,
        "updates_per_step": max(1, sizes.prompts // sizes.mini_prompts),
        "devices": devices,
        "sequences_per_device": sequences // devices,
        "sequences_per_update_and_device": sizes.mini_prompts * sizes.group_size // devices,
        "max_tokens_per_device": sizes.max_tokens_per_device,
        "micro_sequences": sizes.micro_sequences,
        "max_tokens_per_sequence": recipe.data.max_prompt_tokens + recipe.data.max_response_tokens,
        "rollout_copies": max(1, devices // recipe.rollout.tensor_parallel),
        "steps": recipe.train.steps,
        "epochs": recipe.train.epochs,
    }
