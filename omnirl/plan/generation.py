"""Device memory of the rollout, which shares its devices with training, and of a teacher, which has its own.

vLLM takes a share of each device (`rollout.memory_fraction`) and fills what its weights, its passes and its graphs
leave with key-value cache. Between steps it sleeps: weights and cache are given back, and context and graphs stay.
On devices of its own it never sleeps, and takes its weights in beside all that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omnirl.plan import activations
from omnirl.plan.architecture import Architecture, Text
from omnirl.plan.sizes import WIDTHS, Sizes, verl_value
from omnirl.plan.table import TEACHER
from omnirl.recipe.model import NO_ENGINE, Recipe

GIB = 1 << 30
CONTEXT_BYTES = 1.6 * GIB
"""Of each process: CUDA's context, kernels and NCCL's buffers, outside torch's allocator (measured on H200s: 1.58)."""
BATCHED_TOKENS, BATCHED_KEY = 8192, "actor_rollout_ref.rollout.max_num_batched_tokens"
"""Tokens of one pass of the engine: verl's default, and its key."""
SEQUENCES = 1024
"""Sequences at once where the recipe says nothing: verl's default."""
CAPTURES = 51
"""Sizes that vLLM captures where the recipe names none: 1, 2, 4, then every 8 to 256 and every 16 to 512."""
CAPTURE_BYTES = GIB // 4096
"""A captured graph of one layer: 0.25 MiB, as vLLM's logs give it (about 0.5 GiB for 67 sizes of 32 layers)."""
SAMPLING_BYTES = 10
"""Of one logit while sampling: 16 bits, float32, and float32 log-probabilities."""
TOLD_BYTES = 6
"""Of one logit while a teacher tells how likely its prompt is, beside what vLLM plans with: 16 bits, and float32
log-probabilities. From vLLM's source; not measured."""
BUCKET_BYTES = 2 * GIB
"""verl's `update_weights_bucket_megabytes`, through which weights go to the engine."""
STAGES = ("generate", "sync")
COMPONENTS = ("weights", "activations", "graphs", "kv_cache", "training", "transfer", "contexts")


@dataclass(frozen=True, slots=True)
class Rollout:
    """A rollout on one device, in bytes.

    Attributes:
        stages: components of `generate` and `sync`.
        cache_tokens: tokens that the key-value cache holds on the devices of one copy.
        least_cache: bytes that one sequence of the full length takes.
        asleep: what stays on the device while training.
        host_copy: weights of one device in host memory while the engine sleeps; 0 where sleep drops them.
    """

    stages: dict[str, dict[str, float]]
    cache_tokens: int
    least_cache: float
    asleep: float
    host_copy: float

    @property
    def starves(self) -> bool:
        """Whether the cache cannot hold one sequence of the full length."""
        return self.stages["generate"]["kv_cache"] < self.least_cache


