"""The check of data files before a run: every fault named with its row, all of them at once."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from omnirl.data import store
from omnirl.data.checks.preflight import check_files
from omnirl.data.preference import Preference
from omnirl.data.sample import Image, Sample, Video

ALL = ("text", "image", "audio", "video")


def video(path: Path) -> Video:
    return Video(path, fps=1.0, min_pixels=1, max_pixels=2, max_frames=3)


def file(path: Path) -> Path:
    path.write_bytes(b"x")
    return path


@pytest.fixture
def check(tmp_path, sample):
    """Check these rows as training data beside one sound validation row."""

    def run(*rows: Sample | dict, prompts: int = 1, modalities=ALL, scorer=None):
        val = tmp_path / "val.parquet"
        store.write_parquet(val, [sample(0)])
        train = tmp_path / "train.parquet"
        if all(isinstance(row, Sample) for row in rows):
            store.write_parquet(train, rows)
        else:
            pq.write_table(pa.Table.from_pylist(list(rows)), train)
        found = check_files([str(train)], [str(val)], modalities=modalities, prompts_per_step=prompts, scorer=scorer)
        return [(problem.code, (problem.where or "").rpartition(":")[2], problem.message) for problem in found]

    return run


def test_sound_files_have_no_problems(check, sample, tmp_path):
    rows = [
        sample(0),
        sample(1, prompt="<image>a<image>b", images=(Image(data=b"x"), Image(path=file(tmp_path / "a.png")))),
        sample(
            2, prompt="<audio> <video>", audios=(file(tmp_path / "a.wav"),), videos=(video(file(tmp_path / "a.mp4")),)
        ),
    ]
    assert check(*rows, prompts=3, scorer="gsm8k") == []


def test_toy_files_are_sound(toy_data):
    names = [str(toy_data / f"{name}.parquet") for name in ("train", "validation", "probe")]
    assert not check_files(names[:1], names[1:2], names[2:], modalities=ALL, prompts_per_step=8, scorer="choice")


def test_too_few_rows_for_one_step(check, sample):
    ((code, _, message),) = check(*[sample(n) for n in range(5)], prompts=128)
    assert code == "data-too-few-rows"
    assert "dataset smaller than batch: 5 rows" in message


def test_rows_of_all_training_files_count(tmp_path, sample):
    store.write_parquet(tmp_path / "a.parquet", [sample(n) for n in range(5)])
    twice = [str(tmp_path / "a.parquet")] * 2
    assert check_files(twice, twice, modalities=ALL, prompts_per_step=10) == ()


def test_placeholders_and_media_differ(check, sample, tmp_path):
    picture = Image(path=file(tmp_path / "a.png"))
    rows = [
        sample(0),
        sample(1, prompt="<image>", images=(picture, picture)),
        sample(2, prompt="<image>"),
        sample(3, audios=(file(tmp_path / "a.wav"),)),
        sample(4, prompt="<video><video>", videos=(video(file(tmp_path / "a.mp4")),)),
        sample(5, prompt="<image>", images=(picture,)),
    ]
    assert check(*rows) == [
        ("data-placeholders", "row 1", "1 `<image>` in the prompt and 2 in `images` (2 of 6 rows)"),
        ("data-placeholders", "row 3", "0 `<audio>` in the prompt and 1 in `audios` (1 of 6 rows)"),
        ("data-placeholders", "row 4", "2 `<video>` in the prompt and 1 in `videos` (1 of 6 rows)"),
    ]


def test_placeholders_in_any_message_count(check, sample):
    assert check(sample(0, prompt="<image>", system="<image>", images=(Image(data=b"x"), Image(data=b"y")))) == []


def test_missing_empty_and_relative_media_are_counted_and_three_named(check, sample, tmp_path):
    empty = tmp_path / "empty.wav"
    empty.touch()
    gone = [sample(n, prompt="<video>", videos=(video(tmp_path / f"gone{n % 5}.mp4"),)) for n in range(10)]
    rows = [
        *gone,
        sample(10, prompt="<audio>", audios=(empty,)),
        sample(11, prompt="<audio>", audios=(Path("a.wav"),)),
        sample(12, prompt="<image>", images=(Image(path=tmp_path),)),
        sample(13, prompt="<image>", images=(Image(path=Path("/nul\0byte.png")),)),
        sample(14, prompt="<image>", images=(Image(path=Path("/" + "x" * 5000)),)),
    ]
    found = {message.split(": ")[0]: (row, message) for code, row, message in check(*rows) if code == "data-media"}
    row, message = found["7 of 10 media files missing"]
    assert row == "row 0"
    assert [f"gone{n}.mp4" in message for n in range(5)] == [True, True, True, False, False]
    assert message.endswith(" and 4 more")
    assert found["1 of 10 media files empty"][0] == "row 10"
    assert found["1 of 10 media files without an absolute path"][0] == "row 11"
    assert found["1 of 10 media files not a file"][0] == "row 12"


def test_items_with_neither_path_nor_bytes(check, sample):
    rows = [sample(n, prompt="<image>", images=(Image(data=b"x"),)) for n in range(300)]
    rows[7] = replace(rows[7], images=(Image(data=b""),))
    rows[290] = replace(rows[290], images=(Image(),))
    assert check(*rows) == [
        ("data-media-empty", "row 7", "an item of `images` has neither a path nor bytes (2 of 300 rows)"),
    ]


def test_empty_prompts_and_ground_truths(check, sample):
    rows = [sample(0), sample(1, prompt=" \n"), sample(2, ground_truth=""), sample(3, ground_truth=" ")]
    assert check(*rows) == [
        ("data-prompt-empty", "row 1", "the prompt is empty (1 of 4 rows)"),
        ("data-label-empty", "row 2", "the ground truth is empty (2 of 4 rows)"),
    ]


@pytest.mark.parametrize(
    ("scorer", "code"), [("choice", "data-label"), ("gsm8k", None), (None, None), ("mine.py:f", None)]
)
def test_labels_that_the_scorer_cannot_use(scorer, code, check, sample):
    found = check(sample(0), sample(1, ground_truth="6"), scorer=scorer)
    assert [problem[:2] for problem in found] == ([(code, "row 0")] * 2 if code else [])


def test_media_that_the_task_does_not_declare_are_a_warning(tmp_path, sample):
    path = str(tmp_path / "x.parquet")
    store.write_parquet(Path(path), [sample(0, prompt="<image>", images=(Image(data=b"x"),))])
    (first, second) = check_files([path], [path], modalities=["text"], prompts_per_step=1)
    assert first == second
    assert (first.severity, first.code) == ("warning", "data-undeclared-modality")


def test_unreadable_files_are_named_all_at_once(tmp_path, sample):
    good, half, other = (tmp_path / f"{name}.parquet" for name in ("good", "half", "other"))
    store.write_parquet(good, [sample(0)])
    half.write_bytes(good.read_bytes()[:-9])
    pq.write_table(pa.table({"text": ["x"]}), other)
    found = check_files(
        [str(good), str(half)], [str(tmp_path / "god.parquet")], [str(other)], modalities=ALL, prompts_per_step=99
    )
    assert [(problem.code, problem.key) for problem in found] == [
        ("data-unreadable", "data.train"),
        ("data-unreadable", "data.val"),
        ("data-unreadable", "data.probe"),
    ]
    assert "half-written" in found[0].message
    assert "`good.parquet`" in (found[1].hint or "")
    assert "lacks the columns" in found[2].message


def test_a_damaged_page_is_found_before_the_run(tmp_path, sample):
    path = tmp_path / "x.parquet"
    store.write_parquet(path, [sample(n, prompt=f"{n}" * 50) for n in range(500)])
    group = pq.ParquetFile(path).metadata.row_group(0)
    content = next(group.column(at) for at in range(group.num_columns) if "content" in group.column(at).path_in_schema)
    damaged = bytearray(path.read_bytes())
    damaged[content.data_page_offset : content.data_page_offset + 200] = b"\xff" * 200
    path.write_bytes(damaged)
    found = check_files([str(path)], [str(path)], modalities=ALL, prompts_per_step=1)
    assert [problem.code for problem in found] == ["data-unreadable"] * 2


def test_no_files_at_all():
    assert [problem.key for problem in check_files([], [], modalities=ALL, prompts_per_step=1)] == [
        "data.train",
        "data.val",
    ]


BASE = {"data_source": "d", "prompt": [{"role": "user", "content": "<image>"}], "reward_model": {"ground_truth": "1"}}


@pytest.mark.parametrize(
    "items",
    [
        [{"bytes": b"x"}],
        [{"bytes": b"x", "path": None}],
        [b"x"],
        [["frame"]],
    ],
    ids=["bytes", "null-path", "binary", "list"],
)
def test_files_of_other_writers_are_understood(items, check):
    assert check(BASE | {"images": items}) == []


def test_paths_in_files_of_other_writers_are_checked(check, tmp_path):
    gone = str(tmp_path / "gone.png")
    for items in ([{"image": gone}], [gone], [{"path": gone, "bytes": None}]):
        assert [code for code, *_ in check(BASE | {"images": items})] == ["data-media"]
    assert check(BASE | {"images": [{"image": str(file(tmp_path / "a.png"))}]}) == []
    assert [code for code, *_ in check(BASE | {"images": [{"bytes": b""}]})] == ["data-media-empty"]
    assert [code for code, *_ in check(BASE | {"images": None})] == ["data-placeholders"]


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": "text"},
        {"prompt": ["text"]},
        {"prompt": [{"role": "user"}]},
        {"prompt": [{"content": [1]}]},
        {"reward_model": "5"},
        {"reward_model": {"style": "rule"}},
        {"images": "a.png"},
    ],
    ids=str,
)
def test_other_types_are_named_not_a_crash(change, check):
    assert [code for code, *_ in check(BASE | change)] == ["data-unreadable"]


def test_null_prompts_and_rewards_are_named(check):
    rows = [BASE | {"prompt": None}, BASE | {"reward_model": None}, BASE | {"images": [b"x"]}]
    codes = {(code, row) for code, row, _ in check(*rows)}
    assert codes == {("data-prompt-empty", "row 0"), ("data-label-empty", "row 1"), ("data-placeholders", "row 1")}


def test_preferences_need_no_ground_truth(tmp_path):
    pair = Preference(
        **{"data_source": "p", "modality": "image", "prompt": "<image>?", "path": file(tmp_path / "a.png")},
        **{"chosen": "good", "rejected": "bad", "win_score": 2.0, "lose_score": 1.0, "ability": "x"},
        **{"ground_truth": "", "split": "train", "index": 0, "question": "?"},
    )
    path = str(tmp_path / "x.parquet")
    store.write_parquet(Path(path), [pair])
    assert check_files([path], [path], modalities=ALL, prompts_per_step=1, scorer="none") == ()
    (found, _) = check_files([path], [path], modalities=["text"], prompts_per_step=1)
    assert found.code == "data-undeclared-modality"


def test_many_rows_take_little_time(check, sample, tmp_path):
    picture = file(tmp_path / "a.png")
    rows = [sample(n, prompt="<image>what is it?", images=(Image(path=picture),)) for n in range(40_000)]
    started = time.process_time()
    assert check(*rows, prompts=128, scorer="gsm8k") == []
    assert time.process_time() - started < 20
