"""`omnirl data show`: rows of a data file as a person wants to see them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from omnirl import console
from omnirl.commands.recipe import AsJson

if TYPE_CHECKING:
    from omnirl.data.view.show import Shown

PAGE_ROWS = 20

EXAMPLES = """\b
Examples:
  omnirl data show data/toy/train.parquet
  omnirl data show data/toy/train.parquet --row 3 --rows 2
  omnirl data show data/toy/train.parquet --html toy.html
"""


def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A parquet file.")],
    *,
    row: Annotated[int, typer.Option("--row", metavar="N", help="The first row to show; rows count from 0.")] = 0,
    rows: Annotated[
        int | None, typer.Option("--rows", metavar="K", min=1, help=f"How many; 1, or {PAGE_ROWS} on a page.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="OUT.html", help="Write a page with pictures, sound and video.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Show rows: messages, options, label, and what their media are."""
    from omnirl.data.view import show as showing

    path = file.expanduser()
    if html is not None:
        from omnirl.data.view import page

        found = list(showing.show(path, row, rows or PAGE_ROWS))
        page.write(html, found, title=path.name)
        console.note(f"{len(found)} row{'' if len(found) == 1 else 's'} in {html}")
        if not json:
            return
    else:
        found = list(showing.show(path, row, rows or 1))
    if json:
        shown = [one.as_dict() for one in found]
        console.emit_json(
            {"schema": showing.SCHEMA, "file": path, "rows": shown, "html": None if html is None else html}
        )
        return
    for number, one in enumerate(found):
        if number:
            console.line()
        _print(one)


def _print(row: Shown) -> None:
    from omnirl.data.view.page import said_of

    console.line(f"row {row.number}" + (f"  {row.data_source}" if row.data_source else ""))
    for role, content in row.messages:
        _field(role, content)
    for option in row.options:
        _field("option", option)
    if row.label is not None:
        _field("ground truth", row.label)
    for name, text in row.candidates.items():
        _field(name, text)
    for item in row.media:
        said = ", ".join(said_of(item))
        name = "in the row" if item.path is None else str(item.path)
        _field(item.kind, name + (f": {item.fault}" if item.fault else "") + (f" ({said})" if said else ""))
    for name, value in row.rest.items():
        _field(name, str(value))


def _field(name: str, text: str) -> None:
    first, *others = text.splitlines() or [""]
    console.line(f"  {name}: {first}")
    for line in others:
        console.line(f"    {line}")
