"""The registry: which (task, hardware) pairs there are, and what each resolves to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnirl.errors import InvalidInput, Problem
from omnirl.recipe import rules, verl_keys
from omnirl.recipe import variables as environment
from omnirl.recipe.layers import CLASH, DOTTED, Expansion, Layer, Setting, merge, parse_set
from omnirl.recipe.model import Recipe, finite
from omnirl.recipe.search import find, names, search_path, suggestion
from omnirl.recipe.source import Key, shown
from omnirl.recipe.validate import place, validate

__all__ = ["Pair", "Resolved", "offered", "pairs", "resolve", "search_path"]

DEFAULT = "default"
"""The origin of a value that comes from the schema."""

UNKNOWN_HARDWARE = "unknown-hardware"


@dataclass(frozen=True, slots=True)
class Pair:
    """A task and the hardware that it has a recipe for."""

    task: str
    hardware: str
    algo: str
    tune: str
    evidence: str


@dataclass(frozen=True)
class Resolved:
    """A recipe with every layer merged.

    `origins` has each dotted setting's value, where it came from and what it replaced.
    """

    recipe: Recipe
    task: str
    hardware: str
    origins: Mapping[str, Setting]

    def where(self, key: str) -> str | None:
        """`file:line` of a setting, or of the first setting in a table; None for a default."""
        setting = self.origins.get(key)
        if setting is None:
            setting = next(
                (s for k, s in self.origins.items() if k.startswith(f"{key}.") and s.origin != DEFAULT), None
            )
        return setting.origin if setting and setting.origin != DEFAULT else None

    def as_json(self) -> dict[str, Any]:
        """The document `omnirl/recipe/1`, which a run keeps as `recipe.json`."""
        return {
            "schema": "omnirl/recipe/1",
            "task": self.task,
            "hardware": self.hardware,
            "values": self.recipe.model_dump(mode="json"),
            "origins": {key: setting.as_dict() for key, setting in self.origins.items()},
        }


def pairs(search: Sequence[Path] = ()) -> list[Pair]:
    """Every pair on the search path, by task and hardware.

    Raises:
        InvalidInput: with every file that cannot be read and every pair whose hardware has no file.
    """
    folders = search_path(search)
    found: list[Pair] = []
    problems: list[Problem] = []
    for task in names(folders):
        hardware_names, wrong = offered(task, folders)
        problems += wrong
        for hardware in hardware_names:
            expansion = Expansion(hardware, folders)
            layer = _merged(_layers(task, hardware, expansion), expansion.problems)
            problems += expansion.problems
            kinds = (("algo", "kind"), ("tune", "kind"), ("evidence",))
            algo, tune, evidence = (layer[key].value if key in layer else None for key in kinds)
            found.append(Pair(task, hardware, algo or "-", tune or "-", evidence or "planned"))
    _raise("recipes cannot be listed", problems)
    return found


def resolve(
    task: str,
    hardware: str,
    *,
    algo: str | None = None,
    tune: str | None = None,
    sets: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    search: Sequence[Path] = (),
) -> Resolved:
    """Merge every layer of a pair and check it against the schema.

    Weakest first: schema defaults, `hardware/<hardware>.toml`, the task file (what it extends, its own values, then its
    `[on.<hardware>]` table), the `algo` and `tune` fragments asked for, `variables` (text by the names of
    `omnirl.recipe.variables`; others do not count), and `sets` (`KEY = VALUE` in TOML). Asking for the fragment that
    the pair has anyway changes nothing.

    Raises:
        InvalidInput: an unknown name, an unreadable file, or settings that are wrong; with every problem found.
    """
    folders = search_path(search)
    _known(task, hardware, algo, tune, folders)
    expansion = Expansion(hardware, folders)
    layers = _layers(task, hardware, expansion)
    for kind, name in (("algo", algo), ("tune", tune)):
        file = find(name, folders, kind) if name else None
        if file and file.resolve() != expansion.latest(kind):
            layers.append(expansion.whole(file))
    problems = expansion.problems
    if variables:
        # What is wrong with the layers so far is told when all of them are merged.
        layers.append(environment.layer(variables, _merged(layers, [])))
    for word in sets:
        try:
            layers.append(parse_set(word))
        except InvalidInput as error:
            problems.append(Problem("wrong-set", error.message, where=error.where, hint=error.hint))
    layer = _merged(layers, problems)
    unsound = bool(problems)
    clashing = tuple(p.key for p in problems if p.code == CLASH and p.key)
    problems += _values(layer)
    task_file = find(task, folders)
    outcome = validate(layer, shown(task_file) if task_file else task)
    problems += [
        p
        for p in outcome.problems
        if not (unsound and p.code == "missing") and not any(f"{p.key}.".startswith(f"{key}.") for key in clashing)
    ]
    if problems and outcome.recipe:
        doubtful = outcome.doubtful | {p.key for p in problems if p.key}
        problems += rules.problems(outcome.recipe, lambda key: place(layer, key), frozenset(doubtful))
    _raise(f"recipe `{task}` on `{hardware}` is not valid", problems)
    assert outcome.recipe is not None
    return Resolved(outcome.recipe, task, hardware, _origins(outcome.recipe, layer))


def _layers(task: str, hardware: str, expansion: Expansion) -> list[Layer]:
    layers: list[Layer] = []
    for file in (find(hardware, expansion.folders, "hardware"), find(task, expansion.folders)):
        if file:
            layers += expansion.layers(file)
    return layers


def _merged(layers: Sequence[Layer], problems: list[Problem]) -> dict[Key, Setting]:
    merged: dict[Key, Setting] = {}
    for layer in layers:
        merged = merge(merged, layer, problems)
    return merged


def _values(layer: Layer) -> Iterator[Problem]:
    """Values that no setting takes, and keys that verl does not have."""
    for key, setting in layer.items():
        if not finite(setting.value):
            message = f"`{setting.value}` is neither text, a finite number, true, false, a list nor a table"
            yield Problem("wrong-value", message, key=".".join(key), where=setting.origin)
    wanted = {".".join(key[1:]): setting for key, setting in layer.items() if key[0] == DOTTED and key[1:]}
    yield from verl_keys.check({key: s.value for key, s in wanted.items()}, lambda key: wanted[key].origin)


def _known(task: str, hardware: str, algo: str | None, tune: str | None, folders: Sequence[Path]) -> None:
    problems: list[Problem] = []
    for kind, folder, name in (
        ("task", "", task),
        ("hardware", "hardware", hardware),
        ("algorithm", "algo", algo),
        ("tuning", "tune", tune),
    ):
        if name is not None and find(name, folders, folder) is None:
            hint = suggestion(name, names(folders, folder))
            problems.append(Problem(f"unknown-{kind}", f"there is no {kind} `{name}`", hint=hint))
    if len(problems) == 1:
        raise InvalidInput(problems[0].message, hint=problems[0].hint)
    _raise(f"there is no recipe for `{task}` on `{hardware}`", problems)
    there, wrong = offered(task, folders)
    _raise(f"recipe `{task}` is not valid", [problem for problem in wrong if problem.code != UNKNOWN_HARDWARE])
    if hardware not in there:
        raise InvalidInput(
            f"`{task}` has no recipe for `{hardware}`",
            hint=f"it has one for {', '.join(f'`{name}`' for name in there)}" if there else "omnirl recipe list",
            where=shown(find(task, folders) or Path(task)),
        )


def offered(task: str, folders: Sequence[Path]) -> tuple[list[str], list[Problem]]:
    """The hardware that a task has a recipe for, and what is wrong with how its file says so.

    Tables of a weaker file of the same name count where the stronger one extends it.
    """
    expansion = Expansion("", folders)
    problems = expansion.problems
    there: set[str] = set()
    seen: set[Path] = set()
    file = find(task, folders)
    while file and file.resolve() not in seen:
        seen.add(file.resolve())
        source = expansion.source(file)
        if source is None:
            break
        tables = source.values.get("on", {})
        if not isinstance(tables, dict):
            message = "`on` must hold one table a hardware"
            return [], [*problems, Problem("wrong-type", message, key="on", where=source.origin(("on",)))]
        for name in sorted(tables):
            if find(name, folders, "hardware"):
                there.add(name)
            else:
                hint = suggestion(name, names(folders, "hardware"))
                where = source.origin(("on", name))
                message = f"there is no hardware `{name}`"
                problems.append(Problem(UNKNOWN_HARDWARE, message, key=f"on.{name}", where=where, hint=hint))
        file = expansion.namesake(source)
    return sorted(there), problems


def _origins(recipe: Recipe, layer: Layer) -> dict[str, Setting]:
    """The origin of every setting of the recipe, in the schema's order."""
    found: dict[str, Setting] = {}

    def walk(value: Any, key: Key) -> None:
        setting = layer.get(tuple(".".join(key).split(".")))
        if isinstance(value, dict) and value and setting is None:
            for name, inner in value.items():
                walk(inner, (*key, name))
        elif setting is not None:
            found[".".join(key)] = Setting(value, setting.origin, setting.over)
        else:
            found[".".join(key)] = Setting(value, DEFAULT)

    walk(recipe.model_dump(mode="json"), ())
    return found


def _raise(message: str, problems: Sequence[Problem]) -> None:
    if not any(problem.severity == "error" for problem in problems):
        return
    ordered = tuple(sorted(dict.fromkeys(problems), key=_by_place))
    count = f"{len(ordered)} problem{'s' if len(ordered) > 1 else ''}"
    hint = "`omnirl recipe schema` describes every setting" if any(p.code == "unknown-key" for p in ordered) else None
    raise InvalidInput(f"{message} ({count})", hint=hint, problems=ordered)


def _by_place(problem: Problem) -> tuple[str, int]:
    found = re.fullmatch(r"(.*):(\d+)", problem.where or "~")
    return (found[1], int(found[2])) if found else (problem.where or "~", 0)
