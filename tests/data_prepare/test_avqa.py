"""AVQA: what a record says becomes a row or a stable reason, whatever the record and whatever the file."""

from __future__ import annotations

import json
import wave
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Picture

from omnirl.data import store
from omnirl.data.prepare import prepare
from omnirl.data.sample import Drop, Sample
from omnirl.data.sources import Options, choices, find
from omnirl.data.sources.avqa import FILES, SYSTEM, convert, splits
from omnirl.data.sources.folder import Folder
from omnirl.errors import InvalidInput
from omnirl.reward.score import check_label, compute_score

AVQA = find("avqa")

RECORD: dict[str, Any] = {
    "problem_id": 7,
    "problem": " What makes this sound? ",
    "data_type": "image_audio",
    "problem_type": "multiple choice",
    "options": ["A. a dog", "B. a bell", "C. rain", "D. None"],
    "solution": "<answer>B</answer>",
    "path": {"image": "images/sample_0.png", "audio": "audios/sample_0.wav"},
    "data_source": "AVQA",
}


def changed(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in (RECORD | fields).items() if value is not ...}


def write(root: Path, records: Any = (RECORD,), valid: Any = (RECORD,)) -> Path:
    for name, content in zip(FILES.values(), (records, valid), strict=True):
        path = root / name
        for folder in ("images", "audios"):
            (path.parent / folder).mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(list(content)).encode())
        Picture.new("RGB", (32, 32), "red").save(path.parent / "images" / "sample_0.png")
        with wave.open(str(path.parent / "audios" / "sample_0.wav"), "wb") as sound:
            sound.setnchannels(1)
            sound.setsampwidth(2)
            sound.setframerate(16_000)
            sound.writeframes(bytes(3200))
    return root


def read(root: Path, options: Options | None = None) -> dict[str, list[Sample | Drop]]:
    return {name: list(stream) for name, stream in splits(root, root / "out", options or Options())}  # type: ignore[misc]


def one(record: Any, folder: Path = Path("/set/train")) -> Sample | Drop:
    return convert(record, Folder(folder), "train", 3, "here")


@pytest.mark.parametrize("above", [False, True])
def test_both_splits_are_read_from_the_folder_or_the_one_above(above, tmp_path):
    root = write(tmp_path / "AVQA_R1", [RECORD, changed(problem="")], [RECORD])
    found = read(tmp_path if above else root)
    assert list(found) == ["train", "validation"]
    row, drop = found["train"]
    assert drop == Drop("empty_problem", "omni_rl_format_train.json:record 1")
    assert row.split == "train"
    assert row.images[0].path == str(root / "train" / "images" / "sample_0.png")
    assert found["validation"][0].audios == (str(root / "valid" / "audios" / "sample_0.wav"),)


