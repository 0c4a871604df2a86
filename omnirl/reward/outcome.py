"""What scoring a response can come to, the keys of every score, and when faults of a scorer stop a run."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from omnirl.errors import ChildFailed

Outcome = Literal["scored", "wrong", "timeout", "scorer_error"]
"""`scored`: right, or partly right. `wrong`: judged, and not right. `timeout`: the judgement took more time or memory
than an answer is given. `scorer_error`: the scorer failed, and the response may well be right."""

OUTCOMES: tuple[Outcome, ...] = ("scored", "wrong", "timeout", "scorer_error")
KEYS = ("score", "accuracy", "acc", "format", *(f"outcome/{name}" for name in OUTCOMES))
"""What every built-in scorer returns for every row. verl averages each, and fails where rows of a file differ.

`acc` is `accuracy` by the name that verl looks for in a validation and DAPO's filter in a group.
"""

MAX_SCORER_ERROR_SHARE = 0.01
_EXAMPLES = 3
_EXAMPLE_CHARACTERS = 200


def row(score: float, accuracy: float, format: float, outcome: Outcome) -> dict[str, float]:
    """One response's score under `KEYS`; `format` is the share of the format checks that it passed."""
    return {
        "score": score,
        "accuracy": accuracy,
        "acc": accuracy,
        "format": format,
        "outcome/scored": 1.0 if outcome == "scored" else 0.0,
        "outcome/wrong": 1.0 if outcome == "wrong" else 0.0,
        "outcome/timeout": 1.0 if outcome == "timeout" else 0.0,
        "outcome/scorer_error": 1.0 if outcome == "scorer_error" else 0.0,
    }


def named(scores: Mapping[str, Any]) -> Outcome | None:
    """The outcome of a row of scores; None for a row that tells none."""
    return next((name for name in OUTCOMES if scores.get(f"outcome/{name}")), None)


def shares(rows: Iterable[Mapping[str, Any]], prefix: str = "reward/") -> dict[str, float]:
    """Metrics over many rows: the share of each outcome. Empty where no row tells its outcome."""
    told = [outcome for outcome in map(named, rows) if outcome is not None]
    return {f"{prefix}outcome/{name}": told.count(name) / len(told) for name in OUTCOMES} if told else {}


class Watch:
    """Counts a process's outcomes, and raises once too many were faults of the scorer. Safe for threads.

    While fewer than `1 / max_share` responses are scored a single fault is already too many, so that a scorer that
    never worked is found in the first batch. Once it has raised it raises for every further response.
    """

    def __init__(self, max_share: float = MAX_SCORER_ERROR_SHARE) -> None:
        self._max_share = max_share
        self._lock = threading.Lock()
        self._scored = 0
        self._failed = 0
        self._examples: list[str] = []
        self._broken = False

    def saw(self, outcome: Outcome, what: str, response: str, ground_truth: object) -> None:
        """Count one response; `what` says what failed. Raises ChildFailed with the first three examples."""
        with self._lock:
            self._scored += 1
            if outcome == "scorer_error":
                self._failed += 1
                if len(self._examples) < _EXAMPLES:
                    self._examples.append(_example(what, response, ground_truth))
                self._broken = self._broken or self._failed > self._max_share * self._scored
            if not self._broken:
                return
            failed, scored, examples = self._failed, self._scored, "; ".join(self._examples)
        raise ChildFailed(
            f"the scorer failed on {failed} of {scored} responses, more than the {self._max_share:.3g} that "
            f"`max_scorer_error_share` allows: {examples}",
            hint="try it: `omnirl score FILE --reward SCORER --explain`",
        )


def _example(what: str, response: str, ground_truth: object) -> str:
    tail = response[-_EXAMPLE_CHARACTERS:]
    return f"{what} on {tail!a} for {str(ground_truth)[:_EXAMPLE_CHARACTERS]!a}"
