"""Packages by their metadata, against what omnirl asks for: absent, too old, too new, or at odds with each other.

Nothing is imported. Where metadata are looked for is a parameter, so that any folder of packages can be examined.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from omnirl.doctor import matrix
from omnirl.doctor.check import Check, Target

if TYPE_CHECKING:
    from importlib.metadata import Distribution

    from packaging.requirements import Requirement

PROGRAM = "omnirl"
_EXTRAS_OF = {"verl": ("", "verl-core")}
"""Extras that omnirl asks others for, whose requirements count too."""
_ELSEWHERE = (
    "vllm-ascend",
    "antlr4-python3-runtime",
    "hydra-core",
    "torchcodec",
    "torchaudio",
    "latex2sympy2_extended",
)
"""Packages that no extra names and that are at odds with others often enough."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A package in some folder of packages."""

    name: str
    version: str
    requires: tuple[str, ...]


def check(target: Target) -> Iterator[Check]:
    """Python, the packages of the extra that the target needs, and pairs of packages."""
    yield _python(target.extra)
    yield from check_folder(target.extra, sys.path)


def check_folder(extra: str | None, path: Sequence[str]) -> Iterator[Check]:
    """As `check`, for the packages in the folders of `path`; without an extra, for the one that they look like."""
    own = find(PROGRAM, path)
    if own is None:
        yield Check("packages", "warn", "omnirl itself has no metadata here", None, f"pip install '{PROGRAM}[train]'")
        return
    chosen = extra or guess(path)
    needed = requirements(own, ("", chosen) if chosen else ("",))
    absent: list[str] = []
    wrong: list[Check] = []
    untried: list[str] = []
    for name, requirement in needed.items():
        installed = find(name, path)
        if installed is None:
            absent.append(_pinned(requirement))
        elif not requirement.specifier.contains(installed.version, prereleases=True):
            allowed = f"{requirement.specifier}"
            wrong.append(
                Check(
                    f"package {name}", "fail", f"{installed.version}", allowed, f"pip install '{_pinned(requirement)}'"
                )
            )
        elif chosen and matrix.untried(chosen, name, installed.version):
            untried.append(f"{name} {installed.version}")
    which = f"`{PROGRAM}[{chosen}]`" if chosen else f"`{PROGRAM}`"
    if absent:
        listed = ", ".join(absent[:8]) + (f" and {len(absent) - 8} more" if len(absent) > 8 else "")
        command = f"pip install '{PROGRAM}[{chosen}]'" if chosen else f"pip install {PROGRAM}"
        if any(name.startswith("flash-attn") for name in absent) and "torch" in needed:
            # It is built against the torch that is there.
            first = f"pip install ninja packaging setuptools wheel '{_pinned(needed['torch'])}'"
            command = f"{first} && {command} --no-build-isolation"
        yield Check("packages", "fail", f"missing: {listed}", f"what {which} asks for", command)
    else:
        others = f"; not the tested ones: {', '.join(untried)}" if untried else ""
        there = f"{len(needed)} packages of {which}{others}"
        yield Check("packages", "ok", there, matrix.told(chosen) if chosen else None)
    yield from wrong
    if chosen is None:
        found = "no package for training is installed"
        yield Check(
            "training packages", "warn", found, "one of the extras train, gpu, npu", "pip install 'omnirl[train]'"
        )
    yield from _conflicts(needed, path, chosen)


def guess(path: Sequence[str]) -> str | None:
    """The extra that the installed packages look like; None if none of them is for training."""
    for extra, sign in (("npu", "torch-npu"), ("gpu", "vllm"), ("train", "torch"), ("train", "verl")):
        if find(sign, path):
            return extra
    return None


def find(name: str, path: Sequence[str]) -> Installed | None:
    """A package by name, from the first folder that has it."""
    found = _distribution(name, path)
    if found is None:
        return None
    return Installed(found.metadata["Name"] or name, str(found.version), tuple(found.requires or ()))


def requirements(installed: Installed, extras: Sequence[str]) -> dict[str, Requirement]:
    """What a package asks for with these extras (`""` is none), by canonical name."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    found: dict[str, Requirement] = {}
    for text in installed.requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            found[canonicalize_name(requirement.name)] = requirement
    return found


def _distribution(name: str, path: Sequence[str]) -> Distribution | None:
    from importlib.metadata import distributions

    # A folder without METADATA, which a broken uninstallation leaves, has no version.
    return next((one for one in distributions(name=name, path=list(path)) if one.metadata["Version"]), None)


def _conflicts(needed: Collection[str], path: Sequence[str], extra: str | None) -> Iterator[Check]:
    """Pairs of installed packages of which one does not take the other's version."""
    from packaging.utils import canonicalize_name

    there: dict[str, Installed] = {
        canonicalize_name(name): found for name in (*needed, *_ELSEWHERE) if (found := find(name, path))
    }
    wanted = matrix.told(extra) if extra else None
    all_again = f"pip install '{PROGRAM}[{extra}]'" if extra else f"pip install {PROGRAM}"
    for name, installed in there.items():
        for other, requirement in requirements(installed, _EXTRAS_OF.get(name, ("",))).items():
            partner = there.get(other)
            if partner and not requirement.specifier.contains(partner.version, prereleases=True):
                asked = f"{other}{requirement.specifier}"
                said = f"{name} {installed.version} asks for {asked}, and {partner.version} is there"
                # Where omnirl itself asks for the second, it may be the first that has to go.
                weighed = other in needed
                hint = all_again if weighed else f"pip install '{asked}'"
                yield Check(f"pair {name} + {other}", "fail", said, wanted if weighed else asked, hint)
    for one, other, numbers, rule in matrix.TIED:
        first, second = find(one, path), find(other, path)
        if first and second and first.version.split(".")[:numbers] != second.version.split(".")[:numbers]:
            said = f"{one} {first.version} beside {other} {second.version}: {rule}"
            yield Check(f"pair {one} + {other}", "fail", said, wanted, all_again)


def _python(extra: str | None) -> Check:
    found = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}, {sys.executable}"
    tested = {"gpu": (3, 12), "train": (3, 11)}.get(extra or "")
    wanted = f"3.11 or newer{f'; {tested[0]}.{tested[1]} was tested' if tested else ''}"
    return Check("python", "ok" if sys.version_info >= (3, 11) else "fail", found, wanted)


def _pinned(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"
