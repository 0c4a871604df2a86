"""Responses to score again: JSON lines or parquet, as `omnirl score` documents them or as verl dumps those of a run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from omnirl.errors import InvalidInput

MOST_BYTES = 64 << 20
"""A longer line is no row."""
_RESPONSES = ("response", "output", "solution_str")
_LABELS = ("ground_truth", "gts")
_SUFFIXES = (".jsonl", ".parquet")
_HINT = 'rows look like {"response": "...", "ground_truth": "...", "data_source": "...", "extra_info": {...}}'
_BATCH_ROWS = 512


@dataclass(frozen=True, slots=True)
class Row:
    """One response. `where` is `file:line` or `file:row N`; `recorded` is the score that the file gives, if any."""

    index: int
    where: str
    response: str | None
    ground_truth: Any
    data_source: str
    extra_info: Mapping[str, Any]
    recorded: float | None = None


def read(path: Path) -> Iterator[Row]:
    """The rows of a file, or of all files of a folder such as verl's `rollout_data_dir`, in the order of their numbers.

    Raises InvalidInput with the place of the first row that is none.
    """
    if path.is_dir():
        files = sorted((file for file in path.iterdir() if file.suffix in _SUFFIXES), key=_number_in)
        if not files:
            raise InvalidInput(f"the folder `{path}` holds no {' or '.join(_SUFFIXES)} file")
        index = 0
        for file in files:
            for row in _file(file, index):
                yield row
                index = row.index + 1
        return
    yield from _file(path, 0)


def read_lines(stream: BinaryIO, name: str, index: int = 0) -> Iterator[Row]:
    """The rows of JSON lines; raises InvalidInput as `read` does."""
    number = 0
    while raw := stream.readline(MOST_BYTES + 1):
        number += 1
        where = f"{name}:{number}"
        if len(raw) > MOST_BYTES:
            raise InvalidInput(f"a line of more than {MOST_BYTES >> 20} MiB is no row", where=where, hint=_HINT)
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        if not raw.strip():
            continue
        try:
            record = json.loads(raw.decode())
        except UnicodeDecodeError as error:
            raise InvalidInput("the line is not UTF-8", where=where, hint=_HINT) from error
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", None) or str(error)
            raise InvalidInput(f"the line is not JSON: {reason}", where=where, hint=_HINT) from error
        yield _row(record, index, where)
        index += 1


def _file(path: Path, index: int) -> Iterator[Row]:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
            file.seek(0)
            if magic != b"PAR1":
                yield from read_lines(file, str(path), index)
                return
    except OSError as error:
        said = (error.strerror or str(error)).lower()
        raise InvalidInput(f"`{path}` cannot be read: {said}") from error
    yield from _parquet(path, index)


def _parquet(path: Path, index: int) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            wanted = (*_RESPONSES, *_LABELS, "reward_model", "data_source", "extra_info", "score")
            columns = [name for name in file.schema_arrow.names if name in wanted]
            number = 0
            for batch in file.iter_batches(_BATCH_ROWS, columns=columns):
                for record in batch.to_pylist():
                    yield _row(record, index, f"{path}:row {number}")
                    index += 1
                    number += 1
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(f"`{path}` is no parquet that can be read: {str(error)[:200]}") from error


def _row(record: object, index: int, where: str) -> Row:
    if not isinstance(record, dict):
        raise InvalidInput(f"the row is a {type(record).__name__}, not an object", where=where, hint=_HINT)
    named = next((name for name in _RESPONSES if name in record), None)
    if named is None:
        raise InvalidInput("the row has no `response`", where=where, hint=_HINT)
    response = record[named]
    if response is not None and not isinstance(response, str):
        raise InvalidInput(f"`{named}` is a {type(response).__name__}, not text", where=where, hint=_HINT)
    model = record.get("reward_model")
    labels = [record[name] for name in _LABELS if name in record]
    if not labels and isinstance(model, dict) and "ground_truth" in model:
        labels = [model["ground_truth"]]
    if not labels:
        raise InvalidInput("the row has no `ground_truth`", where=where, hint=_HINT)
    extra = record.get("extra_info")
    if extra is not None and not isinstance(extra, dict):
        raise InvalidInput(f"`extra_info` is a {type(extra).__name__}, not an object", where=where, hint=_HINT)
    source = record.get("data_source")
    score = record.get("score")
    known = isinstance(score, int | float) and not isinstance(score, bool) and math.isfinite(score)
    return Row(
        index=index,
        where=where,
        response=response,
        ground_truth=labels[0],
        data_source=source if isinstance(source, str) else "rollouts",
        extra_info=extra or {},
        recorded=float(score) if known and score is not None else None,
    )


def _number_in(path: Path) -> tuple[float, str]:
    found = re.search(r"[0-9]{1,15}", path.stem)
    return (float(found[0]) if found else math.inf, path.name)
