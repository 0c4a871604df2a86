"""Rules on the arithmetic of a step: groups, updates, each device's share, and the length of sequences."""

from __future__ import annotations

from collections.abc import Iterator

from omnirl.recipe import module_names
from omnirl.recipe.model import Recipe
from omnirl.recipe.rules.finding import DEVICES, TINY, Finding, Rule, attempt, neighbours

_LENGTHS = ("data.max_prompt_tokens", "data.max_response_tokens")


def _groups(recipe: Recipe) -> Iterator[Finding]:
    size = recipe.batch.group_size
    if recipe.algo.kind == "dpo":
        if size != 2:
            message = f"a row brings two answers, not {size}"
            yield Finding("not-a-pair", ("batch.group_size", "algo.kind"), message, "try `batch.group_size = 2`")
        return
    if size < 2:
        message = f"advantages compare responses to one prompt: a group of {size} teaches nothing, it takes at least 2"
        yield Finding("group-of-one", ("batch.group_size",), message, "try `batch.group_size = 8`")
    if recipe.rollout.temperature == 0:
        message = "temperature 0 gives a group of equal responses, whose advantages are all 0"
        yield Finding("no-exploration", ("rollout.temperature",), message, "try `rollout.temperature = 1.0`")


def _updates(recipe: Recipe) -> Iterator[Finding]:
    prompts, mini = recipe.batch.prompts, recipe.batch.mini_prompts
    keys = ("batch.mini_prompts", "batch.prompts")
    if mini > prompts:
        message = f"an update of {mini} prompts is larger than the step's {prompts} (batch.prompts)"
        yield Finding("mini-batch-too-large", keys, message, f"try `batch.mini_prompts = {prompts}`")
    elif prompts % mini:
        message = f"{prompts} prompts a step / {mini} an update leaves {prompts % mini} over"
        yield Finding(
            "mini-batch-does-not-divide",
            keys,
            message,
            attempt(keys[0], neighbours(mini, lambda n: prompts % n == 0, prompts)),
        )


def _shares(recipe: Recipe) -> Iterator[Finding]:
    batch, devices = recipe.batch, recipe.devices
    for name in ("prompts", "mini_prompts"):
        count: int = getattr(batch, name)
        key = f"batch.{name}"
        sequences = count * batch.group_size
        if name == "prompts" and recipe.hardware.device == "npu" and count % devices:
            message = f"{count} prompts / {devices} NPUs leaves {count % devices} over; each NPU takes whole prompts"
            valid = neighbours(count, lambda n: n % devices == 0)
            yield Finding("prompts-not-divisible", (key, *DEVICES), message, attempt(key, valid))
        elif sequences % devices:
            product = f"{count} prompts x {batch.group_size} responses = {sequences} sequences"
            message = f"{product}, not divisible by {devices} devices"
            valid = neighbours(count, lambda n: n * batch.group_size % devices == 0)
            yield Finding("batch-not-divisible", (key, "batch.group_size", *DEVICES), message, attempt(key, valid))


def _passes(recipe: Recipe) -> Iterator[Finding]:
    batch, devices = recipe.batch, recipe.devices
    tokens, micro = batch.max_tokens_per_device, batch.micro_sequences
    keys = ("batch.max_tokens_per_device", "batch.micro_sequences")
    if (tokens is None) == (micro is None):
        message = "one of `batch.max_tokens_per_device` and `batch.micro_sequences` must be set, not " + (
            "both" if tokens else "neither"
        )
        yield Finding("one-pass-size", keys, message)
    longest = recipe.sequence_tokens
    for key, limit in (
        (keys[0], tokens),
        ("batch.max_log_prob_tokens_per_device", batch.max_log_prob_tokens_per_device),
    ):
        if limit is not None and limit < longest:
            message = f"{limit} tokens cannot hold one sequence: {_sum(recipe)}"
            yield Finding("sequence-does-not-fit", (key, *_LENGTHS), message, f"try `{key} = {longest}`")
    share = batch.mini_prompts * batch.group_size // devices
    even = batch.mini_prompts * batch.group_size % devices == 0
    if micro is not None and even and share % micro:
        message = (
            f"each device updates on {batch.mini_prompts} x {batch.group_size} / {devices} = {share} sequences, "
            f"not divisible by passes of {micro}"
        )
        shared = (keys[1], "batch.mini_prompts", "batch.group_size", *DEVICES)
        yield Finding(
            "pass-does-not-divide",
            shared,
            message,
            attempt(keys[1], neighbours(micro, lambda n: share % n == 0, share)),
        )


def _sum(recipe: Recipe) -> str:
    if recipe.data.max_tokens:
        return f"data.max_tokens = {recipe.data.max_tokens}"
    prompt, response = recipe.data.max_prompt_tokens, recipe.data.max_response_tokens
    return f"{prompt} prompt + {response} response = {prompt + response}"


def _context(recipe: Recipe) -> Iterator[Finding]:
    limit = module_names.context(tiny=recipe.model.path == TINY)
    if recipe.sequence_tokens <= limit:
        return
    which = "tiny checkpoint" if recipe.model.path == TINY else "model"
    message = f"the {which} has {limit} positions: {_sum(recipe)}"
    if recipe.data.max_tokens:
        yield Finding("context", ("data.max_tokens", "model.path"), message, f"try `data.max_tokens = {limit}`")
        return
    left = limit - recipe.data.max_prompt_tokens
    key = "data.max_response_tokens" if left > 0 else "data.max_prompt_tokens"
    fits = [left] if left > 0 else [n for n in [limit - recipe.data.max_response_tokens] if n > 0]
    yield Finding("context", (key, *_LENGTHS, "model.path"), message, attempt(key, fits))


def _prompts(recipe: Recipe) -> Iterator[Finding]:
    limit = recipe.rollout.prompt_tokens
    if limit is not None and limit < recipe.data.max_prompt_tokens:
        message = f"the rollout takes prompts of {limit} tokens, the data may have {recipe.data.max_prompt_tokens}"
        hint = f"try `rollout.prompt_tokens = {recipe.data.max_prompt_tokens}` or leave it out"
        yield Finding("prompt-cut", ("rollout.prompt_tokens", "data.max_prompt_tokens"), message, hint)


RULES: tuple[Rule, ...] = (_groups, _updates, _shares, _passes, _context, _prompts)
