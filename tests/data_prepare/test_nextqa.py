"""NExT-QA: the real validation table whole, hostile tables, maps and names each with their reason, never a crash."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from pathlib import Path

import av
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.data import store
from omnirl.data.prepare import Checks, prepare
from omnirl.data.sample import Drop, Medium, Sample
from omnirl.data.sources import Options, Sampling, Source
from omnirl.data.sources.nextqa import COLUMNS, MAP, MAX_MAP_BYTES, SYSTEM, Videos, convert, splits
from omnirl.errors import InvalidInput
from omnirl.reward.score import check_label

from .clips import REASONS, lay_out, make_clip

ROW = {
    "video": "4010069381",
    "frame_count": "369",
    "width": "640",
    "height": "480",
    "question": "how do the two man play",
    "answer": "2",
    "qid": "6",
    "type": "CH",
    "a0": "roll the handle",
    "a1": "tap their feet",
    "a2": "strum the string",
    "a3": "None",
    "a4": "null",
}
NAMES = {"4010069381": "1106/4010069381"}


@pytest.fixture
def layout(tmp_path):
    """A NExT-QA folder; rows are changes of `ROW`, names any JSON value or bytes."""

    def make(train=None, val=({},), names=NAMES, root="NextQA"):
        repo = tmp_path / root / "repo"
        repo.mkdir(parents=True, exist_ok=True)
        (tmp_path / root / "NExTVideo").mkdir(exist_ok=True)
        for name, rows in (("train", train), ("val", val)):
            if rows is not None:
                with (repo / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
                    writer = csv.DictWriter(file, COLUMNS)
                    writer.writeheader()
                    writer.writerows(ROW | row for row in rows)
        content = names if isinstance(names, bytes) else json.dumps(names).encode()
        (repo / MAP).write_bytes(content)
        return tmp_path

    return make


def convert_all(folder: Path, **options) -> dict[str, list[Sample | Drop]]:
    return {name: list(rows) for name, rows in splits(folder, folder, Options(**options))}


def reasons(rows: list[Sample | Drop]) -> list[str]:
    return [row.reason if isinstance(row, Drop) else "" for row in rows]


def test_a_row_is_what_verl_reads(layout):
    folder = layout([{"question": " what? "}], [{"answer": "0"}])
    found = convert_all(folder, video=Sampling(fps=2.0, min_pixels=784, max_pixels=7840, max_frames=8))
    assert [*found] == ["train", "validation"]
    (row,) = found["train"]
    path = folder / "NextQA" / "NExTVideo" / "1106" / "4010069381.mp4"
    assert row.media() == (Medium("soundtrack", str(path)),)
    assert row.tally == "C"
    assert row.to_row() == {
        "data_source": "nextqa",
        "prompt": [
            {"role": "system", "content": SYSTEM},
            {
                "role": "user",
                "content": "<video>what?\nOptions:\nA. roll the handle\nB. tap their feet\nC. strum the string\n"
                "D. None\nE. null",
            },
        ],
        "images": [],
        "audios": [],
        "videos": [{"video": str(path), "fps": 2.0, "min_pixels": 784, "max_pixels": 7840, "max_frames": 8}],
        "ability": "video_qa",
        "reward_model": {"style": "rule", "ground_truth": "<answer>C</answer>"},
        "extra_info": {
            "split": "train",
            "index": 0,
            "id": "4010069381_6",
            "kind": "CH",
            "question": "what?",
            "answer": "strum the string",
            "options": ["roll the handle", "tap their feet", "strum the string", "None", "null"],
            "details": json.dumps(
                {"type": "CH", "frame_count": 369, "width": 640, "height": 480, "video": "4010069381"}
            ),
        },
    }
    (held_out,) = found["validation"]
    assert (held_out.split, held_out.ground_truth) == ("validation", "<answer>A</answer>")
    assert (held_out.videos[0].fps, Options().video.max_pixels) == (2.0, 100_352)


def test_the_real_validation_table_is_kept_whole(shared, tmp_path):
    source = shared / "data" / "nextqa"
    if not (source / "val.csv").is_file():
        pytest.skip(f"needs NExT-QA's val.csv in {source}")
    (tmp_path / "repo").mkdir()
    (tmp_path / "NExTVideo").mkdir()
    for name in ("val.csv", MAP):
        (tmp_path / "repo" / name).symlink_to(source / name)
    ((name, rows),) = convert_all(tmp_path).items()
    assert name == "validation"
    assert Counter(reasons(rows)) == {"": 4996}
    assert [row.index for row in rows] == list(range(4996))
    assert len({row.videos[0].path for row in rows}) == 570
    assert len({row.id for row in rows}) == 4996
    assert Counter(row.tally for row in rows) == {"A": 1013, "B": 1013, "C": 991, "D": 967, "E": 1012}
    assert Counter(row.kind for row in rows)["CW"] == 1924
    assert sum(len(set(row.options)) < 5 for row in rows) == 3, "options twice, none of which is the right one"
    table = pa.Table.from_pylist([row.to_row() for row in rows], schema=Sample.schema())
    assert table.num_rows == 4996


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"question": " \n"}, "empty_problem"),
        ({"a3": " "}, "invalid_options"),
        ({"a0": "", "a1": ""}, "invalid_options"),
        ({"answer": "5"}, "invalid_solution"),
        ({"answer": "-1"}, "invalid_solution"),
        ({"answer": ""}, "invalid_solution"),
        ({"answer": "1.0"}, "invalid_solution"),
        ({"answer": "C"}, "invalid_solution"),
        ({"answer": "٢"}, "invalid_solution"),
        ({"answer": "02"}, "invalid_solution"),
        ({"a4": "strum the string"}, "ambiguous_options"),
        ({"a4": " Strum  the string"}, "ambiguous_options"),
        ({"a4": "tap their feet"}, ""),
        ({"question": "what is in <video>?"}, "media_placeholder"),
        ({"question": "a <image>"}, "media_placeholder"),
        ({"a1": "an <audio>"}, "media_placeholder"),
        ({"video": "04010069381"}, "unmapped_video"),
        ({"video": "4010069381.0"}, "unmapped_video"),
        ({"video": ""}, "unmapped_video"),
        ({"video": " 4010069381 "}, ""),
        ({"video": "7"}, "invalid_path"),
        ({"video": "8"}, "outside_folder"),
        ({"video": "9"}, "absolute_path"),
        ({"video": "10"}, "remote_path"),
        ({"video": "11"}, "remote_path"),
        ({"video": "12"}, "invalid_path"),
        ({"video": "13"}, "invalid_path"),
        ({"video": "14"}, "invalid_path"),
        ({"video": "15"}, "invalid_path"),
        ({"video": "16"}, "outside_folder"),
        ({"frame_count": "many", "width": "1e9", "height": "9" * 5000}, ""),
        ({"type": "", "qid": ""}, ""),
        ({"question": "q\0"}, "invalid_text"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_hostile_record_is_dropped_with_its_reason_and_the_others_stay(change, reason, layout, tmp_path):
    names = NAMES | {
        "7": 7,
        "8": "../../secret",
        "9": "/etc/passwd",
        "10": "https://example.org/v",
        "11": "file:///v",
        "12": "a\\b",
        "13": "\ud800",
        "14": ["0001/14"],
        "15": " ",
        "16": "link/16",
    }
    folder = layout(val=[{}, change, {}, {}, {}], names=names)
    (tmp_path / "NextQA" / "NExTVideo" / "link").symlink_to(tmp_path)
    found = convert_all(folder)["validation"]
    assert reasons(found) == ["", reason, "", "", ""]
    if reason:
        assert found[1].where == "val.csv:3"
    assert [row.index for row in found if isinstance(row, Sample)] == [n for n in range(5) if n != 1 or not reason]


def test_a_line_end_in_an_option_makes_no_further_option(layout):
    (row,) = convert_all(layout(val=[{"a0": "one\nB. two"}]))["validation"]
    assert row.options[0] == "one B. two"
    assert row.prompt.count("\n") == 6


def test_zero_padded_ids_are_their_own(layout):
    names = {"0123": "0001/0123", "123": "0002/123"}
    rows = convert_all(layout(val=[{"video": "0123"}, {"video": "123"}, {"video": "00123"}], names=names))["validation"]
    assert [row.videos[0].path.parent.name for row in rows[:2]] == ["0001", "0002"]
    assert reasons(rows)[2] == "unmapped_video"


def test_links_may_lead_out_when_that_is_allowed(layout, tmp_path):
    folder = layout(val=[{"video": "1"}, {"video": "2"}], names={"1": "link/1", "2": "../../store/2"})
    (tmp_path / "store").mkdir()
    (tmp_path / "NextQA" / "NExTVideo" / "link").symlink_to(tmp_path / "store")
    assert reasons(convert_all(folder)["validation"]) == ["outside_folder"] * 2
    allowed = convert_all(folder, allow_outside=True)["validation"]
    assert {row.videos[0].path.parent.resolve() for row in allowed} == {tmp_path / "store"}


def test_one_table_is_enough_and_the_folder_may_be_the_data_set_itself(layout):
    folder = layout(train=None, val=[{}])
    assert [*convert_all(folder)] == [*convert_all(folder / "NextQA")] == ["validation"]
    layout(train=[{}])
    assert [*convert_all(folder)] == ["train", "validation"]
    (folder / "NextQA" / "repo" / "val.csv").unlink()
    assert [*convert_all(folder)] == ["train"]


def break_nothing(root: Path) -> None:
    pass


def nest(root: Path) -> None:
    (root / "NExTVideo" / "NExTVideo").mkdir()


def lead_out(root: Path) -> None:
    (root / "NExTVideo").rmdir()
    (root / "NExTVideo").symlink_to("/")


@pytest.mark.parametrize(
    ("names", "disturb", "message", "hint"),
    [
        (NAMES, lambda root: (root / "repo" / "val.csv").unlink(), "no `train.csv` and no `val.csv`", "NextQA/repo"),
        (NAMES, lambda root: (root / "repo").rename(root / "rep"), "no folder `NextQA/repo`", "NextQA/repo"),
        (NAMES, lambda root: (root / "repo" / MAP).unlink(), f"no `{MAP}`", "fetch"),
        (NAMES, lambda root: (root / "NExTVideo").rmdir(), "no folder `NExTVideo`", "<dir>/<id>.mp4"),
        (NAMES, nest, "one folder too deep", "rmdir"),
        (NAMES, lead_out, "leads out", "--allow-outside"),
        (b"", break_nothing, "is not JSON", "fetch"),
        (b'{"1": "a/1"', break_nothing, "is not JSON", "fetch"),
        (b"[" * 100_000, break_nothing, "is not JSON", "fetch"),
        (b'{"1": ' + b"1" * 5000 + b"}", break_nothing, "is not JSON", "fetch"),
        (["a/1"], break_nothing, "no JSON object but a list", "fetch"),
        (b"null", break_nothing, "no JSON object but a NoneType", "fetch"),
        (json.dumps(NAMES).encode("utf-16"), break_nothing, "is not UTF-8", "fetch"),
        (b" " * (MAX_MAP_BYTES + 1), break_nothing, "larger than 8 MiB", "fetch"),
        (
            NAMES,
            lambda root: (root / "repo" / "val.csv").write_text("video,question\n1,x\n"),
            "lacks the columns `frame_count`",
            "`video`",
        ),
        (
            NAMES,
            lambda root: (root / "repo" / "val.csv").write_text((",".join(COLUMNS) + "\n").replace("qid", "q_id")),
            "lacks the column `qid`",
            "`q_id` for `qid`",
        ),
    ],
)
def test_an_input_of_another_kind_is_named_with_its_mend(names, disturb, message, hint, layout, tmp_path):
    folder = layout(names=names)
    disturb(tmp_path / "NextQA")
    with pytest.raises(InvalidInput, match=message) as caught:
        convert_all(folder)
    assert hint in caught.value.hint


def test_the_mend_of_a_nested_folder_mends_it(layout, tmp_path):
    folder = layout(root="Nex t'QA") / "Nex t'QA"
    (folder / "NExTVideo" / "NExTVideo" / "1106").mkdir(parents=True)
    (folder / "NExTVideo" / "NExTVideo" / "1106" / "4010069381.mp4").touch()
    with pytest.raises(InvalidInput) as caught:
        convert_all(folder)
    assert os.system(caught.value.hint) == 0
    (row,) = convert_all(folder)["validation"]
    assert row.videos[0].path.is_file()


def test_a_map_with_a_byte_order_mark_is_read(layout):
    assert reasons(convert_all(layout(names=b"\xef\xbb\xbf" + json.dumps(NAMES).encode()))["validation"]) == [""]


CELL = st.text(st.characters(codec=None, categories=None), max_size=30) | st.sampled_from(
    ["0", "4", "4010069381", "<video>", "x", "é\n多", '"', ","]
)
RECORD = st.fixed_dictionaries(dict.fromkeys(COLUMNS, CELL)) | st.builds(
    lambda name, value: ROW | {name: value}, st.sampled_from(COLUMNS), CELL
)
ANY_NAMES = st.dictionaries(
    st.sampled_from(["4010069381", "0", "x"]), st.none() | st.integers() | st.lists(CELL, max_size=1) | CELL
)


@given(RECORD, ANY_NAMES)
def test_any_record_gives_a_row_that_can_be_stored_and_scored_or_a_reason(tmp_path_factory, record, names):
    root = tmp_path_factory.getbasetemp()
    outcome = convert(record, Videos(root, names), Sampling(), "train", 3, "here")
    if isinstance(outcome, Drop):
        assert outcome.where == "here"
        assert outcome.reason.replace("_", "").isalpha()
        return
    assert pa.Table.from_pylist([outcome.to_row()], schema=Sample.schema()).num_rows == 1
    assert outcome.prompt.count("<video>") == len(outcome.videos) == 1
    check_label("choice", outcome.ground_truth)
    assert outcome.videos[0].path.is_absolute()


@given(st.binary(max_size=200))
def test_any_bytes_as_a_table_give_rows_and_drops_or_a_named_fault(tmp_path_factory, content):
    root = tmp_path_factory.getbasetemp() / "any"
    (root / "repo").mkdir(parents=True, exist_ok=True)
    (root / "NExTVideo").mkdir(exist_ok=True)
    (root / "repo" / MAP).write_text(json.dumps(NAMES))
    good = ",".join(ROW.values())
    (root / "repo" / "val.csv").write_bytes(f"{','.join(COLUMNS)}\n{good}\n".encode() + content)
    try:
        rows = convert_all(root)["validation"]
    except InvalidInput as error:
        assert "not UTF-8" in error.message
        return
    assert reasons(rows)[0] == ""


def test_clips_of_every_flavour_lie_under_their_mapped_names(layout, tmp_path):
    ids = [str(100 + at) for at in range(40)]
    folder = layout(val=[{"video": video} for video in ids], names={video: f"0001/{video}" for video in ids})
    repo = folder / "NextQA" / "repo"
    expected = lay_out(tmp_path / "made", repo / "val.csv", repo / MAP, every=2)
    assert sum(expected.values()) == 40
    assert set(expected) == set(REASONS.values())
    rows = convert_all(tmp_path / "made")["validation"]
    assert reasons(rows) == [""] * 40
    there = [row.videos[0].path.is_file() for row in rows]
    assert there.count(False) == expected["missing_video"]


def test_the_clips_are_what_they_are_called(tmp_path):

    for flavour in ("good", "mute", "sound", "garbage", "second"):
        path = tmp_path / f"{flavour}.mp4"
        make_clip(path, flavour)
        with av.open(str(path)) as container:
            kinds = [stream.type for stream in container.streams]
            assert (
                kinds
                == {
                    "good": ["video", "audio"],
                    "mute": ["video"],
                    "sound": ["audio"],
                    "garbage": ["video", "audio"],
                    "second": ["video", "audio", "audio"],
                }[flavour]
            )
        heard = [decodes(path, at) for at in range(kinds.count("audio"))]
        expected = {"good": [True], "mute": [], "sound": [True], "garbage": [False], "second": [False, True]}
        assert heard == expected[flavour]


def decodes(path: Path, track: int) -> bool:

    with av.open(str(path)) as container:
        try:
            return any(frame.samples for frame in container.decode(audio=track))
        except av.error.FFmpegError:
            return False


def test_a_conversion_keeps_the_rows_whose_videos_are_seen_and_heard(layout, tmp_path):
    ids = [str(100 + at) for at in range(30)]
    rows = [{"video": video, "qid": str(qid)} for video in ids for qid in range(3)]
    folder = layout(val=rows, names={video: f"0001/{video}" for video in ids})
    repo = folder / "NextQA" / "repo"
    expected = lay_out(tmp_path / "made", repo / "val.csv", repo / MAP, every=3)
    source = Source("nextqa", "", "omnirl.data.sources.nextqa", layout="NextQA")
    report = prepare(source, input=tmp_path / "made", output=tmp_path / "out", checks=Checks(max_drop=0.9))
    found = report.splits["validation"]
    assert (found.input, {"": found.kept, **found.dropped}) == (90, expected)
    assert found.audio["unique"] == 30
    assert found.audio["usable"] == expected[""] // 3
    assert found.audio["unusable"] == {reason: count // 3 for reason, count in expected.items() if reason}
    for row in store.read_rows(tmp_path / "out" / "validation.parquet"):
        assert Path(row["videos"][0]["video"]).is_file()
