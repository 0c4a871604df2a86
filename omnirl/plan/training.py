"""Device memory of the training process: its stages, each with its components. `memory.py` puts it together.

Every stage is the sum of what is allocated at one moment on one device, in bytes. Sharded sizes are totals divided by
the devices (FSDP2 over all of them). Where verl is named, it is verl 0.9.1; what is called measured was read off
torch's allocator on H200s, with the true sizes and 2 or 6 layers.
"""

from __future__ import annotations

from omnirl.plan import activations
from omnirl.plan.architecture import Architecture, Audio
from omnirl.plan.sizes import Sizes, verl_value
from omnirl.recipe.model import Recipe

BAN_COPIES = 1
"""The engine takes media tokens out of the distribution on a copy of the logits (`ban_media_tokens`)."""
LOG_PROB_COPIES = {"cuda": 0, "npu": 2, "cpu": 2}
"""Copies of the logits that log-probabilities keep for the backward pass: none with flash-attn's cross entropy, which
writes the gradient over the logits; a float32 log-softmax without it (measured: 2.06)."""
ENTROPY_COPIES = 4
"""Copies, in 16 bits, that the entropy of a whole pass takes: autocast computes softmax and its product with the logits
in float32 (measured: 4.00). verl compiles this function by default, which would take none; the published peaks are
those of the plain function, so compilation is not counted on."""
ENTROPY_GRAPH_COPIES = 6
"""The same with a gradient (an entropy bonus), in chunks or not: float32 logits, softmax and product. Not measured."""
CHUNK_COPIES = 6
"""Copies of a chunk of the logits, in 16 bits: float32 logits, softmax and product (measured: 6.00)."""
UNSHARDED_LAYERS = 2
"""Layers whose gathered parameters are there at once: the one at work and the next (measured)."""
GRADIENT_LAYERS = 2
"""Layers' worth of parameters that gathered gradients take on their way to the shards, one in 16 bits and a part of one
in float32 (measured: 1.2 to 1.8)."""
EXPERT_DELTA_BYTES = 8
"""Bytes for each expert parameter of a layer that PEFT's `target_parameters` take: the update in float32, the sum and
its gradient in 16 bits. From PEFT's source; not measured."""

DEFERRED = "actor_rollout_ref.actor.fsdp_config.use_no_sync_for_gradient_accumulation"
"""verl's key that leaves gradients whole until an update's last pass."""

COMPONENTS = (
    "weights", "adapter", "gathered_layers", "gradients", "gradient_buffers", "optimizer", "optimizer_step",
    "activations", "logits", "entropy", "media", "expert_updates",
)  # fmt: skip
Stage = dict[str, float]


def stages(recipe: Recipe, architecture: Architecture, sizes: Sizes) -> dict[str, Stage]:
    """Components in bytes of the stages `log_prob`, `loss`, `backward`, `step` and `media`, those that a run has."""
    offline = recipe.algo.kind == "dpo"
    found = {
        "loss": _loss(recipe, architecture, sizes) | _whole_gradients(recipe, sizes),
        "backward": _backward(recipe, architecture, sizes) | _whole_gradients(recipe, sizes),
        "step": _step(sizes),
        "media": _media(recipe, architecture, sizes),
    }
    if not offline:
        found = {"log_prob": _log_prob(recipe, architecture, sizes), **found}
    return {name: {key: stage.get(key, 0.0) for key in COMPONENTS} for name, stage in found.items()}


def _held(sizes: Sizes, *, training: bool) -> Stage:
    """What a stage has whatever it does. The optimizer's state is on the device while training, and else unless it is
    offloaded; gradients live from the first pass of an update to its step."""
    held: Stage = {"weights": sizes.shard, "adapter": sizes.adapter_shard}
    if training:
        return held | {"optimizer": sizes.optimizer_shard, "gradients": sizes.gradient_shard}
    return held | ({} if sizes.optimizer_offload else {"optimizer": sizes.optimizer_shard})


def _whole_gradients(recipe: Recipe, sizes: Sizes) -> Stage:
    """Gradients that are not sharded before an update's last pass are kept in float32, of every trained parameter."""
    return {"gradients": 4.0 * sizes.trained} if verl_value(recipe, DEFERRED) is True else {}


def _log_prob(recipe: Recipe, architecture: Architecture, sizes: Sizes) -> Stage:
    """Log-probabilities of the sampled tokens and their entropy, without gradients.

    logits = tokens x vocabulary x bytes, once; entropy as its constants say, at least the copy for banned tokens.
    """
    tokens = log_prob_tokens(recipe)
    logits = _logits(architecture, sizes, tokens)
    chunk = recipe.actor.entropy_chunk_tokens
    entropy = ENTROPY_COPIES * _half(architecture, tokens)
    if chunk is not None:
        entropy = CHUNK_COPIES * _half(architecture, min(chunk, tokens))
    return _held(sizes, training=False) | {
        "gathered_layers": sizes.head,
        "activations": 2 * tokens * architecture.text.hidden * sizes.width,
        "logits": logits,
        "entropy": max(entropy, BAN_COPIES * logits),
        "media": _kept_media(recipe, architecture, tokens, graph=False),
    }


