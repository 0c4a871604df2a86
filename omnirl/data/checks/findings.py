"""What a check found, bounded: the first rows of each code are kept, all are counted."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

SHOWN = 20
"""Problems of one code that are kept."""

WARNINGS = frozenset(
    {
        "duplicate-row",
        "duplicate-across-files",
        "duplicate-other-label",
        "label-text-only",
        "label-word",
        "labels-not-audited",
        "length-not-checked",
        "media-touched",
        "modality-undeclared",
        "prompt-left-out",
        "prompt-truncated",
    }
)
"""Codes of what may be meant so; every other code is an error."""


class Finding(NamedTuple):
    """One thing that is wrong, in one row or with a whole file (`row` None) or with all of them (`file` None)."""

    code: str
    message: str
    file: str | None = None
    row: int | None = None
    hint: str | None = None

    @property
    def severity(self) -> Literal["error", "warning"]:
        return "warning" if self.code in WARNINGS else "error"

    @property
    def where(self) -> str:
        """Such as `train.parquet:row 3`."""
        return (self.file or "-") + ("" if self.row is None else f":row {self.row}")

    def as_dict(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "severity": self.severity,
            "file": self.file,
            "row": self.row,
            "message": self.message,
            "hint": self.hint,
        }


@dataclass(slots=True)
class Findings:
    """Findings by code, in the order in which codes first came up; of each code those of the first rows are kept."""

    counts: Counter[str] = field(default_factory=Counter)
    kept: dict[str, list[Finding]] = field(default_factory=dict)
    _files: dict[str | None, int] = field(default_factory=dict)

    def add(self, finding: Finding) -> None:
        self.counts[finding.code] += 1
        self._files.setdefault(finding.file, len(self._files))
        kept = self.kept.setdefault(finding.code, [])
        if len(kept) < SHOWN or self._place(finding) < self._place(kept[-1]):
            insort(kept, finding, key=self._place)
            del kept[SHOWN:]

    def _place(self, finding: Finding) -> tuple[int, int]:
        return self._files[finding.file], -1 if finding.row is None else finding.row

    def total(self, severity: str) -> int:
        """How many findings of one severity there are."""
        return sum(count for code, count in self.counts.items() if (code in WARNINGS) == (severity == "warning"))

    def by_code(self) -> list[tuple[Finding, int]]:
        """The first finding of each code with how many there are, errors first."""
        firsts = [(kept[0], self.counts[code]) for code, kept in self.kept.items()]
        return sorted(firsts, key=lambda one: one[0].severity)

    def listed(self) -> list[Finding]:
        """Every kept finding, errors first."""
        kept = [finding for found in self.kept.values() for finding in found]
        return sorted(kept, key=lambda one: one.severity)
