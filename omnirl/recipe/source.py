"""One TOML file: its values, and the line of every key in it."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnirl.errors import InvalidInput

Key = tuple[str, ...]

_TOKEN = re.compile(
    r'(?P<string>"""(?:\\.|[^\\])*?"""(?!")|' + r"'''.*?'''(?!')" + r'|"(?:\\.|[^"\\\n])*"|' + r"'[^'\n]*')"
    r"|(?P<comment>#[^\n]*)|(?P<newline>\n)|(?P<open>[\[{])|(?P<close>[\]}])|(?P<equal>=)|(?P<word>[^\s\"'#\[\]{}=]+|\s)",
    re.DOTALL,
)
_KEY_PART = re.compile(r'"(?:\\.|[^"\\])*"|' + r"'[^']*'|[A-Za-z0-9_-]+")
_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_BARE_VALUE = re.compile(r"^\s*(?:\"[^\"]*\"|[\w.-])+\s*=\s*(?P<value>[^\s\"'\[{#][^\"'\[{#]*?)\s*(?:#.*)?$")
_OTHER_WORDS = {"True": "true", "False": "false"}


@dataclass(frozen=True, slots=True)
class Source:
    """A TOML file that was read.

    `shown` is the path as the user should see it; `lines` are counted from 1.
    """

    path: Path
    shown: str
    values: dict[str, Any]
    lines: dict[Key, int]

    def origin(self, key: Key) -> str:
        """`file:line` of a key, or of the innermost table or value that holds it."""
        while key and key not in self.lines:
            key = key[:-1]
        return f"{self.shown}:{self.lines[key]}" if key else self.shown


def shown(path: Path) -> str:
    """A path to print: relative where it lies below the working folder, so that it can be clicked and pasted."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def read(path: Path) -> Source:
    """Read one recipe file. A byte-order mark and Windows line ends are accepted.

    Raises:
        InvalidInput: it cannot be read, is empty, is not UTF-8 or is not TOML; with `file:line`.
    """
    name = shown(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"cannot be read: {error.strerror}", where=name) from error
    text = _decode(data, name)
    if not text.strip():
        raise InvalidInput("is empty", where=name, hint="a recipe needs at least one `key = value` line")
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message, line = plain(error, text)
        raise InvalidInput(message, where=f"{name}:{line}", hint=bare_word(text.splitlines()[line - 1])) from error
    return Source(path, name, values, key_lines(text))


def _decode(data: bytes, name: str) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InvalidInput("is UTF-16, not UTF-8", where=f"{name}:1", hint="save the file as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        found = f"byte 0x{data[error.start]:02x} is not UTF-8"
        raise InvalidInput(found, where=f"{name}:{line}", hint="save the file as UTF-8") from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise InvalidInput("holds a NUL character", where=f"{name}:{line}", hint="this is not a text file")
    return text.replace("\r\n", "\n")


def plain(error: tomllib.TOMLDecodeError, text: str) -> tuple[str, int]:
    """What the TOML parser says, in our own form: a message and the line it means."""
    said = str(error)
    found = _POSITION.search(said)
    line = int(found[1]) if found and found[1] else max(1, len(text.splitlines()))
    what = said[: found.start()] if found else said
    column = f", column {found[2]}" if found and found[2] else ""
    return f"is not TOML: {what[:1].lower()}{what[1:]}{column}", line


def bare_word(line: str) -> str | None:
    """For `key = some words`, which is not TOML: how to write it."""
    found = _BARE_VALUE.match(line)
    if not found:
        return None
    value = found["value"]
    key = line[: line.index("=")].strip()
    if value in _OTHER_WORDS:
        return f"write `{key} = {_OTHER_WORDS[value]}`"
    if value in ("None", "null", "nil"):
        return "TOML has no null: leave the setting out"
    return f'text needs quotes: `{key} = "{value}"`'


def key_lines(text: str) -> dict[Key, int]:
    """Map each key and table of a valid TOML text to the line where it first stands.

    Keys inside an inline table or an array are not listed: the key that holds them is.
    """
    lines: dict[Key, int] = {}
    table: Key = ()
    for line, statement in _statements(text):
        if statement.startswith("["):
            table = _parts(statement)
            key = table
        else:
            key = table + _parts(statement)
        for end in range(1, len(key) + 1):
            lines.setdefault(key[:end], line)
    return lines


def _statements(text: str) -> list[tuple[int, str]]:
    """Each statement's first line, and its text up to the `=` (a header's whole text)."""
    found: list[tuple[int, str]] = []
    head, start, line, depth, in_value = "", 1, 1, 0, False
    for token in _TOKEN.finditer(text):
        kind, raw = token.lastgroup, token.group()
        if kind == "newline" and depth == 0:
            if head.strip():
                found.append((start, head.strip()))
            head, in_value = "", False
        elif kind == "equal" and depth == 0:
            in_value = True
        elif kind != "comment" and not in_value:
            start = start if head.strip() else line
            head += raw
        depth += (kind == "open") - (kind == "close")
        line += raw.count("\n")
    if head.strip():
        found.append((start, head.strip()))
    return found


def _parts(text: str) -> Key:
    raw = _KEY_PART.findall(text)
    return tuple(tomllib.loads(f"k = {part}")["k"] if part[0] in "\"'" else part for part in raw)
