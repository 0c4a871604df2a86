r"""Mathematics with pictures: the answer by letters or by math-verify, and a reward for its format.

    score = (accuracy + format_weight * format) / (1 + format_weight)

`format` is half for exactly one `<answer>...</answer>` pair, and half for a `\boxed{` inside the first pair: 1.0 is a
perfect response. The answer is what the first pair holds, or the whole response where there is none.

- A label of letters (`B`, `BD`) is compared as letters, without math-verify. Where the answer names no letter, it may
  be the content of the label's option (`extra_info["options"]`), which has accuracy 0.5.
- Any other label is compared by math-verify, after both sides are brought into one notation (`notation.plain`).

`mode = "reference"` leaves out what is added here: the last capital that stands alone is the letter, several letters
are no choice, notation is left alone save for degrees after digits, and math-verify's word is final.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from omnirl.errors import InvalidInput
from omnirl.reward import letters, notation
from omnirl.reward.label import shown
from omnirl.reward.outcome import Outcome
from omnirl.reward.verify import Verifier

Mode = Literal["default", "reference"]

OPTION_CONTENT = 0.5
"""Accuracy of an answer that gives the right option's content in place of its letter."""
_OPEN, _CLOSE = "<answer>", "</answer>"
_MOST_LABEL = 2000
_EMPTY = re.compile(r"[\s$]*")
_UNSOUND = re.compile("[\x00\ud800-\udfff]")
_ANGLE = re.compile(r"(\d(?:\.\d+)?)\s{0,8}(?:\u00b0|\^\\circ|\\circ)")
_TIME = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")


@dataclass(frozen=True, slots=True)
class Judged:
    """One response, judged. `format` is 0, 0.5 or 1; `steps` say how it came about."""

    accuracy: float
    format: float
    outcome: Outcome
    steps: tuple[str, ...]


def score(accuracy: float, format: float, weight: float) -> float:
    """Accuracy and format in [0, 1] together, in [0, 1] again."""
    return (accuracy + weight * format) / (1 + weight)


def read_label(ground_truth: object) -> str:
    """A row's ground truth as text; raises InvalidInput when it cannot be one."""
    if isinstance(ground_truth, int | float) and not isinstance(ground_truth, bool) and abs(ground_truth) < 1e15:
        return str(ground_truth)
    text = ground_truth.strip() if isinstance(ground_truth, str) else ""
    if _EMPTY.fullmatch(text) or len(text) > _MOST_LABEL or _UNSOUND.search(text):
        raise InvalidInput(
            f"ground truth {shown(ground_truth)} has no answer",
            hint=f"the scorer `mmk12` needs a letter, a number or LaTeX of at most {_MOST_LABEL} characters",
        )
    return text


def split(response: str) -> tuple[str | None, float]:
    """What the first answer pair holds, stripped; and the share of the format checks that hold."""
    start = response.find(_OPEN)
    end = response.find(_CLOSE, start + len(_OPEN)) if start >= 0 else -1
    if end < 0:
        return None, 0.0
    inner = response[start + len(_OPEN) : end].strip()
    single = response.count(_OPEN) == 1 and response.count(_CLOSE) == 1
    return inner, (single + ("\\boxed{" in inner)) / 2


def judge(
    response: str,
    ground_truth: object,
    extra_info: Mapping[str, Any],
    verifier: Verifier,
    *,
    mode: Mode = "default",
    percent: notation.Percent = "unit",
    explain: bool = False,
) -> Judged:
    """Judge one response; `explain` asks math-verify for its steps too.

    Raises:
        InvalidInput: the label or the options are none.
        EnvironmentLacks: math-verify is needed and does not work here.
    """
    raw = read_label(ground_truth)
    if mode == "reference":
        label, text = _degrees(raw), _degrees(response)
    else:
        label, text = _plain(raw, percent), notation.plain(response, percent)
    inner, format = split(text)
    answer = text if inner is None else inner
    wanted = choice(label, mode)
    if wanted is None:
        return _by_value(label, answer, format, verifier, mode, explain)
    named = letters.last(answer) if mode == "reference" else letters.said(answer)
    if named is not None:
        right = named == wanted
        step = f"a choice: the label is {wanted}, the answer says {named}"
        return Judged(float(right), format, "scored" if right else "wrong", (step,))
    step = f"a choice: the label is {wanted}, and the answer names no letter"
    content = letters.options(extra_info).get(wanted, "").strip()
    if not content:
        return Judged(0.0, format, "wrong", (step, f"there is no content of option {wanted} to compare with"))
    if mode == "default":
        content = _plain(content, percent)
    found = _by_value(content, answer, format, verifier, mode, explain)
    steps = (step, f"compared with the content of option {wanted}, which counts half", *found.steps)
    return Judged(found.accuracy * OPTION_CONTENT, format, found.outcome, steps)


def choice(label: str, mode: Mode = "default") -> str | None:
    """The letters that a label consists of, in order; None for a label of any other kind."""
    if len(label) == 1 and label.upper() in letters.LETTERS:
        return label.upper()
    if mode == "reference" or label != label.upper():
        return None
    return letters.canonical(label)


def audited(ground_truth: object, percent: notation.Percent = "unit") -> str | None:
    """The label as math-verify is given it; None when it is one of letters or a time, which need no math-verify."""
    label = _plain(read_label(ground_truth), percent)
    return None if choice(label) or _times(label) else label


def _by_value(label: str, answer: str, format: float, verifier: Verifier, mode: Mode, explain: bool) -> Judged:
    if mode == "default":
        times = _times(label), _times("".join(notation.boxes(answer)[-1:]) or answer)
        if None not in times:
            same = times[0] == times[1]
            return Judged(float(same), format, "scored" if same else "wrong", ("both are times of day or durations",))
        answer = notation.delimited(answer)
    found = verifier.judge(label, answer, exact=mode == "default", explain=explain)
    return Judged(float(found.right), format, found.outcome, found.steps)


def _times(text: str) -> tuple[int, ...] | None:
    match = _TIME.fullmatch(text.strip())
    return tuple(int(part or 0) for part in match.groups()) if match else None


@lru_cache(maxsize=4096)
def _plain(text: str, percent: notation.Percent) -> str:
    return notation.plain(text, percent)


def _degrees(text: str) -> str:
    return _ANGLE.sub(r"\1", text)


def values(weight: float) -> Iterator[tuple[str, float]]:
    """What each kind of response is worth, best first."""
    for answer, accuracy in (("right", 1.0), ("the option's content", OPTION_CONTENT), ("wrong", 0.0)):
        for form, share in (("pair and box", 1.0), ("one of them", 0.5), ("neither", 0.0)):
            yield f"{answer}, {form}", score(accuracy, share, weight)
