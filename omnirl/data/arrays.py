"""Rows as Arrow columns, of a declared schema.

`pyarrow.Table.from_pylist` does the same and imports pandas on the way, which takes longer than writing ten thousand
rows; and it copies pictures once more.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_BYTES = 2**31 - 1
"""Arrow's offsets of text, bytes and lists are 32 bits wide."""


def table(rows: Sequence[Mapping[str, Any]], declared: pa.Schema) -> pa.Table:
    """The rows as a table; a field that a row lacks is null.

    Raises TypeError, ValueError, OverflowError or UnicodeError when a value does not fit its field.
    """
    import pyarrow as pa

    columns = [_column([row.get(field.name) for row in rows], field.type) for field in declared]
    return pa.Table.from_arrays(columns, schema=declared)


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        _demand(values, dict)
        children = [
            _column(
                [None if value is None else value.get(kind.field(at).name) for value in values], kind.field(at).type
            )
            for at in range(kind.num_fields)
        ]
        return pa.Array.from_buffers(kind, len(values), [_validity(values)], children=children)
    if pa.types.is_list(kind):
        _demand(values, list, tuple)
        items = list(chain.from_iterable(value for value in values if value is not None))
        buffers = [_validity(values), _offsets(values)]
        return pa.Array.from_buffers(kind, len(values), buffers, children=[_column(items, kind.value_type)])
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        _demand(values, str if pa.types.is_string(kind) else bytes)
        pieces = [value.encode() if isinstance(value, str) else value for value in values]
        data = pa.py_buffer(b"".join(piece for piece in pieces if piece is not None))
        return pa.Array.from_buffers(kind, len(values), [_validity(values), _offsets(pieces), data])
    code = "q" if pa.types.is_int64(kind) else "d"
    if code == "d" and not pa.types.is_float64(kind):
        raise TypeError(f"no column of type {kind} is declared anywhere")
    _demand(values, *((int,) if code == "q" else (float, int)))
    numbers = array(code, [0 if value is None else value for value in values])
    return pa.Array.from_buffers(kind, len(values), [_validity(values), pa.py_buffer(numbers)])


def _demand(values: list[Any], *kinds: type) -> None:
    wrong = set(map(type, values)) - {*kinds, type(None)}
    if wrong:
        raise TypeError(f"a value is {min(kind.__name__ for kind in wrong)}, not {kinds[0].__name__}")


def _validity(values: list[Any]) -> pa.Buffer | None:
    """One bit a value, the first one lowest; None when nothing is null."""
    import pyarrow as pa

    if None not in values:
        return None
    bits = "".join("0" if value is None else "1" for value in reversed(values))
    return pa.py_buffer(int(bits, 2).to_bytes((len(values) + 7) // 8, "little"))


def _offsets(values: list[Any]) -> pa.Buffer:
    import pyarrow as pa

    sizes = (0 if value is None else len(value) for value in values) if None in values else map(len, values)
    ends = array("q", accumulate(sizes, initial=0))
    if ends[-1] > _MOST_BYTES:
        raise OverflowError(f"{ends[-1]} bytes or items in one column of a row group")
    return pa.py_buffer(array("i", ends))
