"""Rows of every kind become prompts with decoded media; rows that do not decode are kept, to be counted."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf, open_dict

from omnirl.data import store
from omnirl.data.sample import Image, Sample, Video
from omnirl.engine.datasets import OmniDataset
from omnirl.engine.failures import Failures
from omnirl.engine.phase import ATTEMPT_DIR
from omnirl.errors import InvalidInput
from tests.engine.clips import numbered, tone, write_clip
from tests.engine.conftest import KINDS


@pytest.fixture
def load(config: Any, processor: Any, tmp_path: Path):
    def make(files: Path, **changes: Any) -> OmniDataset:
        settings = OmegaConf.create(OmegaConf.to_container(config.data, resolve=True))
        with open_dict(settings):
            settings.update({"cache_dir": str(tmp_path / "cache"), **changes})
        return OmniDataset(data_files=str(files), tokenizer=processor.tokenizer, processor=processor, config=settings)

    return make


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")


def test_rows_become_messages_with_media(load, toy_data: Path) -> None:
    dataset = load(toy_data / "train.parquet")
    assert len(dataset) == 32
    for index, kind in enumerate(KINDS):
        row = dataset[index]
        assert row["data_source"] == f"toy/{kind}"
        media = [item["type"] for message in row["raw_prompt"] for item in message["content"] if item["type"] != "text"]
        expected = {"text": [], "image": ["image"], "image_audio": ["image", "audio"], "video": ["video", "audio"]}
        assert media == expected[kind]
        decoded = asyncio.run(
            OmniDataset.process_multi_modal_info(row["raw_prompt"], image_patch_size=16, config=dataset.config)
        )
        assert [part is not None for part in decoded] == [name in media for name in ("image", "video", "audio")]


def test_media_are_decoded_once(load, toy_data: Path) -> None:
    dataset = load(toy_data / "train.parquet")
    first, again = (dataset._process_multi_modal_info(dataset[3]["raw_prompt"], 16, dataset.config) for _ in range(2))
    assert first is again
    other = dataset._process_multi_modal_info(dataset[7]["raw_prompt"], 16, dataset.config)
    assert other is not first


def test_without_soundtracks(load, toy_data: Path) -> None:
    row = load(toy_data / "train.parquet", soundtrack=False)[3]
    assert [item["type"] for item in row["raw_prompt"][0]["content"]] == ["video", "text"]


@pytest.fixture
def questionable(tmp_path: Path) -> Path:
    """A sound row, one whose picture is no picture, and one with far too many words."""
    words = {"data_source": "x", "ground_truth": "1", "ability": "x", "split": "train", "question": "?", "answer": "1"}
    samples = [
        Sample(prompt="How many?", index=0, **words),
        Sample(prompt="<image>What is it?", index=1, images=(Image(data=b"no picture"),), **words),
        Sample(prompt="more " * 500, index=2, **words),
    ]
    return store.write_parquet(tmp_path / "rows.parquet", samples).path


def test_long_prompts_are_left_out_and_what_does_not_decode_is_kept(load, questionable: Path, caplog) -> None:
    with caplog.at_level(logging.WARNING, logger="omnirl.engine.datasets"):
        dataset = load(questionable)
    assert [row["index"] for row in dataset] == [0, 1]
    assert "left out 1 of 3 prompts: over 128 tokens" in caplog.text
    with pytest.raises(InvalidInput, match="cannot read picture in the row as an image"):
        asyncio.run(
            OmniDataset.process_multi_modal_info(dataset[1]["raw_prompt"], image_patch_size=16, config=dataset.config)
        )


def test_nothing_is_left_out_unless_asked_for(load, questionable: Path) -> None:
    assert len(load(questionable, filter_overlong_prompts=False)) == 3


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    """Four questions on three videos: two on one with sound, one on a mute one, one on a file that is not there."""
    heard = write_clip(tmp_path / "heard.mp4", numbered(30), sound=tone(3.0))
    mute = write_clip(tmp_path / "mute.mp4", numbered(30))
    words = {"data_source": "nextqa", "ground_truth": "1", "ability": "x", "split": "train", "answer": "1"}
    samples = [
        Sample(
            prompt=f"<video>Question {index}?",
            question="?",
            index=index,
            id=f"{path.stem}_{index}",
            videos=(Video(path, 1.0, 1024, 96 * 64, 32),),
            **words,
        )
        for index, path in enumerate((heard, heard, mute, tmp_path / "gone.mp4"))
    ]
    return store.write_parquet(tmp_path / "clips.parquet", samples).path


def decoded(dataset: OmniDataset, index: int) -> Any:
    return asyncio.run(
        OmniDataset.process_multi_modal_info(dataset[index]["raw_prompt"], image_patch_size=16, config=dataset.config)
    )


def test_a_mute_clip_is_a_named_failure_where_soundtracks_are_listened_to(
    load, clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    monkeypatch.setenv(ATTEMPT_DIR, str(tmp_path))
    failures = Failures()
    with caplog.at_level(logging.WARNING, logger="omnirl.engine.datasets"):
        dataset = load(clips)
    assert len(dataset) == 4
    assert "mute.mp4` has no audio stream; the prompt is kept, and fails when it is drawn" in caplog.text
    assert len(decoded(dataset, 0)[2]) == 1
    assert failures.new() == []  # none has been drawn that fails
    expected = [
        f"row of `nextqa`, index 2, id `mute_2`: `{tmp_path}/mute.mp4` has no audio stream",
        f"row of `nextqa`, index 3, id `gone_3`: cannot decode video of `{tmp_path}/gone.mp4`: ",
    ]
    for index, words in zip((2, 3), expected, strict=True):
        with pytest.raises(InvalidInput) as caught:
            decoded(dataset, index)
        assert caught.value.message.startswith(words)
    found = failures.new()
    assert len(found) == 2
    assert all(line.startswith(words) for line, words in zip(found, expected, strict=True))


def test_without_soundtracks_a_mute_clip_is_as_good_as_any(load, clips: Path) -> None:
    images, videos, audios = decoded(load(clips, soundtrack=False, filter_overlong_prompts=False), 2)
    assert (images, len(videos), audios) == (None, 1, None)


def test_rows_share_what_they_show(load, clips: Path) -> None:
    dataset = load(clips, filter_overlong_prompts=False)
    assert decoded(dataset, 0) is decoded(dataset, 1)


def test_marks_that_do_not_fit_name_the_row(load, tmp_path: Path) -> None:
    words = {"data_source": "x", "ground_truth": "1", "ability": "x", "split": "train", "question": "?", "answer": "1"}
    path = store.write_parquet(tmp_path / "rows.parquet", [Sample(prompt="<audio>What?", index=7, **words)]).path
    with pytest.raises(InvalidInput, match="row of `x`, index 7: the prompt names 1 `<audio>` and the row holds 0"):
        load(path, filter_overlong_prompts=False)[0]
