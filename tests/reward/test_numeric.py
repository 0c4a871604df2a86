"""The number rule: where the final answer stands, what is a number, and exact comparison."""

from __future__ import annotations

import importlib.util
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.errors import InvalidInput
from omnirl.reward import numeric


@pytest.mark.parametrize(
    ("response", "label"),
    [
        ("so 40+32 = 72\n#### 72", "72"),
        ("####72", "72"),
        ("#### 72.", "72"),
        ("#### 72.0", "72"),
        ("#### $1,234.50", "1234.5"),
        ("#### 1,234,567 dollars", "1234567"),
        ("#### -5", "-5"),
        ("#### \u22125", "-5"),
        ("#### -$5", "-5"),
        ("#### $-5", "-5"),
        ("#### +5", "5"),
        ("#### **72**", "72"),
        ("#### $72$", "72"),
        ("#### \\$72", "72"),
        ("#### 50%", "50"),
        ("#### 3/4", "0.75"),
        ("#### .5", "0.5"),
        ("#### -0", "0"),
        ("#### \uff17\uff12", "72"),
        ("#### 5\n#### 6", "6"),
        ("#### 72\nfar more text, 300 words and 5 numbers " * 30 + "\n#### 9\ntail" + " x" * 400, "9"),
        ("the answer is \\boxed{72}", "72"),
        ("\\boxed{3} then \\boxed{5}", "5"),
        ("\\boxed {2}", "2"),
        ("\\boxed{\\text{72}}", "72"),
        ("\\boxed{72\\text{ apples}}", "72"),
        ("\\boxed{1{,}234}", "1234"),
        ("\\boxed{1\\,234}", "1234"),
        ("\\boxed{\\$1,234}", "1234"),
        ("\\boxed{\\frac{3}{4}}", "0.75"),
        ("\\boxed{-\\dfrac{3}{4}}", "-0.75"),
        ("#### Final answer\n\\boxed{72}", "72"),
        ("#### \\boxed{72}", "72"),
        ("#### 1234", "1,234"),
        ("#### 0.10", "0.1"),
        ("#### 7", 7),
        ("#### 7", 7.0),
    ],
)
def test_right(response, label):
    assert numeric.grade(response, label) == 1.0


@pytest.mark.parametrize(
    ("response", "label"),
    [
        ("72", "72"),
        ("boxed{72}", "72"),
        ("\\fbox{72}", "72"),
        ("#### 5 or 6", "5"),
        ("#### 5 or 6", "6"),
        ("#### 5, 6", "5"),
        ("#### 5*6", "56"),
        ("#### 5\\;6", "56"),
        ("#### 5\u00b2", "5"),
        ("#### 5\u00b2", "52"),
        ("#### 5\u00bd", "5"),
        ("#### 1e3", "1000"),
        ("#### 1e3", "1"),
        ("#### 12:00", "12"),
        ("#### 2^10", "2"),
        ("#### 1,23", "123"),
        ("#### 1,2345", "12345"),
        ("#### 1.2.3", "1.2"),
        ("#### 3 1/2", "3.5"),
        ("#### 1/0", "0"),
        ("#### --5", "5"),
        ("#### 72\n#### none", "72"),
        ("\\boxed{5} \\boxed{unclosed", "5"),
        ("\\boxed{}", "0"),
        ("\\boxed{x=5}", "5"),
        ("\\boxed{5\ud83d}", "5"),
        ("\\boxed{5\x00}", "5"),
        ("####", "0"),
        ("", "0"),
        ("#### 0.1", "0.10000000000000001"),
        ("#### -5", "5"),
        ("#### NaN", "0"),
        ("#### inf", "0"),
    ],
)
def test_wrong(response, label):
    assert numeric.grade(response, label) == 0.0


