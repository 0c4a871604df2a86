"""What a finished conversion was made of, kept beside its files, so that an equal one need not be made again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from glob import escape
from operator import itemgetter
from pathlib import Path
from typing import Any

from omnirl.data.report import REPORT
from omnirl.data.sample import Medium
from omnirl.data.sources import Options, Source
from omnirl.data.store import Written
from omnirl.files import disk_faults, read_json, write_json, write_text

SCHEMA = "omnirl/manifest/1"
MANIFEST = "manifest.json"
MEDIA = "media.jsonl"
VERSION = 1
"""Of what converters write; raise it when an unchanged input gives other rows, so that old conversions are redone."""

_LISTED = 100
_ENCODER = json.JSONEncoder()


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What decides the outcome of a conversion, besides the media files."""

    source: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[tuple[str, int, int], ...] = ()
    """Path, bytes and modification time (ns) of each file that the source may read."""

    def as_dict(self) -> dict[str, Any]:
        digest = hashlib.sha256(json.dumps(self.inputs).encode()).hexdigest()
        listed = [dict(zip(("path", "size_bytes", "mtime_ns"), one, strict=True)) for one in self.inputs[:_LISTED]]
        return {
            "version": VERSION,
            "source": self.source,
            "settings": dict(self.settings),
            "inputs": {"files": len(self.inputs), "sha256": digest, "first": listed},
        }


def fingerprint(source: Source, input: Path | None, options: Options, **settings: Any) -> Fingerprint:
    """The fingerprint of a conversion of the files that lie in `input` now."""
    found: list[tuple[str, int, int]] = []
    for pattern in source.reads if input is not None else ():
        assert input is not None
        for path in input.glob(pattern):
            if path.is_file():
                status = path.stat()
                found.append((str(path.absolute()), status.st_size, status.st_mtime_ns))
    chosen = json.loads(json.dumps(asdict(options) | settings))
    return Fingerprint(source.name, chosen, tuple(sorted(set(found))))


def write(
    folder: Path,
    made_from: Fingerprint,
    outputs: Iterable[Written],
    media: Iterable[Medium],
    found: Mapping[str, tuple[int, int]],
) -> None:
    """Write `media.jsonl` (kind, path, size and time of each distinct media file) and then `manifest.json`.

    `found` has bytes and modification time (ns) of files by path, so that these are not looked at once more.
    """
    quoted = _ENCODER.encode  # its escapes keep half a surrogate in a file's name readable
    lines = []
    for kind, path in sorted(media, key=itemgetter(1, 0)):
        assert isinstance(path, str)
        size, time = found.get(path) or _status(path)
        lines.append(f'{{"kind": "{kind}", "path": {quoted(path)}, "size_bytes": {size}, "mtime_ns": {time}}}\n')
    write_text(folder / MEDIA, "".join(lines))
    write_json(
        folder / MANIFEST,
        {
            "schema": SCHEMA,
            **made_from.as_dict(),
            "outputs": [_output(one, folder) for one in outputs],
            "media": {"files": len(lines), "sha256": _sha256(folder / MEDIA)},
        },
    )


def _output(one: Written, folder: Path) -> dict[str, Any]:
    name = str(one.path.relative_to(folder))
    return {"path": name, "rows": one.rows, "size_bytes": one.bytes, "sha256": one.sha256}


def is_current(folder: Path, wanted: Fingerprint) -> bool:
    """Whether `folder` holds what this conversion would make: same inputs and settings, nothing lost or changed."""
    known = read_json(folder / MANIFEST)
    if known is None or known.get("schema") != SCHEMA or not (folder / REPORT).is_file():
        return False
    if {key: known.get(key) for key in wanted.as_dict()} != json.loads(json.dumps(wanted.as_dict())):
        return False
    outputs, media = known.get("outputs"), known.get("media")
    if not isinstance(outputs, list) or not outputs or not isinstance(media, dict):
        return False
    files = {folder / str(one.get("path")): str(one.get("sha256")) for one in outputs if isinstance(one, dict)}
    files[folder / MEDIA] = str(media.get("sha256"))
    return all(path.is_file() and _sha256(path) == digest for path, digest in files.items()) and _same_media(folder)


def forget(folder: Path) -> None:
    """Take the manifest away, before files that it describes are replaced."""
    with disk_faults(folder):
        for name in (MANIFEST, REPORT):
            (folder / name).unlink(missing_ok=True)


def _same_media(folder: Path) -> bool:
    with (folder / MEDIA).open(encoding="utf-8") as lines:
        for line in lines:
            one = json.loads(line)
            path = Path(one["path"])
            if _status(one["path"]) != (one["size_bytes"], one["mtime_ns"]):
                return False
            # a name without its suffix may be found now under the whole one
            if one["size_bytes"] < 0 and path.parent.is_dir() and any(path.parent.glob(f"{escape(path.name)}.*")):
                return False
    return True


def _status(path: str) -> tuple[int, int]:
    """Bytes and modification time (ns); -1 and 0 when there is no such file."""
    try:
        status = os.stat(path)  # noqa: PTH116 -- making a Path takes longer than the look
    except (OSError, ValueError):
        return -1, 0
    return status.st_size, status.st_mtime_ns


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
