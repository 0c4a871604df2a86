"""Verdicts kept over runs: JSON Lines, one verdict a line, appended as they come."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from pathlib import Path
from typing import Any, BinaryIO

from omnirl.data.media.rules import Verdict
from omnirl.errors import InvalidInput
from omnirl.files import disk_faults

VERSION = 1
"""Of the judgement; verdicts of another one are not believed."""
_LONGEST_LINE = 1 << 16
_FEWEST_STALE = 64

_Key = tuple[str, str]
_Entry = tuple[int, int, str, dict[str, Any]]


class Cache:
    """Verdicts by kind, path, size and time of change.

    Several processes may use one file at a time. A line that a killed process left torn is passed over.

    Raises:
        EnvironmentLacks: the file cannot be written.
        InvalidInput: it is not a regular file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._entries: dict[_Key, _Entry] = {}
        if path.exists() and not path.is_file():
            raise InvalidInput(f"the cache of verdicts `{path}` is not a file")
        with disk_faults(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._open()
            stale = self._load()
            if stale >= _FEWEST_STALE and stale > len(self._entries):
                self._compact()

    def get(self, kind: str, path: str, size_bytes: int, mtime_ns: int) -> Verdict | None:
        """The verdict on this state of the file, if there is one."""
        entry = self._entries.get((kind, path))
        if entry is None or entry[:2] != (size_bytes, mtime_ns):
            return None
        return Verdict(entry[2], entry[3])

    def put(self, kind: str, path: str, size_bytes: int, mtime_ns: int, verdict: Verdict) -> None:
        """Keep a verdict; raises EnvironmentLacks when the disk refuses."""
        entry = (size_bytes, mtime_ns, verdict.reason, dict(verdict.facts))
        with self._lock, disk_faults(self._path):
            self._entries[kind, path] = entry
            self._file.write(_line((kind, path), entry))

    def close(self) -> None:
        self._file.close()

    def _open(self) -> BinaryIO:
        """Open for appending, whole lines at a time, with a lock that says that the file is in use."""
        while True:
            file = self._path.open("ab+", buffering=0)
            fcntl.flock(file, fcntl.LOCK_SH)
            if os.path.samestat(os.fstat(file.fileno()), self._path.stat()):
                return file
            # It was replaced between opening and locking.
            file.close()

    def _load(self) -> int:
        """Read all lines; how many are stale. A torn last line is ended, so that the next one stands for itself."""
        lines, last = 0, b"\n"
        with self._path.open("rb") as file:
            while line := file.readline(_LONGEST_LINE):
                lines, last = lines + 1, line
                parsed = _parse(line)
                if parsed is not None:
                    self._entries[parsed[0]] = parsed[1]
        if not last.endswith(b"\n"):
            self._file.write(b"\n")
        return lines - len(self._entries)

    def _compact(self) -> None:
        """Write the file anew without stale lines, unless another process has it open."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}.partial")
        try:
            with fresh.open("wb") as file:
                file.writelines(_line(key, entry) for key, entry in self._entries.items())
            fresh.replace(self._path)
        finally:
            fresh.unlink(missing_ok=True)
        self._file.close()
        self._file = self._open()


def _line(key: _Key, entry: _Entry) -> bytes:
    size_bytes, mtime_ns, reason, facts = entry
    fields = {
        "version": VERSION,
        "kind": key[0],
        "path": key[1],
        "size_bytes": size_bytes,
        "mtime_ns": mtime_ns,
        "reason": reason,
        "facts": facts,
    }
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def _parse(line: bytes) -> tuple[_Key, _Entry] | None:
    """A verdict from its line; None for one that is torn, damaged or of another version."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or fields.get("version") != VERSION:
        return None
    kind, path, size, time = (fields.get(name) for name in ("kind", "path", "size_bytes", "mtime_ns"))
    reason, facts = fields.get("reason"), fields.get("facts")
    texts = isinstance(kind, str) and isinstance(path, str) and isinstance(reason, str)
    if not texts or not isinstance(size, int) or not isinstance(time, int) or not isinstance(facts, dict):
        return None
    if not all(isinstance(value, int | float | str) for value in facts.values()):
        return None
    return (str(kind), str(path)), (size, time, str(reason), facts)
