"""What the kernel allows: open files, processes, locked memory, shared memory, and memory for a run on the CPU."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

from omnirl import machine
from omnirl.doctor.check import Check, Device, Target, of_problem

LEAST_FILES = {"cpu": 1024, "cuda": 8192, "npu": 8192}
"""Open files of one process: Ray's daemons hold several for each worker."""
LEAST_PROCESSES = {"cpu": 1024, "cuda": 8192, "npu": 8192}
"""Processes and threads; a run on the CPU takes about 600."""
_OBJECT_STORE_SHARE = 0.3
"""Of the memory, which Ray takes for objects unless it is told otherwise."""
_LARGEST_OBJECT_STORE_BYTES = 200 * 10**9


def check(target: Target) -> Iterator[Check]:
    """The limits that a run meets."""
    device = target.device or "cpu"
    files, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    yield open_files(files, most_files, device)
    yield processes_and_threads(processes, pids_limit(), device)
    if target.recipe and target.recipe.hardware.nodes > 1:
        yield locked_memory(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])
    yield from shared_memory(device)
    if device == "cpu":
        problems = machine.host_memory()
        wanted = "5 GiB for a run on the CPU"
        yield from (of_problem("memory", problem, wanted) for problem in problems)
        if not problems:
            yield Check("memory", "ok", "enough for a run on the CPU")


def open_files(soft: int, hard: int, device: Device) -> Check:
    """Ray raises the soft limit to the hard one by itself, so that it is the hard one that counts."""
    least = LEAST_FILES[device]
    found = f"{_number(soft)}, at most {_number(hard)}" if soft != hard else _number(soft)
    if hard != resource.RLIM_INFINITY and hard < least:
        hint = f"docker run --ulimit nofile={least}:{least}  # or a line in /etc/security/limits.conf"
        return Check("open files", "warn", found, f"{least} or more", hint)
    return Check("open files", "ok", found, f"{least} or more")


def processes_and_threads(limit: int, pids: int | None, device: Device) -> Check:
    """The user's limit and the container's; the smaller counts."""
    least = LEAST_PROCESSES[device]
    known = [value for value in (limit, pids) if value is not None and value != resource.RLIM_INFINITY]
    found = _number(min(known)) if known else "unlimited"
    if known and min(known) < least:
        hint = "docker run --pids-limit=-1" if pids == min(known) else f"ulimit -u {least}"
        return Check("processes", "fail" if min(known) < least // 2 else "warn", found, f"{least} or more", hint)
    return Check("processes", "ok", found, f"{least} or more")


def locked_memory(limit: int) -> Check:
    """Memory that network cards may read: InfiniBand and RoCE pin it."""
    unlimited = limit == resource.RLIM_INFINITY
    found = "unlimited" if unlimited else f"{limit / 2**20:.0f} MiB"
    hint = None if unlimited else "ulimit -l unlimited  # docker run --ulimit memlock=-1"
    return Check("locked memory", "ok" if unlimited else "warn", found, "unlimited, for RDMA between machines", hint)


def shared_memory(device: Device, folder: Path = Path("/dev/shm")) -> Iterator[Check]:
    """Where Ray keeps its objects, and NCCL and HCCL their buffers."""
    name, problem = "shared memory", machine.shared_memory()
    if problem:
        yield of_problem(name, problem, "1 GiB free in /dev/shm")
        return
    if not folder.is_dir():
        yield Check(name, "warn", f"there is no {folder}", "a folder in memory", "docker run --shm-size=2g")
        return
    size = shutil.disk_usage(folder).total
    found = f"{size / 2**30:.1f} GiB in {folder}"
    store = min(int(_total_memory_bytes() * _OBJECT_STORE_SHARE), _LARGEST_OBJECT_STORE_BYTES)
    if device != "cpu" and size < store:
        wanted = f"{store / 2**30:.0f} GiB, Ray's object store"
        yield Check(name, "warn", found, wanted, f"docker run --shm-size={-(-store // 2**30)}g")
        return
    yield Check(name, "ok", found)


def pids_limit(file: Path = Path("/sys/fs/cgroup/pids.max")) -> int | None:
    """How many processes and threads the container may have; None where there is no such limit."""
    try:
        text = file.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None


def _total_memory_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().total)


def _number(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
