"""Reading the rows that are wanted, with their numbers, and naming columns that no row has."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.data import preference, sample
from omnirl.data.checks.columns import is_preference, misfits, read_rows, required
from omnirl.errors import InvalidInput

ROWS = 700
GROUP = 150
BASE = {"data_source": "d", "prompt": [{"role": "user", "content": "x"}], "reward_model": {"ground_truth": "1"}}


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("columns") / "x.parquet"
    pq.write_table(pa.table({"n": list(range(ROWS)), "other": ["x"] * ROWS}), path, row_group_size=GROUP)
    return path


def test_every_row_has_its_number(numbers: Path) -> None:
    assert list(read_rows(numbers, ["n", "absent"])) == [(number, {"n": number}) for number in range(ROWS)]


@given(wanted=st.sets(st.integers(0, ROWS - 1), max_size=40))
def test_the_rows_that_are_wanted(numbers: Path, wanted: set[int]) -> None:
    rows = sorted(wanted)
    assert list(read_rows(numbers, ["n"], rows)) == [(number, {"n": number}) for number in rows]


@pytest.mark.parametrize("rows", [[], [0], [ROWS - 1], range(145, 155), [149, 150, 299, 300]])
def test_rows_at_the_edges_of_groups(numbers: Path, rows: list[int]) -> None:
    assert [number for number, _ in read_rows(numbers, ["n"], rows)] == list(rows)


def test_groups_without_wanted_rows_are_not_read(numbers: Path, tmp_path: Path) -> None:
    damaged = bytearray(numbers.read_bytes())
    column = pq.ParquetFile(numbers).metadata.row_group(1).column(0)
    start = column.dictionary_page_offset or column.data_page_offset
    damaged[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path = tmp_path / "damaged.parquet"
    path.write_bytes(damaged)
    assert [number for number, _ in read_rows(path, ["n"], [0, 300])] == [0, 300]
    with pytest.raises(InvalidInput, match="cannot be decoded"):
        list(read_rows(path, ["n"], [0, GROUP]))


@pytest.mark.parametrize("declared", [sample.schema(), preference.schema()], ids=["rows", "preferences"])
def test_our_own_schemas_fit(declared: pa.Schema, tmp_path: Path) -> None:
    pq.write_table(declared.empty_table(), tmp_path / "x.parquet")
    assert misfits(tmp_path / "x.parquet") == {}
    assert set(required(declared.names)) <= set(declared.names)
    assert is_preference(declared.names) == ("chosen" in declared.names)


@pytest.mark.parametrize(
    ("change", "column"),
    [
        ({"prompt": "text"}, "prompt"),
        ({"prompt": ["text"]}, "prompt"),
        ({"prompt": [{"content": "x"}]}, "prompt"),
        ({"prompt": [{"role": "user", "content": [1]}]}, "prompt"),
        ({"data_source": 3}, "data_source"),
        ({"images": "a.png"}, "images"),
        ({"videos": {"video": "x"}}, "videos"),
        ({"reward_model": "5"}, "reward_model"),
        ({"extra_info": "{}"}, "extra_info"),
        ({"chosen": 1, "rejected": "b", "win_score": 1.0, "lose_score": 0}, "chosen"),
        ({"chosen": "a", "rejected": "b", "win_score": "1", "lose_score": 0}, "win_score"),
        ({"chosen": "a", "rejected": "b", "win_score": 1}, "lose_score"),
    ],
    ids=str,
)
def test_columns_of_another_type_are_named(change: dict[str, object], column: str, tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([BASE | change]), tmp_path / "x.parquet")
    assert set(misfits(tmp_path / "x.parquet")) == {column}


@pytest.mark.parametrize(
    "change",
    [
        {"images": [{"bytes": b"x"}]},
        {"images": None},
        {"images": ["/a.png"], "videos": [["frame"]]},
        {"chosen": [{"role": "assistant", "content": "a"}], "rejected": "b", "win_score": 1, "lose_score": 0},
    ],
    ids=str,
)
def test_columns_of_other_writers_are_understood(change: dict[str, object], tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([BASE | change]), tmp_path / "x.parquet")
    assert misfits(tmp_path / "x.parquet") == {}
