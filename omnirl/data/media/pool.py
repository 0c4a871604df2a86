"""Worker processes that look at files with PyAV; one that hangs, crashes or outgrows a bound is killed and replaced."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path
from typing import NamedTuple

from omnirl.data.media.rules import Verdict
from omnirl.errors import EnvironmentLacks

MEMORY_BYTES = 2 << 30
"""Address space of one worker, its libraries included; a decoder that wants more fails or crashes."""
_START_S = 60.0
_LONGEST_ANSWER = 1 << 16


class Answer(NamedTuple):
    """What a worker said. Without a verdict the worker was lost: its time was up (`late`), or it crashed."""

    verdict: Verdict | None
    sure: bool = False
    late: bool = False


class Workers:
    """Looks at files in as many processes as threads ask at once; processes are started when they are needed.

    Args:
        timeout_s: deadline of one file, from the moment when it is handed to a worker.
        thorough: let PyAV itself decide about files that it would not accept at a quick look.
    """

    def __init__(self, timeout_s: float, *, thorough: bool, memory_bytes: int = MEMORY_BYTES) -> None:
        self._timeout_s = timeout_s
        self._thorough = thorough
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._all: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def pids(self) -> list[int]:
        """Process ids of the workers that are alive."""
        with self._lock:
            return [process.pid for process in self._all]

    def ask(self, kind: str, path: Path, size_bytes: int) -> Answer:
        """Let a worker look at a file. Blocks; safe from many threads.

        Raises:
            CancelledError: the workers were closed.
            EnvironmentLacks: workers cannot be started here.
        """
        question = {
            "path": str(path),
            "kind": kind,
            "size_bytes": size_bytes,
            "thorough": self._thorough,
            "timeout_s": self._timeout_s,
        }
        words = json.dumps(question).encode() + b"\n"
        with self._lock:
            process = self._idle.pop() if self._idle else None
        line, late = self._exchange(process, words) if process is not None else (b"", False)
        # One that died while it was idle is no fault of this file, and can look alive for a moment: only a process
        # that was started for this file is lost to it.
        if not line and not late:
            process = self._start()
            line, late = self._exchange(process, words)
        if process is None or not line:
            return Answer(None, late=late)
        with self._lock:
            self._idle.append(process)
        answer = json.loads(line)
        return Answer(Verdict(answer["reason"], answer["facts"]), sure=answer["sure"])

    def _exchange(self, process: subprocess.Popen[bytes], words: bytes) -> tuple[bytes, bool]:
        """A worker's whole answer, or nothing and whether its time was up; one that gave none is buried."""
        line, late = b"", False
        try:
            _send(process, words)
            line, late = _receive(process, self._timeout_s)
        finally:
            if not line.endswith(b"\n"):
                self._bury(process)
        return (line, False) if line.endswith(b"\n") else (b"", late)

    def close(self) -> None:
        """Kill all workers."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for process in self._all:
                process.kill()
        # Those at work are buried by the threads that wait for them.
        for process in idle:
            self._bury(process)

    def _start(self) -> subprocess.Popen[bytes]:
        root = str(Path(__file__).resolve().parents[3])
        inherited = os.environ.get("PYTHONPATH")
        environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{inherited}" if inherited else root}
        # -P: the folder where the command is called must not stand before the installed packages.
        words = [sys.executable, "-P", "-m", "omnirl.data.media.worker", str(self._memory_bytes)]
        with self._lock:
            if self._closed:
                raise CancelledError
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the parent, which ends its workers
            )
            self._all.add(process)
        line, _ = _receive(process, _START_S)
        if line != b"{}\n":
            self._bury(process)
            raise EnvironmentLacks(
                "a process that loads PyAV does not start", hint=f"{sys.executable} -c 'import av'; pip install -U av"
            )
        return process

    def _bury(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        with self._lock:
            self._all.discard(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _send(process: subprocess.Popen[bytes], line: bytes) -> None:
    """Write one question, which always fits into the pipe; a worker that is gone shows when its answer is read."""
    stdin = process.stdin
    if stdin is not None:
        try:
            os.write(stdin.fileno(), line)
        except BrokenPipeError:
            return


def _receive(process: subprocess.Popen[bytes], timeout_s: float) -> tuple[bytes, bool]:
    """One line from a worker, and whether the time was up before it was whole."""
    stdout = process.stdout
    if stdout is None:
        return b"", False
    deadline = time.monotonic() + timeout_s
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return line, True
            piece = os.read(stdout.fileno(), _LONGEST_ANSWER)
            line += piece
            if not piece or len(line) > _LONGEST_ANSWER:
                return b"", False
    return line, False
