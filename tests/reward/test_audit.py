"""Labels that no response could ever match, or that match by accident."""

from __future__ import annotations

import pytest

from omnirl.errors import InvalidInput
from omnirl.reward.audit import audit

NUMBERS = ["5", "\\frac{1}{2}", "$\\frac{1}{2}$", "6 or 2 or 10", "12:00", "30\u00b0", "50\\%"]
SOUND = [*NUMBERS, "B", "b", "BD", "x=2", "x", "\\text{yes}"]
FAULTS = {
    "": "label_invalid",
    "$$": "label_invalid",
    "1" * 3000: "label_invalid",
    "5\0": "label_invalid",
    "1/0": "label_undefined",
    "\\frac{1}{0}": "label_undefined",
    "NaN": "label_undefined",
    "\\text{}": "label_unreadable",
    "\u662f": "label_text_only",
    "$AB \\parallel CD$": "label_text_only",
    "cat": "label_word",
    "9^{9^{9^9}}": "label_too_slow",
}


def test_faults_of_mmk12_labels():
    found = {finding.label: finding for finding in audit("mmk12", [*SOUND, *FAULTS, *SOUND, None], {"timeout_s": 3})}
    assert {label: finding.code for label, finding in found.items()} == {**FAULTS, None: "label_invalid"}
    warnings = {finding.code for finding in found.values() if finding.severity == "warning"}
    assert warnings == {"label_text_only", "label_word"}
    assert all(finding.message for finding in found.values())


@pytest.mark.parametrize(
    ("scorer", "sound", "bad"),
    [("gsm8k", ["72", "1,234", "-0.5"], ["", "72 apples", None]), ("choice", ["<answer>B</answer>"], ["B", "", None])],
)
def test_faults_of_other_labels(scorer, sound, bad):
    found = list(audit(scorer, [*sound, *bad]))
    assert [finding.label for finding in found] == bad
    assert {finding.code for finding in found} == {"label_invalid"}


def test_an_unknown_option_raises():
    with pytest.raises(InvalidInput, match="takes no option"):
        list(audit("mmk12", [], {"x": 1}))
