"""What verl's JSONL logger wrote, over all attempts of a run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REWARD = ("critic/score/mean", "critic/rewards/mean")
PEARSON = "training/rollout_actor_probs_pearson_corr"
STEP_SECONDS = "timing_s/step"
TOKENS_PER_SECOND = "perf/throughput"
RESPONSE_TOKENS = "response_length/mean"
DROPPED_GROUPS = "training/filter_groups/evicted_samples"
REVERSE_KL = "distillation/reverse_kl_k3"

_NUMPY = re.compile(r"np\.\w+\((.*)\)")
_VALIDATION = re.compile(r"val-(?:core|aux)/(?P<source>.+)/(?P<value>[^/]+)/mean@\d+")
_ACCURACY = ("acc", "accuracy", "reward", "score")


@dataclass(frozen=True, slots=True)
class Step:
    """The metrics of one step. Numbers alone; NaN and infinities stay what they are."""

    step: int
    values: Mapping[str, float]

    def first(self, names: Iterable[str]) -> float | None:
        """The first of `names` that there is."""
        return next((self.values[name] for name in names if name in self.values), None)

    @property
    def reward(self) -> float | None:
        return self.first(REWARD)

    @property
    def pearson(self) -> float | None:
        """Correlation of the rollout's and the trainer's token probabilities."""
        return self.values.get(PEARSON)

    @property
    def trained(self) -> bool:
        """Whether the model was updated; a validation before the first step is no step."""
        return any(name.startswith(("actor/", "critic/")) for name in self.values)

    def accuracy(self) -> dict[str, float]:
        """Held-out accuracy (or what the scorer gives in its place) by data source."""
        found: dict[str, tuple[int, float]] = {}
        for name, value in self.values.items():
            match = _VALIDATION.fullmatch(name)
            if match and match["value"] in _ACCURACY:
                rank = _ACCURACY.index(match["value"])
                if match["source"] not in found or rank < found[match["source"]][0]:
                    found[match["source"]] = (rank, value)
        return {source: value for source, (_, value) in found.items()}


@dataclass(slots=True)
class Tail:
    """Reads what was added to a metrics file since the last look; a half-written last line waits for its end."""

    path: Path
    steps: dict[int, Step] = field(default_factory=dict)
    unreadable: int = 0
    _offset: int = 0

    def look(self) -> list[Step]:
        """The steps added or completed since the last look, oldest first."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                added = file.read()
        except OSError:
            return []
        whole, newline, _ = added.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        new: dict[int, Step] = {}
        for raw in whole.split(b"\n") if newline else []:
            step = parse(raw)
            if step is not None:
                new[step.step] = self.steps[step.step] = _joined(self.steps.get(step.step), step)
            elif raw.strip():
                self.unreadable += 1
        return [new[number] for number in sorted(new)]


def read(files: Iterable[Path]) -> list[Step]:
    """The steps of several attempts' files, oldest attempt first.

    From the first step that an attempt trained, earlier attempts do not count: their weights were given up.
    """
    merged: dict[int, Step] = {}
    for path in files:
        added = list(_file(path))
        first = min((step.step for step in added if step.trained), default=math.inf)
        merged = {number: step for number, step in merged.items() if number < first}
        for step in added:
            merged[step.step] = _joined(merged.get(step.step), step)
    return [merged[number] for number in sorted(merged)]


def parse(raw: bytes) -> Step | None:
    """The step of one line; None for what is not a line of verl's logger."""
    try:
        document = json.loads(raw.decode("utf-8", errors="replace"))
        step, data = int(document["step"]), dict(document["data"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    values = ((str(name), _number(value)) for name, value in data.items())
    return Step(step, {name: value for name, value in values if value is not None})


def last_trained(steps: Iterable[Step]) -> int:
    """The last step that updated the model; 0 before the first."""
    return max((step.step for step in steps if step.trained), default=0)


def minimum(values: Iterable[float | None]) -> float | None:
    """The least of the values; NaN if any is, None if there are none."""
    known = [value for value in values if value is not None]
    return next((value for value in known if math.isnan(value)), min(known, default=None))


def _file(path: Path) -> Iterator[Step]:
    tail = Tail(path)
    tail.look()
    last = _unfinished(path)
    if last is not None:
        tail.steps[last.step] = _joined(tail.steps.get(last.step), last)
    return iter(tail.steps.values())


def _unfinished(path: Path) -> Step | None:
    """The last line when it lacks its newline but is complete otherwise."""
    try:
        raw = path.read_bytes().rpartition(b"\n")[2]
    except OSError:
        return None
    return parse(raw)


def _joined(known: Step | None, step: Step) -> Step:
    """verl may log one step twice: the validation of a step comes in a line of its own."""
    return step if known is None else Step(step.step, {**known.values, **step.values})


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str):
        match = _NUMPY.fullmatch(value.strip())
        try:
            return float(match[1] if match else value)
        except ValueError:
            return None
    return None
