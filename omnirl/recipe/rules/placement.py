"""Rules on what runs where: devices, heads, graphs, the rollout engine, the CPU and the tiny checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from omnirl.recipe import module_names
from omnirl.recipe.model import NO_ENGINE, Recipe
from omnirl.recipe.rules.finding import DEVICES, TINY, Finding, Rule, attempt, neighbours

_WHOSE = {"attention": "attention", "audio_tower": "the audio tower", "visual": "the vision tower"}
_VIDEO_SEQUENCES = 8
"""Sequences at once up to which video on NPUs is documented."""


def fits_heads(width: int) -> bool:
    """Whether the Thinker's heads, and those of its towers, can be split `width` ways."""
    heads = module_names.heads()
    keys = heads["key_value"]
    return all(heads[part] % width == 0 for part in _WHOSE) and (keys % width == 0 or width % keys == 0)


def _placement(recipe: Recipe) -> Iterator[Finding]:
    per_node, width = recipe.rollout_devices_per_node, recipe.rollout.tensor_parallel
    key = "rollout.tensor_parallel"
    valid = attempt(key, neighbours(width, lambda n: per_node % n == 0 and fits_heads(n), per_node))
    if per_node % width:
        message = f"{per_node} devices in a node cannot be split into copies of {width}"
        told = (key, "rollout.devices") if recipe.rollout.devices else (key, DEVICES[1])
        yield Finding("tensor-parallel", told, message, valid)
    if recipe.rollout.engine not in ("hf", NO_ENGINE) and not fits_heads(width):
        heads = module_names.heads()
        over = [f"{heads[part]} heads of {said} / {width}" for part, said in _WHOSE.items() if heads[part] % width]
        message = " and ".join(over or [f"{heads['key_value']} key-value heads and copies of {width}"])
        yield Finding("heads", (key,), f"{message} {'do' if len(over) != 1 else 'does'} not come out even", valid)


def _apart(recipe: Recipe) -> Iterator[Finding]:
    """A rollout on devices of its own."""
    key, own, per_node = "rollout.devices", recipe.rollout.devices, recipe.hardware.devices_per_node
    if own is None:
        return
    taught = (recipe.algo.teacher.devices or 0) if recipe.algo.kind == "opd" else 0
    if own + taught >= per_node:
        others = f" and {taught} for the teacher" if taught else ""
        message = f"{own} of {per_node} devices for the rollout{others} leaves none that trains"
        fits = attempt(key, [n for n in [per_node - taught - 1] if n > 0])
        hint = fits or f"leave out `{key}`, or take hardware with {taught + 2} devices in a machine"
        yield Finding("rollout-needs-devices", (key, DEVICES[1]), message, hint)
    if recipe.rollout.engine == NO_ENGINE:
        message = "without a rollout nothing generates"
        yield Finding("nothing-to-generate", (key, "rollout.engine"), message, f"leave out `{key}`")
    if recipe.tune.kind == "lora" and not recipe.tune.merge:
        message = "a rollout on devices of its own is sent whole weights, not adapters"
        yield Finding("adapter-from-apart", (key, "tune.merge"), message, "try `tune.merge = true`")
    if recipe.hardware.device == "npu":
        message = "weights go to devices of their own by NCCL or gloo, not between NPUs"
        yield Finding("apart-on-npus", (key, "hardware.device"), message, f"leave out `{key}`")


