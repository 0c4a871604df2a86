"""A stand-in for vllm-omni's `AsyncOmniEngine`: the same interface, answers that are made up, a loop of its own."""

from __future__ import annotations

import asyncio
import queue
import threading
from types import SimpleNamespace
from typing import Any


class Client:
    """What a stage's client offers, on the orchestrator's loop."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.answers: dict[str, Any] = {"reset_prefix_cache": True, "list_loras": [123]}
        self.resources = SimpleNamespace(engine_dead=False, output_queue_task=None)
        started = threading.Event()

        def run() -> None:
            loop = asyncio.new_event_loop()

            async def idle() -> None:
                self.resources.output_queue_task = asyncio.current_task()
                started.set()
                await asyncio.Event().wait()

            loop.run_until_complete(idle())

        threading.Thread(target=run, daemon=True).start()
        started.wait()

    def __getattr__(self, name: str) -> Any:
        if not name.endswith("_async"):
            raise AttributeError(name)
        return lambda *arguments: self._call(name.removesuffix("_async"), arguments)

    async def collective_rpc_async(self, method: str, timeout: float, args: Any, kwargs: Any) -> Any:
        return [await self._call(method, (*args, kwargs) if kwargs else args)]

    async def _call(self, name: str, arguments: Any) -> Any:
        assert asyncio.get_running_loop() is self.resources.output_queue_task.get_loop()
        self.calls.append((name, arguments))
        answer = self.answers.get(name)
        if answer == "never":
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        return answer(*arguments) if callable(answer) else answer


class Core:
    """`hold` keeps requests without an answer."""

    image_token_id = -1

    def __init__(self) -> None:
        self.stage_clients = [Client()]
        self.requests: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.outputs: queue.Queue[Any] = queue.Queue()
        self.alive, self.hold, self.stopped = True, False, False

    async def add_request_async(self, **request: Any) -> None:
        self.requests.append(request)
        if not self.hold:
            self.answer(request["request_id"])

    def answer(self, request_id: str, **changed: Any) -> None:
        tokens = [5, 6, 7]
        answer = SimpleNamespace(
            token_ids=tokens,
            logprobs=[{token: SimpleNamespace(logprob=-0.1 * token)} for token in tokens],
            finish_reason="stop",
        )
        fields = {"request_id": request_id, "type": "output", "finished": True, **changed}
        output = SimpleNamespace(outputs=[answer], error=None, prompt_logprobs=self._of_prompt(request_id))
        self.outputs.put(SimpleNamespace(engine_outputs=output, **fields))

    def _of_prompt(self, request_id: str) -> list[Any] | None:
        """A log-probability of each token of a prompt; what an image's name counts is how often its placeholder is
        repeated."""
        request = next(one for one in self.requests if one["request_id"] == request_id)
        sampling = request["sampling_params_list"][0]
        if not isinstance(sampling, dict) or sampling.get("prompt_logprobs") is None:
            return None
        images = iter(request["prompt"].get("multi_modal_data", {}).get("image", ()))
        tokens: list[int] = []
        for token in request["prompt"]["prompt_token_ids"]:
            count = {"one": 1, "two": 2, "three": 3}[next(images)] if token == self.image_token_id else 1
            tokens += [token] * count
        return [None, *({token: SimpleNamespace(logprob=-0.1 * token)} for token in tokens[1:])]

    def fail(self, request_id: str, *, fatal: bool) -> None:
        self.outputs.put(SimpleNamespace(type="error", request_id=request_id, error="out of memory", fatal=fatal))

    async def abort_async(self, request_ids: list[str]) -> None:
        self.aborted += request_ids

    async def try_get_output_async(self) -> Any:
        try:
            return self.outputs.get_nowait()
        except queue.Empty:
            if not self.alive:
                raise RuntimeError("Orchestrator died unexpectedly. See logs above.") from None
            return None

    def is_alive(self) -> bool:
        return self.alive

    def shutdown(self) -> None:
        self.stopped = True


def fake_server() -> type[Any]:
    """An `OmniServer` over `Core`, which gives media the trainer's positions or, with the option `wrong`, others."""
    from omnirl.engine.rollout.omni_server import OmniServer
    from omnirl.engine.rollout.positions import probes

    class FakeServer(OmniServer):
        def start_core(self, arguments: dict[str, Any], deploy: Any) -> Any:
            core = Core()
            core.image_token_id = self.model_config.processor.config.image_token_id
            known = {tuple(probe.token_ids): probe.wanted for probe in probes(self.model_config.processor)}
            shift = 1 if self.options.get("wrong") else 0

            def positions(token_ids: list[int], media: Any) -> list[list[int]]:
                return [[value + shift for value in row] for row in known[tuple(token_ids)]]

            core.stage_clients[0].answers["media_positions"] = positions
            self.core = core
            return core

        def make_sampling(self, fields: dict[str, Any]) -> Any:
            return fields

        async def seen(self) -> tuple[list[dict[str, Any]], list[str]]:
            requests = [{**request, "request_id": ""} for request in self.core.requests]
            return requests, [name for name, _ in self.core.stage_clients[0].calls]

        async def hold(self) -> None:
            self.core.hold = True

        async def die(self) -> None:
            self.core.stage_clients[0].resources.engine_dead = True

    return FakeServer
