"""The MMK12 rule: letters, math-verify, the option's content, format; and every case that was decided on purpose."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnirl.errors import InvalidInput
from omnirl.reward import mmk12
from omnirl.reward.verify import Verifier

OPTIONS = ["A. 5.25", "B) $\\frac{1}{3}$", "C\u3001 a cat", "D. 12"]


def boxed(text: str) -> str:
    return f"<answer>\\boxed{{{text}}}</answer>"


def accuracy(verifier: Verifier, response: str, label: object, extra: dict | None = None, **how: str) -> float:
    return mmk12.judge(response, label, extra or {}, verifier, **how).accuracy


RIGHT = [
    # letters
    (boxed("B"), "B"),
    (boxed("b"), "B"),
    (boxed("B"), "b"),
    ("<answer>\uff22</answer>", "B"),
    ("<answer>B. 5.25</answer>", "B"),
    ("<answer>(B)</answer>", "B"),
    (boxed("\\text{B}"), "B"),
    (boxed("B. 12"), "B"),
    ("<answer>A is wrong, so \\boxed{B}</answer>", "B"),
    ("<answer>The answer is A because it barks</answer>", "A"),
    ("so it must be B", "B"),
    ("<answer>B\u3001D</answer>", "BD"),
    ("<answer>B, D</answer>", "BD"),
    ("<answer>D and B</answer>", "BD"),
    ("<answer>DB</answer>", "BD"),
    (boxed("BD"), "BD"),
    (boxed("BD"), "B\u3001D"),
    ("<answer>\\boxed{B} and \\boxed{D}</answer>", "BD"),
    # numbers and notation
    (boxed("72"), "72"),
    (boxed("72"), 72),
    (boxed("0.5"), "\\frac{1}{2}"),
    (boxed("\\frac{1}{2}"), "$\\frac{1}{2}$"),
    ("<answer>$\\frac{1}{2}$</answer>", "0.5"),
    ("<answer>\\boxed {2}</answer>", "2"),
    (boxed("\uff11\uff12"), "12"),
    (boxed("30\u00b0"), "30"),
    (boxed("30\u00ba"), "30"),
    (boxed("30\u02da"), "30"),
    (boxed("30^\\circ"), "30"),
    (boxed("30^{\\circ}"), "30"),
    (boxed("30"), "30^\\circ"),
    (boxed("x\u00b0"), "x"),
    (boxed("36.5\u2103"), "36.5"),
    (boxed("36.5^\\circ\\text{C}"), "36.5"),
    (boxed("50\\%"), "50"),
    (boxed("50"), "50\\%"),
    (boxed("50%"), "50\\%"),
    (boxed("9:05"), "09:05"),
    (boxed("x=2"), "2"),
    (boxed("2"), "x=2"),
    (boxed("2, 6, 10"), "6 or 2 or 10"),
    (boxed("\\frac{\\sqrt{2}}{2}"), "\\frac{1}{\\sqrt{2}}"),
    ("<answer>12\\sqrt{7}</answer>", "12\\sqrt{7}"),
    ("<answer>\\fbox{2}</answer>", "2"),
    ("I think 2", "2"),
    ("<answer>\\boxed{3}, \\boxed{5}</answer>", "3,5"),
]
WRONG = [
    (boxed("A"), "B"),
    ("<answer>A or B or C or D</answer>", "D"),
    ("<answer>None of A, B, C</answer>", "C"),
    ("<answer>Because A Dog barks</answer>", "A"),
    ("<answer>\\boxed{A}\\boxed{B}\\boxed{C}</answer>", "C"),
    ("<answer>A</answer>", "AB"),
    ("<answer>ABC</answer>", "AB"),
    (boxed("bad"), "B"),
    ("", "B"),
    (boxed("50\\%"), "0.5"),
    (boxed("0.5"), "50\\%"),
    (boxed("\\frac{1}{2^{99}}"), "\\frac{1}{2^{98}}"),
    (boxed("1/2004!"), "1/2006!"),
    (boxed("0.0000001"), "0.0000004"),
    ("<answer>\\boxed{3} or \\boxed{5}</answer>", "5"),
    (boxed("1"), "\\{1,2\\}"),
    (boxed("\\pm2"), "2"),
    (boxed("2"), "\\pm2"),
    (boxed("3x-y+13=0"), "3x+4y+14=0"),
    (boxed("1e3"), "1000"),
    (boxed("12:00"), "12"),
    (boxed("12:30"), "2:05"),
    (boxed("5\u00b2"), "52"),
    ("<answer>[unclosed</answer>", "5"),
    ("<answer>boxed{5}</answer>", "5"),
    ("<answer>\u7b54\u6848\u662f5</answer>", "5"),
    (boxed("5\ud83d"), "5"),
    (boxed("5\x00"), "5"),
    ("<think>72</think><answer>7</answer>", "72"),
    ("", "72"),
]


@pytest.mark.parametrize(("response", "label"), RIGHT)
def test_right(verifier, response, label):
    assert accuracy(verifier, response, label) == 1.0


@pytest.mark.parametrize(("response", "label"), WRONG, ids=range(len(WRONG)))
def test_wrong(verifier, response, label):
    assert accuracy(verifier, response, label) == 0.0


@pytest.mark.parametrize("options", [OPTIONS, json.dumps({"A": "5.25", "b": "\\frac{1}{3}", "C": "a cat", "D": "12"})])
def test_the_options_content_counts_half(verifier, options):
    extra = {"options": options}
    for response, label, expected in (
        *((boxed("5.25"), "A", 0.5), ("<answer>5.250</answer>", "A", 0.5), (boxed("12"), "A", 0.0)),
        *((boxed("\\frac{2}{6}"), "B", 0.5), (boxed("A"), "A", 1.0), (boxed("B"), "A", 0.0), (boxed("7"), "E", 0.0)),
    ):
        assert accuracy(verifier, response, label, extra) == expected, response
        if label != "B":
            assert accuracy(verifier, response, label, extra, mode="reference") == expected, response


def test_options_as_the_trainer_reads_them(verifier):
    numpy = pytest.importorskip("numpy")
    assert accuracy(verifier, boxed("5.25"), "A", {"options": numpy.array(OPTIONS, dtype=object)}) == 0.5
    assert accuracy(verifier, boxed("5.25"), "A", {"options": ["5.25", "7"]}) == 0.5
    for nothing in (None, "", [], {}):
        assert accuracy(verifier, boxed("5.25"), "A", {"options": nothing}) == 0.0


@pytest.mark.parametrize("options", ["not-json", "{", 7])
def test_options_that_are_none_raise(verifier, options):
    with pytest.raises(InvalidInput, match=r"extra_info\.options"):
        accuracy(verifier, "42", "A", {"options": options})


@pytest.mark.parametrize(
    ("response", "form"),
    [
        (boxed("B"), 1.0),
        ("<answer>B</answer>", 0.5),
        ("<answer>\\boxed{B}</answer><answer>x</answer>", 0.5),
        ("<answer>B</answer><answer>B</answer>", 0.0),
        ("<answer>\\boxed{B}</answer></answer>", 0.5),
        ("\\boxed{B}", 0.0),
        ("<answer>\\boxed{B}", 0.0),
        ("<think>\\boxed{B}</think><answer>B</answer>", 0.5),
        ("", 0.0),
    ],
)
def test_format(verifier, response, form):
    assert mmk12.judge(response, "B", {}, verifier).format == form


def test_a_perfect_response_scores_one_whatever_the_weight():
    for weight in (0, 0.3, 1, 7):
        assert mmk12.score(1, 1, weight) == pytest.approx(1)
        assert mmk12.score(0, 0, weight) == 0
    assert mmk12.score(1, 0.5, 0.3) == pytest.approx((1 + 0.15) / 1.3)
    assert mmk12.score(0, 1, 0.3) == pytest.approx(0.3 / 1.3)
    assert dict(mmk12.values(0.3))["right, neither"] == pytest.approx(1 / 1.3)


def test_a_percentage_can_be_a_fraction(verifier):
    for response, label, expected in (
        *((boxed("50\\%"), "0.5", 1.0), (boxed("0.5"), "50\\%", 1.0), (boxed("50%"), "50\\%", 1.0)),
        *((boxed("50\\%"), "50", 0.0), (boxed("50"), "50\\%", 0.0)),
    ):
        assert accuracy(verifier, response, label, percent="fraction") == expected


@pytest.mark.parametrize(
    ("response", "label", "expected"),
    [
        ("<answer>A or B or C or D</answer>", "D", 1.0),
        ("<answer>\\boxed{A}\\boxed{B}\\boxed{C}</answer>", "C", 1.0),
        (boxed("b"), "B", 0.0),
        (boxed("BD"), "DB", 1.0),
        ("<answer>B, D</answer>", "BD", 0.0),
        (boxed("\\frac{1}{2^{99}}"), "\\frac{1}{2^{98}}", 1.0),
        (boxed("60^\\circ"), "60", 1.0),
        (boxed("60\u00b0"), "60", 1.0),
        ("<answer>12\\sqrt{7}</answer>", "12\\sqrt{7}", 0.0),
    ],
)
def test_the_reference_mode_leaves_out_what_is_added(verifier, response, label, expected):
    assert accuracy(verifier, response, label, mode="reference") == expected


@pytest.mark.parametrize(
    "label",
    [None, "", " ", "$$", " $ ", True, float("nan"), float("inf"), 10**400, "5\0", "5\ud83d", "1" * 2001, ["5"], b"5"],
    ids=lambda label: type(label).__name__,
)
def test_a_label_that_is_none_raises_whatever_the_response(verifier, label):
    for response in ("", boxed("5")):
        with pytest.raises(InvalidInput, match="has no answer"):
            mmk12.judge(response, label, {}, verifier)


TEXT = st.text(
    st.sampled_from([*"0123456789ABCDExyz+-=^_{}()[]$%,.: \n", "\\", "\u00b0", "\ud83d", "\uff22"]), max_size=25
)


@settings(max_examples=40)
@given(TEXT, st.sampled_from(["B", "72", "x=2", "\\frac{1}{2}", "BD"]), st.text(" \n\t", max_size=4))
def test_no_text_raises_and_white_space_at_the_end_changes_nothing(verifier, text, label, space):
    for response in (text, boxed(text), f"<answer>{text}</answer>"):
        found = mmk12.judge(response, label, {"options": OPTIONS}, verifier)
        assert found == mmk12.judge(response, label, {"options": OPTIONS}, verifier)
        assert found.accuracy in (0.0, 0.5, 1.0)
        assert found.outcome == ("scored" if found.accuracy else "wrong")
        after = mmk12.judge(response + space, label, {"options": OPTIONS}, verifier)
        assert (after.accuracy, after.format) == (found.accuracy, found.format)
