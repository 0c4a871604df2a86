"""Checking files against a recipe: its scorer, its media, its steps and its budget of tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from omnirl.data import store
from omnirl.data.checks import check as checking
from omnirl.data.checks.lengths import Length
from omnirl.data.checks.steps import steps
from omnirl.data.sample import Image, Sample

from .checked import PNG, Rows, check, found, numbered, recipe, row


def test_a_recipes_other_file_is_looked_at_too(file: Rows) -> None:
    train, val = file(*numbered(4)), file(row("question 1"), row("else"), name="val.parquet")
    files = (f'data.train = "{train}"', f'data.val = "{val}"', "data.probe = []")
    report = check([str(val)], recipe=recipe(*files))
    assert report.as_dict()["rows"] == 2
    assert report.duplicates == {"within_files": 0, "across_files": 1, "other_label": 0}


def test_steps_and_what_fills_none(file: Rows) -> None:
    train = file(*numbered(21))
    sets = (f'data.train = "{train}"', "batch.prompts = 8", "train.epochs = 3")
    report = check([str(train)], recipe=recipe(*sets, "train.steps = 5"))
    assert report.steps == {
        "files": [str(train)],
        "rows": 21,
        "rows_too_long": 0,
        "estimated": False,
        "prompts_per_step": 8,
        "steps_per_epoch": 2,
        "rows_left_out_by_drop_last": 5,
        "epochs": 3,
        "steps": 5,
    }
    assert report.errors == 0


def test_a_data_set_smaller_than_a_batch(file: Rows) -> None:
    report = check([str(file(*numbered(5)))], recipe=recipe("batch.prompts = 128", "batch.mini_prompts = 128"))
    (problem,) = [one for one in report.findings.listed() if one.severity == "error"]
    assert problem.code == "dataset-smaller-than-batch"
    assert "5 rows / 128 prompts a step = 0 steps" in problem.message


def test_media_beyond_what_the_task_declares(file: Rows) -> None:
    path = file(*(row(f"<image>{n}", images=[{"bytes": PNG, "image": None}]) for n in range(40)))
    report = check([str(path)], recipe=recipe('task.modalities = ["text"]', "data.soundtrack = false"))
    assert ("modality-undeclared", 0) in found(report)
    assert report.findings.counts["modality-undeclared"] == 1


def test_a_model_that_is_not_there_is_a_warning(toy_data: Path, tmp_path: Path) -> None:
    report = check([str(toy_data / "train.parquet")], model=str(tmp_path / "none"), count_tokens=True)
    (problem,) = [one for one in report.findings.listed() if one.code != "duplicate-row"]
    assert (problem.code, problem.severity, report.lengths) == ("length-not-checked", "warning", None)


def test_lengths_against_the_budget(toy_data: Path, sample: Callable[..., Sample], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    train, other = toy_data / "train.parquet", tmp_path / "other.parquet"
    pictures = (Image(data=PNG), Image(path=Path("/gone.png")))
    store.write_parquet(
        other,
        [
            *(sample(n, prompt="<image>", images=(one,)) for n, one in enumerate(pictures)),
            sample(2, prompt="<image>no picture"),
            sample(3),
        ],
    )
    budget = 35
    sets = (f'data.train = "{train}"', f"data.max_prompt_tokens = {budget}", "batch.prompts = 8")
    known = recipe(*sets, "data.filter_overlong_prompts = false")
    report = check([str(train), str(other)], recipe=known, count_tokens=True)
    lengths, steps = report.lengths, report.steps
    assert lengths is not None and steps is not None
    assert (lengths["rows"], lengths["budget"], lengths["model"]) == (33, budget, "tiny")
    assert 0 < lengths["over"] < 32
    assert lengths["p50"] <= lengths["p95"] <= lengths["max"]
    assert lengths["longest"][0]["tokens"] == lengths["max"] > budget
    assert report.findings.counts["prompt-too-long"] == lengths["over"]
    # what is wrong with a row anyway is not told twice
    told = {(code, row) for code, row in found(report) if code in ("length-unknown", "media-missing", "placeholders")}
    assert told == {("length-unknown", 0), ("media-missing", 1), ("placeholders", 2)}
    assert (steps["rows"], steps["rows_too_long"]) == (32, 0)


@pytest.mark.parametrize(
    ("sets", "media", "code"),
    [
        (("data.filter_overlong_prompts = true",), 90, "prompt-left-out"),
        (("data.filter_overlong_prompts = false",), 0, "prompt-too-long"),
        (("data.filter_overlong_prompts = false", 'data.truncation = "left"'), 90, "prompt-too-long"),
        (("data.filter_overlong_prompts = false", 'data.truncation = "left"'), 0, "prompt-truncated"),
    ],
)
def test_what_becomes_of_a_long_prompt(file: Rows, sets: tuple[str, ...], media: int, code: str) -> None:
    known = recipe(*sets, "batch.prompts = 8")
    report = check([str(file(*numbered(17)))], recipe=known)
    for number, more in enumerate((0, 0, 1)):
        checking.judge_length(report, report.targets[0], known, Length(0, number, 128 - media + more, media))
    assert found(report) == [(code, 2)]
    counted = steps(report, known)
    assert counted is not None
    assert counted["rows_too_long"] == (code == "prompt-left-out")
    assert counted["rows_left_out_by_drop_last"] == 1 - counted["rows_too_long"]


def test_a_recipe_that_leaves_every_row_out(file: Rows) -> None:
    known = recipe("data.filter_overlong_prompts = true", "batch.prompts = 8", "data.val = 'val.parquet'")
    report = check([str(file(*numbered(8)))], recipe=known)
    for number in range(8):
        checking.judge_length(report, report.targets[0], known, Length(0, number, 500, 0))
    steps(report, known)
    assert ("dataset-smaller-than-batch", None) in found(report)


def test_with_a_recipe_its_scorer_counts(file: Rows) -> None:
    path = str(file(row(label="12", data_source="openai/gsm8k")))
    assert found(check([path])) == []
    report = check([path], recipe=recipe("batch.prompts = 1", "batch.mini_prompts = 1"))
    assert ("label-unusable", 0) in found(report)
    assert not report.guessed
