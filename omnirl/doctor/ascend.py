"""Ascend's driver and toolkit, what npu-smi shows of the NPUs, and what ASCEND_RT_VISIBLE_DEVICES leaves of them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from omnirl import machine
from omnirl.doctor.check import Check, Target
from omnirl.doctor.child import ask
from omnirl.doctor.nvidia import chosen

if TYPE_CHECKING:
    from omnirl.recipe.model import Hardware

INSTALLED = "usr/local/Ascend"
"""Where driver and toolkit are, below the root."""
_TIMEOUT_S = 20.0
_NEARLY = 0.95
_CARD = re.compile(r"\|\s*(\d+)\s+(\S+)\s*\|\s*(\S+)\s*\|")
_CHIP = re.compile(r"\|\s*\d+(?:\s+(\d+))?\s*\|\s*[0-9A-Fa-f]{4}:\S+\s*\|.*?(\d+)\s*/\s*(\d+)\s*\|\s*$")
_VERSION = re.compile(
    r"^\s*(?:(?:package_)?version\s*=\s*|toolkit_\w+_version\s*=\s*\[[^:\]]*:)([0-9][\w.]*)",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Npu:
    """One chip as npu-smi describes it."""

    name: str
    healthy: bool
    memory_mib: int
    used_mib: int


def check(target: Target) -> Iterator[Check]:
    """As `examine`, for this machine."""
    wanted = target.recipe.hardware if target.recipe and target.device == "npu" else None
    elsewhere = bool(target.environ.get("RAY_ADDRESS"))
    yield from (one.softened(elsewhere) for one in examine(target.environ, wanted))


def examine(environ: Mapping[str, str], wanted: Hardware | None, root: Path = Path("/")) -> Iterator[Check]:
    """Driver, toolkit, number, health and memory of the NPUs, against what a recipe wants of each machine.

    Args:
        wanted: a recipe's hardware; without one there need not be any NPU, and what is wrong is a warning.
        root: where `dev` and `usr` lie.
    """
    there = machine.count_present("npu", root)
    program = shutil.which("npu-smi", path=environ.get("PATH", ""))
    if wanted is None and not there and program is None:
        return
    soften = wanted is None
    yield _driver(root, program).softened(soften)
    yield from (one.softened(soften) for one in _toolkit(environ, root))
    visible = machine.visible_devices("npu", environ)
    if visible is not None:
        yield chosen("npu", environ, visible, there).softened(soften)
    usable = there if visible is None else visible.usable(there)
    yield _count(there, usable, wanted)
    if program is not None:
        answer = ask([program, "info"], timeout_s=_TIMEOUT_S, environ=environ)
        if answer.fault:
            found = f"{program} {answer.fault}: {answer.said}"
            yield Check("npu-smi", "fail", found, "an answer", "npu-smi info").softened(soften)
        yield from (one.softened(soften) for one in _chips(parse(answer.out), wanted))


def parse(text: str) -> list[Npu]:
    """The chips in the table of `npu-smi info`: a line with name and health, then one with memory in MiB."""
    found: list[Npu] = []
    name, healthy = "", True
    for line in text.splitlines():
        chip = _CHIP.match(line)
        if chip and name:
            found.append(Npu(name, healthy, int(chip[3]), int(chip[2])))
            name = ""
        elif card := _CARD.match(line):
            name, healthy = card[2], card[3] == "OK"
    return found


def version_in(file: Path) -> str | None:
    """The version that one of Ascend's information files names; None without such a file."""
    try:
        found = _VERSION.search(file.read_text(encoding="utf-8", errors="replace")[:65536])
    except OSError:
        return None
    return found[1] if found else None


def _driver(root: Path, program: str | None) -> Check:
    version = version_in(root / INSTALLED / "driver" / "version.info")
    if version is None:
        found = "the driver's version.info is missing" + ("" if program else ", and npu-smi is not on the PATH")
        hint = f"in a container: docker run -v /{INSTALLED}/driver:/{INSTALLED}/driver ..."
        return Check("Ascend driver", "fail", found, "a driver", hint)
    return Check("Ascend driver", "ok", version)


def _toolkit(environ: Mapping[str, str], root: Path) -> Iterator[Check]:
    home = environ.get("ASCEND_HOME_PATH") or environ.get("ASCEND_TOOLKIT_HOME")
    default = next((d for d in ("ascend-toolkit/latest", "cann") if (root / INSTALLED / d).is_dir()), None)
    folder = Path(home) if home else root / INSTALLED / (default or "ascend-toolkit/latest")
    infos = (folder / "version.cfg", *sorted(folder.glob("*-linux/ascend_*install.info")), folder / "version.info")
    version = next((found for file in infos if (found := version_in(file))), None)
    script = f"source /{INSTALLED}/{'ascend-toolkit' if default != 'cann' else default}/set_env.sh"
    if not folder.is_dir():
        yield Check(
            "CANN", "fail", f"no toolkit in {folder}", "CANN", "export ASCEND_HOME_PATH=DIR  # where CANN is installed"
        )
    elif not home:
        yield Check("CANN", "fail", f"{version or 'there'}, but its environment is not set", "ASCEND_HOME_PATH", script)
    else:
        yield Check("CANN", "ok", f"{version or 'version unknown'}, {folder}")
    if folder.is_dir() and not environ.get("ATB_HOME_PATH"):
        hint = f"source /{INSTALLED}/nnal/atb/set_env.sh"
        yield Check("ATB", "warn", "ATB_HOME_PATH is not set", "the environment of NNAL's ATB", hint)


def _count(there: int, usable: int, wanted: Hardware | None) -> Check:
    found = f"{usable} of {there}" if usable != there else str(there)
    if wanted is None or usable >= wanted.devices_per_node:
        return Check("NPUs", "ok", found, f"{wanted.devices_per_node} in each machine" if wanted else None)
    hint = "omnirl recipe list"
    if there >= wanted.devices_per_node:
        hint = f"unset {machine.VISIBLE['npu']}"
    elif usable:
        hint = f"--set 'hardware.devices_per_node = {usable}'"
    return Check("NPUs", "fail", found, f"{wanted.devices_per_node} in each machine", hint)


def _chips(chips: list[Npu], wanted: Hardware | None) -> Iterator[Check]:
    if not chips:
        return
    ill = sum(not chip.healthy for chip in chips)
    if ill:
        yield Check(
            "NPU health", "fail", f"{ill} of {len(chips)} chips are not OK", "OK", "npu-smi info -t health -i 0"
        )
    least = min(chip.memory_mib for chip in chips) / 1024
    needed = wanted.memory_gib if wanted else None
    small = needed is not None and least < needed * _NEARLY
    hint = f"--set 'hardware.memory_gib = {least:.0f}.0', then omnirl plan" if small else None
    found = f"{least:.1f} GiB each ({chips[0].name})"
    yield Check("NPU memory", "fail" if small else "ok", found, f"{needed:g} GiB" if needed else None, hint)
