"""What asks math-verify, one pair of answers at a time, in a worker process of its own (see `worker`).

It imports math-verify and nothing of omnirl, so it is ready in a fraction of a second.

    {"gold": G, "answer": A, "short": S or null, "exact": bool, "explain": bool, "limit_s": n}
        -> {"outcome": "scored" | "wrong" | "timeout", "by_short": bool, "steps": [...], "leaving": bool}
    {"audit": G, "limit_s": n} -> {"kinds": [names of sympy classes or "str"], "undefined": bool, "leaving": bool}

`gold` is what a box of the label holds. `answer` is any text. `short` is its only box where that decides: it is read
first, and the whole answer only when nothing in the box could be read.
"""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

STEP_S = 5
"""math-verify's own limit for reading a text and for one comparison; it gives up in silence."""
OURS_S = 1
"""The limit for either of our own looks at two values."""
_CPU_MARGIN_S = 2
_PROBE, _PROBE_STEP = 0.6180339887, 0.3819660113
_MOST_SHOWN = 200
_ANY_FAULT = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError),
)
"""What sympy is known to raise for values that it cannot look at."""
_EXACT_WITHIN = 1e-9
_ROUNDED_WITHIN = 1e-2


class Judge:
    """math-verify with verl's way of calling it, its silent time-outs made visible, and one rule of our own."""

    def __init__(self) -> None:
        from math_verify.grader import verify
        from math_verify.parser import ExprExtractionConfig, LatexExtractionConfig, parse
        from math_verify.utils import timeout

        limited = timeout(timeout_seconds=OURS_S)
        self._differ = limited(_differ)
        self._as_large = limited(_as_large)
        self._show = limited(_show)
        self._verify = verify
        self._parse = parse
        self._gold_targets = (LatexExtractionConfig(),)
        self._targets = (ExprExtractionConfig(), LatexExtractionConfig())
        self.read_gold = lru_cache(maxsize=4096)(self._read_gold)
        self.slow = False

    def _read_gold(self, gold: str) -> list[Any]:
        found: list[Any] = self._timed(lambda: self._parse("\\boxed{" + gold + "}", self._gold_targets))
        return found

    def _timed(self, step: Any) -> Any:
        started = time.monotonic()
        found = step()
        self.slow = self.slow or time.monotonic() - started >= STEP_S
        return found

    def judge(self, request: dict[str, Any]) -> dict[str, Any]:
        """Whether the answer equals the gold one."""
        self.slow = False
        gold = self.read_gold(request["gold"])
        short, by_short, found = request["short"], False, []
        if short is not None:
            if short == "\\boxed{" + request["gold"] + "}":
                found = gold  # the same text is read alike
            else:
                found = self._timed(lambda: self._parse(short, self._targets, extraction_mode="first_match"))
            by_short = bool(found) and not isinstance(found[0], str)
        if not by_short:
            found = self._timed(lambda: self._parse(request["answer"], self._targets))
        steps: list[str] = []
        if request["explain"]:
            for what, values in (("label", gold), ("answer", found)):
                steps.append(f"math-verify reads the {what} as {self._sure(self._show, values, unsure='a formula')}")
        right = False
        for theirs, ours in product(found, gold):
            if self._sure(self._differ, ours, theirs, unsure=False):
                continue
            if self._timed(lambda: self._verify(ours, theirs)):  # noqa: B023 - called at once
                right = not request["exact"] or self._sure(self._as_large, ours, theirs, unsure=True)
                if right:
                    break
                steps.append("math-verify calls them equal, and they differ by more than rounding")
        if self.slow:
            self.read_gold.cache_clear()  # what was given up on must not pass for what was read
        return {
            "outcome": "scored" if right else "timeout" if self.slow else "wrong",
            "by_short": by_short,
            "steps": steps,
        }

    @staticmethod
    def _sure(look: Callable[..., T], *values: Any, unsure: T) -> T:
        """What a look at values says, or `unsure` where it finds nothing to say, or not in time."""
        from math_verify.errors import TimeoutException

        try:
            return look(*values)
        except (*_ANY_FAULT, TimeoutException):
            return unsure

    def audit(self, gold: str) -> dict[str, Any]:
        """What a label is read as."""
        import sympy

        undefined = (sympy.nan, sympy.zoo)
        found = self.read_gold(gold)
        return {
            "kinds": ["str" if isinstance(item, str) else type(item).__name__ for item in found],
            "undefined": any(isinstance(item, sympy.Basic) and item.has(*undefined) for item in found),
        }

    def check(self) -> None:
        """Raise RuntimeError when this installation of math-verify cannot read LaTeX at all."""
        # No two of these are alike as texts, which math-verify compares when it can read neither.
        asked = {
            "gold": "\\frac{2}{4}",
            "answer": "\\boxed{\\sqrt{\\frac{1}{4}}}",
            "short": None,
            "exact": True,
            "explain": True,
        }
        said = self.judge(asked)
        if said["outcome"] != "scored":
            raise RuntimeError(f"math-verify cannot read LaTeX here: {'; '.join(said['steps'])}")


