"""The command that a job is: words that a shell leaves as they are, and paths that hold in any folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnirl.errors import InvalidInput
from omnirl.recipe import registry
from omnirl.run import submit

SAY = (sys.executable, "-c", "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ.get('MODEL_PATH')]))")
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


def recipe(*sets: str):
    return registry.resolve("toy", "cpu", sets=sets).recipe


@given(st.lists(TEXT, max_size=4), TEXT)
@settings(max_examples=25)
def test_a_shell_hands_every_word_on(words: list[str], value: str) -> None:
    job = submit.Job((*SAY, *words), {"MODEL_PATH": value})
    done = subprocess.run(["sh", "-c", job.entrypoint], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [words, value]


def test_without_variables_it_is_the_command_alone() -> None:
    assert submit.Job(("omnirl", "train", "a b")).entrypoint == "omnirl train 'a b'"


def test_relative_paths_start_at_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/someone")
    found = recipe(
        'data.train = ["a.parquet", "/b.parquet", "~/c.parquet"]',
        'data.val = "/v.parquet"',
        "data.probe = []",
        'model.path = "./model"',
        'reward.scorer = "mine.py:score"',
    )
    words = submit.absolute(found, Path("/here"))
    assert words == [
        'data.train = ["/here/a.parquet", "/b.parquet", "/someone/c.parquet"]',
        'model.path = "/here/model"',
        'reward.scorer = "/here/mine.py:score"',
    ]
    moved = recipe('data.val = "/v.parquet"', "data.probe = []", *words)
    assert submit.absolute(moved, Path("/elsewhere")) == []


@pytest.mark.parametrize(
    "name", ['a"b.parquet', "a\\b.parquet", "a\x7fb\tc.parquet", "ü😀.parquet", "a'b $(x).parquet"]
)
def test_odd_names_come_back_as_they_are(name: str) -> None:
    (word,) = [w for w in submit.absolute(recipe(f"data.train = {submit._toml(name)}"), Path("/h")) if "train" in w]
    assert recipe(word).data.train == (f"/h/{name}",) or list(recipe(word).data.train) == [f"/h/{name}"]


def test_a_name_of_a_hub_is_no_path_unless_there_is_such_a_folder(tmp_path: Path) -> None:
    found = recipe('model.path = "org/model"', 'data.train = "/t"', 'data.val = "/v"', "data.probe = []")
    assert submit.absolute(found, tmp_path) == []
    (tmp_path / "org/model").mkdir(parents=True)
    assert submit.absolute(found, tmp_path) == [f'model.path = "{tmp_path}/org/model"']


def test_words_that_paths_replace_are_left_out() -> None:
    paths = ['data.train = ["/a"]']
    assert submit.with_paths(["data.train = 'a'", "train.steps = 3"], paths) == ("train.steps = 3", *paths)
    both = 'data = {train = "a", shuffle = false}'
    assert submit.with_paths([both], paths) == (both, *paths)
    with pytest.raises(InvalidInput):
        submit.with_paths(["train.steps 3"], paths)


def test_the_fingerprint_tells_recipes_apart() -> None:
    one = submit.fingerprint(recipe(), ())
    assert one == submit.fingerprint(recipe(), ())
    assert one != submit.fingerprint(recipe("train.steps = 3"), ())
    assert one != submit.fingerprint(recipe(), ("trainer.logger=[file]",))


def test_ids_are_words_of_their_own() -> None:
    ids = {submit.new_id("my task/é", "cpu") for _ in range(20)}
    assert len(ids) == 20
    assert all(name.startswith("omnirl-my-task-") and name.isascii() and " " not in name for name in ids)
