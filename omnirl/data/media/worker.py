"""A worker process that looks at media files with PyAV: `python -m omnirl.data.media.worker MEMORY_BYTES`.

One JSON object a line: `{path, kind, size_bytes, thorough, timeout_s}` on stdin, `{reason, facts, sure}` on stdout,
after a first line `{}` that says that PyAV is loaded. `sure` is false where the programs or a thorough look must
decide. It leaves when stdin ends, in the middle of a file too.
"""

from __future__ import annotations

import json
import os
import queue
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import BinaryIO


def main(memory_bytes: int) -> None:
    # The answers have a descriptor of their own: libraries may print to stdout.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    import av.logging

    av.logging.set_level(None)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    questions: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, questions), daemon=True).start()
    answers.write(b"{}\n")
    while True:
        answers.write(_answer(questions.get()))


def _listen(source: BinaryIO, questions: queue.SimpleQueue[bytes]) -> None:
    """Pass questions on; end the process with its parent, whose end closes the pipe."""
    for line in source:
        questions.put(line)
    os._exit(0)


def _answer(line: bytes) -> bytes:
    from omnirl.data.media.pyav import look
    from omnirl.data.media.rules import Found, decide

    question = json.loads(line)
    # The kernel ends a worker that is stuck and has lost its parent; nothing handles this signal.
    signal.alarm(int(question["timeout_s"]) + 2)
    try:
        found = look(Path(question["path"]), question["kind"], thorough=question["thorough"])
    except OSError:
        found = Found()
    verdict = decide(question["kind"], found, question["size_bytes"])
    signal.alarm(0)
    sure = question["thorough"] or found.refers or (not verdict.reason and found.sure)
    return json.dumps({"reason": verdict.reason, "facts": dict(verdict.facts), "sure": sure}).encode() + b"\n"


if __name__ == "__main__":
    main(int(sys.argv[1]))
