"""What this machine has: packages by metadata, devices, disk and memory, and whether a run can start on it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Literal

from omnirl.errors import Problem

PACKAGES = ("omnirl", "verl", "vllm-omni", "vllm", "torch", "transformers", "ray", "peft")
TRAINING = ("torch", "verl", "ray", "transformers", "peft", "transfer_queue", "torchvision", "av")
"""Modules that the extras `train`, `gpu` and `npu` bring."""
EXTRAS = {"cpu": "train", "cuda": "gpu", "npu": "npu"}
NO_PACKAGES, ENGINE_PLANNED = "no-training-packages", "engine-planned"
FIRST = frozenset({NO_PACKAGES, ENGINE_PLANNED})
"""Codes of the problems that come before any other: with them no data and no model can make a run start."""

_LEAST_DISK_BYTES = 1 << 30
_LEAST_MEMORY_BYTES = 5 << 30
_LEAST_SHARED_BYTES = 1 << 30
_CONNECT_S = 3.0


def version(package: str) -> str | None:
    """The installed version of a package, from its metadata; None when it is absent."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed(package)
    except PackageNotFoundError:
        return None


def versions() -> dict[str, str | None]:
    """Python and the packages that decide how a run behaves."""
    import platform

    return {"python": platform.python_version(), **{package: version(package) for package in PACKAGES}}


def check(
    *, device: Literal["cuda", "npu", "cpu"], devices: int, nodes: int, engine: str, runs: Path
) -> tuple[Problem, ...]:
    """Everything that keeps a run from starting here (errors) or may slow it down (warnings).

    Args:
        devices: devices of one machine.
        nodes: machines; only one is looked at, this one.
        engine: the rollout engine.
        runs: the folder that the run will be made in.
    """
    found = (
        _engine(engine),
        _training_packages(device),
        *_devices(device, devices, nodes),
        _ray_cluster(os.environ.get("RAY_ADDRESS")),
        *_disk(runs),
        *(_memory() if device == "cpu" else ()),
        _shared_memory(),
    )
    return tuple(problem for problem in found if problem)


def count_devices(device: Literal["cuda", "npu"]) -> int:
    """How many accelerators of a kind this machine shows, without importing their packages."""
    if device == "npu":
        return len(list(Path("/dev").glob("davinci[0-9]*")))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    driver = Path("/proc/driver/nvidia/gpus")
    count = len(list(driver.iterdir())) if driver.is_dir() else _count_by_smi()
    if visible is None:
        return count
    return min(count, len([word for word in visible.split(",") if word.strip() not in ("", "-1")]))


def _count_by_smi() -> int:
    import subprocess

    if shutil.which("nvidia-smi") is None:
        return 0
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(row.startswith("GPU ") for row in listed.stdout.splitlines())


def _training_packages(device: str) -> Problem | None:
    from importlib.util import find_spec

    absent = [name for name in TRAINING if find_spec(name) is None]
    if not absent:
        return None
    names = ", ".join(f"`{name}`" for name in absent)
    return Problem(NO_PACKAGES, f"training needs {names}", hint=f"pip install 'omnirl[{EXTRAS[device]}]'")


def _engine(engine: str) -> Problem | None:
    if engine == "hf":
        return None
    return Problem(
        ENGINE_PLANNED,
        f"the rollout engine `{engine}` is planned; only `hf` runs in this version",
        key="rollout.engine",
        hint="`--dry-run` shows the plan; `--on cpu` runs here",
    )


def _devices(device: Literal["cuda", "npu", "cpu"], devices: int, nodes: int) -> tuple[Problem, ...]:
    if device == "cpu":
        return ()
    there = count_devices(device)
    name = "NVIDIA GPU" if device == "cuda" else "NPU"
    problems = []
    if there < devices:
        message = f"the recipe needs {devices} {name}{'s' if devices > 1 else ''}, this machine has {there}"
        hint = "`--dry-run` shows the plan; `--on cpu` runs without one"
        problems.append(Problem("too-few-devices", message, key="hardware.devices_per_node", hint=hint))
    if nodes > 1 and not os.environ.get("RAY_ADDRESS"):
        message = f"the recipe needs {nodes} machines, and no Ray cluster is named"
        hint = "export RAY_ADDRESS=HOST:6379"
        problems.append(Problem("no-cluster", message, key="hardware.nodes", hint=hint))
    return tuple(problems)


def _ray_cluster(address: str | None) -> Problem | None:
    """A stale RAY_ADDRESS makes Ray wait for ever; ask whether anything answers there first."""
    import socket

    if not address or address in ("auto", "local"):
        return None
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    fault = "is no HOST:PORT"
    if colon and port.isdecimal() and int(port) < 1 << 16:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S):
                return None
        except OSError as error:
            fault = f"answers nothing ({error.strerror or error})"
    return Problem("ray-address", f"RAY_ADDRESS is `{address}`, which {fault}", hint="unset RAY_ADDRESS")


def _disk(runs: Path) -> tuple[Problem, ...]:
    folder = next((p for p in (runs.absolute(), *runs.absolute().parents) if p.exists()), Path("/"))
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        why = "is not a folder" if not folder.is_dir() else "cannot be written"
        return (Problem("runs-folder", f"`{folder}` {why}", where="--runs", hint="name another folder: `--runs DIR`"),)
    free = shutil.disk_usage(folder).free
    if free >= _LEAST_DISK_BYTES:
        return ()
    message = f"{free / 2**20:.0f} MiB are free for runs in `{folder}`; at least 1 GiB is needed"
    return (
        Problem("disk-full", message, where="--runs", hint="free some space, or name another folder: `--runs DIR`"),
    )


def _memory() -> tuple[Problem, ...]:
    import psutil

    available = _limited_by_container(int(psutil.virtual_memory().available))
    if available >= _LEAST_MEMORY_BYTES:
        return ()
    message = f"{available / 2**30:.1f} GiB of memory are available; training on the CPU takes about 5"
    return (Problem("little-memory", message, severity="warning", hint="close other programs"),)


def _limited_by_container(available: int) -> int:
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return available
    return min(available, max(0, limit - used))


def _shared_memory() -> Problem | None:
    shared = Path("/dev/shm")
    if not shared.is_dir():
        return None
    size = shutil.disk_usage(shared).free
    if size >= _LEAST_SHARED_BYTES:
        return None
    message = f"/dev/shm has {size / 2**20:.0f} MiB free; Ray keeps its objects there and falls back to the disk"
    return Problem("little-shared-memory", message, severity="warning", hint="docker run --shm-size=2g")
