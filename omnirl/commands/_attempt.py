"""One launch of the engine, followed to its end: what a training run and the sync proof have in common."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from omnirl import console

if TYPE_CHECKING:
    from omnirl.run.launch import Ended
    from omnirl.run.progress import Watch
    from omnirl.run.record import Attempt


def follow(
    attempt: Attempt,
    program: Sequence[str],
    *,
    env: Mapping[str, str],
    address: str | None,
    tag: str,
    watch: Watch,
) -> Ended:
    """Launch `program` and show how far it is; ends and raises as `launch.launch`.

    Args:
        env: the recipe's environment.
        address: of a Ray cluster, as `--address` has it.
    """
    from omnirl import machine
    from omnirl.run import launch

    whole = {
        **env,
        "VERL_FILE_LOGGER_PATH": str(attempt.metrics.absolute()),
        "RAY_ADDRESS": machine.cluster(address, os.environ) or "",
    }
    with console.status() as status:

        def poll() -> None:
            said = watch.look()
            status.update(watch.lines(), "\n".join(said))

        ended = launch.launch(program, attempt=attempt.path, tag=tag, env=whole, poll=poll)
    if ended.stopped.survivors:
        console.warn(f"these processes could not be stopped: {', '.join(map(str, ended.stopped.survivors))}")
    return ended


def why_failed(attempt: Attempt, code: int, *, did: str) -> tuple[str, str | None]:
    """What went wrong and what mends it, as the engine says; where it says nothing, the log's end goes to stderr.

    Args:
        did: what it did instead of its work, if it ended with exit code 0.
    """
    from omnirl.run.outcome import failure, last_lines

    message, hint = failure(attempt)
    if message is None:
        for text in last_lines(attempt.log):
            console.note(f"  {text}")
        how = f"with exit code {code}" if code > 0 else f"with signal {-code}" if code else f"well, but {did}"
        message = f"the training program ended {how}"
    return message, hint
