"""A stand-in for vLLM: the modules that verl's server and worker import, and an engine whose answers are made up.

`install` puts it into `sys.modules`, so it is for processes that are there for this alone.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from transformers import AutoConfig

PLUGINS: list[Any] = []
"""What the entry points of `vllm.general_plugins` give."""


class EngineDeadError(Exception):
    pass


class ModelRegistry:
    models: ClassVar[dict[str, Any]] = {}

    @classmethod
    def register_model(cls, architecture: str, model: Any) -> None:
        cls.models[architecture] = model

    @classmethod
    def load(cls, architecture: str) -> type[Any]:
        model = cls.models[architecture]
        if isinstance(model, str):
            module, _, name = model.partition(":")
            model = getattr(importlib.import_module(module), name)
        return model


class StockThinker(torch.nn.Module):
    """Takes the first placeholder of a medium for its start token, as vLLM does."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config, self.loaded = config, []

    def compute_logits(self) -> torch.Tensor:
        return torch.zeros(1, self.config.text_config.vocab_size)

    def load_weights(self, weights: Any) -> None:
        self.loaded += [(name, weight.clone()) for name, weight in weights]

    def iter_mm_features(self, features: Any) -> Any:
        for feature in sorted(features, key=lambda one: one.mm_position.offset):
            yield feature.mm_position.offset, feature.modality, {"feature": feature, "use_audio_in_video": False}

    def get_mrope_input_positions(self, tokens: list[int], features: Any) -> tuple[torch.Tensor, int]:
        columns: list[tuple[int, int, int]] = []
        after = 0
        side = self.config.vision_config.spatial_merge_size
        for offset, modality, data in self.iter_mm_features(features):
            count = offset + 1 - len(columns)  # text, and the start token
            columns += [(after + step,) * 3 for step in range(count)]
            after, feature = after + count, data["feature"]
            if modality == "audio":
                count = feature.mm_position.length
                columns += [(after + step,) * 3 for step in range(count)]
                after += count
                continue
            seconds = float(feature.data["second_per_grid_ts"].data) if modality == "video" else 1.0
            frames, height, width = feature.data[f"{modality}_grid_thw"].data.tolist()
            grid = [
                (after + int(frame * seconds * self.config.position_id_per_seconds), after + row, after + column)
                for frame in range(frames)
                for row in range(height // side)
                for column in range(width // side)
            ]
            columns += grid
            after = max(map(max, grid)) + 1
        columns += [(after + step,) * 3 for step in range(len(tokens) - len(columns))]
        return torch.tensor(columns).T, 0


class Worker:
    """What vLLM's worker has; the extension becomes a second base of it."""

    local_rank, device = 0, torch.device("cpu")

    def remove_lora(self, adapter: int) -> None:
        raise AssertionError("no adapters here")


class AsyncLLM:
    """`hold` keeps requests without an answer; `dead` lets them fail as they do when the process has ended."""

    def __init__(self, vllm_config: Any) -> None:
        for plugin in PLUGINS:
            plugin()
        self.calls: list[tuple[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.hold, self.dead = asyncio.Event(), False
        self.hold.set()
        self.model_config = vllm_config.model_config
        self.output_processor = SimpleNamespace(request_states={})
        extension = vllm_config.worker_extension_cls
        module, _, name = extension.rpartition(".")
        worker = type("Worker", (Worker, getattr(importlib.import_module(module), name)), {})
        self.worker = worker(vllm_config=vllm_config)
        model = ModelRegistry.load(vllm_config.architecture)(self.model_config.hf_config.thinker_config)
        self.worker.model_runner = SimpleNamespace(model=model, vllm_config=vllm_config)

    @classmethod
    def from_vllm_config(cls, vllm_config: Any, usage_context: Any, disable_log_stats: bool = False) -> AsyncLLM:
        return cls(vllm_config)

    @property
    def errored(self) -> bool:
        return self.dead

    async def collective_rpc(self, method: str, timeout: Any = None, args: Any = (), kwargs: Any = None) -> list[Any]:
        self.calls.append((method, kwargs))
        return [await asyncio.to_thread(getattr(self.worker, method), *args, **(kwargs or {}))]

    async def generate(self, prompt: Any, sampling_params: Any, request_id: str, **others: Any) -> Any:
        self.requests.append({"prompt": prompt, "sampling": vars(sampling_params), **others})
        self.output_processor.request_states[request_id] = True
        yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=[5], logprobs=[], finish_reason=None)])
        await self.hold.wait()
        if self.dead:
            raise EngineDeadError("EngineCore encountered an issue")
        running = self.output_processor.request_states.pop(request_id)
        tokens = [5, 6, 7]
        answer = SimpleNamespace(
            token_ids=tokens,
            logprobs=[{token: SimpleNamespace(logprob=-0.1 * token)} for token in tokens],
            finish_reason="stop",
        )
        yield SimpleNamespace(outputs=[answer] if running else [], num_cached_tokens=0)

    async def pause_generation(self, **_: Any) -> None:
        self.output_processor.request_states = dict.fromkeys(self.output_processor.request_states, False)
        self.hold.set()

    def __getattr__(self, name: str) -> Any:
        if not name.startswith(("reset_", "sleep", "wake_up", "resume_generation", "get_supported_tasks")):
            raise AttributeError(name)

        async def call(*arguments: Any, **named: Any) -> None:
            self.calls.append((name, arguments or named))

        return call


class AsyncEngineArgs:
    enable_log_requests = disable_log_stats = False
    __dataclass_fields__: ClassVar[dict[str, Any]] = {}

    @classmethod
    def from_cli_args(cls, arguments: Any) -> AsyncEngineArgs:
        found = cls()
        found.arguments = arguments
        return found

    def create_engine_config(self, usage_context: Any) -> Any:
        given = self.arguments
        return SimpleNamespace(
            architecture=json.loads(given.hf_overrides)["architectures"][0],
            worker_extension_cls=given.worker_extension_cls,
            parallel_config=SimpleNamespace(),
            quant_config=None,
            speculative_config=None,
            model_config=SimpleNamespace(hf_config=AutoConfig.from_pretrained(given.model)),
            arguments=vars(given),
        )


KNOWN = (
    *("dtype", "load_format", "distributed_executor_backend", "worker_extension_cls", "max_model_len", "max_num_seqs"),
    *("max_num_batched_tokens", "logprobs_mode", "gpu_memory_utilization", "tensor_parallel_size", "seed"),
    *("override_generation_config", "hf_overrides", "scheduling_policy", "compilation_config", "mm_processor_cache_gb"),
    *("limit_mm_per_prompt", "block_size"),
)
SWITCHES = (
    *("enable_chunked_prefill", "enable_prefix_caching", "enable_sleep_mode", "enforce_eager"),
    "disable_log_stats",
)


class Serve:
    name = "serve"

    @staticmethod
    def cmd(_: Any) -> None:
        raise AssertionError("verl starts the engine itself")

    def validate(self, arguments: Any) -> None:
        return None

    def subparser_init(self, subparsers: Any) -> Any:
        parser = subparsers.add_parser("serve")
        parser.add_argument("model_tag")
        for name in KNOWN:
            parser.add_argument(f"--{name}")
        for name in SWITCHES:
            parser.add_argument(f"--{name}", action="store_true")
        return parser


class Anything:
    """A class that nothing is asked of."""

    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)

    prompt_logprobs = None


