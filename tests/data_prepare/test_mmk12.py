"""MMK12: pictures come through byte for byte, options and answers are read, damaged shards and rows are named."""

from __future__ import annotations

import io
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Picture

from omnirl.data import store
from omnirl.data.prepare import prepare
from omnirl.data.sample import Drop, Sample
from omnirl.data.sources import Options, choices, find, mmk12
from omnirl.data.sources.mmk12 import SYSTEM, answer_type, convert, splits
from omnirl.errors import InvalidInput

MMK12 = find("mmk12")


def picture(number: int = 0, kind: str = "PNG") -> bytes:
    held = io.BytesIO()
    Picture.new("RGB", (40, 30), (number % 256, 9, 9)).save(held, kind)
    return held.getvalue()


LISTED = "Find $x$.\nA. 5.25\nB) $\\frac{1}{2}$\n C、 3\n(D) None\n"
RECORD: dict[str, Any] = {
    "id": "m-1",
    "question": LISTED,
    "answer": " B\n",
    "subject": "math",
    "image": {"bytes": picture(), "path": "1.png"},
}
SCHEMA = pa.schema(
    {
        "id": pa.string(),
        "question": pa.string(),
        "answer": pa.string(),
        "subject": pa.string(),
        "image": pa.struct({"bytes": pa.binary(), "path": pa.string()}),
    }
)


def changed(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in (RECORD | fields).items() if value is not ...}


def shard(
    folder: Path, records: list[dict[str, Any]], name: str = "train-00000-of-00001", schema: Any = SCHEMA
) -> Path:
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(records, schema=schema), folder / f"{name}.parquet")
    return folder / f"{name}.parquet"


def read(folder: Path) -> dict[str, list[Sample | Drop]]:
    return {name: list(stream) for name, stream in splits(folder, folder / "out", Options())}  # type: ignore[misc]


def one(record: Any) -> Sample | Drop:
    return convert(record, "train", 3, "here")


