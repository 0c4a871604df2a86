"""Multiple choice: the payload of the response's first `<answer>...</answer>` must equal that of the label exactly.

The rule, whole: the payload is the text from the first `<answer>` to the next `</answer>`, stripped of white space at
both ends. Nothing is normalised, so case counts. A response without a payload scores 0. A label without one is no
label: it raises and matches nothing, not even a response that has no payload either.
"""

from __future__ import annotations

from omnirl.errors import InvalidInput
from omnirl.reward.label import shown

_OPEN = "<answer>"
_CLOSE = "</answer>"


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


def grade(response: str, ground_truth: object) -> float:
    """1.0 when the response's payload equals the label's, else 0.0; raises InvalidInput for a label without payload."""
    return float(payload(response) == read_label(ground_truth))
