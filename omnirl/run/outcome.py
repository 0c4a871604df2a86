"""What came of a run: first and last values of what matters, over all its attempts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnirl.files import read_json
from omnirl.run import checkpoints, metrics
from omnirl.run.curves import Curve, as_dict, curves
from omnirl.run.record import Attempt, Run

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run's metrics in short. Accuracies are by data source; `before` and `after` may have different sources."""

    run: Run
    steps: int
    seconds: float
    reward: tuple[float | None, float | None]
    pearson: tuple[float | None, ...]
    curve: dict[str, list[tuple[int, float]]]
    curves: tuple[Curve, ...]
    checkpoint: Path | None

    @property
    def pearson_min(self) -> float | None:
        return metrics.minimum(self.pearson)

    def accuracy(self) -> dict[str, tuple[float | None, float | None]]:
        """Accuracy at the first and at the last validation of each source.

        A single one counts as first before any training, and as last after it; the other is None.
        """
        found: dict[str, tuple[float | None, float | None]] = {}
        for source, points in self.curve.items():
            (_, first), (step, last) = points[0], points[-1]
            alone = len(points) == 1
            found[source] = (None if alone and step else first, None if alone and not step else last)
        return found

    def as_dict(self) -> dict[str, Any]:
        """The document `omnirl/train/1`."""
        return {
            "schema": "omnirl/train/1",
            "run": str(self.run.path),
            "state": self.run.state(),
            "steps": self.steps,
            "seconds": round(self.seconds, 1),
            "reward": {"first": self.reward[0], "last": self.reward[1]},
            "pearson_min": self.pearson_min,
            "accuracy": {name: {"before": first, "after": last} for name, (first, last) in self.accuracy().items()},
            "checkpoint": str(self.checkpoint) if self.checkpoint else None,
            "curves": as_dict(self.curves),
        }


def summarize(run: Run, *, seconds: float) -> Outcome:
    """Read what the run's attempts have written; `seconds` is the time to report."""
    steps = metrics.read(attempt.metrics for attempt in run.attempts())
    trained = [step for step in steps if step.trained]
    curve: dict[str, list[tuple[int, float]]] = {}
    for step in steps:
        for source, value in step.accuracy().items():
            curve.setdefault(source, []).append((step.step, value))
    saved = checkpoints.latest_complete(run.checkpoints)
    return Outcome(
        run=run,
        steps=metrics.last_trained(steps),
        seconds=seconds,
        reward=(trained[0].reward, trained[-1].reward) if trained else (None, None),
        pearson=tuple(step.pearson for step in trained),
        curve=curve,
        curves=tuple(curves(steps, run.algo())),
        checkpoint=saved.path if saved else None,
    )


def failure(attempt: Attempt) -> tuple[str | None, str | None]:
    """What the engine says went wrong, and what mends it; None for what it does not say."""
    said = read_json(attempt.path / "error.json") or {}
    message, hint = said.get("message"), said.get("hint")
    return (str(message) if message else None, str(hint) if hint else None)


def last_lines(path: Path, count: int = 15) -> Sequence[str]:
    """The last lines of a log that are not empty, without terminal sequences."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return [line for raw in text.splitlines() if (line := _ANSI.sub("", raw).rstrip())][-count:]
