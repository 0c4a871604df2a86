"""Rows that ask the same: found by hashes of prompt and media, in memory that does not grow with the files."""

from __future__ import annotations

import hashlib
import struct
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import IO, Any, NamedTuple, Self

from omnirl.data.checks.faults import content
from omnirl.data.sample import PLACEHOLDERS

_PARTS = 64
_HELD_BYTES = 1 << 20
"""What each part keeps in memory before it goes to a temporary file."""
_RECORD = struct.Struct("<16s8sIQ")


class Twin(NamedTuple):
    """A row and the first one that asks the same; files by number. `agrees` is whether their labels are equal too."""

    file: int
    row: int
    first_file: int
    first_row: int
    agrees: bool


class Index:
    """Remembers rows by hash; a context manager, since it may keep temporary files."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._parts: list[IO[bytes]] = []

    def __enter__(self) -> Self:
        for _ in range(_PARTS):
            self._parts.append(self._stack.enter_context(tempfile.SpooledTemporaryFile(max_size=_HELD_BYTES)))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, file: int, row: int, values: Mapping[str, Any]) -> None:
        """Remember row number `row` of file number `file`."""
        asked = _question(values)
        self._parts[asked[0] % _PARTS].write(_RECORD.pack(asked, _answer(values), file, row))

    def twins(self) -> Iterator[Twin]:
        """Every row that asks what an earlier one asks, by part; earlier in the order in which rows were added."""
        for part in self._parts:
            part.seek(0)
            firsts: dict[bytes, tuple[bytes, int, int]] = {}
            while record := part.read(_RECORD.size):
                asked, answer, file, row = _RECORD.unpack(record)
                known = firsts.setdefault(asked, (answer, file, row))
                if known[1:] != (file, row):
                    yield Twin(file, row, known[1], known[2], known[0] == answer)


def _question(values: Mapping[str, Any]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for message in values.get("prompt") or ():
        _feed(digest, (message or {}).get("role"))
        _feed(digest, (message or {}).get("content"))
    for column in PLACEHOLDERS:
        for item in values.get(column) or ():
            _feed(digest, column)
            _feed(digest, content(item))
    return digest.digest()


def _answer(values: Mapping[str, Any]) -> bytes:
    digest = hashlib.blake2b(digest_size=8)
    said = [(values.get("reward_model") or {}).get("ground_truth"), values.get("chosen"), values.get("rejected")]
    _feed(digest, repr(said))
    return digest.digest()


def _feed(digest: Any, value: str | bytes | None) -> None:
    """Add a value with its length, so that two values never read as one."""
    data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value or b""
    digest.update(struct.pack("<?Q", value is not None, len(data)))
    digest.update(data)
