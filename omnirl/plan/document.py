"""The plan: everything that a training run will be told, without starting anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omnirl.errors import InvalidInput, Problem
from omnirl.plan import algorithm, architecture, fit, memory
from omnirl.plan.disk import disk
from omnirl.plan.overrides import render
from omnirl.plan.placement import placement, schedule
from omnirl.recipe import rules
from omnirl.recipe.model import NO_ENGINE, Recipe
from omnirl.recipe.registry import Resolved
from omnirl.recipe.rules import adapter


def plan(resolved: Resolved, extra: Sequence[str] = (), *, rows: int | None = None) -> dict[str, Any]:
    """The document `omnirl/plan/1`.

    `problems` holds the recipe's broken rules, errors and warnings, and what does not fit; `algorithm` the parts of the
    algorithm and which are on; `adapter` the modules that LoRA reaches and its parameters (null without LoRA); `memory`
    and `disk` what the run takes (null when the model's folder says no sizes); `schedule` steps, updates and passes, as
    far as `rows`, those of the training files, tells.

    Raises:
        InvalidInput: overrides that verl cannot take.
    """
    recipe = resolved.recipe
    rendered = render(resolved, extra=extra)
    steps = schedule(recipe, rows)
    sized, unfit = _sized(resolved, steps["checkpoints"])
    problems = (*rules.check(resolved), *rendered.problems, *unfit)
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
        "algorithm": algorithm.parts(recipe),
        "batch": batch(recipe),
        "adapter": adapter.size(recipe),
        "placement": placement(recipe),
        "schedule": steps,
        **sized,
        "problems": [problem.as_dict() for problem in problems],
    }


def _sized(resolved: Resolved, saved: int | None) -> tuple[dict[str, Any], list[Problem]]:
    """`memory` and `disk`, and what is wrong with them."""
    recipe = resolved.recipe
    try:
        shape = architecture.of(recipe.model.path)
    except InvalidInput as error:
        key = "model.path"
        told = Problem("model-unknown", error.message, "warning", key, resolved.where(key), error.hint)
        return {"memory": None, "disk": None}, [told]
    found = memory.estimate(recipe, shape)
    mends = fit.mends(recipe, found, shape)
    adapters = bool(found.excess) and fit.adapters_fit(recipe, shape)
    problem = fit.problem(found, mends, resolved.where, adapters=adapters)
    document = found.as_dict() | {"mends": [mend.as_dict() for mend in mends], "model": shape.source}
    return {"memory": document, "disk": disk(recipe, shape, saved=saved).as_dict()}, [problem] if problem else []


def batch(recipe: Recipe) -> dict[str, Any]:
    """The arithmetic of one step: prompts, sequences, updates, and each device's share.

    Numbers are those of the recipe's settings; shares that do not come out even are rounded down (a rule reports them).
    """
    sizes = recipe.batch
    devices = recipe.devices
    generating = max(1, recipe.train_nodes) * recipe.rollout_devices_per_node
    offline = recipe.rollout.engine == NO_ENGINE
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
        "max_tokens_per_sequence": recipe.sequence_tokens,
        "rollout_copies": None if offline else max(1, generating // recipe.rollout.tensor_parallel),
        "teacher_copies": _teacher_copies(recipe),
        "steps": recipe.train.steps,
        "epochs": recipe.train.epochs,
    }


def _teacher_copies(recipe: Recipe) -> int | None:
    if recipe.algo.kind != "opd":
        return None
    teacher = recipe.algo.teacher
    return max(1, teacher.nodes * recipe.teacher_devices_per_node // teacher.tensor_parallel)
