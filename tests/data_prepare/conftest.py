"""Small rows and files for the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from omnirl.data.sample import Sample, schema

from .checked import Rows

RECORD = {"question": "What is 2 + 3?", "answer": "2 + 3 = 5\n#### 5"}


@pytest.fixture
def sample() -> Callable[..., Sample]:
    def make(index: int = 0, **fields: Any) -> Sample:
        defaults: dict[str, Any] = {
            "data_source": "made/up",
            "prompt": f"question {index}",
            "ground_truth": "5",
            "ability": "math",
            "split": "train",
            "index": index,
            "question": f"question {index}",
        }
        return Sample(**(defaults | fields))

    return make


@pytest.fixture
def gsm8k_input(tmp_path: Path) -> Callable[..., Path]:
    """A folder with train.jsonl and test.jsonl; lines may be bytes, text, or values to encode."""

    def encode(line: Any) -> bytes:
        if isinstance(line, bytes):
            return line
        return line.encode() if isinstance(line, str) else json.dumps(line).encode()

    def make(train: Iterable[Any] = (RECORD,), test: Iterable[Any] = (RECORD,)) -> Path:
        folder = tmp_path / "original"
        folder.mkdir(exist_ok=True)
        for name, lines in (("train", train), ("test", test)):
            (folder / f"{name}.jsonl").write_bytes(b"\n".join(map(encode, lines)) + b"\n")
        return folder

    return make


@pytest.fixture
def file(tmp_path: Path) -> Rows:
    """Write rows as they are; each gets a prompt of its own unless it brings one."""

    def write(*rows: dict[str, Any], name: str = "train.parquet", declared: pa.Schema | None = None) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(list(rows), schema=declared or schema()), path, use_dictionary=False)
        return path

    return write
