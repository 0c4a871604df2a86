"""How many steps a recipe makes of its training rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnirl.data import store
from omnirl.data.checks.findings import Finding
from omnirl.errors import InvalidInput

if TYPE_CHECKING:
    from omnirl.data.checks.check import Report, Target
    from omnirl.recipe.model import Recipe


def steps(report: Report, recipe: Recipe) -> dict[str, Any] | None:
    """Rows after over-long ones are left out, steps of an epoch and of the run, and rows that fill no step.

    The training files are those of the recipe if one of them was checked, else the checked files that are no other part
    of the recipe. Too few rows are added to the report's findings. None when no training file was checked, or one
    cannot be counted.
    """
    for target in report.targets:
        if target.part == "val" and target.rows and _left(target, recipe) < 1:
            report.findings.add(
                Finding("no-rows-left", f"all {target.rows} rows are over the token budget", target.name)
            )
    counted = _training(report, recipe)
    if counted is None:
        return None
    rows = sum(whole for _, whole, _ in counted)
    left = sum(kept for *_, kept in counted)
    prompts = recipe.batch.prompts
    an_epoch = left // prompts
    if not an_epoch:
        without = f" ({rows} less {rows - left} that are too long)" if left < rows else ""
        report.findings.add(
            Finding(
                "dataset-smaller-than-batch",
                f"dataset smaller than batch: {left} rows{without} / {prompts} prompts a step = 0 steps",
                counted[0][0],
                hint=f"--set 'batch.prompts = {max(left, 1)}', or give more data",
            )
        )
    possible = an_epoch * recipe.train.epochs
    return {
        "files": [name for name, *_ in counted],
        "rows": rows,
        "rows_too_long": rows - left,
        "estimated": any(target.chosen is not None for target in report.targets) and left < rows,
        "prompts_per_step": prompts,
        "steps_per_epoch": an_epoch,
        "rows_left_out_by_drop_last": left - an_epoch * prompts,
        "epochs": recipe.train.epochs,
        "steps": min(possible, recipe.train.steps) if recipe.train.steps else possible,
    }


def _training(report: Report, recipe: Recipe) -> list[tuple[str, int, int]] | None:
    """Name, rows, and rows that stay, of each training file; those not checked count whole."""
    given = [target for target in report.targets if target.part == "train"]
    given = given or [target for target in report.targets if not target.part]
    if not given:
        return None
    counted = [(target.name, target.rows, _left(target, recipe)) for target in given]
    checked = {target.path.resolve() for target in given}
    own = {Path(name).expanduser().resolve(): name for name in recipe.data.train}
    if not checked & own.keys():  # another data set than the recipe's own
        return counted
    for path, name in own.items():
        if path not in checked:
            try:
                rows = store.inspect(path, required=()).rows
            except InvalidInput:
                return None
            counted.append((name, rows, rows))
    return counted


def _left(target: Target, recipe: Recipe) -> int:
    """Rows of a file that are not left out; an estimate where only a sample was looked at."""
    if not recipe.data.filter_overlong_prompts or not target.over:
        return target.rows
    return target.rows - round(target.over * target.rows / target.looked_at)
