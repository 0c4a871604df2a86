"""`omnirl data check`: look through data files before training on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnirl import console
from omnirl.commands import _completion
from omnirl.commands.recipe import Algo, AsJson, Sets, Tune
from omnirl.errors import Exit, UsageMistake

if TYPE_CHECKING:
    from omnirl.data.checks.check import Report
    from omnirl.recipe.model import Recipe

EXAMPLES = """\b
Examples:
  omnirl data check data/gsm8k/train.parquet
  omnirl data check data/toy/train.parquet --task toy --on cpu
  omnirl data check --task toy --on cpu --json
"""


def check(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="Parquet files; those of the recipe when left out."),
    ] = None,
    *,
    task: Annotated[
        str | None, typer.Option("--task", metavar="TASK", help="Check for a recipe.", autocompletion=_completion.tasks)
    ] = None,
    on: Annotated[
        str, typer.Option("--on", metavar="HARDWARE", help="The recipe's.", autocompletion=_completion.hardware)
    ] = "",
    algo: Algo = None,
    tune: Tune = None,
    sets: Sets = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="DIR", help="The checkpoint whose tokenizer counts prompts.")
    ] = None,
    lengths: Annotated[bool, typer.Option("--lengths/--no-lengths", help="Count the tokens of prompts.")] = True,
    sample: Annotated[
        int | None, typer.Option("--sample", metavar="N", min=1, help="Look at N evenly spread rows of each file.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Check data files: columns, prompts, labels, media, lengths, duplicates, and the steps that they make."""
    from omnirl.data.checks import check as checking

    recipe = _recipe(task, on, algo, tune, sets)
    if not files and recipe is None:
        raise UsageMistake("no file is given", hint="omnirl data check FILE, or --task TASK --on HARDWARE")
    report = checking.check(
        files or (), recipe=recipe, model=model, count_tokens=lengths, sample=sample, progress=console.progress
    )
    if json:
        console.emit_json({**report.as_dict(), "task": task, "hardware": on or None})
    else:
        _show(report)
    if report.errors:
        raise typer.Exit(Exit.NO)


def _recipe(task: str | None, on: str, algo: str | None, tune: str | None, sets: list[str] | None) -> Recipe | None:
    if task and not on:
        raise UsageMistake("`--on HARDWARE` is missing", hint="omnirl recipe list")
    if task is None:
        given = {"--on": on, "--algo": algo, "--tune": tune, "--set": sets}
        lone = next((option for option, value in given.items() if value), None)
        if lone:
            raise UsageMistake(f"`{lone}` needs a task", hint="omnirl data check FILE --task TASK --on HARDWARE")
        return None
    from omnirl.recipe import registry

    return registry.resolve(task, on, algo=algo, tune=tune, sets=sets or ()).recipe


def _show(report: Report) -> None:
    rows = [
        (finding.severity, finding.code, count, finding.where, _said(finding.message, finding.hint))
        for finding, count in report.findings.by_code()
    ]
    if rows:
        console.table("Problems", ("severity", "code", "count", "first", "problem"), rows)
        console.line()
    checked = sum(target.looked_at for target in report.targets)
    whole = sum(target.rows for target in report.targets)
    of = f" of {whole}" if checked < whole else ""
    warnings = report.findings.total("warning")
    console.line(f"{checked}{of} rows checked: {_count(report.errors, 'error')}, {_count(warnings, 'warning')}")
    if report.lengths:
        console.line(_lengths(report.lengths))
    if report.steps:
        console.line(_steps(report.steps))
    for text in _notes(report):
        console.note(text)


def _lengths(found: dict[str, Any]) -> str:
    budget = f", {found['over']} over the budget of {found['budget']}" if found["budget"] else ""
    longest = found["longest"][0] if found["longest"] else None
    where = f" ({longest['file']}:row {longest['row']})" if longest else ""
    return f"prompt tokens with media: p50 {found['p50']}, p95 {found['p95']}, max {found['max']}{where}{budget}"


def _steps(found: dict[str, Any]) -> str:
    left = found["rows"] - found["rows_too_long"]
    about = "about " if found["estimated"] else ""
    return (
        f"steps: {about}{left} training rows / {found['prompts_per_step']} prompts a step = "
        f"{found['steps_per_epoch']} an epoch, {found['rows_left_out_by_drop_last']} rows left out; "
        f"{found['steps']} steps in all"
    )


def _notes(report: Report) -> list[str]:
    notes = []
    if report.guessed and report.scorers:
        known = sorted({scorer for scorer in report.scorers.values() if scorer})
        strange = sorted(source for source, scorer in report.scorers.items() if scorer is None)
        if known:
            notes.append(f"labels are checked for the scorer that `data_source` suggests: {', '.join(known)}")
        if strange:
            shown = ", ".join(strange[:3]) + (", ..." if len(strange) > 3 else "")
            notes.append(f"labels are checked for emptiness only, since nothing tells the scorer of {shown}")
    if report.duplicates is None:
        notes.append("duplicates are looked for only without --sample")
    return notes


def _said(message: str, hint: str | None) -> str:
    return message + (f" ({hint})" if hint else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
