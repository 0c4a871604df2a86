"""`omnirl recipe`: which recipes there are, what each resolves to, and whether it is right."""

from __future__ import annotations

import json as json_module
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnirl import console
from omnirl.commands import _completion
from omnirl.errors import InvalidInput, Problem, UsageMistake

if TYPE_CHECKING:
    from omnirl.recipe.layers import Setting

app = typer.Typer(help="List, show and check recipes.", no_args_is_help=True, rich_markup_mode=None)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Algo = Annotated[str | None, typer.Option(metavar="NAME", help="Algorithm.", autocompletion=_completion.algos)]
Tune = Annotated[str | None, typer.Option(metavar="NAME", help="lora or full.", autocompletion=_completion.tunes)]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting, as in a recipe file; repeatable.",
        autocompletion=_completion.settings,
    ),
]

SHOW_EXAMPLES = """\b
Examples:
  omnirl recipe show gsm8k --on h800x4 --origin
  omnirl recipe show toy --on cpu --tune lora --set 'train.steps = 3'
"""
CHECK_EXAMPLES = """\b
Examples:
  omnirl recipe check
  omnirl recipe check gsm8k --on cpu --json
"""


@app.command("list")
def list_recipes(*, json: AsJson = False) -> None:
    """List every task and the hardware that it has a recipe for."""
    from omnirl.recipe import registry

    found = registry.pairs()
    columns = ("task", "hardware", "algo", "tune", "evidence")
    rows = [tuple(getattr(pair, column) for column in columns) for pair in found]
    if json:
        document = [dict(zip(columns, row, strict=True)) for row in rows]
        console.emit_json({"schema": "omnirl/recipes/1", "pairs": document})
        return
    console.table("Recipes", columns, rows)


@app.command("show", epilog=SHOW_EXAMPLES)
def show(
    task: Annotated[str, typer.Argument(metavar="TASK", autocompletion=_completion.tasks)],
    *,
    on: Annotated[str, typer.Option("--on", metavar="HARDWARE", autocompletion=_completion.hardware)] = "",
    algo: Algo = None,
    tune: Tune = None,
    sets: Sets = None,
    origin: Annotated[
        bool, typer.Option("--origin", help="Say where each value was set and what it replaced.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Show every setting of a recipe, with all its layers merged."""
    if not on:
        raise UsageMistake("`--on HARDWARE` is missing", hint="omnirl recipe list")
    from omnirl.recipe import registry

    resolved = registry.resolve(task, on, algo=algo, tune=tune, sets=sets or ())
    if json:
        console.emit_json(resolved.as_json())
        return
    for key, setting in resolved.origins.items():
        if setting.value is not None:
            console.line(_line(key, setting, origin=origin))


@app.command("check", epilog=CHECK_EXAMPLES)
def check(
    task: Annotated[
        str | None, typer.Argument(metavar="[TASK]", autocompletion=_completion.tasks, help="All tasks when left out.")
    ] = None,
    *,
    on: Annotated[str, typer.Option("--on", metavar="HARDWARE", autocompletion=_completion.hardware)] = "",
    everything: Annotated[bool, typer.Option("--all", help="Check every recipe; the same as no TASK.")] = False,
    json: AsJson = False,
) -> None:
    """Check recipes: their files, every setting, the rules across settings, and every key meant for verl."""
    if task and everything:
        raise UsageMistake("`--all` and a task do not go together", hint=f"omnirl recipe check {task}")
    if on and not task:
        raise UsageMistake("`--on` needs a task", hint=f"omnirl recipe check TASK --on {on}")
    from omnirl.recipe import registry, search

    folders = registry.search_path()
    known = search.names(folders)
    if task and task not in known:
        raise InvalidInput(f"there is no task `{task}`", hint=search.suggestion(task, known))
    if task and on:
        checked = [(task, on, _problems(task, on))]
    else:
        checked = [pair for name in ([task] if task else known) for pair in _check_task(name, folders)]
    found = [(name, hardware, problem) for name, hardware, problems in checked for problem in problems]
    count = sum(hardware != "-" for _, hardware, _ in checked)
    errors = sum(problem.severity == "error" for *_, problem in found)
    if json:
        listed = [{"task": name, "hardware": hardware, **problem.as_dict()} for name, hardware, problem in found]
        console.emit_json({"schema": "omnirl/recipe-check/1", "pairs": count, "errors": errors, "problems": listed})
    elif found:
        columns = ("recipe", "severity", "where", "setting", "problem", "code")
        console.table("Problems", columns, [_row(*item) for item in found])
    else:
        console.line(f"{count} recipe{'s are' if count != 1 else ' is'} right")
    if errors:
        raise typer.Exit(1)


@app.command("schema")
def schema() -> None:
    """Print the JSON schema of recipe files; every setting is described in it."""
    from omnirl.recipe.schema import schema as recipe_schema

    console.emit_json(recipe_schema())


def _line(key: str, setting: Setting, *, origin: bool) -> str:
    text = f"{_key(key)} = {_toml(setting.value)}"
    if not origin:
        return text
    was = "".join(f" (was {_toml(weaker.value)} at {weaker.origin})" for weaker in setting.over)
    return f"{text}  # {setting.origin}{was}"


def _key(key: str) -> str:
    table, _, rest = key.partition(".")
    return f"{table}.{json_module.dumps(rest)}" if table == "verl" and rest else key


def _toml(value: Any) -> str:
    """A value as TOML: JSON's text, numbers, lists and truth values are TOML's too; tables need `=`."""
    if isinstance(value, dict):
        inner = ", ".join(f"{json_module.dumps(name)} = {_toml(item)}" for name, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json_module.dumps(value, ensure_ascii=False)


def _check_task(task: str, folders: Sequence[Path]) -> Iterator[tuple[str, str, list[Problem]]]:
    """Each pair of a task with its problems; `-` stands for what belongs to no pair."""
    from omnirl.recipe import registry

    there, wrong = registry.offered(task, folders)
    if wrong or not there:
        yield task, "-", wrong or [Problem("no-pair", "has no `[on.HARDWARE]` table, so nothing runs it", "warning")]
    for hardware in there:
        yield task, hardware, _problems(task, hardware)


def _problems(task: str, hardware: str) -> list[Problem]:
    from omnirl.plan import overrides
    from omnirl.recipe import registry, rules

    try:
        resolved = registry.resolve(task, hardware)
        return [*rules.check(resolved), *overrides.render(resolved).problems]
    except InvalidInput as error:
        if not error.problems:
            raise
        return list(error.problems)


def _row(task: str, hardware: str, problem: Problem) -> tuple[str, ...]:
    said = problem.message + (f" ({problem.hint})" if problem.hint else "")
    return (f"{task} on {hardware}", problem.severity, problem.where or "-", problem.key or "-", said, problem.code)
