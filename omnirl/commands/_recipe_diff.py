"""`omnirl recipe diff`: two recipes side by side, each a pair or a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnirl import console
from omnirl.errors import InvalidInput, UsageMistake

if TYPE_CHECKING:
    from omnirl.recipe.layers import Setting

WORDS = "words after --"


@dataclass(frozen=True, slots=True)
class Side:
    """One side of the comparison: `pair` or `run`, and its settings."""

    name: str
    kind: str
    task: str | None
    hardware: str | None
    settings: Mapping[str, Setting] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "kind": self.kind, "task": self.task, "hardware": self.hardware}


def diff(a: str, b: str, *, sets: Sequence[str], runs: Path, as_json: bool) -> bool:
    """Print what differs between `a` and `b`. Returns whether anything does.

    Raises:
        UsageMistake: a side is neither a pair nor a run, or `sets` is given where no side is a pair.
        InvalidInput: a side cannot be resolved or read.
    """
    from omnirl.recipe.compare import differences

    sides = [_side(text, sets, runs) for text in (a, b)]
    if sets and not any(side.kind == "pair" for side in sides):
        raise UsageMistake("`--set` changes pairs, and both are runs", where="--set")
    found = differences(sides[0].settings, sides[1].settings)
    if as_json:
        listed = [difference.as_dict() for difference in found]
        left, right = (side.as_dict() for side in sides)
        console.emit_json({"schema": "omnirl/recipe-diff/1", "a": left, "b": right, "differences": listed})
    elif found:
        columns = ("setting", a, "from", b, "from")
        rows = [(d.key, *_cells(d.a), *_cells(d.b)) for d in found]
        console.table("Differences", columns, rows)
    else:
        console.line(f"{a} and {b} are equal")
    return bool(found)


def _side(text: str, sets: Sequence[str], runs: Path) -> Side:
    from omnirl.recipe import search

    folders = search.search_path()
    task, slash, rest = text.partition("/")
    known = search.names(folders)
    path = Path(text).expanduser()
    if slash and rest and task in known and not (path / "recipe.json").is_file():
        return _pair(text, task, rest.split("/"), sets, folders)
    run = _run(text, path, runs)
    if run is not None:
        return run
    if text in known:
        raise UsageMistake(f"`{text}` lacks its hardware", hint=f"write `{text}/HARDWARE`: omnirl recipe list")
    hint = None
    if slash and "/" not in rest:
        near = search.nearest(task, known)
        hint = f"did you mean `{near}/{rest}`?" if near else None
    raise UsageMistake(
        f"`{text}` is neither TASK/HARDWARE nor a run in `{runs}`", hint=hint or "omnirl recipe list; omnirl run list"
    )


def _pair(text: str, task: str, parts: Sequence[str], sets: Sequence[str], folders: Sequence[Path]) -> Side:
    from omnirl.recipe import registry, search

    hardware, *fragments = parts
    chosen: dict[str, str] = {}
    for name in fragments:
        kind = next((kind for kind in ("algo", "tune") if search.find(name, folders, kind)), None)
        if kind is None:
            there = [*search.names(folders, "algo"), *search.names(folders, "tune")]
            raise UsageMistake(
                f"`{name}` in `{text}` is no algorithm and no tuning", hint=search.suggestion(name, there)
            )
        chosen[kind] = name
    resolved = registry.resolve(task, hardware, algo=chosen.get("algo"), tune=chosen.get("tune"), sets=sets)
    return Side(text, "pair", task, hardware, resolved.origins)


def _run(text: str, path: Path, runs: Path) -> Side | None:
    """The run of that name or folder; None where there is none."""
    from omnirl.recipe.compare import recorded
    from omnirl.recipe.layers import Setting
    from omnirl.run.record import Run

    if path.name == "recipe.json" and path.is_file():
        path = path.parent
    folder = next((folder for folder in (runs / text, path) if (folder / "recipe.json").is_file()), None)
    if folder is None:
        if (runs / text / "run.json").is_file() or (path / "run.json").is_file():
            raise InvalidInput(f"run `{text}` has no recipe.json")
        return None
    run = Run(folder.absolute())
    document = run.recipe()
    settings = recorded(document)
    words = run.document().get("words")
    if isinstance(words, list) and words:
        settings[WORDS] = Setting(words, "run.json")
    return Side(text, "run", _text(document.get("task")), _text(document.get("hardware")), settings)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _cells(setting: Setting | None) -> tuple[str | None, str | None]:
    import json

    if setting is None:
        return None, None
    return json.dumps(setting.value, ensure_ascii=False), setting.origin
