"""The sync proof's verdicts."""

from __future__ import annotations

import json
import math

import pyarrow as pa
import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from omnirl.engine.proof import questions
from omnirl.engine.sync import MOST_ROUNDS, Agreement, Verdict, compare, document, further_questions, judge, table

LIMITS = {"least_pearson": 0.99, "most_difference": 0.06, "tokens": 5}
GOOD = [-0.1, -2.0, -0.7, -3.0, -0.02]


def found(rollout: list[float], trainer: list[float], weights: str = "sent") -> Agreement:
    return compare("image", weights, rollout, trainer, **LIMITS)


@pytest.mark.parametrize(
    ("rollout", "trainer", "verdict"),
    [
        (GOOD, GOOD, Verdict.OK),
        (GOOD, [value - 0.01 for value in GOOD], Verdict.OK),
        ([], [], Verdict.MISSING),
        ([-1.0], [-1.0], Verdict.FEW),
        (GOOD[1:], GOOD[1:], Verdict.FEW),
        ([-1.0] * 4, [-1.0] * 4, Verdict.FEW),
        ([math.nan], [-1.0], Verdict.NAN),
        ([math.nan, *GOOD[1:]], GOOD, Verdict.NAN),
        (GOOD, [-math.inf, *GOOD[1:]], Verdict.NAN),
        ([-math.inf] * 5, GOOD, Verdict.NAN),
        ([-1.0] * 5, GOOD, Verdict.CONSTANT),
        (GOOD, [0.0] * 5, Verdict.CONSTANT),
        (GOOD, GOOD[::-1], Verdict.LOW),
        (GOOD, [value * 1.3 for value in GOOD], Verdict.LOW),
        (GOOD, [value - 0.07 for value in GOOD], Verdict.LOW),
    ],
)
def test_verdicts(rollout: list[float], trainer: list[float], verdict: Verdict) -> None:
    assert found(rollout, trainer).verdict is verdict


def test_other_tokens_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="3 log-probabilities"):
        found([-1.0, -2.0, -3.0], [-1.0, -2.0])


def test_what_is_too_little_is_shown_all_the_same() -> None:
    few = found(GOOD[1:], [value - 0.5 for value in GOOD[1:]])
    assert (few.tokens, few.mean_difference) == (4, pytest.approx(0.5))
    assert few.pearson == pytest.approx(1)


@given(st.lists(st.floats(-20, 0), min_size=5, max_size=50))
def test_what_is_equal_agrees_or_is_constant(values: list[float]) -> None:
    result = found(values, values)
    assert result.verdict in (Verdict.OK, Verdict.CONSTANT)
    assert result.mean_difference == 0
    assert result.pearson is None or result.pearson == pytest.approx(1)


def test_only_what_disagrees_stops_a_run() -> None:
    assert judge([found(GOOD, GOOD)]) is None
    assert "compared nothing" in str(judge([]))
    late = judge([found(GOOD, GOOD), found(GOOD, GOOD[::-1], "changed")])
    assert late is not None
    assert "rollout and trainer disagree (image/changed: low); the two sides" in str(late)
    assert "stale caches" in str(late.hint)
    early = judge([found(GOOD[1:], GOOD[1:]), found([math.nan] * 5, GOOD)])
    assert early is not None
    assert "disagree (image/sent: few, image/sent: nan); a log-probability is no number" in str(early)
    assert early.hint is None


def test_too_few_tokens_stop_a_run_and_say_what_to_set() -> None:
    few = judge([found(GOOD[1:], GOOD[1:], "changed")])
    assert few is not None
    assert "could not be compared (image/changed: few); too few tokens: raise `rollout.proof.prompts`" in str(few)
    assert few.hint is None


def test_the_table_and_the_document() -> None:
    rows = [found(GOOD, GOOD), found([], [])]
    lines = table(rows).splitlines()
    assert lines[1].split() == ["image", "sent", "5", "1.00000", "0.0000", "ok"]
    assert lines[2].split() == ["image", "sent", "0", "-", "-", "missing"]
    written = json.loads(json.dumps(document(rows, LIMITS)))
    assert [row["verdict"] for row in written["agreements"]] == ["ok", "missing"]
    assert written["limits"] == LIMITS
    assert "image/sent: missing" in written["message"]
    assert document([found(GOOD, GOOD)], LIMITS)["message"] is None


def asked(tokens_a_question: int, wanted: int) -> list[int]:
    """Questions of each round with two prompts."""
    rounds: list[int] = []
    while more := further_questions(sum(rounds) * tokens_a_question, sum(rounds), prompts=2, wanted=wanted):
        rounds.append(more)
    return rounds


@pytest.mark.parametrize(
    ("tokens_a_question", "rounds"), [(1000, [2]), (256, [2]), (255, [2, 2]), (12, [2, 41]), (2, [2, 126]), (0, [2])]
)
def test_questions_are_asked_until_there_are_tokens_to_judge(tokens_a_question: int, rounds: list[int]) -> None:
    assert asked(tokens_a_question, 512) == rounds
    assert sum(rounds) <= 2 * MOST_ROUNDS


ROWS = [{}, {"images": 1}, {"images": 2, "audios": 1}, {"videos": 1}, {"images": 1}, {}, {"images": 3}]
NUMBERS = {"text": [0, 5], "image": [1, 4], "image+audio": [2], "video": [3]}


@pytest.fixture
def rows() -> Dataset:
    columns = {name: [["x"] * row.get(name, 0) or None for row in ROWS] for name in ("images", "videos", "audios")}
    return Dataset(pa.table({**columns, "prompt": [str(number) for number in range(len(ROWS))]}))


def test_every_modality_of_the_data_is_asked(rows: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    assert questions(rows, 2) == NUMBERS
    monkeypatch.setattr("omnirl.engine.proof._SCANNED_AT_ONCE", 2)
    assert questions(rows, 2) == NUMBERS


def test_rows_that_were_left_out_do_not_count(rows: Dataset) -> None:
    kept = rows.filter(lambda row: row["prompt"] not in ("0", "3"))
    assert questions(kept, 2) == {"image": [0, 2], "image+audio": [1], "text": [3]}


def test_columns_that_are_not_there_or_empty(rows: Dataset) -> None:
    assert questions(rows.select_columns(["prompt"]), 3) == {"text": [0, 1, 2]}
    nothing = rows.select_columns(["prompt"]).add_column("images", pa.nulls(len(rows)))
    assert questions(nothing, 3) == {"text": [0, 1, 2]}
