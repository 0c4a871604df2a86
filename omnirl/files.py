"""Small files: written whole or not at all, read without trust."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omnirl.errors import EnvironmentLacks

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


def write_text(path: Path, text: str) -> None:
    """Write `path` by atomic rename; raises EnvironmentLacks when the disk refuses."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with disk_faults(path):
        try:
            with temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON document by atomic rename; raises EnvironmentLacks when the disk refuses."""
    write_text(path, json.dumps(document, indent=2, ensure_ascii=False, default=str) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if it is missing, damaged, or no object."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def link(path: Path, target: str) -> None:
    """Point the symbolic link `path` at `target` in one step."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with disk_faults(path):
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        temporary.replace(path)


@contextmanager
def disk_faults(path: Path) -> Iterator[None]:
    """Turn an OSError of writing `path` into an EnvironmentLacks that names the path and what to do."""
    try:
        yield
    except OSError as error:
        raise _disk_fault(error, path) from error


def _disk_fault(error: OSError, path: Path) -> EnvironmentLacks:
    if error.errno in _FULL:
        return EnvironmentLacks(
            f"no space left to write `{path}`",
            hint=f"free some space on the disk of `{path.parent}` (`df -h {path.parent}`), or choose another folder",
        )
    if error.errno == errno.EFBIG:
        return EnvironmentLacks(
            f"`{path}` is larger than this process may write", hint="raise the limit: `ulimit -f unlimited`"
        )
    if error.errno in _FORBIDDEN:
        return EnvironmentLacks(
            f"not allowed to write `{path}`", hint=f"make `{path.parent}` writable, or choose another folder"
        )
    said = (error.strerror or str(error)).lower()
    return EnvironmentLacks(f"`{path}` cannot be written: {said}", hint="choose another folder")
