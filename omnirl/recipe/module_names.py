"""The Thinker's modules, shapes and heads, from a vendored list that needs no torch.

`python -m omnirl.engine.skeleton` writes the list anew, from the classes of the installed transformers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

_LIST = Path(__file__).with_name("module_names.json")

TOWERS = {"audio_tower": "the audio tower", "visual": "the vision tower"}
"""First parts of module names, and what lies below them."""
ALL_LINEAR = "all-linear"
_HEAD = "lm_head"
_ADAPTABLE = ("Linear", "Embedding", "Conv2d", "Conv3d")
"""Classes that adapters are made for."""


@dataclass(frozen=True, slots=True)
class Module:
    """A module with parameters of its own, `shapes` by their names."""

    name: str
    kind: str
    linear: bool
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def adaptable(self) -> bool:
        return self.kind in _ADAPTABLE

    @property
    def tower(self) -> str | None:
        """The tower that it is part of, as a part of its name."""
        first = self.name.partition(".")[0]
        return first if first in TOWERS else None

    @property
    def parameters(self) -> int:
        return sum(prod(shape) for shape in self.shapes.values())


@cache
def _read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_LIST.read_text(encoding="utf-8"))
    return found


@cache
def modules() -> tuple[Module, ...]:
    """Every module of the released Thinker that owns parameters, in the model's order of kinds."""
    return tuple(
        Module(
            entry["name"].replace("*", str(number)),
            entry["class"],
            entry["linear"],
            {name: tuple(shape) for name, shape in entry["parameters"].items()},
        )
        for entry in _read()["modules"]
        for number in range(entry["count"])
    )


def heads() -> dict[str, int]:
    """Heads of the text model (`attention`, `key_value`) and of each tower."""
    return dict(_read()["heads"])


def context(*, tiny: bool) -> int:
    """Positions of the released checkpoint, or of the tiny one."""
    return int(_read()["tiny_context" if tiny else "context"])


def parameters() -> int:
    """Parameters of the released Thinker."""
    return sum(module.parameters for module in modules())


def ends(name: str, endings: Sequence[str]) -> bool:
    """Whether a name is, or ends with whole parts that are, one of `endings`."""
    return any(name == ending or name.endswith(f".{ending}") for ending in endings)


def excluded(module: Module, pattern: Sequence[str] | str | None) -> bool:
    """Whether a filter for exclusion, as PEFT reads it, takes the module out. Raises `re.error`."""
    if pattern is None:
        return False
    if isinstance(pattern, str):
        return re.fullmatch(pattern, module.name) is not None
    return ends(module.name, pattern)


def targeted(module: Module, pattern: Sequence[str] | str) -> bool:
    """Whether a filter for targets, as PEFT reads it, means the module. Raises `re.error`."""
    if pattern == ALL_LINEAR:
        return module.linear and module.name != _HEAD
    if isinstance(pattern, str):
        return re.fullmatch(pattern, module.name) is not None
    return ends(module.name, pattern)
