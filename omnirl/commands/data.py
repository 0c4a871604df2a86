"""`omnirl data`: the data sets that can be converted, and converting one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from omnirl import console

if TYPE_CHECKING:
    from omnirl.data.prepare import Report

app = typer.Typer(help="Convert data sets to the parquet that training reads.", no_args_is_help=True)

_PREPARE_EXAMPLES = """Examples: omnirl data prepare toy --output toy-data;
omnirl data prepare gsm8k --input downloads/gsm8k --output gsm8k-data --json"""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def _complete_source(incomplete: str) -> list[tuple[str, str]]:
    from omnirl.data.sources import SOURCES

    return [(source.name, source.summary) for source in SOURCES.values() if source.name.startswith(incomplete)]


@app.command("list")
def list_sources(as_json: Json = False) -> None:
    """List the data sets that can be converted."""
    from omnirl.data.sources import SOURCES

    rows = [(source.name, source.summary, source.layout or "nothing, it makes its own") for source in SOURCES.values()]
    if as_json:
        entries = [{"name": name, "summary": summary, "input": layout} for name, summary, layout in rows]
        console.emit_json({"schema": "omnirl/sources/1", "sources": entries})
    else:
        console.table("Data sources", ("name", "what", "input folder holds"), rows)


@app.command(epilog=_PREPARE_EXAMPLES)
def prepare(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A name from `data list`.", autocompletion=_complete_source)
    ],
    *,
    output: Annotated[Path, typer.Option("--output", metavar="DIR", help="Where the parquet files go.")],
    input: Annotated[Path | None, typer.Option("--input", metavar="DIR", help="Where the original files are.")] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of made-up data.")] = 0,
    as_json: Json = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Convert, report, and keep nothing.")] = False,
) -> None:
    """Convert a data set: one parquet a split, and report.json that counts what was kept and dropped."""
    from omnirl.data import prepare as conversion
    from omnirl.data.sources import Options, find

    chosen = find(source)
    with console.progress(f"converting {chosen.name}", None) as advance:
        report = conversion.prepare(
            chosen, input=input, output=output, options=Options(seed=seed), dry_run=dry_run, advance=advance
        )
    if as_json:
        console.emit_json(report.as_dict())
    else:
        _show(report)
    if chosen.needs_input:
        for pair, count in report.shared.items():
            console.warn(f"{count} prompts are in both {pair}")
    if dry_run:
        console.note("dry run: nothing is written")


def _show(report: Report) -> None:
    rows = [
        (name, split.input, split.kept, split.input - split.kept, str(split.output))
        for name, split in report.splits.items()
    ]
    console.table(f"Converted {report.source}", ("split", "records", "kept", "dropped", "file"), rows)
    reasons = [
        (name, reason, count, split.first_drop[reason])
        for name, split in report.splits.items()
        for reason, count in split.dropped.most_common()
    ]
    if reasons:
        console.table("Dropped", ("split", "reason", "records", "first"), reasons)
