"""A small line chart for a terminal, in plain characters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean

Points = Sequence[tuple[float, float]]

_MARKS = "*o+x#@%&"


def chart(
    series: Mapping[str, Points],
    *,
    width: int = 60,
    height: int = 10,
    low: float | None = None,
    high: float | None = None,
    number: str = "{:.2f}",
) -> list[str]:
    """The lines of a chart with one mark a series, an axis on the left, the range of x below and a legend.

    Args:
        series: points (x, y) by name; points that are not finite are left out.
        width, height: of the plotting area, in characters.
        low, high: the range of y; taken from what is drawn when not given.
        number: how the y axis is labelled.
    """
    finite = {name: [p for p in points if all(map(math.isfinite, p))] for name, points in series.items()}
    points = [point for line in finite.values() for point in line]
    if not points:
        return ["(nothing to plot)"]
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    drawings = [_columns(line, left, right, width) for line in finite.values()]
    heights = [y for drawing in drawings for _, y in drawing]
    low = min(heights) if low is None else low
    high = max(heights) if high is None else high
    if high <= low:
        low, high = low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1)
    grid = [[" "] * width for _ in range(height)]
    for index, drawing in enumerate(drawings):
        mark = _MARKS[index % len(_MARKS)]
        for column, y in drawing:
            row = round((high - min(max(y, low), high)) / (high - low) * (height - 1))
            grid[row][column] = mark if grid[row][column] in (" ", mark) else "="
    labels = [number.format(high - (high - low) * row / (height - 1)) for row in range(height)]
    margin = max(map(len, labels))
    drawn = [f"{labels[row].rjust(margin)} |{''.join(cells)}".rstrip() for row, cells in enumerate(grid)]
    start, end = f"{left:g}", f"{right:g}"
    drawn.append(f"{' ' * margin} +{'-' * width}")
    drawn.append(f"{' ' * margin}  {start}{end.rjust(width - len(start))}")
    legend = "   ".join(f"{_MARKS[index % len(_MARKS)]} {name}" for index, name in enumerate(finite))
    drawn.append(f"{' ' * margin}  {legend}")
    return drawn


def _columns(line: Points, left: float, right: float, width: int) -> list[tuple[int, float]]:
    """The value at each column between a series' first and last point: means of a column's points, and straight lines
    over columns without any."""
    span = right - left or 1.0
    shared: dict[int, list[float]] = {}
    for x, y in line:
        shared.setdefault(round((x - left) / span * (width - 1)), []).append(y)
    columns = {column: fmean(values) for column, values in shared.items()}
    for (x0, y0), (x1, y1) in pairwise(sorted(columns.items())):
        for column in range(x0 + 1, x1):
            columns[column] = y0 + (y1 - y0) * (column - x0) / (x1 - x0)
    return sorted(columns.items())
