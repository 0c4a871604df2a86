"""Calls into an engine that may die, hang or answer with an error instead of raising one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

LOOK_S = 0.25
"""Seconds between looks whether the engine still lives."""


class EngineFailure(RuntimeError):
    """The rollout engine died, did not answer in time, or reported an error."""


def checked(results: Any, what: str) -> Any:
    """Results of an engine's call, unless one of them says that the call failed.

    vllm-omni turns errors of its stages into dictionaries such as `{"supported": False, "error": ...}`.

    Raises:
        EngineFailure: such a dictionary is among the results, at any depth of lists.
    """
    for result in results if isinstance(results, (list, tuple)) else [results]:
        if isinstance(result, (list, tuple)):
            checked(result, what)
        elif isinstance(result, dict) and (
            result.get("error") or result.get("supported") is False or result.get("todo")
        ):
            reason = result.get("error") or "the engine does not support it"
            raise EngineFailure(f"`{what}` failed in the rollout engine: {reason}")
    return results


async def bounded(call: Awaitable[Any], *, what: str, timeout_s: float, dead: Callable[[], str | None]) -> Any:
    """Wait for a call, but not for longer than `timeout_s`, nor beyond the engine's death.

    A reply that cannot be encoded never comes, and neither does one of a process that was killed.

    Args:
        dead: why the engine is dead; None while it lives.

    Raises:
        EngineFailure: the engine died, or the time is over; and every other error of the call as it is.
    """
    task = asyncio.ensure_future(call)
    deadline = time.monotonic() + timeout_s
    try:
        while True:
            done, _ = await asyncio.wait({task}, timeout=min(LOOK_S, max(0.0, deadline - time.monotonic())))
            if done:
                return task.result()
            if reason := dead():
                raise EngineFailure(f"the rollout engine died during `{what}`: {reason}")
            if time.monotonic() >= deadline:
                raise EngineFailure(f"the rollout engine did not answer `{what}` within {timeout_s:g} s")
    finally:
        task.cancel()
