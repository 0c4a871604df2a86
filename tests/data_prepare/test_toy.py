"""The toy task: what its rows hold, that only the media tell the answer, and that a seed gives the same bytes."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from omnirl.data import store
from omnirl.data.prepare import prepare
from omnirl.data.sources import Options, find, toy
from omnirl.data.sources.toy_media import COLOURS
from omnirl.errors import UsageMistake
from omnirl.reward.score import compute_score

EXCHANGED = {"toy/image": {"image"}, "toy/image_audio": {"image", "audio"}, "toy/video": {"video", "audio"}}
COLUMNS = {"text": set(), "image": {"images"}, "image_audio": {"images", "audios"}, "video": {"videos"}}


def rows_of(folder: Path, split: str) -> list[dict[str, Any]]:
    return list(store.read_rows(folder / f"{split}.parquet"))


def make(folder: Path, *, seed: int = 0, train: int = 16, validation: int = 16) -> Path:
    prepare(
        find("toy"),
        input=None,
        output=folder,
        options=Options(seed=seed, rows={"train": train, "validation": validation}),
    )
    return folder


def media_digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((folder / "media").iterdir())}


def pitch_hz(samples: np.ndarray, rate_hz: int) -> float:
    return float(np.argmax(np.abs(np.fft.rfft(samples))) * rate_hz / samples.size)


def test_each_kind_has_its_media_and_placeholders(toy_data: Path) -> None:
    for split in ("train", "validation"):
        for row in rows_of(toy_data, split):
            kind = row["data_source"].removeprefix("toy/")
            held = {column for column in ("images", "audios", "videos") if row[column]}
            assert held == COLUMNS[kind]
            text = row["prompt"][0]["content"]
            for column, mark in (("images", "<image>"), ("audios", "<audio>"), ("videos", "<video>")):
                assert text.count(mark) == len(row[column])


def test_answers_are_equally_frequent_in_every_kind(toy_data: Path) -> None:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows_of(toy_data, "train"):
        counts[row["data_source"]][row["reward_model"]["ground_truth"]] += 1
    assert set(counts) == {f"toy/{kind}" for kind in toy.KINDS}
    for kind, found in counts.items():
        assert found == {f"<answer>{answer}</answer>": 2 for answer in toy.answers(kind)}


def test_the_words_of_a_question_with_media_never_differ(toy_data: Path) -> None:
    prompts: dict[str, set[str]] = defaultdict(set)
    for row in rows_of(toy_data, "train") + rows_of(toy_data, "validation"):
        prompts[row["data_source"]].add(row["prompt"][0]["content"])
    assert {kind: len(found) for kind, found in prompts.items() if kind != "toy/text"} == {
        "toy/image": 1,
        "toy/image_audio": 1,
        "toy/video": 1,
    }


def test_sums_are_right_and_phrased_anew_for_validation(tmp_path: Path) -> None:
    make(tmp_path, train=160, validation=80)
    seen: dict[str, set[str]] = {}
    for split in ("train", "validation"):
        rows = [row for row in rows_of(tmp_path, split) if row["data_source"] == "toy/text"]
        for row in rows:
            first, second = (int(word) for word in row["extra_info"]["question"].split() if word.isdigit())
            assert row["reward_model"]["ground_truth"] == f"<answer>{first + second}</answer>"
        seen[split] = {row["extra_info"]["question"] for row in rows}
    assert not seen["train"] & seen["validation"]


def test_media_show_what_the_answer_says(toy_data: Path) -> None:
    checked = 0
    for row in rows_of(toy_data, "validation"):
        caption = toy.caption(row["data_source"], row["extra_info"]["question"], row["reward_model"]["ground_truth"])
        if row["images"]:
            picture = np.asarray(Image.open(row["images"][0]["image"])).astype(int)
        elif row["videos"]:
            picture, samples, rate_hz = clip(row["videos"][0]["video"])
        else:
            continue
        assert most_vivid_colour(picture) == caption.split()[0]
        if row["audios"]:
            samples, rate_hz = sound(row["audios"][0])
        if len(caption.split()) == 2:
            assert (pitch_hz(samples, rate_hz) > 700) == (caption.split()[1] == "high")
        checked += 1
    assert checked == 12


def sound(path: str) -> tuple[np.ndarray, int]:
    with av.open(path) as container:
        rate_hz = container.streams.audio[0].rate
        return np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)]), rate_hz


def clip(path: str) -> tuple[np.ndarray, np.ndarray, int]:
    with av.open(path) as container:
        pictures = [frame.to_ndarray(format="rgb24").astype(int) for frame in container.decode(video=0)]
    assert len(pictures) == 4
    assert any((first != last).any() for first, last in itertools.pairwise(pictures))
    return pictures[-1], *sound(path)


def most_vivid_colour(picture: np.ndarray) -> str:
    spread = picture.max(-1) - picture.min(-1)
    shade = picture[spread > 0.7 * spread.max()].mean(0)
    return min(COLOURS, key=lambda name: float(np.abs(shade - np.array(COLOURS[name])).sum()))


def test_a_seed_gives_the_same_bytes_and_another_does_not(tmp_path: Path) -> None:
    first, again, other = (make(tmp_path / name, seed=seed) for name, seed in (("a", 5), ("b", 5), ("c", 6)))
    assert media_digests(first) == media_digests(again)
    assert not set(media_digests(first).values()) & set(media_digests(other).values())
    before = {name: (first / f"{name}.parquet").read_bytes() for name in ("train", "validation", "probe")}
    make(first, seed=5)
    assert before == {name: (first / f"{name}.parquet").read_bytes() for name in before}


def test_a_row_does_not_depend_on_how_many_there_are(tmp_path: Path) -> None:
    few, many = rows_of(make(tmp_path), "train"), rows_of(make(tmp_path, train=32), "train")
    assert few == many[: len(few)]


def test_probe_rows_keep_question_and_answer_and_exchange_what_their_name_says(toy_data: Path) -> None:
    own = {(row["data_source"], row["extra_info"]["index"]): row for row in rows_of(toy_data, "validation")}
    labels = Counter()
    for row in rows_of(toy_data, "probe"):
        kind, label = row["data_source"].split("@")
        labels[row["data_source"]] += 1
        original = own[kind, row["extra_info"]["index"]]
        assert row["prompt"] == original["prompt"]
        assert row["reward_model"] == original["reward_model"]
        if kind == "toy/video":
            exchanged = changed_streams(original["videos"][0]["video"], row["videos"][0]["video"])
        else:
            exchanged = {name[:-1] for name in ("images", "audios") if row[name] != original[name]}
        expected = EXCHANGED[kind] if label == "shuffled" else {label.removeprefix("shuffled_")}
        assert exchanged == expected
    assert labels == dict.fromkeys(
        (
            "toy/image@shuffled",
            "toy/image_audio@shuffled",
            "toy/image_audio@shuffled_image",
            "toy/image_audio@shuffled_audio",
            "toy/video@shuffled",
            "toy/video@shuffled_video",
            "toy/video@shuffled_audio",
        ),
        4,
    )


def changed_streams(one: str, other: str) -> set[str]:
    found = {"video": [], "audio": []}
    for path in (one, other):
        with av.open(path) as container:
            for packet in container.demux():
                found[packet.stream.type].append((path, bytes(packet)))
    return {
        kind
        for kind, packets in found.items()
        if [data for path, data in packets if path == one] != [data for path, data in packets if path == other]
    }


def test_exchanged_media_leave_only_guessing(tmp_path: Path) -> None:
    """A reader that answers from the media alone is right by chance on exchanged ones."""
    make(tmp_path, train=8, validation=256)
    answer = {
        row["images"][0]["image"]: row["reward_model"]["ground_truth"]
        for row in rows_of(tmp_path, "validation")
        if row["images"]
    }
    for kind in ("toy/image", "toy/image_audio"):
        rows = [row for row in rows_of(tmp_path, "probe") if row["data_source"] == f"{kind}@shuffled"]
        right = sum(answer[row["images"][0]["image"]] == row["reward_model"]["ground_truth"] for row in rows)
        assert len(rows) == 64
        assert 0.1 < right / len(rows) < 0.4


def test_the_scorer_accepts_the_ground_truth(toy_data: Path) -> None:
    for row in rows_of(toy_data, "train"):
        truth = row["reward_model"]["ground_truth"]
        assert compute_score(row["data_source"], truth, truth, scorer="choice")["score"] == 1.0


def test_no_half_written_medium_is_left(toy_data: Path) -> None:
    assert not [path for path in (toy_data / "media").iterdir() if "partial" in path.name]


@pytest.mark.parametrize("rows", [{"test": 8}, {"train": 7}])
def test_impossible_sizes_are_refused(tmp_path: Path, rows: dict[str, int]) -> None:
    with pytest.raises(UsageMistake):
        prepare(find("toy"), input=None, output=tmp_path, options=Options(rows=rows))
