"""GSM8K: `train` and `test`, as JSON Lines or as the parquet shards of a hub; a record is a question and its answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omnirl.data import store
from omnirl.data.sample import PLACEHOLDERS, Drop, Sample
from omnirl.data.sources import Options, Splits
from omnirl.errors import EnvironmentLacks, InvalidInput

SPLITS = ("train", "test")
INSTRUCTION = "Think step by step and end with the final answer in the form `#### <number>`."
MAX_LINE_BYTES = 1 << 20
"""A longer line is no word problem; it is skipped without being held in memory."""

_FIELDS = ("question", "answer")
_NUMBER = re.compile(r"-?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?")
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_UTF8_MARK = b"\xef\xbb\xbf"


def splits(input: Path | None, output: Path, options: Options) -> Splits:
    """The two official splits, in their order and whole.

    Raises InvalidInput when a split's file is missing, is UTF-16, is one JSON array, or cannot be read as parquet.
    """
    assert input is not None  # the registry says that this source needs it
    found = {split: _files(input, split) for split in SPLITS}
    missing = [split for split in SPLITS if not found[split]]
    if missing:
        raise InvalidInput(
            f"`{input}` has no `{missing[0]}.jsonl` and no `{missing[0]}*.parquet`", hint=_where_else(input, missing[0])
        )
    for split, files in found.items():
        yield split, _read(files, split)


def convert(record: Any, split: str, index: int, where: str) -> Sample | Drop:
    """One record as a row, or why not; `index` is the record's place in its split, counted from 0.

    Reasons: `invalid_record` (no object, or a field that is no text), `invalid_text` (NUL or half a surrogate pair),
    `empty_question`, `media_placeholder`, `no_final_answer`, `invalid_final_answer`.
    """
    if not isinstance(record, dict):
        return Drop("invalid_record", where)
    question, answer = (record.get(name) for name in _FIELDS)
    if not isinstance(question, str) or not isinstance(answer, str):
        return Drop("invalid_record", where)
    if not _is_clean(question) or not _is_clean(answer):
        return Drop("invalid_text", where)
    if not question.strip():
        return Drop("empty_question", where)
    if any(mark in question for mark in PLACEHOLDERS.values()):
        return Drop("media_placeholder", where)
    _, mark, last = answer.rpartition("####")
    if not mark or not last.strip():
        return Drop("no_final_answer", where)
    if not _NUMBER.fullmatch(last.strip()):
        return Drop("invalid_final_answer", where)
    number = last.strip().replace(",", "")
    return Sample(
        data_source="openai/gsm8k",
        prompt=f"{question.strip()}\n{INSTRUCTION}",
        ground_truth=number,
        ability="math",
        split=split,
        index=index,
        question=question,
        answer=answer,
        tally=_kind(number),
    )


def _files(folder: Path, split: str) -> list[Path]:
    lines = folder / f"{split}.jsonl"
    if lines.is_file():
        return [lines]
    whole = folder / f"{split}.parquet"
    return [whole] if whole.is_file() else sorted(folder.glob(f"{split}-*.parquet"))


def _where_else(folder: Path, split: str) -> str:
    for child in sorted(folder.iterdir()):
        if child.is_dir() and _files(child, split):
            return f"`--input {child}` has it"
    return "the input holds train.jsonl and test.jsonl, or train*.parquet and test*.parquet"


def _read(files: list[Path], split: str) -> Iterator[Sample | Drop]:
    index = 0
    for path in files:
        records = _lines(path) if path.suffix == ".jsonl" else _rows(path)
        for where, record in records:
            yield record if isinstance(record, Drop) else convert(record, split, index, where)
            index += 1


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        with path.open("rb") as file:
            start = file.read(3)
            if start.startswith(_UTF16):
                raise InvalidInput(
                    f"`{path}` is UTF-16, not UTF-8", hint=f"iconv -f UTF-16 -t UTF-8 {path} > {path.stem}.utf8.jsonl"
                )
            file.seek(len(_UTF8_MARK) if start == _UTF8_MARK else 0)
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                where = f"{path.name}:{number}"
                if len(line) > MAX_LINE_BYTES:
                    while line and not line.endswith(b"\n"):
                        line = file.readline(MAX_LINE_BYTES)
                    yield where, Drop("too_long", where)
                    continue
                if number == 1:
                    _refuse_array(path, line)
                yield where, _parse(line, where)
    except OSError as error:
        raise EnvironmentLacks(f"`{path}` cannot be read: {error.strerror}", hint=f"ls -l {path}") from error


def _refuse_array(path: Path, line: bytes) -> None:
    if re.match(rb"\s*\[\s*(\{|$)", line):
        raise InvalidInput(
            f"`{path}` is one JSON array, not one JSON object a line", hint=f"jq -c '.[]' {path} > lines.jsonl"
        )


def _parse(line: bytes, where: str) -> Any:
    """The line's JSON value, or the Drop that says why there is none."""
    if not line.strip():
        return Drop("empty_line", where)
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        return Drop("invalid_text", where)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return Drop("invalid_json", where)


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    store.inspect(path, required=_FIELDS)
    number = 0
    for batch in store.read_batches(path, _FIELDS):
        columns = [batch.column(batch.schema.get_field_index(name)) for name in _FIELDS]
        for question, answer in zip(*columns, strict=True):
            where = f"{path.name}:row {number}"
            number += 1
            try:
                record: Any = {"question": question.as_py(), "answer": answer.as_py()}
            except (UnicodeDecodeError, ValueError, OverflowError):
                record = Drop("invalid_text", where)
            yield where, record


def _is_clean(text: str) -> bool:
    if "\0" in text:
        return False
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _kind(number: str) -> str:
    if "." in number:
        return "decimal"
    return "negative integer" if number.startswith("-") else "integer"
