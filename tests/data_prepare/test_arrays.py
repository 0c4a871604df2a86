"""Columns built here are those that pyarrow builds of the same rows."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.data.arrays import table
from omnirl.data.preference import Preference
from omnirl.data.sample import Sample
from tests.conftest import plain_environment

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


def values(kind: pa.DataType) -> st.SearchStrategy:
    """Anything that fits the type, null included."""
    if pa.types.is_struct(kind):
        names = [kind.field(at).name for at in range(kind.num_fields)]
        known = st.fixed_dictionaries({}, optional={name: values(kind.field(name).type) for name in names})
        return st.none() | known
    if pa.types.is_list(kind):
        return st.none() | st.lists(values(kind.value_type), max_size=3)
    if pa.types.is_string(kind):
        return st.none() | TEXT
    if pa.types.is_binary(kind):
        return st.none() | st.binary(max_size=6)
    if pa.types.is_int64(kind):
        return st.none() | st.integers(-(2**63), 2**63 - 1)
    return st.none() | st.floats(allow_nan=False) | st.integers(-1000, 1000)


def rows(declared: pa.Schema) -> st.SearchStrategy:
    return st.lists(
        st.fixed_dictionaries({}, optional={field.name: values(field.type) for field in declared}), max_size=9
    )


@pytest.mark.parametrize("schema", [Sample.schema(), Preference.schema()], ids=["sample", "preference"])
@given(data=st.data())
def test_equal_to_pyarrow(schema, data):
    given_rows = data.draw(rows(schema))
    made = table(given_rows, schema)
    made.validate(full=True)
    assert made.equals(pa.Table.from_pylist(given_rows, schema=schema))
    assert made.schema.equals(schema, check_metadata=True)


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"data_source": 1}, TypeError),
        ({"data_source": b"x"}, TypeError),
        ({"data_source": "half \ud83d"}, UnicodeError),
        ({"prompt": "text"}, TypeError),
        ({"prompt": ["text"]}, TypeError),
        ({"images": [{"bytes": "text"}]}, TypeError),
        ({"videos": [{"fps": "1"}]}, TypeError),
        ({"videos": [{"max_frames": 1.5}]}, TypeError),
        ({"extra_info": {"index": 2**63}}, OverflowError),
        ({"extra_info": {"index": True}}, TypeError),
    ],
)
def test_what_does_not_fit_raises(row, fault):
    with pytest.raises(fault):
        table([row], Sample.schema())


def test_pandas_is_not_imported(tmp_path):
    code = """
import sys
from pathlib import Path
from omnirl.data import store
from omnirl.data.sample import Sample
store.write_parquet(Path(sys.argv[1]), [Sample("d", "p", "1", "a", "train", 0, "q")])
sys.exit("pandas" in sys.modules)
"""
    words = [sys.executable, "-c", code, str(tmp_path / "rows.parquet")]
    assert subprocess.run(words, env=plain_environment()).returncode == 0
