"""Start the program that trains, wait for it, and leave no process of it behind however it ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omnirl.errors import ChildFailed
from omnirl.run import processes

RAY_FOLDER_NOTE = "ray_dir.txt"
"""In an attempt's folder: the path of Ray's temporary folder, written by the engine, removed after the attempt."""
RAY_FOLDER_PREFIX = "omnirl-ray-"
"""How that folder's name starts; nothing else is removed, whatever the note says."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended: its exit code (negative: the signal that killed it), its time, and what it left behind."""

    code: int
    seconds: float
    stopped: processes.Stopped


def new_tag() -> str:
    """A name for an attempt that no other process on the machine carries."""
    return str(uuid.uuid4())


def engine_command(run: Path) -> list[str]:
    """The command line of the training program for the run folder `run`."""
    return [sys.executable, "-m", "omnirl.engine.main", str(run.resolve())]


def launch(
    command: Sequence[str],
    *,
    attempt: Path,
    tag: str,
    env: Mapping[str, str],
    poll: Callable[[], None] = lambda: None,
    poll_s: float = 0.5,
    grace_s: float = 15.0,
) -> Ended:
    """Run `command` to its end, with stdout and stderr in `attempt`/log.txt.

    Whatever ends the wait (the child's exit, Ctrl-C, SIGTERM, a closed terminal, a fault in `poll`), every process that
    carries `tag` is stopped before this returns or raises. A second signal cuts the graces short.

    Args:
        attempt: the attempt's folder, which exists.
        env: added to this process's environment for the child.
        poll: called about every `poll_s` seconds while the child runs.
        grace_s: how long the child may take to shut down before it is killed.

    Raises:
        ChildFailed: the command could not be started.
        KeyboardInterrupt, SystemExit: after clearing up, on SIGINT or on SIGTERM and SIGHUP.
    """
    started = time.time()
    child_env = {**os.environ, **env, processes.TAG: tag, "PYTHONUNBUFFERED": "1"}
    with processes.noting_signals() as signals, processes.adopting_orphans():
        others = processes.children()
        child = _start(command, child_env, attempt / "log.txt")
        code = None
        try:
            while code is None and not signals:
                code = _wait(child, poll_s)
                poll()
        finally:
            known = len(signals)
            stopped = processes.stop(
                tag, first=child.pid, grace_s=grace_s, besides=others, hurry=lambda: len(signals) > known
            )
            child.wait()
            _clear_ray_folder(attempt)
        if signals:
            raise KeyboardInterrupt if signals[0] == signal.SIGINT else SystemExit(128 + signals[0])
    return Ended(child.returncode, time.time() - started, stopped)


def stop_leftovers(tag: str, attempt: Path) -> processes.Stopped:
    """Clear what an earlier attempt left running when omnirl itself was killed under it."""
    stopped = processes.stop(tag, grace_s=3.0)
    _clear_ray_folder(attempt)
    return stopped


def _start(command: Sequence[str], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        try:
            return subprocess.Popen(  # a session of its own: the terminal's Ctrl-C reaches omnirl alone
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )
        except OSError as error:
            raise ChildFailed(f"`{command[0]}` could not be started: {error.strerror}") from error


def _wait(child: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    try:
        return child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None


def _clear_ray_folder(attempt: Path) -> None:
    note = attempt / RAY_FOLDER_NOTE
    if not note.is_file():
        return
    folder = Path(note.read_text(encoding="utf-8").strip())
    if folder.is_absolute() and folder.name.startswith(RAY_FOLDER_PREFIX) and not folder.is_symlink():
        shutil.rmtree(folder, ignore_errors=True)
