"""Score many rows: one scorer, built in or the user's own, and what it comes to."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from omnirl.errors import InvalidInput
from omnirl.reward import outcome, score
from omnirl.reward.custom import UserScorer
from omnirl.reward.explain import explain
from omnirl.reward.options import Settings, read_settings
from omnirl.reward.rollouts import Row
from omnirl.reward.scorers import SCORERS, parse_scorer

RECORDED = "recorded"
"""The scorer that gives the score which the file itself holds."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A row's numbers, its outcome, and the steps that led there."""

    scores: Mapping[str, float]
    outcome: outcome.Outcome
    steps: tuple[str, ...]

    @property
    def score(self) -> float:
        return self.scores["score"]


@dataclass(slots=True)
class Totals:
    """What many rows came to."""

    n: int = 0
    score: float = 0.0
    accuracy: float = 0.0
    outcomes: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(outcome.OUTCOMES, 0)))
    errors: list[str] = field(default_factory=list)
    """The first three faults of the scorer, with their place."""

    def add(self, row: Row, scored: Scored) -> None:
        self.n += 1
        self.score += scored.score
        self.accuracy += scored.scores.get("accuracy", scored.scores.get("acc", scored.score))
        self.outcomes[scored.outcome] += 1
        if scored.outcome == "scorer_error" and len(self.errors) < 3:
            self.errors.append(f"{row.where}: {scored.steps[-1] if scored.steps else 'no reason given'}")

    def as_dict(self) -> dict[str, Any]:
        mean, accuracy = (self.score / self.n, self.accuracy / self.n) if self.n else (None, None)
        return {"n": self.n, "mean": mean, "accuracy": accuracy, "outcomes": dict(self.outcomes)}


class Scorer(AbstractContextManager["Scorer"]):
    """A scorer by name, with options; `choice:lenient` names a built-in one and its mode.

    Raises InvalidInput for one that does not exist, or not with these options.
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._close: Callable[[], None] = lambda: None
        self._threads = 1
        self.settings: Settings | None = None
        """Those of a built-in scorer."""
        if name == RECORDED:
            self._judge = _recorded
            return
        head, _, mode = name.partition(":")
        if head in SCORERS and mode:
            name, options = head, {**options, "mode": mode}
        which, function = parse_scorer(name)
        if isinstance(which, str) or function is None:
            settings = self.settings = read_settings(str(which), options)
            self._judge = self._built_in
            if which == "mmk12":
                self._threads = 2 * settings.workers
            return
        user = UserScorer(which, function, options)
        user.check()
        self._judge = lambda row: Scored(*user.judge(row.data_source, row.response, row.ground_truth, row.extra_info))
        self._close = user.close

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def score(self, row: Row) -> Scored:
        """Score one row; raises InvalidInput with the row's place when it is no row for this scorer."""
        try:
            return self._judge(row)
        except InvalidInput as error:
            raise InvalidInput(error.message, hint=error.hint, where=error.where or row.where) from error

    def score_all(self, rows: Iterable[Row]) -> Iterator[tuple[Row, Scored]]:
        """Score rows in order, several at once where processes do the work."""
        if self._threads == 1:
            for row in rows:
                yield row, self.score(row)
            return
        with ThreadPoolExecutor(self._threads) as threads:
            ahead: deque[tuple[Row, Future[Scored]]] = deque()
            try:
                for row in rows:
                    ahead.append((row, threads.submit(self.score, row)))
                    if len(ahead) >= 8 * self._threads:
                        first, done = ahead.popleft()
                        yield first, done.result()
                while ahead:
                    first, done = ahead.popleft()
                    yield first, done.result()
            finally:
                for _, waiting in ahead:
                    waiting.cancel()

    def explain(self, row: Row, scored: Scored) -> tuple[str, ...]:
        """The steps that led to a row's score, as sentences."""
        if self.settings is None:
            return (*scored.steps, f"score {scored.score:.4g}")
        return explain(row.response or "", row.ground_truth, row.extra_info, self.settings, scored.scores)

    def _built_in(self, row: Row) -> Scored:
        assert self.settings is not None
        given = row.response or ""
        found, steps = score.judge(row.data_source, given, row.ground_truth, row.extra_info, self.settings)
        return Scored(found, outcome.named(found) or "wrong", steps)


def _recorded(row: Row) -> Scored:
    if row.recorded is None:
        raise InvalidInput("the row has no `score` to compare with")
    return Scored({"score": row.recorded}, "scored" if row.recorded > 0 else "wrong", ("what the file says",))
