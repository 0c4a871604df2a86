"""Give a command to a Ray cluster as a job, and follow it: `python -m omnirl.engine.job REQUEST.json`.

Writes JSON objects on stdout, one a line: `{job, address}` when the cluster has taken it, then `{status, exit_code,
message}` when it has ended; `{fault}` instead of either. What the job writes goes to stderr.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import aiohttp
from ray.job_submission import JobSubmissionClient

from omnirl.run.processes import die_with_parent

_FAULTS = (OSError, RuntimeError, ValueError, ImportError, aiohttp.ClientError)
_STOP_S = 30
"""How long a job that is stopped may take to stop what it has started; Ray's own 3 s are too few for verl."""
_PATIENCE_S = 120.0
"""How long a cluster may be out of reach while a job is followed."""


def main(path: str) -> int:
    die_with_parent(os.getppid())
    logging.getLogger(JobSubmissionClient.__module__).setLevel(logging.WARNING)  # it tells of every connection
    request = json.loads(Path(path).read_text(encoding="utf-8"))
    taken = threading.Event()
    threading.Thread(target=_give_up, args=(taken, request["submit_s"]), daemon=True).start()
    try:
        client = JobSubmissionClient(request["address"])
        job = client.submit_job(
            entrypoint=request["entrypoint"],
            submission_id=request["id"],
            metadata=request["metadata"],
            runtime_env={"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(_STOP_S)}},
        )
        taken.set()
        _tell({"job": job, "address": client.get_address()})
        if request["wait"]:
            asyncio.run(_follow(client, job))
            told = client.get_job_info(job)
            _tell({"status": told.status.value, "exit_code": told.driver_exit_code, "message": told.message or ""})
    except _FAULTS as error:
        taken.set()
        _tell({"fault": " ".join(str(error).split())[:400] or type(error).__name__})
    return 0


async def _follow(client: JobSubmissionClient, job: str) -> None:
    """Copy the job's log to stderr until it has ended; a connection that breaks is made anew."""
    shown, failing_since = 0, None
    while True:
        at = 0
        try:
            async for text in client.tail_job_logs(job):  # from the first line, at each connection
                sys.stderr.write(text[max(0, shown - at) :])
                sys.stderr.flush()
                at += len(text)
                shown = max(shown, at)
            if client.get_job_status(job).is_terminal():
                return
            failing_since = None
        except _FAULTS:
            failing_since = failing_since or time.monotonic()
            if time.monotonic() - failing_since > _PATIENCE_S:
                raise
        await asyncio.sleep(1)


def _give_up(taken: threading.Event, submit_s: float) -> None:
    if not taken.wait(submit_s):
        _tell({"fault": f"no answer within {submit_s:g} s"})
        os._exit(0)


def _tell(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