def test_a_row_is_what_verl_reads(tmp_path):
    shard(tmp_path, [RECORD, changed(answer="", id="m-2"), changed(id="m-3")])
    shard(tmp_path, [changed(question="How long?", answer="$2\\pi$")], "test")
    found = read(tmp_path)
    assert list(found) == ["train", "test"]
    assert found["train"][1] == Drop("empty_answer", "train-00000-of-00001.parquet:row 1")
    assert [(row.index, row.id, row.split) for row in found["train"][::2]] == [(0, "m-1", "train"), (2, "m-3", "train")]
    row = next(store.read_rows(store.write_parquet(tmp_path / "row.parquet", found["train"][:1]).path))
    assert row["data_source"] == "mmk12"
    assert row["ability"] == "math_vl"
    text = f"<image>\n{LISTED.strip()}"
    assert row["prompt"] == [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    assert row["images"] == [{"bytes": picture(), "image": None}]
    assert row["audios"] == row["videos"] == []
    assert row["reward_model"] == {"style": "rule", "ground_truth": "B"}
    extra = row["extra_info"]
    assert extra["options"] == ["A. 5.25", "B. $\\frac{1}{2}$", "C. 3", "D. None"]
    assert json.loads(extra["details"]) == {"subject": "math"}
    assert (extra["kind"], extra["question"], extra["answer"]) == ("math", LISTED.strip(), "B")
    assert "<think>...</think><answer>...\\boxed{...}...</answer>" in SYSTEM
    (other,) = found["test"]
    assert (other.options, other.ground_truth, other.tally) == ((), "$2\\pi$", "latex")


@pytest.mark.parametrize(
    ("question", "options"),
    [
        ("Q\nA. 1\nB. 2", {"A": "1", "B": "2"}),
        ("Q\r\nA.1\r\nB.2\r\n", {"A": "1", "B": "2"}),
        ("A．5\nB：6\nC） 7\n（D） 8", {"A": "5", "B": "6", "C": "7", "D": "8"}),  # noqa: RUF001
        ("Q\nA. 1 B. 2\tC) 3 (D) 4", {"A": "1", "B": "2", "C": "3", "D": "4"}),
        ("Q\nA. 1  B. 2\nC. 3  D. 4", {"A": "1", "B": "2", "C": "3", "D": "4"}),
        ("Q\nA. see B. 2 below\nB. 2", {"A": "see B. 2 below", "B": "2"}),
        ("Q\nA. AB=5 cm\nB. CD. x", {"A": "AB=5 cm", "B": "CD. x"}),
        ("Q\nA.\nB.\nC. 3", {"A": "", "B": "", "C": "3"}),
        ("Q\nA. 1\nC. 3", {"A": "1", "C": "3"}),
        ("Q\nA. the only one", {}),
        ("Q\nB. 1\nC. 2", {}),
        ("Q\nA. 1\nB. 2\nA. 3", {}),
        ("Q\nB. 1\nA. 2", {}),
        ("Q\na. 1\nb. 2", {}),
        ("Points A, B and C. Find BC.", {}),
        ("", {}),
    ],
)
def test_options_are_found_in_the_lines(question, options):
    assert choices.find_options(question) == options


def test_options_are_found_in_linear_time():
    hostile = [unit * (400_000 // len(unit)) for unit in (" ", "A. ", "A", "\nA. 1", " B.", "(", "（", "\t\n", "A \t")]  # noqa: RUF001

    def seconds(text: str) -> float:
        start = time.process_time()
        choices.find_options(text)
        answer_type(text)
        return time.process_time() - start

    for text in hostile:
        small = min(seconds(text[:40_000]) for _ in range(3))
        assert seconds(text) < 40 * small + 0.05


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        *((letter, "option") for letter in ("A", "E", "H", "b")),
        *((text, "number") for text in ("5", "-3", "+2", "−4", "5.25", ".5", "1,000", "3/4", "45°", "30 %", "12345.6")),  # noqa: RUF001
        *((text, "latex") for text in ("$2$", "$$\\frac{1}{2}$$", "x^2", "\\sqrt{3}", "$(1,2)$", "a_1", "$x=1$")),
        *((text, "several values") for text in ("6 or 2 or 10", "1, 2", "1;2", "$1$ or $2$", "A, C", "3、4", "1 和 2")),
        *((text, "words") for text in ("mitosis", "AB", "salt and pepper", "x", "-", "5 cm", "(1,2)", "%", "x=3")),
    ],
)
def test_answers_are_told_apart(answer, kind):
    assert answer_type(answer) == kind


HOSTILE: list[tuple[Any, str]] = [
    (changed(id=5, subject=None), ""),
    (changed(id=..., subject=...), ""),
    (changed(answer="C"), ""),
    (changed(answer="b"), ""),
    (changed(question="Q", answer="Z"), ""),
    (changed(question="Q\nA.\nB.", answer="A"), ""),
    (changed(question="Q\nA. x\nB. X", answer="A"), ""),
    (changed(question="Q\nA. x\nB. y\nC. x", answer="B"), ""),
    (changed(image=picture()), ""),
    (changed(image={"bytes": picture(kind="JPEG"), "path": 5, "more": None}), ""),
    *((record, "invalid_record") for record in (None, 5, "text", [RECORD], changed(question=5), changed(answer=["B"]))),
    *((changed(image=image), "invalid_record") for image in ("1.png", 5, ["x"], {"bytes": "text"}, {"bytes": 5})),
    *((changed(question=text), "empty_question") for text in (..., None, "", " \n\u3000")),
    *((changed(answer=text), "empty_answer") for text in (..., None, "", " \n")),
    *(
        (changed(image=image), "missing_image")
        for image in (..., None, {}, {"bytes": None, "path": "1.png"}, {"bytes": b""}, b"")
    ),
    *((changed(question=f"see {mark}"), "media_placeholder") for mark in ("<image>", "<audio>", "<video>")),
    (changed(question="a\0"), "invalid_text"),
    (changed(answer="\ud83d"), "invalid_text"),
    (changed(id="\udc00"), "invalid_text"),
    (changed(subject="a\0"), "invalid_text"),
    (changed(question="x" * 2_000_000), "too_long"),
    (changed(answer="E"), "invalid_answer"),
    (changed(answer="x"), "invalid_answer"),
    (changed(question="Q\nA. 1\nB.  x  y\nC. x y"), "ambiguous_options"),
]


@pytest.mark.parametrize(("record", "reason"), HOSTILE, ids=lambda value: value if isinstance(value, str) else "")
def test_a_record_is_a_row_or_has_its_reason(record, reason):
    outcome = one(record)
    if reason:
        assert outcome == Drop(reason, "here")
    else:
        assert isinstance(outcome, Sample), outcome
        fits(outcome)


@pytest.mark.parametrize(
    "types",
    [
        {"question": pa.large_string(), "image": pa.struct({"bytes": pa.large_binary()})},
        {"question": pa.string_view(), "answer": pa.string_view()},
        {"question": pa.dictionary(pa.int32(), pa.string()), "image": pa.binary()},
        {"id": pa.int64(), "subject": pa.null()},
        {"image": pa.struct({"path": pa.string(), "bytes": pa.binary(), "size": pa.int64()})},
    ],
    ids=str,
)
def test_types_that_mean_the_same_are_read(types, tmp_path):
    schema = SCHEMA
    for name, kind in types.items():
        schema = schema.set(schema.get_field_index(name), pa.field(name, kind))
    record = changed(id=7, subject=None) if "id" in types else dict(RECORD)
    record["image"] = picture() if types.get("image") == pa.binary() else record["image"]
    shard(tmp_path, [record, record], schema=schema)
    shard(tmp_path, [RECORD], "test")
    rows = read(tmp_path)["train"]
    assert [row.images[0].data for row in rows] == [picture()] * 2
    assert rows[0].question == LISTED.strip()
    assert rows[0].id == ("7" if "id" in types else "m-1")


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("question", pa.int64(), 5),
        ("question", pa.list_(pa.string()), ["x"]),
        ("question", pa.binary(), b"x"),
        ("answer", pa.float64(), 5.0),
        ("answer", pa.struct({"a": pa.string()}), {"a": "x"}),
        ("image", pa.string(), "1.png"),
        ("image", pa.list_(pa.binary()), [b"x"]),
        ("image", pa.struct({"bytes": pa.string()}), {"bytes": "x"}),
        ("image", pa.struct({"path": pa.string()}), {"path": "x"}),
        ("id", pa.list_(pa.string()), ["x"]),
        ("subject", pa.binary(), b"x"),
    ],
    ids=str,
)
def test_a_column_of_an_unusable_type_is_named(name, kind, value, tmp_path):
    schema = SCHEMA.set(SCHEMA.get_field_index(name), pa.field(name, kind))
    path = shard(tmp_path, [changed(**{name: value})], schema=schema)
    shard(tmp_path, [RECORD], "test")
    with pytest.raises(InvalidInput, match=f"column `{name}` of `{path}` is `") as caught:
        read(tmp_path)
    assert caught.value.hint


