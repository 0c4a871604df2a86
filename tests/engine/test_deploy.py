"""How vllm-omni is told to run the Thinker."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from omnirl.engine.rollout.deploy import deploy_config, engine_arguments, lora_ceiling, write_deploy


def rollout(**changed: Any) -> SimpleNamespace:
    values = {
        "dtype": "bfloat16",
        "load_format": "safetensors",
        "max_model_len": 4096,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 8192,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": True,
        "enable_sleep_mode": True,
        "enforce_eager": False,
        "gpu_memory_utilization": 0.5,
        "tensor_model_parallel_size": 1,
        "seed": 42,
        "disable_log_stats": True,
        "cudagraph_capture_sizes": None,
    }
    return SimpleNamespace(**values | changed)


def arguments(options: dict[str, Any] | None = None, lora_rank: int = 0, **changed: Any) -> dict[str, Any]:
    return engine_arguments(
        rollout(**changed), replica_rank=3, lora_rank=lora_rank, worker_extension="a.B", options=options or {}
    )


def test_devices_are_counted_among_those_the_process_sees(tmp_path: Path) -> None:
    (stage,) = json.loads(write_deploy(tmp_path, 2).read_text())["stages"]
    assert stage["devices"] == "0,1"
    assert stage["engine_extras"]["engine_output_type"] == "text"
    with pytest.raises(ValueError, match="needs a device"):
        deploy_config(0)


def test_replicas_draw_differently_and_log_probabilities_are_those_of_training() -> None:
    found = arguments()
    assert found["seed"] == 45
    assert found["logprobs_mode"] == "processed_logprobs"
    assert found["mm_processor_cache_gb"] == 0
    assert "enable_lora" not in found
    assert "distributed_executor_backend" not in found


def test_options_reach_the_engine_and_those_of_ours_do_not() -> None:
    found = arguments({"output_mode": "ar", "pipeline_name": "x", "sleep_level": 1, "block_size": 32, "swap": None})
    assert found["block_size"] == 32
    assert not {"output_mode", "pipeline_name", "sleep_level", "swap"} & found.keys()


@pytest.mark.parametrize("name", ["worker_extension_cls", "mm_processor_cache_gb", "deploy_config"])
def test_what_is_decided_here_cannot_be_an_option(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        arguments({name: 1})


def test_adapters_graphs_and_several_devices() -> None:
    found = arguments(lora_rank=20, tensor_model_parallel_size=2, cudagraph_capture_sizes=[1, 2])
    assert (found["enable_lora"], found["max_lora_rank"]) == (True, 32)
    assert found["distributed_executor_backend"] == "mp"
    assert found["compilation_config"] == {"cudagraph_capture_sizes": [1, 2]}


def test_an_adapter_that_is_too_wide() -> None:
    assert lora_ceiling(512) == 512
    with pytest.raises(ValueError, match="not 513"):
        lora_ceiling(513)
