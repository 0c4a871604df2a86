"""The curves of a run that tell whether its algorithm works."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omnirl.run.chart import chart
from omnirl.run.metrics import DROPPED_GROUPS, RESPONSE_TOKENS, REVERSE_KL, Step

Line = list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Curve:
    """What belongs into one chart.

    Attributes:
        title: what is shown, without the steps.
        lines: step and value by the name of a series; NaN and infinities stay what they are.
        shown: names of the series that a chart shows.
        share: whether the values are shares of 1.
    """

    title: str
    lines: Mapping[str, Line]
    shown: tuple[str, ...]
    share: bool = False

    def text(self) -> Iterator[str]:
        """A heading with the first and last value where there is one series, and the chart."""
        lines = {name.removeprefix("accuracy/"): self.lines[name] for name in self.shown}
        known = [[value for _, value in line if math.isfinite(value)] for line in lines.values()]
        values = [value for line in known for value in line]
        heading = f"{self.title} by step"
        if len(known) == 1 and len(values) > 1:
            heading += f": {values[0]:.4g} at first, {values[-1]:.4g} at last"
        if lost := sum(map(len, lines.values())) - len(values):
            heading += f" ({lost} that {'are' if lost > 1 else 'is'} no number left out)"
        yield heading
        if self.share:
            yield from chart(lines, low=0.0, high=1.0)
        else:
            yield from chart(lines, number=_number(values))


def curves(steps: Sequence[Step], algo: Mapping[str, Any]) -> list[Curve]:
    """Reward and held-out accuracy, then what the algorithm's own parts are judged by; empty without a step.

    Args:
        algo: the table `algo` of the run's recipe.
    """
    trained = [step for step in steps if step.trained]
    found = [_alone("reward of a step's answers", "reward", [(s.step, s.reward) for s in trained]), _accuracy(steps)]
    if algo.get("filter_groups"):
        # verl writes the number only where there is one
        dropped = [(step.step, step.values.get(DROPPED_GROUPS, 0.0)) for step in trained]
        found.append(_alone("groups dropped for equal rewards", "dropped_groups", dropped))
    if algo.get("overlong_buffer"):
        tokens = [(step.step, step.values.get(RESPONSE_TOKENS)) for step in trained]
        found.append(_alone("tokens of a response", "response_tokens", tokens))
    if algo.get("kind") == "opd":
        divergence = [(step.step, step.values.get(REVERSE_KL)) for step in trained]
        found.append(_alone("divergence of a token from the teacher (reverse KL)", "reverse_kl", divergence))
    return [curve for curve in found if curve.lines]


def as_dict(found: Sequence[Curve]) -> dict[str, Line]:
    """Every series by name."""
    return {name: line for curve in found for name, line in curve.lines.items()}


def _alone(title: str, name: str, points: Sequence[tuple[int, float | None]]) -> Curve:
    line = [(step, value) for step, value in points if value is not None]
    return Curve(title, {name: line} if line else {}, (name,))


def _accuracy(steps: Sequence[Step]) -> Curve:
    lines: dict[str, Line] = {}
    for step in steps:
        for source, value in sorted(step.accuracy().items()):
            lines.setdefault(f"accuracy/{source}", []).append((step.step, value))
    # what is scored once, such as a probe, is no curve beside what is scored again and again
    most = min(2, max(map(len, lines.values()), default=0))
    values = [value for line in lines.values() for _, value in line if math.isfinite(value)]
    shown = tuple(name for name, line in lines.items() if len(line) >= most)
    return Curve("held-out accuracy", lines, shown, share=all(0 <= value <= 1 for value in values))


def _number(values: Sequence[float]) -> str:
    """A format whose labels differ over the range of the values."""
    span = max(values, default=0.0) - min(values, default=0.0)
    if not span or not 1e-6 < span < 1e7:
        return "{:.4g}"
    return f"{{:.{max(0, 2 - math.floor(math.log10(span)))}f}}"
