"""GSM8K: the real files whole, hostile lines each with their reason, and never a crash."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.data import store
from omnirl.data.prepare import prepare
from omnirl.data.sample import Drop, Sample
from omnirl.data.sources import find
from omnirl.data.sources.gsm8k import INSTRUCTION, convert
from omnirl.errors import InvalidInput
from omnirl.reward.score import check_label, compute_score

from .conftest import RECORD

GSM8K = find("gsm8k")


def test_the_real_files_are_kept_whole(shared, tmp_path):
    folder = shared / "data" / "gsm8k"
    if not (folder / "train.jsonl").is_file():
        pytest.skip(f"needs the GSM8K files in {folder}")
    report = prepare(GSM8K, input=folder, output=tmp_path)
    assert [(name, split.input, split.kept) for name, split in report.splits.items()] == [
        ("train", 7473, 7473),
        ("test", 1319, 1319),
    ]
    for name, count in (("train", 7473), ("test", 1319)):
        rows = list(store.read_rows(tmp_path / f"{name}.parquet"))
        assert [row["extra_info"]["index"] for row in rows] == list(range(count))
        for row in rows:
            score = compute_score(
                row["data_source"], row["extra_info"]["answer"], row["reward_model"]["ground_truth"], scorer="gsm8k"
            )
            assert score["accuracy"] == 1.0


def test_a_row_is_what_verl_reads(gsm8k_input, tmp_path):
    answer = "so <<1200+34=1234>>1234\n#### -1,234"
    prepare(GSM8K, input=gsm8k_input([{"question": " How much? ", "answer": answer}]), output=tmp_path / "out")
    (row,) = store.read_rows(tmp_path / "out" / "train.parquet")
    assert row["data_source"] == "openai/gsm8k"
    assert row["prompt"] == [{"role": "user", "content": f"How much?\n{INSTRUCTION}"}]
    assert row["reward_model"] == {"style": "rule", "ground_truth": "-1234"}
    assert row["ability"] == "math"
    assert row["images"] == row["audios"] == row["videos"] == []
    kept = {name: row["extra_info"][name] for name in ("split", "index", "question", "answer")}
    assert kept == {"split": "train", "index": 0, "question": " How much? ", "answer": answer}


HOSTILE = [
    (b"", "empty_line"),
    (b"  \t\r", "empty_line"),
    (b"{", "invalid_json"),
    (b'{"question": "a\x00b", "answer": "#### 1"}', "invalid_json"),
    (b"[" * 200_000, "invalid_json"),
    (b'{"question": ' + b"1" * 6000 + b', "answer": "#### 1"}', "invalid_json"),
    (b"[1]", "invalid_record"),
    (b"null", "invalid_record"),
    (b"{}", "invalid_record"),
    ({"question": 5, "answer": "#### 1"}, "invalid_record"),
    ({"question": "q", "answer": ["#### 1"]}, "invalid_record"),
    ({"question": "q"}, "invalid_record"),
    ({"question": " \n", "answer": "#### 1"}, "empty_question"),
    ({"question": "q", "answer": "5"}, "no_final_answer"),
    ({"question": "q", "answer": "5 ####  "}, "no_final_answer"),
    ({"question": "q", "answer": "#### five"}, "invalid_final_answer"),
    ({"question": "q", "answer": "#### 5 apples"}, "invalid_final_answer"),
    ({"question": "q", "answer": "#### 1,23"}, "invalid_final_answer"),
    ({"question": "an <image> here", "answer": "#### 1"}, "media_placeholder"),
    (b'{"question": "half \\ud83d", "answer": "#### 1"}', "invalid_text"),
    (b'{"question": "q", "answer": "\\udc00 #### 1"}', "invalid_text"),
    (b'{"question": "nul \\u0000", "answer": "#### 1"}', "invalid_text"),
    ('{"question": "多少", "answer": "#### 1"}'.encode("gbk"), "invalid_text"),
    (b'{"question": "' + b"x" * 10_000_000 + b'", "answer": "#### 1"}', "too_long"),
]


@pytest.mark.parametrize(("line", "reason"), HOSTILE, ids=lambda value: value if isinstance(value, str) else "")
def test_a_hostile_line_is_dropped_with_its_reason_and_the_others_stay(line, reason, gsm8k_input, tmp_path):
    report = prepare(GSM8K, input=gsm8k_input([RECORD, line, RECORD]), output=tmp_path / "out")
    train = report.splits["train"]
    assert (train.input, train.kept, dict(train.dropped)) == (3, 2, {reason: 1})
    assert train.first_drop == {reason: "train.jsonl:2"}
    assert [row["extra_info"]["index"] for row in store.read_rows(tmp_path / "out" / "train.parquet")] == [0, 2]


def test_byte_order_mark_and_carriage_returns_are_read_over(gsm8k_input, tmp_path):
    line = json.dumps(RECORD).encode()
    report = prepare(GSM8K, input=gsm8k_input([b"\xef\xbb\xbf" + line + b"\r", line + b"\r"]), output=tmp_path / "out")
    assert report.splits["train"].kept == 2


def test_a_line_separator_inside_a_text_does_not_end_the_line(gsm8k_input, tmp_path):
    line = json.dumps({"question": "a\u2028b\u0085c", "answer": "#### 1"}, ensure_ascii=False)
    assert prepare(GSM8K, input=gsm8k_input([line]), output=tmp_path / "out").splits["train"].kept == 1


@pytest.mark.parametrize(
    ("content", "message", "hint"),
    [
        (json.dumps(RECORD).encode("utf-16"), "is UTF-16", "iconv"),
        ('{"question": "多少", "answer": "#### 1"}\n'.encode("gbk") * 9, "may be GB18030", "iconv -f GB18030"),
        (json.dumps([RECORD, RECORD]).encode(), "one JSON array", "jq -c"),
        (json.dumps([RECORD], indent=1).encode(), "one JSON array", "jq -c"),
        (json.dumps(RECORD, indent=1).encode(), "keeps none of its 4 records", "train.jsonl:1"),
        (b"", "has no records", None),
        (b"\n\n", "keeps none of its 2 records", "empty_line"),
    ],
    ids=["utf16", "gbk", "array", "array-indented", "object-indented", "empty", "blank"],
)
def test_a_file_of_another_kind_is_named_and_nothing_is_left(content, message, hint, gsm8k_input, tmp_path):
    folder = gsm8k_input()
    (folder / "train.jsonl").write_bytes(content)
    with pytest.raises(InvalidInput, match=message) as caught:
        prepare(GSM8K, input=folder, output=tmp_path / "a" / "out")
    if hint:
        assert hint in caught.value.hint
    assert not (tmp_path / "a").exists()


def test_a_missing_split_is_named(gsm8k_input, tmp_path):
    folder = gsm8k_input()
    (folder / "test.jsonl").unlink()
    with pytest.raises(InvalidInput, match=r"no `test.jsonl` and no `test\*.parquet`"):
        prepare(GSM8K, input=folder, output=tmp_path / "out")
    (tmp_path / "hub").mkdir()
    gsm8k_input().rename(tmp_path / "hub" / "main")
    with pytest.raises(InvalidInput) as caught:
        prepare(GSM8K, input=tmp_path / "hub", output=tmp_path / "out")
    assert caught.value.hint == f"`--input {tmp_path / 'hub' / 'main'}` has it"


@pytest.mark.parametrize(
    "names", [("train.parquet", "test.parquet"), ("train-00000-of-00001.parquet", "test-0.parquet")]
)
def test_parquet_of_a_hub_is_read(names, tmp_path):
    for name in names:
        pq.write_table(pa.Table.from_pylist([RECORD, {"question": None, "answer": None}]), tmp_path / name)
    report = prepare(GSM8K, input=tmp_path, output=tmp_path / "out")
    assert [(split.kept, dict(split.dropped)) for split in report.splits.values()] == [(1, {"invalid_record": 1})] * 2
    assert report.splits["test"].first_drop == {"invalid_record": f"{names[1]}:row 1"}


def test_shards_are_read_in_order_and_counted_through(tmp_path):
    for shard in range(3):
        pq.write_table(
            pa.Table.from_pylist([{"question": f"q{shard}", "answer": "#### 1"}] * 2),
            tmp_path / f"train-0000{shard}.parquet",
        )
    pq.write_table(pa.Table.from_pylist([RECORD]), tmp_path / "test.parquet")
    prepare(GSM8K, input=tmp_path, output=tmp_path / "out")
    rows = [row["extra_info"] for row in store.read_rows(tmp_path / "out" / "train.parquet")]
    assert [(row["index"], row["question"]) for row in rows] == [(n, f"q{n // 2}") for n in range(6)]


def test_parquet_of_another_kind_is_named(tmp_path):
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "train.parquet")
    pq.write_table(pa.Table.from_pylist([RECORD]), tmp_path / "test.parquet")
    with pytest.raises(InvalidInput, match="lacks the columns `question`, `answer`"):
        prepare(GSM8K, input=tmp_path, output=tmp_path / "out")
    invalid = pa.array([b"\xff\xfe", b"q"]).cast(pa.binary()).view(pa.string())
    pq.write_table(pa.table({"question": invalid, "answer": ["#### 1", "#### 1"]}), tmp_path / "train.parquet")
    report = prepare(GSM8K, input=tmp_path, output=tmp_path / "out")
    assert dict(report.splits["train"].dropped) == {"invalid_text": 1}


ANY_TEXT = st.text(st.characters(codec=None, categories=None)) | st.sampled_from(
    ["#### 5", "#### -1,000", "x #### 0.5 "]
)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.builds(lambda: 10**5000) | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
RECORDS = ANY_JSON | st.fixed_dictionaries({"question": ANY_TEXT | ANY_JSON, "answer": ANY_TEXT | ANY_JSON})


@given(RECORDS)
def test_any_record_gives_a_row_that_can_be_stored_and_scored_or_a_reason(record):
    outcome = convert(record, "train", 3, "here")
    if isinstance(outcome, Drop):
        assert outcome.where == "here"
        assert outcome.reason.replace("_", "").isalpha()
        return
    assert isinstance(outcome, Sample)
    pa.Table.from_pylist([outcome.to_row()], schema=Sample.schema())
    check_label("gsm8k", outcome.ground_truth)


def test_an_input_that_may_not_be_read_is_the_environments(gsm8k_input, tmp_path):
    folder = gsm8k_input()
    (folder / "train.jsonl").unlink()
    (folder / "train.jsonl").symlink_to(Path("train.jsonl"))
    with pytest.raises(InvalidInput, match=r"no `train.jsonl`"):
        prepare(GSM8K, input=folder, output=tmp_path / "out")
