"""Answers made to hang, blow up or crash a scorer: each ends within its time, and a right one behind them counts."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from omnirl.reward import mmk12
from omnirl.reward.verify import Verifier

MOST_BYTES = 1 << 30


def answers(count: int, seed: int) -> list[str]:
    """Towers of powers, deep nesting, a megabyte of one character, half surrogates, NULs: each a little different."""
    rng = random.Random(seed)
    kinds = (
        lambda n: f"\\boxed{{{n}^{{9^{{9^9}}}}}}",
        lambda n: f"\\boxed{{{n}5^{{5^{{5^{{5^5}}}}}}}}",
        lambda n: f"\\boxed{{{n}000000!}}",
        lambda n: "\\frac{1}{" * 500 + str(n),
        lambda n: "\\boxed{" + "\\frac{1}{" * (100 + n % 400) + "2" + "}" * (101 + n % 400),
        lambda n: "\\boxed{" * 5000 + str(n) + "}" * 5000,
        lambda n: "\\boxed{" + "(" * (1000 + n) + "1" + ")" * (1000 + n) + "}",
        lambda n: rng.choice("(1{$\\ A.") * (1_000_000 + n),
        lambda n: "\\boxed{" + str(n) + "1" * 100_000 + "}",
        lambda n: f"\\boxed{{{n}\ud83d}}",
        lambda n: f"\\boxed{{{n}\0}}",
        lambda n: f"\\boxed{{{'+'.join(f'x_{{{i}}}^{{{n}}}' for i in range(300))}}}",
        lambda n: f"\\boxed{{\\sum_{{i=1}}^{{{n}0^9}} i^i}}",
        lambda n: f"\\boxed{{(x+y+z)^{{{n}00}} - 1}}",
        lambda n: f"$\\int_0^{{{n}}} \\sin(x^x) dx$ is the answer",
    )
    return [kinds[number % len(kinds)](number + 15) for number in range(count)]


class Peak(threading.Thread):
    """The most memory that the workers held together."""

    def __init__(self, verifier: Verifier) -> None:
        super().__init__(daemon=True)
        self._verifier = verifier
        self.bytes = 0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.05):
            held = 0
            for pid in self._verifier.pool.pids():
                try:
                    held += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
                except (OSError, IndexError):  # it has just ended
                    continue
            self.bytes = max(self.bytes, held)


def attack(count: int, deadline_s: float) -> None:
    verifier = Verifier(workers=2, timeout_s=deadline_s)
    peak = Peak(verifier)
    peak.start()
    took: list[float] = []

    def one(answer: str) -> mmk12.Judged:
        started = time.monotonic()
        found = mmk12.judge(f"<answer>{answer}</answer>", "5", {}, verifier)
        took.append(time.monotonic() - started)
        return found

    try:
        with ThreadPoolExecutor(2) as threads:  # as many as there are workers, so that no time is spent waiting
            found = list(threads.map(one, answers(count, 0)))
            assert threads.submit(one, "\\boxed{\\frac{10}{2}}").result().accuracy == 1.0
        peak.done.set()
        peak.join()
        assert [n for n, judged in enumerate(found) if judged.accuracy] == []
        assert {judged.outcome for judged in found} <= {"wrong", "timeout"}
        # The towers can never be computed, and half a surrogate or a NUL is no number.
        assert {judged.outcome for n, judged in enumerate(found) if n % 15 in (0, 1)} == {"timeout"}
        assert {judged.outcome for n, judged in enumerate(found) if n % 15 in (9, 10)} == {"wrong"}
        # A worker's start and a busy machine come on top of the deadline.
        assert max(took) < deadline_s + 20
        assert peak.bytes < MOST_BYTES
    finally:
        verifier.pool.close()


@pytest.mark.slow
def test_one_hostile_answer_of_each_kind() -> None:
    attack(15, deadline_s=2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_thousand_hostile_answers() -> None:
    attack(1000, deadline_s=1)
