"""The rollout engine over a stand-in of vllm-omni's: requests, control calls, errors and death."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from omnirl.engine.rollout.calls import EngineFailure, checked
from omnirl.engine.rollout.omni_engine import OmniEngine
from tests.engine.omni_core import Core


def with_engine(check: Callable[[OmniEngine, Any], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        core = Core()
        engine = OmniEngine(core, **options)
        try:
            await check(engine, core)
        finally:
            engine.shutdown()
        assert core.stopped

    asyncio.run(main())


async def waiting(engine: OmniEngine, core: Core) -> asyncio.Task[Any]:
    """A request that the engine has and does not answer."""
    core.hold = True
    asked = asyncio.create_task(engine.generate({}, None, "a"))
    while not core.requests:
        await asyncio.sleep(0.001)
    return asked


def names(core: Core) -> list[str]:
    return [name for name, _ in core.stage_clients[0].calls]


def test_requests_keep_their_adapter_and_priority() -> None:
    async def check(engine: OmniEngine, core: Core) -> None:
        output = await engine.generate({"prompt_token_ids": [1]}, "sampling", "a", lora_request="adapter", priority=7)
        assert output.outputs[0].token_ids == [5, 6, 7]
        (request,) = core.requests
        assert (request["lora_request"], request["priority"]) == ("adapter", 7)
        assert request["sampling_params_list"] == ["sampling"]
        assert engine.running == []

    with_engine(check)


def test_many_requests_each_get_their_own_answer() -> None:
    async def check(engine: OmniEngine, core: Core) -> None:
        core.hold = True
        waiting = [asyncio.create_task(engine.generate({}, None, f"r{index}")) for index in range(20)]
        while len(core.requests) < 20:
            await asyncio.sleep(0.001)
        assert len(set(engine.running)) == 20
        for request in reversed(core.requests):
            core.answer(request["request_id"], finished=False)
            core.answer(request["request_id"])
        answers = await asyncio.gather(*waiting)
        assert len({id(answer) for answer in answers}) == 20

    with_engine(check)


def test_aborted_requests_come_back_empty() -> None:
    async def check(engine: OmniEngine, core: Core) -> None:
        core.hold = True
        one, other = (asyncio.create_task(engine.generate({}, None, name)) for name in ("one", "other"))
        while len(core.requests) < 2:
            await asyncio.sleep(0.001)
        assert await engine.abort(["one"]) == ["one"]
        assert await one is None
        assert engine.running == ["other"]
        other.cancel()
        with pytest.raises(asyncio.CancelledError):
            await other
        assert len(core.aborted) == 2
        await engine.drain()

    with_engine(check)


@pytest.mark.parametrize("fatal", [False, True])
def test_errors_of_the_engine_are_raised(fatal: bool) -> None:
    async def check(engine: OmniEngine, core: Core) -> None:
        asked = await waiting(engine, core)
        core.fail(core.requests[0]["request_id"], fatal=fatal)
        with pytest.raises(EngineFailure, match="out of memory"):
            await asked
        core.hold = False
        if fatal:
            with pytest.raises(EngineFailure, match="died"):
                await engine.generate({}, None, "b")
        else:
            assert await engine.generate({}, None, "b")

    with_engine(check)


def test_an_error_of_a_dead_engine_says_so() -> None:
    async def check(engine: OmniEngine, core: Core) -> None:
        asked = await waiting(engine, core)
        core.fail(core.requests[0]["request_id"], fatal=False)
        core.stage_clients[0].resources.engine_dead = True
        with pytest.raises(EngineFailure, match="died: its process ended"):
            await asked

    with_engine(check)


@pytest.mark.parametrize("how", ["process", "orchestrator"])
def test_a_dead_engine_is_noticed_at_once(how: str) -> None:
    async def check(engine: OmniEngine, core: Core) -> None:
        core.stage_clients[0].answers["sleep"] = "never"
        asked = await waiting(engine, core)
        called = asyncio.create_task(engine.engine_call("sleep", 2))
        await asyncio.sleep(0.05)
        start = time.monotonic()
        if how == "process":
            core.stage_clients[0].resources.engine_dead = True
        else:
            core.alive = False
        for task in (asked, called):
            with pytest.raises(EngineFailure, match="died"):
                await task
        assert time.monotonic() - start < 5

    with_engine(check)


def test_a_call_without_a_reply_ends() -> None:
    async def check(engine: OmniEngine, core: Core) -> None:
        core.stage_clients[0].answers["describe"] = "never"
        with pytest.raises(EngineFailure, match="did not answer `describe` within"):
            await engine.worker_call("describe")

    with_engine(check, call_timeout_s=0.3)


def test_deep_sleep_keeps_the_buffers() -> None:
    async def check(engine: OmniEngine, core: Core) -> None:
        await engine.sleep(2)
        await engine.wake_up(["weights"])
        await engine.update_weights(use_shm=False)
        await engine.wake_up(["kv_cache"])
        assert names(core) == [
            "save_buffers",
            "sleep",
            "wake_up",
            "restore_buffers",
            "update_weights_from_ipc",
            "wake_up",
            "reset_prefix_cache",
            "reset_encoder_cache",
        ]
        core.stage_clients[0].calls.clear()
        await engine.sleep(1)
        await engine.wake_up()
        assert names(core) == ["sleep", "wake_up", "reset_prefix_cache", "reset_encoder_cache"]

    with_engine(check)


def test_a_cache_that_was_not_reset_is_an_error() -> None:
    async def check(engine: OmniEngine, core: Core) -> None:
        core.stage_clients[0].answers["reset_prefix_cache"] = False
        with pytest.raises(EngineFailure, match="prefix cache"):
            await engine.reset_caches()

    with_engine(check)


def test_errors_of_a_worker_are_raised_as_they_are() -> None:
    async def check(engine: OmniEngine, core: Core) -> None:
        core.stage_clients[0].answers["load"] = KeyError("a weight")
        with pytest.raises(KeyError, match="a weight"):
            await engine.worker_call("load")
        assert await engine.loras() == {123}

    with_engine(check)


@pytest.mark.parametrize("reply", [{"supported": False}, [[{"error": "no"}]], {"todo": True}, [{"error": "x"}, 1]])
def test_error_dictionaries_become_exceptions(reply: Any) -> None:
    with pytest.raises(EngineFailure, match="`sleep` failed"):
        checked(reply, "sleep")


@pytest.mark.parametrize("reply", [None, [], [None], [{"supported": True}], [1, "a"], {"error": None}])
def test_other_replies_pass(reply: Any) -> None:
    assert checked(reply, "sleep") is reply
