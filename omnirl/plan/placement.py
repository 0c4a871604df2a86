"""Which device does what, and the arithmetic of steps, updates and passes."""

from __future__ import annotations

from typing import Any

from omnirl.recipe.model import NO_ENGINE, Recipe

NPU_SCRIPTS = ("/usr/local/Ascend/ascend-toolkit/set_env.sh", "/usr/local/Ascend/nnal/atb/set_env.sh")
"""What a shell on NPUs must source before anything runs: CANN's and ATB's environments, at their usual places."""


def placement(recipe: Recipe) -> dict[str, Any]:
    """Every machine with its role and the devices of each rollout's or teacher's copy.

    `nodes` has for each machine: `node`, `role` (`train`, `train and generate`, `generate` or `teach`), `devices`, and
    `copies`, lists of device numbers; a machine that a teacher shares, or of which some devices only generate, is there
    once a role. Devices that train come first. Parameters are sharded over all of them.
    """
    offline = recipe.rollout.engine == NO_ENGINE
    nodes = []
    for node in range(recipe.hardware.nodes):
        if node < recipe.train_nodes:
            devices, apart = recipe.train_devices_per_node, recipe.rollout.devices
            width = 0 if offline else recipe.rollout.tensor_parallel
            role = "train and generate" if width and not apart else "train"
            nodes.append(_part(node, role, 0, devices, 0 if apart else width))
            if apart:
                nodes.append(_part(node, "generate", devices, apart, width))
        if recipe.algo.kind == "opd" and (node >= recipe.train_nodes or recipe.algo.teacher.beside):
            devices = recipe.teacher_devices_per_node
            first = recipe.hardware.devices_per_node - devices
            nodes.append(_part(node, "teach", first, devices, recipe.algo.teacher.tensor_parallel))
    return {
        "device": recipe.hardware.device,
        "nodes": nodes,
        "sharding": recipe.actor.strategy,
        "shards": recipe.devices,
        "rollout_engine": None if offline else recipe.rollout.engine,
        "scripts": list(NPU_SCRIPTS) if recipe.hardware.device == "npu" else [],
    }


def schedule(recipe: Recipe, rows: int | None = None) -> dict[str, Any]:
    """Steps, updates and passes.

    Args:
        rows: of the training files; without them what depends on them is None.

    Returns:
        steps, steps an epoch, optimizer updates a step, an epoch and in all; passes of a device in an update and in the
        step's log-probabilities, as least (short sequences) and most (all of the full length); validations and
        checkpoints of the run.
    """
    batch, train = recipe.batch, recipe.train
    updates = max(1, batch.prompts // batch.mini_prompts)
    per_epoch = rows // batch.prompts if rows is not None else None
    possible = per_epoch * train.epochs if per_epoch is not None else None
    steps = train.steps if possible is None else min(possible, train.steps or possible)
    sequences = batch.prompts * batch.group_size
    return {
        "rows": rows,
        "steps_per_epoch": per_epoch,
        "steps": steps,
        "updates_per_step": updates,
        "updates_per_epoch": None if per_epoch is None else per_epoch * updates,
        "updates": None if steps is None else steps * updates,
        "passes_per_update": _passes(
            recipe, -(-batch.mini_prompts * batch.group_size // recipe.devices), batch.max_tokens_per_device
        ),
        "log_prob_passes": None
        if recipe.rollout.engine == NO_ENGINE
        else _passes(
            recipe, -(-sequences // recipe.devices), batch.max_log_prob_tokens_per_device or batch.max_tokens_per_device
        ),
        "max_tokens_per_step": sequences * recipe.sequence_tokens,
        "validations": _times(steps, train.validate_every),
        "checkpoints": _times(steps, train.save_every),
    }


def _part(node: int, role: str, first: int, devices: int, width: int) -> dict[str, Any]:
    """What some of a machine's devices do, in copies of `width`; those left over are in none, and all are for 0."""
    starts = range(first, first + devices - width + 1, width) if width else ()
    copies = [list(range(start, start + width)) for start in starts]
    return {"node": node, "role": role, "devices": devices, "copies": copies}


def _passes(recipe: Recipe, sequences: int, limit: int | None) -> list[int]:
    """Least and most passes over a device's sequences."""
    if limit is None:
        count = -(-sequences // (recipe.batch.micro_sequences or 1))
        return [count, count]
    return [1, -(-sequences // max(1, limit // recipe.sequence_tokens))]


def _times(steps: int | None, every: int) -> int | None:
    """How often something happens in a run that also does it after its last step; never for -1."""
    if every == -1:
        return 0
    return None if steps is None else -(-steps // every)
