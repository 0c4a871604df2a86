"""Between a source and its parquet: rows wait here, in order, until their media are judged."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omnirl.data.media import Judge, Verdict
from omnirl.data.sample import Drop, Medium, Row

WINDOW_ROWS = 512
WINDOW_BYTES = 16 << 20
"""How many rows, and how much of them, may wait at once: enough to keep every prober busy, little enough to hold."""

_HEARD = ("audio", "soundtrack")


@dataclass(slots=True)
class Tally:
    """The distinct media files of one split, of one kind; inline images are counted one by one."""

    usable: int = 0
    unusable: Counter[str] = field(default_factory=Counter)
    silent: int = 0
    seconds: float = 0.0

    def add(self, verdict: Verdict) -> None:
        if verdict.reason:
            self.unusable[verdict.reason] += 1
            return
        self.usable += 1
        self.silent += bool(verdict.facts.get("silent"))
        self.seconds += float(verdict.facts.get("audio_duration_s") or verdict.facts.get("duration_s") or 0.0)

    def as_dict(self, *, heard: bool) -> dict[str, Any]:
        counts = {
            "unique": self.usable + self.unusable.total(),
            "usable": self.usable,
            "unusable": dict(sorted(self.unusable.items())),
        }
        return counts | ({"silent": self.silent, "seconds": round(self.seconds, 3)} if heard else {})


@dataclass(slots=True)
class Media:
    """What one split's media came to, by kind."""

    kinds: dict[str, Tally] = field(default_factory=dict)
    seen: set[tuple[str, str]] = field(default_factory=set)
    """Kind and path of each file."""

    def add(self, medium: Medium, verdict: Verdict) -> None:
        if isinstance(medium.content, Path):
            name = (medium.kind, str(medium.content))
            if name in self.seen:
                return
            self.seen.add(name)
        self.kinds.setdefault(medium.kind, Tally()).add(verdict)

    def as_dict(self) -> dict[str, Any]:
        return {kind: tally.as_dict(heard=kind in _HEARD) for kind, tally in sorted(self.kinds.items())}

    def audio(self) -> dict[str, Any]:
        """The part that is listened to; for soundtracks the files are videos."""
        heard = {kind: tally for kind, tally in self.as_dict().items() if kind in _HEARD}
        return next(iter(heard.values()), {})


@dataclass(slots=True)
class _Waiting:
    record: Row | Drop
    where: str
    media: tuple[Medium, ...]
    answers: tuple[Verdict | Future[Verdict], ...]
    size_bytes: int


def judged(stream: Iterator[Row | Drop], judge: Judge, media: Media) -> Iterator[tuple[Row, tuple[Medium, ...]] | Drop]:
    """The records of `stream` in their order; a row becomes a Drop with the reason of its first unusable medium.

    Media are asked about ahead of the row whose turn it is, within `WINDOW_ROWS` and `WINDOW_BYTES`. `media` gets the
    verdicts. What such a Drop says about where is the row's number in the stream and the name of the file.
    """
    waiting: deque[_Waiting] = deque()
    held = 0
    for number, record in enumerate(stream):
        one = _ask(record, number, judge)
        waiting.append(one)
        held += one.size_bytes
        while waiting and (len(waiting) > WINDOW_ROWS or held > WINDOW_BYTES or _ready(waiting[0])):
            first = waiting.popleft()
            held -= first.size_bytes
            yield _settle(first, media)
    while waiting:
        yield _settle(waiting.popleft(), media)


def _ask(record: Row | Drop, number: int, judge: Judge) -> _Waiting:
    if isinstance(record, Drop):
        return _Waiting(record, record.where, (), (), 0)
    media = record.media()
    answers = tuple(judge.answer(*medium) for medium in media)
    return _Waiting(record, f"record {number}", media, answers, record.size_bytes())


def _ready(one: _Waiting) -> bool:
    return all(isinstance(answer, Verdict) or answer.done() for answer in one.answers)


def _settle(one: _Waiting, media: Media) -> tuple[Row, tuple[Medium, ...]] | Drop:
    if isinstance(one.record, Drop):
        return one.record
    fault: Drop | None = None
    for medium, answer in zip(one.media, one.answers, strict=True):
        verdict = answer if isinstance(answer, Verdict) else answer.result()
        media.add(medium, verdict)
        if verdict.reason and fault is None:
            name = f" ({medium.content})" if isinstance(medium.content, Path) else ""
            fault = Drop(verdict.reason, one.where + name)
    return fault or (one.record, one.media)
