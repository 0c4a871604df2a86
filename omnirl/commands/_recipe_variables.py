"""The documented environment variables as commands meet them: read, told about, listed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from omnirl import console
from omnirl.errors import UsageMistake

if TYPE_CHECKING:
    from omnirl.recipe.registry import Resolved

_NAME = "EXPERIMENT_NAME"
_FOLDER = "OUTPUT_DIR"
COLUMNS = ("variable", "takes the place of", "meaning", "set to")


def given() -> dict[str, str]:
    """The variables that are set in this process's environment."""
    from omnirl.recipe import variables

    return variables.given(os.environ)


def tell(resolved: Resolved, variables: Mapping[str, str]) -> None:
    """Say on stderr which variables a recipe's values come from: one that was forgotten must not stay unseen."""
    from omnirl.recipe.variables import in_effect

    used, beaten = in_effect(variables, resolved.origins)
    if used:
        said = ", ".join(f"{v.name}={variables[v.name]} ({v.setting})" for v in used)
        console.note(f"from the environment: {said}")
    if beaten:
        said = ", ".join(f"{v.name} ({v.setting})" for v in beaten)
        console.note(f"in the environment, but `--set` is stronger: {said}")


def tell_ignored(variables: Mapping[str, str], why: str) -> None:
    """Say on stderr that variables which stand for settings are set and do not count."""
    from omnirl.recipe.variables import VARIABLES

    names = [v.name for v in VARIABLES if v.name in variables and v.setting and not v.option]
    if names:
        console.note(f"in the environment, but {why}: {', '.join(names)}")


def for_a_run(name: str | None, runs: Path, *, asked_runs: bool) -> tuple[str | None, Path, dict[str, str]]:
    """A new or resumed run's name, the folder of runs, and the variables that count.

    Args:
        name: what `--name` says; it is stronger than EXPERIMENT_NAME.
        runs: where runs are kept; OUTPUT_DIR takes its place unless `asked_runs`, by the option or OMNIRL_RUNS.

    Raises:
        UsageMistake: EXPERIMENT_NAME cannot name a run.
    """
    variables = given()
    if name is not None:
        # verl is told the run's name, and that is another one now.
        variables.pop(_NAME, None)
    elif _NAME in variables:
        from omnirl.run.record import check_name

        name = variables[_NAME]
        try:
            check_name(name)
        except UsageMistake as mistake:
            raise UsageMistake(mistake.message, hint=mistake.hint, where=f"env {_NAME}") from mistake
    if _FOLDER in variables and not asked_runs:
        runs = Path(variables[_FOLDER]).expanduser()
        console.note(f"from the environment: {_FOLDER}={variables[_FOLDER]} (--runs)")
    return name, runs, variables


def show(*, as_json: bool) -> None:
    """Print the table of variables, with what each is set to."""
    from omnirl.recipe.variables import VARIABLES

    values = given()
    if as_json:
        listed = [
            {
                "name": v.name,
                "setting": v.setting or None,
                "option": v.option or None,
                "meaning": v.meaning,
                "also": list(v.also),
                "value": values.get(v.name),
            }
            for v in VARIABLES
        ]
        console.emit_json({"schema": "omnirl/recipe-env/1", "variables": listed})
        return
    rows = [(v.name, v.option or v.setting, v.meaning, values.get(v.name)) for v in VARIABLES]
    console.table("Variables", COLUMNS, rows)
