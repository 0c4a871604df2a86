"""`omnirl doctor`: whether this machine is fit for a recipe, and what mends it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnirl import console
from omnirl.commands import _completion, _recipe_variables, _sync, _training
from omnirl.commands.recipe import Algo, AsJson, Sets, Tune
from omnirl.errors import Exit, UsageMistake

if TYPE_CHECKING:
    from omnirl.doctor.check import Check, Target

EXAMPLES = """\b
Examples:
  omnirl doctor
  omnirl doctor toy --on cpu
  omnirl doctor avqa --on h800x4 --set 'model.path = "checkpoints/omni"' --json
  omnirl doctor toy --on cpu --sync
"""


def doctor(
    task: Annotated[
        str | None, typer.Argument(metavar="[TASK]", help="A recipe to be fit for.", autocompletion=_completion.tasks)
    ] = None,
    *,
    on: Annotated[
        str, typer.Option("--on", metavar="HARDWARE", help="The recipe's.", autocompletion=_completion.hardware)
    ] = "",
    algo: Algo = None,
    tune: Tune = None,
    sets: Sets = None,
    sync: Annotated[
        bool,
        typer.Option(
            "--sync",
            help="Start the recipe's engine, ask it questions of each modality, and compare the probabilities that "
            "rollout and trainer give the answers' tokens. Nothing is trained.",
        ),
    ] = False,
    runs: _training.RunsFolder = Path("runs"),
    json: AsJson = False,
) -> None:
    """Look at packages, devices, media tools, Ray, disk and limits, and say what mends what is wrong."""
    from omnirl.doctor import checkup

    _require_pair(task, on, {"--algo": algo, "--tune": tune, "--set": sets, "--sync": sync})
    if sync and task:
        wanted = _training.Wanted(task, on, algo, tune, tuple(sets or ()), variables=_recipe_variables.given())
        _sync.tell(_sync.prove(wanted, runs), as_json=json)
        return
    target = _target(task, on, algo, tune, sets, runs)
    checks = checkup.examine(target)
    counts = checkup.counts(checks)
    if json:
        document = {"task": task, "hardware": on or None, "counts": counts}
        console.emit_json({"schema": "omnirl/doctor/1", **document, "checks": [one.as_dict() for one in checks]})
    else:
        _show(checks, counts)
    if counts["fail"]:
        raise typer.Exit(Exit.ENVIRONMENT)


def _require_pair(task: str | None, on: str, options: dict[str, Any]) -> None:
    """Raises UsageMistake for half a pair, and for options of a recipe without one."""
    if task and not on:
        raise UsageMistake("`--on HARDWARE` is missing", hint="omnirl recipe list")
    lone = next((option for option, value in {"--on": on, **options}.items() if value), None)
    if lone and not task:
        raise UsageMistake(f"`{lone}` needs a task", hint="omnirl doctor TASK --on HARDWARE")


def _target(
    task: str | None, on: str, algo: str | None, tune: str | None, sets: list[str] | None, runs: Path
) -> Target:
    from omnirl.doctor.check import Target

    if task is None:
        return Target(None, runs, dict(os.environ))
    from omnirl.doctor.data_files import training_rows
    from omnirl.plan.document import plan
    from omnirl.recipe import registry

    resolved = registry.resolve(task, on, algo=algo, tune=tune, sets=sets or ())
    planned = plan(resolved, rows=training_rows(resolved.recipe))
    facts = {"overrides": planned["overrides"], "disk": planned["disk"] or {}}
    return Target(resolved.recipe, runs, dict(os.environ), task=task, hardware=on, **facts)


def _show(checks: list[Check], counts: dict[str, int]) -> None:
    """One line a check; below it, where something is wrong, what is wanted, and the command to paste."""
    width = max(len(one.name) for one in checks)
    for one in checks:
        console.line(f"{one.verdict:4}  {one.name:{width}}  {one.found}")
        if one.verdict != "ok":
            for label, text in (("wanted", one.wanted), ("mend", one.hint)):
                if text:
                    console.line(f"{'':4}  {label:>{width}}: {text}")
    console.line()
    console.line(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
