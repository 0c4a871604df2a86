"""The data files of a recipe: whether they are there and readable, by their footers alone."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from omnirl.data import store
from omnirl.data.checks.columns import required
from omnirl.data.sources import SOURCES
from omnirl.doctor.check import Check, Target
from omnirl.errors import OmniError

if TYPE_CHECKING:
    from omnirl.recipe.model import Recipe


def check(target: Target) -> Iterator[Check]:
    """One finding for each of data.train, data.val and data.probe; nothing without a recipe."""
    if target.recipe is None:
        return
    data = target.recipe.data
    for key, names in (("data.train", data.train), ("data.val", data.val), ("data.probe", data.probe)):
        if names:
            yield files(key, [Path(name).expanduser() for name in names], data.source)


def training_rows(recipe: Recipe) -> int | None:
    """Rows of the training files together; None if one cannot be read."""
    try:
        return sum(store.inspect(Path(name).expanduser(), required=()).rows for name in recipe.data.train)
    except OmniError:
        return None


def files(key: str, paths: list[Path], source: str) -> Check:
    """Whether parquet files are readable, and how many rows they have."""
    wanted = "parquet files with the columns of a row"
    rows = 0
    for path in paths:
        try:
            facts = store.inspect(path, required=())
            store.inspect(path, required=required(facts.columns))
        except OmniError as error:
            return Check(
                key, "fail", error.message, wanted, _prepare(source, path) if not path.exists() else error.hint
            )
        rows += facts.rows
    return Check(key, "ok", f"{rows} rows in {len(paths)} file{'' if len(paths) == 1 else 's'}")


def _prepare(source: str, path: Path) -> str:
    known = SOURCES.get(source)
    if known is None:
        return "--set 'data.train = \"FILE.parquet\"'"
    # Some sources make a folder for each kind of rows, below the one that is named after them.
    folder = next((one for one in path.parents if one.name == source), path.parent)
    given = " --input DIR" if known.needs_input else ""
    return f"omnirl data prepare {source}{given} --output {shlex.quote(str(folder))}"