def test_columns_that_are_absent_or_there_twice_are_named(tmp_path):
    shard(tmp_path, [RECORD], "test")
    table = pa.Table.from_pylist([RECORD], schema=SCHEMA)
    pq.write_table(table.drop_columns(["id", "subject"]), tmp_path / "train.parquet")
    assert read(tmp_path)["train"][0].id == ""
    pq.write_table(table.drop_columns(["answer"]), tmp_path / "train.parquet")
    with pytest.raises(InvalidInput, match="lacks the column `answer`"):
        read(tmp_path)
    pq.write_table(table.append_column("answer", table["answer"]), tmp_path / "train.parquet")
    with pytest.raises(InvalidInput, match=r"train\.parquet"):
        read(tmp_path)


def test_a_column_without_values_drops_every_row(tmp_path):
    schema = SCHEMA.set(4, pa.field("image", pa.null()))
    shard(tmp_path, [changed(image=None)] * 2, schema=schema)
    shard(tmp_path, [RECORD], "test")
    assert [drop.reason for drop in read(tmp_path)["train"]] == ["missing_image"] * 2


def test_text_that_is_no_utf8_costs_its_row(tmp_path):
    table = pa.Table.from_pylist([RECORD, RECORD, RECORD], schema=SCHEMA)
    damaged = pa.array([LISTED.encode(), b"\xff\xfe", LISTED.encode()]).view(pa.string())
    pq.write_table(table.set_column(1, "question", damaged), tmp_path / "train.parquet")
    shard(tmp_path, [RECORD], "test")
    rows = read(tmp_path)["train"]
    assert rows[1] == Drop("invalid_text", "train.parquet:row 1")
    assert [row.index for row in (rows[0], rows[2])] == [0, 2]


def test_a_null_struct_with_bytes_behind_it_has_no_picture(tmp_path):
    held = pa.StructArray.from_arrays(
        [pa.array([picture(), picture()]), pa.array(["a", "b"])], ["bytes", "path"], mask=pa.array([True, False])
    )
    table = pa.Table.from_pylist([RECORD, RECORD], schema=SCHEMA)
    pq.write_table(table.set_column(4, "image", held), tmp_path / "train.parquet")
    shard(tmp_path, [RECORD], "test")
    drop, row = read(tmp_path)["train"]
    assert drop == Drop("missing_image", "train.parquet:row 0")
    assert row.images[0].data == picture()


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "folder"])
def test_a_damaged_shard_is_named(damage, tmp_path):
    path = shard(tmp_path, [RECORD])
    shard(tmp_path, [RECORD], "test")
    if damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes({"cut": path.read_bytes()[:-30], "empty": b"", "text": b"id,question\n"}[damage])
    with pytest.raises(InvalidInput, match=str(path)):
        read(tmp_path)


