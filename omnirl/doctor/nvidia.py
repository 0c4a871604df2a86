"""NVIDIA's driver, what it shows of the GPUs, and what CUDA_VISIBLE_DEVICES leaves of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from omnirl import machine
from omnirl.doctor.check import Check, Target
from omnirl.doctor.child import ask

if TYPE_CHECKING:
    from omnirl.recipe.model import Hardware

LEAST_DRIVER = 580
"""The first driver for CUDA 13, which the tested torch is built with."""
FIELDS = ("index", "uuid", "name", "memory.total", "memory.used", "driver_version", "mig.mode.current")
"""What is asked for; memory comes in MiB."""
_TIMEOUT_S = 15.0
_NEARLY = 0.95
"""Of the memory that a card is sold with, this much is shown by the driver."""
_IN_USE_MIB = 1024
_DRIVER_NAMES = ("Driver/library version mismatch", "couldn't communicate with the NVIDIA driver")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card as nvidia-smi describes it."""

    index: int
    uuid: str
    name: str
    memory_mib: int
    used_mib: int
    driver: str
    mig: bool


def check(target: Target) -> Iterator[Check]:
    """As `examine`, for this machine."""
    wanted = target.recipe.hardware if target.recipe and target.device == "cuda" else None
    # With a cluster, devices may be on other machines: `Ray cluster` counts them.
    elsewhere = bool(target.environ.get("RAY_ADDRESS"))
    yield from (one.softened(elsewhere) for one in examine(target.environ, wanted))


