"""Between a source and its parquet: rows wait here, in order, until their media are judged."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
    seen: set[Medium] = field(default_factory=set)
    """The files."""

    def add(self, medium: Medium, verdict: Verdict) -> None:
        if isinstance(medium.content, str):
            if medium in self.seen:
                return
            self.seen.add(medium)
        tally = self.kinds.get(medium.kind)
        if tally is None:
            tally = self.kinds[medium.kind] = Tally()
        tally.add(verdict)

    def as_dict(self) -> dict[str, Any]:
        return {kind: tally.as_dict(heard=kind in _HEARD) for kind, tally in sorted(self.kinds.items())}

    def audio(self) -> dict[str, Any]:
        """The part that is listened to; for soundtracks the files are videos."""
        heard = {kind: tally for kind, tally in self.as_dict().items() if kind in _HEARD}
        return next(iter(heard.values()), {})


class _Waiting(NamedTuple):
    row: Row
    number: int
    media: tuple[Medium, ...]
    answers: list[Verdict | Future[Verdict]]


def judged(stream: Iterator[Row | Drop], judge: Judge, media: Media) -> Iterator[tuple[Row, tuple[Medium, ...]] | Drop]:
    """The records of `stream` in their order; a row becomes a Drop with the reason of its first unusable medium.

    Media are asked about ahead of the row whose turn it is, within `WINDOW_ROWS` and `WINDOW_BYTES`. `media` gets the
    verdicts. What such a Drop says about where is the row's number in the stream and the name of the file.
    """
    waiting: deque[_Waiting | Drop] = deque()
    held = 0
    for number, record in enumerate(stream):
        one: _Waiting | Drop = record if isinstance(record, Drop) else _ask(record, number, judge)
        if not waiting and _is_ready(one):
            yield _settle(one, media)
            continue
        waiting.append(one)
        held += _size_bytes(one)
        while waiting and (len(waiting) > WINDOW_ROWS or held > WINDOW_BYTES or _is_ready(waiting[0])):
            held -= _size_bytes(waiting[0])
            yield _settle(waiting.popleft(), media)
    while waiting:
        yield _settle(waiting.popleft(), media)


def _ask(row: Row, number: int, judge: Judge) -> _Waiting:
    media = row.media()
    return _Waiting(row, number, media, [judge.answer(*medium) for medium in media])


def _is_ready(one: _Waiting | Drop) -> bool:
    if not isinstance(one, Drop):
        for answer in one.answers:
            if isinstance(answer, Future) and not answer.done():
                return False
    return True


def _size_bytes(one: _Waiting | Drop) -> int:
    return 0 if isinstance(one, Drop) else one.row.size_bytes()


def _settle(one: _Waiting | Drop, media: Media) -> tuple[Row, tuple[Medium, ...]] | Drop:
    if isinstance(one, Drop):
        return one
    fault: Drop | None = None
    for medium, answer in zip(one.media, one.answers, strict=True):
        verdict = answer.result() if isinstance(answer, Future) else answer
        media.add(medium, verdict)
        if verdict.reason and fault is None:
            name = f" ({medium.content})" if isinstance(medium.content, str) else ""
            fault = Drop(verdict.reason, f"record {one.number}{name}")
    return fault or (one.row, one.media)
