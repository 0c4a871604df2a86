"""The live display's text, and the chart."""

from __future__ import annotations

import json
import math
from pathlib import Path

from omnirl.run.chart import chart
from omnirl.run.progress import Watch
from omnirl.run.record import Attempt


def test_phases_and_steps_are_told_once(tmp_path: Path) -> None:
    attempt = Attempt(1, tmp_path)
    now = [0.0]
    watch = Watch(attempt, steps_total=10, clock=lambda: now[0])
    assert watch.look() == []
    assert watch.lines() == ["starting  0:00"]
    (tmp_path / "phase.json").write_text(json.dumps({"phase": "model", "detail": "warm-up 3/10"}))
    now[0] = 61.0
    assert watch.look() == ["1:01  preparing the model: warm-up 3/10"]
    assert watch.look() == []
    data = {
        "critic/score/mean": 0.5,
        "training/rollout_actor_probs_pearson_corr": 0.99999,
        "perf/throughput": 1234.5,
        "timing_s/step": 20.0,
        "val-core/toy/image/acc/mean@1": 0.75,
        "val-core/toy/image@shuffled/acc/mean@1": 0.25,
    }
    attempt.metrics.write_text(json.dumps({"step": 4, "data": data}) + "\n")
    expected = "step 4/10  reward 0.500  Pearson 0.99999  1,234 tokens/s  held-out 0.750  ETA 2:00"
    assert watch.look() == [f"1:01  {expected}"]
    assert watch.look() == []
    assert watch.lines()[1] == expected
    assert watch.step == 4


def test_a_damaged_phase_file_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "phase.json").write_text('{"phase"')
    assert Watch(Attempt(1, tmp_path), steps_total=None).look() == []


def test_chart_places_the_ends_of_a_line() -> None:
    lines = chart({"up": [(0, 0.0), (10, 1.0)]}, width=11, height=3, low=0.0, high=1.0)
    assert lines[0].startswith("1.00 |") and lines[0].endswith("*")
    assert lines[2].startswith("0.00 |*")
    assert lines[-1].strip() == "* up"
    assert lines[-2].split() == ["0", "10"]


def test_chart_of_one_point_of_equal_points_and_of_nothing() -> None:
    assert any("*" in text for text in chart({"a": [(1, 0.5)]})[:10])
    assert any("*" in text for text in chart({"a": [(1, 1.0), (2, 1.0)]})[:10])
    assert chart({"a": [(1, math.nan)]}) == ["(nothing to plot)"]
