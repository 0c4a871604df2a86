"""How far an attempt is: the lines of the live display, and the plain line for a log."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from omnirl.run.metrics import STEP_SECONDS, TOKENS_PER_SECOND, Step, Tail
from omnirl.run.record import Attempt

PHASES = {
    "": "starting",
    "model": "preparing the model",
    "ray": "starting Ray",
    "workers": "starting the workers",
    "proof": "comparing rollout and trainer",
    "training": "training",
    "done": "finished",
}
_RECENT = 5


@dataclass(slots=True)
class Watch:
    """Follows an attempt's phase and metrics files.

    Args:
        attempt: the attempt to follow.
        steps_total: the last step planned; None when it is not known.
        first_step: the step that the attempt starts from (0, or that of its checkpoint).
    """

    attempt: Attempt
    steps_total: int | None
    first_step: int = 0
    clock: Callable[[], float] = time.monotonic
    tail: Tail = field(init=False)
    phase: tuple[str, str] = ("", "")
    _began: float = field(init=False)
    _seconds: list[float] = field(default_factory=list)
    _last: Step | None = None

    def __post_init__(self) -> None:
        self.tail = Tail(self.attempt.metrics)
        self._began = self.clock()

    @property
    def step(self) -> int:
        return self._last.step if self._last else self.first_step

    def look(self) -> list[str]:
        """Read what is new; returns one plain line for each change of phase and each step since the last look."""
        said: list[str] = []
        phase = self.attempt.phase()
        if phase != self.phase:
            self.phase = phase
            said.append(f"{_duration(self.clock() - self._began)}  {self._phase_text()}")
        for step in self.tail.look():
            if step.trained:
                self._last = step
                self._seconds = [*self._seconds, step.values.get(STEP_SECONDS, math.nan)][-_RECENT:]
                said.append(f"{_duration(self.clock() - self._began)}  {'  '.join(self._step_parts(step))}")
            elif accuracy := step.accuracy():
                said.append(f"validation at step {step.step}: {_mean_accuracy(accuracy):.3f}")
        return said

    def lines(self) -> list[str]:
        """The display as it stands now."""
        elapsed = _duration(self.clock() - self._began)
        if self._last is None:
            return [f"{self._phase_text()}  {elapsed}"]
        filled = ""
        if self.steps_total:
            done = round(20 * min(1.0, self.step / self.steps_total))
            filled = f"  {'━' * done}{'─' * (20 - done)}"
        return [f"{self._phase_text()}{filled}  {elapsed}", "  ".join(self._step_parts(self._last))]

    def eta_s(self) -> float | None:
        """Seconds until the last step at the pace of the last few; None when that is not known."""
        known = sorted(seconds for seconds in self._seconds if math.isfinite(seconds))
        if not known or not self.steps_total:
            return None
        return max(0, self.steps_total - self.step) * known[len(known) // 2]

    def _phase_text(self) -> str:
        name, detail = self.phase
        text = PHASES.get(name, name)
        return f"{text}: {detail}" if detail else text

    def _step_parts(self, step: Step) -> list[str]:
        parts = [f"step {step.step}" + (f"/{self.steps_total}" if self.steps_total else "")]
        if step.reward is not None:
            parts.append(f"reward {step.reward:.3f}")
        if step.pearson is not None:
            parts.append(f"Pearson {step.pearson:.5f}")
        if TOKENS_PER_SECOND in step.values:
            parts.append(f"{step.values[TOKENS_PER_SECOND]:,.0f} tokens/s")
        if accuracy := step.accuracy():
            parts.append(f"held-out {_mean_accuracy(accuracy):.3f}")
        eta = self.eta_s()
        if eta:
            parts.append(f"ETA {_duration(eta)}")
        return parts


def _mean_accuracy(accuracy: dict[str, float]) -> float:
    """The mean over sources; probes (`source@variant`) are no part of the held-out score."""
    plain = [value for source, value in accuracy.items() if "@" not in source] or list(accuracy.values())
    return sum(plain) / len(plain)


def _duration(seconds: float) -> str:
    whole = int(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
