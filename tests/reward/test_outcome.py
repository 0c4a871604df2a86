"""The same keys for every row, and faults of the scorer that are never taken for wrong answers."""

from __future__ import annotations

import pytest

from omnirl.errors import ChildFailed
from omnirl.reward import outcome, verify
from omnirl.reward.outcome import Watch
from omnirl.reward.score import compute_score


@pytest.mark.parametrize("name", outcome.OUTCOMES)
def test_a_row_tells_its_outcome_as_numbers(name):
    row = outcome.row(0.5, 0.25, 1.0, name)
    assert tuple(row) == outcome.KEYS
    assert all(isinstance(value, float) for value in row.values())
    assert outcome.named(row) == name
    assert sum(row[f"outcome/{other}"] for other in outcome.OUTCOMES) == 1


def test_shares_of_many_rows():
    rows = [
        outcome.row(1, 1, 1, "scored"),
        outcome.row(0, 0, 0, "timeout"),
        outcome.row(0, 0, 0, "wrong"),
        {"score": 1},
    ]
    found = outcome.shares(rows)
    assert found["reward/outcome/timeout"] == found["reward/outcome/scored"] == pytest.approx(1 / 3)
    assert found["reward/outcome/scorer_error"] == 0
    assert outcome.shares([{"score": 1.0}]) == {}


def test_a_fault_among_the_first_is_too_many_and_stays_so():
    watch = Watch(0.01)
    for _ in range(20):
        watch.saw("scored", "", "r", "1")
    with pytest.raises(ChildFailed, match=r"failed on 1 of 21 responses.*no parser on 'bad \\ud83d' for '72'"):
        watch.saw("scorer_error", "no parser", "bad \ud83d", "72")
    with pytest.raises(ChildFailed, match="failed on 1 of 22"):
        watch.saw("scored", "", "r", "1")


def test_few_faults_among_many_are_counted_and_three_are_shown():
    watch = Watch(0.01)
    for _ in range(1000):
        watch.saw("timeout", "", "r", "1")
    for number in range(10):
        watch.saw("scorer_error", f"fault {number}", "x" * 1000, "1" * 1000)
    with pytest.raises(ChildFailed) as caught:
        watch.saw("scorer_error", "fault 10", "r", "1")
    assert "failed on 11 of 1011" in caught.value.message
    assert all(f"fault {number} " in caught.value.message for number in range(3))
    assert "fault 3" not in caught.value.message
    assert len(caught.value.message) < 2000


def test_faults_may_be_allowed_or_forbidden_altogether():
    for _ in range(5):
        Watch(1).saw("scorer_error", "", "", "")
    with pytest.raises(ChildFailed):
        Watch(0).saw("scorer_error", "", "", "")


def test_a_scorer_that_ends_its_workers_stops_what_calls_it(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, math_verify.parser as p\n"
        "read = p.latex2sympy\n"
        "p.latex2sympy = lambda text, *a, **k: os._exit(9) if '77' in text else read(text, *a, **k)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    settings = {"scorer": "mmk12", "workers": 1, "timeout_s": 19.5, "max_scorer_error_share": 0.5}
    try:
        assert compute_score("d", "\\boxed{\\frac{2}{4}}", "0.5", **settings)["outcome/scored"] == 1.0
        assert compute_score("d", "\\boxed{77x}", "5", **settings)["outcome/scorer_error"] == 1.0
        with pytest.raises(ChildFailed, match=r"2 of 3 responses.*two workers in a row ended over it \(exit code 9\)"):
            compute_score("d", "\\boxed{77y}", "5", **settings)
    finally:
        verify.shared(1, 19.5).pool.close()