@pytest.mark.parametrize(
    "label",
    [
        "",
        " ",
        "x",
        "72 apples",
        "#### 72",
        "5 or 6",
        "1e3",
        "nan",
        "inf",
        "1/0",
        "1,23",
        "9" * 101,
        None,
        True,
        [72],
        {},
        float("nan"),
        float("inf"),
        1e300,
        10**5000,
        -(10**5000),
        "\ud83d",
        "5\0",
    ],
    ids=lambda label: type(label).__name__ + ascii(label)[:12] if not isinstance(label, int) else "int",
)
def test_a_label_that_is_no_number_raises(label):
    for response in ("", "#### 72", "no number"):
        with pytest.raises(InvalidInput, match="is not a number"):
            numeric.grade(response, label)


@pytest.mark.parametrize(
    "response",
    [
        "#### " + "1" * 2_000_000,
        "####" * 1_000_000,
        "#### " + " " * 4_000_000 + "x",
        "####" + "$ - $ " * 500_000,
        "\\boxed{" * 300_000 + "1" + "}" * 300_000,
        "\\boxed" * 500_000,
        "\\boxed{" + "\\frac{" * 300_000,
        "\\boxed{\\frac{" + " " * 2_000_000,
        "\\boxed{" + "1" * 100_000 + "}",
        "(" * 1_000_000,
        "\ud83d" * 1_000_000,
        "#### 1," + "111," * 500_000,
    ],
    ids=lambda text: ascii(text[:12]),
)
def test_hostile_responses_take_bounded_time(response):
    started = time.perf_counter()
    assert numeric.grade(response, "72") == 0.0
    assert time.perf_counter() - started < 1


@given(st.fractions(max_denominator=10**6).filter(lambda value: abs(value) < 10**12))
def test_a_number_equals_itself_in_every_notation(value):
    assert numeric.read_number(f"{value.numerator}/{value.denominator}") == value
    whole = value.numerator
    assert numeric.read_number(f"{whole:,}") == whole
    assert numeric.read_number(f"${whole:,}.00") == whole
    assert numeric.grade(f"#### {whole:,}.", str(whole)) == 1.0
    assert numeric.grade(f"#### {whole + 1}", str(whole)) == 0.0


@given(st.text(max_size=200))
def test_any_text_gives_a_number_or_none(text):
    for response in (text, f"#### {text}", f"\\boxed{{{text}}}"):
        assert isinstance(numeric.final_answer(response), Fraction | int | None)


@given(st.text(max_size=50), st.integers(-(10**20), 10**20), st.text(alphabet=" \t\n", max_size=30))
def test_trailing_white_space_changes_nothing(text, number, space):
    for response in (text, f"{text}#### {number}", f"{text}\\boxed{{{number}}}", f"{text}#### {number:,} apples."):
        assert numeric.grade(response + space, str(number)) == numeric.grade(response, str(number))


@pytest.fixture(scope="module")
def verls_rule():
    """verl's own scorer; its module alone, since the whole of verl takes seconds to import."""
    package = importlib.util.find_spec("verl")
    if package is None or package.origin is None:
        pytest.skip("verl is not installed: pip install -e '.[train]'")
    path = Path(package.origin).parent / "utils" / "reward_score" / "gsm8k.py"
    spec = importlib.util.spec_from_file_location("verls_gsm8k", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.compute_score


PIECES = st.sampled_from(
    ["####", "#### ", " ", "-", "$", ",", ".", "72", "1,234", "0", "\\boxed{7}", "\uff17", "\ud83d", "x" * 90]
)


@given(
    st.lists(PIECES, max_size=30).map("".join) | st.text(max_size=400), st.text("0123456789-.,", min_size=1, max_size=4)
)
def test_the_reference_mode_is_verls_rule(verls_rule, text, label):
    for response in (text, f"{text}#### {label}", f"#### {label}{text}", text * 20):
        for truth in (label, "72", "abc"):
            assert numeric.grade(response, truth, "reference") == verls_rule(response, truth)


@pytest.mark.parametrize("label", [None, "", 72, ["72"]])
def test_the_reference_mode_has_no_label_without_text_either(label):
    with pytest.raises(InvalidInput, match="has no answer"):
        numeric.grade("#### 72", label, "reference")


def test_an_early_answer_is_found_by_default_alone():
    response = "#### 42" + "\nand that is all there is to say" * 20
    assert numeric.grade(response, "42") == 1.0
    assert numeric.grade(response, "42", "reference") == 0.0
