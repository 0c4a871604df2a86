"""Media items of rows, looked at without opening them: is the file there, is it still the one that was converted?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omnirl.data.checks.faults import Fault, content
from omnirl.data.checks.preflight import media_fault
from omnirl.data.headers import image_format
from omnirl.data.sample import PLACEHOLDERS

MEDIA_LIST = "media.jsonl"
"""What a conversion leaves beside its report: one JSON object for each media file that it looked at."""

_CODES = {
    "without an absolute path": "media-relative",
    "missing": "media-missing",
    "not a file": "media-not-a-file",
    "empty": "media-empty",
}
_CONVERT = "convert the data again with `omnirl data prepare`"
_HINTS = {
    "media-relative": "media paths are absolute, since a run's workers start in other folders; " + _CONVERT,
    "media-missing": "media files must exist on every node at the same path",
}
_LONGEST_LINE = 1 << 16


class Items:
    """Judges media items; what is known of a path is remembered."""

    def __init__(self) -> None:
        self._known: dict[str, Fault | None] = {}
        self._recorded: dict[str, tuple[int, int]] = {}
        self._read: set[Path] = set()

    def recorded_beside(self, parquet: Path) -> None:
        """Read sizes and times that the conversion of this file recorded, beside it or one folder up."""
        for folder in (parquet.absolute().parent, parquet.absolute().parent.parent):
            file = folder / MEDIA_LIST
            if file.is_file() and (folder == parquet.absolute().parent or (folder / "report.json").is_file()):
                if file not in self._read:
                    self._read.add(file)
                    self._recorded.update(_records(file))
                return

    def faults(self, row: Mapping[str, Any]) -> Iterator[Fault]:
        """Faults of the row's media items."""
        for column in PLACEHOLDERS:
            for item in row.get(column) or ():
                held = content(item)
                if isinstance(held, bytes):
                    fault = _inline(held, column)
                elif held:
                    if held not in self._known:
                        self._known[held] = self._path(held)
                    fault = self._known[held]
                else:
                    fault = Fault("media-hollow", f"an item of `{column}` has neither a path nor bytes", _CONVERT)
                if fault:
                    yield fault

    def _path(self, name: str) -> Fault | None:
        why = media_fault(name)
        if why:
            code = _CODES[why]
            said = f"is {why}" if why != "without an absolute path" else "is no absolute path"
            return Fault(code, f"`{name[:300]}` {said}", _HINTS.get(code, _CONVERT))
        known = self._recorded.get(name)
        if known is None:
            return None
        status = Path(name).stat()
        if status.st_size != known[0]:
            said = f"`{name}` had {known[0]} bytes when it was converted and has {status.st_size} now"
            return Fault("media-changed", said, _CONVERT)
        if status.st_mtime_ns != known[1]:
            return Fault("media-touched", f"`{name}` was written again since it was converted", _CONVERT)
        return None


def _inline(data: bytes, column: str) -> Fault | None:
    if not data:
        return Fault("image-bytes-empty", f"an item of `{column}` has 0 bytes", _CONVERT)
    if column == "images" and not image_format(data[:16]):
        return Fault(
            "image-bytes-unknown", f"the bytes of an image start with {data[:8]!r}, which no format does", _CONVERT
        )
    return None


def _records(file: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """Path with bytes and time (ns), of each line that says them."""
    with file.open("rb") as lines:
        while line := lines.readline(_LONGEST_LINE):
            try:
                said = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if not isinstance(said, dict):
                continue
            path, size, time = (said.get(key) for key in ("path", "size_bytes", "mtime_ns"))
            if isinstance(path, str) and isinstance(size, int) and isinstance(time, int):
                yield path, (size, time)
