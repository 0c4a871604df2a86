"""Rows and files to be checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from omnirl.data.checks import check as checking
from omnirl.data.checks.check import Report
from omnirl.recipe import registry

PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 20
OPTIONS = {"options": ["A. red", "B. blue", "C. green"]}

Rows = Callable[..., Path]


def row(text: str = "a question", label: Any = "<answer>B</answer>", **fields: Any) -> dict[str, Any]:
    """A row of multiple choice as a dictionary that the schema fits."""
    return {
        "data_source": "toy/made",
        "prompt": [{"role": "user", "content": text}],
        "images": [],
        "audios": [],
        "videos": [],
        "ability": "x",
        "reward_model": {"style": "rule", "ground_truth": label},
        "extra_info": OPTIONS,
        **fields,
    }


def check(files: list[str], **options: Any) -> Report:
    """Without the tokens, unless they are asked for."""
    return checking.check(files, **{"count_tokens": False, **options})


def found(report: Report) -> list[tuple[str, int | None]]:
    return [(finding.code, finding.row) for finding in report.findings.listed()]


def numbered(count: int) -> list[dict[str, Any]]:
    return [row(f"question {number}") for number in range(count)]


def recipe(*sets: str) -> Any:
    return registry.resolve("toy", "cpu", sets=sets).recipe
