"""`omnirl data check` and `omnirl data show` as a person runs them: tables, JSON, exit codes."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from omnirl.data import store
from omnirl.data.sample import Image, Sample
from tests.conftest import Cli


def sample(index: int, **fields: Any) -> Sample:
    words: dict[str, Any] = {"data_source": "toy/text", "ability": "x", "split": "train", "question": "?"}
    return Sample(
        **{"prompt": f"question {index}", "ground_truth": "<answer>4</answer>", "index": index, **words, **fields}
    )


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return store.write_parquet(tmp_path / "good.parquet", [sample(n) for n in range(20)]).path


@pytest.fixture
def spoiled(tmp_path: Path) -> Path:
    rows = [
        sample(0),
        sample(1, ground_truth="no tag"),
        sample(2, ground_truth=""),
        sample(3, prompt="<image>", images=(Image(path=tmp_path / "\x1b[31mgone.png"),)),
        sample(4, prompt="<image> but no picture"),
        sample(5, ground_truth="no tag"),
    ]
    return store.write_parquet(tmp_path / "spoiled.parquet", rows).path


def test_a_sound_file(cli: Cli, good: Path) -> None:
    done = cli("data", "check", "good.parquet")
    assert (done.returncode, done.stdout) == (0, "20 rows checked: 0 errors, 0 warnings\n")
    assert "labels are checked for the scorer that `data_source` suggests: choice" in done.stderr


def test_a_spoiled_file(cli: Cli, spoiled: Path) -> None:
    done = cli("data", "check", "spoiled.parquet")
    assert done.returncode == 1
    heading, *lines = done.stdout.splitlines()
    assert heading.split() == ["severity", "code", "count", "first", "problem"]
    table = {line.split()[1]: line.split()[2:5] for line in lines if line.startswith("error")}
    assert table == {
        "label-unusable": ["2", "spoiled.parquet:row", "1"],
        "label-empty": ["1", "spoiled.parquet:row", "2"],
        "media-missing": ["1", "spoiled.parquet:row", "3"],
        "placeholders": ["1", "spoiled.parquet:row", "4"],
    }
    assert lines[-1] == "6 rows checked: 5 errors, 0 warnings"
    assert "\x1b" not in done.stdout
    assert "Traceback" not in done.stderr


def test_a_spoiled_file_as_json(cli: Cli, spoiled: Path) -> None:
    done = cli("data", "check", "spoiled.parquet", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 1
    assert (document["schema"], document["rows"], document["errors"]) == ("omnirl/data-check/1", 6, 5)
    assert document["scorers"] == {"guessed": True, "by_data_source": {"toy/text": "choice"}}
    problems = [(one["code"], one["severity"], one["row"], one["file"]) for one in document["problems"]]
    assert ("label-unusable", "error", 5, "spoiled.parquet") in problems
    assert all(one["message"] for one in document["problems"])
    assert (document["steps"], document["lengths"]) == (None, None)


def test_for_a_recipe(cli: Cli, good: Path) -> None:
    words = ("--task", "toy", "--on", "cpu", "--set", "batch.prompts = 8")
    done = cli("data", "check", "good.parquet", *words, "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 0
    assert (document["task"], document["hardware"]) == ("toy", "cpu")
    assert (document["steps"]["steps_per_epoch"], document["steps"]["rows_left_out_by_drop_last"]) == (2, 4)
    if find_spec("verl"):
        lengths = document["lengths"]
        assert (lengths["budget"], lengths["over"], lengths["rows"]) == (128, 0, 20)
        assert 0 < lengths["p50"] <= lengths["p95"] <= lengths["max"] < 128
    else:
        assert [one["code"] for one in document["problems"]] == ["length-not-checked"]


def test_too_few_rows_for_a_recipe(cli: Cli, good: Path) -> None:
    done = cli("data", "check", "good.parquet", "--task", "toy", "--on", "cpu", "--no-lengths")
    assert done.returncode == 1
    assert "dataset smaller than batch: 20 rows / 32 prompts a step = 0 steps" in done.stdout
    assert "steps: 20 training rows / 32 prompts a step = 0 an epoch, 20 rows left out; 0 steps in all" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "no file is given"),
        (("good.parquet", "--task", "toy"), 2, "`--on HARDWARE` is missing"),
        (("good.parquet", "--set", "a = 1"), 2, "`--set` needs a task"),
        (("god.parquet",), 3, "`good.parquet`"),
        (("good.parquet", "--sample", "0"), 2, "--sample"),
        (("good.parquet", "--task", "toi", "--on", "cpu"), 3, "toy"),
    ],
)
def test_mistakes(cli: Cli, good: Path, words: tuple[str, ...], code: int, said: str) -> None:
    done = cli("data", "check", *words)
    assert done.returncode == code
    assert said in done.stderr
    assert done.stdout == ""


def test_a_sample(cli: Cli, good: Path) -> None:
    done = cli("data", "check", "good.parquet", "--sample", "5")
    assert done.stdout.startswith("5 of 20 rows checked")
    assert "without --sample" in done.stderr


def test_show_a_row(cli: Cli, spoiled: Path) -> None:
    done = cli("data", "show", "spoiled.parquet", "--row", "3", "--rows", "2")
    assert done.returncode == 0
    assert done.stdout.splitlines()[:2] == ["row 3  toy/text", "  user: <image>"]
    assert "gone.png: missing" in done.stdout
    assert "\x1b" not in done.stdout and "\\x1b[31mgone.png" in done.stdout
    assert "row 4  toy/text" in done.stdout


def test_show_no_such_row(cli: Cli, good: Path) -> None:
    done = cli("data", "show", "good.parquet", "--row", "20")
    assert (done.returncode, done.stdout) == (2, "")
    assert "has no row 20: its rows are 0 to 19" in done.stderr


def test_show_as_json_and_as_a_page(cli: Cli, good: Path, tmp_path: Path) -> None:
    done = cli("data", "show", "good.parquet", "--row", "18", "--json", "--html", "out.html")
    document = json.loads(done.stdout)
    assert (document["schema"], [row["row"] for row in document["rows"]]) == ("omnirl/data-show/1", [18, 19])
    assert document["rows"][0]["ground_truth"] == "<answer>4</answer>"
    assert "2 rows in out.html" in done.stderr
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert "&lt;answer&gt;4&lt;/answer&gt;" in page and "question 19" in page