def _differ(gold: Any, answer: Any) -> bool:
    """Whether two expressions clearly have different values, so that math-verify need not try to simplify that away.

    Formulas in variables are looked at in one point. Percentages, single letters, relations and sets have rules of
    their own in math-verify; it is asked about them.
    """
    import sympy

    if not all(isinstance(value, sympy.Expr) for value in (gold, answer)) or gold == answer:
        return False
    if any(isinstance(value, sympy.Symbol) or value.has(sympy.UnevaluatedExpr) for value in (gold, answer)):
        return False
    letters = sorted(gold.free_symbols | answer.free_symbols, key=str)
    point = {letter: _PROBE + _PROBE_STEP * index for index, letter in enumerate(letters)}
    left, right = (complex(value.evalf(15, subs=point)) for value in (gold, answer))
    # Decimals are equal to six places for math-verify.
    return abs(left - right) > max(1e-4, 1e-6 * max(abs(left), abs(right)))


def _as_large(gold: Any, answer: Any) -> bool:
    """Whether two numbers that math-verify calls equal have nearly one size: it calls all tiny numbers equal."""
    import sympy

    if not all(isinstance(value, sympy.Expr) and value.is_number for value in (gold, answer)):
        return True
    left, right = sympy.N(gold.doit()), sympy.N(answer.doit())
    within = _ROUNDED_WITHIN if gold.has(sympy.Float) or answer.has(sympy.Float) else _EXACT_WITHIN
    return bool(abs(left - right) <= within * max(abs(left), abs(right)))


def _show(found: Sequence[Any]) -> str:
    if not found:
        return "nothing"
    first = found[0]
    return f"{str(first)[:_MOST_SHOWN]!a} ({'text' if isinstance(first, str) else type(first).__name__})"


def _peak_bytes() -> int:
    """The most memory that this program has held; `ru_maxrss` would count the parent's, from before it was started."""
    with Path("/proc/self/status").open("rb") as status:
        line = next(line for line in status if line.startswith(b"VmHWM"))
    return int(line.split()[1]) * 1024


def _limit_cpu(seconds: int) -> None:
    """Let the kernel end this process if a request uses more: nothing else can, once the parent is gone."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime) + seconds + _CPU_MARGIN_S
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def prepare(memory_bytes: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Limit this process, import math-verify, and return what answers a request."""
    limit = int(memory_bytes)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable(logging.CRITICAL)
    judge = Judge()
    judge.check()

    def respond(request: dict[str, Any]) -> dict[str, Any]:
        _limit_cpu(request["limit_s"])
        said = judge.audit(request["audit"]) if "audit" in request else judge.judge(request)
        leaving = _peak_bytes() > limit // 2
        if leaving and said.get("outcome") == "wrong":
            said["outcome"] = "timeout"  # math-verify takes a lack of memory for a difference
        return {**said, "leaving": leaving}

    return respond
