"""Omni-Preference: paths, pairs and the split by media file; hostile records each with their reason, never a crash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from omnirl.data import store
from omnirl.data.preference import Preference
from omnirl.data.prepare import prepare
from omnirl.data.sample import Drop, Medium
from omnirl.data.sources import Source
from omnirl.data.sources.omni_media import MediaFiles
from omnirl.data.sources.omni_preference import MODALITIES, convert, judgement
from omnirl.errors import InvalidInput

from .clips import make_clips
from .pairs import JUDGED, ROOTS, SUFFIXES, convert_all, only, prompt, record, write


@pytest.mark.parametrize("modality", MODALITIES)
def test_a_row_is_what_training_on_pairs_reads(modality, tmp_path):
    write(tmp_path, modality, [record(modality)], [f"a{SUFFIXES[modality]}"])
    row = only(tmp_path)
    path = next(path for path in tmp_path.rglob("a.*"))
    assert row.media() == (Medium(modality, str(path)),)
    assert row.tally == "B"
    columns = {"images": [], "audios": [], "videos": []} | {f"{modality}s": [str(path)]}
    assert row.to_row() == columns | {
        "data_source": f"omni_preference/{modality}",
        "prompt": [{"role": "user", "content": f"<{modality}>What is it?"}],
        "chosen": {"role": "assistant", "content": "A dog.\n\nIt barks."},
        "rejected": {"role": "assistant", "content": "A cat."},
        "win_score": 8.5,
        "lose_score": 3.0,
        "ability": f"{modality}_preference",
        "reward_model": {"style": "preference", "ground_truth": "B"},
        "extra_info": {
            "split": "train",
            "index": 0,
            "id": f"{modality}_0",
            "kind": modality,
            "question": "What is it?",
            "answer": "B",
            "options": [],
            "details": json.dumps({"path": f"/data/{ROOTS[modality]}/a{SUFFIXES[modality]}", "reasoning": "why"}),
        },
    }


def test_the_other_candidate_may_be_the_better_one(tmp_path):
    verdict = {"score_A": 10, "score_B": 0, "better": "A", "final_verdict": "<answer>[[A]]</answer>"}
    row = only(write(tmp_path, "image", [record(judged=verdict)]))
    assert (row.chosen, row.rejected, row.win_score, row.lose_score) == ("A cat.", "A dog.\n\nIt barks.", 10.0, 0.0)
    assert row.ground_truth == "A"


HOSTILE: list[tuple[Any, str]] = [
    (b"", "empty_line"),
    (b"{", "invalid_json"),
    (b"[" * 100_000, "invalid_json"),
    (b'"' + b"x" * 2_000_000 + b'"', "too_long"),
    (b'{"images": ["\xff"]}', "invalid_text"),
    ([], "invalid_record"),
    (None, "invalid_record"),
    ({}, "invalid_record"),
    (record(images="/data/a.jpg"), "invalid_record"),
    (record(images=[]), "invalid_record"),
    (record(images=[5]), "invalid_record"),
    (record(images=[["/data/a.jpg"]]), "invalid_record"),
    (record(messages="x"), "invalid_record"),
    (record(messages=[]), "invalid_record"),
    (record(messages=[5]), "invalid_record"),
    (record(messages=[{"role": "user", "content": 5}]), "invalid_record"),
    (record(messages=[{"role": "assistant", "content": prompt()}]), "invalid_record"),
    (record(messages=[{"role": "user", "content": prompt()}] * 2), "invalid_record"),
    (record(solution=JUDGED), "invalid_record"),
    (record(solution=None), "invalid_record"),
    (record(content=prompt(one="nul \0")), "invalid_text"),
    (record(content=prompt(one="half \ud800")), "invalid_text"),
    (record(audios=["/data/a.wav"]), "unsupported_modality"),
    (record("video"), "unsupported_modality"),
    (record(images=["/data/rlaif-v-dataset/a.jpg"] * 2), "unsupported_modality"),
    (record(content=prompt(kind="Video")), "unsupported_modality"),
    (record(images=["/etc/passwd"]), "absolute_path"),
    (record(images=["/data//etc/passwd"]), "absolute_path"),
    (record(images=["/data/../../x.jpg"]), "outside_folder"),
    (record(images=["/data/rlaif-v-dataset/out/x.jpg"]), "outside_folder"),
    (record(images=["https://example.org/a.jpg"]), "remote_path"),
    (record(images=["file:///data/a.jpg"]), "remote_path"),
    (record(images=["/data/rlaif-v-dataset/\ud800.jpg"]), "invalid_path"),
    (record(images=["/data/rlaif-v-dataset/a\0.jpg"]), "invalid_path"),
    (record(images=["C:\\data\\a.jpg"]), "invalid_path"),
    (record(images=[""]), "invalid_path"),
    (record(images=["/data/" + "x" * 300]), "invalid_path"),
    (record(images=["/data/" + "x/" * 5000]), "invalid_path"),
    (record(content="What is it? Candidate A: x Candidate B: y"), "invalid_prompt"),
    (record(content="### Context\nQuestion: q\nCandidate A: x"), "invalid_prompt"),
    (record(content="### Context\nQuestion: q\nCandidate B: x\nCandidate A: y"), "invalid_prompt"),
    (record(content="### Context\nCandidate A: x\nCandidate B: y"), "invalid_prompt"),
    (record(content=prompt(one="x\nCandidate B: z")), "invalid_prompt"),
    (record(content=prompt(other="x\nCandidate A: z")), "invalid_prompt"),
    (record(content=prompt(question=" ")), "empty_problem"),
    (record(content=prompt(one=" \n ")), "empty_candidate"),
    (record(content=prompt(other="")), "empty_candidate"),
    (record(content=prompt(question="<image> what?")), "media_placeholder"),
    (record(content=prompt(other="see <audio>")), "media_placeholder"),
    (record(content=prompt(one="A dog. It\nbarks.")), "identical_candidates"),
    (record(judged="no JSON"), "invalid_solution"),
    (record(judged="[" * 100_000), "invalid_solution"),
    (record(judged='{"score_A": ' + "1" * 5000 + "}"), "invalid_solution"),
    (record(judged="[]"), "invalid_solution"),
    (record(judged="{}"), "invalid_solution"),
    (record(judged={"better": "C"}), "invalid_solution"),
    (record(judged={"better": ["A"]}), "invalid_solution"),
    (record(judged={"final_verdict": 5}), "invalid_solution"),
    (record(judged={"final_verdict": "B"}), "invalid_solution"),
    (record(judged={"better": "equal"}), "tie"),
    (record(judged={"better": "equal", "score_A": "?"}), "tie"),
    (record(judged={"score_A": "8/10"}), "invalid_score"),
    (record(judged={"score_A": "3"}), "invalid_score"),
    (record(judged={"score_A": None}), "invalid_score"),
    (record(judged={"score_A": True}), "invalid_score"),
    (record(judged={"score_B": 95}), "invalid_score"),
    (record(judged={"score_A": -0.5}), "invalid_score"),
    (record(judged={"score_A": float("nan")}), "invalid_score"),
    (record(judged={"score_B": float("inf")}), "invalid_score"),
    (record(judged={"score_B": 10**400}), "invalid_score"),
    (record(judged={"better": "A"}), "contradictory_verdict"),
    (record(judged={"score_A": 9}), "contradictory_verdict"),
    (record(judged={"final_verdict": "<answer>[[A]]</answer>"}), "contradictory_verdict"),
    (record(judged={"final_verdict": "[[A]] or [[B]]"}), "contradictory_verdict"),
    (record(judged={"score_A": 8.5}), ""),
    (record(judged={"final_verdict": None, "reasoning": 5}), ""),
    (record(judged={"reasoning": "half \ud800"}), ""),
    (record(content=prompt(question="q\nQuestion: r", other="### Context\nx")), ""),
    (record(content=prompt().replace("\n", "\r\n")), ""),
    (record(content="### Context\nQuestion: q\nCandidate A: x\nCandidate B: y"), ""),
    (record(content="Judge. ### Context\n<Image> file: /data/a\nQuestion: q\nCandidate A: x\nCandidate B: y"), ""),
    (record(videos=None, audios=[]), ""),
]


@pytest.mark.parametrize(("line", "reason"), HOSTILE, ids=[f"{at}-{reason}" for at, (_, reason) in enumerate(HOSTILE)])
def test_a_hostile_record_is_dropped_with_its_reason_and_the_others_stay(line, reason, tmp_path):
    write(tmp_path, "image", [record(), line, record(), record()])
    (tmp_path / "rlaif-v-dataset").mkdir()
    (tmp_path / "rlaif-v-dataset" / "out").symlink_to("/")
    ((name, rows),) = convert_all(tmp_path).items()
    assert name == "image/train"
    assert [row.reason if isinstance(row, Drop) else "" for row in rows] == ["", reason, "", ""]
    if reason:
        assert rows[1].where == "final_rl_data.jsonl:2"
    else:
        assert pa.Table.from_pylist([row.to_row() for row in rows], schema=Preference.schema()).num_rows == 4


@pytest.mark.parametrize("suffix", [".mp4", ".webm", ".mkv", ".mov", ".avi"])
def test_a_missing_suffix_of_a_video_is_found(suffix, tmp_path):
    one = record("video", videos=["/data/academic_source/deep/v_1.x"])
    write(tmp_path, "video", [one], [f"deep/v_1.x{suffix}", "deep/v_1.txt"])
    assert only(tmp_path).path == tmp_path / "video-dataset" / "academic_source" / "deep" / f"v_1.x{suffix}"


def test_a_file_of_the_very_name_comes_first_and_a_missing_one_keeps_its_name(tmp_path):
    one = record("video", videos=["/data/academic_source/v"])
    assert only(write(tmp_path, "video", [one])).path == tmp_path / "video-dataset" / "academic_source" / "v"
    assert only(write(tmp_path, "video", [one], ["v", "v.mp4"])).path.name == "v"


def test_sounds_are_found_by_their_last_name_wherever_they_lie(tmp_path):
    media = ["a/b/one.wav", "two.wav", "a/twice.wav", "b/twice.wav"]
    names = [
        "/data/x/one.wav",
        "/elsewhere/two.wav",
        "/data/twice.wav",
        "/data/none.wav",
        "/data/a/",
        "http://h/two.wav",
    ]
    write(tmp_path, "audio", [record("audio", audios=[name]) for name in names], media)
    rows = [row for split in convert_all(tmp_path).values() for row in split]
    found = {row.index: row.path for row in rows if isinstance(row, Preference)}
    folder = tmp_path / "audio_files"
    assert found == {0: folder / "a/b/one.wav", 1: folder / "two.wav", 3: folder / "none.wav"}
    dropped = {row.where: row.reason for row in rows if isinstance(row, Drop)}
    assert [*dropped.values()] == ["ambiguous_media", "invalid_path", "remote_path"]


def test_folders_of_sounds_behind_links(tmp_path):
    folder = write(tmp_path / "in", "audio", [record("audio", "a"), record("audio", "b")], ["x/a.wav"])
    outside = write(tmp_path / "out", "audio", [], ["b.wav"])
    sounds = folder / "audio_files"
    (sounds / "loop").symlink_to(sounds)
    (sounds / "again").symlink_to(sounds / "x")
    (sounds / "store").symlink_to(outside / "audio_files")
    strict = [row for rows in convert_all(folder).values() for row in rows]
    assert [row.path.is_file() for row in strict] == [True, False]
    allowed = [row for rows in convert_all(folder, allow_outside=True).values() for row in rows]
    assert [row.path.is_file() for row in allowed] == [True, True]
    (sounds / "loop").unlink()
    sounds.rename(tmp_path / "moved")
    sounds.symlink_to(tmp_path / "moved")
    with pytest.raises(InvalidInput, match="leads out") as caught:
        convert_all(folder)
    assert "--allow-outside" in caught.value.hint


def test_modalities_that_are_there_are_converted_and_none_is_named(tmp_path):
    for modality in ("audio", "image"):
        write(tmp_path, modality, [record(modality)], [f"a{SUFFIXES[modality]}"])
    assert [*convert_all(tmp_path)] == ["image/train", "audio/train"]
    with pytest.raises(InvalidInput, match=r"no `dataset_jsonl/\{image,video,audio\}/final_rl_data.jsonl`") as caught:
        convert_all(tmp_path / "dataset_jsonl")
    assert "rlaif-v-dataset" in caught.value.hint


def test_records_in_another_encoding_are_named(tmp_path):
    write(tmp_path, "image", [record()])
    lines = tmp_path / "dataset_jsonl" / "image" / "final_rl_data.jsonl"
    lines.write_bytes(lines.read_text().encode("utf-16"))
    with pytest.raises(InvalidInput, match="is UTF-16"):
        convert_all(tmp_path)


ANY_TEXT = st.text(st.characters(codec=None, categories=None), max_size=40) | st.sampled_from(
    ["### Context\n", "Candidate A:", "<image>", "/data/a.jpg", "{}", prompt(), json.dumps(JUDGED)]
)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "better"]) | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
ANY_SOLUTION = st.dictionaries(st.sampled_from([*JUDGED]), ANY_JSON, max_size=5).map(lambda said: JUDGED | said)
ANY_PROMPT = st.builds(prompt, *[ANY_TEXT] * 4, st.sampled_from(["Image", "Video"]))
RECORDS = (
    ANY_JSON
    | st.dictionaries(st.sampled_from([*record()]), ANY_JSON)
    | st.builds(
        lambda path, content, said, change: record(images=[path], content=content, judged=json.dumps(said)) | change,
        ANY_TEXT | st.just("/data/rlaif-v-dataset/a.jpg"),
        ANY_PROMPT,
        ANY_SOLUTION,
        st.dictionaries(st.sampled_from([*record(), "videos"]), ANY_JSON, max_size=1),
    )
)


@given(RECORDS, st.sampled_from(MODALITIES))
def test_any_record_gives_a_row_that_can_be_stored_or_a_reason(tmp_path_factory, record, modality):
    files = MediaFiles(tmp_path_factory.getbasetemp(), modality)
    outcome = convert(record, modality, files, "train", 3, "here")
    if isinstance(outcome, Drop):
        assert outcome.where == "here"
        assert outcome.reason.replace("_", "").isalpha()
        return
    assert pa.Table.from_pylist([outcome.to_row()], schema=Preference.schema()).num_rows == 1
    assert outcome.prompt.count(f"<{modality}>") == 1
    assert outcome.path.is_absolute()
    assert 0 <= outcome.lose_score <= outcome.win_score <= 10


@given(ANY_TEXT | ANY_SOLUTION.map(json.dumps))
def test_any_solution_is_a_judgement_or_a_reason(text):
    outcome = judgement(text)
    assert isinstance(outcome, str) or outcome.better in ("A", "B")


def test_long_prompts_take_time_in_proportion_to_their_length(tmp_path):
    """A megabyte of what the marks begin with ends at once; a look that started anew at each would never."""
    files = MediaFiles(tmp_path, "image")
    for piece in ("### Context \t", "\n### Context", "\nCandidate A", "[[", "\nImage file:", "\nCandidate A:", " "):
        content = prompt(one=piece * (900_000 // len(piece)))
        outcome = convert(record(content=content), "image", files, "train", 0, "here")
        assert isinstance(outcome, Preference) or outcome.reason in ("invalid_prompt", "empty_candidate")
        assert judgement(json.dumps(JUDGED | {"final_verdict": content})) == "invalid_solution"


def test_a_conversion_writes_a_file_for_each_split_of_each_modality(tmp_path):
    folder = tmp_path / "in"
    names = [f"m{at}" for at in range(6)]
    for modality in MODALITIES:
        write(folder, modality, [*(record(modality, name) for name in names), record(modality, "absent")])
    make_clips(folder / "video-dataset" / "academic_source", dict.fromkeys(names, "mute"))
    make_clips(folder / "audio_files" / "deep", dict.fromkeys(names, "sound"), suffix=".wav")
    (folder / "rlaif-v-dataset").mkdir()
    for at, name in enumerate(names):
        Image.new("RGB", (64, 48), (at, 0, 0)).save(folder / "rlaif-v-dataset" / f"{name}.jpg")
    source = Source("pairs", "", "omnirl.data.sources.omni_preference", layout="dataset_jsonl")
    report = prepare(source, input=folder, output=tmp_path / "out")
    assert {name: (split.input, split.kept, dict(split.dropped)) for name, split in report.splits.items()} == {
        f"{modality}/{split}": counts
        for modality in MODALITIES
        for split, counts in (("train", (6, 5, {f"missing_{modality}": 1})), ("test", (1, 1, {})))
    }
    for name in report.splits:
        for row in store.read_rows(tmp_path / "out" / f"{name}.parquet"):
            assert row["data_source"] == f"omni_preference/{name.partition('/')[0]}"
            assert Path(*(row["images"] or row["videos"] or row["audios"])).is_file()
