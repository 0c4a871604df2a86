"""Text inputs as streams of records: JSON Lines and JSON arrays, in memory that does not grow with the file.

Both readers yield `(where, value)`. A record that cannot be read is a `Drop` in place of its value, and the records
after it are read on. What no record can be blamed for - another encoding, a file cut short - is an InvalidInput.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from omnirl.data.sample import Drop
from omnirl.errors import EnvironmentLacks, InvalidInput

MAX_RECORD_BYTES = 1 << 20
"""A longer record is no question with an answer; it is passed over without being held in memory."""

_BLOCK_BYTES = 1 << 18
_SPACE = re.compile(r"[ \t\n\r]*")
_BEHIND = frozenset(" \t\n\r,]")
_STRUCTURE = re.compile(r'\\.|["{}\[\],]', re.DOTALL)
_HALF_PAIR = re.compile("[\ud800-\udfff]")
_ARRAY_START = re.compile(rb"\s*\[\s*(\{|$)")
_UTF8_MARK = codecs.BOM_UTF8
_WIDE = (
    (re.compile(rb"\xff\xfe\0\0|\0\0\xfe\xff|[\t\n\r -~]\0\0\0|\0\0\0[\t\n\r -~]"), "UTF-32"),
    (re.compile(rb"\xff\xfe|\xfe\xff|[\t\n\r -~]\0|\0[\t\n\r -~]"), "UTF-16"),
)
_JUDGED_RECORDS = 100
_ENCODER = json.JSONEncoder(ensure_ascii=False, default=str)

Records = Iterator[tuple[str, Any]]


def json_lines(path: Path) -> Records:
    """The value on each line; `where` is `NAME:LINE`, from 1.

    Reasons: `empty_line`, `too_long`, `invalid_text` (not UTF-8), `invalid_json` (deeply nested values too).

    Raises:
        InvalidInput: the file is one JSON array, or in another encoding than UTF-8.
        EnvironmentLacks: it cannot be read.
    """
    with opened(path) as file:
        line = file.readline(MAX_RECORD_BYTES + 1)
        if _ARRAY_START.match(line):
            raise InvalidInput(
                f"`{path}` is one JSON array, not one JSON object a line", hint=f"jq -c '.[]' {path} > lines.jsonl"
            )
        yield from _lines(path, file, line)


def json_array(path: Path) -> Records:
    """The elements of a file's one JSON array; `where` is `NAME:record N`, from 0. JSON Lines are read as such.

    Reasons: `too_long`, `invalid_text` (not UTF-8), `invalid_json` (deeply nested values too).

    Raises:
        InvalidInput: the array is not closed or goes on after its end, or is in another encoding than UTF-8.
        EnvironmentLacks: the file cannot be read.
    """
    with opened(path) as file:
        start = file.tell()
        text = _Text(file)
        mark = text.next_mark()
        if mark == "[":
            text.at += 1
            yield from _elements(path, text)
        elif mark:
            file.seek(start)
            yield from _lines(path, file, file.readline(MAX_RECORD_BYTES + 1))


def is_clean(text: str) -> bool:
    """Whether a text can be stored and shown: no NUL, no half of a surrogate pair."""
    if "\0" in text:
        return False
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def as_text(value: object) -> str | None:
    """A value of any type as text: text as it is, nothing for None, anything else as JSON.

    None when that is no text that can be stored: half a surrogate pair, NUL, nested too deeply, a number too long.
    """
    if not isinstance(value, str):
        if value is None:
            return ""
        try:
            value = str(value) if type(value) is int else _ENCODER.encode(value)
        except (TypeError, ValueError, RecursionError):
            return None
    return value if is_clean(value) else None


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The open file behind its byte order mark."""
    try:
        with path.open("rb") as file:
            start = file.read(4)
            for pattern, name in _WIDE:
                if pattern.match(start):
                    raise InvalidInput(f"`{path}` is {name}, not UTF-8", hint=_recoding(path, name))
            file.seek(len(_UTF8_MARK) if start.startswith(_UTF8_MARK) else 0)
            yield file
    except OSError as error:
        raise EnvironmentLacks(f"`{path}` cannot be read: {error.strerror}", hint=f"ls -l {path}") from error


def _recoding(path: Path, encoding: str) -> str:
    return f"iconv -f {encoding} -t UTF-8 {path} > {path.stem}.utf8{path.suffix}"


def _lines(path: Path, file: BinaryIO, line: bytes) -> Records:
    """The values of `line` and of those after it in `file`."""
    encoding = Encoding(path)
    name = path.name
    number = 0
    while line:
        number += 1
        where = f"{name}:{number}"
        if len(line) > MAX_RECORD_BYTES:
            while line and not line.endswith(b"\n"):
                line = file.readline(MAX_RECORD_BYTES)
            yield where, Drop("too_long", where)
        else:
            yield where, _parse(line, where, encoding)
        line = file.readline(MAX_RECORD_BYTES + 1)
    encoding.judge()


def _parse(line: bytes, where: str, encoding: Encoding) -> Any:
    if not line.strip():
        return Drop("empty_line", where)
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        encoding.count(damaged=line)
        return Drop("invalid_text", where)
    encoding.count()
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return Drop("invalid_json", where)


