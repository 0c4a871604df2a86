"""What a rule finds, and how the nearest right values are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from omnirl.recipe.model import Recipe

TINY = "tiny"
"""The `model.path` that stands for a checkpoint built in the run folder."""
DEVICES = ("hardware.nodes", "hardware.devices_per_node")
"""The settings that `Recipe.devices` is made of."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken rule. The first of `keys` is the setting to name; all of them took part."""

    code: str
    keys: tuple[str, ...]
    message: str
    hint: str | None = None
    severity: Literal["error", "warning"] = "error"


Rule = Callable[[Recipe], Iterator[Finding]]


def neighbours(value: int, fits: Callable[[int], bool], most: int | None = None) -> list[int]:
    """The nearest values below and above that fit, at least 1."""
    below = next((n for n in range(value - 1, 0, -1) if fits(n)), None)
    above = next((n for n in range(value + 1, (most or 4 * value + 1024) + 1) if fits(n)), None)
    return [n for n in (below, above) if n is not None]


def attempt(key: str, values: list[int]) -> str | None:
    """A hint that names values for a setting; None when there are none."""
    return f"try `{key} = " + "` or `".join(str(value) for value in values) + "`" if values else None
