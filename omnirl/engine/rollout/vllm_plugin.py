"""What vLLM loads in each of its processes, by the entry point `omnirl` of `vllm.general_plugins` in pyproject.toml."""

from __future__ import annotations

from collections.abc import MutableMapping

ARCHITECTURE = "OmnirlThinkerForConditionalGeneration"
"""A name of our own: models that others serve with the same vLLM stay as they are."""

_ALLOWED = "VLLM_PLUGINS"


def register() -> None:
    """Add the Thinker to vLLM's models; its class is imported where it is served, and nowhere else."""
    from vllm import ModelRegistry

    ModelRegistry.register_model(ARCHITECTURE, "omnirl.engine.rollout.vllm_thinker:Thinker")


def allow(environment: MutableMapping[str, str]) -> None:
    """Let vLLM load the plug-in where the environment names the ones that it may."""
    if _ALLOWED in environment:
        names = [name for name in environment[_ALLOWED].split(",") if name]
        environment[_ALLOWED] = ",".join(dict.fromkeys([*names, "omnirl"]))
