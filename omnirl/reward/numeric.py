r"""Numbers: the response's final answer must equal the label exactly, as rational numbers.

Where the final answer stands: right after the last `####`, on its line; when no number follows it there, or there is
no `####`, in the last `\boxed{...}`. What counts as a number: an optional sign and currency, digits with or without
thousands commas, an optional decimal part, or a fraction `3/4`; full-width digits, LaTeX spacing and `\frac{3}{4}` are
understood. Words, a unit, a per cent sign or a full stop may follow, further digits may not: `#### 5 or 6` is no
answer. Exponents (`1e3`), powers and times (`12:00`) are no numbers here.

`mode = "reference"` is verl's rule instead: of the last 300 characters, what follows the last `#### ` as digits, commas
and points, without its commas, must be the label's very text.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from omnirl.errors import InvalidInput
from omnirl.reward.label import shown

Mode = Literal["default", "reference"]

MAX_DIGITS = 100
"""A longer run of digits is no number: exact arithmetic on it would take time that grows with its square."""

_MARK = "####"
_BOX = "\\boxed"
_SPACES = " \t"
_NEAR = 200
"""Characters at the end that are searched first: the answer is nearly always there."""
_SHORT = 20
_BLANK = " \t\n"
_SPAN = 2000
"""Characters looked at after a mark; bounds the time, whatever the model wrote."""

_WIDE = {0xFF10 + digit: str(digit) for digit in range(10)} | str.maketrans("，．－＋＄％／−", ",.-+$%/-")  # noqa: RUF001
_REWRITES = (
    (re.compile(r"\\[dt]?frac\s*\{\s*([0-9]{1,100})\s*\}\s*\{\s*([0-9]{1,100})\s*\}"), r"\1/\2"),
    (re.compile(r"\{,\}|(?<=[0-9])\\,(?=[0-9])"), ","),
    (re.compile(r"\\[,;: ]|[*~]"), " "),
    (re.compile(r"\\!|\\left|\\right|\\(?:text|textbf|mathrm|mathbf)(?=\{)|[{}]|\\(?=[$%£€])"), ""),
)
_NUMBER = re.compile(
    r"[$€£¥₹]{0,2} ?(?P<sign>[-+]?) ?[$€£¥₹]? ?"
    r"(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)?(?P<decimals>\.[0-9]+)?"
    r"(?: ?/ ?(?P<under>[0-9]+))?"
)
_LABEL = re.compile(r"[-+$€£¥₹0-9.,/% ]+")
_COMMON = re.compile(r" ?\$?(-?(?:[0-9]{1,3}(?:,[0-9]{3}){1,5}|[0-9]{1,18}))(?:\.0{0,9})?[ \t]{0,8}(?:\n|$)")
_COMMON_BOX = re.compile(r"\{(-?[0-9]{1,18})\}")
_REFERENCE = re.compile(r"#### (-?[0-9.,]+)")
_REFERENCE_SPAN = 300


def read_number(text: str) -> Fraction | None:
    """The number that `text` begins with, provided no further digit follows in it; None otherwise."""
    plain = text.translate(_WIDE)
    for pattern, replacement in _REWRITES:
        plain = pattern.sub(replacement, plain)
    plain = plain.strip()
    match = _NUMBER.match(plain)
    if match is None or any(map(_spoils, plain[match.end() :])):
        return None
    whole, decimals, under = match["whole"] or "", match["decimals"] or "", match["under"] or ""
    if (not whole and not decimals) or len(whole) + len(decimals) + len(under) > MAX_DIGITS:
        return None
    value = Fraction(f"{match['sign']}{whole.replace(',', '') or '0'}{decimals}")
    if not under:
        return value
    return value / int(under) if int(under) else None


def final_answer(response: str) -> Fraction | int | None:
    """The number that the response ends on, by the module's rule; None when it gives none. Linear time."""
    at = response.rfind(_MARK, -_NEAR)
    if at < 0:
        at = response.rfind(_MARK)
    if at >= 0:
        start = at + len(_MARK)
        if len(response) - start < _SHORT and (tail := response[start:].strip(_BLANK)).isdecimal() and tail.isascii():
            return int(tail)
        common = _COMMON.match(response, start)
        if common:
            number = common[1]
            return int(number.replace(",", "") if "," in number else number)
        found = read_number(response[start : start + _SPAN].split("\n", 1)[0])
        if found is not None:
            return found
    at = response.rfind(_BOX)
    if at < 0:
        return None
    common = _COMMON_BOX.match(response, at + len(_BOX))
    if common:
        return int(common[1])
    boxed = _box(response, at)
    return None if boxed is None else read_number(boxed)


