"""`omnirl noise` as a process: its table, its document, and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Cli
from tests.noise.test_folder import NAMES, bf16, make


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    chance = np.random.default_rng(1)
    return make(tmp_path / "teacher", {name: bf16(chance.normal(size=(64, 50))) for name in NAMES}, files=2)


def test_a_student(cli: Cli, teacher: Path, tmp_path: Path) -> None:
    done = cli("noise", "teacher", "--ratio", "0.25", "--output", "student")
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split()[-3:] for line in done.stdout.splitlines()}
    assert rows["part"] == ["tensors", "weights", "noise"]
    assert rows["text"][:2] == ["2", "6400"]
    assert float(rows["text"][2]) == pytest.approx(0.25, rel=0.05)
    assert rows["towers"] == rows["speech"] == rows["embeddings"] == ["as", "it", "was"]
    assert (tmp_path / "student" / "noise.json").is_file()


def test_the_document(cli: Cli, teacher: Path, tmp_path: Path) -> None:
    done = cli("noise", "teacher", "--ratio", "0.1", "--seed", "3", "--towers", "--output", "student", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document == json.loads((tmp_path / "student" / "noise.json").read_text())
    assert document["schema"] == "omnirl/noise/1"
    assert (document["ratio"], document["seed"]) == (0.1, 3)
    assert {name for name, part in document["parts"].items() if part["noised"]} == {"text", "towers"}


def test_mistakes(cli: Cli, teacher: Path, tmp_path: Path) -> None:
    for words, code, said in (
        (("absent", "--output", "student"), 3, "there is no folder `absent`"),
        (("teacher", "--output", "teacher"), 2, "`teacher` exists"),
        (("teacher", "--output", "student", "--ratio", "0"), 2, "a ratio of 0"),
    ):
        done = cli("noise", *words)
        assert done.returncode == code
        assert said in done.stderr
        assert not (tmp_path / "student").exists()
