"""Hydra's `key=value` words: written so that every value survives its grammar, and read with their types."""

from __future__ import annotations

import re
from typing import Any

_PLAIN = re.compile(r"[A-Za-z_][\w./@-]*", re.ASCII)
_RESERVED = re.compile(r"true|false|null|inf|nan", re.IGNORECASE)
_INT = re.compile(r"[+-]?(0|[1-9](_?\d)*)", re.ASCII)
_FLOAT = re.compile(
    r"[+-]?((0|[1-9](_?\d)*)?\.\d(_?\d)*|(0|[1-9](_?\d)*)\.|((0|[1-9](_?\d)*)?\.?\d*)[eE][+-]?\d(_?\d)*|inf|nan)",
    re.I | re.ASCII,
)
_KEY = re.compile(r"(?P<plus>\+{0,2})(?P<key>[A-Za-z_$][\w$-]*(\.[\w$-]+)*)=(?P<value>.*)", re.DOTALL | re.ASCII)
_ESCAPED = re.compile(r"\\([\\()\[\]{}:=, \t])")
_STOPS = re.compile(r"[,\[\]{}()\"']")


def write(value: Any) -> str:
    """A value in Hydra's grammar.

    Raises:
        ValueError: it holds a line break, or a key that Hydra has no way to write.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(write(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{_dict_key(key)}:{write(item)}" for key, item in value.items()) + "}"
    if re.search(r"[\n\r\0]", value):
        raise ValueError("a line break cannot be passed to verl")
    if _PLAIN.fullmatch(value) and not _RESERVED.fullmatch(value):
        return str(value)
    return _quoted(value)


def _quoted(text: str) -> str:
    """Single quotes; inside them only backslashes before a quote or at the end need doubling."""
    inner = re.sub(r"(\\*)'", lambda found: found[1] * 2 + "\\'", text)
    tail = len(inner) - len(inner.rstrip("\\"))
    return f"'{inner}{inner[len(inner) - tail :]}'"


def _dict_key(key: str) -> str:
    if not _PLAIN.fullmatch(key) or _RESERVED.fullmatch(key):
        raise ValueError(f"`{key}` cannot be a key in verl's configuration")
    return key


def parse(word: str) -> tuple[str, Any, bool]:
    """Read `key=value`, `+key=value` or `++key=value`.

    Returns:
        The dotted key, the value with its type, and whether there was a `+`.

    Raises:
        ValueError: it is none of these, or uses a part of Hydra's grammar that a plan cannot show (sweeps, functions,
            deletions); the message says what to write.
    """
    if word.startswith("~"):
        raise ValueError("a key cannot be deleted; give it another value")
    found = _KEY.fullmatch(word)
    if not found:
        raise ValueError("must be `key=value`, with a key of verl")
    return found["key"], _Reader(found["value"].strip()).whole(), bool(found["plus"])


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def whole(self) -> Any:
        if not self.text:
            return ""
        value = self.element()
        if self.peek() == ",":
            raise ValueError("is a sweep: put a list in brackets, `[a,b]`, and text with commas in quotes")
        if self.at < len(self.text):
            raise ValueError(
                f"cannot be read from `{self.text[self.at :]}` on: text with special characters needs quotes"
            )
        return value

    def peek(self) -> str:
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1
        return self.text[self.at : self.at + 1]

    def element(self) -> Any:
        start = self.peek()
        if start == "[":
            return self.items("]", self.element)
        if start == "{":
            return dict(self.items("}", self.pair))
        if start in ("'", '"') and start:
            return self.quoted(start)
        return self.primitive()

    def items(self, end: str, item: Any) -> list[Any]:
        self.at += 1
        found: list[Any] = []
        while self.peek() != end:
            if found and self.text[self.at : self.at + 1] == ",":
                self.at += 1
            elif found or not self.peek():
                raise ValueError(f"lacks a `{end}`")
            found.append(item())
        self.at += 1
        return found

    def pair(self) -> tuple[str, Any]:
        self.peek()
        colon = self.text.find(":", self.at)
        if colon < 0:
            raise ValueError("lacks a `:` between a key and its value")
        key = self.text[self.at : colon].strip()
        self.at = colon + 1
        return key, self.element()

    def quoted(self, quote: str) -> str:
        found = re.compile(rf"{quote}((?:\\\\)*|.*?[^\\](?:\\\\)*){quote}", re.DOTALL).match(self.text, self.at)
        if not found:
            raise ValueError(f"lacks a closing {quote}")
        self.at = found.end()
        inner = re.sub(rf"(\\+){quote}", lambda run: run[1][: len(run[1]) // 2] + quote, found[1])
        tail = len(inner) - len(inner.rstrip("\\"))
        return inner[: len(inner) - tail // 2] if tail else inner

    def primitive(self) -> Any:
        start = self.at
        while self.at < len(self.text):
            if self.text.startswith("${", self.at):
                end = self.text.find("}", self.at)
                self.at = end + 1 if end >= 0 else len(self.text)
            elif self.text[self.at] == "\\":
                self.at += 2
            elif _STOPS.match(self.text[self.at]):
                break
            else:
                self.at += 1
        raw = self.text[start : self.at].strip(" \t")
        if self.text[self.at : self.at + 1] == "(":
            raise ValueError(f"`{raw}(...)` is a function of Hydra: write the value it gives, or quote it as text")
        if not raw:
            raise ValueError("lacks a value")
        return _typed(raw)


def _typed(raw: str) -> Any:
    if raw.lower() in ("true", "false"):
        return raw.lower() == "true"
    if raw.lower() == "null":
        return None
    if _INT.fullmatch(raw):
        return int(raw.replace("_", ""))
    if _FLOAT.fullmatch(raw):
        return float(raw.replace("_", ""))
    return _ESCAPED.sub(r"\1", raw)
