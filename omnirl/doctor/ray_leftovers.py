"""Where Ray keeps its files: room, the length of the path, and what runs left there that were killed."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omnirl.doctor.check import Check, Target
from omnirl.run.launch import RAY_FOLDER_PREFIX
from omnirl.run.processes import TAG

LONGEST_PATH = 107 - len("/omnirl-ray-12345678/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store")
"""Of the temporary folder: the kernel takes 107 characters for a socket's name, and Ray adds these."""
_FULL_SHARE = 0.95
"""Ray stops making objects on a disk that is fuller."""
_LEAST_BYTES = 1 << 30
_YOUNG_S = 600.0
"""A folder this young may be one of a run that is about to start Ray."""
_ENGINE = "omnirl.engine.main"


@dataclass(frozen=True, slots=True)
class Seen:
    """A process of this user."""

    pid: int
    name: str
    tag: str
    """Of the attempt that it belongs to; empty for any other process."""
    trains: bool
    """Whether it is a run's training program itself."""
    folders: str
    """The words of its command line and environment that name a folder of Ray."""


def check(target: Target) -> Iterator[Check]:
    """The temporary folder, and what was left in it and in memory."""
    folder = temporary(target.environ)
    yield room(folder)
    running = seen()
    yield from left_folders(folder, running)
    yield from left_processes(running)


def temporary(environ: Mapping[str, str]) -> Path:
    """The folder for temporary files."""
    named = next((environ[name] for name in ("TMPDIR", "TEMP", "TMP") if environ.get(name)), "/tmp")
    return Path(named).absolute()


def room(folder: Path) -> Check:
    """Whether Ray's files fit into the temporary folder, and their names into a socket's."""
    name = "temporary folder"
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        why = "cannot be written" if folder.is_dir() else "is no folder"
        return Check(name, "fail", f"{folder} {why}", "a folder for Ray's files", "export TMPDIR=/tmp")
    if len(os.fsencode(folder)) > LONGEST_PATH:
        found = f"{folder} has {len(os.fsencode(folder))} characters"
        return Check(name, "fail", found, f"at most {LONGEST_PATH}, for Ray's sockets", "export TMPDIR=/tmp")
    usage = shutil.disk_usage(folder)
    taken = 1 - usage.free / usage.total if usage.total else 1.0
    found = f"{folder}: {usage.free / 2**30:.1f} GiB free, {taken:.0%} full"
    hint = f"du -xsh {shlex.quote(str(folder))}/* | sort -h | tail"
    if usage.free < _LEAST_BYTES:
        return Check(name, "fail", found, "1 GiB free", hint)
    if taken > _FULL_SHARE:
        return Check(name, "warn", f"{found}; Ray then makes no objects on disk", f"below {_FULL_SHARE:.0%}", hint)
    return Check(name, "ok", found)


def seen() -> list[Seen]:
    """The processes whose environment can be read, which are this user's (for root: all)."""
    import psutil

    found = []
    for process in psutil.process_iter():
        try:
            environ, words, name = process.environ(), process.cmdline(), process.name()
        except (psutil.Error, OSError):  # another user's process, or one that has just gone
            continue
        folders = "\0".join(text for text in (*words, *environ.values()) if RAY_FOLDER_PREFIX in text)
        found.append(Seen(process.pid, name, environ.get(TAG, ""), _ENGINE in words, folders))
    return found


def left_folders(folder: Path, running: Sequence[Seen], *, young_s: float = _YOUNG_S) -> Iterator[Check]:
    """Folders of Ray that no process uses any more; only this user's."""
    left = []
    for entry in sorted(folder.glob(f"{RAY_FOLDER_PREFIX}*")):
        try:
            status = entry.lstat()
        except OSError:
            continue
        old = time.time() - max(status.st_mtime, status.st_ctime) >= young_s
        mine = status.st_uid == os.getuid() and entry.is_dir() and not entry.is_symlink()
        if mine and old and not any(str(entry) in one.folders for one in running):
            left.append(entry)
    if left:
        shown = ", ".join(entry.name for entry in left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
        found = f"{len(left)} left by killed runs in {folder}: {shown}"
        command = "rm -r " + " ".join(shlex.quote(str(entry)) for entry in left)
        yield Check("folders of killed runs", "warn", found, "none", command)


def left_processes(running: Sequence[Seen]) -> Iterator[Check]:
    """Processes of attempts whose training program is gone."""
    alive = {one.tag for one in running if one.trains}
    left = [one for one in running if one.tag and one.tag not in alive and one.pid != os.getpid()]
    if left:
        shown = ", ".join(f"{one.pid} ({one.name})" for one in left[:3])
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        command = f"kill {' '.join(str(one.pid) for one in left)}"
        yield Check("processes of killed runs", "warn", f"{len(left)}: {shown}{more}", "none", command)
