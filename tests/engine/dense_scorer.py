"""A scorer whose rewards differ within nearly every group, so that a few steps already move every weight."""

from __future__ import annotations

from typing import Any


def score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, **_: Any) -> float:
    return sum(map(len, solution_str.split())) % 7 / 6