def test_a_row_is_what_verl_reads(tmp_path):
    written = store.write_parquet(tmp_path / "a.parquet", [one(RECORD), one(changed(problem_id="x7"))])
    row, other = store.read_rows(written.path)
    assert row["data_source"] == "avqa_r1_6k"
    assert row["ability"] == "audio_visual_qa"
    text = "<image><audio>What makes this sound?\nOptions:\nA. a dog\nB. a bell\nC. rain\nD. None"
    assert row["prompt"] == [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    assert row["images"] == [{"bytes": None, "image": "/set/train/images/sample_0.png"}]
    assert row["audios"] == ["/set/train/audios/sample_0.wav"]
    assert row["videos"] == []
    assert row["reward_model"] == {"style": "rule", "ground_truth": "<answer>B</answer>"}
    extra = row["extra_info"]
    assert (extra["split"], extra["index"], extra["id"], other["extra_info"]["id"]) == ("train", 3, "7", "x7")
    assert (extra["question"], extra["answer"]) == ("What makes this sound?", "a bell")
    assert extra["options"] == ["A. a dog", "B. a bell", "C. rain", "D. None"]
    details = {"problem_id": "7", "problem_type": "multiple choice", "data_source": "AVQA"}
    assert json.loads(extra["details"]) == details
    assert (
        compute_score(row["data_source"], "x <answer>B</answer>", "<answer>B</answer>", scorer="choice")["score"] == 1
    )
    for tag in ("<think></think>", "<answer></answer>"):
        assert tag in SYSTEM


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("A. cat", ("A", "cat")),
        ("b) cat", ("B", "cat")),
        ("C、cat", ("C", "cat")),
        ("D: cat", ("D", "cat")),
        ("E．cat", ("E", "cat")),  # noqa: RUF001
        ("F：cat", ("F", "cat")),  # noqa: RUF001
        ("(G) cat", ("G", "cat")),
        ("（h） cat", ("H", "cat")),  # noqa: RUF001
        ("  A.5.25 \n", ("A", "5.25")),
        ("A. two\nlines", ("A", "two\nlines")),
        ("A. None", ("A", "None")),
        ("A . x", ("A", "x")),
        ("A.", None),
        ("A.  ", None),
        ("(A)", None),
        ("(A cat", None),
        ("I. cat", None),
        ("A cat", None),
        ("AB. cat", None),
        ("cat", None),
        ("", None),
    ],
)
def test_an_option_is_read_in_every_spelling(text, option):
    assert choices.read_option(text) == option


HOSTILE: list[tuple[Any, str]] = [
    *(
        (record, "invalid_record")
        for record in (None, 5, "text", [RECORD], [], changed(problem=5), changed(problem=["x"]))
    ),
    (changed(problem_id=float("nan")), ""),
    (changed(problem_id=[[1]]), ""),
    (changed(problem_id=...), ""),
    (changed(problem_id=True, problem_type=None, data_source={"a": 1}), ""),
    (changed(solution=" <answer> b </answer>\n"), ""),
    (changed(solution="<ANSWER>B</ANSWER>"), ""),
    (changed(options=[f"{letter}. {letter}{letter}" for letter in "ABCDEFGH"], solution="<answer>H</answer>"), ""),
    (changed(options=["B. x", "D. y"]), ""),
    (changed(options=["A. x", "B. y", "C. x"]), ""),
    *((changed(problem=text), "empty_problem") for text in (..., None, "", " \n\u3000")),
    *(
        (changed(data_type=kind), "unsupported_modality")
        for kind in (..., None, "video", "IMAGE_AUDIO", 5, ["image_audio"])
    ),
    (changed(options=...), "invalid_options"),
    *(
        (changed(options=options), "invalid_options")
        for options in (
            None,
            [],
            "A. x",
            {"A": "x"},
            ["A. x"],
            ["A. 1 B. 2 C. 3"],
            ["A. x", "B. "],
            ["A. x", "a) y"],
            ["A. x", "y"],
            ["A. x", 5],
            ["A. x", None],
            ["A. x", ["B. y"]],
            ["A. x", "I. y"],
        )
    ),
    *(
        (changed(solution=solution), "invalid_solution")
        for solution in (
            ...,
            None,
            "",
            "B",
            5,
            ["<answer>B</answer>"],
            "<answer></answer>",
            "<answer>E</answer>",
            "<answer>BC</answer>",
            "<answer>B</answer><answer>C</answer>",
            "it is <answer>B</answer>",
            "<answer>b. a bell</answer>",
            "<answer>\u0392</answer>",
        )
    ),
    (changed(options=["A. x", "B. y", "C.  Y "]), "ambiguous_options"),
    (changed(problem="a\0b"), "invalid_text"),
    (changed(problem="half \ud83d"), "invalid_text"),
    (changed(options=["A. x", "B. \udc00"]), "invalid_text"),
    (changed(options=["A. x\0", "B. y"]), "invalid_text"),
    (changed(problem_id="\ud83d"), "invalid_text"),
    (changed(problem_type="a\0"), "invalid_text"),
    (changed(problem_id=["\ud83d"]), "invalid_record"),
    (changed(problem_id=10**5000), "invalid_record"),
    (changed(problem="what is <image>?"), "media_placeholder"),
    (changed(problem="what is <audio>?"), "media_placeholder"),
    (changed(options=["A. a <video>", "B. y"]), "media_placeholder"),
    (changed(path=...), "missing_image"),
    (changed(path=None), "missing_image"),
    (changed(path="images/sample_0.png"), "missing_image"),
    (changed(path={"audio": "a.wav"}), "missing_image"),
    (changed(path={"image": "a.png"}), "missing_audio"),
    (changed(path={"image": "a.png", "audio": ""}), "missing_audio"),
    *(
        (changed(path={"image": "a.png", "audio": "a.wav", kind: name}), reason)
        for kind in ("image", "audio")
        for name, reason in (
            ("../x", "outside_folder"),
            ("images/../../x", "outside_folder"),
            ("/etc/passwd", "absolute_path"),
            ("http://x/y", "remote_path"),
            ("file:///etc/passwd", "remote_path"),
            ("..\\x", "invalid_path"),
            ("a\0", "invalid_path"),
            ("\ud800", "invalid_path"),
            (5, "invalid_path"),
            (["a.png"], "invalid_path"),
            ("x" * 300, "invalid_path"),
        )
    ),
]


