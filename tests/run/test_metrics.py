"""Metrics as verl writes them, and as crashes leave them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from omnirl.run import metrics
from omnirl.run.metrics import Step, Tail


def line(step: int, **data: object) -> str:
    return json.dumps({"step": step, "data": {name.replace("__", "/"): value for name, value in data.items()}}) + "\n"


def test_attempts_are_merged_by_step_and_the_later_value_counts(tmp_path: Path) -> None:
    one, two = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    one.write_text(line(1, actor__loss=1.0) + line(2, actor__loss=2.0) + line(3, actor__loss=3.0))
    # A resumed attempt validates the step it starts from, then repeats what was lost.
    two.write_text(line(2, other=9.0) + line(3, actor__loss=30.0) + line(4, actor__loss=40.0))
    steps = metrics.read([one, two, tmp_path / "absent.jsonl"])
    assert [step.step for step in steps] == [1, 2, 3, 4]
    assert [step.values["actor/loss"] for step in steps] == [1.0, 2.0, 30.0, 40.0]
    assert steps[1].values["other"] == 9.0
    assert metrics.last_trained(steps) == 4


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (0.5, 0.5),
        (3, 3.0),
        (True, 1.0),
        ("0.99", 0.99),
        ("np.float64(0.99)", 0.99),
        ("nan", math.nan),
        ("-inf", -math.inf),
        (float("nan"), math.nan),
        (float("inf"), math.inf),
        ("text", None),
        (None, None),
        ([1], None),
    ],
)
def test_numbers_in_every_spelling(written: object, read: float | None) -> None:
    step = metrics.parse(json.dumps({"step": 1, "data": {"x": written}}).encode())
    assert step is not None
    found = step.values.get("x")
    assert found == read or (read is not None and math.isnan(read) and found is not None and math.isnan(found))


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"null", b'{"step": 1}', b'{"step": "x", "data": {}}', b"\xff\xfe", b"[" * 100_000]
)
def test_what_is_no_line_of_the_logger_is_left_out(raw: bytes) -> None:
    assert metrics.parse(raw) is None


def test_a_half_written_last_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    assert tail.look() == []
    whole = line(2, actor__loss=2.0)
    path.write_text(line(1, actor__loss=1.0) + whole[:10])
    assert [step.step for step in tail.look()] == [1]
    assert tail.look() == []
    path.write_text(line(1, actor__loss=1.0) + whole + "rubbish\n")
    assert [step.step for step in tail.look()] == [2]
    assert tail.unreadable == 1


def test_the_last_line_of_a_dead_attempt_counts_only_if_complete(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(line(1, actor__loss=1.0) + line(2, actor__loss=2.0).rstrip("\n"))
    assert [step.step for step in metrics.read([path])] == [1, 2]
    path.write_text(line(1, actor__loss=1.0) + line(2, actor__loss=2.0)[:-5])
    assert [step.step for step in metrics.read([path])] == [1]


def test_accuracy_takes_the_best_named_value_of_each_source() -> None:
    step = Step(
        3,
        {
            "val-core/toy/image/reward/mean@1": 0.1,
            "val-core/toy/image/acc/mean@1": 0.9,
            "val-aux/toy/image/reward/mean@1": 0.2,
            "val-core/toy/video@shuffled_audio/accuracy/mean@1": 0.5,
            "val-core/openai/gsm8k/reward/mean@1": 0.3,
            "val-core/toy/image/acc/best@4/mean": 1.0,
            "val-aux/num_turns/mean": 2.0,
        },
    )
    assert step.accuracy() == {"toy/image": 0.9, "toy/video@shuffled_audio": 0.5, "openai/gsm8k": 0.3}


def test_a_validation_alone_is_no_training_step() -> None:
    assert not Step(5, {"val-core/toy/image/acc/mean@1": 0.5, "timing_s/testing": 1.0}).trained
    assert Step(5, {"critic/score/mean": 0.5}).trained


def test_minimum_does_not_hide_a_nan() -> None:
    assert metrics.minimum([]) is None
    assert metrics.minimum([None, 0.5, 0.25]) == 0.25
    assert math.isnan(metrics.minimum([1.0, math.nan]) or 0.0)
