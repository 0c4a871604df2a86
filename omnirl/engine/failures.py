"""Media that did not load, and rollout engines that failed: noted where it happens, read by the trainer that counts."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from omnirl.engine.phase import ATTEMPT_DIR

MEDIA, ENGINE = "media_failures.jsonl", "engine_failures.jsonl"
_SHOWN = 3


def note(why: str, file: str = MEDIA) -> None:
    """Append a sentence on one failure to a file of the attempt, in one write, as other processes append too.

    Outside a run nothing is written.
    """
    if folder := os.environ.get(ATTEMPT_DIR):
        line = json.dumps({"why": " ".join(why.split())}) + "\n"
        opened = os.open(Path(folder) / file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(opened, line.encode())
        finally:
            os.close(opened)


class Failures:
    """The reader of such a file."""

    def __init__(self, file: str = MEDIA) -> None:
        self._file = file
        self._read_bytes = 0

    def new(self) -> list[str]:
        """What was noted since the last call, as sentences in the order of their first appearance, each once."""
        path = Path(os.environ.get(ATTEMPT_DIR, os.curdir)) / self._file
        try:
            with path.open("rb") as file:
                file.seek(self._read_bytes)
                whole, _, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        if whole:
            self._read_bytes += len(whole) + 1
        return list(dict.fromkeys(json.loads(line)["why"] for line in whole.splitlines()))


def named(failures: Sequence[str]) -> str:
    """The first failures in one line, to end a message with; empty for none."""
    if not failures:
        return ""
    more = len(failures) - _SHOWN
    return "; ".join(["", *failures[:_SHOWN], *([f"and {more} more rows"] if more > 0 else [])])
