"""Curves as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from omnirl import console

if TYPE_CHECKING:
    from omnirl.run.curves import Curve


def show(curves: Sequence[Curve]) -> None:
    """Print each chart after an empty line."""
    for curve in curves:
        console.line()
        for text in curve.text():
            console.line(text)
