"""One finding of the doctor, and what it looks at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from omnirl.machine import EXTRAS

if TYPE_CHECKING:
    from omnirl.errors import Problem
    from omnirl.recipe.model import Recipe

Verdict = Literal["ok", "warn", "fail"]
Device = Literal["cuda", "npu", "cpu"]

ORDER: tuple[Verdict, ...] = ("fail", "warn", "ok")
"""Verdicts, worst first."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    `found` is what there is, `wanted` what there should be, and `hint` what mends it, a command where there is one.
    """

    name: str
    verdict: Verdict
    found: str
    wanted: str | None = None
    hint: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def softened(self, soften: bool = True) -> Check:
        """The same, as a warning if it was a failure: nothing that was asked for depends on it."""
        return replace(self, verdict="warn") if soften and self.verdict == "fail" else self


def of_problem(name: str, problem: Problem, wanted: str | None = None) -> Check:
    """A finding from what `omnirl train` would say before a start."""
    return Check(name, "fail" if problem.severity == "error" else "warn", problem.message, wanted, problem.hint)


@dataclass(frozen=True)
class Target:
    """What the machine is to be fit for: a recipe, or nothing in particular."""

    recipe: Recipe | None
    runs: Path
    """Where runs go."""
    environ: Mapping[str, str]
    folder: Path = field(default_factory=Path.cwd)
    """The working folder, which Ray's workers import from."""
    task: str | None = None
    hardware: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """What the recipe tells verl, by verl's keys."""
    disk: Mapping[str, Any] = field(default_factory=dict)
    """The `disk` of the plan, in GB; empty where it is not known."""

    @property
    def device(self) -> Device | None:
        """What the recipe runs on; None without a recipe."""
        return self.recipe.hardware.device if self.recipe else None

    @property
    def extra(self) -> str | None:
        """The extra of omnirl that the recipe needs; None without a recipe."""
        return EXTRAS[self.device] if self.device else None
