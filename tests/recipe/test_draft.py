from __future__ import annotations

import re
import tomllib
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest

from omnirl.recipe import registry
from omnirl.recipe.compare import differences
from omnirl.recipe.draft import draft
from omnirl.recipe.search import shipped

TASKS = sorted({pair.task for pair in registry.pairs([shipped()])})


def uncommented(text: str) -> str:
    return re.sub(r"^# (?=\[|\w+ = )", "", text, flags=re.MULTILINE)


def changed(a, b):
    return {d.key for d in differences(a.origins, b.origins)} - {"evidence"}


@pytest.mark.parametrize("task", TASKS)
def test_a_draft_changes_nothing_commented_or_not(write, task):
    folders = registry.search_path()
    there, _ = registry.offered(task, folders)
    pairs = [registry.resolve(task, hardware) for hardware in there]
    text = draft("mine", pairs)
    write("mine.toml", text)
    for pair in pairs:
        found = registry.resolve("mine", pair.hardware)
        assert changed(pair, found) == set()
        assert found.recipe.evidence == "planned"
    whole = uncommented(text)
    assert len(tomllib.loads(whole)["on"][there[0]]) > 3
    write("mine.toml", whole)
    for pair in pairs:
        found = registry.resolve("mine", pair.hardware)
        assert changed(pair, found) <= {"train.steps"}
        assert found.where("batch.prompts").startswith("mine/mine.toml:")


def test_settings_that_differ_by_hardware_stand_in_its_table():
    text = draft("mine", [registry.resolve("mmk12", hardware) for hardware in ("h800x4", "ascend910c-x16x2")])
    values = tomllib.loads(uncommented(text))
    assert "model" not in values
    assert values["on"]["ascend910c-x16x2"]["model"]["path"] == "models/student"
    assert values["data"]["train"] == ["data/mmk12/train.parquet"]


def test_the_editor_finds_the_schema():
    text = draft("mine", [registry.resolve("toy", "cpu")])
    uri = text.splitlines()[0].removeprefix("#:schema ")
    assert Path(unquote(urlparse(uri).path)) == shipped() / "recipe.schema.json"


def test_a_file_that_stands_before_its_own_task_tells_of_no_comparison():
    assert "recipe diff" in draft("mine", [registry.resolve("toy", "cpu")])
    assert "recipe diff" not in draft("toy", [registry.resolve("toy", "cpu")])
