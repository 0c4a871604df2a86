"""Rows of every kind become prompts with decoded media; rows that do not decode are kept, to be counted."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf, open_dict

from omnirl.data import store
from omnirl.data.sample import Image, Sample
from omnirl.engine.datasets import OmniDataset
from omnirl.errors import InvalidInput
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
