"""The places of verl that the engine plugs into. Each message says what breaks when verl moves one."""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry, get_platform
from verl.trainer import main_ppo
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import distributed, fsdp_utils
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.utils.tokenizer import build_multimodal_processor_inputs
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker
from verl.workers.rollout import base as rollout_base
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

from omnirl.engine.fsdp import ThinkerFSDPEngine
from omnirl.engine.platform_cpu import CPUPlatform
from omnirl.engine.processor import OmniModelConfig
from omnirl.engine.rollout.hf import HFAdapter, HFReplica
from omnirl.engine.rollout.server import HFServer
from omnirl.engine.trainer import OmniTrainer


def parameters(function: Callable[..., Any]) -> list[str]:
    # Ray adds its own to the classes of actors
    return [name for name in inspect.signature(function).parameters if name != "self" and not name.startswith("_ray_")]


def test_verl_is_the_one_that_was_read() -> None:
    assert importlib.metadata.version("verl") == "0.9.1", "read every seam below again before moving the pin"


def test_the_plugin_is_registered() -> None:
    assert PlatformRegistry.get("cpu") is CPUPlatform, "PlatformRegistry.register: no run on a CPU can start"
    assert isinstance(get_platform(), CPUPlatform), "VERL_PLATFORM no longer chooses the platform"
    assert not CPUPlatform().is_platform_available(use_smi_check=True), "a CPU must never be chosen by itself"
    missing = PlatformBase.__abstractmethods__ - set(vars(CPUPlatform))
    assert not missing, f"the CPU platform lacks {missing}"
    assert rollout_base.get_rollout_class("hf", "async") is HFAdapter, "_ROLLOUT_REGISTRY: `hf` cannot sync weights"
    assert RolloutReplicaRegistry.get("hf") is HFReplica, "RolloutReplicaRegistry: the `hf` server cannot be started"
    for device in ("cpu", "cuda", "npu"):
        for backend in ("fsdp", "fsdp2"):
            found = EngineRegistry._engines["omni_model"][backend][device]
            assert found is ThinkerFSDPEngine, "EngineRegistry.register: the Thinker's engine is not found"


@pytest.mark.parametrize(
    ("owner", "name", "expected", "breaks"),
    [
        (PPOTrainer, "_build_replay_buffer", [], "the poll of 2 s comes back into every step"),
        (PPOTrainer, "_init_resource_pool_mgr", [], "verl's own workers train, without the repair of positions"),
        (PPOTrainer, "_init_dataloader", [], "probe files are never scored; runs end without a last save"),
        (PPOTrainer, "_validate", [], "probe files are never scored"),
        (
            PPOTrainer,
            "_balance_batch",
            ["batch", "metrics", "logging_prefix", "keep_minibatch"],
            "failed sequences are dropped in silence",
        ),
        (PPOTrainer, "fit", ["agent_loop_manager"], "the runner cannot start the training loop"),
        (PPOTrainer, "init", [], "the runner cannot start the training loop"),
        (main_ppo, "run_ppo", ["config", "task_runner_class"], "our trainer cannot be put in"),
        (ActorRolloutRefWorker, "init_model", [], "gloo's process group is not made first, and verl's own fails"),
        (TrainingWorker, "train_mini_batch", ["data"], "positions are not repaired before training"),
        (TrainingWorker, "infer_batch", ["data"], "positions are not repaired before scoring"),
        (FSDPEngineWithLMHead, "_build_module", [], "the talker is loaded too, or the Thinker is not found"),
        (FSDPEngineWithLMHead, "_build_fsdp_module", ["module"], "a reference model asks for pinned memory"),
        (FSDPEngineWithLMHead, "_merged_lora_per_tensor_param", [], "merged weights are rounded, or stay the base's"),
        (
            FSDPEngineWithLMHead,
            "prepare_model_outputs",
            ["output", "output_args", "micro_batch", "logits_processor_func"],
            "trainer and rollout see different distributions",
        ),
        (RLHFDataset, "_build_messages", ["example", "key"], "media are not put into messages"),
        (
            RLHFDataset,
            "_process_multi_modal_info",
            ["messages", "image_patch_size", "config"],
            "media are not decoded by the engine",
        ),
        (RLHFDataset, "maybe_filter_out_long_prompts", ["dataframe"], "rows that do not decode vanish in silence"),
        (RolloutReplica, "launch_servers", [], "the rollout server is not started"),
        (fsdp_utils, "merged_lora_context", None, "LoRA weights cannot be merged for the rollout"),
        (fsdp_utils, "normalize_peft_param_name", ["params"], "merged weights have names the rollout does not know"),
    ],
)
def test_hooks(owner: Any, name: str, expected: list[str] | None, breaks: str) -> None:
    hook = getattr(owner, name, None)
    assert hook is not None, f"{owner.__name__}.{name} is gone: {breaks}"
    if expected is not None:
        assert parameters(hook) == expected, f"{owner.__name__}.{name} takes other arguments: {breaks}"


