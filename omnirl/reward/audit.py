"""What is wrong with the labels of a data set, before a run scores against them."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from omnirl.errors import InvalidInput
from omnirl.reward import mmk12, score, verify
from omnirl.reward.options import Settings, read_settings

_AT_ONCE = 256
_OTHER = "\\boxed{\\sqrt{17}}"
_NO_VALUES = ("nan", "none", "null", "inf", "-inf")
_WORDS = re.compile(r"[A-Za-z]{3,}(?:[ -][A-Za-z]+)*")


@dataclass(frozen=True, slots=True)
class Finding:
    """One label at fault; `label` as it was given."""

    label: object
    code: str
    message: str
    severity: Literal["error", "warning"]


def audit(scorer: str, labels: Iterable[Hashable], options: Mapping[str, Any] | None = None) -> Iterator[Finding]:
    """Look at every label once; yields what is wrong, in the order of the labels.

    Codes: `label_invalid` (no label for the scorer), and for `mmk12` `label_unreadable` (math-verify reads nothing),
    `label_undefined` (it reads nan or a division by zero), `label_fails_itself` (its own text in a box scores below 1),
    `label_too_slow`; and as warnings `label_text_only` (only the very same text will ever be right) and `label_word`
    (it is read as a product of letters, so that their order does not matter).

    Raises EnvironmentLacks when math-verify is needed and does not work here.
    """
    settings = read_settings(scorer, options or {})
    with ThreadPoolExecutor(settings.workers) as threads:
        different = iter(dict.fromkeys(labels))
        while batch := list(islice(different, _AT_ONCE)):
            for found in threads.map(lambda label: _look(label, settings), batch):
                if found is not None:
                    yield found


def _look(label: object, settings: Settings) -> Finding | None:
    try:
        score.check_label(settings.scorer, label)
        asked = mmk12.audited(label, settings.percent) if settings.scorer == "mmk12" else None
    except InvalidInput as error:
        return Finding(label, "label_invalid", error.message, "error")
    if asked is None:
        return None
    verifier = verify.shared(settings.workers, settings.timeout_s)
    read = verifier.audit(asked)
    found = _fault(asked, read)
    if found is None:
        own = f"<answer>\\boxed{{{label}}}</answer>"
        judged = mmk12.judge(own, label, {}, verifier, percent=settings.percent, explain=True)
        if judged.accuracy < 1.0:
            found = "label_fails_itself", f"its own text scores {judged.accuracy:g}: {judged.steps[-1]}", "error"
        elif verifier.judge(asked, _OTHER).outcome == "timeout":
            found = "label_too_slow", "math-verify takes too long to compare another answer with it", "error"
    if found is None and set(read["kinds"]) == {"str"}:
        found = "label_text_only", "math-verify reads it as text: only the very same text is right", "warning"
    elif found is None and _WORDS.fullmatch(asked) and read["kinds"][0] in ("Mul", "Pow"):
        found = "label_word", "math-verify reads it as a product of letters: `cat` and `act` are the same", "warning"
    return Finding(label, found[0], found[1], found[2]) if found else None


def _fault(label: str, read: Mapping[str, Any]) -> tuple[str, str, Literal["error", "warning"]] | None:
    if "kinds" not in read:
        return "label_too_slow", "math-verify takes too long to read it", "error"
    if not read["kinds"]:
        return "label_unreadable", "math-verify reads nothing in it", "error"
    if read["undefined"] or label.lower() in _NO_VALUES:
        return "label_undefined", "math-verify reads a value that is not defined, such as a division by zero", "error"
    return None
