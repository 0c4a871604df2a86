"""Whether an answer equals a gold one, by math-verify's verdict: fast paths, a memory, and the pool of workers."""

from __future__ import annotations

import hashlib
import math
import os
import re
import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from omnirl.reward.notation import only_box
from omnirl.reward.outcome import Outcome
from omnirl.reward.pool import Died, Pool, TimedOut

TIMEOUT_S = 20.0
MEMORY_BYTES = 400 << 20
MOST_CHARACTERS = 50_000
"""Only the end of a longer answer is looked at."""
_REMEMBERED = 20_000
_LONG = 256
_NUMBER = r"(-?(?:0|[1-9][0-9]{0,8})(?:\.[0-9]{1,4})?)"
_PLAIN = re.compile(_NUMBER)
_PLAIN_ANSWER = re.compile(
    rf"\s{{0,8}}(?:{_NUMBER}|\\boxed\{{{_NUMBER}\}}|\$\\boxed\{{{_NUMBER}\}}\$|\${_NUMBER}\$)\s{{0,8}}"
)
_HINT = "pip install 'math-verify>=0.9,<0.10'"
Key = tuple[bool, str, str | bytes]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one comparison; `steps` are sentences on how, `by_short` says that the only box decided."""

    outcome: Outcome
    steps: tuple[str, ...] = ()
    by_short: bool = False

    @property
    def right(self) -> bool:
        return self.outcome == "scored"


_SAME_NUMBER = Verdict("scored", ("both are plain numbers, and equal",), True)
_OTHER_NUMBER = Verdict("wrong", ("both are plain numbers, and differ",), True)


class Verifier:
    """Compares answers; safe for threads. A verdict is remembered, a time-out or a fault is not.

    Args:
        workers: the most math-verify processes at once.
        timeout_s: from when a worker is handed an answer; waiting for a worker costs nothing.
    """

    def __init__(self, *, workers: int, timeout_s: float = TIMEOUT_S) -> None:
        self.pool = Pool(("verifier.py", str(MEMORY_BYTES)), size=workers, what="math-verify", hint=_HINT)
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._known: OrderedDict[Key, Verdict] = OrderedDict()
        self._asked: dict[Key, Future[Verdict]] = {}

    def judge(self, gold: str, answer: str, *, exact: bool = True, explain: bool = False) -> Verdict:
        r"""Compare `answer`, any text, with what `\boxed{gold}` means.

        Args:
            exact: call numbers different that math-verify takes for equal because both are tiny.
            explain: ask a worker in any case, and for the steps, which may take as long as the verdict.

        Raises:
            EnvironmentLacks: math-verify cannot be started here.
        """
        answer = answer[-MOST_CHARACTERS:]
        short = only_box(answer)
        quick = _quick(gold, answer if short is None else short)
        if quick is not None:
            return quick
        if explain:
            return self._ask({"gold": gold, "answer": answer, "short": short, "exact": exact, "explain": True})
        keys: list[Key] = [(exact, gold, _brief(text)) for text in (short, answer) if text is not None]
        while True:
            with self._lock:
                known = self._recall(keys)
                if known is not None:
                    return known
                asked = self._asked.get(keys[0])
                mine: Future[Verdict] = Future()
                if asked is None:
                    self._asked[keys[0]] = mine
            if asked is None:
                break
            verdict = asked.result()
            if verdict.by_short or len(keys) == 1 or verdict.outcome in ("timeout", "scorer_error"):
                return verdict
            keys = keys[1:]  # the box that both have did not decide
        return self._lead(keys[0], mine, gold, answer, short, exact)

    def audit(self, gold: str) -> dict[str, Any]:
        """What a label is read as: `kinds` and `undefined`, or `outcome` `timeout` or `scorer_error`."""
        try:
            return self.pool.ask({"audit": gold, "limit_s": self._limit_s}, self._timeout_s)
        except TimedOut:
            return {"outcome": "timeout"}
        except Died:
            return {"outcome": "scorer_error"}

    @property
    def _limit_s(self) -> int:
        return math.ceil(self._timeout_s)

    def _recall(self, keys: list[Key]) -> Verdict | None:
        for key in keys:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                return known
        return None

    def _lead(self, key: Key, mine: Future[Verdict], gold: str, answer: str, short: str | None, exact: bool) -> Verdict:
        """Ask a worker, for this caller and for all that wait for the same."""
        try:
            request = {"gold": gold, "answer": answer, "short": short, "exact": exact, "explain": False}
            verdict = self._ask(request)
        except BaseException as error:
            with self._lock:
                self._asked.pop(key, None)
            mine.set_exception(error)
            raise
        with self._lock:
            if verdict.outcome in ("scored", "wrong"):
                read = short if short is not None and verdict.by_short else answer
                self._known[exact, gold, _brief(read)] = verdict
                if len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)
            self._asked.pop(key, None)
        mine.set_result(verdict)
        return verdict

    def _ask(self, request: dict[str, Any]) -> Verdict:
        try:
            said = self.pool.ask({**request, "limit_s": self._limit_s}, self._timeout_s)
        except TimedOut:
            return Verdict("timeout", (f"no verdict within {self._timeout_s:g} s; the worker is replaced",))
        except Died as died:
            return Verdict("scorer_error", (f"two workers in a row ended over it (exit code {died.code})",))
        if "fault" in said:
            return Verdict("scorer_error", (str(said["fault"]),))
        return Verdict(said["outcome"], tuple(said["steps"]), said["by_short"])


def _brief(text: str) -> str | bytes:
    """What stands for a text in the memory: a whole response would be too much to keep."""
    if len(text) <= _LONG:
        return text
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _quick(gold: str, answer: str) -> Verdict | None:
    """The verdict where both are plain numbers of few digits, which math-verify compares as what they are."""
    if not _PLAIN.fullmatch(gold):
        return None
    found = _PLAIN_ANSWER.fullmatch(answer)
    if found is None or found.lastindex is None:
        return None
    return _SAME_NUMBER if float(gold) == float(found[found.lastindex]) else _OTHER_NUMBER


_verifiers: dict[tuple[int, float, int], Verifier] = {}


def shared(workers: int, timeout_s: float = TIMEOUT_S) -> Verifier:
    """This process's verifier with these settings. A fork has its own: its parent's may be in use."""
    key = (workers, timeout_s, os.getpid())
    return _verifiers.get(key) or _verifiers.setdefault(key, Verifier(workers=workers, timeout_s=timeout_s))


def replaced() -> int:
    """How many of this process's workers hung, died or grew too large, and were replaced."""
    return sum(verifier.pool.replaced for (_, _, pid), verifier in _verifiers.items() if pid == os.getpid())
