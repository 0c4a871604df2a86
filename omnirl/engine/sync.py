"""The sync proof: do rollout and trainer give the same tokens the same probabilities, also after the weights changed?

A rollout that keeps old caches, drops an adapter or puts a picture in the wrong place still answers, and training goes
on with probabilities that are not its own. So before the first step both sides are compared on a few questions of each
modality: with the weights as they are, and with weights that were changed and sent again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum


class Verdict(StrEnum):
    OK = "ok"
    MISSING = "missing"
    NAN = "nan"
    FEW = "few"
    CONSTANT = "constant"
    LOW = "low"


MEANING = {
    Verdict.MISSING: "the rollout delivered no tokens with log-probabilities",
    Verdict.NAN: "a log-probability is no number",
    Verdict.FEW: "too few tokens: raise `rollout.proof.prompts`, or lower `rollout.proof.tokens`",
    Verdict.CONSTANT: "one side gives every token the same probability",
    Verdict.LOW: "the two sides disagree beyond the limits",
}


MOST_ROUNDS = 64
"""Most questions of a modality, in multiples of the first round's."""


@dataclass(frozen=True)
class Agreement:
    """How rollout and trainer agree on the tokens of one modality.

    Attributes:
        weights: `sent`, or `changed` for those that were changed and sent again.
        tokens: how many were compared.
        pearson: correlation of the probabilities; None where it does not exist.
        mean_difference: of the log-probabilities, in absolute value; None likewise.
    """

    modality: str
    weights: str
    tokens: int
    pearson: float | None
    mean_difference: float | None
    verdict: Verdict


class OutOfSync(RuntimeError):
    """Rollout and trainer disagree, so training would not be on-policy."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.message, self.hint = message, hint

    def __str__(self) -> str:
        return self.message


def further_questions(tokens: int, asked: int, *, prompts: int, wanted: int) -> int:
    """How many questions are yet to be asked of a modality that gave `tokens` for the `asked` ones.

    Args:
        prompts: questions of the first round, and the least of a further one.
        wanted: tokens to come to.
    """
    if not asked:
        return prompts
    if not tokens or tokens >= wanted:
        return 0
    lacking = math.ceil((wanted - tokens) * asked / tokens)
    return min(max(lacking, prompts), MOST_ROUNDS * prompts - asked)


def compare(
    modality: str,
    weights: str,
    rollout: Sequence[float],
    trainer: Sequence[float],
    *,
    least_pearson: float,
    most_difference: float,
    tokens: int,
) -> Agreement:
    """Compare log-probabilities of the same tokens, of which a verdict takes at least `tokens`.

    Raises:
        ValueError: they are not of the same tokens.
    """
    if len(rollout) != len(trainer):
        raise ValueError(f"{len(rollout)} log-probabilities of the rollout and {len(trainer)} of the trainer")

    def result(verdict: Verdict, pearson: float | None = None, difference: float | None = None) -> Agreement:
        return Agreement(modality, weights, len(rollout), pearson, difference, verdict)

    if not rollout:
        return result(Verdict.MISSING)
    if not all(math.isfinite(value) for value in (*rollout, *trainer)):
        return result(Verdict.NAN)
    difference = math.fsum(abs(left - right) for left, right in zip(rollout, trainer, strict=True)) / len(rollout)
    left, right = [[math.exp(value) for value in values] for values in (rollout, trainer)]
    pearson = _pearson(left, right)
    if len(rollout) < tokens:
        return result(Verdict.FEW, pearson, difference)
    if pearson is None:
        return result(Verdict.CONSTANT, None, difference)
    low = pearson < least_pearson or difference > most_difference
    return result(Verdict.LOW if low else Verdict.OK, pearson, difference)


def _pearson(left: Sequence[float], right: Sequence[float]) -> float | None:
    middle_left, middle_right = math.fsum(left) / len(left), math.fsum(right) / len(right)
    pairs = [(a - middle_left, b - middle_right) for a, b in zip(left, right, strict=True)]
    spread_left = math.fsum(a * a for a, _ in pairs)
    spread_right = math.fsum(b * b for _, b in pairs)
    tiny = 1e-18 * len(pairs)
    if spread_left <= tiny or spread_right <= tiny:
        return None
    return math.fsum(a * b for a, b in pairs) / math.sqrt(spread_left * spread_right)


def table(agreements: Iterable[Agreement]) -> str:
    """One line an agreement, under a heading."""
    rows = [("modality", "weights", "tokens", "Pearson", "mean |dlogp|", "verdict")]
    for found in agreements:
        pearson = "-" if found.pearson is None else f"{found.pearson:.5f}"
        difference = "-" if found.mean_difference is None else f"{found.mean_difference:.4f}"
        rows.append((found.modality, found.weights, str(found.tokens), pearson, difference, found.verdict.value))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def judge(agreements: Sequence[Agreement]) -> OutOfSync | None:
    """What is wrong with them, if anything: each verdict that is not ok, and what the first of them means."""
    wrong = [found for found in agreements if found.verdict is not Verdict.OK]
    if not agreements:
        return OutOfSync("the sync proof compared nothing: the data have no row that could be asked")
    if not wrong:
        return None
    names = ", ".join(f"{found.modality}/{found.weights}: {found.verdict.value}" for found in wrong)
    apart = [found for found in wrong if found.verdict is not Verdict.FEW]
    if not apart:
        return OutOfSync(f"rollout and trainer could not be compared ({names}); {MEANING[Verdict.FEW]}")
    only_changed = all(found.weights == "changed" for found in apart)
    return OutOfSync(
        f"rollout and trainer disagree ({names}); {MEANING[apart[0].verdict]}",
        "only after the weights changed: stale caches, or an update that did not arrive" if only_changed else None,
    )


def document(agreements: Sequence[Agreement], limits: Mapping[str, float]) -> dict[str, object]:
    """What is written to `sync.json`; `message` says what is wrong, and is null where nothing is."""
    rows = [{**asdict(found), "verdict": found.verdict.value} for found in agreements]
    wrong = judge(agreements)
    return {
        "schema": "omnirl/sync/1",
        "limits": dict(limits),
        "agreements": rows,
        "message": wrong.message if wrong else None,
        "hint": wrong.hint if wrong else None,
    }
