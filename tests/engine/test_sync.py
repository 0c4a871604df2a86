"""The sync proof's verdicts."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.engine.proof import modality
from omnirl.engine.sync import Agreement, OutOfSync, Verdict, compare, document, judge, table

LIMITS = {"least_pearson": 0.99, "most_difference": 0.06}
GOOD = [-0.1, -2.0, -0.7, -3.0, -0.02]


def found(rollout: list[float], trainer: list[float], weights: str = "sent") -> Agreement:
    return compare("image", weights, rollout, trainer, **LIMITS)


@pytest.mark.parametrize(
    ("rollout", "trainer", "verdict"),
    [
        (GOOD, GOOD, Verdict.OK),
        (GOOD, [value - 0.01 for value in GOOD], Verdict.OK),
        ([], [], Verdict.MISSING),
        ([-1.0], [-1.0], Verdict.MISSING),
        ([math.nan, *GOOD[1:]], GOOD, Verdict.NAN),
        (GOOD, [-math.inf, *GOOD[1:]], Verdict.NAN),
        ([-1.0] * 5, GOOD, Verdict.CONSTANT),
        (GOOD, [0.0] * 5, Verdict.CONSTANT),
        (GOOD, GOOD[::-1], Verdict.LOW),
        (GOOD, [value * 1.3 for value in GOOD], Verdict.LOW),
    ],
)
def test_verdicts(rollout: list[float], trainer: list[float], verdict: Verdict) -> None:
    assert found(rollout, trainer).verdict is verdict


def test_other_tokens_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="3 log-probabilities"):
        found([-1.0, -2.0, -3.0], [-1.0, -2.0])


@given(st.lists(st.floats(-20, 0), min_size=2, max_size=50))
def test_what_is_equal_agrees_or_is_constant(values: list[float]) -> None:
    result = found(values, values)
    assert result.verdict in (Verdict.OK, Verdict.CONSTANT)
    assert result.mean_difference == 0
    assert result.pearson is None or result.pearson == pytest.approx(1)


def test_only_what_disagrees_stops_a_run() -> None:
    judge([found(GOOD, GOOD)])
    with pytest.raises(OutOfSync, match="compared nothing"):
        judge([])
    with pytest.raises(OutOfSync, match="image/changed: low") as raised:
        judge([found(GOOD, GOOD), found(GOOD, GOOD[::-1], "changed")])
    assert "stale caches" in str(raised.value.hint)
    with pytest.raises(OutOfSync, match="image/sent: nan") as raised:
        judge([found([math.nan] * 5, GOOD)])
    assert "sync.json" in str(raised.value.hint)


def test_the_table_and_the_document() -> None:
    rows = [found(GOOD, GOOD), found([], [])]
    lines = table(rows).splitlines()
    assert lines[1].split() == ["image", "sent", "5", "1.00000", "0.0000", "ok"]
    assert lines[2].split() == ["image", "sent", "0", "-", "-", "missing"]
    written = json.loads(json.dumps(document(rows, LIMITS)))
    assert [row["verdict"] for row in written["agreements"]] == ["ok", "missing"]
    assert written["limits"] == LIMITS


@pytest.mark.parametrize(
    ("row", "name"),
    [({}, "text"), ({"images": [1]}, "image"), ({"images": [1], "audios": [2], "videos": []}, "image+audio")],
)
def test_modalities(row: dict[str, list[int]], name: str) -> None:
    assert modality(row) == name
