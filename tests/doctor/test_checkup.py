"""All checks together."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnirl.doctor import checkup
from omnirl.doctor.check import Check, Target

TARGET = Target(None, Path("runs"), dict(os.environ))


def test_one_that_fails_to_answer_hides_no_other() -> None:
    def breaks(_target: Target) -> Iterator[Check]:
        yield Check("first", "ok", "x")
        raise OSError(5, "Input/output error")

    def well(_target: Target) -> Iterator[Check]:
        yield Check("bad", "fail", "y")
        yield Check("good", "ok", "z")

    found = checkup.examine(TARGET, {"broken": breaks, "well": well})
    assert [(one.name, one.verdict) for one in found] == [
        ("bad", "fail"),
        ("broken", "warn"),
        ("first", "ok"),
        ("good", "ok"),
    ]
    assert "Input/output error" in found[1].found
    assert checkup.counts(found) == {"fail": 1, "warn": 1, "ok": 2}


def test_a_fault_of_ours_is_not_hidden() -> None:
    def wrong(_target: Target) -> Iterator[Check]:
        raise KeyError("a bug")
        yield

    with pytest.raises(KeyError):
        checkup.examine(TARGET, {"wrong": wrong})
