"""`omnirl recipe render`: what a run would be started with, in a form that others read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from omnirl import console
from omnirl.commands import _recipe_variables
from omnirl.errors import InvalidInput


class Format(StrEnum):
    """Forms of a rendered recipe."""

    hydra = "hydra"
    shell = "shell"
    yaml = "yaml"


def render(
    task: str,
    hardware: str,
    *,
    algo: str | None,
    tune: str | None,
    sets: Sequence[str],
    words: Sequence[str],
    variables: Mapping[str, str],
    form: Format,
) -> str:
    """The text to print. Warnings go to stderr.

    Raises:
        InvalidInput: the recipe is not right; a script of it would not start.
    """
    from omnirl.plan import forms, overrides
    from omnirl.recipe import registry, rules

    resolved = registry.resolve(task, hardware, algo=algo, tune=tune, sets=sets, variables=variables)
    _recipe_variables.tell(resolved, variables)
    rendered = overrides.render(resolved, extra=words)
    found = (*rules.check(resolved), *rendered.problems)
    if any(problem.severity == "error" for problem in found):
        raise InvalidInput(f"recipe `{task}` on `{hardware}` is not right", problems=found)
    for problem in found:
        console.warn(problem.message + (f" ({problem.hint})" if problem.hint else ""))
    if form is Format.hydra:
        return forms.hydra(rendered)
    if form is Format.yaml:
        return forms.yaml(rendered)
    chosen = [(option, value) for option, value in (("--algo", algo), ("--tune", tune)) if value is not None]
    launch = forms.Launch(
        folder=Path.cwd(),
        options=[*chosen, *(("--set", word) for word in sets)],
        words=words,
        variables=variables,
        recipes=os.environ.get("OMNIRL_RECIPES", ""),
    )
    return forms.shell(resolved, rendered, launch)
