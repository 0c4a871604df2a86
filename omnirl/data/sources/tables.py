"""CSV inputs as a stream of records, in memory that does not grow with the file."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import BinaryIO

from omnirl.data.sample import Drop
from omnirl.data.sources.records import Encoding, opened
from omnirl.errors import InvalidInput

MAX_RECORD_BYTES = 1 << 16
"""Below the csv module's own limit for a field, which holds for the whole process and is left as it is."""
MAX_RECORD_LINES = 64
"""How far a quoted field may reach: a quote that is never closed costs its own record, not all that follow."""

_OTHER_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_SHOWN = 8


def csv_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str] | Drop]]:
    """The records of a comma-separated file with a header, as `(where, {column: text})`; `where` is `NAME:LINE`.

    Only `columns` are given, in any order in the file; every value is text as it stands there. A record that cannot be
    read is a Drop, and reading goes on with the next line. Reasons: `empty_line`, `too_long` (over `MAX_RECORD_BYTES`
    or `MAX_RECORD_LINES`), `invalid_text` (not UTF-8, or a NUL), `invalid_record` (damaged quotes, or another number
    of fields than the header has).

    Raises:
        InvalidInput: the file or its header is in another encoding than UTF-8, the header lacks one of `columns` or
            names it twice, or fields or lines are not separated as in a CSV file.
        EnvironmentLacks: the file cannot be read.
    """
    with opened(path) as file:
        records = _Records(file)
        header = _header(path, records, columns)
        places = {name: header.index(name) for name in columns}
        encoding = Encoding(path)
        while (fields := records.next()) is not None:
            where = f"{path.name}:{records.line}"
            if records.damaged:
                encoding.count(damaged=records.damaged)
            else:
                encoding.count()
            if isinstance(fields, str):
                yield where, Drop(fields, where)
            elif len(fields) != len(header):
                yield where, Drop("invalid_record" if fields else "empty_line", where)
            else:
                yield where, {name: fields[place] for name, place in places.items()}
        encoding.judge()


class _TooLong(Exception):
    """A record goes on beyond what a record may have."""


class _Records:
    """The records of an open CSV file, none of which is held beyond its bounds.

    Attributes:
        line: where the last record began, from 1.
        damaged: the bytes of the last record if they are no UTF-8, else empty.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.line = 0
        self.damaged = b""
        self._file = file
        self._taken = 0
        self._again: deque[bytes | None] = deque()

    def next(self) -> list[str] | str | None:
        """The fields of the next record, or the reason why it has none; None at the end of the file."""
        first = self._take()
        self.line, self.damaged = self._taken, b""
        if first == b"":
            return None
        if first is None:
            return "too_long"
        if not first.strip():
            return []
        held: list[bytes | None] = [first]
        try:
            fields = next(csv.reader(self._texts(first, held), strict=True))
        except (_TooLong, csv.Error) as error:
            self._again.extendleft(reversed(held[1:]))
            self._taken -= len(held) - 1
            # A limit that somebody else has set lower is one of length as well.
            long = isinstance(error, _TooLong) or len(first) > csv.field_size_limit()
            return "too_long" if long else "invalid_record"
        record = b"".join(line for line in held if line)
        try:
            record.decode("utf-8")
        except UnicodeDecodeError:
            self.damaged = record
            return "invalid_text"
        return "invalid_text" if b"\0" in record else fields

    def _texts(self, first: bytes, held: list[bytes | None]) -> Iterator[str]:
        """The lines of one record for the csv module, which asks for one more while a quote is open."""
        yield first.decode("utf-8", "surrogateescape")
        size = len(first)
        while (line := self._take()) != b"":
            held.append(line)
            size += len(line or b"")
            if line is None or size > MAX_RECORD_BYTES or len(held) > MAX_RECORD_LINES:
                raise _TooLong
            yield line.decode("utf-8", "surrogateescape")

    def _take(self) -> bytes | None:
        """The next line; None for one that is too long to be held, empty at the end of the file."""
        line: bytes | None
        if self._again:
            line = self._again.popleft()
        else:
            line = self._file.readline(MAX_RECORD_BYTES + 1)
            if len(line) > MAX_RECORD_BYTES:
                while line and not line.endswith(b"\n"):
                    line = self._file.readline(MAX_RECORD_BYTES)
                line = None
        self._taken += line != b""
        return line


def _header(path: Path, records: _Records, columns: Sequence[str]) -> list[str]:
    """The names in the first line; raises InvalidInput unless they hold each of `columns` once."""
    names = records.next()
    where = f"{path}:1"
    if names is None:
        raise InvalidInput(f"`{path}` is empty", hint=f"it begins with a line `{','.join(columns)}`")
    if records.damaged:
        raise InvalidInput(
            f"the header of `{path}` is not UTF-8",
            hint=f"`file {path}` may name its encoding; iconv -f THAT -t UTF-8 {path} > {path.stem}.utf8{path.suffix}",
            where=where,
        )
    if isinstance(names, str):
        raise InvalidInput(
            f"the first line of `{path}` is no header of a CSV file ({names})",
            hint=f"it begins with a line `{','.join(columns)}`; lines end in a line feed, not in a carriage return",
            where=where,
        )
    names = [name.strip() for name in names]
    missing = [name for name in columns if name not in names]
    if missing:
        what = f"column{'s' if len(missing) > 1 else ''} {', '.join(f'`{name}`' for name in missing)}"
        raise InvalidInput(f"`{path}` lacks the {what}", hint=_instead(names, missing), where=where)
    twice = next((name for name in columns if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidInput(f"`{path}` has two columns `{twice}`", hint="rename or remove one of them", where=where)
    return names


def _instead(names: list[str], missing: list[str]) -> str:
    for mark, called in _OTHER_DELIMITERS.items():
        if len(names) == 1 and mark in names[0]:
            return f"its fields are separated by {called}; save it again with commas"
    near = {name: get_close_matches(name, names, n=1) for name in missing}
    likely = [f"`{found[0]}` for `{name}`" for name, found in near.items() if found]
    shown = ", ".join(f"`{name[:40]}`" for name in names[:_SHOWN]) or "no names"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"it has {', '.join(likely)}" if likely else f"its first line is the header, and has {shown}{more}"
