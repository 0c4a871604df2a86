from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

TASK = """\
extends = ["common/thinker.toml", "algo/gspo.toml", "tune/full.toml"]

[task]
summary = "a test"
modalities = ["text"]

[data]
source = "toy"
train = ["train.parquet"]
val = ["val.parquet"]
max_prompt_tokens = 64
max_response_tokens = 8

[batch]
prompts = 16
mini_prompts = 8
group_size = 4

[reward]
scorer = "choice"

[train]
save_every = 10
validate_before = false

[on.cpu]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty recipe folder at the front of the search path, which goes on with the shipped recipes."""
    home = tmp_path / "mine"
    home.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMNIRL_RECIPES", str(home))
    return home


@pytest.fixture
def write(folder: Path) -> Callable[..., Path]:
    """Writes a file below the recipe folder."""

    def _write(name: str, text: str | bytes) -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return _write


@pytest.fixture
def task(write: Callable[..., Path]) -> Callable[..., Path]:
    """Writes a whole, right task named `mine`, with lines added to its end (inside `[on.cpu]`)."""

    def _task(added: str = "") -> Path:
        return write("mine.toml", TASK + added)

    return _task