def _elements(path: Path, text: _Text) -> Records:
    """The elements of an array whose `[` has been read."""
    encoding = Encoding(path)
    name = path.name
    number = 0
    mark = text.next_mark()
    while mark and mark != "]":
        where = f"{name}:record {number}"
        yield where, text.value(where, encoding)
        mark = text.next_mark()
        if mark == ",":
            text.at += 1
            mark = text.next_mark()
        elif mark and mark != "]":
            raise InvalidInput(f"`{path}` is not JSON: there is no comma after record {number}", hint=_json_tool(path))
        number += 1
    encoding.judge()
    if not mark:
        last = f"in record {number - 1}, or right after it" if number else "right after its start"
        raise InvalidInput(f"`{path}` is cut short: its JSON array ends {last}", hint="fetch the file again")
    text.at += 1
    if text.next_mark():
        raise InvalidInput(f"`{path}` goes on after the end of its JSON array", hint=_json_tool(path))


def _json_tool(path: Path) -> str:
    return f"`python -m json.tool {path} > /dev/null` shows the place"


class _Text:
    """A window on the file's text that moves on; bytes that are no UTF-8 stand in it as halves of surrogate pairs."""

    def __init__(self, file: BinaryIO) -> None:
        self.at = 0
        self._file = file
        self._window = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._decode = json.JSONDecoder().raw_decode
        self._ended = False
        self._damaged = False

    def next_mark(self) -> str:
        """The next character that is no white space, where `at` then stands; empty at the end of the file."""
        while True:
            self.at = _SPACE.match(self._window, self.at).end()  # type: ignore[union-attr]
            if self.at < len(self._window):
                return self._window[self.at]
            if not self._more():
                return ""

    def value(self, where: str, encoding: Encoding) -> Any:
        """The value that begins at `at`, which is moved behind it; or the Drop that says why there is none."""
        while True:
            try:
                found, end = self._decode(self._window, self.at)
            except (ValueError, RecursionError):
                if len(self._window) - self.at <= MAX_RECORD_BYTES and self._more():
                    continue
                return Drop("too_long" if self._pass_over() > MAX_RECORD_BYTES else "invalid_json", where)
            # A number may go on where the window ends, also after a point: `1` of `1.` of `1.5`.
            if self._window[end - 1] in '}]"' or self._window[end : end + 1] in _BEHIND or not self._more():
                break
        start, self.at = self.at, end
        if end - start > MAX_RECORD_BYTES:
            return Drop("too_long", where)
        if self._damaged and _HALF_PAIR.search(self._window, start, end):
            encoding.count(damaged=self._window[start:end].encode("utf-8", "surrogateescape"))
            return Drop("invalid_text", where)
        encoding.count()
        return found

    def _pass_over(self) -> int:
        """Move `at` behind a damaged value, up to the comma or bracket that follows; returns its characters."""
        passed, depth, quoted = 0, 0, False
        while True:
            start = self.at
            for match in _STRUCTURE.finditer(self._window, start):
                mark = match[0]
                if mark == '"':
                    quoted = not quoted
                elif quoted or mark[0] == "\\":
                    continue
                elif mark in "{[":
                    depth += 1
                elif depth == 0:
                    self.at = match.start()
                    return passed + self.at - start
                elif mark in "}]":
                    depth -= 1
            # An escape whose second half is not there yet is read again.
            self.at = len(self._window) - _open_escape(self._window)
            passed += self.at - start
            if not self._more():
                self.at = len(self._window)
                return passed

    def _more(self) -> bool:
        """Drop what is read, add a block behind the rest; False when the file has ended."""
        if self._ended:
            return False
        block = self._file.read(_BLOCK_BYTES)
        self._ended = not block
        try:
            new = self._decoder.decode(block, final=self._ended)
        except UnicodeDecodeError:
            self._damaged = True
            self._decoder.errors = "surrogateescape"
            new = self._decoder.decode(block, final=self._ended)
            self._decoder.errors = "strict"
        if self._ended and not new:
            return False
        self._window = self._window[self.at :] + new
        self.at = 0
        return True


def _open_escape(text: str) -> int:
    """1 when `text` ends in a backslash that escapes what follows, else 0."""
    return (len(text) - len(text.rstrip("\\"))) % 2


class Encoding:
    """Tells one damaged record from a file in another encoding: there, half of the first records are damaged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._damaged = 0
        self._example = b""

    def count(self, damaged: bytes | None = None) -> None:
        if self._read >= _JUDGED_RECORDS:
            return
        self._read += 1
        if damaged is not None:
            self._damaged += 1
            self._example = damaged
        if self._read == _JUDGED_RECORDS:
            self._refuse_other()

    def judge(self) -> None:
        """To be called at the end of the file; raises InvalidInput for another encoding than UTF-8."""
        if self._read < _JUDGED_RECORDS:
            self._refuse_other()

    def _refuse_other(self) -> None:
        if not self._damaged or 2 * self._damaged < self._read:
            return
        try:
            self._example.decode("gb18030")
        except UnicodeDecodeError:
            hint = f"`file {self._path}` may name its encoding; {_recoding(self._path, 'THAT')}"
            raise InvalidInput(f"`{self._path}` is not UTF-8", hint=hint) from None
        raise InvalidInput(
            f"`{self._path}` is not UTF-8, it may be GB18030 (GBK)", hint=_recoding(self._path, "GB18030")
        )
