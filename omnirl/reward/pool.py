"""Worker processes that answer lines of JSON, each within a deadline; one that hangs or dies is replaced.

For any caller: threads, an event loop's executor, Ray workers, forks. No signals, no threads of its own, and a fork
starts workers of its own instead of using its parent's pipes.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import LifoQueue
from typing import Any

from omnirl.errors import EnvironmentLacks, OmniError

START_S = 60.0
_TRIES = 2
_CHUNK = 1 << 16


class TimedOut(Exception):
    """No reply within the deadline."""


class Died(Exception):
    """The worker ended before it replied; `code` is its exit code, negative for a signal."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the worker ended with {code}")
        self.code = code


class Worker:
    """One process that first says that it is ready, then gives a line for each line."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in = self._process.stdin.fileno()
        self._out = self._process.stdout.fileno()
        os.set_blocking(self._in, False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, request: Mapping[str, Any] | None, timeout_s: float) -> dict[str, Any]:
        """Send a request (None: send nothing) and wait for a line. Raises TimedOut or Died; use it no more then."""
        end = time.monotonic() + timeout_s
        unsent = (
            b"" if request is None else (json.dumps(request, ensure_ascii=True, default=str) + "\n").encode("ascii")
        )
        received = b""
        while not received.endswith(b"\n"):
            waiting = select.poll()  # not select.select, which takes no descriptor above 1023
            waiting.register(self._out, select.POLLIN)
            if unsent:
                waiting.register(self._in, select.POLLOUT)
            left_s = end - time.monotonic()
            ready = dict(waiting.poll(left_s * 1000)) if left_s > 0 else {}
            if not ready:
                raise TimedOut
            if self._out in ready:
                chunk = os.read(self._out, _CHUNK)
                if not chunk:
                    raise Died(self.end())
                received += chunk
            if self._in in ready:
                try:
                    unsent = unsent[os.write(self._in, unsent) :]
                except BrokenPipeError:
                    unsent = b""  # what it said last, or its end, is still to be read
        answer: dict[str, Any] = json.loads(received)
        return answer

    def end(self) -> int:
        """Kill the process if it still runs; returns its exit code."""
        self._process.kill()
        code = self._process.wait()
        self._close()
        return code

    def forget(self) -> None:
        """Let go of a process that belongs to another one: the parent of this fork."""
        self._process.returncode = 0
        self._close()

    def _close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


class Pool:
    """At most `size` workers, started when they are needed.

    Args:
        handler: a file beside `worker.py`, and the words for its `prepare`.
        size: the most that run at once; further callers wait, which counts against no deadline.
        what: names the workers in errors.
        hint: what mends a worker that cannot start.
        error: what is raised for one that cannot start.
    """

    def __init__(
        self,
        handler: Sequence[str],
        *,
        size: int,
        what: str,
        hint: str | None = None,
        error: type[OmniError] = EnvironmentLacks,
    ) -> None:
        self._command = (sys.executable, "-P", str(Path(__file__).with_name("worker.py")), *handler)
        self._size = size
        self._what = what
        self._hint = hint
        self._error = error
        self.replaced = 0
        """Workers that hung, died or grew too large, and have a successor."""
        self._fresh()
        _pools.add(self)

    def _fresh(self) -> None:
        self._lock = threading.Lock()
        self._workers: set[Worker] = set()
        # The last one given back is the first one taken, so a worker is started only while all others are busy.
        self._idle: LifoQueue[Worker | None] = LifoQueue()
        for _ in range(self._size):
            self._idle.put(None)

    def pids(self) -> list[int]:
        """Processes of the workers that run."""
        with self._lock:
            return [worker.pid for worker in self._workers]

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """A worker's reply; a worker that died is replaced, and another asked once.

        A reply with `leaving` or `fault` is that worker's last.

        Raises:
            TimedOut: no reply `timeout_s` after the request was handed to a worker.
            Died: two workers in a row ended over it.
            OmniError: no worker can be started; of the class that the pool was made with.
        """
        for attempt in range(1, _TRIES + 1):
            place = self._idle.get()
            worker: Worker | None = None
            try:
                worker = place or self._start()
                reply = worker.ask(request, timeout_s)
            except Died as died:
                if died.code == -signal.SIGXCPU:
                    raise TimedOut from died
                if attempt == _TRIES:
                    raise
                continue
            else:
                if not reply.get("leaving") and "fault" not in reply:
                    place, worker = worker, None
                return reply
            finally:
                # Every other way out, an interrupt too, leaves a worker that still owes an answer or is gone.
                if worker is not None:
                    self._end(worker)
                    place = None
                self._idle.put(place)
        raise AssertionError("unreachable")

    def close(self) -> None:
        """End all workers; the pool starts new ones if it is asked again."""
        with self._lock:
            workers, self._workers = self._workers, set()
        for worker in workers:
            worker.end()

    def forget(self) -> None:
        """In a fork: leave the workers to the parent."""
        for worker in self._workers:
            worker.forget()
        self._fresh()

    def _start(self) -> Worker:
        said: object = None
        for _ in range(_TRIES):
            try:
                worker = Worker((*self._command, str(os.getpid())))
            except OSError as error:
                raise EnvironmentLacks(f"{self._what} cannot be started: {error}") from error
            try:
                ready = worker.ask(None, START_S)
            except Died as error:
                worker.end()
                said = error
                continue
            except TimedOut:
                worker.end()
                said = f"not ready after {START_S:.0f} s"
                break
            if "fault" not in ready:
                with self._lock:
                    self._workers.add(worker)
                return worker
            worker.end()
            said = ready["fault"]
            break
        raise self._error(f"{self._what} cannot be used: {said}", hint=self._hint)

    def _end(self, worker: Worker) -> None:
        worker.end()
        with self._lock:
            self._workers.discard(worker)
            self.replaced += 1


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in list(_pools):
        pool.forget()


os.register_at_fork(after_in_child=_after_fork)
