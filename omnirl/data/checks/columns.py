"""One pass over the columns of a data file that tells what training on it would stumble over; pyarrow alone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnirl.data import store
from omnirl.data.sample import PLACEHOLDERS, REQUIRED_COLUMNS
from omnirl.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

PREFERENCE_COLUMNS = ("prompt", "chosen", "rejected", "win_score", "lose_score")
"""What a file of preferences has: two candidates instead of a ground truth."""

_PATH_FIELDS = ("path", "image", "audio", "video")
_ROWS_AT_ONCE = 128
HINT = "`omnirl data prepare` writes it as omnirl reads it"


_MESSAGES = "not a list of messages with `role` and `content`"
_EXPECTED = {
    "data_source": "not text",
    "prompt": _MESSAGES,
    "images": "not a list",
    "audios": "not a list",
    "videos": "not a list",
    "reward_model": "without a `ground_truth`",
    "extra_info": "not a struct",
    "chosen": "neither text nor a message",
    "rejected": "neither text nor a message",
    "win_score": "not a number",
    "lose_score": "not a number",
}


@dataclass(slots=True)
class Rows:
    """Rows with one fault: how many, and the first one."""

    count: int = 0
    first: int = -1

    def add(self, row: int) -> None:
        if not self.count:
            self.first = row
        self.count += 1


@dataclass(slots=True)
class Mismatch(Rows):
    """Rows whose placeholders and media differ in number; the numbers are those of the first such row."""

    marks: int = 0
    items: int = 0


@dataclass(slots=True)
class Scan:
    """What a file holds. Rows are numbered from 0; `media` and `labels` map each distinct value to its first row."""

    rows: int = 0
    empty_prompts: Rows = field(default_factory=Rows)
    empty_labels: Rows = field(default_factory=Rows)
    mismatches: dict[str, Mismatch] = field(default_factory=lambda: {column: Mismatch() for column in PLACEHOLDERS})
    hollow: dict[str, Rows] = field(default_factory=lambda: {column: Rows() for column in PLACEHOLDERS})
    media: dict[str, int] = field(default_factory=dict)
    labels: dict[Any, int] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)


def scan(path: Path, *, labels: bool = True) -> Scan:
    """Read the columns that matter, batch by batch; without `labels` no ground truth is looked at.

    Inline bytes are read only where an item has no path. Raises InvalidInput when a page cannot be decoded or a column
    has a type that no row of ours has.
    """
    leaves = store.leaf_paths(path)
    chosen = {column: _cheap_leaves(leaves, column) for column in PLACEHOLDERS}
    wanted = ["prompt", *(["reward_model"] if labels else []), *(leaf for column in chosen.values() for leaf in column)]
    outcome = Scan()
    pathless: set[str] = set()
    for batch in store.read_batches(path, wanted):
        items = {}
        for column in PLACEHOLDERS:
            array = _column(batch, column)
            items[column] = _lengths(array, column, batch.num_rows)
            if array is not None and any(items[column]):
                outcome.used.add(column)
                if not _note_paths(outcome, array):
                    pathless.add(column)
        _note_prompts(outcome, batch, items)
        if labels:
            _note_labels(outcome, batch)
        outcome.rows += batch.num_rows
    for column in pathless:
        _note_hollow(outcome, path, column)
    return outcome


def required(columns: Sequence[str]) -> tuple[str, ...]:
    """The columns that a file must have, by what it is: rows with a ground truth, or preferences."""
    return PREFERENCE_COLUMNS if is_preference(columns) else REQUIRED_COLUMNS


def is_preference(columns: Sequence[str]) -> bool:
    """Whether a file with these columns holds preferences."""
    return {"chosen", "rejected"} <= set(columns)


def misfits(path: Path) -> dict[str, str]:
    """Columns that are missing or hold another type than a row of ours could have, each with what is wrong."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        found = {name: file.schema_arrow.field(name).type for name in file.schema_arrow.names}
    preference = is_preference(tuple(found))
    wrong = {name: f"the column `{name}` is missing" for name in required(tuple(found)) if name not in found}
    fits: dict[str, Callable[[pa.DataType], bool]] = {
        "data_source": _is_text,
        "prompt": lambda kind: _is_list(kind) and _is_message(kind.value_type),
        "images": lambda kind: _is_list(kind) or pa.types.is_null(kind),
        "audios": lambda kind: _is_list(kind) or pa.types.is_null(kind),
        "videos": lambda kind: _is_list(kind) or pa.types.is_null(kind),
        "reward_model": lambda kind: (
            pa.types.is_struct(kind) and (preference or kind.get_field_index("ground_truth") >= 0)
        ),
        "extra_info": lambda kind: pa.types.is_struct(kind) or pa.types.is_null(kind),
        "chosen": _is_candidate,
        "rejected": _is_candidate,
        "win_score": lambda kind: pa.types.is_floating(kind) or pa.types.is_integer(kind),
        "lose_score": lambda kind: pa.types.is_floating(kind) or pa.types.is_integer(kind),
    }
    for name, fitting in fits.items():
        if name in found and not fitting(found[name]):
            wrong[name] = f"the column `{name}` is {str(found[name])[:120]}, {_EXPECTED[name]}"
    return wrong


