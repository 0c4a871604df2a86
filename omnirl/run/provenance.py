"""What makes a run repeatable: the code it ran, the packages, the bytes of its data."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_GIT_S = 5.0


def git_state(folder: Path) -> dict[str, Any] | None:
    """The commit checked out in `folder` and whether files differ from it; None outside a repository."""
    if shutil.which("git") is None:
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": bool(changes) if changes is not None else None}


def hashes(files: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of each file, by absolute path."""
    found: dict[str, str] = {}
    for name in files:
        path = Path(name).expanduser().absolute()
        with path.open("rb") as file:
            found[str(path)] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _git(folder: Path, *words: str) -> str | None:
    command = ["git", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
