"""Layers of settings: TOML files and `--set` words, merged weakest first, each value with its origin."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omnirl.errors import InvalidInput, Problem
from omnirl.recipe.search import suggestion
from omnirl.recipe.source import Key, Source, bare_word, plain, read, shown

KINDS = {"tune": ("lora", "full"), "algo": ("gspo", "dapo", "opd", "dpo")}
"""Tables whose `kind` decides which other settings they have, and the kinds that there are."""

CLASH = "table-or-value"

DOTTED = "verl"
"""The table whose keys are dotted paths of verl's own, whether quoted or not."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A value, where it was set, and the weaker values it replaced, strongest first.

    `origin` is `file:line`, `env NAME`, `--set` or `default`.
    """

    value: Any
    origin: str
    over: tuple[Setting, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        over = [{"value": weaker.value, "origin": weaker.origin} for weaker in self.over]
        return {"value": self.value, "origin": self.origin, "over": over}


Layer = Mapping[Key, Setting]
"""Settings by path. A table without keys is a setting whose value is `{}`."""


def merge(weaker: Layer, stronger: Layer, problems: list[Problem]) -> dict[Key, Setting]:
    """Lay one layer over another; lists replace whole.

    A new `kind` drops the weaker settings of its table. A value where the other layer has a table is reported in
    `problems`, and the stronger one is kept.
    """
    merged = dict(_surviving_kinds(weaker, stronger))
    for key, setting in stronger.items():
        for end in range(1, len(key)):
            blocking = merged.get(key[:end])
            if blocking is None:
                continue
            del merged[key[:end]]
            if blocking.value != {}:
                problems.append(_clash(key[:end], setting.origin, "a table", blocking.origin, "a value"))
        below = [other for other in merged if other[: len(key)] == key and other != key]
        if below and setting.value == {}:
            continue
        if below:
            problems.append(_clash(key, setting.origin, "a value", merged[below[0]].origin, "a table"))
            for other in below:
                del merged[other]
        merged[key] = _over(merged.get(key), setting)
    return merged


def _surviving_kinds(weaker: Layer, stronger: Layer) -> Iterator[tuple[Key, Setting]]:
    changed = set()
    for table, kinds in KINDS.items():
        old, new = weaker.get((table, "kind")), stronger.get((table, "kind"))
        # A misspelt kind drops nothing, so that its table can still be checked.
        if old and new and old.value != new.value and new.value in kinds:
            changed.add(table)
    for key, setting in weaker.items():
        if key[0] not in changed or key[1:] == ("kind",):
            yield key, setting


def _over(weaker: Setting | None, stronger: Setting) -> Setting:
    if weaker is None:
        return stronger
    return replace(stronger, over=(*stronger.over, replace(weaker, over=()), *weaker.over))


def _clash(key: Key, here: str, this: str, there: str, that: str) -> Problem:
    dotted = ".".join(key)
    return Problem(
        CLASH,
        f"`{dotted}` is {this} here but {that} at {there}",
        key=dotted,
        where=here,
        hint="keep one of them",
    )


def flatten(values: Mapping[str, Any], source: Source, problems: list[Problem], skip: Iterable[str] = ()) -> Layer:
    """The settings of a file's (or of one of its tables') values.

    Args:
        values: what the TOML parser gave, at the top of the file.
        source: the file, for origins.
        problems: gets values that no setting can take (dates, infinities) and verl keys given twice.
        skip: top-level keys to leave out.
    """
    layer: dict[Key, Setting] = {}
    for path, value in _leaves({k: v for k, v in values.items() if k not in skip}):
        if path[0] != DOTTED and any("." in name or not name for name in path):
            quoted = ".".join(json.dumps(name) if "." in name or not name else name for name in path)
            hint = f"without quotes: `{'.'.join(path)} = ...`"
            said = f"`{quoted}` is a quoted key, which no setting has"
            problems.append(Problem("quoted-key", said, key=quoted, where=source.origin(path), hint=hint))
            continue
        key = (DOTTED, *".".join(path[1:]).split(".")) if path[0] == DOTTED and path[1:] else path
        if key in layer:
            again = f"`{'.'.join(key)}` is set twice, here and at {layer[key].origin}"
            problems.append(Problem("set-twice", again, key=".".join(key), where=source.origin(path)))
        layer[key] = Setting(value, source.origin(path))
    return layer


def _leaves(values: Mapping[str, Any], prefix: Key = ()) -> Iterator[tuple[Key, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*prefix, name))
        else:
            yield (*prefix, name), value


def parse_set(word: str) -> Layer:
    """The layer of one `--set 'KEY = VALUE'`.

    Raises:
        InvalidInput: it is not `KEY = VALUE` in TOML's own grammar.
    """
    try:
        values = tomllib.loads(word)
    except tomllib.TOMLDecodeError as error:
        message, _ = plain(error, word)
        hint = bare_word(word) or "write it as in a recipe file: `--set 'train.steps = 3'`"
        raise InvalidInput(f"`{word}` {message}", where="--set", hint=hint) from error
    if not values:
        raise InvalidInput(f"`{word}` sets nothing", where="--set", hint="write `--set 'train.steps = 3'`")
    for name in ("extends", "on"):
        if name in values:
            raise InvalidInput(f"`{name}` belongs in a recipe file", where="--set", hint="set single values")
    source = Source(Path(), "--set", values, {})
    problems: list[Problem] = []
    layer = flatten(values, source, problems)
    if problems:
        raise InvalidInput(problems[0].message, where="--set", hint=problems[0].hint)
    return layer


def nest(layer: Layer) -> dict[str, Any]:
    """The layer as nested dictionaries; keys of verl stay dotted."""
    values: dict[str, Any] = {}
    for key, setting in layer.items():
        path = (DOTTED, ".".join(key[1:])) if key[0] == DOTTED and key[1:] else key
        at = values
        for name in path[:-1]:
            at = at.setdefault(name, {})
        at[path[-1]] = setting.value
    return values


@dataclass
class Expansion:
    """Reads files, follows `extends` and picks the `[on.<hardware>]` tables.

    Attributes:
        folders: the search path for `extends`, after the file's own folder.
        problems: everything found wrong so far; reading goes on after each.
        visited: the files that took part, the weakest first.
    """

    hardware: str
    folders: Sequence[Path]
    problems: list[Problem] = field(default_factory=list)
    visited: list[Path] = field(default_factory=list)
    _read: dict[Path, Source | None] = field(default_factory=dict)

    def layers(self, path: Path, trail: tuple[tuple[Path, str], ...] = ()) -> list[Layer]:
        """The layers of one file, weakest first.

        They are what it extends (left to right, depth first), the file itself, what its table for the hardware
        extends, and that table. `trail` holds the files that led here, each with the line of its `extends`.
        """
        source = self.source(path)
        if source is None:
            return []
        values = source.values
        found = self._extended(source, values, ("extends",), trail)
        found.append(flatten(values, source, self.problems, skip=("extends", "on")))
        on = self._on(source)
        if on is not None:
            own = {name: value for name, value in on.items() if name != "extends"}
            found += self._extended(source, on, ("on", self.hardware, "extends"), trail)
            found.append(flatten(own, _within(source, ("on", self.hardware)), self.problems))
        self.visited.append(path.resolve())
        return found

    def whole(self, path: Path, trail: tuple[tuple[Path, str], ...] = ()) -> Layer:
        """The layers of one file as one, so that a fragment's `kind` does not drop what the fragment itself extends."""
        merged: dict[Key, Setting] = {}
        for layer in self.layers(path, trail):
            merged = merge(merged, layer, self.problems)
        return merged

    def latest(self, kind: str) -> Path | None:
        """The strongest file of a folder of fragments (`algo` or `tune`) that took part so far."""
        return next((path for path in reversed(self.visited) if path.parent.name == kind), None)

    def source(self, path: Path) -> Source | None:
        """The file at `path`, or None when it is unreadable, which is then among `problems`."""
        if path not in self._read:
            try:
                self._read[path] = read(path)
            except InvalidInput as error:
                self._read[path] = None
                self.problems.append(Problem("unreadable", error.message, where=error.where, hint=error.hint))
        return self._read[path]

    def namesake(self, source: Source) -> Path | None:
        """The file of the same name that a file extends: a user's `toy.toml` the shipped one."""
        wanted = source.values.get("extends", [])
        own = source.path.name
        if not isinstance(wanted, list) or own not in wanted:
            return None
        return next((file for file in self._found(own, source) if file.resolve() != source.path.resolve()), None)

    def _found(self, name: str, source: Source) -> list[Path]:
        """Files that `name` in a file's `extends` may mean, strongest first.

        A file that extends its own name means the next weaker file of that name: not itself, nor one that stands
        before it.
        """
        found = [file for folder in (source.path.parent, *self.folders) if (file := folder / name).is_file()]
        own = [number for number, file in enumerate(found) if file.resolve() == source.path.resolve()]
        return found[own[-1] + 1 :] if own and own[-1] + 1 < len(found) else found

    def _on(self, source: Source) -> dict[str, Any] | None:
        tables = source.values.get("on", {})
        if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
            where = source.origin(("on",))
            self.problems.append(Problem("wrong-type", "`on` must hold one table a hardware", key="on", where=where))
            return None
        table: dict[str, Any] | None = tables.get(self.hardware)
        return table

    def _extended(
        self, source: Source, values: Mapping[str, Any], key: Key, trail: tuple[tuple[Path, str], ...]
    ) -> list[Layer]:
        wanted = values.get("extends", [])
        where = source.origin(key)
        if not isinstance(wanted, list) or not all(isinstance(name, str) for name in wanted):
            what = "must be a list of file names"
            self.problems.append(
                Problem("wrong-type", what, key="extends", where=where, hint='`extends = ["algo/gspo.toml"]`')
            )
            return []
        found: list[Layer] = []
        for name in wanted:
            target = self._locate(name, source, where)
            if target is None:
                continue
            here = (*trail, (source.path.resolve(), where))
            back = next((line for path, line in here if path == target.resolve()), None)
            if back is not None:
                what = f"`{name}` extends this file again: the circle starts at {back}"
                self.problems.append(Problem("circle", what, key="extends", where=where, hint="take one of them out"))
                continue
            found.append(self.whole(target, here))
        return found

    def _locate(self, name: str, source: Source, where: str) -> Path | None:
        found = self._found(name, source)
        if found:
            return Path(os.path.normpath(found[0]))
        near = {
            file.relative_to(folder).as_posix()
            for folder in self.folders
            for file in folder.rglob("*.toml")
            if file != source.path
        }
        self.problems.append(
            Problem(
                "no-such-file",
                f"there is no `{name}` to extend beside {shown(source.path)} or on the search path",
                key="extends",
                where=where,
                hint=suggestion(name, sorted(near)),
            )
        )
        return None


def _within(source: Source, table: Key) -> Source:
    lines = {
        key[len(table) :]: line for key, line in source.lines.items() if key[: len(table)] == table and key != table
    }
    return replace(source, lines=lines)