def read_rows(
    path: Path, columns: Sequence[str], rows: Sequence[int] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Row numbers with their rows, a few at a time; `columns` that the file lacks are left out.

    Args:
        rows: the sorted numbers of the rows wanted; all of them when None. Row groups without any are not read.

    Raises:
        InvalidInput: a page or a text cannot be decoded.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            names = [name for name in columns if name in file.schema_arrow.names]
            first = 0
            for group in range(file.metadata.num_row_groups):
                held = file.metadata.row_group(group).num_rows
                if rows is None or _within(rows, first, held):
                    batches = file.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=names, use_threads=False)
                    yield from _numbered(batches, first, rows)
                first += held
    except (pa.ArrowException, OSError, UnicodeError) as error:
        said = " ".join(str(error).split())[:200]
        raise InvalidInput(f"`{path}` cannot be decoded: {said}", hint=HINT) from error


def _numbered(
    batches: Iterator[pa.RecordBatch], first: int, rows: Sequence[int] | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    for batch in batches:
        wanted = range(first, first + batch.num_rows) if rows is None else _within(rows, first, batch.num_rows)
        if wanted:
            taken = batch if rows is None else batch.take([number - first for number in wanted])
            yield from zip(wanted, taken.to_pylist(), strict=True)
        first += batch.num_rows


def _within(rows: Sequence[int], first: int, count: int) -> Sequence[int]:
    return rows[bisect_left(rows, first) : bisect_left(rows, first + count)]


def _cheap_leaves(leaves: Sequence[str], column: str) -> list[str]:
    own = [leaf for leaf in leaves if leaf == column or leaf.startswith(f"{column}.")]
    return [leaf for leaf in own if leaf.rpartition(".")[2] in (column, "element", "item", *_PATH_FIELDS)] or own


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    import pyarrow as pa

    at = batch.schema.get_field_index(name)
    if at < 0 or pa.types.is_null(batch.schema.field(at).type):
        return None
    return batch.column(at)


def _lengths(array: pa.Array | None, column: str, rows: int) -> list[int]:
    import pyarrow.compute as pc

    if array is None:
        return [0] * rows
    if not _is_list(array.type):
        raise InvalidInput(f"`{column}` is {array.type}, not a list", hint=HINT)
    lengths: list[int] = pc.fill_null(pc.list_value_length(array), 0).to_pylist()
    return lengths


def _note_paths(outcome: Scan, array: pa.Array) -> bool:
    """Note each new path; False when an item has none."""
    import pyarrow.compute as pc

    paths = _paths(pc.list_flatten(array))
    if paths is None:
        return False
    complete = True
    for row, path in zip(pc.list_parent_indices(array).to_pylist(), paths.to_pylist(), strict=True):
        if path:
            outcome.media.setdefault(path, outcome.rows + row)
        else:
            complete = False
    return complete


def _paths(items: pa.Array) -> pa.Array | None:
    """The path of each item, null where it has none; None when items of this type have no paths at all."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if _is_text(items.type):
        return items
    if not pa.types.is_struct(items.type):
        return None
    names = [name for name in _PATH_FIELDS if items.type.get_field_index(name) >= 0]
    found = [pc.struct_field(items, name) for name in names if _is_text(items.type.field(name).type)]
    return pc.coalesce(*found) if found else None


def _note_hollow(outcome: Scan, path: Path, column: str) -> None:
    """Note the items that have neither a path nor any bytes."""
    import pyarrow.compute as pc

    before = 0
    for batch in store.read_batches(path, [column], batch_rows=256):
        array = _column(batch, column)
        if array is not None:
            hollow = pc.invert(_filled(pc.list_flatten(array)))
            for row in pc.list_parent_indices(array).filter(hollow).to_pylist():
                outcome.hollow[column].add(before + row)
        before += batch.num_rows


def _filled(items: pa.Array) -> pa.Array:
    """For each item whether it has a path or bytes; a list of frames, say, is taken as it is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_struct(items.type):
        return _not_empty(items) if _is_bytes(items.type) else pc.is_valid(items)
    has = pa.nulls(len(items), pa.bool_()).fill_null(False)
    paths = _paths(items)
    if paths is not None:
        has = _not_empty(paths)
    if items.type.get_field_index("bytes") >= 0 and _is_bytes(items.type.field("bytes").type):
        has = pc.or_(has, _not_empty(pc.struct_field(items, "bytes")))
    return has


def _note_prompts(outcome: Scan, batch: pa.RecordBatch, items: dict[str, list[int]]) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    prompt = batch.column(batch.schema.get_field_index("prompt"))
    message = prompt.type.value_type if _is_list(prompt.type) else None
    if message is None or not pa.types.is_struct(message) or message.get_field_index("content") < 0:
        raise InvalidInput(f"`prompt` is {prompt.type}, not a list of messages", hint=HINT)
    content = pc.struct_field(pc.list_flatten(prompt), "content")
    if not _is_text(content.type):
        raise InvalidInput(f"the content of `prompt` is {content.type}, not text", hint=HINT)
    owner = pc.list_parent_indices(prompt)
    words = pc.cast(_not_empty(pc.utf8_trim_whitespace(content)), pa.int64())
    for row, said in enumerate(_sums(owner, words, batch.num_rows)):
        if not said:
            outcome.empty_prompts.add(outcome.rows + row)
    for column, mark in PLACEHOLDERS.items():
        marks = _sums(owner, pc.fill_null(pc.count_substring(content, mark), 0), batch.num_rows)
        mismatch = outcome.mismatches[column]
        for row, (marked, held) in enumerate(zip(marks, items[column], strict=True)):
            if marked != held:
                if not mismatch.count:
                    mismatch.marks, mismatch.items = marked, held
                mismatch.add(outcome.rows + row)


def _note_labels(outcome: Scan, batch: pa.RecordBatch) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    reward = batch.column(batch.schema.get_field_index("reward_model"))
    if not pa.types.is_struct(reward.type) or reward.type.get_field_index("ground_truth") < 0:
        raise InvalidInput(f"`reward_model` is {reward.type}, without a `ground_truth`", hint=HINT)
    for row, label in enumerate(pc.struct_field(reward, "ground_truth").to_pylist(), start=outcome.rows):
        said = label.strip() if isinstance(label, str) else label
        if said is None or said in ("", [], {}):
            outcome.empty_labels.add(row)
        elif isinstance(label, str | int | float):
            outcome.labels.setdefault(label, row)


def _sums(owner: pa.Array, counts: pa.Array, rows: int) -> list[int]:
    import pyarrow.compute as pc

    sums = [0] * rows
    some = pc.greater(counts, 0)
    for row, count in zip(owner.filter(some).to_pylist(), counts.filter(some).to_pylist(), strict=True):
        sums[row] += count
    return sums


def _not_empty(values: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    return pc.fill_null(pc.greater(pc.binary_length(values), 0), False)


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_message(kind: pa.DataType) -> bool:
    import pyarrow as pa

    if not pa.types.is_struct(kind):
        return False
    return all(kind.get_field_index(name) >= 0 and _is_text(kind.field(name).type) for name in ("role", "content"))


def _is_candidate(kind: pa.DataType) -> bool:
    return _is_text(kind) or _is_message(kind) or (_is_list(kind) and _is_message(kind.value_type))


def _is_bytes(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or _is_text(kind))
