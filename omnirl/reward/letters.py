"""Choice letters: one canonical form for one letter or several, what a text says about them, and a row's options."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from omnirl.errors import InvalidInput
from omnirl.reward.label import shown
from omnirl.reward.notation import boxes, widths

LETTERS = "ABCDE"
_MARKS = re.compile(
    r"\\(?:text|textbf|mathrm|mathbf|boxed|left|right|quad)\b|[\s$*_`'\"(){}\[\].:!~\\,;/&+|\u3001\u3002\u3010\u3011]+"
)
_AND = re.compile("(?i:and)|\u548c|\u4e0e")
_HEAD = re.compile("\\s{0,8}[(\uff08]?([A-Ea-e])(?:[.:\u3001\uff1a\uff0e]|[)\uff09][.:]?)\\s*")
_LOOSE = re.compile(r"(?<![A-Za-z])[A-E](?![A-Za-z])")
_ARTICLE = re.compile(r"(?<![A-Za-z])A(?= [A-Za-z])")
_LEADS = re.compile(r"(?i:answer|option|choice)[\s:*]{0,4}(?i:is)?[\s:*(]{0,4}A(?![A-Za-z])")
_OPENING = " \t\r\n*$"
_MOST = 200


def canonical(text: str) -> str | None:
    """`B`, `b.`, `(B)`, `B, D` or `D and B` as letters in order; None when the text says anything else.

    Only one letter alone may be a small one: `bad` is a word.
    """
    if len(text) > _MOST:
        return None
    bare = _AND.sub(" ", _MARKS.sub(" ", widths(text))).replace(" ", "")
    bare = bare.upper() if len(bare) == 1 else bare
    return "".join(sorted(bare)) if bare and set(bare) <= set(LETTERS) and len(set(bare)) == len(bare) else None


def headed(text: str) -> str | None:
    """The letter of `B. a dog` or `(B) a dog`; None without one."""
    text = text[:_MOST].lstrip(_OPENING)
    found = _HEAD.match(text)
    return found[1].upper() if found and text[found.end() :] else None


def unheaded(text: str) -> str:
    """What follows the letter of `B. a dog`; the text itself without one."""
    text = text.lstrip(_OPENING)
    found = _HEAD.match(text)
    return text[found.end() :] if found else text


def said(text: str) -> str | None:
    """The letters that a text answers with, in order; None when it names none.

    What the boxes hold counts, all of them together; without letters in boxes, a text that is nothing but letters;
    then the capitals that stand alone. An `A` that a word follows is an article, unless "answer", "option" or "choice"
    leads to it; beside other letters it still counts, so that listing the letters never pays.
    """
    boxed = [canonical(box) or headed(box) for box in boxes(text)]
    found = set("".join(letters for letters in boxed if letters))
    if not found:
        whole = canonical(text) or headed(text)
        found = set(whole or _LOOSE.findall(widths(text)))
        if found == {"A"} and not whole and not _LEADS.search(text):
            text = widths(text)
            if len(_ARTICLE.findall(text)) == len(_LOOSE.findall(text)):
                return None
    return "".join(sorted(found)) or None


def last(text: str) -> str | None:
    """The last capital from A to E that stands alone; None without one."""
    found = _LOOSE.findall(text)
    return found[-1] if found else None


def options(extra_info: Mapping[str, Any]) -> dict[str, str]:
    """The contents of a row's options by letter; raises InvalidInput for options that are neither list nor JSON."""
    given = extra_info.get("options")
    if isinstance(given, str):
        try:
            given = json.loads(given) if given.strip() else None
        except (ValueError, RecursionError) as error:
            raise InvalidInput(
                f"`extra_info.options` {shown(given)} is not valid JSON", hint='a list of texts, or {"A": "5.25", ...}'
            ) from error
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {str(key).strip().upper(): str(text) for key, text in given.items() if text is not None}
    if hasattr(given, "tolist"):  # numpy, which is how verl reads lists
        given = given.tolist()
    if not isinstance(given, Sequence):
        raise InvalidInput(f"`extra_info.options` {shown(given)} is no list", hint="a list of texts such as `A. 5.25`")
    found: dict[str, str] = {}
    for letter, text in zip(LETTERS, map(str, given), strict=False):
        head = _HEAD.match(text)
        found[head[1].upper() if head else letter] = text[head.end() :] if head else text
    return found
