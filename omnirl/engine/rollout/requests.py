"""What verl asks of a rollout server, as vLLM's engines want it; nothing here needs vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omnirl.engine.media import sampled_fps
from omnirl.engine.thinker import thinker_config

_LEAST_CONTEXT = 4096
"""Tokens of the engine's context at least: its start tries media of the longest kind, whatever the prompts hold."""


def context_tokens(config: Any, model_config: Any) -> int:
    """Tokens of the engine's context: as verl's rollout configuration says, or what prompt and answer need."""
    if config.max_model_len is not None:
        return int(config.max_model_len)
    longest = int(thinker_config(model_config.hf_config).text_config.max_position_embeddings)
    return min(longest, max(config.prompt_length + config.response_length, _LEAST_CONTEXT))


def placeholders(config: Any) -> frozenset[int]:
    """The tokens that stand for features of media in a prompt."""
    thinker = thinker_config(config)
    return frozenset(getattr(thinker, f"{kind}_token_id") for kind in ("image", "video", "audio"))


def sampling_fields(config: Any, wanted: dict[str, Any], prompt_tokens: int) -> dict[str, Any]:
    """verl's sampling parameters as fields of vLLM's, with the room for the answer.

    Raises:
        ValueError: a prompt without room for an answer.
    """
    wanted = {name: value for name, value in wanted.items() if name != "detokenize"}
    room = config.max_model_len - prompt_tokens
    if room < 1:
        raise ValueError(f"a prompt of {prompt_tokens} tokens leaves no room in {config.max_model_len}")
    limits = [wanted.pop(name, None) for name in ("max_tokens", "max_new_tokens")]
    budget = config.prompt_length + config.response_length - prompt_tokens
    limit = next((limit for limit in limits if limit), min(config.response_length, budget))
    fields = {"repetition_penalty": config.repetition_penalty, "ignore_eos": config.ignore_eos}
    return {
        **fields,
        **wanted,
        "logprobs": 0 if wanted.get("logprobs") else None,
        "max_tokens": max(1, min(limit, room)),
    }


def processor_options(given: dict[str, Any] | None, videos: Sequence[Any] | None) -> dict[str, Any]:
    """The processor's arguments for one prompt: frames are taken as the trainer's side decoded them.

    Raises:
        ValueError: videos of one prompt that were sampled at different rates; the processor takes one.
    """
    options = dict(given or {})
    if videos:
        rates = sorted({sampled_fps(metadata) for _, metadata in videos})
        if len(rates) > 1:
            raise ValueError(f"the rollout engine takes videos of one rate in a prompt, not {rates}")
        options["videos_kwargs"] = {"fps": rates[0], "do_sample_frames": False, "do_resize": False}
    return options
