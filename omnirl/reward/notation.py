r"""One notation for what is written in several: full-width forms, degrees, percentages, `\boxed {2}`; and boxes.

All of it takes time linear in the text.
"""

from __future__ import annotations

import re
from typing import Literal

Percent = Literal["unit", "fraction"]
"""`unit`: 50% is 50 and not 0.5. `fraction`: 50% is 0.5 and not 50."""

_BOX = "\\boxed{"
_WIDE = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {
    0x3000: " ",
    0x2212: "-",
    0x00BA: "\u00b0",
    0x02DA: "\u00b0",
    0x2103: "\u00b0C",
    0x2109: "\u00b0F",
}
_LOOSE_BOX = re.compile(r"\\boxed[ \t]+\{")
_DEGREES = re.compile(
    r"(?<=[0-9A-Za-z)}])[ \t]{0,8}(?:\^[ \t]?(?:\{[ \t]?\\circ[ \t]?\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])|\u00b0)"
    r"(?:[ \t]?(?:\\text|\\mathrm)?(?:\{[CF]\}|[CF](?![A-Za-z])))?"
    r"|(?<=[0-9])[ \t]{0,8}\\circ(?![A-Za-z])"
)
_PERCENT = re.compile(r"(?<=[0-9.])[ \t]{0,8}\\?%")
_PERCENTAGE = re.compile(r"(?<![0-9.])([0-9]{1,100}(?:\.[0-9]{1,100})?)[ \t]{0,8}\\?%")
_DELIMITED = re.compile(r"\$|\\\(|\\\[|\\boxed")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_GROUP_COMMAND = re.compile(r"\\(?:text|mathrm|textbf|mathbf|operatorname|begin|end)\{[^{}]{0,200}\}")
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_MOST_BARE = 200


def plain(text: str, percent: Percent) -> str:
    """The text in one notation."""
    text = _LOOSE_BOX.sub(r"\\boxed{", text.translate(_WIDE))
    text = _DEGREES.sub("", text)
    if "%" in text:
        text = _PERCENT.sub("", text) if percent == "unit" else _PERCENTAGE.sub(r"\\frac{\1}{100}", text)
    return text


def widths(text: str) -> str:
    """Full-width letters, digits and marks as their plain forms."""
    return text.translate(_WIDE)


def delimited(text: str) -> str:
    r"""Bare LaTeX such as `12\sqrt{7}` between dollar signs; math-verify would read the 12 alone."""
    if len(text) > _MOST_BARE or "\\" not in text or "\n" in text or _DELIMITED.search(text):
        return text
    return text if _WORD.search(_GROUP_COMMAND.sub("", text)) else f"${text}$"


def boxes(text: str, most: int = 8) -> list[str]:
    r"""What the first `most` boxes hold, outermost ones only; a box that never closes holds nothing."""
    found: list[str] = []
    at = text.find(_BOX)
    while at >= 0 and len(found) < most:
        start = at + len(_BOX)
        end = _closing(text, start)
        if end < 0:
            break
        found.append(text[start:end])
        at = text.find(_BOX, end)
    return found


def only_box(text: str) -> str | None:
    r"""The text's one box with its braces, when nothing else in the text can count for math-verify; None otherwise.

    math-verify prefers, in this order: what follows "final answer is", formulas between `$`, `\(`, `\[` or brackets
    that hold a box, and what stands from the first `\boxed{` to the last brace of the text.
    """
    at = text.find(_BOX)
    if at < 0 or text.find(_BOX, at + 1) >= 0:
        return None
    end = text.rfind("}")
    if end <= at + len(_BOX) or any(mark in text for mark in ("$", "\\(", "\\[", " [", "\n[", "\t[")):
        return None
    return None if "final answer" in text.lower() else text[at : end + 1]


def _closing(text: str, start: int) -> int:
    """Where the brace that opens before `start` closes; -1 if nowhere. Escaped braces count for nothing."""
    depth = 1
    for found in _BRACES.finditer(text, start):
        mark = found[0]
        if len(mark) == 1:
            depth += 1 if mark == "{" else -1
            if not depth:
                return found.start()
    return -1
