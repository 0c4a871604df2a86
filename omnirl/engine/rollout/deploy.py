"""How vllm-omni is told to run the Thinker alone: one stage on the devices that a replica sees."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PIPELINE = "qwen3_omni_moe_thinker_only"
ARCHITECTURE = "Qwen3OmniMoeThinkerForConditionalGeneration"

OWN_OPTIONS = frozenset(
    {"output_mode", "pipeline_name", "call_timeout_s", "update_timeout_s", "start_timeout_s", "sleep_level"}
)
"""Keys of `rollout.options` that are not arguments of the engine."""

_FIXED = {"deploy_config", "worker_extension_cls", "mm_processor_cache_gb", "tensor_parallel_size", "model"}


def deploy_config(devices: int) -> dict[str, Any]:
    """The deploy configuration of one replica.

    The stage's devices are counted among those that the process sees, from 0, so replicas that see different devices
    never share one. `text` keeps the engine from copying hidden states to the host at every step.
    """
    if devices < 1:
        raise ValueError(f"a replica needs a device, not {devices}")
    return {
        "pipeline": PIPELINE,
        "async_chunk": False,
        "stages": [
            {
                "stage_id": 0,
                "devices": ",".join(map(str, range(devices))),
                "engine_extras": {"model_arch": ARCHITECTURE, "engine_output_type": "text"},
            }
        ],
    }


def write_deploy(folder: Path, devices: int) -> Path:
    """Write the configuration as JSON, which is YAML too, into a folder of this replica's own."""
    path = folder / "deploy.yaml"
    path.write_text(json.dumps(deploy_config(devices), indent=2), encoding="utf-8")
    return path


def engine_arguments(
    rollout: Any, *, replica_rank: int, lora_rank: int, worker_extension: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    """verl's rollout settings as arguments of a vLLM engine.

    Args:
        rollout: verl's rollout configuration, `max_model_len` decided.
        lora_rank: rank of an adapter that the engine applies itself; 0 where weights come merged.
        options: the recipe's `rollout.options`.

    Raises:
        ValueError: an option that is decided here.
    """
    refuse_fixed(options)
    arguments: dict[str, Any] = {
        "dtype": rollout.dtype,
        "load_format": rollout.load_format,
        "max_model_len": rollout.max_model_len,
        "max_num_seqs": rollout.max_num_seqs,
        "max_num_batched_tokens": rollout.max_num_batched_tokens,
        "enable_chunked_prefill": rollout.enable_chunked_prefill,
        "enable_prefix_caching": rollout.enable_prefix_caching,
        "enable_sleep_mode": rollout.enable_sleep_mode,
        "enforce_eager": rollout.enforce_eager,
        "gpu_memory_utilization": rollout.gpu_memory_utilization,
        "tensor_parallel_size": rollout.tensor_model_parallel_size,
        "seed": replica_rank + rollout.seed,
        # what training compares with: log-probabilities after temperature and bans
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": worker_extension,
        # two caches that have to agree, of which a sleeping engine empties one
        "mm_processor_cache_gb": 0,
        "disable_log_stats": rollout.disable_log_stats,
    }
    if rollout.tensor_model_parallel_size > 1:
        arguments["distributed_executor_backend"] = "mp"
    if rollout.cudagraph_capture_sizes:
        arguments["compilation_config"] = {"cudagraph_capture_sizes": list(rollout.cudagraph_capture_sizes)}
    if lora_rank > 0:
        arguments |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": lora_ceiling(lora_rank)}
    return arguments | {key: value for key, value in options.items() if key not in OWN_OPTIONS and value is not None}


def refuse_fixed(options: Mapping[str, Any]) -> None:
    """Let no option through that is decided here.

    Raises:
        ValueError: with one that is.
    """
    wrong = sorted(_FIXED & options.keys())
    if wrong:
        raise ValueError(f"`rollout.options` cannot set `{wrong[0]}`")


def lora_ceiling(rank: int) -> int:
    """The least adapter rank that vLLM can be started for and that holds `rank`.

    Raises:
        ValueError: vLLM has none.
    """
    for ceiling in (1, 8, 16, 32, 64, 128, 256, 320, 512):
        if rank <= ceiling:
            return ceiling
    raise ValueError(f"vLLM takes adapters up to rank 512, not {rank}")
