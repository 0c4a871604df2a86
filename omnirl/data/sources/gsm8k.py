"""GSM8K: `train` and `test`, as JSON Lines or as the parquet shards of a hub; a record is a question and its answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omnirl.data import store
from omnirl.data.sample import PLACEHOLDERS, Drop, Sample
from omnirl.data.sources import Options, Splits, shards
from omnirl.data.sources.records import is_clean, json_lines

SPLITS = ("train", "test")
INSTRUCTION = "Think step by step and end with the final answer in the form `#### <number>`."

_FIELDS = ("question", "answer")
_NUMBER = re.compile(r"-?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?")


def splits(input: Path | None, output: Path, options: Options) -> Splits:
    """The two official splits, in their order and whole.

    Raises InvalidInput when a split's file is missing, is not UTF-8, is one JSON array, or cannot be read as parquet.
    """
    assert input is not None  # the registry says that this source needs it
    found = shards.find(
        input,
        SPLITS,
        _files,
        wanted="no `{split}.jsonl` and no `{split}*.parquet`",
        layout="train.jsonl and test.jsonl, or train*.parquet and test*.parquet",
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
    if not is_clean(question) or not is_clean(answer):
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
    return [lines] if lines.is_file() else shards.parquet_files(folder, split)


def _read(files: list[Path], split: str) -> Iterator[Sample | Drop]:
    index = 0
    for path in files:
        records = json_lines(path) if path.suffix == ".jsonl" else _rows(path)
        for where, record in records:
            yield record if isinstance(record, Drop) else convert(record, split, index, where)
            index += 1


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    store.inspect(path, required=_FIELDS)
    number = 0
    for batch in store.read_batches(path, _FIELDS):
        columns = [shards.texts(batch.column(batch.schema.get_field_index(name))) for name in _FIELDS]
        for values in zip(*columns, strict=True):
            yield f"{path.name}:row {number}", dict(zip(_FIELDS, values, strict=True))
            number += 1


def _kind(number: str) -> str:
    if "." in number:
        return "decimal"
    return "negative integer" if number.startswith("-") else "integer"
