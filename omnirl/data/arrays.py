"""Rows as Arrow columns, of a declared schema.

`pyarrow.Table.from_pylist` does the same and imports pandas on the way, which takes longer than writing ten thousand
rows; and it copies pictures once more.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain
from operator import itemgetter
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

    columns = [_column(_picked(rows, field.name), field.type) for field in declared]
    return pa.Table.from_arrays(columns, schema=declared)


def _picked(rows: Sequence[Mapping[str, Any] | None], name: str) -> list[Any]:
    """One field of each row."""
    try:
        return list(map(itemgetter(name), rows))  # type: ignore[arg-type]
    except (KeyError, TypeError):
        return [None if row is None else row.get(name) for row in rows]


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    count = len(values)
    if pa.types.is_struct(kind):
        validity = _validity(_demand(values, dict), values)
        fields = [kind.field(at) for at in range(kind.num_fields)]
        children = [_column(_picked(values, field.name), field.type) for field in fields]
        return pa.Array.from_buffers(kind, count, [validity], children=children)
    if pa.types.is_list(kind):
        validity = _validity(_demand(values, list, tuple), values)
        lists = values if validity is None else [value or () for value in values]
        items = list(chain.from_iterable(lists))
        buffers = [validity, _offsets(map(len, lists))]
        return pa.Array.from_buffers(kind, count, buffers, children=[_column(items, kind.value_type)])
    if pa.types.is_string(kind):
        validity = _validity(_demand(values, str), values)
        texts = values if validity is None else [value or "" for value in values]
        data = "".join(texts).encode()
        # the sum of lengths is that of the bytes where each character is one
        plain = len(data) == sum(map(len, texts))
        sizes = map(len, texts) if plain else [len(text.encode()) for text in texts]
        return pa.Array.from_buffers(kind, count, [validity, _offsets(sizes), pa.py_buffer(data)])
    if pa.types.is_binary(kind):
        validity = _validity(_demand(values, bytes), values)
        pieces = values if validity is None else [value or b"" for value in values]
        return pa.Array.from_buffers(
            kind, count, [validity, _offsets(map(len, pieces)), pa.py_buffer(b"".join(pieces))]
        )
    code = "q" if pa.types.is_int64(kind) else "d"
    if code == "d" and not pa.types.is_float64(kind):
        raise TypeError(f"no column of type {kind} is declared anywhere")
    validity = _validity(_demand(values, *((int,) if code == "q" else (float, int))), values)
    numbers = array(code, values if validity is None else [value or 0 for value in values])
    return pa.Array.from_buffers(kind, count, [validity, pa.py_buffer(numbers)])


def _demand(values: list[Any], *kinds: type) -> bool:
    """Whether a value is null; raises TypeError when one is of none of the types."""
    found = set(map(type, values))
    some_null = type(None) in found
    wrong = found - {*kinds, type(None)}
    if wrong:
        raise TypeError(f"a value is {min(kind.__name__ for kind in wrong)}, not {kinds[0].__name__}")
    return some_null


def _validity(some_null: bool, values: list[Any]) -> pa.Buffer | None:
    """One bit a value, the first one lowest; None when nothing is null."""
    import pyarrow as pa

    if not some_null:
        return None
    bits = "".join(["0" if value is None else "1" for value in reversed(values)])
    return pa.py_buffer(int(bits, 2).to_bytes((len(values) + 7) // 8, "little"))


def _offsets(sizes: Iterable[int]) -> pa.Buffer:
    import pyarrow as pa

    ends = array("q", accumulate(sizes, initial=0))
    if ends[-1] > _MOST_BYTES:
        raise OverflowError(f"{ends[-1]} bytes or items in one column of a row group")
    return pa.py_buffer(array("i", ends))
