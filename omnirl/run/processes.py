"""The processes of one attempt: find every one of them, and stop them without touching any other.

An attempt's processes carry its tag in their environment, which Ray's daemons and workers inherit however they detach.
A process that drops its environment is still found through its parent: omnirl adopts orphans while an attempt runs.
What omnirl cannot do is act after it was itself killed with SIGKILL. Then the engine's own process dies with it
(`die_with_parent`), Ray's daemons die with the engine (Ray asks the kernel for the same), and Ray's workers leave when
their raylet is gone; `stop` with the recorded tag clears what that chain has missed when the run is resumed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from psutil import Process

TAG = "OMNIRL_ATTEMPT"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS = 5
"""How often to look again for processes forked while their siblings were being stopped."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """What `stop` did: how many processes it met, how many needed SIGKILL, and who outlived even that."""

    met: int
    killed: int
    survivors: tuple[int, ...]


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies. A no-op where the kernel is not Linux.

    Args:
        parent_pid: the parent expected; if it has gone already, this process ends at once.
    """
    if not _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL):
        return
    if os.getppid() != parent_pid:
        os._exit(int(signal.SIGKILL) + 128)


@contextmanager
def noting_signals() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP in the list instead of acting on them: nothing then cuts clearing up short."""
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield seen
        return
    wanted = [s for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) is not signal.SIG_IGN]
    before = {signum: signal.signal(signum, lambda number, _frame: seen.append(number)) for signum in wanted}
    try:
        yield seen
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """While it lasts, a descendant whose parent dies becomes a child of this process. A no-op outside Linux."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def children() -> list[Process]:
    """This process's children."""
    import psutil

    return _children(psutil.Process(), recursive=False)


def find(tag: str, *, besides: Collection[Process] | None = None) -> list[Process]:
    """Every live process of the attempt `tag`, this one left out.

    Args:
        besides: also count this process's children and all below them, except these and all below these.
    """
    import psutil

    found: dict[int, Process] = {}
    for process in psutil.process_iter():
        if _carries(process, tag):
            _add_tree(found, process)
    if besides is not None:
        for process in children():
            if process not in besides:
                _add_tree(found, process)
    found.pop(os.getpid(), None)
    return [process for process in found.values() if _alive(process)]


def stop(
    tag: str,
    *,
    first: int | None = None,
    grace_s: float = 10.0,
    besides: Collection[Process] | None = None,
    hurry: Callable[[], bool] = lambda: False,
) -> Stopped:
    """Stop every process of the attempt: SIGTERM, `grace_s` seconds, SIGKILL; again until none is left.

    Args:
        first: the process that may shut the others down in order; it alone gets SIGTERM at first.
        grace_s: how long each of the two waits (for `first`, then for the rest) may last.
        besides: as for `find`.
        hurry: once it says so, the waits are cut short.
    """
    met: set[int] = set()
    killed: set[int] = set()
    for attempt in range(_ROUNDS):
        processes = find(tag, besides=besides)
        if not processes:
            break
        met.update(process.pid for process in processes)
        leader = [process for process in processes if process.pid == first]
        if attempt == 0 and leader:
            _signal(leader, signal.SIGTERM)
            _wait(leader, grace_s, hurry)
            processes = find(tag, besides=besides)
            met.update(process.pid for process in processes)
        _signal(processes, signal.SIGTERM)
        # Ray's daemons need a moment at most; only their leader had work to finish.
        stubborn = _wait(processes, min(grace_s, 3.0), hurry)
        killed.update(process.pid for process in stubborn)
        _signal(stubborn, signal.SIGKILL)
        _wait(stubborn, 5.0, lambda: False)
    _reap({pid for pid in met if pid != first})
    return Stopped(len(met), len(killed), tuple(sorted(process.pid for process in find(tag, besides=besides))))


def _prctl(option: int, value: int) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None).prctl(option, int(value), 0, 0, 0) == 0)


def _carries(process: Process, tag: str) -> bool:
    import psutil

    try:
        return bool(process.environ().get(TAG) == tag)
    except (psutil.Error, OSError):  # another user's process, or one that has just gone
        return False


def _add_tree(found: dict[int, Process], process: Process) -> None:
    if process.pid not in found:
        for member in (process, *_children(process, recursive=True)):
            found[member.pid] = member


def _children(process: Process, *, recursive: bool) -> list[Process]:
    import psutil

    try:
        return list(process.children(recursive=recursive))
    except psutil.Error:
        return []


def _alive(process: Process) -> bool:
    import psutil

    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _reap(pids: set[int]) -> None:
    """Bury the adopted dead. The first process is left to whoever started it and wants its exit code."""
    for pid in pids:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue


def _signal(processes: list[Process], signum: int) -> None:
    import psutil

    for process in processes:
        try:
            # psutil compares start times first, so a recycled process id is never hit.
            process.send_signal(signum)
        except psutil.Error:
            continue


def _wait(processes: list[Process], timeout_s: float, hurry: Callable[[], bool]) -> list[Process]:
    """Wait for all to end; returns those still alive after `timeout_s` seconds or a signal."""
    until = time.monotonic() + timeout_s
    while alive := [process for process in processes if _alive(process)]:
        if time.monotonic() >= until or hurry():
            return alive
        time.sleep(0.05)
    return []
