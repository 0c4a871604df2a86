"""`omnirl recipe new`: a recipe of one's own that extends a task."""

from __future__ import annotations

import os
import re
from pathlib import Path

from omnirl import console
from omnirl.errors import InvalidInput, UsageMistake

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", re.ASCII)


def new(name: str, task: str, *, hardware: str, output: Path | None) -> Path:
    """Write `name`.toml; it can be used at once. Returns its path.

    Args:
        hardware: the one to make a table for; empty for all that the task has a recipe for.
        output: the folder; otherwise the first of OMNIRL_RECIPES, else `recipes` here.

    Raises:
        UsageMistake: a name that cannot be a task's, or a file that is there already.
        InvalidInput: there is no such task or pair, or it is not right.
        EnvironmentLacks: the file cannot be written.
    """
    from omnirl.files import disk_faults, write_text
    from omnirl.recipe import draft, registry, search

    folders = search.search_path()
    known = search.names(folders)
    folder = output or _users_folder()
    path = folder / f"{name}.toml"
    _check_name(name)
    if os.path.lexists(path) and folder.resolve() != search.shipped().resolve():
        raise UsageMistake(f"there is already a recipe at `{path}`", hint="choose another NAME, or change that file")
    if name in known and name != task:
        hint = f"choose another NAME, or change that one: omnirl recipe new {name} --from {name}"
        raise UsageMistake(f"there is already a task `{name}`", hint=hint, where="NAME")
    if task not in known:
        raise InvalidInput(f"there is no task `{task}`", hint=search.suggestion(task, known), where="--from")
    there, _ = registry.offered(task, folders)
    wanted = [hardware] if hardware else there
    if not wanted:
        raise InvalidInput(f"`{task}` has no recipe for any hardware", where="--from", hint="omnirl recipe list")
    text = draft.draft(name, [registry.resolve(task, each) for each in wanted])
    if folder.resolve() == search.shipped().resolve():
        hint = f"omnirl recipe new {name} --from {task} --output DIR"
        raise UsageMistake(f"`{folder}` has the recipes that come with omnirl", hint=hint)
    with disk_faults(path):
        folder.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    for each in wanted:
        registry.resolve(name, each, search=(folder,))
    _tell(name, wanted[0], folder)
    return path


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        hint = f"write `{name.removesuffix('.toml')}`" if name.endswith(".toml") else "use letters, digits, `_` and `-`"
        raise UsageMistake(f"`{name}` cannot name a recipe", hint=hint, where="NAME")


def _users_folder() -> Path:
    named = [part for part in os.environ.get("OMNIRL_RECIPES", "").split(os.pathsep) if part]
    return Path(named[0]).expanduser() if named else Path("recipes")


def _tell(name: str, hardware: str, folder: Path) -> None:
    from omnirl.recipe import search

    if search.find(name, search.search_path()) is None:
        console.note(f"to use it: export OMNIRL_RECIPES={folder.absolute()}")
    console.note(f"look at it: omnirl recipe show {name} --on {hardware} --origin")
