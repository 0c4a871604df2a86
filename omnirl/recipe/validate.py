"""From merged layers to a typed recipe; the schema's complaints in plain words, each with its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from omnirl.errors import Problem
from omnirl.recipe.layers import KINDS, Layer, Setting, nest
from omnirl.recipe.model import Recipe, kinds_of, stand_in
from omnirl.recipe.model import settings as all_settings
from omnirl.recipe.search import nearest
from omnirl.recipe.source import Key

_ROUNDS = 8
_LONGEST = 200
"""Characters of a wrong text that are shown."""

_NOUNS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": 'text, such as `"this"`',
    "bool_type": "`true` or `false`",
    "list_type": "a list, such as `[1, 2]`",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}
_BOUNDS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}


@dataclass
class Outcome:
    """What came of checking layers against the schema.

    `recipe` is there even when problems were found, if the rest could be understood: then `doubtful` lists the settings
    (or whole tables) whose values are a guess, so that rules can leave them out.
    """

    recipe: Recipe | None
    problems: list[Problem] = field(default_factory=list)
    doubtful: set[str] = field(default_factory=set)
    guessed: set[str] = field(default_factory=set)
    """Tables whose kind is a guess: what they lack is not the user's mistake."""


def validate(layer: Layer, file: str) -> Outcome:
    """Check merged layers against the schema; `file` is where a missing setting should be added."""
    settings = dict(layer)
    outcome = Outcome(None)
    for _ in range(_ROUNDS):
        try:
            outcome.recipe = Recipe.model_validate(nest(settings))
        except ValidationError as error:
            before = dict(settings)
            _take(error.errors(include_url=False), settings, outcome, file)
            if settings == before:
                break
        else:
            break
    return outcome


def place(layer: Mapping[Key, Setting], key: str) -> str | None:
    """Where a setting was set, or the first setting of a table."""
    path = tuple(key.split("."))
    if path in layer:
        return layer[path].origin
    return next((setting.origin for other, setting in layer.items() if other[: len(path)] == path), None)


def _take(errors: Sequence[ErrorDetails], settings: dict[Key, Setting], outcome: Outcome, file: str) -> None:
    """Report each error and change `settings` so that the others can be seen in a next round."""
    data = nest(settings)
    meant: set[str] = set()
    missing: list[str] = []
    for error in errors:
        path = _path(error, data)
        key = ".".join(path)
        if any(key == old or key.startswith(f"{old}.") for old in outcome.doubtful):
            _forget(path, settings)
        elif error["type"] == "missing":
            missing.append(key)
        elif error["type"] == "extra_forbidden":
            found, hint = _unknown(key)
            outcome.problems.append(
                Problem("unknown-key", f"there is no setting `{key}`", key=key, where=place(settings, key), hint=hint)
            )
            if found:
                meant.add(found)
            _rename(path, found, settings, outcome)
        else:
            # A wrong kind is told where the kind is written, not at the first setting of its table.
            where = place(settings, f"{key}.kind") if error["type"] == "union_tag_invalid" else None
            outcome.problems.append(_wrong(error, key, where or place(settings, key)))
            _fall_back(error, path, settings, outcome)
    for key in missing:
        if key not in meant and key not in outcome.doubtful and key.partition(".")[0] not in outcome.guessed:
            hint = _brought_by(key, data) or f"add `{key}` to {file}"
            outcome.problems.append(Problem("missing", "must be set", key=key, where=file, hint=hint))
            outcome.doubtful.add(key)
        _stand_in(key, settings)


def _brought_by(key: str, data: Mapping[str, Any]) -> str | None:
    """For a setting of a kind whose fragment was not laid below: how to get it."""
    table, _, name = key.partition(".")
    return f"`--{table} {data[table]['kind']}` brings it" if table in KINDS and name else None


def _stand_in(key: str, settings: dict[Key, Setting]) -> None:
    value = stand_in(key)
    if value is not None:
        settings.setdefault(tuple(key.split(".")), Setting(value, ""))


def _path(error: ErrorDetails, data: Any) -> Key:
    """The setting's path: without the names of union members and positions in lists, which the schema adds."""
    path: list[str] = []
    at = data
    *leading, last = error["loc"] or ("",)
    for part in leading:
        if isinstance(at, dict) and part in at:
            at = at[part]
            path.append(str(part))
    if isinstance(last, str) and isinstance(at, dict) and (last in at or error["type"] == "missing"):
        path.append(last)
    return tuple(path)


