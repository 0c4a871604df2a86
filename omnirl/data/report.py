"""What a conversion says about itself: for each split what came in, what was kept, and why the rest was not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omnirl.files import read_json, write_json

SCHEMA = "omnirl/data-report/1"
REPORT = "report.json"


@dataclass(slots=True)
class Split:
    """What became of one split's records."""

    input: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    first_drop: dict[str, str] = field(default_factory=dict)
    media: dict[str, Any] = field(default_factory=dict)
    audio: dict[str, Any] = field(default_factory=dict)
    output: Path | None = None
    sha256: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {
            "input": self.input,
            "kept": self.kept,
            "dropped": dict(sorted(self.dropped.items())),
            "first_drop": dict(sorted(self.first_drop.items())),
            "answers": dict(sorted(self.answers.items())),
            "media": self.media,
            "audio": self.audio,
            "output": None if self.output is None else str(self.output),
            "sha256": self.sha256,
        }

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Split:
        counters = {name: Counter(written[name]) for name in ("dropped", "answers")}
        return cls(**{**written, **counters, "output": Path(written["output"])})


@dataclass(slots=True)
class Report:
    """The outcome of a conversion.

    `shared` counts equal prompts (media included) between two splits. `unchanged` says that nothing was done, since the
    output folder already holds just this conversion. `probed` counts the media files that were opened this time.
    """

    source: str
    splits: dict[str, Split] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)
    dry_run: bool = False
    unchanged: bool = False
    probed: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The document `omnirl/data-report/1`."""
        return {
            "schema": SCHEMA,
            **self.lasting(),
            "dry_run": self.dry_run,
            "unchanged": self.unchanged,
            "probed": self.probed,
        }

    def lasting(self) -> dict[str, Any]:
        """What is the same whenever this conversion is done."""
        splits = {name: split.as_dict() for name, split in self.splits.items()}
        return {"source": self.source, "splits": splits, "shared": self.shared}

    def write(self, path: Path) -> None:
        write_json(path, {"schema": SCHEMA, **self.lasting()})

    @classmethod
    def read(cls, path: Path) -> Report | None:
        """The report of an earlier conversion; None if it cannot be understood."""
        document = read_json(path) or {}
        try:
            splits = {name: Split.from_dict(split) for name, split in document["splits"].items()}
            return cls(document["source"], splits, document["shared"], unchanged=True)
        except (KeyError, TypeError, AttributeError, ValueError):
            return None
