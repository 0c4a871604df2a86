"""Labels that math-verify has to read: what it makes of each distinct one, before a run scores against them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from omnirl.data.checks.findings import Finding, Findings
from omnirl.errors import EnvironmentLacks

_MOST = 1 << 18
_AUDITED = "mmk12"


@dataclass(slots=True)
class _Use:
    file: str
    row: int
    rows: int = 1


@dataclass(slots=True)
class Labels:
    """The distinct labels of the rows that are scored through math-verify, each with its first row."""

    uses: dict[str, _Use] = field(default_factory=dict)

    def add(self, scorer: str | None, truth: object, file: str, row: int) -> None:
        if scorer != _AUDITED or not isinstance(truth, str):
            return
        use = self.uses.get(truth)
        if use is not None:
            use.rows += 1
        elif len(self.uses) < _MOST:
            self.uses[truth] = _Use(file, row)

    def audit(self, findings: Findings, options: Mapping[str, Any], advance: Callable[[int], object]) -> None:
        """Add what is wrong with the labels; those that are none at all have been reported with their rows."""
        from omnirl.reward import audit

        try:
            for found in audit.audit(_AUDITED, self._counted(advance), options):
                if found.code != "label_invalid":
                    use = self.uses[str(found.label)]
                    rows = "" if use.rows == 1 else f" ({use.rows} rows)"
                    said = f"`{str(found.label)[:40]}`{rows}: {found.message}"
                    findings.add(Finding(found.code.replace("_", "-"), said, use.file, use.row))
        except EnvironmentLacks as error:
            findings.add(Finding("labels-not-audited", error.message, hint=error.hint))

    def _counted(self, advance: Callable[[int], object]) -> Iterator[str]:
        for label in self.uses:
            advance(1)
            yield label


def of_row(values: Mapping[str, Any]) -> object:
    """The ground truth of a row; None where it has none."""
    held = values.get("reward_model")
    return held.get("ground_truth") if isinstance(held, Mapping) else None
