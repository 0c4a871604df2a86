"""The Ray actor of one rollout replica. vLLM is imported when its engine is started, not before."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ray
from verl.workers.rollout.replica import RolloutMode, TokenOutput

from omnirl.engine.distill.told import of_prompt
from omnirl.engine.failures import ENGINE, note
from omnirl.engine.rollout import positions
from omnirl.engine.rollout.calls import EngineFailure
from omnirl.engine.rollout.deploy import engine_arguments, write_deploy
from omnirl.engine.rollout.names import collapse_media, transfer_key
from omnirl.engine.rollout.omni_engine import OmniEngine
from omnirl.engine.rollout.requests import context_tokens, placeholders, processor_options, sampling_fields
from omnirl.engine.thinker import media_token_ids, thinker_config

WORKER_EXTENSION = "omnirl.engine.rollout.worker.OmniWorkerExtension"
_NAMED = {"image_data": "image", "video_data": "video", "audio_data": "audio"}


class OmniServer:
    """Tokens in, tokens out, through vllm-omni with the Thinker alone.

    Options (`rollout.engine_kwargs.vllm_omni`): `call_timeout_s` (120), `update_timeout_s` (1800), `start_timeout_s`
    (1800), and every argument of a vLLM engine.
    """

    def __init__(
        self, config: Any, model_config: Any, rollout_mode: RolloutMode, replica_rank: int, visible_devices: str
    ) -> None:
        from verl.utils.config import omega_conf_to_dataclass
        from verl.utils.device import get_visible_devices_keyword

        os.environ[get_visible_devices_keyword()] = visible_devices
        # by these the workers find the socket that their trainer sends weights through
        os.environ["VERL_REPLICA_RANK"] = str(replica_rank)
        os.environ["VERL_RAY_JOB_ID"] = transfer_key(ray.get_runtime_context().get_job_id())
        self.config = omega_conf_to_dataclass(config)
        self.model_config = omega_conf_to_dataclass(model_config)
        self.rollout_mode = rollout_mode
        self.replica_rank = replica_rank
        self.devices = len(visible_devices.split(","))
        self.options = dict(self.config.engine_kwargs.get("vllm_omni") or {})
        self.banned = media_token_ids(self.model_config.hf_config)
        self.placeholders = placeholders(self.model_config.hf_config)
        self.global_steps: int | None = None
        self.engine: OmniEngine | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._rejecting = False

    # -- start --------------------------------------------------------------------------------------------------------

    async def launch(self) -> str:
        """Start the engine and try it; returns the replica's address, which is a name and serves nothing.

        Raises:
            EngineFailure: it does not start, or gives media other positions than the trainer.
        """
        self.config.max_model_len = context_tokens(self.config, self.model_config)
        lora = self.model_config.lora_rank if self.lora_as_adapter else 0
        arguments = engine_arguments(
            self.config,
            replica_rank=self.replica_rank,
            lora_rank=lora,
            worker_extension=WORKER_EXTENSION,
            options=self.options,
        )
        folder = Path(tempfile.mkdtemp(prefix=f"omnirl-deploy-{self.replica_rank}-"))
        core = await asyncio.to_thread(self.start_core, arguments, write_deploy(folder, self.devices))
        self.engine = OmniEngine(
            core,
            call_timeout_s=float(self.options.get("call_timeout_s", 120)),
            update_timeout_s=float(self.options.get("update_timeout_s", 1800)),
        )
        await self.engine.worker_call("monkey_patch_model", vocab_size=self._vocabulary(), banned_token_ids=self.banned)
        ask = partial(self.engine.worker_call, "media_positions")
        await positions.compare(self.model_config.processor, ask)
        return f"vllm_omni://{ray.util.get_node_ip_address()}/{self.replica_rank}"

    def start_core(self, arguments: dict[str, Any], deploy: Path) -> Any:
        """vllm-omni's engine, ready for requests."""
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        from vllm_omni.config.pipeline_registry import register_pipeline
        from vllm_omni.engine.async_omni_engine import AsyncOmniEngine
        from vllm_omni.model_executor.models.qwen3_omni.pipeline import QWEN3_OMNI_THINKER_ONLY_PIPELINE

        register_pipeline(QWEN3_OMNI_THINKER_ONLY_PIPELINE)
        limit = int(self.options.get("start_timeout_s", 1800))
        return AsyncOmniEngine(
            model=self.model_config.local_path,
            init_timeout=limit,
            stage_init_timeout=limit,
            trust_remote_code=self.model_config.trust_remote_code,
            deploy_config=str(deploy),
            **arguments,
        )

    def _vocabulary(self) -> int:
        """All tokens of the model's: those past the tokenizer's are in the trainer's distribution too."""
        return int(thinker_config(self.model_config.hf_config).text_config.vocab_size)

    @property
    def lora_as_adapter(self) -> bool:
        """Whether the engine applies the adapter itself, instead of getting merged weights."""
        return self.model_config.lora_rank > 0 and not self.model_config.lora.get("merge", False)

    # -- requests -----------------------------------------------------------------------------------------------------

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: Sequence[Any] | None = None,
        video_data: Sequence[Any] | None = None,
        audio_data: Sequence[Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
        priority: int = 0,
        **_: Any,
    ) -> TokenOutput:
        """Answer one prompt; see verl's `LLMServerClient.generate` for the arguments.

        With `prompt_logprobs` 0 in `sampling_params` the answer tells how likely the prompt's own tokens are.

        Raises:
            ValueError: a prompt without room for an answer.
            EngineFailure: from the engine.
        """
        while not self._open.is_set():
            if self._rejecting:
                return self._aborted()
            await self._open.wait()
        assert self.engine is not None
        fields = sampling_fields(self.config, sampling_params, len(prompt_ids))
        media = {"image_data": image_data, "video_data": video_data, "audio_data": audio_data}
        prompt: dict[str, Any] = {"prompt_token_ids": collapse_media(prompt_ids, self.placeholders)}
        given = {_NAMED[name]: list(items) for name, items in media.items() if items}
        if given:
            prompt["multi_modal_data"] = given
            prompt["mm_processor_kwargs"] = processor_options(mm_processor_kwargs, video_data)
        lora = await self._lora_request() if self.lora_as_adapter else None
        try:
            output = await self.engine.generate(
                prompt, self.make_sampling(fields), request_id, lora_request=lora, priority=priority
            )
        except EngineFailure as failure:
            note(str(failure), ENGINE)
            raise
        if output is None or not output.outputs:
            return self._aborted()
        if fields.get("prompt_logprobs") is not None:
            told = of_prompt(prompt_ids, output.prompt_logprobs)
            return TokenOutput(token_ids=[], extra_fields={"global_steps": self.global_steps, **told})
        answer = output.outputs[0]
        tokens = list(answer.token_ids)
        log_probs = None
        if fields["logprobs"] is not None:
            log_probs = [float(values[token].logprob) for token, values in zip(tokens, answer.logprobs, strict=True)]
        return TokenOutput(
            token_ids=tokens,
            log_probs=log_probs,
            stop_reason="aborted" if answer.finish_reason == "abort" else "completed",
            extra_fields={
                "global_steps": self.global_steps,
                "num_cached_tokens": getattr(output, "num_cached_tokens", None),
            },
        )

    def make_sampling(self, fields: dict[str, Any]) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        # one message an answer: each partial one would pass two queues and be thrown away
        return SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY, detokenize=False, **fields)

    async def _lora_request(self) -> Any:
        from verl.workers.rollout.vllm_rollout.utils import VLLM_LORA_INT_ID, VLLM_LORA_NAME, VLLM_LORA_PATH
        from vllm.lora.request import LoRARequest

        assert self.engine is not None
        if VLLM_LORA_INT_ID not in await self.engine.loras():
            return None
        return LoRARequest(lora_name=VLLM_LORA_NAME, lora_int_id=VLLM_LORA_INT_ID, lora_path=VLLM_LORA_PATH)

    def _aborted(self) -> TokenOutput:
        return TokenOutput(token_ids=[], stop_reason="aborted", extra_fields={"global_steps": self.global_steps})

    # -- weights and memory -------------------------------------------------------------------------------------------

    @property
    def sleep_level(self) -> int:
        """2 drops the weights, which a full update brings back; 1 keeps them on the host, for adapters and on NPUs."""
        from verl.utils.device import is_torch_npu_available

        if "sleep_level" in self.options:
            return int(self.options["sleep_level"])
        return 1 if self.lora_as_adapter or is_torch_npu_available(check_device=False) else 2

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        """Call a method of every worker."""
        assert self.engine is not None
        if method == "update_weights_from_ipc":
            await self.engine.update_weights(**(kwargs or {}))
            return []
        return await self.engine.worker_call(method, *args, timeout_s=timeout, **(kwargs or {}))

    async def sleep(self) -> None:
        """Free memory for the trainer, once no request is running."""
        if self.engine is not None and self.config.free_cache_engine and self.rollout_mode != RolloutMode.STANDALONE:
            await self.engine.drain()
            await self.engine.sleep(self.sleep_level if self.rollout_mode == RolloutMode.HYBRID else 1)

    async def wake_up(self, tags: list[str] | None = None) -> None:
        if self.engine is not None and self.rollout_mode != RolloutMode.STANDALONE:
            await self.engine.wake_up(tags)

    async def clear_kv_cache(self) -> None:
        assert self.engine is not None
        await self.engine.reset_caches()

    async def release_kv_cache(self) -> None:
        """Free keys and values alone."""
        await self.sleep()
        await self.wake_up(["weights"])

    async def resume_kv_cache(self) -> None:
        await self.wake_up(["kv_cache"])

    async def set_global_steps(self, global_steps: int) -> None:
        self.global_steps = global_steps

    async def wait_for_requests_to_drain(self) -> None:
        if self.engine is not None:
            await self.engine.drain()

    async def abort_all_requests(self, reject_request: bool = False, **_: Any) -> dict[str, Any]:
        """Abort what runs and hold what comes until `resume_generation`, or turn it away."""
        assert self.engine is not None
        self._rejecting = reject_request
        self._open.clear()
        names = await self.engine.abort()
        await self.engine.drain()
        await self.engine.reset_caches()
        return {"aborted_count": len(names), "request_ids": names}

    async def abort_request(self, request_id: str, **_: Any) -> dict[str, Any]:
        assert self.engine is not None
        return {"aborted": bool(await self.engine.abort([request_id])), "request_id": request_id}

    async def resume_generation(self) -> None:
        self._rejecting = False
        self._open.set()

    async def start_profile(self, **_: Any) -> None:
        assert self.engine is not None
        await self.engine.profile(True)

    async def stop_profile(self) -> None:
        assert self.engine is not None
        await self.engine.profile(False)
