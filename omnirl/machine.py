"""What this machine has: packages by metadata, devices, disk and memory, and whether a run can start on it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from omnirl.errors import Problem

PACKAGES = ("omnirl", "verl", "vllm-omni", "vllm", "torch", "transformers", "ray", "peft", "av", "pillow")
TRAINING = ("torch", "verl", "ray", "transformers", "peft", "transfer_queue", "torchvision", "av")
"""Modules that the extras `train`, `gpu` and `npu` bring."""
EXTRAS = {"cpu": "train", "cuda": "gpu", "npu": "npu"}
NO_PACKAGES, ENGINE_PLANNED, NO_ENGINE_PACKAGES = "no-training-packages", "engine-planned", "no-engine-packages"
ENGINE_MODULES = {"vllm": ("vllm",), "vllm_omni": ("vllm", "vllm_omni")}
"""Modules of rollout engines that the extra `gpu` brings."""
FIRST = frozenset({NO_PACKAGES, ENGINE_PLANNED, NO_ENGINE_PACKAGES})
"""Codes of the problems that come before any other: with them no data and no model can make a run start."""

VISIBLE = {"cuda": "CUDA_VISIBLE_DEVICES", "npu": "ASCEND_RT_VISIBLE_DEVICES"}
"""The variables that choose devices."""

NO_CLUSTER = "`ray status` on the cluster's head tells its address; `--address local` starts a Ray of the run's own"

_RANGE = re.compile(r"([0-9]{1,4})\s*-\s*([0-9]{1,4})")
_NVIDIA_ID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]+")
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
    *,
    device: Literal["cuda", "npu", "cpu"],
    devices: int,
    nodes: int,
    engine: str,
    runs: Path,
    address: str | None = None,
) -> tuple[Problem, ...]:
    """Everything that keeps a run from starting here (errors) or may slow it down (warnings).

    Args:
        devices: devices of one machine.
        nodes: machines; only one is looked at, this one.
        engine: the rollout engine.
        runs: the folder that the run will be made in.
        address: the Ray cluster asked for; RAY_ADDRESS where it is None. The devices of a cluster are not looked at.
    """
    named = cluster(address, os.environ)
    found = (
        rollout_engine(engine),
        engine_packages(engine, device),
        _training_packages(device),
        *(() if named else _devices(device, devices, nodes)),
        ray_address(named, "--address" if address else "RAY_ADDRESS"),
        *runs_folder(runs),
        *(host_memory() if device == "cpu" else ()),
        shared_memory(),
    )
    return tuple(problem for problem in found if problem)


def count_devices(device: Literal["cuda", "npu"]) -> int:
    """How many accelerators of a kind this machine lets a program use, without importing their packages."""
    there = count_present(device)
    visible = visible_devices(device, os.environ)
    return there if visible is None else visible.usable(there)


def count_present(device: Literal["cuda", "npu"], root: Path = Path("/")) -> int:
    """How many accelerators of a kind there are, whatever the environment hides."""
    if device == "npu":
        return len(list((root / "dev").glob("davinci[0-9]*")))
    driver = root / "proc/driver/nvidia/gpus"
    return len(list(driver.iterdir())) if driver.is_dir() else _count_by_smi()


@dataclass(frozen=True, slots=True)
class Visible:
    """What CUDA_VISIBLE_DEVICES or ASCEND_RT_VISIBLE_DEVICES names."""

    meant: tuple[str, ...]
    """Indices, or the ids of an NVIDIA driver, each once and in order; a range such as `4-7` is four of them."""
    read: tuple[str, ...]
    """The same as the driver reads it: of a range only the first, and what is named twice twice."""
    fault: str = ""
    """What is wrong with the text; empty when `meant` is what is read."""

    def usable(self, there: int) -> int:
        """How many devices a program gets where there are `there`: none if one is named twice (as measured with CUDA
        13), and those before the first that does not exist."""
        if len(set(self.read)) < len(self.read):
            return 0
        absent = (at for at, name in enumerate(self.read) if name.isdecimal() and int(name) >= there)
        return min(next(absent, len(self.read)), there)


def visible_devices(device: Literal["cuda", "npu"], environ: Mapping[str, str]) -> Visible | None:
    """What the variable for a kind of device names; None when it is not set, so that every device is visible."""
    text = environ.get(VISIBLE[device])
    if text is None:
        return None
    meant: dict[str, None] = {}
    read: list[str] = []
    faults: list[str] = []
    for word in text.split(",") if text.strip() not in ("", "NoDevFiles") else ():
        if word.strip() == "-1":  # ends the list: a way to write that there is none
            break
        names = _named(word.strip(), device)
        if not names:
            faults.append(f"`{word.strip()}` names no device" if word.strip() else "an entry is empty")
            break
        if _RANGE.fullmatch(word.strip()):
            faults.append(f"`{word.strip()}` is a range, of which only the first is read")
        twice = next((name for name in names if name in meant), None)
        if twice:
            faults.append(f"`{twice}` is named twice, which leaves none")
        read.append(names[0])
        meant |= dict.fromkeys(names)
    return Visible(tuple(meant), tuple(read), "; ".join(dict.fromkeys(faults)))


def _named(word: str, device: str) -> list[str]:
    if re.fullmatch(r"[0-9]{1,4}", word):
        return [str(int(word))]
    if spans := _RANGE.fullmatch(word):
        return [str(index) for index in range(int(spans[1]), int(spans[2]) + 1)][:1024]
    return [word] if device == "cuda" and _NVIDIA_ID.fullmatch(word) else []


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


def rollout_engine(engine: str) -> Problem | None:
    """Why a rollout engine cannot be started in this version."""
    if engine != "none":
        return None
    return Problem(
        ENGINE_PLANNED,
        "training without a rollout (`dpo`) is planned",
        key="algo.kind",
        hint="`--dry-run` shows the plan",
    )


def engine_packages(engine: str, device: str) -> Problem | None:
    """What a rollout engine needs that is not installed here, or the kind of device it was not made to run on yet."""
    from importlib.util import find_spec

    if engine not in ENGINE_MODULES:
        return None
    if device != "cuda":
        return Problem(
            ENGINE_PLANNED,
            f"the rollout engine `{engine}` on `{device}` is planned; it runs on `cuda` in this version",
            key="rollout.engine",
            hint="`--dry-run` shows the plan; `--on cpu` runs here",
        )
    absent = [name for name in ENGINE_MODULES[engine] if find_spec(name) is None]
    if not absent:
        return None
    names = " and ".join(f"`{name}`" for name in absent)
    return Problem(
        NO_ENGINE_PACKAGES,
        f"the rollout engine `{engine}` needs {names}",
        key="rollout.engine",
        hint=f"pip install 'omnirl[{EXTRAS[device]}]'",
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
    if nodes > 1:
        message = f"the recipe needs {nodes} machines, and no Ray cluster is named"
        hint = "--address HOST:6379"
        problems.append(Problem("no-cluster", message, key="hardware.nodes", hint=hint))
    return tuple(problems)


def cluster(asked: str | None, environ: Mapping[str, str]) -> str | None:
    """The address of the Ray cluster that a run joins, `asked` before RAY_ADDRESS; None for a Ray of its own."""
    address = asked or environ.get("RAY_ADDRESS") or "local"
    return None if address == "local" else address


def ray_address(address: str | None, named: str = "RAY_ADDRESS", *, jobs: bool = False) -> Problem | None:
    """A stale address makes Ray wait for ever; ask whether anything answers there first.

    Args:
        named: the option or variable that it comes from.
        jobs: whether jobs are to be submitted, so that it may be that of the job API.
    """
    import socket

    if not address or address in ("auto", "local"):
        return None
    scheme, slashes, rest = address.rpartition("://")
    http = scheme in ("http", "https")
    host, colon, port = rest.rstrip("/").rpartition(":")
    hint = "unset RAY_ADDRESS" if named == "RAY_ADDRESS" else NO_CLUSTER
    if http and not jobs:
        message = f"{named} is `{address}`, the job API's address; a run joins `HOST:6379`"
        return Problem("ray-address", message, hint="give that, or add `--submit`")
    if jobs and not colon and http:
        host, port = rest, "443" if scheme == "https" else "80"
    fault = "is no HOST:PORT"
    if slashes and not http and scheme != "ray":
        fault = "starts with neither `ray://` nor `http://`" if jobs else "does not start with `ray://`"
    elif host and port.isdecimal() and int(port) < 1 << 16:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S):
                return None
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that no host can have
            fault = f"answers nothing ({getattr(error, 'strerror', None) or error})"
    return Problem("ray-address", f"{named} is `{address}`, which {fault}", hint=hint)


def runs_folder(runs: Path) -> tuple[Problem, ...]:
    """Whether runs can be made in a folder, and whether there is room."""
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


def host_memory() -> tuple[Problem, ...]:
    """Whether there is memory for a run on the CPU; a container's limit counts."""
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


def shared_memory() -> Problem | None:
    """Whether Ray's objects fit into /dev/shm."""
    shared = Path("/dev/shm")
    if not shared.is_dir():
        return None
    size = shutil.disk_usage(shared).free
    if size >= _LEAST_SHARED_BYTES:
        return None
    message = f"/dev/shm has {size / 2**20:.0f} MiB free; Ray keeps its objects there and falls back to the disk"
    return Problem("little-shared-memory", message, severity="warning", hint="docker run --shm-size=2g")
