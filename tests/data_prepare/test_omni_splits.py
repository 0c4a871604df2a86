"""Omni-Preference: which records are for training and which for testing."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from omnirl.data.preference import Preference
from omnirl.data.sample import Drop
from omnirl.data.sources.omni_preference import MODALITIES

from .pairs import SUFFIXES, convert_all, paths_of, prompt, record, write


def many(modality: str, files: int) -> list[dict[str, Any]]:
    return [
        record(modality, f"m{at % files}", content=prompt(question=f"q{at}", kind=modality.capitalize()))
        for at in range(files * 3)
    ]


@pytest.mark.parametrize("modality", MODALITIES)
def test_no_media_file_is_in_both_splits(modality, tmp_path):
    write(tmp_path, modality, many(modality, 50), [f"m{at}{SUFFIXES[modality]}" for at in range(50)])
    found = convert_all(tmp_path)
    assert [*found] == [f"{modality}/train", f"{modality}/test"]
    train, test = paths_of(found).values()
    assert (len(train), len(test)) == (45, 5)
    assert not train & test
    assert sorted(row.index for rows in found.values() for row in rows) == list(range(150))
    for name, rows in found.items():
        assert {row.split for row in rows} == {name.rpartition("/")[2]}


def test_the_split_depends_on_the_seed_and_the_names_alone(tmp_path):
    records, media = many("image", 40), [f"m{at}.jpg" for at in range(40)]
    first = paths_of(convert_all(write(tmp_path / "a", "image", records, media)))
    random.Random(1).shuffle(records)
    again = convert_all(write(tmp_path / "b" / "elsewhere", "image", records[::-1], reversed(media)))
    assert paths_of(again) == first
    assert paths_of(convert_all(tmp_path / "a", seed=42)) == first
    others = [paths_of(convert_all(tmp_path / "a", seed=seed))["image/test"] for seed in (0, 1, 2, 3)]
    assert any(other != first["image/test"] for other in others)


def test_two_names_of_one_file_are_in_one_split(tmp_path):
    names = [f"{start}m{at}" for at in range(20) for start in ("", "./", "/", "link/", "l")]
    write(tmp_path, "image", [record(name=name) for name in names], [f"m{at}.jpg" for at in range(20)])
    folder = tmp_path / "rlaif-v-dataset"
    (folder / "link").symlink_to(folder)
    for at in range(20):
        (folder / f"lm{at}.jpg").symlink_to(f"m{at}.jpg")
    splits_of: dict[Path, set[str]] = defaultdict(set)
    found = convert_all(tmp_path)
    for name, rows in found.items():
        for row in rows:
            splits_of[row.path.resolve()].add(name)
    assert len(splits_of) == 20
    assert all(len(names) == 1 for names in splits_of.values())
    assert [len(rows) for rows in found.values()] == [90, 10]


@pytest.mark.parametrize(("files", "expected"), [(1, [1]), (2, [1, 1]), (3, [2, 1]), (9, [8, 1]), (20, [18, 2])])
def test_each_split_has_a_file_when_there_are_two(files, expected, tmp_path):
    write(tmp_path, "image", [record(name=f"m{at}") for at in range(files)], [f"m{at}.jpg" for at in range(files)])
    assert [len(rows) for rows in convert_all(tmp_path).values()] == expected


def test_only_files_that_are_there_and_of_use_are_shared_out(tmp_path):
    """Neither absent files nor files without a usable pair can make up a test split that keeps nothing."""
    records = [record(name=f"absent{at}") for at in range(30)]
    records += [record(name=f"tie{at}", judged={"better": "equal"}) for at in range(30)]
    records += [record(name="one"), record(name="two")]
    media = [f"tie{at}.jpg" for at in range(30)] + ["one.jpg", "two.jpg"]
    found = paths_of(convert_all(write(tmp_path, "image", records, media)))
    assert len(found["image/test"]) == 1
    assert found["image/test"] < {"one.jpg", "two.jpg"}
    assert len(found["image/train"]) == 31


def test_a_dropped_record_is_counted_once_in_the_split_of_its_file(tmp_path):
    records = [record(name=f"m{at}", **change) for at in range(20) for change in ({}, {"solution": "?"})]
    write(tmp_path, "image", [*records, {}, b"{"], [f"m{at}.jpg" for at in range(20)])
    counts = {
        name: [sum(isinstance(row, kind) for row in rows) for kind in (Preference, Drop)]
        for name, rows in convert_all(tmp_path).items()
    }
    assert counts == {"image/train": [18, 20], "image/test": [2, 2]}
