"""One notation for several, what boxes hold, and time that grows with the text alone."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.reward import letters
from omnirl.reward.notation import boxes, delimited, only_box, plain


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\\boxed{30^\\circ}", "\\boxed{30}"),
        ("30^{\\circ}", "30"),
        ("30\\circ", "30"),
        ("30 \u00b0 C", "30"),
        ("30\u00b0Cat", "30Cat"),
        ("f\\circ g", "f\\circ g"),
        ("\\angle A=30\\degree", "\\angle A=30"),
        ("5\\%", "5"),
        ("\\% of", "\\% of"),
        ("\\boxed  {5}", "\\boxed{5}"),
        ("\uff0d\uff11\uff0f\uff12", "-1/2"),
        ("\u22125", "-5"),
        ("5\u00b2", "5\u00b2"),
    ],
)
def test_plain(text, expected):
    assert plain(text, "unit") == expected


def test_a_percentage_as_a_fraction():
    assert plain("12.5\\% and 3%", "fraction") == "\\frac{12.5}{100} and \\frac{3}{100}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\\boxed{1} \\boxed{\\frac{1}{2}}", ["1", "\\frac{1}{2}"]),
        ("\\boxed{\\boxed{1}}", ["\\boxed{1}"]),
        ("\\boxed{\\{1\\}}", ["\\{1\\}"]),
        ("\\boxed{1", []),
        ("none", []),
        ("\\boxed{}", [""]),
    ],
)
def test_boxes(text, expected):
    assert boxes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so \\boxed{5}.", "\\boxed{5}"),
        ("so \\boxed{5} by {a}", "\\boxed{5} by {a}"),
        ("$x$ so \\boxed{5}", None),
        ("\\boxed{3} or \\boxed{5}", None),
        ("The final answer is 7, \\boxed{5}", None),
        ("see [1] \\boxed{5}", None),
        ("\\boxed{}", None),
        ("} \\boxed{5", None),
        ("5", None),
    ],
)
def test_the_only_box(text, expected):
    assert only_box(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12\\sqrt{7}", "$12\\sqrt{7}$"),
        ("3\\text{ cm}", "$3\\text{ cm}$"),
        ("$12\\sqrt{7}$", "$12\\sqrt{7}$"),
        ("it is 12\\sqrt{7}", "it is 12\\sqrt{7}"),
        ("\\boxed{5}", "\\boxed{5}"),
        ("12", "12"),
        ("\\pi" * 100, "\\pi" * 100),
    ],
)
def test_bare_latex_gets_its_dollars(text, expected):
    assert delimited(text) == expected


def test_hostile_texts_take_linear_time():
    started = time.perf_counter()
    for text in (
        *("1" + " " * 2_000_000, "1 " * 500_000, "\\boxed{" * 200_000, "\\boxed" + "\t" * 1_000_000, "\\" * 1_000_000),
        *("1%" * 500_000, "1" * 1_000_000 + "%", "{" * 1_000_000, "A " * 500_000, "30^{\\circ" * 100_000),
    ):
        plain(text, "unit")
        plain(text, "fraction")
        boxes(text)
        only_box(text)
        letters.said(text)
        letters.last(text)
    assert time.perf_counter() - started < 10


@given(st.text())
def test_no_text_raises(text):
    plain(text, "unit")
    boxes(text)
    delimited(text)
    found = letters.said(text)
    assert found is None or (found == "".join(sorted(set(found))) and set(found) <= set("ABCDE"))
