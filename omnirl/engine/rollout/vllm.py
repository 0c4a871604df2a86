"""The rollout engine `vllm`: verl's own vLLM server, made able to serve the Thinker.

A fallback for merged or full weights: vLLM's Thinker takes no adapter. Caches, sleep, weight updates, aborts and the
end of a dead engine are verl's and vLLM's own.
"""

from __future__ import annotations

import os
from typing import Any

import ray
from omegaconf import OmegaConf
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from omnirl.engine.failures import ENGINE, note
from omnirl.engine.rollout import positions
from omnirl.engine.rollout.deploy import OWN_OPTIONS, refuse_fixed
from omnirl.engine.rollout.names import collapse_media, transfer_key
from omnirl.engine.rollout.requests import context_tokens, placeholders, processor_options, sampling_fields
from omnirl.engine.rollout.vllm_plugin import ARCHITECTURE, allow
from omnirl.engine.thinker import thinker_config

_CHECK_S = 120.0
"""Longest wait for an engine that has just started to tell its positions."""


class ThinkerServer(vLLMHttpServer):
    """Options (`rollout.engine_kwargs.vllm`): `sleep_level`, and every argument of `vllm serve`."""

    # -- verl's hooks -------------------------------------------------------------------------------------------------

    def _init_model_config(self, model_config: Any) -> Any:
        # a teacher's names no class, and verl's own has no processor for the Thinker
        own = {"_target_": "omnirl.engine.processor.OmniModelConfig"}
        return omega_conf_to_dataclass(OmegaConf.merge(model_config, own))

    def _validate_configs(self) -> None:
        whole = self.model_config.hf_config
        # verl looks for it where a language model has it
        whole.max_position_embeddings = thinker_config(whole).text_config.max_position_embeddings
        self.config.max_model_len = context_tokens(self.config, self.model_config)
        super()._validate_configs()

    def _post_init(self, cuda_visible_devices: str) -> None:
        super()._post_init(cuda_visible_devices)
        self.placeholders = placeholders(self.model_config.hf_config)
        # without one verl leaves prompts as they are; with one it looks for names that Qwen3-Omni's has not
        self.processor, self.model_config.processor = self.model_config.processor, None
        # `VllmAdapter` sends to this name, and runs on one machine must not share it
        os.environ["VERL_RAY_JOB_ID"] = transfer_key(ray.get_runtime_context().get_job_id())
        allow(os.environ)

    def _preprocess_engine_kwargs(self, engine_kwargs: dict[str, Any]) -> None:
        given = {name: _plain(value) for name, value in engine_kwargs.items() if name not in OWN_OPTIONS}
        refuse_fixed(given)
        engine_kwargs.clear()
        engine_kwargs |= {"mm_processor_cache_gb": 0, **given}
        super()._preprocess_engine_kwargs(engine_kwargs)

    def _apply_quantization(self) -> tuple[str | None, dict[str, Any]]:
        quantization, overrides = super()._apply_quantization()
        return quantization, {**overrides, "architectures": [ARCHITECTURE]}

    def _get_worker_extension_cls(self) -> str:
        return "omnirl.engine.rollout.worker.ThinkerWorkerExtension"

    def _resolve_sleep_level(self) -> int:
        options = self.config.engine_kwargs.get(self._get_engine_kwargs_key()) or {}
        return int(options.get("sleep_level") or super()._resolve_sleep_level())

    # -----------------------------------------------------------------------------------------------------------------

    async def run_server(self, args: Any) -> None:
        """Start the engine and try it.

        Raises:
            EngineFailure: it gives media other positions than the trainer.
        """
        await super().run_server(args)

        async def ask(*probe: Any) -> list[Any]:
            return list(await self.engine.collective_rpc("media_positions", timeout=_CHECK_S, args=probe))

        await positions.compare(self.processor, ask)

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        video_data: list[Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
        **others: Any,
    ) -> TokenOutput:
        """Answer one prompt; see verl's `LLMServerClient.generate` for the arguments.

        Raises:
            ValueError: a prompt without room for an answer.
        """
        fields = sampling_fields(self.config, sampling_params, len(prompt_ids))
        fields["logprobs"] = fields["logprobs"] is not None  # a switch, as verl has it
        try:
            return await super().generate(
                collapse_media(prompt_ids, self.placeholders),
                fields,
                request_id,
                video_data=video_data,
                mm_processor_kwargs=processor_options(mm_processor_kwargs, video_data),
                **others,
            )
        except Exception as error:
            if self.engine.errored:
                note(f"the rollout engine died: {error}", ENGINE)
            raise


class ThinkerReplica(vLLMReplica):
    """Starts the server actor, as verl does."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.server_class = ray.remote(ThinkerServer)


def _plain(value: Any) -> Any:
    """A value without OmegaConf's containers, which verl would not write as JSON."""
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
