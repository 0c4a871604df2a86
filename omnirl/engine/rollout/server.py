"""The server behind the `hf` rollout: tokens in, tokens out, many requests in one batch."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import ray
import torch
from verl.workers.rollout.replica import TokenOutput

from omnirl.engine.cache import content_key
from omnirl.engine.distill.told import told
from omnirl.engine.rollout.sampling import Answer, Prompt, Sampler, Sampling
from omnirl.engine.rollout.weights import load_adapter, load_weights
from omnirl.engine.thinker import Thinker, media_token_ids, thinker_config


@dataclass
class _Request:
    prompt_ids: list[int]
    media: dict[str, Any]
    sampling: Sampling | None
    """How to draw an answer; None asks for the log-probabilities of the prompt itself."""
    answer: asyncio.Future[Any]
    """An `Answer`, or the log-probability of each token of the prompt but the first."""


class HFServer:
    """One Thinker on the CPU.

    Requests that arrive within `batch_window_s` of each other are answered together, up to `max_batch`, media or none:
    a group's answers share one prefill. Options (`rollout.engine_kwargs.hf`): `max_batch` (128), `batch_window_s`
    (0.03).
    """

    def __init__(self, config: Any, model_config: Any, replica_rank: int) -> None:
        import verl  # noqa: F401  loads the plug-in in this process
        from verl.utils.config import omega_conf_to_dataclass

        self.config = omega_conf_to_dataclass(config)
        self.model_config = omega_conf_to_dataclass(model_config)
        self.replica_rank = replica_rank
        self.processor = self.model_config.processor
        self.tokenizer = self.model_config.tokenizer
        options = dict(self.config.engine_kwargs.get("hf") or {})
        self.max_batch = int(options.get("max_batch", 128))
        self.window_s = float(options.get("batch_window_s", 0.03))
        self.global_steps: int | None = None
        self.model: torch.nn.Module = self._load_model()
        self.sampler = Sampler(
            self.model,
            end_ids=[self.tokenizer.eos_token_id],
            banned_ids=media_token_ids(self.model_config.hf_config),
            pad_id=self.tokenizer.pad_token_id,
            seed=int(self.config.seed) + replica_rank,
        )
        self.updates = 0
        self._requests: asyncio.Queue[_Request] = asyncio.Queue()
        self._answering: asyncio.Task[None] | None = None
        self._model_lock = threading.Lock()

    def _load_model(self) -> Thinker:
        model = Thinker.from_pretrained(
            self.model_config.local_path,
            config=thinker_config(self.model_config.hf_config),
            dtype=torch.float32,
            attn_implementation=self.model_config.override_config.get("attn_implementation", "sdpa"),
        )
        return model.eval().requires_grad_(False)

    async def address(self) -> str:
        return f"hf://{ray.util.get_node_ip_address()}/{self.replica_rank}"

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: list[Any] | None = None,
        video_data: list[Any] | None = None,
        audio_data: list[Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
        **_: Any,
    ) -> TokenOutput:
        """Answer one prompt; see verl's `LLMServerClient.generate` for the arguments.

        With `prompt_logprobs` 0 in `sampling_params` nothing is drawn: `extra_fields` get `prompt_ids` and
        `prompt_logprobs`, a list a token, each about the token after it, with zeros for the last, as verl's teachers
        tell them.

        Raises:
            ValueError: more than the log-probabilities of the given tokens is asked for.
        """
        if self._answering is None:
            self._answering = asyncio.create_task(self._answer_for_ever())
        prompt_ids = [int(token) for token in prompt_ids]
        scoring = sampling_params.get("prompt_logprobs") is not None
        if scoring and sampling_params["prompt_logprobs"] != 0:
            raise ValueError("the hf rollout tells how likely the given tokens are, not which are the likeliest")
        room = self.config.prompt_length + self.config.response_length - len(prompt_ids)
        limit = (
            sampling_params.get("max_tokens") or sampling_params.get("max_new_tokens") or self.config.response_length
        )
        request = _Request(
            prompt_ids=prompt_ids,
            media={
                "images": image_data,
                "videos": video_data,
                "audio": audio_data,
                "mm_processor_kwargs": mm_processor_kwargs,
            },
            sampling=None
            if scoring
            else Sampling(
                max_tokens=max(1, min(limit, room)),
                temperature=float(sampling_params.get("temperature", 1.0)),
                top_p=float(sampling_params.get("top_p", 1.0)),
                top_k=int(sampling_params.get("top_k", -1)),
            ),
            answer=asyncio.get_running_loop().create_future(),
        )
        self._requests.put_nowait(request)
        answer = await request.answer
        if scoring:
            fields = {"global_steps": self.global_steps, **told(prompt_ids, answer)}
            return TokenOutput(token_ids=[], extra_fields=fields)
        return TokenOutput(
            token_ids=answer.token_ids,
            log_probs=answer.log_probs if sampling_params.get("logprobs") else None,
            stop_reason="completed",
            extra_fields={"global_steps": self.global_steps},
        )

    async def _answer_for_ever(self) -> None:
        while True:
            batch = [await self._requests.get()]
            while len(batch) < self.max_batch:
                try:
                    batch.append(await asyncio.wait_for(self._requests.get(), self.window_s))
                except TimeoutError:
                    break
            by_sampling: dict[Sampling | None, list[_Request]] = {}
            for request in batch:
                by_sampling.setdefault(request.sampling, []).append(request)
            for sampling, requests in by_sampling.items():
                await self._answer(requests, sampling)

    async def _answer(self, requests: list[_Request], sampling: Sampling | None) -> None:
        try:
            answers = await asyncio.to_thread(self._sample, requests, sampling)
        except Exception as error:  # noqa: BLE001  every caller gets it, and the server lives on
            for request in requests:
                if not request.answer.done():
                    request.answer.set_exception(error)
            return
        for request, answer in zip(requests, answers, strict=True):
            if not request.answer.done():
                request.answer.set_result(answer)

    def _sample(self, requests: list[_Request], sampling: Sampling | None) -> list[Answer] | list[list[float]]:
        prompts = [self._prompt(request) for request in requests]
        with self._model_lock:
            return self.sampler.score(prompts) if sampling is None else self.sampler.sample(prompts, sampling)

    def _prompt(self, request: _Request) -> Prompt:
        """Media features and positions of a request, by the processor the trainer's side uses."""
        from verl.utils.tokenizer import build_multimodal_processor_inputs

        media = [request.media[kind] for kind in ("images", "videos", "audio")]
        features: dict[str, torch.Tensor] = {}
        if any(media):
            # only features are wanted: the placeholders in `prompt_ids` are expanded already
            text = self.tokenizer.decode(request.prompt_ids, skip_special_tokens=True)
            features = dict(build_multimodal_processor_inputs(self.processor, text=[text], **request.media))
            for name in ("input_ids", "attention_mask", "mm_token_type_ids"):
                features.pop(name, None)
        ids = torch.tensor([request.prompt_ids])
        positions, _ = self.processor.get_rope_index(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            image_grid_thw=features.get("image_grid_thw"),
            video_grid_thw=features.get("video_grid_thw"),
            **self.processor.get_rope_index_kwargs(features),
        )
        index = torch.arange(ids.shape[1]).unsqueeze(0)
        return Prompt(
            token_ids=request.prompt_ids,
            positions=torch.cat([index, positions[:, 0]]),
            features=features,
            key=content_key(request.prompt_ids, request.media),
        )

    async def update_weights(
        self, named: dict[str, torch.Tensor], global_steps: int | None = None, peft_config: dict[str, Any] | None = None
    ) -> None:
        """Take over full weights, or LoRA weights when `peft_config` is given; waits for the batch in flight."""
        await asyncio.to_thread(self._update, named, peft_config)
        self.global_steps = global_steps

    def _update(self, named: dict[str, torch.Tensor], peft_config: dict[str, Any] | None) -> None:
        with self._model_lock:
            if peft_config is None:
                load_weights(self.model, named, complete=self.updates == 0)
            else:
                self.model = self.sampler.model = load_adapter(self.model, named, peft_config)
            self.updates += 1

    async def set_global_steps(self, global_steps: int) -> None:
        self.global_steps = global_steps

    async def abort_all_requests(self, reject_request: bool = False, **_: Any) -> dict[str, Any]:
        return {}

    async def sleep(self, *_: Any, **__: Any) -> None:
        """Nothing to free: each batch brings its own cache. So for the calls below."""

    wake_up = resume_generation = clear_kv_cache = release_kv_cache = resume_kv_cache = sleep
    start_profile = stop_profile = sleep
