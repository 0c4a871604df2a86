"""verl's FSDP engine for the Thinker, on every device."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tensordict import TensorDict
from torch.distributed.tensor import DTensor
from verl.utils.device import get_device_id, get_device_name
from verl.utils.fsdp_utils import (
    get_init_weight_context_manager,
    merged_lora_context,
    normalize_peft_param_name,
    offload_fsdp_model_to_cpu,
)
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from omnirl.engine import platform_cpu
from omnirl.engine.reshard import AnyRanksCheckpointManager
from omnirl.engine.thinker import Thinker, ban_media_tokens, media_token_ids, thinker_config


@EngineRegistry.register(model_type="omni_model", backend=["fsdp", "fsdp2"], device=["cpu", "cuda", "npu"])
class ThinkerFSDPEngine(FSDPEngineWithLMHead):
    """Loads the Thinker straight from a full Qwen3-Omni checkpoint: talker and code2wav never reach memory."""

    def initialize(self) -> None:
        super().initialize()
        self.checkpoint_manager = AnyRanksCheckpointManager(
            model=self.module,
            optimizer=self.optimizer,
            lr_scheduler=self.lr_scheduler,
            processing_class=self.model_config.get_processor(),
            checkpoint_config=self.checkpoint_config,
            trust_remote_code=self.model_config.trust_remote_code,
        )

    def _build_module(self) -> Thinker:
        default = "bf16" if self.engine_config.forward_only else "fp32"
        dtype = PrecisionType.to_dtype(self.engine_config.model_dtype or default)
        config = thinker_config(self.model_config.hf_config)
        on_meta = not getattr(config.text_config, "tie_word_embeddings", False)
        with (
            get_init_weight_context_manager(use_meta_tensor=on_meta, mesh=self.device_mesh)(),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            module = Thinker.from_pretrained(
                self.model_config.local_path,
                config=config,
                dtype=dtype,
                attn_implementation=self.model_config.override_config.get("attn_implementation", "flash_attention_2"),
            )
        module.to(dtype)
        if self.model_config.freeze_vision_tower:
            module.visual.requires_grad_(False)
        # a rank that skips a tower skips the collectives of its sharded parameters, and on one rank torch fails where
        # gradients wait for the last pass and a unit has not been gathered yet
        module.towers_always = True
        if self.model_config.enable_gradient_checkpointing:
            module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return module

    def _build_lora_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """The adapter in `lora_dtype`; verl rounds it to the base's, where small updates are lost.

        FSDP2 wants one type among the weights of a unit that are trained, whatever the others have. FSDP1 flattens all.
        """
        module = super()._build_lora_module(module)
        if self.model_config.lora_dtype and self.engine_config.strategy == "fsdp2":
            dtype = PrecisionType.to_dtype(self.model_config.lora_dtype)
            for weight in module.parameters():
                if weight.requires_grad:
                    weight.data = weight.data.to(dtype)
        return module

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        if self.engine_config.forward_only and get_device_name() == platform_cpu.NAME:
            # verl shards a reference model with pinned CPU offload, and pinning needs an accelerator
            self._autocast_dtype, self.scaler = torch.float32, None
            return module
        return super()._build_fsdp_module(module)

    def _merged_lora_per_tensor_param(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Merged weights in the dtype they are trained in; verl's own rounds each one to bfloat16.

        On one rank `full_tensor()` is the live weight itself, which the context un-merges on leaving: without a copy
        the rollout would keep the base model, and nothing but the probability correlation would show it.
        """
        alone = torch.distributed.get_world_size() == 1
        try:
            with merged_lora_context(self.module, backup_adapters=True):
                for name, weight in normalize_peft_param_name(self.module.state_dict()).items():
                    if isinstance(weight, DTensor):
                        full = weight.to(get_device_id(), non_blocking=True).full_tensor()
                        yield name, full.clone() if alone else full
                    else:
                        yield name, weight.detach().clone()
        finally:
            if self._is_offload_param:
                offload_fsdp_model_to_cpu(self.module)

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: TensorDict, logits_processor_func: Callable
    ) -> dict[str, torch.Tensor]:
        if output.get("logits") is not None:
            banned = torch.tensor(media_token_ids(self.model_config.hf_config))
            output.logits = ban_media_tokens(output.logits, banned)
        return super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)
