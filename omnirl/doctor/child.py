"""Programs that answer a question, with a deadline and a bound on what they may say."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

_TICK_S = 0.2
_CRASHED = "was ended by signal"
_given_up = threading.Event()

MOST_BYTES = 1 << 20
"""Of output; a program that says more is stopped."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How a program ended. `fault` is empty when it ended by itself with exit code 0."""

    out: str
    err: str
    fault: str

    @property
    def said(self) -> str:
        """The last line that it wrote, on stderr if there is one; else how it ended."""
        lines = [line.strip() for line in (self.err.strip() or self.out.strip()).splitlines() if line.strip()]
        return lines[-1][:300] if lines else self.fault or "it said nothing"


def give_up(*, now: bool = True) -> None:
    """End every program that is being waited for, and each that is started until this is taken back."""
    if now:
        _given_up.set()
    else:
        _given_up.clear()


def ask(command: Sequence[str], *, timeout_s: float, environ: Mapping[str, str]) -> Answer:
    """Run a program to its end, with nothing on stdin; it and what it has started are killed at the deadline."""
    try:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environ),
            start_new_session=True,
        )
    except OSError as error:
        return Answer("", "", f"cannot be started: {(error.strerror or str(error)).lower()}")
    assert child.stdout is not None and child.stderr is not None
    fault = "was interrupted"
    try:
        texts, fault = _listen(child.stdout, child.stderr, timeout_s)
    finally:
        _end(child, 0.0 if fault else 1.0)
        child.stdout.close()
        child.stderr.close()
    if not fault and child.returncode:
        code = child.returncode
        fault = f"ended with exit code {code}" if code > 0 else f"{_CRASHED} {-code}"
    return Answer(texts[0].decode(errors="replace"), texts[1].decode(errors="replace"), fault)


def ask_module(
    module: str, *arguments: str, timeout_s: float, environ: Mapping[str, str]
) -> tuple[dict[str, Any] | None, str]:
    """Run one of omnirl's own modules in a process of its own.

    Returns: the JSON object that is the last line of its output, and why there is none.
    """
    answer = ask([sys.executable, "-m", module, *arguments], timeout_s=timeout_s, environ=environ)
    lines = answer.out.strip().splitlines()
    # Libraries of Ray's client were seen to crash when they are unloaded, after everything was said.
    ended = not answer.fault or answer.fault.startswith(_CRASHED)
    try:
        document = json.loads(lines[-1]) if lines and ended else None
    except ValueError:
        document = None
    if isinstance(document, dict):
        return document, ""
    # What was written on stderr before the deadline seldom says why the deadline was missed.
    return None, answer.fault if answer.fault.startswith("took") else answer.said


def _listen(out: IO[bytes], err: IO[bytes], timeout_s: float) -> tuple[tuple[bytes, bytes], str]:
    until = time.monotonic() + timeout_s
    texts = {out: bytearray(), err: bytearray()}
    with selectors.DefaultSelector() as open_ends:
        for end in texts:
            open_ends.register(end, selectors.EVENT_READ)
        while open_ends.get_map():
            ready = open_ends.select(max(0.0, min(_TICK_S, until - time.monotonic())))
            if _given_up.is_set():
                return (b"", b""), "was given up"
            if not ready and time.monotonic() >= until:
                return (bytes(texts[out]), bytes(texts[err])), f"took longer than {timeout_s:g} s"
            for key, _ in ready:
                end = out if key.fileobj is out else err
                piece = os.read(key.fd, 1 << 16)
                if not piece:
                    open_ends.unregister(end)
                texts[end] += piece
                if len(texts[end]) > MOST_BYTES:
                    return (bytes(texts[out]), bytes(texts[err])), f"wrote more than {MOST_BYTES >> 20} MiB"
    return (bytes(texts[out]), bytes(texts[err])), ""


def _end(child: subprocess.Popen[bytes], patience_s: float) -> None:
    """End the program and whatever it has started; one that has closed its output gets a moment to leave by itself."""
    until = time.monotonic() + patience_s
    # Not waited for before the group is killed: until then nobody else can get its number.
    while os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None and time.monotonic() < until:
        time.sleep(0.01)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