def _captures(recipe: Recipe) -> Iterator[Finding]:
    rollout, key = recipe.rollout, "rollout.capture_sizes"
    asked = rollout.options.get("max_num_seqs")
    limit = rollout.max_sequences or (asked if isinstance(asked, int) and asked > 0 else None)
    source = "rollout.max_sequences" if rollout.max_sequences else "rollout.options.max_num_seqs"
    if limit is None:
        return
    sizes = rollout.capture_sizes
    if sizes and max(sizes) != limit:
        steps = [1 << n for n in range(limit.bit_length()) if 1 << n < limit]
        hint = f"try `{key} = {[*steps, limit]}`"
        over = [size for size in sizes if size > limit]
        if over:
            message = f"graphs for {', '.join(map(str, over))} sequences are never used: {limit} run at once ({source})"
            yield Finding("captures-beyond", (key, source), message, hint)
        else:
            message = f"{limit} sequences run at once ({source}); above {max(sizes)} they run without a graph"
            yield Finding("captures-short", (key, source), message, hint, "warning")
    if recipe.hardware.device == "npu" and "video" in recipe.task.modalities and limit > _VIDEO_SEQUENCES:
        message = f"video on NPUs is documented for 1 to {_VIDEO_SEQUENCES} sequences at once, not {limit}"
        yield Finding("video-at-once", (source,), message, attempt(source, [_VIDEO_SEQUENCES]), "warning")


def _engine(recipe: Recipe) -> Iterator[Finding]:
    engine, device = recipe.rollout.engine, recipe.hardware.device
    keys = ("rollout.engine", "hardware.device")
    if engine == NO_ENGINE:
        return
    if engine == "hf" and device != "cpu":
        yield Finding(
            "engine-for-cpu",
            keys,
            f"`hf` generates on a CPU only, not on `{device}`",
            'try `rollout.engine = "vllm_omni"`',
        )
    if engine != "hf" and device == "cpu":
        yield Finding(
            "engine-for-gpu", keys, f"`{engine}` needs an accelerator; this is a CPU", 'try `rollout.engine = "hf"`'
        )


def _adapter(recipe: Recipe) -> Iterator[Finding]:
    tune = recipe.tune
    if recipe.rollout.engine == "vllm" and tune.kind == "lora" and not tune.merge:
        message = "vLLM's own Thinker takes no adapter"
        hint = 'try `tune.merge = true` or `rollout.engine = "vllm_omni"`'
        yield Finding("adapter-for-omni", ("tune.merge", "rollout.engine"), message, hint)


def _cpu(recipe: Recipe) -> Iterator[Finding]:
    if recipe.hardware.device != "cpu":
        return
    wrong = {
        "actor.strategy": (
            recipe.actor.strategy == "fsdp",
            "torch refuses `fsdp` on a CPU",
            'actor.strategy = "fsdp2"',
        ),
        "actor.param_offload": (
            recipe.actor.param_offload,
            "parameters are in host memory already",
            "actor.param_offload = false",
        ),
        "actor.optimizer_offload": (
            recipe.actor.optimizer_offload,
            "the optimizer's state is in host memory already",
            "actor.optimizer_offload = false",
        ),
        "model.remove_padding": (
            recipe.model.remove_padding,
            "packing needs flash attention",
            "model.remove_padding = false",
        ),
        "model.attention": (
            (recipe.model.attention or "").startswith("flash"),
            f"`{recipe.model.attention}` needs a GPU",
            'model.attention = "sdpa"',
        ),
        "rollout.tensor_parallel": (
            recipe.rollout.tensor_parallel > 1,
            "the `hf` engine does not split a model",
            "rollout.tensor_parallel = 1",
        ),
    }
    for key, (broken, message, fix) in wrong.items():
        if broken:
            yield Finding("not-on-cpu", (key, "hardware.device"), message, f"try `{fix}`")


def _tiny(recipe: Recipe) -> Iterator[Finding]:
    keys = ("model.path", "model.tiny")
    if recipe.model.path == TINY and recipe.model.tiny is None:
        yield Finding(
            "tiny-needs-table", keys, "the tiny checkpoint needs a `[model.tiny]` table", "add `model.tiny.seed = 0`"
        )
    if recipe.model.path == TINY and recipe.hardware.device != "cpu" and recipe.rollout.engine != "hf":
        message = f"the tiny checkpoint was not made for `{recipe.rollout.engine}`"
        yield Finding("tiny-elsewhere", (*keys, "rollout.engine"), message, "give a checkpoint folder", "warning")


RULES: tuple[Rule, ...] = (_placement, _apart, _captures, _engine, _adapter, _cpu, _tiny)
