"""The choice rule: first payload, exact, and no label without an answer."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.errors import InvalidInput
from omnirl.reward import choice

LABEL = "<answer>B</answer>"


@pytest.mark.parametrize(
    ("response", "score"),
    [
        (LABEL, 1.0),
        ("<think>so it is B</think> <answer>\n B\t</answer> and more", 1.0),
        ("<answer>b</answer>", 0.0),
        ("<answer>B.</answer>", 0.0),
        ("<answer>A</answer><answer>B</answer>", 0.0),
        ("<answer>B</answer><answer>A</answer>", 1.0),
        ("<answer>A or B</answer>", 0.0),
        ("<answer></answer>", 0.0),
        ("<answer>  </answer><answer>B</answer>", 0.0),
        ("<answer><answer>B</answer>", 0.0),
        ("<answer>B", 0.0),
        ("</answer>B<answer>", 0.0),
        ("B", 0.0),
        ("", 0.0),
        ("<ANSWER>B</ANSWER>", 0.0),
        ("<answer>B\ud83d</answer>", 0.0),
        ("<answer>B\0</answer>", 0.0),
        ("<answer>\uff22</answer>", 0.0),
    ],
)
def test_the_first_payload_decides(response, score):
    assert choice.grade(response, LABEL) == score


@pytest.mark.parametrize(
    "label", ["B", "", "<answer></answer>", "<answer> \n</answer>", "<answer>B", None, 1, [LABEL], b"x"]
)
@pytest.mark.parametrize("response", ["", "no tag", "<answer></answer>", "B", LABEL])
def test_a_label_without_an_answer_raises_whatever_the_response(label, response):
    with pytest.raises(InvalidInput, match="has no answer"):
        choice.grade(response, label)


def test_hostile_length_takes_linear_time():
    started = time.perf_counter()
    for text in ("<answer>" * 500_000, "</answer>" * 500_000, "<" * 4_000_000, "<answer>" + " " * 4_000_000):
        assert choice.grade(text, LABEL) == 0.0
    assert time.perf_counter() - started < 2


@given(st.text())
def test_any_payload_matches_only_itself(text):
    stripped = text.strip()
    label = f"<answer>{text}</answer>"
    if not stripped or "<answer>" in text or "</answer>" in text:
        return
    assert choice.grade(f"hm {label}", label) == 1.0
    assert choice.grade(f"<answer>{stripped}!</answer>", label) == 0.0
