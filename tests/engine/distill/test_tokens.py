"""Tokenizers of student and teacher are compared by what each id means, not by sizes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omnirl.engine.distill.tokens import difference, require_same, token_map
from omnirl.errors import InvalidInput


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Callable[[Callable[[dict[str, Any]], None]], Path]:
    """The checkpoint's tokenizer with a change to its tokenizer.json."""

    def make(change: Callable[[dict[str, Any]], None]) -> Path:
        folder = tmp_path / "teacher"
        shutil.copytree(checkpoint, folder)
        path = folder / "tokenizer.json"
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))
        return folder

    return make


def test_the_same_tokens(checkpoint: Path, copy: Any) -> None:
    """Merges may differ: they decide how a text is cut, not what an id means."""

    def without_merges(document: dict[str, Any]) -> None:
        document["model"]["merges"] = document["model"]["merges"][:-1]

    require_same(checkpoint, copy(without_merges))


def test_sizes_of_embeddings_do_not_count(checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "teacher"
    shutil.copytree(checkpoint, folder)
    config = json.loads((folder / "config.json").read_text())
    config["thinker_config"]["text_config"]["vocab_size"] += 64
    (folder / "config.json").write_text(json.dumps(config))
    require_same(checkpoint, folder)


def test_two_ids_changed_places(checkpoint: Path, copy: Any) -> None:
    def change(document: dict[str, Any]) -> None:
        vocabulary = document["model"]["vocab"]
        vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]

    with pytest.raises(InvalidInput, match=r'do not share a tokenizer: 2 have other ids, such as "(a|b)": \d+ and \d+'):
        require_same(checkpoint, copy(change))


def test_a_token_more(checkpoint: Path, copy: Any) -> None:
    def change(document: dict[str, Any]) -> None:
        last = max(token["id"] for token in document["added_tokens"])
        extra = {**document["added_tokens"][0], "id": last + 1, "content": "<|more|>"}
        document["added_tokens"].append(extra)

    with pytest.raises(InvalidInput, match=r"1 tokens are the teacher's alone, such as \"<\|more\|>\""):
        require_same(checkpoint, copy(change))


def test_words_on_every_difference() -> None:
    assert difference({"a": 0, "b": 1}, {"b": 1, "a": 0}) == ""
    said = difference({"a": 0, "ä": 1, "c": 2}, {"a": 1, "d": 0})
    assert said == (
        '2 tokens are the student\'s alone, such as "ä", "c"; 1 tokens are the teacher\'s alone, such as "d"; '
        '1 have other ids, such as "a": 0 and 1'
    )


def test_no_tokenizer(checkpoint: Path, tmp_path: Path) -> None:
    assert len(token_map(checkpoint)) > 100
    with pytest.raises(InvalidInput, match="does not load"):
        require_same(checkpoint, tmp_path)
