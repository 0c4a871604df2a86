"""Looking through data files: every fault has its code and its row, and sound files have none."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from omnirl.data import store
from omnirl.data.checks.duplicates import Index
from omnirl.data.checks.findings import SHOWN
from omnirl.data.preference import Preference
from omnirl.data.sample import Sample, schema
from omnirl.errors import InvalidInput

from .checked import PNG, Rows, check, found, numbered, recipe, row


def test_one_file_with_every_fault_at_once(file: Rows, tmp_path: Path) -> None:
    whole = tmp_path / "sound.wav"
    whole.write_bytes(b"RIFF")
    empty = tmp_path / "empty.wav"
    empty.touch()
    changed, touched = tmp_path / "changed.wav", tmp_path / "touched.wav"
    lines = []
    for path in (changed, touched, whole):
        path.write_bytes(b"RIFF")
        status = path.stat()
        known = {"kind": "audio", "path": str(path), "size_bytes": status.st_size, "mtime_ns": status.st_mtime_ns}
        lines.append(json.dumps(known))
    (tmp_path / "media.jsonl").write_text("\n".join([*lines, "no json", "[]", "{}"]))
    changed.write_bytes(b"RIFF and more")
    os.utime(touched, ns=(1, 1))
    inline = {"bytes": PNG, "image": None}
    cases: list[tuple[str | None, dict[str, Any]]] = [
        (None, row("a sound row <image><audio>", images=[inline], audios=[str(whole)])),
        ("prompt-empty", row(" \n")),
        ("prompt-empty", row(prompt=None)),
        ("role-unknown", row(prompt=[{"role": "usr", "content": "a"}, {"role": "user", "content": "b"}])),
        ("no-user-message", row(prompt=[{"role": "system", "content": "be brief"}])),
        ("markup-in-text", row("see <|image_pad|> and <|im_start|>")),
        ("placeholders", row("two pictures, one mark <image>", images=[inline, inline])),
        ("placeholders", row("a literal <video>")),
        ("placeholders", row("no mark", audios=[str(whole)])),
        ("label-empty", row("1", "")),
        ("label-empty", row("2", reward_model=None)),
        ("label-unusable", row("3", "B")),
        ("label-unusable", row("4", "<answer></answer>")),
        ("label-case", row("5", "<answer>b</answer>")),
        ("label-not-offered", row("6", "<answer>D</answer>")),
        ("label-case", row("choose\nA. one\nB. two", "<answer>a</answer>", extra_info=None)),
        ("media-relative", row("<audio>7", audios=["sound.wav"])),
        ("media-relative", row("<audio>8", audios=["file:///sound.wav"])),
        ("media-missing", row("<audio>9", audios=[str(tmp_path / "gone.wav")])),
        ("media-empty", row("<audio>10", audios=[str(empty)])),
        ("media-not-a-file", row("<audio>11", audios=[str(tmp_path)])),
        ("media-changed", row("<audio>12", audios=[str(changed)])),
        ("media-touched", row("<audio>13", audios=[str(touched)])),
        ("media-hollow", row("<image>14", images=[{"bytes": None, "image": None}])),
        ("image-bytes-empty", row("<image>15", images=[{"bytes": b"", "image": None}])),
        ("image-bytes-unknown", row("<image>16", images=[{"bytes": b"<html>", "image": None}])),
        ("duplicate-row", row("a sound row <image><audio>", images=[inline], audios=[str(whole)])),
        ("duplicate-row", row("6", "<answer>C</answer>")),
    ]
    report = check([str(file(*(values for _, values in cases)))])
    expected = {(code, number) for number, (code, _) in enumerate(cases) if code}
    assert set(found(report)) == expected | {("duplicate-other-label", 27)}
    assert report.errors == sum(code not in (None, "duplicate-row", "media-touched") for code, _ in cases)
    assert report.as_dict()["counts"]["label-case"] == 2


def test_a_sound_file_of_every_kind_of_media_has_no_problem(toy_data: Path) -> None:
    report = check([str(toy_data / f"{name}.parquet") for name in ("train", "probe")])
    # sums are few, so that some come twice
    assert {code for code, _ in found(report)} <= {"duplicate-row"}
    assert report.scorers == dict.fromkeys(report.scorers, "choice")
    assert len(report.scorers) > 4


def test_many_faults_of_one_code_are_counted_and_the_first_are_kept(file: Rows) -> None:
    report = check([str(file(*numbered(5), *(row(f"{n}", "") for n in range(100))))])
    document = report.as_dict()
    assert document["counts"] == {"label-empty": 100}
    assert [problem["row"] for problem in document["problems"]] == list(range(5, 5 + SHOWN))
    assert document["errors"] == 100


def test_columns_that_are_missing_or_of_another_type(tmp_path: Path) -> None:
    path = tmp_path / "odd.parquet"
    pq.write_table(pa.table({"prompt": ["text"], "images": ["a.png"], "reward_model": [{"style": "x"}]}), path)
    report = check([str(path)])
    assert {(finding.code, finding.message.split("`")[1]) for finding in report.findings.listed()} == {
        ("column-missing", "data_source"),
        ("column-type", "prompt"),
        ("column-type", "images"),
        ("column-type", "reward_model"),
    }


def test_files_that_cannot_be_read(file: Rows, tmp_path: Path) -> None:
    good = file(*numbered(3))
    half = tmp_path / "half.parquet"
    half.write_bytes(good.read_bytes()[:-9])
    report = check([str(half), str(good)])
    assert [(finding.code, finding.file) for finding in report.findings.listed()] == [("file-unreadable", str(half))]
    with pytest.raises(InvalidInput, match="no such file"):
        check([str(tmp_path / "absent.parquet")])


def test_text_that_is_no_text(tmp_path: Path) -> None:
    raw = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe"))
    table = pa.Table.from_pylist([row()], schema=schema()).set_column(0, "data_source", raw)
    pq.write_table(table, tmp_path / "x.parquet", use_dictionary=False)
    assert [code for code, _ in found(check([str(tmp_path / "x.parquet")]))] == ["file-unreadable"]


@pytest.mark.parametrize(
    ("source", "label", "code"),
    [
        ("openai/gsm8k", "twelve", "label-unusable"),
        ("openai/gsm8k", "12", None),
        ("nextqa", "C", "label-unusable"),
        ("somebodys/own", "C", None),
        ("avqa_r1_6k", "<answer>B</answer>", None),
    ],
)
def test_the_scorer_is_guessed_from_the_data_source(file: Rows, source: str, label: str, code: str | None) -> None:
    report = check([str(file(row(label=label, data_source=source)))])
    assert [one for one, _ in found(report)] == ([code] if code else [])
    assert report.guessed


@pytest.mark.parametrize(
    ("options", "label", "code"),
    [
        (["red", "blue"], "<answer>B</answer>", None),
        (["red", "blue"], "<answer>C</answer>", "label-not-offered"),
        (["red", "blue"], "<answer>red</answer>", None),
        (["(A) red", "(B) blue"], "<answer> A </answer>", None),
        (["a. red", "b. blue"], "<answer>A</answer>", "label-case"),
        ([], "<answer>Z</answer>", None),
    ],
)
def test_labels_against_options(file: Rows, options: list[str], label: str, code: str | None) -> None:
    report = check([str(file(row(label=label, extra_info={"options": options})))])
    assert [one for one, _ in found(report)] == ([code] if code else [])


@pytest.mark.parametrize(
    ("label", "code"),
    [("b", None), ("C", None), ("E", "label-not-offered"), ("42", None), ("x", "label-not-offered"), ("BD", None)],
)
def test_letters_that_mmk12_reads(file: Rows, label: str, code: str | None) -> None:
    """The picture shows what `C` is, so that only the prompt has it as an option."""
    made = row("<image>\nWhich?\nA. 1 B. 2\nC.\nD. 4", label, data_source="mmk12", images=[{"bytes": PNG}])
    report = check([str(file(made | {"extra_info": {"options": ["A. 1", "B. 2", "D. 4"]}}))])
    assert [one for one, _ in found(report)] == ([code] if code else [])


@pytest.fixture
def preferences(tmp_path: Path) -> Callable[..., Path]:
    picture = tmp_path / "a.png"
    picture.write_bytes(PNG)

    def write(*changes: dict[str, Any]) -> Path:
        sound = {
            **{"data_source": "omni_preference/image", "modality": "image", "path": picture, "ability": "x"},
            **{"chosen": "good", "rejected": "bad", "win_score": 8.0, "lose_score": 3.0, "ground_truth": "A"},
        }
        rows = [
            Preference(**{"prompt": f"<image>{n}", "index": n, "question": "?", "split": "x", **sound, **change})
            for n, change in enumerate(changes)
        ]
        return store.write_parquet(tmp_path / "pairs.parquet", rows).path

    return write


def test_preferences_are_checked_as_such(preferences: Callable[..., Path]) -> None:
    path = preferences(
        {},
        {"chosen": " "},
        {"rejected": "good "},
        {"win_score": 3.0},
        {"lose_score": math.nan},
        {"prompt": "no mark"},
    )
    report = check([str(path)])
    assert report.targets[0].preference
    assert found(report) == [
        ("candidate-empty", 1),
        ("candidates-equal", 2),
        ("scores-order", 3),
        ("scores-order", 4),
        ("placeholders", 5),
    ]


def test_preferences_are_no_questions(preferences: Callable[..., Path]) -> None:
    report = check([str(preferences({}))], recipe=recipe("batch.prompts = 1", "batch.mini_prompts = 1"))
    assert ("wrong-kind", None) in found(report)


def test_duplicates_across_files(file: Rows) -> None:
    first = file(*numbered(4))
    second = file(row("question 2", "<answer>A</answer>"), row("else"), name="val.parquet")
    report = check([str(first), str(second)])
    assert found(report) == [("duplicate-across-files", 0), ("duplicate-other-label", 0)]
    assert "row 2 of " in report.findings.listed()[0].message
    assert report.duplicates == {"within_files": 0, "across_files": 1, "other_label": 1}


def test_the_same_words_about_other_media_are_no_duplicate(file: Rows) -> None:
    items = [{"bytes": PNG, "image": None}, {"bytes": PNG + b"x", "image": None}]
    assert found(check([str(file(*(row("<image>?", images=[item]) for item in items)))])) == []


def test_the_index_spills_to_disk_and_forgets_nothing() -> None:
    with Index() as index:
        for number in range(30_000):
            index.add(0, number, {"prompt": [{"role": "user", "content": str(number % 29_990)}]})
        twins = sorted(index.twins())
    assert [(twin.row, twin.first_row) for twin in twins] == [(29_990 + n, n) for n in range(10)]


def test_a_sample_is_evenly_spread(file: Rows) -> None:
    bad = {0, 50, 99, 13}
    path = file(*(row(f"{n}", "" if n in bad else "<answer>A</answer>") for n in range(100)))
    report = check([str(path)], sample=3)
    assert found(report) == [("label-empty", 0), ("label-empty", 50), ("label-empty", 99)]
    assert (report.as_dict()["rows"], report.as_dict()["checked"]) == (100, 3)
    assert report.duplicates is None


def test_rows_of_many_groups_keep_their_numbers(tmp_path: Path, sample: Callable[..., Sample]) -> None:
    rows = [sample(n, ground_truth="" if n in (7, 290) else "5") for n in range(300)]
    store.write_parquet(tmp_path / "x.parquet", rows, max_group_bytes=4000)
    for count in (None, 300):
        assert found(check([str(tmp_path / "x.parquet")], sample=count)) == [("label-empty", 7), ("label-empty", 290)]


def test_labels_that_math_verify_cannot_use_are_named(file: Rows) -> None:
    labels = ("\\frac{1}{2}", "cat", "\\frac{1}{0}", "cat", "nan", "B")
    rows = [
        row(f"question {at}", label, data_source="mmk12", extra_info={"options": ["A. 1", "B. 2"]})
        for at, label in enumerate(labels)
    ]
    report = check([str(file(*rows))])
    codes = {finding.row: finding for finding in report.findings.listed()}
    assert {at: finding.code for at, finding in codes.items()} == {
        1: "label-word",
        2: "label-undefined",
        4: "label-undefined",
    }
    assert "(2 rows)" in codes[1].message
    assert (report.errors, report.findings.total("warning")) == (2, 1)
