"""Rules on what surrounds a step: validation, media, checkpoints, what verl must have, and the evidence."""

from __future__ import annotations

from collections.abc import Iterator

from omnirl.recipe import module_names, verl_keys
from omnirl.recipe.model import Recipe
from omnirl.recipe.rules.finding import TINY, Finding, Rule

_BYTES = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2}
_MUCH_BYTES = 1e12


def _checkpoints(recipe: Recipe) -> Iterator[Finding]:
    train = recipe.train
    keys = ("train.keep_checkpoints", "train.save_every")
    if train.keep_checkpoints and train.save_every == -1:
        message = f"{train.keep_checkpoints} checkpoints are to be kept, and none is saved before the end"
        yield Finding("nothing-to-keep", keys, message, "try `train.save_every = 50`, or leave it out", "warning")
    if recipe.model.path == TINY or train.steps is None or train.keep_checkpoints or train.save_every == -1:
        return
    # Full-parameter training saves AdamW's two moments beside the weights; those of an adapter are small.
    copies = 3 if recipe.tune.kind == "full" else 1
    count, width = -(-train.steps // train.save_every), _BYTES[recipe.actor.dtype]
    size_bytes = module_names.parameters() * width * copies
    if count * size_bytes > _MUCH_BYTES:
        one = (
            f"{module_names.parameters() / 1e9:.1f}e9 parameters x {width} bytes x {copies} = {size_bytes / 1e9:.0f} GB"
        )
        message = f"{train.steps} steps leave {count} checkpoints of {one}: {count * size_bytes / 1e12:.1f} TB"
        involved = (*keys, "train.steps", "tune.kind", "actor.dtype")
        yield Finding("checkpoints-unbounded", involved, message, f"try `{keys[0]} = 2`", "warning")


def _requires(recipe: Recipe) -> Iterator[Finding]:
    for key in recipe.requires.verl:
        if key not in verl_keys.types() and not verl_keys.is_open(key):
            close = verl_keys.likely(key)
            message = f"needs a verl whose configuration has `{key}`; verl {verl_keys.version()} lacks it"
            yield Finding("verl-feature", ("requires.verl",), message, f"did you mean `{close}`?" if close else None)


def _warm_up(recipe: Recipe) -> Iterator[Finding]:
    if recipe.optim.warmup_steps is not None and recipe.optim.warmup_share is not None:
        keys = ("optim.warmup_share", "optim.warmup_steps")
        message = f"`{keys[0]}` means nothing beside `{keys[1]} = {recipe.optim.warmup_steps}`"
        yield Finding("one-warm-up", keys, message, "leave one of them out")


def _greedy(recipe: Recipe) -> Iterator[Finding]:
    sampling = recipe.rollout.validation
    keys = ("rollout.validation.temperature", "rollout.validation.greedy")
    if sampling.greedy and sampling.temperature:
        message = f"`greedy` takes the likeliest token, so a temperature of {sampling.temperature:g} means nothing"
        yield Finding("greedy-or-sampled", keys, message, "leave one of them out")
    if sampling.greedy and sampling.n > 1:
        message = f"{sampling.n} greedy responses to one prompt are all equal"
        yield Finding(
            "greedy-repeats", ("rollout.validation.n", keys[1]), message, "try `rollout.validation.n = 1`", "warning"
        )


def _media(recipe: Recipe) -> Iterator[Finding]:
    if recipe.data.soundtrack and "video" not in recipe.task.modalities:
        yield Finding(
            "no-video", ("data.soundtrack", "task.modalities"), "there is no video whose soundtrack could follow"
        )


def _evidence(recipe: Recipe) -> Iterator[Finding]:
    if recipe.evidence != "planned" and not recipe.proof:
        message = f"evidence `{recipe.evidence}` needs a `proof`: the test, command or run that shows it"
        yield Finding("evidence-without-proof", ("evidence", "proof"), message, 'until then `evidence = "planned"`')


RULES: tuple[Rule, ...] = (_checkpoints, _requires, _warm_up, _greedy, _media, _evidence)