@pytest.mark.parametrize(("record", "reason"), HOSTILE, ids=lambda value: value if isinstance(value, str) else "")
def test_a_record_is_a_row_or_has_its_reason(record, reason):
    outcome = one(record)
    if reason:
        assert outcome == Drop(reason, "here")
    else:
        assert isinstance(outcome, Sample), outcome
        fits(outcome)


def test_an_option_called_none_stays_text():
    options = [f"{letter}. {text}" for letter, text in zip("ABCD", ("None", "NA", "null", "nan"), strict=True)]
    row = one(changed(options=options, solution="<answer>a</answer>"))
    assert row.to_row()["extra_info"]["options"] == options
    assert row.ground_truth == "<answer>A</answer>"
    assert row.tally == "A"
    assert row.prompt.endswith("\nOptions:\nA. None\nB. NA\nC. null\nD. nan")


@pytest.mark.parametrize("allow_outside", [False, True])
def test_linked_media_folders_are_refused_unless_they_may_lead_out(allow_outside, tmp_path):
    root = write(tmp_path / "AVQA_R1")
    (root / "train" / "images").rename(tmp_path / "store")
    (root / "train" / "images").symlink_to(tmp_path / "store")
    (row,) = read(root, Options(allow_outside=allow_outside))["train"]
    if allow_outside:
        assert row.images[0].path == str(root / "train" / "images" / "sample_0.png")
    else:
        assert row == Drop("outside_folder", "omni_rl_format_train.json:record 0")


@pytest.mark.parametrize(
    ("content", "outcomes"),
    [
        ("\ufeff" + json.dumps([RECORD]), ["row"]),
        (json.dumps(RECORD) + "\n" + json.dumps(RECORD), ["row", "row"]),
        (json.dumps([RECORD, "x" * 10_000_000, RECORD]), ["row", "too_long", "row"]),
        (json.dumps([RECORD])[:-1] + ", " + "[" * 50_000 + "]" * 50_000 + "]", ["row", "invalid_json"]),
        (json.dumps([RECORD, RECORD, changed(problem="\ud83d")]), ["row", "row", "invalid_text"]),
        (json.dumps([RECORD, RECORD]).encode()[:-1] + b', {"problem": "\xff"}]', ["row", "row", "invalid_text"]),
        ("[]", []),
        ("", []),
        ('{"records": []}', ["empty_problem"]),
    ],
)
def test_the_file_may_be_odd(content, outcomes, tmp_path):
    root = write(tmp_path, content if isinstance(content, bytes) else content.encode())
    found = read(root)["train"]
    assert [record.reason if isinstance(record, Drop) else "row" for record in found] == outcomes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json.dumps([RECORD]).encode("utf-16"), "is UTF-16"),
        (json.dumps([changed(problem="多少")] * 2, ensure_ascii=False).encode("gbk"), "may be GB18030"),
        (json.dumps([RECORD, RECORD]).encode()[:-9], "is cut short"),
    ],
)
def test_a_file_of_another_kind_is_named(content, message, tmp_path):
    with pytest.raises(InvalidInput, match=message):
        read(write(tmp_path, content))


