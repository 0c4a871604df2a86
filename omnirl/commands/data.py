"""`omnirl data`: the data sets that can be converted, and converting one."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnirl import console
from omnirl.commands import _data_check, _data_show
from omnirl.errors import UsageMistake

if TYPE_CHECKING:
    from omnirl.data.report import Report

app = typer.Typer(help="Convert data sets to the parquet that training reads.", no_args_is_help=True)

_PREPARE_EXAMPLES = """Examples: omnirl data prepare toy --output toy-data;
omnirl data prepare gsm8k --input downloads/gsm8k --output gsm8k-data --json;
omnirl data prepare nextqa --input downloads --output data/nextqa --max-frames 16"""

_SHOWN_ANSWERS = 12
_CHECKS = "Checks"
_VIDEOS = "Videos"

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


class Probe(StrEnum):
    """Who judges audio and video files."""

    auto = "auto"
    ffmpeg = "ffmpeg"


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
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", min=0, help="Seed of made-up data and of splits made here.")
    ] = None,
    max_drop: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Refuse a split that loses a larger share of its records.", rich_help_panel=_CHECKS
        ),
    ] = 0.5,
    probe: Annotated[
        Probe,
        typer.Option(
            help="auto decodes here and asks ffmpeg about failures; ffmpeg asks it alone.", rich_help_panel=_CHECKS
        ),
    ] = Probe.auto,
    verify_media: Annotated[
        bool,
        typer.Option(
            "--verify-media/--no-verify-media",
            help="Decode media, or only look whether they are there.",
            rich_help_panel=_CHECKS,
        ),
    ] = True,
    allow_outside: Annotated[
        bool,
        typer.Option(
            "--allow-outside", help="Follow names and links of media out of the input folder.", rich_help_panel=_CHECKS
        ),
    ] = False,
    fps: Annotated[float, typer.Option(min=0.01, help="Frames a second.", rich_help_panel=_VIDEOS)] = 1.0,
    min_pixels: Annotated[int, typer.Option(min=1, help="Least pixels per frame.", rich_help_panel=_VIDEOS)] = 25088,
    max_pixels: Annotated[int, typer.Option(min=1, help="Most pixels per frame.", rich_help_panel=_VIDEOS)] = 100352,
    max_frames: Annotated[int, typer.Option(min=2, help="Most frames per video.", rich_help_panel=_VIDEOS)] = 32,
    as_json: Json = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Convert, report, and keep nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Convert again though nothing has changed.")] = False,
) -> None:
    """Convert a data set: one parquet a split, and report.json that counts what was kept and dropped.

    Nothing is done when the output folder holds the same conversion of the same files.
    """
    from omnirl.data import prepare as conversion
    from omnirl.data.sources import Options, Sampling, find

    chosen = find(source)
    if max_pixels < min_pixels:
        raise UsageMistake(f"--max-pixels {max_pixels} is below --min-pixels {min_pixels}", where="--max-pixels")
    options = Options(seed=seed, allow_outside=allow_outside, video=Sampling(fps, min_pixels, max_pixels, max_frames))
    checks = conversion.Checks(verify_media=verify_media, probe=probe.value, max_drop=max_drop)
    with console.progress(f"converting {chosen.name}", None) as advance:
        report = conversion.prepare(
            chosen,
            input=input,
            output=output,
            options=options,
            checks=checks,
            force=force,
            dry_run=dry_run,
            advance=advance,
        )
    if as_json:
        console.emit_json(report.as_dict())
    else:
        _show(report)
    if chosen.needs_input:
        for pair, count in report.shared.items():
            console.warn(f"{count} prompts are in both {pair}")
    if report.unchanged:
        console.note("nothing has changed since this was converted; --force converts again")
    if dry_run:
        console.note("dry run: nothing is written")


def _show(report: Report) -> None:
    rows = [
        (name, split.input, split.kept, split.input - split.kept, str(split.output))
        for name, split in report.splits.items()
    ]
    console.table(f"Converted {report.source}", ("split", "records", "kept", "dropped", "file"), rows)
    for title, columns, more in (
        ("Dropped", ("split", "reason", "records", "first"), _drops(report)),
        ("Answers", ("split", "answers"), _answers(report)),
        ("Media", ("split", "kind", "files", "usable", "unusable", "silent"), _media(report)),
    ):
        if more:
            console.line()
            console.table(title, columns, more)


def _drops(report: Report) -> list[tuple[Any, ...]]:
    return [
        (name, reason, count, split.first_drop[reason])
        for name, split in report.splits.items()
        for reason, count in split.dropped.most_common()
    ]


def _answers(report: Report) -> list[tuple[Any, ...]]:
    return [
        (name, _counts(dict(sorted(split.answers.items()))))
        for name, split in report.splits.items()
        if 0 < len(split.answers) <= _SHOWN_ANSWERS
    ]


def _media(report: Report) -> list[tuple[Any, ...]]:
    return [
        (name, kind, found["unique"], found["usable"], _counts(found["unusable"]) or "-", found.get("silent"))
        for name, split in report.splits.items()
        for kind, found in split.media.items()
    ]


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


app.command("check", epilog=_data_check.EXAMPLES)(_data_check.check)
app.command("show", epilog=_data_show.EXAMPLES)(_data_show.show)
