"""Parquet shards of a hub as inputs: which files a split has, and their text columns read without trust."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnirl.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa


UNREADABLE = "\udcff"
"""Half of a surrogate pair."""


def parquet_files(folder: Path, split: str) -> list[Path]:
    """`SPLIT.parquet`, or the shards `SPLIT-*.parquet` in their order."""
    whole = folder / f"{split}.parquet"
    return [whole] if whole.is_file() else sorted(folder.glob(f"{split}-*.parquet"))


def find(
    input: Path, names: Sequence[str], files: Callable[[Path, str], list[Path]], *, wanted: str, layout: str
) -> dict[str, list[Path]]:
    """The files of every split; raises InvalidInput for the first split without any, with the folder that has it.

    `wanted` says which names a split may have, with `{split}` for its name; `layout` what the input holds.
    """
    found = {split: files(input, split) for split in names}
    missing = next((split for split in names if not found[split]), None)
    if missing is None:
        return found
    elsewhere = (child for child in sorted(input.iterdir()) if child.is_dir() and files(child, missing))
    child = next(elsewhere, None)
    hint = f"the input holds {layout}" if child is None else f"`--input {child}` has it"
    raise InvalidInput(f"`{input}` has {wanted.format(split=missing)}", hint=hint)


def texts(column: pa.Array) -> list[Any]:
    """The values of a column; what Python cannot hold (no UTF-8) is `UNREADABLE`, a text that no row may have."""
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):
        return [_value(one) for one in column]
    return values


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return UNREADABLE