def examine(environ: Mapping[str, str], wanted: Hardware | None, root: Path = Path("/")) -> Iterator[Check]:
    """Driver, number, memory and partitions of the GPUs, against what a recipe wants of each machine.

    Args:
        wanted: a recipe's hardware; without one there need not be any GPU, and what is wrong is a warning.
        root: where `proc` lies.
    """
    program = shutil.which("nvidia-smi", path=environ.get("PATH", ""))
    driver = (root / "proc/driver/nvidia/version").is_file()
    if program is None:
        yield from _without_program(driver, wanted)
        return
    query = [program, f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    answer = ask(query, timeout_s=_TIMEOUT_S, environ=environ)
    gpus = parse(answer.out)
    if answer.fault or not gpus:
        yield _broken(answer.said, answer.fault, program).softened(wanted is None)
        return
    yield _driver(gpus).softened(wanted is None)
    visible = machine.visible_devices("cuda", environ)
    if visible is not None:
        visible = _known(visible, gpus)
        yield chosen("cuda", environ, visible, len(gpus)).softened(wanted is None)
    usable = len(gpus) if visible is None else visible.usable(len(gpus))
    yield _count(gpus, usable, wanted)
    yield from (one.softened(wanted is None) for one in _cards(gpus, wanted))


def parse(text: str) -> list[Gpu]:
    """The cards of nvidia-smi's answer, a line each; a line of another shape is passed over."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(FIELDS) and cells[0].isdecimal():
            memory, used = (int(cell) if cell.isdecimal() else 0 for cell in cells[3:5])
            found.append(Gpu(int(cells[0]), cells[1], cells[2], memory, used, cells[5], cells[6] == "Enabled"))
    return found


def chosen(device: str, environ: Mapping[str, str], visible: machine.Visible, there: int) -> Check:
    """Whether the variable that chooses devices is understood, and names devices that exist."""
    kind = "cuda" if device == "cuda" else "npu"
    variable = machine.VISIBLE[kind]
    text, usable = environ[variable], visible.usable(there)
    found = f"`{text}`: {usable} of {there} devices"
    absent = [name for name in visible.meant if name.isdecimal() and int(name) >= there]
    mended = [name for name in visible.meant if name not in absent]
    if absent and not mended:  # numbers of the host in a container, where they start at 0 again
        mended = [str(index) for index in range(min(there, len(visible.meant)))]
    hint = f"export {variable}={','.join(mended)}" if mended else f"unset {variable}"
    faults = [visible.fault] if visible.fault else []
    if absent:
        faults.append(f"there is no device {', '.join(absent[:4])}: they are 0 to {there - 1}")
    wanted = "indices between commas, from 0, each once"
    if faults:
        return Check(variable, "fail", f"{found}; {'; '.join(faults)}", wanted, hint)
    return Check(
        variable, "ok" if usable or not there else "warn", found, wanted, None if usable else f"unset {variable}"
    )


def _known(visible: machine.Visible, gpus: list[Gpu]) -> machine.Visible:
    """Without the cards that are named by an id that none has, and what follows them, as CUDA reads the list."""
    for at, name in enumerate(visible.read):
        if name.startswith("GPU-") and not any(gpu.uuid.startswith(name) for gpu in gpus):
            faults = [*filter(None, [visible.fault]), f"no GPU has the id {name}"]
            left = visible.meant[: visible.meant.index(name)]
            return replace(visible, meant=left, read=visible.read[:at], fault="; ".join(faults))
    return visible


def _without_program(driver: bool, wanted: Hardware | None) -> Iterator[Check]:
    if driver:
        found = "the driver is loaded, but nvidia-smi is not on the PATH"
        yield Check("NVIDIA driver", "warn", found, "nvidia-smi", "export PATH=$PATH:/usr/local/nvidia/bin:/usr/bin")
    elif wanted:
        found = "neither a driver nor nvidia-smi"
        hint = "nvidia-smi  # on the host; in a container: docker run --gpus all ..."
        yield Check("NVIDIA driver", "fail", found, f"{LEAST_DRIVER} or newer", hint)
    if wanted:
        there = machine.count_devices("cuda") if driver else 0
        verdict = "ok" if there >= wanted.devices_per_node else "fail"
        needed = f"{wanted.devices_per_node} in each machine"
        yield Check(
            "GPUs", "ok" if verdict == "ok" else "fail", str(there), needed, None if there else "omnirl recipe list"
        )
    elif not driver:
        yield Check("GPUs", "ok", "none")


def _broken(said: str, fault: str, program: str) -> Check:
    found = f"{program} {fault}: {said}" if fault and said != fault else f"{program}: {said}"
    if _DRIVER_NAMES[0] in said:
        return Check("NVIDIA driver", "fail", found, "one version of driver and library", "sudo reboot")
    if _DRIVER_NAMES[1] in said:
        return Check("NVIDIA driver", "fail", found, "a driver that is loaded", "sudo modprobe nvidia")
    return Check("NVIDIA driver", "fail", found, "an answer", "nvidia-smi; sudo dmesg | grep -i nvrm")


def _driver(gpus: list[Gpu]) -> Check:
    version = gpus[0].driver
    major = version.partition(".")[0]
    wanted = f"{LEAST_DRIVER} or newer (CUDA 13)"
    if major.isdecimal() and int(major) < LEAST_DRIVER:
        return Check("NVIDIA driver", "fail", version, wanted, f"sudo apt-get install nvidia-driver-{LEAST_DRIVER}")
    return Check("NVIDIA driver", "ok", version, wanted)


def _count(gpus: list[Gpu], usable: int, wanted: Hardware | None) -> Check:
    names = sorted({gpu.name for gpu in gpus})
    found = f"{usable} of {len(gpus)} ({', '.join(names)})" if usable != len(gpus) else f"{usable} ({', '.join(names)})"
    if wanted is None:
        return Check("GPUs", "ok", found)
    needed = f"{wanted.devices_per_node} in each machine"
    if usable >= wanted.devices_per_node:
        return Check("GPUs", "ok", found, needed)
    return Check("GPUs", "fail", found, needed, _fewer(usable, len(gpus), wanted))


def _fewer(usable: int, there: int, wanted: Hardware) -> str:
    if there >= wanted.devices_per_node:
        return f"unset {machine.VISIBLE['cuda']}"
    return f"--set 'hardware.devices_per_node = {usable}'" if usable else "omnirl recipe list"


def _cards(gpus: list[Gpu], wanted: Hardware | None) -> Iterator[Check]:
    parted = [str(gpu.index) for gpu in gpus if gpu.mig]
    if parted:
        found = f"GPU {', '.join(parted)} is cut into instances (MIG)"
        yield Check("MIG", "fail", found, "whole GPUs", f"sudo nvidia-smi -i {','.join(parted)} -mig 0")
    least = min(gpus, key=lambda gpu: gpu.memory_mib)
    if least.memory_mib:
        found = f"{least.memory_mib / 1024:.1f} GiB each" if len(gpus) > 1 else f"{least.memory_mib / 1024:.1f} GiB"
        needed = wanted.memory_gib if wanted else None
        small = needed is not None and least.memory_mib / 1024 < needed * _NEARLY
        hint = f"--set 'hardware.memory_gib = {least.memory_mib / 1024:.0f}.0', then omnirl plan" if small else None
        yield Check("GPU memory", "fail" if small else "ok", found, f"{needed:g} GiB" if needed else None, hint)
    busy = [f"GPU {gpu.index}: {gpu.used_mib / 1024:.1f} GiB" for gpu in gpus if gpu.used_mib > _IN_USE_MIB]
    if busy:
        yield Check(
            "GPUs in use", "warn", ", ".join(busy), "free GPUs", "nvidia-smi --query-compute-apps=pid,name --format=csv"
        )
