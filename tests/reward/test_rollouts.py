"""Reading responses: what verl dumps, what the documentation says, and a place for every fault."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from omnirl.errors import InvalidInput
from omnirl.reward import rollouts
from omnirl.reward.rescore import RECORDED, Scorer, Totals
from omnirl.reward.rollouts import read, read_lines

ROW = {"response": "#### 72", "ground_truth": "72", "data_source": "d", "extra_info": {"index": 3}}


def lines(*records: object) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def rows_of(data: bytes) -> list[rollouts.Row]:
    return list(read_lines(io.BytesIO(data), "in"))


def test_documented_rows():
    first, second, third = rows_of(
        b"\xef\xbb\xbf" + lines(ROW) + b"\n  \n" + lines({"response": None, "ground_truth": 7}, ROW)
    )
    assert (first.index, first.where, first.response, first.ground_truth) == (0, "in:1", "#### 72", "72")
    assert (first.data_source, first.extra_info, first.recorded) == ("d", {"index": 3}, None)
    assert (second.index, second.where, second.response, second.data_source) == (1, "in:4", None, "rollouts")
    assert third.index == 2


def test_rows_as_verl_dumps_them_in_the_order_of_their_steps(tmp_path):
    for step in (2, 10, 1):
        record = {
            "input": "q",
            "output": f"#### {step}",
            "gts": "1",
            "score": step / 2,
            "step": step,
            "request_id": "x",
        }
        (tmp_path / f"{step}.jsonl").write_bytes(lines(record, record))
    (tmp_path / "notes.txt").write_text("no rows")
    found = list(read(tmp_path))
    assert [row.response for row in found] == ["#### 1", "#### 1", "#### 2", "#### 2", "#### 10", "#### 10"]
    assert [row.index for row in found] == list(range(6))
    assert found[0].recorded == 0.5
    assert found[-1].where == f"{tmp_path}/10.jsonl:2"


def test_parquet(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "rows.parquet"
    record = {
        "response": "<answer>B</answer>",
        "reward_model": {"ground_truth": "<answer>B</answer>", "style": "rule"},
        "data_source": "avqa",
        "extra_info": {"options": ["A. x", "B. y"]},
        "images": [b"not read"],
    }
    pq.write_table(pa.Table.from_pylist([record] * 1000), path)
    found = list(read(path))
    assert len(found) == 1000
    assert found[999].where == f"{path}:row 999"
    assert found[0].ground_truth == "<answer>B</answer>"
    assert found[0].extra_info == {"options": ["A. x", "B. y"]}
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InvalidInput, match="is no parquet that can be read"):
        list(read(path))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"response": "x"', "not JSON"),
        (b"[1]", "is a list"),
        (b"7", "is a int"),
        (b'{"response": 7, "ground_truth": "1"}', "`response` is a int"),
        (b'{"ground_truth": "1"}', "no `response`"),
        (b'{"response": "x"}', "no `ground_truth`"),
        (b'{"response": "x", "ground_truth": "1", "extra_info": []}', "`extra_info` is a list"),
        (b'\xff\xfe{"response"', "not UTF-8"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_bad_row_is_named_by_its_place(line, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        rows_of(lines(ROW, ROW) + line + b"\n" + lines(ROW))
    assert caught.value.where == "in:3"
    assert caught.value.hint


def test_a_line_without_end_is_not_held(monkeypatch):
    monkeypatch.setattr(rollouts, "MOST_BYTES", 1000)
    with pytest.raises(InvalidInput, match="is no row") as caught:
        rows_of(lines(ROW) + b'{"response": "' + b"x" * 5000)
    assert caught.value.where == "in:2"


@pytest.mark.parametrize("name", ["absent", "folder"])
def test_nothing_to_read(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidInput, match=r"cannot be read: no such file|holds no \.jsonl or \.parquet"):
        list(read(tmp_path / name))


def scored(name: str, *records: dict, **options: object) -> Totals:
    totals = Totals()
    with Scorer(name, options) as scorer:
        for row, found in scorer.score_all(rows_of(lines(*records))):
            totals.add(row, found)
    return totals


def test_totals():
    records = [ROW, {**ROW, "response": "#### 7"}, {**ROW, "response": None}, {**ROW, "response": "\ud83d"}]
    totals = scored("gsm8k", *records)
    assert totals.as_dict() == {
        "n": 4,
        "mean": 0.25,
        "accuracy": 0.25,
        "outcomes": {"scored": 1, "wrong": 3, "timeout": 0, "scorer_error": 0},
    }
    assert Totals().as_dict()["mean"] is None


def test_rows_stay_in_order_when_processes_score_them():
    records = [{"response": f"\\boxed{{x+{n}}}", "ground_truth": f"{n % 2}+x"} for n in range(100)]
    with Scorer("mmk12", {"workers": 2}) as scorer:
        found = [(row.index, judged.outcome) for row, judged in scorer.score_all(rows_of(lines(*records)))]
    assert found == [(n, "scored" if n in (0, 1) else "wrong") for n in range(100)]


def test_modes_by_name_and_recorded_scores():
    record = {"response": "#### $1,000 apples", "ground_truth": "1000", "score": 0.25}
    assert scored("gsm8k", record).score == 1.0
    assert scored("gsm8k:reference", record).score == 0.0
    assert scored(RECORDED, record).score == 0.25
    with pytest.raises(InvalidInput, match="no `score`"):
        scored(RECORDED, ROW)
    with pytest.raises(InvalidInput, match="is no value"):
        scored("gsm8k:lenient", record)


@pytest.mark.parametrize("name", ["gsm8k", "mmk12"])
def test_a_label_that_is_none_is_named_by_its_place(name):
    with pytest.raises(InvalidInput, match="d: ground truth ''") as caught:
        scored(name, ROW, {**ROW, "ground_truth": ""})
    assert caught.value.where == "in:2"


def test_a_scorer_of_the_users_own(tmp_path: Path):
    path = tmp_path / "mine.py"
    path.write_text(
        "def score(solution_str, **_):\n    return {'score': len(solution_str), 'acc': 1 / (7 - len(solution_str))}\n"
    )
    totals = scored(f"{path}:score", {**ROW, "response": "abc"}, ROW)
    assert totals.outcomes == {"scored": 1, "wrong": 0, "timeout": 0, "scorer_error": 1}
    assert totals.errors == [f"in:2: {path}:2: ZeroDivisionError: division by zero"]