def test_a_missing_split_is_named(tmp_path):
    shard(tmp_path, [RECORD])
    with pytest.raises(InvalidInput, match=r"no `test.parquet` and no `test-\*.parquet`"):
        read(tmp_path)
    shard(tmp_path / "data", [RECORD], "test-00000-of-00001")
    with pytest.raises(InvalidInput) as caught:
        read(tmp_path)
    assert caught.value.hint == f"`--input {tmp_path / 'data'}` has it"


def test_shards_are_read_in_order_and_pictures_stay_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(mmk12, "BATCH_ROWS", 3)
    pictures = [picture(number, "PNG" if number % 2 else "JPEG") for number in range(20)]
    for number in range(2):
        part = pictures[10 * number : 10 * number + 10]
        shard(tmp_path, [changed(image={"bytes": one, "path": None}) for one in part], f"train-{number:05}-of-00002")
    shard(tmp_path, [RECORD], "test")
    rows = read(tmp_path)["train"]
    assert [row.index for row in rows] == list(range(20))
    written = store.write_parquet(tmp_path / "out.parquet", rows, max_group_bytes=2000)
    assert [row["images"][0]["bytes"] for row in store.read_rows(written.path)] == pictures


def test_memory_does_not_grow_with_the_rows(tmp_path):
    """What Arrow holds while a shard of one great row group is read stays the same."""

    def peak_bytes(count: int) -> int:
        folder = tmp_path / str(count)
        records = (changed(image={"bytes": bytes([number % 251]) * 60_000, "path": None}) for number in range(count))
        table = pa.Table.from_pylist(list(records), schema=SCHEMA)
        folder.mkdir()
        pq.write_table(table, folder / "train.parquet", use_dictionary=False, compression="NONE", write_batch_size=16)
        del table
        shard(folder, [RECORD], "test")
        _, stream = next(splits(folder, folder, Options()))
        before, peak = pa.total_allocated_bytes(), 0
        for _ in stream:
            peak = max(peak, pa.total_allocated_bytes() - before)
        return peak

    assert peak_bytes(2400) < 1.3 * peak_bytes(600)


def test_prepared_whole_with_pictures_that_are_looked_at(tmp_path):
    damaged = changed(image={"bytes": picture()[:60], "path": None})
    shard(tmp_path / "in", [RECORD, RECORD, damaged, changed(answer="")])
    shard(tmp_path / "in", [RECORD], "test")
    report = prepare(MMK12, input=tmp_path / "in", output=tmp_path / "out")
    train = report.splits["train"]
    assert (train.input, train.kept) == (4, 2)
    assert train.dropped == Counter(unreadable_image=1, empty_answer=1)
    assert train.answers == {"option": 2}
    assert [row["images"][0]["bytes"] for row in store.read_rows(tmp_path / "out" / "train.parquet")] == [picture()] * 2


def fits(sample: Sample) -> None:
    """The row can be stored under its schema, and its one placeholder is that of its picture."""
    (row,) = pa.Table.from_pylist([sample.to_row()], schema=Sample.schema()).to_pylist()
    assert row["prompt"][-1]["content"].count("<image>") == len(row["images"]) == 1
    assert row["images"][0]["bytes"]
    assert row["reward_model"]["ground_truth"].strip()


ANY_TEXT = st.text(st.characters(codec=None, categories=None), max_size=12)
ANY_VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.builds(lambda: 10**5000)
    | st.floats()
    | ANY_TEXT
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=5,
)
RECORDS = ANY_VALUE | st.fixed_dictionaries(
    {
        "question": st.just(LISTED)
        | st.lists(st.sampled_from(["A.", "B)", "C", "x\n,<image>"]) | ANY_TEXT).map("\n".join),
        "answer": st.sampled_from(["B", "x", "5", "$1$"]) | ANY_TEXT | ANY_VALUE,
        "image": st.just(RECORD["image"]) | st.fixed_dictionaries({"bytes": st.binary() | ANY_VALUE}) | ANY_VALUE,
    },
    optional={"id": ANY_VALUE, "subject": ANY_VALUE},
)


@given(RECORDS)
def test_any_record_gives_a_row_that_fits_or_a_reason(record):
    outcome = one(record)
    if isinstance(outcome, Drop):
        assert outcome.where == "here"
        assert outcome.reason.replace("_", "").isalpha()
    else:
        fits(outcome)
