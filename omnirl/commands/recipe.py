"""`omnirl recipe`: which recipes there are, what each resolves to, and whether it is right."""

from __future__ import annotations

import json as json_module
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnirl import console
from omnirl.commands import _completion, _recipe_diff, _recipe_new, _recipe_render, _recipe_variables, _training
from omnirl.errors import InvalidInput, Problem, UsageMistake

if TYPE_CHECKING:
    from omnirl.recipe.layers import Setting

app = typer.Typer(help="List, show, check, compare and make recipes.", no_args_is_help=True, rich_markup_mode=None)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Algo = Annotated[str | None, typer.Option(metavar="NAME", help="Algorithm.", autocompletion=_completion.algos)]
Tune = Annotated[str | None, typer.Option(metavar="NAME", help="lora or full.", autocompletion=_completion.tunes)]
TaskName = Annotated[str, typer.Argument(metavar="TASK", autocompletion=_completion.tasks)]
OnHardware = Annotated[str, typer.Option("--on", metavar="HARDWARE", autocompletion=_completion.hardware)]
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
DIFF_EXAMPLES = """\b
A and B are each TASK/HARDWARE, if wanted with an algorithm or a tuning, or a run's name or folder.

Examples:
  omnirl recipe diff gsm8k/h800x4 avqa/h800x4
  omnirl recipe diff avqa/h800x4 avqa/h800x4/dapo
  omnirl recipe diff toy/cpu quickstart-1
"""
NEW_EXAMPLES = """\b
Examples:
  omnirl recipe new mine --from gsm8k --on h800x4
  omnirl recipe show mine --on h800x4 --origin
"""
RENDER_EXAMPLES = """\b
Examples:
  omnirl recipe render gsm8k --on h800x4
  omnirl recipe render nextqa --on ascend910c-x16 --format shell > nextqa.sh
  omnirl recipe render gsm8k --on h800x4 --format yaml --set 'train.steps = 3'
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
    task: TaskName,
    *,
    on: OnHardware = "",
    algo: Algo = None,
    tune: Tune = None,
    sets: Sets = None,
    origin: Annotated[
        bool, typer.Option("--origin", help="Say where each value was set and what it replaced.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Show every setting of a recipe, with all its layers merged."""
    _require_hardware(on)
    from omnirl.recipe import registry

    variables = _recipe_variables.given()
    resolved = registry.resolve(task, on, algo=algo, tune=tune, sets=sets or (), variables=variables)
    _recipe_variables.tell(resolved, variables)
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
    on: OnHardware = "",
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
        checked = [(task, on, _problems(task, on, _recipe_variables.given()))]
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


@app.command("env")
def env(*, json: AsJson = False) -> None:
    """List the environment variables that stand above a recipe's settings, and what they are set to."""
    _recipe_variables.show(as_json=json)


@app.command("diff", epilog=DIFF_EXAMPLES)
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="TASK/HARDWARE or a run.", autocompletion=_completion.sides)],
    b: Annotated[str, typer.Argument(metavar="B", help="TASK/HARDWARE or a run.", autocompletion=_completion.sides)],
    *,
    sets: Sets = None,
    runs: _training.RunsFolder = Path("runs"),
    json: AsJson = False,
) -> None:
    """Show what differs between two recipes or past runs; exit code 1 if anything does. --set changes both pairs."""
    if _recipe_diff.diff(a, b, sets=sets or (), runs=runs, as_json=json):
        raise typer.Exit(1)


@app.command("new", epilog=NEW_EXAMPLES)
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new recipe's name.")],
    *,
    task: Annotated[
        str, typer.Option("--from", metavar="TASK", help="The task that it extends.", autocompletion=_completion.tasks)
    ],
    on: OnHardware = "",
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="DIR", help="Where to; else the first of OMNIRL_RECIPES, else recipes."),
    ] = None,
) -> None:
    """Write a recipe of your own that extends a task, with the usual settings as comments."""
    console.line(str(_recipe_new.new(name, task, hardware=on, output=output)))


@app.command("render", epilog=RENDER_EXAMPLES)
def render(
    task: TaskName,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="After --: overrides for verl, as Hydra reads them."),
    ] = None,
    *,
    on: OnHardware = "",
    algo: Algo = None,
    tune: Tune = None,
    sets: Sets = None,
    form: Annotated[
        _recipe_render.Format, typer.Option("--format", help="verl's overrides, a launch script, or nested YAML.")
    ] = _recipe_render.Format.hydra,
) -> None:
    """Print a recipe as verl's overrides, as a shell script that starts the run, or as YAML."""
    _require_hardware(on)
    _training.check_words(words or (), "omnirl recipe render --help")
    text = _recipe_render.render(
        task,
        on,
        algo=algo,
        tune=tune,
        sets=sets or (),
        words=words or (),
        variables=_recipe_variables.given(),
        form=form,
    )
    console.line(text)


def _require_hardware(on: str) -> None:
    if not on:
        raise UsageMistake("`--on HARDWARE` is missing", hint="omnirl recipe list")


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


def _problems(task: str, hardware: str, variables: Mapping[str, str] | None = None) -> list[Problem]:
    from omnirl.plan import overrides
    from omnirl.recipe import registry, rules

    try:
        resolved = registry.resolve(task, hardware, variables=variables)
        _recipe_variables.tell(resolved, variables or {})
        return [*rules.check(resolved), *overrides.render(resolved).problems]
    except InvalidInput as error:
        if not error.problems:
            raise
        return list(error.problems)


def _row(task: str, hardware: str, problem: Problem) -> tuple[str, ...]:
    said = problem.message + (f" ({problem.hint})" if problem.hint else "")
    return (f"{task} on {hardware}", problem.severity, problem.where or "-", problem.key or "-", said, problem.code)
