"""Options with letters, as data sets write them: `A. cat`, `B) cat`, `(C) cat`, `D: cat`, with wide marks too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

LETTERS = "ABCDEFGH"

# Behind the escapes are the wide forms of parentheses, full stop and colon, and the Chinese enumeration comma.
_OPEN, _CLOSE = r"[(\uff08]", r"[)\uff09]"
_END = r"[.\uff0e)\uff09\u3001:\uff1a]"
_MARK = rf"(?:{_OPEN}[ \t]*([{LETTERS}])[ \t]*{_CLOSE}|([{LETTERS}])[ \t]*{_END})"
_OPTION = re.compile(rf"{_MARK}(.*)", re.IGNORECASE | re.DOTALL)
_LINE = re.compile(rf"^[ \t]*{_MARK}(.*)$", re.MULTILINE)
_FOLLOWERS = {
    letter: re.compile(rf"[ \t\u3000](?:{_OPEN}{follower}{_CLOSE}|{follower}{_END})")
    for letter, follower in pairwise(LETTERS)
}


def read_option(text: str) -> tuple[str, str] | None:
    """The upper-case letter of one option and what it says; None when there is no letter, or nothing behind it."""
    match = _OPTION.fullmatch(text.strip())
    if match is None:
        return None
    bracketed, bare, said = match.groups()
    said = said.strip()
    return ((bracketed or bare).upper(), said) if said else None


def find_options(text: str) -> dict[str, str]:
    """The options that a question's lines list, by letter; several may share a line. Empty when there are none.

    Lines count as options when their letters (upper case) begin with A, ascend, and are two or more. An option may say
    nothing: it is then shown in the picture. Linear in the text.
    """
    found: dict[str, str] = {}
    lines = [(match[1] or match[2], match[3].strip()) for match in _LINE.finditer(text)]
    begun = {letter for letter, _ in lines}
    for letter, said in lines:
        for one, part in _split(letter, said, begun):
            if found and one <= max(found):
                return {}
            found[one] = part
    return found if len(found) > 1 and "A" in found else {}


def is_ambiguous(options: Mapping[str, str], letter: str, *, fold_case: bool) -> bool:
    """Whether another option says what the one with `letter` says; white space does not count."""

    said = [" ".join(text.split()) for text in options.values()]
    if fold_case:
        said = [text.casefold() for text in said]
    if len(set(said)) == len(said):
        return False
    right = said[list(options).index(letter)]
    return bool(right) and said.count(right) > 1


def listed(options: Mapping[str, str]) -> tuple[str, ...]:
    """The options as texts that keep their letters, `A. cat`."""
    return tuple([f"{letter}. {text}" for letter, text in options.items()])


def _split(letter: str, said: str, begun: set[str]) -> list[tuple[str, str]]:
    """What one line says, cut before each next letter that has no line of its own: `1 B. 2 C. 3`."""
    parts: list[tuple[str, str]] = []
    while letter in _FOLLOWERS:
        follower = LETTERS[LETTERS.index(letter) + 1]
        match = None if follower in begun else _FOLLOWERS[letter].search(said)
        if match is None:
            break
        parts.append((letter, said[: match.start()].strip()))
        letter, said = follower, said[match.end() :].strip()
    return [*parts, (letter, said)]
