"""Multiple choice: the payload of the response's first `<answer>...</answer>` must equal that of the label exactly.

The rule, whole: the payload is the text from the first `<answer>` to the next `</answer>`, stripped of white space at
both ends. Nothing is normalised, so case counts. A response without a payload scores 0. A label without one is no
label: it raises and matches nothing, not even a response that has no payload either.

`mode = "strict"` looks at what follows the thinking alone, and there every payload must equal the label: several
distinct ones are hedging. `mode = "lenient"` reads the same place as the rule does, and takes case, full-width forms,
punctuation, a box and the option's text for notation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal

from omnirl.errors import InvalidInput
from omnirl.reward import letters, notation
from omnirl.reward.label import shown

Mode = Literal["default", "strict", "lenient"]

_OPEN = "<answer>"
_CLOSE = "</answer>"
_THINK = "<think>"
_THOUGHT = "</think>"
_WRAPPED = re.compile(r"\\(?:boxed|text|textbf|mathrm)\{([^{}]*)\}")
_EDGES = " \t\r\n.,:;!?*_`'\"$()[]{}<>\u3002\u3001\u201c\u201d\u2018\u2019"
_MOST_LENIENT = 2000


def payload(text: str) -> str | None:
    """What stands between the first tag pair, stripped; None without a pair or with nothing inside. Linear time."""
    start = text.find(_OPEN)
    if start < 0:
        return None
    start += len(_OPEN)
    end = text.find(_CLOSE, start)
    if end < 0:
        return None
    return text[start:end].strip() or None


def read_label(ground_truth: object) -> str:
    """The payload of a row's ground truth; raises InvalidInput when it has none."""
    found = payload(ground_truth) if isinstance(ground_truth, str) else None
    if found is None or _OPEN in found:
        raise InvalidInput(
            f"ground truth {shown(ground_truth)} has no answer",
            hint="the scorer `choice` needs labels such as `<answer>B</answer>`",
        )
    return found


def grade(
    response: str, ground_truth: object, extra_info: Mapping[str, Any] | None = None, mode: Mode = "default"
) -> float:
    """1.0 when the response answers with the label, by the mode's rule, else 0.0; raises InvalidInput for no label."""
    return float(judge(response, ground_truth, extra_info, mode)[0])


def judge(
    response: str, ground_truth: object, extra_info: Mapping[str, Any] | None = None, mode: Mode = "default"
) -> tuple[bool, str | None]:
    """Whether the response answers with the label, and with what; raises InvalidInput for a label without an answer."""
    label = _known_label(ground_truth) if type(ground_truth) is str else read_label(ground_truth)
    if mode == "strict":
        found = list(dict.fromkeys(payloads(after_thinking(response))))
        return found == [label], " and ".join(found) or None
    given = payload(response)
    if mode == "default":
        return given == label, given
    return given is not None and _matches(given, label, extra_info or {}), given


@lru_cache(maxsize=4096)
def _known_label(ground_truth: str) -> str:
    return read_label(ground_truth)


def after_thinking(response: str) -> str:
    """What follows the last `</think>`, up to a `<think>` that never closes."""
    return response[response.rfind(_THOUGHT) + len(_THOUGHT) if _THOUGHT in response else 0 :].partition(_THINK)[0]


def payloads(text: str) -> Iterator[str]:
    """Every tag pair's payload, stripped; empty ones too. Linear time."""
    start = text.find(_OPEN)
    while start >= 0:
        start += len(_OPEN)
        end = text.find(_CLOSE, start)
        if end < 0:
            return
        yield text[start:end].strip()
        start = text.find(_OPEN, end)


def bare(text: str) -> str:
    """A payload without what is notation: case, width, wrapping commands, punctuation and spaces at its edges."""
    text = notation.widths(text[:_MOST_LENIENT])
    return " ".join(_WRAPPED.sub(r"\1", text).strip(_EDGES).casefold().split())


def _matches(given: str, label: str, extra_info: Mapping[str, Any]) -> bool:
    """Whether a payload means the label's; the text of an option counts for its letter, a wrong text against it."""
    if len(given) > _MOST_LENIENT:
        return False
    wanted = letters.canonical(label)
    if wanted is None:
        return bare(given) == bare(label)
    named = letters.canonical(given)
    if named is not None:
        return named == wanted
    options = {letter: bare(text) for letter, text in letters.options(extra_info).items()}
    letter = letters.headed(given)
    text = bare(given if letter is None else letters.unheaded(given))
    if letter is None:
        return bool(text) and [name for name, content in options.items() if content == text] == [wanted]
    return letter == wanted and (text == options.get(letter, text) or text not in options.values())