@pytest.mark.parametrize("name", FILES.values())
def test_a_missing_split_is_named(name, tmp_path):
    root = write(tmp_path / "AVQA_R1")
    (root / name).unlink()
    for input in (root, tmp_path):
        with pytest.raises(InvalidInput, match=f"`{root}` has no `{name}`") as caught:
            read(input)
        assert "AVQA_R1/valid/omni_rl_format_valid.json" in caught.value.hint


def test_prepared_whole_with_media_that_are_looked_at(tmp_path):
    damaged = changed(path={"image": "images/sample_0.png", "audio": "audios/none.wav"})
    absent = changed(path={"image": "images/none.png", "audio": "audios/sample_0.wav"})
    root = write(tmp_path / "AVQA_R1", [RECORD, RECORD, RECORD, damaged, absent, None])
    report = prepare(AVQA, input=tmp_path, output=tmp_path / "out")
    train = report.splits["train"]
    assert (train.input, train.kept) == (6, 3)
    assert train.dropped == Counter(missing_audio=1, missing_image=1, invalid_record=1)
    assert train.answers == {"B": 3}
    for row in store.read_rows(tmp_path / "out" / "validation.parquet"):
        assert Path(row["images"][0]["image"]).is_relative_to(root)
        assert Path(row["audios"][0]).is_file()


def fits(sample: Sample) -> None:
    """The row can be stored under its schema and scored, and its placeholders are those of its media."""
    table = pa.Table.from_pylist([sample.to_row()], schema=Sample.schema())
    (row,) = table.to_pylist()
    assert row["prompt"][-1]["content"].count("<image>") == len(row["images"]) == 1
    assert row["prompt"][-1]["content"].count("<audio>") == len(row["audios"]) == 1
    check_label("choice", row["reward_model"]["ground_truth"])
    json.loads(row["extra_info"]["details"])


ANY_TEXT = st.text(st.characters(codec=None, categories=None), max_size=12)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.builds(lambda: 10**5000) | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=5,
)
LETTERED = st.builds("{}{}{}".format, st.sampled_from("ABCDh"), st.sampled_from([".", ") ", "：", ""]), ANY_TEXT)  # noqa: RUF001


def usually(good: Any, other: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.just(good) | st.just(good) | other | ANY_JSON


RECORDS = ANY_JSON | st.fixed_dictionaries(
    {
        "problem": usually("What?", ANY_TEXT),
        "data_type": st.just("image_audio"),
        "options": usually(RECORD["options"], st.lists(LETTERED | ANY_JSON, max_size=4)),
        "solution": usually("<answer>B</answer>", LETTERED.map("<answer>{}</answer>".format)),
        "path": usually(RECORD["path"], st.fixed_dictionaries({"image": ANY_TEXT, "audio": ANY_TEXT | ANY_JSON})),
    },
    optional={"problem_id": ANY_JSON, "problem_type": ANY_JSON, "data_source": ANY_JSON},
)


@given(RECORDS)
def test_any_record_gives_a_row_that_fits_or_a_reason(record):
    outcome = one(record)
    if isinstance(outcome, Drop):
        assert outcome.where == "here"
        assert outcome.reason.replace("_", "").isalpha()
    else:
        fits(outcome)
