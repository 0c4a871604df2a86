"""MMK12: school science problems with a picture inside the row; splits `train` and `test`, parquet shards of a hub.

Where a question lists options, `extra_info.options` holds them as texts that keep their letters, such as `A. 5.25`: the
letters need not be all of A to D. Options that are only drawn in the picture are not in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnirl.data import store
from omnirl.data.sample import PLACEHOLDERS, Drop, Image, Sample
from omnirl.data.sources import Options, Splits, choices, shards
from omnirl.data.sources.records import MAX_RECORD_BYTES, as_text, is_clean
from omnirl.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

SPLITS = ("train", "test")
SYSTEM = (
    "Look at the image and solve the problem. Reason step by step inside <think></think>, then give the final answer "
    "inside <answer></answer>, written in LaTeX within \\boxed{}: "
    "<think>...</think><answer>...\\boxed{...}...</answer>. "
    "Where the problem lists options, the final answer is the letter of the right one alone."
)
BATCH_ROWS = 128
BATCH_BYTES = 16 << 20
"""About how much is read at once."""

_ENCODER = json.JSONEncoder(ensure_ascii=False)
_REQUIRED = ("question", "answer", "image")
_OPTIONAL = ("id", "subject")
# Escaped: the minus sign, and the wide or Chinese forms of parentheses, brackets, semicolon, commas, `or` and `and`.
_NUMBER = re.compile(r"[-+\u2212]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:/\d+)?[ ]?[%°]?")
_BRACKETS = r"()\[\]{}\uff08\uff09\u3010\u3011"
_FORMULA = re.compile(rf"\$[^$]*\$|[(\[{{\uff08\u3010][^{_BRACKETS}]*[)\]}}\uff09\u3011]")
_BETWEEN = re.compile(r"\bor\b|\band\b|[;\uff1b\u3001\uff0c\u6216\u548c]|,(?!\d{3}(?!\d))", re.IGNORECASE)
_LATEX = re.compile(r"[$\\^_{}]")


def splits(input: Path | None, output: Path, options: Options) -> Splits:
    """The two official splits, in their order and whole.

    Raises InvalidInput when a split's file is missing, cannot be read as parquet, or has a column of an unusable type.
    """
    assert input is not None  # the registry says that this source needs it
    found = shards.find(
        input,
        SPLITS,
        shards.parquet_files,
        wanted="no `{split}.parquet` and no `{split}-*.parquet`",
        layout="train*.parquet and test*.parquet",
    )
    for split, files in found.items():
        yield split, _read(files, split)


def convert(record: Any, split: str, index: int, where: str) -> Sample | Drop:
    """One record as a row, or why not; `index` is the record's place in its split, counted from 0.

    Reasons: `invalid_record` (no object, or a value of another type), `too_long` (over 1 MiB of text), `invalid_text`
    (NUL or half a surrogate pair), `empty_question`, `empty_answer`, `missing_image` (no bytes), `media_placeholder`,
    `invalid_answer` (a single letter that is none of the question's options), `ambiguous_options` (another option says
    what the right one says).
    """
    if not isinstance(record, dict):
        return Drop("invalid_record", where)
    question, answer = ("" if record.get(name) is None else record[name] for name in ("question", "answer"))
    if not isinstance(question, str) or not isinstance(answer, str):
        return Drop("invalid_record", where)
    if len(question) + len(answer) > MAX_RECORD_BYTES:
        return Drop("too_long", where)
    if not is_clean(question) or not is_clean(answer):
        return Drop("invalid_text", where)
    question, answer = question.strip(), answer.strip()
    if not question or not answer:
        return Drop("empty_answer" if question else "empty_question", where)
    if any(mark in question for mark in PLACEHOLDERS.values()):
        return Drop("media_placeholder", where)
    data = _image_bytes(record.get("image"))
    if isinstance(data, str):
        return Drop(data, where)
    options = choices.find_options(question)
    letter = answer.upper() if len(answer) == 1 and answer.isascii() and answer.isalpha() else ""
    if options and letter and letter not in options:
        return Drop("invalid_answer", where)
    if letter in options and choices.is_ambiguous(options, letter, fold_case=False):
        return Drop("ambiguous_options", where)
    id, subject = (as_text(record.get(name)) for name in _OPTIONAL)
    if id is None or subject is None:
        return Drop("invalid_text", where)
    return Sample(
        data_source="mmk12",
        system=SYSTEM,
        prompt=f"{PLACEHOLDERS['images']}\n{question}",
        ground_truth=answer,
        ability="math_vl",
        split=split,
        index=index,
        id=id,
        kind=subject,
        question=question,
        answer=answer,
        options=choices.listed({one: text for one, text in options.items() if text}),
        details=_ENCODER.encode({"subject": subject}),
        images=(Image(data=data),),
        tally=answer_type(answer),
    )


def answer_type(answer: str) -> str:
    """What kind of answer this is, for the report.

    `option`: one letter A to H. `number`: digits with a sign, thousands commas, a point, a fraction bar, `%` or `°`.
    `several values`: parts between commas, semicolons, `or`, `and` or their Chinese forms, outside of formulas and
    brackets, each with a digit or a formula or of one letter. `latex`: anything else with a mark of LaTeX. `words`: the
    rest.
    """
    if len(answer) == 1 and answer.upper() in choices.LETTERS:
        return "option"
    if any(mark.isdigit() for mark in answer) and _NUMBER.fullmatch(answer):
        return "number"
    parts = [part.strip() for part in _BETWEEN.split(_FORMULA.sub("0", answer))]
    if len(parts) > 1 and all(len(part) == 1 or any(mark.isdigit() for mark in part) for part in parts):
        return "several values"
    return "latex" if _LATEX.search(answer) else "words"


def _image_bytes(image: Any) -> bytes | str:
    """The encoded picture, or the reason why there is none."""
    if isinstance(image, dict):
        image = image.get("bytes")
    if image is None:
        return "missing_image"
    if not isinstance(image, bytes):
        return "invalid_record"
    return image or "missing_image"


def _read(files: list[Path], split: str) -> Iterator[Sample | Drop]:
    index = 0
    for path in files:
        facts = store.inspect(path, required=_REQUIRED)
        names = [*_REQUIRED, *(name for name in _OPTIONAL if name in facts.columns)]
        batch_rows = max(1, min(BATCH_ROWS, BATCH_BYTES * facts.rows // facts.bytes))
        number = 0
        for batch in store.read_batches(path, names, batch_rows=batch_rows):
            for record in _records(path, batch):
                yield convert(record, split, index, f"{path.name}:row {number}")
                index += 1
                number += 1


def _records(path: Path, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    columns: list[Any] = [_texts(path, batch, name) for name in batch.schema.names if name != "image"]
    names = [name for name in batch.schema.names if name != "image"]
    for image, *values in zip(_images(path, batch), *columns, strict=True):
        yield {"image": image, **dict(zip(names, values, strict=True))}


def _texts(path: Path, batch: pa.RecordBatch, name: str) -> list[Any]:
    from pyarrow import types

    column = _column(path, batch, name)
    kind = column.type
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind) or types.is_null(kind)
    if not is_text and (name in _REQUIRED or types.is_nested(kind) or _is_binary(kind)):
        raise _unusable(path, name, kind, "text")
    return shards.texts(column)


def _images(path: Path, batch: pa.RecordBatch) -> Iterator[bytes | None]:
    """The encoded pictures, each made a Python object only when its row's turn comes."""
    import pyarrow.compute as pc
    from pyarrow import types

    column = _column(path, batch, "image")
    kind = column.type
    if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        column = pc.struct_field(column, "bytes")
    if not _is_binary(column.type) and not types.is_null(column.type):
        raise _unusable(path, "image", kind, "a struct with binary `bytes`")
    return (value.as_py() for value in column)


def _column(path: Path, batch: pa.RecordBatch, name: str) -> Any:
    from pyarrow import types

    if batch.schema.names.count(name) > 1:
        raise InvalidInput(f"`{path}` has more than one column `{name}`", hint="keep one of them")
    column = batch.column(name)
    return column.dictionary_decode() if types.is_dictionary(column.type) else column


def _is_binary(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )


def _unusable(path: Path, name: str, kind: pa.DataType, wanted: str) -> InvalidInput:
    return InvalidInput(
        f"column `{name}` of `{path}` is `{str(kind)[:80]}`, not {wanted}",
        hint="fetch the original shards, or write that column anew",
    )
