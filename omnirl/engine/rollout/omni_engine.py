"""vllm-omni's engine as a rollout: what goes in comes back, caches really reset, and a dead engine is noticed at once.

This sits on `AsyncOmniEngine`, below vllm-omni's own client: that one drops LoRA requests and priorities, resets no
cache, cannot wake from deep sleep and returns errors as dictionaries (0.24 and 0.26). The engine core's own calls are
reached through the stage's client, which is vLLM's; it belongs to the loop of vllm-omni's orchestrator thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from omnirl.engine.rollout.calls import LOOK_S, EngineFailure, bounded, checked

POLL_S = 0.001
"""Seconds between looks into the queue of outputs."""


@dataclass
class _Request:
    name: str
    answer: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class OmniEngine:
    """One replica's engine.

    Args:
        core: `vllm_omni.engine.async_omni_engine.AsyncOmniEngine`, started, or what has its interface.
        call_timeout_s: longest that a call into the engine may take.
        update_timeout_s: the same for an update of the weights.
    """

    def __init__(self, core: Any, *, call_timeout_s: float = 120.0, update_timeout_s: float = 1800.0) -> None:
        self.core = core
        self.client = core.stage_clients[0]
        self.call_timeout_s = call_timeout_s
        self.update_timeout_s = update_timeout_s
        self._requests: dict[str, _Request] = {}
        self._reading: asyncio.Task[None] | None = None
        self._deeply_asleep = False
        self._failure: str | None = None

    # -- requests -----------------------------------------------------------------------------------------------------

    async def generate(
        self, prompt: dict[str, Any], sampling: Any, request_id: str, *, lora_request: Any = None, priority: int = 0
    ) -> Any:
        """The finished output of one prompt, as vLLM's `RequestOutput`; None if it was aborted.

        Raises:
            EngineFailure: the engine died, or reported an error for this request.
        """
        self._raise_if_dead()
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        internal = f"{request_id}-{uuid.uuid4().hex[:8]}"
        request = self._requests[internal] = _Request(request_id)
        try:
            await self.core.add_request_async(
                request_id=internal,
                prompt=prompt,
                sampling_params_list=[sampling],
                final_stage_id=0,
                final_output_stage_ids=[0],
                lora_request=lora_request,
                priority=priority,
            )
            return await request.answer
        except asyncio.CancelledError:
            await self.core.abort_async([internal])
            raise
        finally:
            self._requests.pop(internal, None)

    @property
    def running(self) -> list[str]:
        """Names of the requests that have no answer yet."""
        return [request.name for request in self._requests.values()]

    async def abort(self, names: Sequence[str] | None = None) -> list[str]:
        """Abort requests by name, all of them when None; their callers get None. Returns the names."""
        hit = {key: request for key, request in self._requests.items() if names is None or request.name in names}
        if hit:
            await self.core.abort_async(list(hit))
        for request in hit.values():
            if not request.answer.done():
                request.answer.set_result(None)
        return [request.name for request in hit.values()]

    async def drain(self) -> None:
        """Wait until no request is running; `call_timeout_s` at most."""

        async def empty() -> None:
            while self._requests:
                await asyncio.sleep(POLL_S)

        await bounded(empty(), what="drain", timeout_s=self.call_timeout_s, dead=self.death)

    async def _read(self) -> None:
        """Hand outputs to their requests for as long as the engine lives."""
        looked = 0.0
        loop = asyncio.get_running_loop()
        while True:
            try:
                message = await self.core.try_get_output_async()
            except RuntimeError as error:
                message = None
                self._failure = self._failure or str(error)
            if message is None:
                now = loop.time()
                if self._failure or now - looked >= LOOK_S:
                    looked = now
                    if reason := self.death():
                        self._fail_all(reason)
                        return
                await asyncio.sleep(POLL_S)
                continue
            self._deliver(message)

    def _deliver(self, message: Any) -> None:
        kind = getattr(message, "type", None)
        request = self._requests.get(getattr(message, "request_id", None) or "")
        if kind == "error":
            if message.fatal:
                self._failure = message.error
            reason = self.death()
            text = f"the rollout engine died: {reason}" if reason else f"the rollout engine reported: {message.error}"
            if request and not request.answer.done():
                request.answer.set_exception(EngineFailure(text))
        elif kind == "output" and request and message.finished and not request.answer.done():
            error = getattr(message.engine_outputs, "error", None)
            if error:
                request.answer.set_exception(EngineFailure(f"the rollout engine reported: {error}"))
            else:
                request.answer.set_result(message.engine_outputs)

    def _fail_all(self, reason: str) -> None:
        for request in self._requests.values():
            if not request.answer.done():
                request.answer.set_exception(EngineFailure(f"the rollout engine died: {reason}"))

    # -- health -------------------------------------------------------------------------------------------------------

    def death(self) -> str | None:
        """Why the engine is dead; None while it lives."""
        if self._failure:
            return self._failure
        if self.client.resources.engine_dead:
            return "its process ended"
        return None if self.core.is_alive() else "its orchestrator ended"

    def _raise_if_dead(self) -> None:
        if reason := self.death():
            raise EngineFailure(f"the rollout engine died: {reason}")

    def shutdown(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self.core.shutdown()

    # -- control ------------------------------------------------------------------------------------------------------

    async def engine_call(self, name: str, *arguments: Any, timeout_s: float | None = None) -> Any:
        """Call the engine core itself, as `reset_prefix_cache` or `sleep`."""
        return await self._on_client_loop(
            lambda: getattr(self.client, f"{name}_async")(*arguments), name, timeout_s or self.call_timeout_s
        )

    async def worker_call(self, name: str, *arguments: Any, timeout_s: float | None = None, **named: Any) -> list[Any]:
        """Call a method of every worker, of the worker extension too. Replies have to be plain values."""
        timeout_s = timeout_s or self.call_timeout_s

        def call() -> Any:
            return self.client.collective_rpc_async(method=name, timeout=timeout_s, args=arguments, kwargs=named)

        results = await self._on_client_loop(call, name, timeout_s)
        return list(checked(results, name))

    async def _on_client_loop(self, call: Callable[[], Any], what: str, timeout_s: float) -> Any:
        self._raise_if_dead()
        loop = self.client.resources.output_queue_task.get_loop()

        async def run() -> Any:
            return await call()

        future = asyncio.run_coroutine_threadsafe(run(), loop)
        try:
            return await bounded(asyncio.wrap_future(future), what=what, timeout_s=timeout_s, dead=self.death)
        finally:
            future.cancel()

    async def reset_caches(self) -> None:
        """Forget keys, values and media features that older weights computed.

        Raises:
            EngineFailure: the engine could not, because requests are running.
        """
        if await self.engine_call("reset_prefix_cache", False, True) is False:
            raise EngineFailure("the prefix cache could not be reset: requests are running")
        await self.engine_call("reset_encoder_cache")

    async def sleep(self, level: int) -> None:
        """Free device memory: at level 1 weights wait in host memory, at level 2 they are dropped."""
        if level == 2:
            await self.worker_call("save_buffers")
        await self.engine_call("sleep", level)
        self._deeply_asleep = level == 2

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Take the memory back: `weights`, `kv_cache`, or both when None. After level 2 weights have to follow."""
        await self.engine_call("wake_up", tags)
        if self._deeply_asleep and (tags is None or "weights" in tags):
            await self.worker_call("restore_buffers")
            self._deeply_asleep = False
        if tags is None or "kv_cache" in tags:
            await self.reset_caches()

    async def update_weights(self, **options: Any) -> None:
        """Let the workers receive weights from the trainer; caches are not reset."""
        await self.worker_call("update_weights_from_ipc", timeout_s=self.update_timeout_s, **options)

    async def loras(self) -> set[int]:
        """Ids of the adapters that the engine has."""
        return set(await self.engine_call("list_loras"))

    async def profile(self, start: bool) -> None:
        with contextlib.suppress(EngineFailure):
            await self.worker_call("profile", start)
