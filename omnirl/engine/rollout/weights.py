"""Weights of a rollout model: taken over whole from the trainer, or refused."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_EXPERTS = ".mlp.experts."


def pack_experts(named: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Join per-expert matrices into the packed tensors that transformers 5 keeps.

    `X.mlp.experts.<i>.{gate,up,down}_proj.weight` become `X.mlp.experts.gate_up_proj` (experts, 2 x inner, hidden) and
    `X.mlp.experts.down_proj` (experts, hidden, inner). Names that are packed already pass through.
    """
    packed: dict[str, torch.Tensor] = {}
    layers: dict[str, dict[int, dict[str, torch.Tensor]]] = {}
    for name, tensor in named.items():
        before, separator, after = name.partition(_EXPERTS)
        index, _, matrix = after.partition(".")
        if separator and index.isdigit():
            layers.setdefault(before + _EXPERTS, {}).setdefault(int(index), {})[matrix.removesuffix(".weight")] = tensor
        else:
            packed[name] = tensor
    for prefix, experts in layers.items():
        ordered = [experts[index] for index in sorted(experts)]
        packed[f"{prefix}gate_up_proj"] = torch.stack(
            [torch.cat([expert["gate_proj"], expert["up_proj"]]) for expert in ordered]
        )
        packed[f"{prefix}down_proj"] = torch.stack([expert["down_proj"] for expert in ordered])
    return packed


def load_weights(model: nn.Module, named: dict[str, torch.Tensor], *, complete: bool) -> None:
    """Copy named weights into `model`.

    Args:
        named: parameters and buffers under the model's own names, experts packed or not.
        complete: every parameter has to be there.

    Raises:
        KeyError: a name the model does not have, or a parameter that did not come.
    """
    named = pack_experts(named)
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    unknown = sorted(named.keys() - own.keys())
    if unknown:
        raise KeyError(f"{len(unknown)} weights are unknown to the rollout model, such as {unknown[:3]}")
    missing = sorted(dict(model.named_parameters()).keys() - named.keys())
    if complete and missing:
        raise KeyError(f"{len(missing)} weights never reached the rollout model, such as {missing[:3]}")
    with torch.no_grad():
        for name, tensor in named.items():
            own[name].copy_(tensor)


def load_adapter(model: nn.Module, named: dict[str, torch.Tensor], peft_config: dict[str, Any]) -> nn.Module:
    """Put LoRA weights on `model`, wrapping it in PEFT the first time; returns the wrapped model.

    Raises:
        KeyError: a name the adapter does not have, or an adapter weight that did not come: the rollout would answer
            with the base model and nothing would say so.
    """
    from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict

    if not isinstance(model, PeftModel):
        kept = (
            "r",
            "lora_alpha",
            "target_modules",
            "exclude_modules",
            "target_parameters",
            "bias",
            "task_type",
            "use_rslora",
        )
        config = {name: peft_config[name] for name in kept if peft_config.get(name) is not None}
        model = get_peft_model(model, LoraConfig(**config)).eval().requires_grad_(False)
    missing = sorted(get_peft_model_state_dict(model).keys() - named.keys())
    if missing:
        raise KeyError(f"{len(missing)} adapter weights never reached the rollout model, such as {missing[:3]}")
    result = set_peft_model_state_dict(model, dict(named))
    if result.unexpected_keys:
        raise KeyError(f"adapter weights unknown to the rollout model, such as {result.unexpected_keys[:3]}")
    return model