def _loss(recipe: Recipe, architecture: Architecture, sizes: Sizes) -> Stage:
    """The end of an update's forward pass: every layer's checkpoint, the logits, and what the loss needs of them."""
    tokens = update_tokens(recipe)
    logits = _logits(architecture, sizes, tokens)
    bonus = recipe.algo.kind == "dapo" and recipe.algo.entropy_coeff > 0
    copies = 1 + BAN_COPIES + LOG_PROB_COPIES[recipe.hardware.device]
    return _held(sizes, training=True) | {
        "gathered_layers": sizes.head,
        "activations": _kept(recipe, architecture, sizes, tokens),
        "logits": copies * logits,
        "entropy": ENTROPY_GRAPH_COPIES * _half(architecture, tokens) if bonus else 0.0,
        "media": _kept_media(recipe, architecture, tokens, graph=True),
    }


def _backward(recipe: Recipe, architecture: Architecture, sizes: Sizes) -> Stage:
    """The backward pass in a layer: its activations recomputed, its gradients on their way to the shards."""
    tokens = update_tokens(recipe)
    text = architecture.text
    layer = text.layer_parameters * sizes.compute
    backward = activations.backward_bytes(text, sizes.width, adapters_only=sizes.adapters_only)
    updates = EXPERT_DELTA_BYTES * text.expert_parameters if sizes.expert_adapters else 0
    return _held(sizes, training=True) | {
        "gathered_layers": UNSHARDED_LAYERS * layer,
        "gradient_buffers": 0.0 if sizes.adapters_only else GRADIENT_LAYERS * layer,
        "activations": _kept(recipe, architecture, sizes, tokens) + tokens * backward,
        "media": _kept_media(recipe, architecture, tokens, graph=True),
        "expert_updates": updates,
    }


def _step(sizes: Sizes) -> Stage:
    """AdamW's update, which makes one more copy of the second moment (measured: 1.0)."""
    return _held(sizes, training=True) | {"optimizer_step": sizes.optimizer_shard / 2}


def _media(recipe: Recipe, architecture: Architecture, sizes: Sizes) -> Stage:
    """The towers' forward pass, before the language model's."""
    patches, frames = media(recipe, architecture, update_tokens(recipe))
    vision, audio = architecture.vision, architecture.audio
    kept = patches * activations.vision_kept_bytes(vision, trained=trains_vision(recipe))
    seen = kept + patches * activations.vision_peak_bytes(vision)
    heard = kept + frames * activations.audio_peak_bytes(audio)
    return _held(sizes, training=True) | {"media": max(seen, heard)}


def _kept(recipe: Recipe, architecture: Architecture, sizes: Sizes, tokens: int) -> float:
    text = architecture.text
    if recipe.model.gradient_checkpointing:
        return tokens * activations.checkpoint_bytes(text, sizes.width)
    return tokens * activations.kept_bytes(text, sizes.width, adapters_only=sizes.adapters_only)


def _logits(architecture: Architecture, sizes: Sizes, tokens: int) -> float:
    return tokens * architecture.text.vocabulary * sizes.width


def _half(architecture: Architecture, tokens: int) -> float:
    """One copy of the logits in 16 bits."""
    return tokens * architecture.text.vocabulary * 2


def _kept_media(recipe: Recipe, architecture: Architecture, tokens: int, *, graph: bool) -> float:
    patches, frames = media(recipe, architecture, tokens)
    vision = activations.vision_kept_bytes(architecture.vision, trained=graph and trains_vision(recipe))
    return patches * vision + frames * activations.audio_kept_bytes(architecture.audio, graph=graph)


def trains_vision(recipe: Recipe) -> bool:
    return recipe.tune.kind == "full" and not recipe.model.freeze_vision_tower


def media(recipe: Recipe, architecture: Architecture, tokens: int) -> tuple[float, float]:
    """Patches and mel frames in a pass: its share of prompt tokens, evenly over the task's kinds of media."""
    kinds = {kind for kind in recipe.task.modalities if kind != "text"} | (
        {"audio"} if recipe.data.soundtrack else set()
    )
    if not kinds:
        return 0.0, 0.0
    share = tokens * min(1.0, recipe.data.max_prompt_tokens / recipe.sequence_tokens) / len(kinds)
    seen = len(kinds - {"audio"}) * share * architecture.vision.patches_per_token
    return seen, share * Audio.FRAMES_PER_TOKEN if "audio" in kinds else 0.0


def update_tokens(recipe: Recipe) -> int:
    """Tokens of the largest pass with gradients: packed up to the limit, or sequences of the full length."""
    batch = recipe.batch
    share = -(-batch.mini_prompts * batch.group_size // recipe.devices)
    return _pass(recipe, batch.max_tokens_per_device, share)


def log_prob_tokens(recipe: Recipe) -> int:
    """The same for passes without gradients."""
    batch = recipe.batch
    share = -(-batch.prompts * batch.group_size // recipe.devices)
    return _pass(recipe, batch.max_log_prob_tokens_per_device or batch.max_tokens_per_device, share)


def _pass(recipe: Recipe, limit: int | None, sequences: int) -> int:
    if limit is None:
        return min(recipe.batch.micro_sequences or 1, sequences) * recipe.sequence_tokens
    # One sequence is never cut: a limit below it is refused by a rule.
    return max(recipe.sequence_tokens, min(limit, sequences * recipe.sequence_tokens))