def rollout(recipe: Recipe, architecture: Architecture, sizes: Sizes) -> Rollout | None:
    """The rollout of a recipe; None where answers are in the data."""
    if recipe.rollout.engine == NO_ENGINE:
        return None
    settings = recipe.rollout
    split = settings.tensor_parallel
    text = architecture.text
    width = WIDTHS[settings.dtype or "bfloat16"]
    weights = architecture.parameters * width / split
    token = cache_bytes(text, width, split)
    graphs = _graphs(recipe, text)
    at_once = _at_once(recipe)
    batched = _number(verl_value(recipe, BATCHED_KEY) or settings.options.get("max_num_batched_tokens"), BATCHED_TOKENS)
    passes = batched * activations.forward_bytes(text, width, split) + at_once * text.vocabulary * SAMPLING_BYTES
    apart = settings.devices is not None
    held = sizes.adapter_shard + (0 if sizes.optimizer_offload else sizes.optimizer_shard)
    resident = 0 if apart else held + (0 if recipe.actor.param_offload else sizes.shard)
    if settings.engine == "hf":
        # The same process trains and generates, and sequences are as many as a step has.
        cache = recipe.batch.prompts * recipe.batch.group_size * recipe.sequence_tokens * token
        passes, contexts = at_once * text.vocabulary * SAMPLING_BYTES, 0.0
    else:
        budget = (settings.memory_fraction or 0.5) * (recipe.hardware.memory_gib or 0.0) * GIB
        cache = max(0.0, budget - weights - passes - graphs)
        contexts = 2 * CONTEXT_BYTES
    generate = {
        "weights": weights,
        "activations": passes,
        "graphs": graphs,
        "kv_cache": cache,
        "training": resident,
        "contexts": contexts,
    }
    sync = {
        "weights": weights,
        "graphs": graphs,
        "kv_cache": cache if apart else 0,
        "training": 0 if apart else held + sizes.shard,
        "transfer": _largest(text) * width + (BUCKET_BYTES * (1 + apart) if contexts else 0),
        "contexts": contexts,
    }
    keeps = recipe.hardware.device == "npu" or (recipe.tune.kind == "lora" and not recipe.tune.merge)
    return Rollout(
        stages={
            name: {key: stage.get(key, 0.0) for key in COMPONENTS}
            for name, stage in zip(STAGES, (generate, sync), strict=True)
        },
        cache_tokens=int(cache // token),
        least_cache=recipe.sequence_tokens * token,
        asleep=0.0 if apart or settings.engine == "hf" else CONTEXT_BYTES + graphs,
        host_copy=weights if keeps and not apart and settings.engine != "hf" else 0.0,
    )


def teacher(recipe: Recipe, architecture: Architecture) -> dict[str, float] | None:
    """Components in bytes of a teacher's device; None without one. It holds the architecture of the student."""
    if recipe.algo.kind != "opd":
        return None
    settings = recipe.algo.teacher
    text = architecture.text
    weights = architecture.parameters * 2 / settings.tensor_parallel
    batched = _number(verl_value(recipe, f"{TEACHER}.inference.max_num_batched_tokens"), BATCHED_TOKENS)
    passes = batched * activations.forward_bytes(text, 2, settings.tensor_parallel)
    eager = verl_value(recipe, f"{TEACHER}.inference.enforce_eager") is not False  # verl's default
    graphs = 0.0 if eager else float(text.layers * CAPTURES * CAPTURE_BYTES)
    budget = settings.memory_fraction * (recipe.hardware.memory_gib or 0.0) * GIB
    cache = max(0.0, budget - weights - passes - graphs)
    return {
        "weights": weights,
        "activations": passes,
        "graphs": graphs,
        "kv_cache": cache,
        "logits": float(min(batched, settings.max_tokens) * text.vocabulary * TOLD_BYTES),
        "contexts": CONTEXT_BYTES,
    }


def cache_bytes(text: Text, width: int, split: int) -> float:
    """Key-value cache of a token on one device: keys and values of every layer, heads split but never below one."""
    return text.key_value_elements / text.key_value_heads * -(-text.key_value_heads // split) * width


def _graphs(recipe: Recipe, text: Text) -> float:
    """Captured graphs: sizes x layers x 0.25 MiB; none in eager mode or on the `hf` engine."""
    settings = recipe.rollout
    if settings.eager or settings.engine == "hf":
        return 0.0
    count = len(settings.capture_sizes) if settings.capture_sizes else CAPTURES
    return float(count * text.layers * CAPTURE_BYTES)


def _at_once(recipe: Recipe) -> int:
    settings = recipe.rollout
    asked = settings.max_sequences or _number(settings.options.get("max_num_seqs"), SEQUENCES)
    return min(asked, recipe.batch.prompts * recipe.batch.group_size)


def _largest(text: Text) -> int:
    """Elements of the largest parameter, the stacked gate and up projections or the head, which is gathered whole."""
    return max(2 * text.experts * text.expert_width * text.hidden, text.head_parameters)


def _number(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default
