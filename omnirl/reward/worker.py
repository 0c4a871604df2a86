"""The main program of a worker process: a line of JSON in, a line of JSON out.

Run as a script, so that it needs nothing of omnirl on the path: `python -P worker.py HANDLER.py WORDS... PARENT_PID`.
`HANDLER.py` is a file beside it whose `prepare(*words)` returns what turns a request into a reply. The first line out
is `{"ready": true}`, or `{"fault": "..."}` when that failed. A fault later on is told the same way. The worker ends
with its input, with its parent, after a fault, and after a reply that says `leaving`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

_LOOK_FOR_PARENT_S = 2
_MOST_FAULT = 1000

Respond = Callable[[dict[str, Any]], dict[str, Any]]


def main(handler: str, *words: str) -> None:
    """Serve requests until there are no more."""
    parent = int(words[-1])
    out = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints is no reply

    def tell(kind: type[BaseException], error: BaseException, _: Any) -> NoReturn:
        _write(out, {"fault": f"{kind.__name__}: {error}"[:_MOST_FAULT]})
        os._exit(1)

    sys.excepthook = tell
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to act on
    respond = _load(handler).prepare(*words[:-1])
    _write(out, {"ready": True})
    for request in _requests(parent):
        reply = respond(request)
        _write(out, reply)
        if reply.get("leaving"):
            return


def _load(handler: str) -> Any:
    spec = importlib.util.spec_from_file_location("_handler", Path(__file__).parent / handler)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _write(out: int, document: dict[str, Any]) -> None:
    data = (json.dumps(document, ensure_ascii=True) + "\n").encode("ascii")
    while data:
        data = data[os.write(out, data) :]


def _requests(parent: int) -> Iterator[dict[str, Any]]:
    """Lines of stdin, until it ends or the parent is gone: a fork of the parent may hold the pipe open."""
    waiting = select.poll()
    waiting.register(0, select.POLLIN)
    pending = bytearray()
    while True:
        end = pending.find(b"\n")
        if end >= 0:
            line = bytes(pending[:end])
            del pending[: end + 1]
            yield json.loads(line)
        elif waiting.poll(_LOOK_FOR_PARENT_S * 1000):
            chunk = os.read(0, 1 << 20)
            if not chunk:
                return
            pending += chunk
        elif os.getppid() != parent:
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