async def nothing(*_: Any, **__: Any) -> None:
    return None


def app(*_: Any, **__: Any) -> Any:
    from fastapi import FastAPI

    return FastAPI()


def install(folder: Path) -> None:
    """Put the modules where `import vllm` finds them, and a distribution of that name into `folder`."""
    names: dict[str, dict[str, Any]] = {
        "": {"__version__": "0.26.0", "SamplingParams": Anything, "LLM": Anything, "ModelRegistry": ModelRegistry},
        "config.lora": {},
        "distributed.parallel_state": {},
        "engine.arg_utils": {"AsyncEngineArgs": AsyncEngineArgs},
        "entrypoints.cli.serve": {"run_headless": nothing, "cmd_init": lambda: [Serve()]},
        "entrypoints.openai.api_server": {"build_app": app, "init_app_state": nothing},
        "entrypoints.openai.parser.harmony_utils": {"get_encoding": nothing},
        "inputs": {"TokensPrompt": dict},
        "lora.lora_model": {"LoRAModel": Anything},
        "lora.request": {"LoRARequest": Anything},
        "lora.utils": {"get_adapter_absolute_path": nothing},
        "lora.worker_manager": {"LRUCacheWorkerLoRAManager": Anything},
        "model_executor.layers.linear": {"LinearBase": Anything},
        "model_executor.layers.quantization.fp8": {"Fp8Config": Anything},
        "model_executor.model_loader.utils": {"process_weights_after_loading": lambda *_: None},
        "model_executor.models.qwen3_omni_moe_thinker": {"Qwen3OmniMoeThinkerForConditionalGeneration": StockThinker},
        "outputs": {"RequestOutput": Anything},
        "usage.usage_lib": {"UsageContext": SimpleNamespace(OPENAI_API_SERVER="server")},
        "utils.argparse_utils": {"FlexibleArgumentParser": argparse.ArgumentParser},
        "v1.engine.async_llm": {"AsyncLLM": AsyncLLM},
    }
    for name, content in names.items():
        parts = ["vllm", *name.split(".")] if name else ["vllm"]
        for length in range(1, len(parts) + 1):
            path = ".".join(parts[:length])
            if path not in sys.modules:
                module = types.ModuleType(path)
                module.__path__, module.__spec__ = [], ModuleSpec(path, None, is_package=True)  # type: ignore[attr-defined]
                sys.modules[path] = module
                if length > 1:
                    setattr(sys.modules[".".join(parts[: length - 1])], parts[length - 1], module)
        vars(sys.modules[".".join(parts)]).update(content)
    record = folder / "vllm-0.26.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.26.0\n")
    sys.path.insert(0, str(folder))