def read_label(ground_truth: object) -> Fraction:
    """A row's ground truth as a number; raises InvalidInput when it is anything else, or more than a number."""
    text = _label_text(ground_truth).translate(_WIDE).strip()
    value = read_number(text) if _LABEL.fullmatch(text) else None
    if value is None:
        raise InvalidInput(
            f"ground truth {shown(ground_truth)} is not a number",
            hint="the scorer `gsm8k` needs labels such as `72`, `-3` or `0.5`",
        )
    return value


def grade(response: str, ground_truth: object, mode: Mode = "default") -> float:
    """1.0 when the final answer equals the label, else 0.0; raises InvalidInput for a label that is no number."""
    return float(judge(response, ground_truth, mode)[0])


def judge(response: str, ground_truth: object, mode: Mode = "default") -> tuple[bool, Fraction | int | str | None]:
    """Whether the final answer equals the label, and the answer; raises InvalidInput for a label that is no number."""
    answer: Fraction | int | str | None
    label: Fraction | int | str
    if mode == "reference":
        answer, label = reference_answer(response), reference_label(ground_truth)
    else:
        label = _known_label(ground_truth) if isinstance(ground_truth, str) else read_label(ground_truth)
        answer = final_answer(response)
    return answer == label, answer


def reference_answer(response: str) -> str | None:
    """The answer as verl's own scorer takes it; None without one."""
    found = _REFERENCE.findall(response[-_REFERENCE_SPAN:])
    return found[-1].replace(",", "") if found else None


def reference_label(ground_truth: object) -> str:
    """The label as verl's own scorer compares it; raises InvalidInput when it is no text, or empty."""
    if not isinstance(ground_truth, str) or not ground_truth:
        raise InvalidInput(f"ground truth {shown(ground_truth)} has no answer", hint="labels are text, such as `72`")
    return ground_truth


@lru_cache(maxsize=4096)
def _known_label(ground_truth: str) -> Fraction | int:
    if ground_truth.isascii() and ground_truth.isdecimal() and len(ground_truth) <= MAX_DIGITS:
        return int(ground_truth)
    value = read_label(ground_truth)
    return value.numerator if value.denominator == 1 else value  # integers compare ten times as fast


def _box(response: str, at: int) -> str | None:
    r"""What the `\boxed{...}` at `at` holds; None when it does not close within the span."""
    start = at + len(_BOX)
    rest = response[start : start + _SPAN].lstrip(_SPACES)
    if not rest.startswith("{"):
        return None
    depth = 0
    for position, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[1:position]
    return None


def _spoils(character: str) -> bool:
    """Whether a character after a number makes it another number (a digit, a power, a half) or is no text at all."""
    category = unicodedata.category(character)
    return category.startswith("N") or category in ("Cs", "Cc")


def _label_text(ground_truth: object) -> str:
    if isinstance(ground_truth, str):
        return ground_truth[:_SPAN]
    if isinstance(ground_truth, bool) or not isinstance(ground_truth, int | float):
        return ""
    # Python refuses to print integers of some thousand digits.
    return "" if abs(ground_truth) > 10**MAX_DIGITS else str(ground_truth)
