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


OPTIONS = {"options": ["A. a cat", "B. a dog", "C. a cow"]}


@pytest.mark.parametrize(
    ("response", "label", "default", "strict", "lenient"),
    [
        # What the README's table shows.
        ("<answer>B</answer>", "B", 1, 1, 1),
        ("B", "B", 0, 0, 0),
        ("<answer>b</answer>", "B", 0, 0, 1),
        ("<answer>B</answer>", "b", 0, 0, 1),
        ("<answer>\uff22</answer>", "B", 0, 0, 1),
        ("<answer>(B).</answer>", "B", 0, 0, 1),
        ("<answer>\\boxed{B}</answer>", "B", 0, 0, 1),
        ("<answer>**B**</answer>", "B", 0, 0, 1),
        ("<answer>B. a dog</answer>", "B", 0, 0, 1),
        ("<answer>A Dog</answer>", "B", 0, 0, 1),
        ("<answer>B. a cat</answer>", "B", 0, 0, 0),
        ("<answer>a horse</answer>", "B", 0, 0, 0),
        ("<answer>B, D</answer>", "BD", 0, 0, 1),
        ("<answer>D\u3001B</answer>", "BD", 0, 0, 1),
        ("<answer>A or B</answer>", "B", 0, 0, 0),
        ("<think>use <answer>X</answer></think><answer>B</answer>", "B", 0, 1, 0),
        ("<think>maybe <answer>B</answer></think><answer>A</answer>", "B", 1, 0, 1),
        ("<think>maybe <answer>B</answer>", "B", 1, 0, 1),
        ("so</think><answer>B</answer>", "B", 1, 1, 1),
        ("<answer>B</answer><answer>B</answer>", "B", 1, 1, 1),
        ("<answer>B</answer><answer>A</answer>", "B", 1, 0, 1),
        ("<answer>A</answer><answer>B</answer><answer>C</answer><answer>D</answer>", "D", 0, 0, 0),
        ("<answer></answer><answer>B</answer>", "B", 0, 0, 0),
        ("<answer>B</answer><answer></answer>", "B", 1, 0, 1),
        ("<answer>B</answer><answer>A", "B", 1, 1, 1),
        ("<answer>" + "B" * 3000 + "</answer>", "B", 0, 0, 0),
    ],
)
def test_the_three_modes(response, label, default, strict, lenient):
    truth = f"<answer>{label}</answer>"
    assert [choice.grade(response, truth, OPTIONS, mode) for mode in ("default", "strict", "lenient")] == [
        *(default, strict, lenient)
    ]


@pytest.mark.parametrize("mode", ["default", "strict", "lenient"])
def test_no_mode_takes_a_label_without_an_answer(mode):
    for response in ("", "no tag", "<answer></answer>"):
        for label in ("B", "", None, "<answer> </answer>"):
            with pytest.raises(InvalidInput, match="has no answer"):
                choice.grade(response, label, {}, mode)


@pytest.mark.parametrize("mode", ["strict", "lenient"])
def test_every_mode_takes_linear_time(mode):
    started = time.perf_counter()
    for text in (
        *("<answer>" * 200_000, "<answer></answer>" * 100_000, "<think>" * 200_000, "</think>" * 200_000),
        *("<answer>" + "(" * 1_000_000 + "</answer>", "<answer>" + "\\boxed{" * 200_000 + "</answer>"),
    ):
        assert choice.grade(text, LABEL, OPTIONS, mode) == 0.0
    assert time.perf_counter() - started < 5


@given(st.text(max_size=60), st.sampled_from(["default", "strict", "lenient"]), st.text(alphabet=" \n\t", max_size=5))
def test_no_text_raises_and_white_space_at_the_end_changes_nothing(text, mode, space):
    for response in (text, f"<answer>{text}</answer>", f"<answer>B</answer>{text}"):
        found = choice.grade(response, LABEL, OPTIONS, mode)
        assert (
            found
            == choice.grade(response, LABEL, OPTIONS, mode)
            == choice.grade(response + space, LABEL, OPTIONS, mode)
        )