def test_the_trainer_calls_the_hooks() -> None:
    source = inspect.getsource(PPOTrainer)
    for name in ("_build_replay_buffer", "_init_resource_pool_mgr", "_init_dataloader", "_validate", "_balance_batch"):
        assert f"self.{name}(" in source, f"PPOTrainer no longer calls {name}"
        assert name in vars(OmniTrainer)
    assert issubclass(OmniTrainer, PPOTrainerSync)
    step = inspect.getsource(PPOTrainer._step_once)
    assert step.index("_balance_batch(") < step.index("_compute_old_log_prob("), "failures are counted after training"
    assert step.index("replay_buffer.sample(") < step.index("_balance_batch("), "failures are counted before sampling"
    for name in ("steps_per_epoch", "total_training_steps", "role_worker_mapping", "val_dataloader", "global_steps"):
        assert f"self.{name}" in source, f"PPOTrainer.{name} is gone: the trainer's hooks read it"


def test_the_workers_classes_can_be_chosen() -> None:
    for name in ("actor_worker_cls", "ref_worker_cls"):
        assert getattr(ActorRolloutRefWorker, name) is TrainingWorker
        assert f"self.{name}(" in inspect.getsource(ActorRolloutRefWorker), f"{name} is not used: positions break"
    source = inspect.getsource(distributed.initialize_global_process_group_ray)
    assert "if not torch.distributed.is_initialized()" in source, "verl makes a second process group beside gloo's"


def test_the_poll_is_an_attribute() -> None:
    source = inspect.getsource(ReplayBuffer)
    assert "self.poll_interval = poll_interval" in source, "setting `poll_interval` has no effect: 2 s more a step"
    assert "time.sleep(self.poll_interval)" in source, "setting `poll_interval` has no effect: 2 s more a step"


def test_the_rollouts_interface() -> None:
    from verl.workers.rollout.llm_server import LLMServerClient

    asked = set(parameters(LLMServerClient.generate))
    offered = set(parameters(HFServer.generate))
    media = {"image_data", "video_data", "audio_data", "mm_processor_kwargs", "sampling_params", "prompt_ids"}
    assert media <= asked, "verl names media in other words"
    assert media | {"request_id"} <= offered
    assert set(TokenOutput.model_fields) >= {"token_ids", "log_probs", "stop_reason", "extra_fields"}
    assert BaseRollout.__abstractmethods__ <= set(vars(HFAdapter)), "the adapter lacks a call that verl makes"
    assert set(parameters(build_multimodal_processor_inputs)) >= {"text", "images", "videos", "audio"}


def test_the_model_configuration_is_a_dataclass_of_verl() -> None:
    from verl.workers.config import HFModelConfig

    assert issubclass(OmniModelConfig, HFModelConfig)
    fields = HFModelConfig.__dataclass_fields__
    for name in ("model_type", "processor", "tokenizer", "local_tokenizer_path", "load_tokenizer", "override_config"):
        assert name in fields, f"HFModelConfig.{name} is gone: the processor cannot be put in"
