"""Rules across settings: what the schema cannot see and verl would say only after minutes of loading."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from omnirl.errors import InvalidInput, Problem
from omnirl.recipe.model import Recipe

if TYPE_CHECKING:
    from omnirl.recipe.registry import Resolved

_PPO_SIZED = 0.01
"""Clip widths above this belong to a ratio of single tokens, below it to GSPO's ratio of whole sequences."""

TINY = "tiny"
"""The `model.path` that stands for a checkpoint built in the run folder."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken rule. The first of `keys` is the setting to name; all of them took part."""

    code: str
    keys: tuple[str, ...]
    message: str
    hint: str | None = None
    severity: Literal["error", "warning"] = "error"


Rule = Callable[[Recipe], Iterator[Finding]]


def check(resolved: Resolved) -> tuple[Problem, ...]:
    """Every broken rule of a resolved recipe, errors and warnings, each with the place of the setting."""
    return problems(resolved.recipe, resolved.where)


def require(resolved: Resolved) -> tuple[Problem, ...]:
    """Raise if a rule is broken; otherwise return the warnings.

    Raises:
        InvalidInput: with every problem.
    """
    found = check(resolved)
    errors = sum(problem.severity == "error" for problem in found)
    if errors:
        count = f"{errors} problem{'s' if errors > 1 else ''}"
        raise InvalidInput(
            f"recipe `{resolved.task}` on `{resolved.hardware}` cannot run ({count})",
            hint=f"omnirl recipe show {resolved.task} --on {resolved.hardware} --origin",
            problems=found,
        )
    return found


def problems(
    recipe: Recipe, where: Callable[[str], str | None], doubtful: frozenset[str] = frozenset()
) -> tuple[Problem, ...]:
    """Broken rules of a recipe, leaving out the ones that involve a doubtful setting or table."""
    found = [finding for rule in RULES for finding in rule(recipe)]
    return tuple(
        Problem(f.code, f.message, f.severity, key=f.keys[0], where=where(f.keys[0]), hint=f.hint)
        for f in found
        if not any(key == other or key.startswith(f"{other}.") for key in f.keys for other in doubtful)
    )


def _neighbours(value: int, fits: Callable[[int], bool], most: int | None = None) -> list[int]:
    """The nearest values below and above that fit, at least 1."""
    below = next((n for n in range(value - 1, 0, -1) if fits(n)), None)
    above = next((n for n in range(value + 1, (most or 4 * value + 1024) + 1) if fits(n)), None)
    return [n for n in (below, above) if n is not None]


def _try(key: str, values: list[int]) -> str | None:
    return f"try `{key} = " + "` or `".join(str(value) for value in values) + "`" if values else None


def _devices(recipe: Recipe) -> int:
    return recipe.hardware.nodes * recipe.hardware.devices_per_node


_DEVICES = ("hardware.nodes", "hardware.devices_per_node")


def _groups(recipe: Recipe) -> Iterator[Finding]:
    size = recipe.batch.group_size
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
            _try(keys[0], _neighbours(mini, lambda n: prompts % n == 0, prompts)),
        )


def _shares(recipe: Recipe) -> Iterator[Finding]:
    batch, devices = recipe.batch, _devices(recipe)
    for name in ("prompts", "mini_prompts"):
        count: int = getattr(batch, name)
        sequences = count * batch.group_size
        if sequences % devices:
            key = f"batch.{name}"
            product = f"{count} prompts x {batch.group_size} responses = {sequences} sequences"
            message = f"{product}, not divisible by {devices} devices"
            valid = _neighbours(count, lambda n: n * batch.group_size % devices == 0)
            yield Finding("batch-not-divisible", (key, "batch.group_size", *_DEVICES), message, _try(key, valid))


