"""What the shell offers after TAB: names of recipe files, and settings from the schema file beside them.

Nothing here parses a recipe or imports pydantic: a TAB must not take longer than typing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omnirl.recipe.search import find, names, search_path, shipped

_ON = re.compile(r"^\s*\[\s*on\.([\w-]+)", re.MULTILINE)
"""The head of a table for some hardware, close enough for a shell."""


def tasks(incomplete: str) -> list[str]:
    """Tasks on the search path."""
    return _starting("", incomplete)


def hardware(incomplete: str) -> list[str]:
    """Hardware on the search path."""
    return _starting("hardware", incomplete)


def algos(incomplete: str) -> list[str]:
    """Algorithms on the search path."""
    return _starting("algo", incomplete)


def tunes(incomplete: str) -> list[str]:
    """Ways of tuning on the search path."""
    return _starting("tune", incomplete)


def sides(incomplete: str) -> list[str]:
    """What `recipe diff` compares: `TASK/`, then `TASK/HARDWARE`; runs as well."""
    folders = search_path()
    task, slash, rest = incomplete.partition("/")
    if slash:
        file = find(task, folders)
        text = file.read_text(encoding="utf-8", errors="replace") if file else ""
        there = dict.fromkeys(_ON.findall(text))
        return [f"{task}/{name}" for name in sorted(there) if name.startswith(rest)]
    from omnirl.run.record import runs

    made = [run.name for run in runs(Path(os.environ.get("OMNIRL_RUNS") or "runs"))]
    return [word for word in (*(f"{name}/" for name in names(folders)), *made) if word.startswith(incomplete)]


def settings(incomplete: str) -> list[str]:
    """The start of a `--set` word: every setting that begins so."""
    try:
        schema = json.loads((shipped() / "recipe.schema.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    found = dict.fromkeys(_keys(schema, schema.get("$defs", {})))
    return [
        f"{key} = " for key in found if key.startswith(incomplete) and key.partition(".")[0] not in ("on", "extends")
    ]


def _starting(kind: str, incomplete: str) -> list[str]:
    return [name for name in names(search_path(), kind) if name.startswith(incomplete)]


def _keys(schema: Mapping[str, Any], definitions: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, inner in schema.get("properties", {}).items():
        options = [inner, *inner.get("anyOf", [])]
        tables = [definitions[option["$ref"].rpartition("/")[2]] for option in options if "$ref" in option]
        if not tables:
            yield prefix + name
        for table in tables:
            yield from _keys(table, definitions, f"{prefix}{name}.")
