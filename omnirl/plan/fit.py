"""Whether a run fits its devices, and which settings would make it fit: found by estimating it with them changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

from omnirl.errors import Problem
from omnirl.plan.architecture import Architecture
from omnirl.plan.memory import Memory, estimate
from omnirl.plan.sizes import adapter_size
from omnirl.recipe import rules
from omnirl.recipe.kinds import Lora
from omnirl.recipe.model import Recipe
from omnirl.recipe.rules.placement import fits_heads

CODE = "does-not-fit"
_OPTIONS, _TERMS, _COARSE = 2, 3, 5
_SIDES = {"actor": "training", "rollout": "the rollout", "teacher": "the teacher"}


@dataclass(frozen=True, slots=True)
class Mend:
    """Settings, by name, with which everything fits; `peak` is then the highest of a device, in GiB."""

    settings: dict[str, Any]
    peak: float

    def words(self) -> str:
        """As options of the command line."""
        return " ".join(f"--set '{key} = {_toml(value)}'" for key, value in self.settings.items())

    def as_dict(self) -> dict[str, Any]:
        return {"settings": self.settings, "peak_gib": round(self.peak, 6)}


def problem(
    memory: Memory, mends: list[Mend], where: Callable[[str], str | None], *, adapters: bool = False
) -> Problem | None:
    """What does not fit, with its largest terms and the settings that mend it; None when all fits.

    Args:
        adapters: LoRA would fit.
    """
    if not memory.excess:
        return None
    message = "; ".join(_side(memory, side) for side in memory.excess)
    otherwise = "`--tune lora`" if adapters else "hardware with more devices or more memory"
    hint = " or ".join(mend.words() for mend in mends) or otherwise
    key = next(iter(mends[0].settings), "hardware.memory_gib") if mends else "hardware.memory_gib"
    return Problem(CODE, message, key=key, where=where(key), hint=hint)


def mends(recipe: Recipe, memory: Memory, architecture: Architecture) -> list[Mend]:
    """Up to two ways to make a run fit that does not: one setting each where one is enough, else two together.

    For each setting the value nearest to the recipe's is taken. Settings that break a rule are left out.
    """
    if not memory.excess:
        return []
    adapter_parameters = adapter_size(recipe, architecture)
    broken = _errors(recipe)

    def tried(settings: dict[str, Any]) -> Mend | None:
        changed = with_settings(recipe, settings)
        found = estimate(changed, architecture, adapter_parameters=adapter_parameters)
        if found.excess or not _errors(changed) <= broken:
            return None
        peaks = (found.actor_peak + found.beside, found.rollout_peak or 0.0, found.teacher_peak or 0.0)
        return Mend(settings, max(peaks))

    changes = {key: values for key, values in _changes(recipe, memory) if values}
    found: list[Mend] = []
    for key, values in changes.items():
        mend = next((mend for value in values if (mend := tried({key: value}))), None)
        found += [mend] if mend else []
        if len(found) == _OPTIONS:
            return found
    if found:
        return found
    for first, second in combinations(changes, 2):
        pairs = product(_coarse(changes[first]), _coarse(changes[second]))
        mend = next((mend for one, other in pairs if (mend := tried({first: one, second: other}))), None)
        found += [mend] if mend else []
        if len(found) == _OPTIONS:
            break
    return found


def adapters_fit(recipe: Recipe, architecture: Architecture) -> bool:
    """Whether LoRA on the attention would fit where every parameter is trained."""
    if recipe.tune.kind == "lora":
        return False
    attention = ["q_proj", "k_proj", "v_proj", "o_proj"]
    adapter = Lora(kind="lora", rank=32, alpha=64, dtype="float32", merge=True, target_modules=attention)
    return not estimate(recipe.model_copy(update={"tune": adapter}), architecture).excess


def with_settings(recipe: Recipe, settings: dict[str, Any]) -> Recipe:
    """The recipe with settings changed, by dotted name; nothing is checked."""
    for key, value in settings.items():
        recipe = _with(recipe, key.split("."), value)
    return recipe


def _with(table: Any, path: list[str], value: Any) -> Any:
    name, *rest = path
    return table.model_copy(update={name: _with(getattr(table, name), rest, value) if rest else value})


def _changes(recipe: Recipe, memory: Memory) -> Iterator[tuple[str, list[Any]]]:
    """Settings worth changing for the sides that do not fit, those first that cost least, each with values to try."""
    over = memory.excess
    if "actor" in over:
        yield from _training(recipe, memory)
    if "rollout" in over:
        yield from _rollout(recipe, starved="rollout" in dict(memory.starved))
    if "teacher" in over and recipe.algo.kind == "opd":
        teacher = recipe.algo.teacher
        yield "algo.teacher.tensor_parallel", _wider(teacher.tensor_parallel, recipe.teacher_devices_per_node)
        starved = "teacher" in dict(memory.starved)
        yield "algo.teacher.memory_fraction", _fractions(teacher.memory_fraction, rising=starved)
    if "actor" in over:
        key = "max_tokens" if recipe.data.max_tokens else "max_response_tokens"
        longest = recipe.data.max_tokens or recipe.data.max_response_tokens
        yield f"data.{key}", [longest * share // 8 for share in range(7, 0, -1) if longest >= 8]


def _training(recipe: Recipe, memory: Memory) -> Iterator[tuple[str, list[Any]]]:
    batch, actor, model = recipe.batch, recipe.actor, recipe.model
    if not model.gradient_checkpointing:
        yield "model.gradient_checkpointing", [True]
    chunk = actor.entropy_chunk_tokens
    if memory.actor_stage == "log_prob":
        yield "actor.entropy_chunk_tokens", [size for size in (2048, 512) if chunk is None or size < chunk]
    if not actor.optimizer_offload:
        yield "actor.optimizer_offload", [True]
    if not actor.param_offload:
        yield "actor.param_offload", [True]
    if batch.max_tokens_per_device:
        yield "batch.max_tokens_per_device", _fewer(batch.max_tokens_per_device, recipe.sequence_tokens)
    if batch.max_log_prob_tokens_per_device:
        key = "batch.max_log_prob_tokens_per_device"
        yield key, _fewer(batch.max_log_prob_tokens_per_device, recipe.sequence_tokens)
    if batch.micro_sequences:
        yield "batch.micro_sequences", list(range(batch.micro_sequences - 1, 0, -1))


def _rollout(recipe: Recipe, *, starved: bool) -> Iterator[tuple[str, list[Any]]]:
    settings = recipe.rollout
    if not recipe.actor.param_offload:
        yield "actor.param_offload", [True]
    if settings.memory_fraction is not None:
        yield "rollout.memory_fraction", _fractions(settings.memory_fraction, rising=starved)
    yield "rollout.tensor_parallel", _wider(settings.tensor_parallel, recipe.rollout_devices_per_node)


def _fewer(tokens: int, least: int) -> list[int]:
    """Limits below `tokens`, in steps of 1024, down to the longest sequence."""
    return [*range((tokens - 1) // 1024 * 1024, least, -1024), *([least] if least < tokens else [])]


def _fractions(fraction: float, *, rising: bool) -> list[float]:
    steps = [step / 20 for step in range(1, 20)]
    higher, lower = [x for x in steps if x > fraction], [x for x in reversed(steps) if x < fraction]
    return higher if rising else lower


def _wider(width: int, per_node: int) -> list[int]:
    return [n for n in range(width + 1, per_node + 1) if per_node % n == 0 and fits_heads(n)]


def _coarse(values: list[Any]) -> list[Any]:
    """A few of the values, the last among them."""
    step = max(1, len(values) // _COARSE)
    return [*values[::step], *values[-1:]]


def _errors(recipe: Recipe) -> frozenset[str]:
    return frozenset(found.code for found in rules.problems(recipe, lambda _: None) if found.severity == "error")


def _side(memory: Memory, side: str) -> str:
    said = _SIDES[side]
    lacking = dict(memory.starved).get(side)
    peaks = {
        "actor": memory.actor_peak + memory.beside,
        "rollout": memory.rollout_peak or 0.0,
        "teacher": memory.teacher_peak or 0.0,
    }
    terms = {name.partition(".")[2]: size for name, size in memory.components.items() if name.startswith(f"{side}.")}
    if lacking is not None and side == "rollout" and memory.rollout:
        terms = memory.rollout["generate"]
    if side == "actor":
        terms["contexts and graphs"] = memory.beside
    largest = sorted(terms, key=lambda name: -terms[name])[:_TERMS]
    shown = ", ".join(f"{name} {terms[name]:.1f}" for name in largest if terms[name] > 0)
    if lacking is not None:
        return f"{said} lacks {lacking:.1f} GiB of key-value cache for one sequence of the full length ({shown} GiB)"
    return f"{said} takes {peaks[side]:.1f} GiB of a device's {memory.limit:g} ({shown} GiB)"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