def _unknown(key: str) -> tuple[str | None, str | None]:
    """The setting that was meant, and the hint to give."""
    if kinds := kinds_of(key):
        table = key.partition(".")[0]
        return None, f"only `{table}.kind = " + '" or "'.join(kinds).join('""') + "` has it"
    known = list(dict.fromkeys(all_settings()))
    table, _, name = key.rpartition(".")
    beside = [other for other in known if other.rpartition(".")[0] == table]
    same_name = [other for other in known if other.rpartition(".")[2] == name]
    found = nearest(key, beside) or (same_name[0] if len(same_name) == 1 else None) or nearest(key, known)
    if found:
        return found, f"did you mean `{found}`?"
    tables = sorted({other.partition(".")[0] for other in known})
    close = nearest(key.partition(".")[0], tables)
    return None, f"did you mean the table `{close}`?" if close else "`omnirl recipe schema` describes every setting"


def _rename(path: Key, meant: str | None, settings: dict[Key, Setting], outcome: Outcome) -> None:
    """Go on as if the right key had been written, so that its value is checked too."""
    setting = settings.get(path)
    _forget(path, settings)
    if meant is None:
        return
    target = tuple(meant.split("."))
    if setting is not None and target not in settings:
        settings[target] = setting
    else:
        outcome.doubtful.add(meant)


def _fall_back(error: ErrorDetails, path: Key, settings: dict[Key, Setting], outcome: Outcome) -> None:
    """Put the weaker value in place of a wrong one, or take it out."""
    key = ".".join(path)
    if error["type"] == "union_tag_invalid":
        kind = settings.get((*path, "kind"))
        close = nearest(str(kind.value), _tags(error)) if kind else None
        if kind and close:
            settings[(*path, "kind")] = Setting(close, kind.origin)
            outcome.guessed.add(key)
            return
    outcome.doubtful.add(key)
    wrong = settings.get(path)
    _forget(path, settings)
    if wrong is not None and wrong.over:
        settings[path] = Setting(wrong.over[0].value, wrong.over[0].origin, wrong.over[1:])
    else:
        _stand_in(key, settings)


def _forget(path: Key, settings: dict[Key, Setting]) -> None:
    for key in [key for key in settings if key[: len(path)] == path]:
        del settings[key]


def _tags(error: ErrorDetails) -> list[str]:
    return [tag.strip(" '") for tag in error.get("ctx", {}).get("expected_tags", "").split(",")]


def _wrong(error: ErrorDetails, key: str, where: str | None) -> Problem:
    kind, context = error["type"], error.get("ctx", {})
    item = next((part for part in reversed(error["loc"]) if isinstance(part, int)), None)
    lead = f"item {item + 1} " if item is not None else ""
    for describe in (_of_type, _of_choice, _of_size):
        if message := describe(kind, context, error):
            return Problem("wrong-value", lead + message, key=key, where=where)
    if kind == "value_error":
        return Problem("wrong-value", lead + str(context["error"]), key=key, where=where)
    return Problem(
        "wrong-value", f"{lead}is not valid: {error['msg'][:1].lower()}{error['msg'][1:]}", key=key, where=where
    )


def _of_type(kind: str, _: Mapping[str, Any], error: ErrorDetails) -> str | None:
    return f"must be {_NOUNS[kind]}, not {_said(error['input'])}" if kind in _NOUNS else None


def _of_choice(kind: str, context: Mapping[str, Any], error: ErrorDetails) -> str | None:
    if kind == "literal_error":
        choices = context["expected"].replace("'", "`")
        return f"must be {choices}, not {_said(error['input'])}"
    if kind == "union_tag_invalid":
        choices = " or ".join(f"`{tag}`" for tag in _tags(error))
        return f"its `kind` must be {choices}, not `{context['tag']}`"
    if kind == "union_tag_not_found":
        return "needs a `kind`"
    return None


def _of_size(kind: str, context: Mapping[str, Any], error: ErrorDetails) -> str | None:
    if kind in _BOUNDS:
        word, name = _BOUNDS[kind]
        return f"must be {word} {context[name]:g}, not {_said(error['input'])}"
    if kind == "string_too_short":
        return "must not be empty"
    if kind == "too_short":
        return f"needs at least {context['min_length']} item(s)"
    if kind == "too_long":
        return f"takes at most {context['max_length']} items"
    return None


_KINDS: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (bool, lambda value: f"`{str(value).lower()}`"),
    (str, lambda value: f'the text `"{value if len(value) <= _LONGEST else value[:_LONGEST] + "..."}"`'),
    (list, lambda _: "a list"),
    (dict, lambda _: "a table"),
)


def _said(value: Any) -> str:
    return next((say(value) for kind, say in _KINDS if isinstance(value, kind)), f"`{value}`")