def _passes(recipe: Recipe) -> Iterator[Finding]:
    batch, devices = recipe.batch, _devices(recipe)
    tokens, micro = batch.max_tokens_per_device, batch.micro_sequences
    keys = ("batch.max_tokens_per_device", "batch.micro_sequences")
    if (tokens is None) == (micro is None):
        message = "one of `batch.max_tokens_per_device` and `batch.micro_sequences` must be set, not " + (
            "both" if tokens else "neither"
        )
        yield Finding("one-pass-size", keys, message)
    longest = recipe.data.max_prompt_tokens + recipe.data.max_response_tokens
    if tokens is not None and tokens < longest:
        message = (
            f"{tokens} tokens cannot hold one sequence: {recipe.data.max_prompt_tokens} prompt + "
            f"{recipe.data.max_response_tokens} response = {longest}"
        )
        involved = (keys[0], "data.max_prompt_tokens", "data.max_response_tokens")
        yield Finding("sequence-does-not-fit", involved, message, f"try `{keys[0]} = {longest}`")
    share = batch.mini_prompts * batch.group_size // devices
    even = batch.mini_prompts * batch.group_size % devices == 0
    if micro is not None and even and share % micro:
        message = (
            f"each device updates on {batch.mini_prompts} x {batch.group_size} / {devices} = {share} sequences, "
            f"not divisible by passes of {micro}"
        )
        shared = (keys[1], "batch.mini_prompts", "batch.group_size", *_DEVICES)
        yield Finding(
            "pass-does-not-divide",
            shared,
            message,
            _try(keys[1], _neighbours(micro, lambda n: share % n == 0, share)),
        )


def _clips(recipe: Recipe) -> Iterator[Finding]:
    algo = recipe.algo
    keys = ("algo.clip_high", "algo.clip_low", "algo.kind")
    widths = f"{algo.clip_low:g} / {algo.clip_high:g}"
    if algo.kind == "gspo" and max(algo.clip_low, algo.clip_high) > _PPO_SIZED:
        message = (
            f"clips of {widths} are sized for single tokens; GSPO's ratio of whole sequences hardly ever reaches them"
        )
        yield Finding(
            "clip-for-tokens",
            keys,
            message,
            "GSPO's own are `algo.clip_low = 3e-4` and `algo.clip_high = 4e-4`",
            "warning",
        )
    if algo.kind == "dapo" and max(algo.clip_low, algo.clip_high) < _PPO_SIZED:
        message = (
            f"clips of {widths} are sized for GSPO's whole sequences; DAPO's single tokens would nearly all be clipped"
        )
        yield Finding(
            "clip-for-sequences",
            keys,
            message,
            "DAPO's own are `algo.clip_low = 0.2` and `algo.clip_high = 0.28`",
            "warning",
        )


def _placement(recipe: Recipe) -> Iterator[Finding]:
    per_node, width = recipe.hardware.devices_per_node, recipe.rollout.tensor_parallel
    if per_node % width:
        key = "rollout.tensor_parallel"
        message = f"{per_node} devices in a node cannot be split into copies of {width}"
        yield Finding(
            "tensor-parallel",
            (key, _DEVICES[1]),
            message,
            _try(key, _neighbours(width, lambda n: per_node % n == 0, per_node)),
        )


def _prompts(recipe: Recipe) -> Iterator[Finding]:
    limit = recipe.rollout.prompt_tokens
    if limit is not None and limit < recipe.data.max_prompt_tokens:
        message = f"the rollout takes prompts of {limit} tokens, the data may have {recipe.data.max_prompt_tokens}"
        hint = f"try `rollout.prompt_tokens = {recipe.data.max_prompt_tokens}` or leave it out"
        yield Finding("prompt-cut", ("rollout.prompt_tokens", "data.max_prompt_tokens"), message, hint)


def _engine(recipe: Recipe) -> Iterator[Finding]:
    engine, device = recipe.rollout.engine, recipe.hardware.device
    keys = ("rollout.engine", "hardware.device")
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


RULES: tuple[Rule, ...] = (
    _groups, _updates, _shares, _passes, _clips, _placement, _prompts, _engine, _cpu, _tiny, _greedy, _media, _evidence,
)  # fmt: skip
