"""`omnirl score`: score responses again."""

from __future__ import annotations

import json as json_lines
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnirl import console
from omnirl.commands.recipe import AsJson
from omnirl.errors import InvalidInput, UsageMistake

if TYPE_CHECKING:
    from omnirl.reward.options import Settings
    from omnirl.reward.rescore import Scored, Scorer, Totals
    from omnirl.reward.rollouts import Row

EXAMPLES = """Examples: omnirl score rollouts.jsonl --reward gsm8k;
omnirl score rollouts/ --reward mmk12 --explain --show 5;
omnirl score rollouts.jsonl --reward choice --compare mine.py:score"""

_TAIL = 60


def _complete_scorer(incomplete: str) -> list[str]:
    from omnirl.reward.scorers import SCORERS

    return [name for name in SCORERS if name.startswith(incomplete)]


def score(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="JSON lines or parquet, a folder of them, or `-` for stdin.")
    ],
    *,
    reward: Annotated[
        str,
        typer.Option(
            "--reward",
            metavar="SCORER",
            help="choice, gsm8k, mmk12 or FILE.py:function.",
            autocompletion=_complete_scorer,
        ),
    ],
    mode: Annotated[
        str | None, typer.Option("--mode", help="default, strict, lenient or reference: what the scorer has.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="'KEY = VALUE'", help="Another option of the scorer; can be repeated."),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show the steps that led to each score.")] = False,
    compare: Annotated[
        str | None,
        typer.Option(
            "--compare",
            metavar="SCORER",
            help="Score with another too, such as choice:lenient, or `recorded`, and show where they differ.",
            autocompletion=_complete_scorer,
        ),
    ] = None,
    show: Annotated[
        int, typer.Option("--show", metavar="N", min=0, help="Rows to show with --explain and --compare.")
    ] = 20,
    rows: Annotated[Path | None, typer.Option("--rows", metavar="OUT.jsonl", help="Write a line for each row.")] = None,
    json: AsJson = False,
) -> None:
    """Score responses again: totals, outcomes, and how each score came about."""
    from omnirl.reward.rescore import RECORDED, Scorer, Totals

    if reward == RECORDED:
        raise UsageMistake("`recorded` is only for --compare", hint="--reward choice, gsm8k, mmk12 or FILE.py:function")
    options = {**_options(option or []), **({} if mode is None else {"mode": mode})}
    totals, others = Totals(), Totals()
    by_source: dict[str, Totals] = {}
    shown: list[dict[str, Any]] = []
    disagreements = 0
    title = reward if mode is None else f"{reward}:{mode}"
    with ExitStack() as stack:
        first = stack.enter_context(Scorer(reward, options))
        other = None if compare is None else stack.enter_context(Scorer(compare, {}))
        write = stack.enter_context(_writing(rows))
        advance = stack.enter_context(console.progress("scoring", None))
        for row, found in first.score_all(_read(file)):
            totals.add(row, found)
            by_source.setdefault(row.data_source, Totals()).add(row, found)
            entry = _entry(row, found)
            if other is not None:
                against = other.score(row)
                others.add(row, against)
                entry["other"] = against.score
                differ = abs(against.score - found.score) > 1e-9
                disagreements += differ
                if differ and not explain and len(shown) < show:
                    shown.append({**entry, **_seen(row)})
            if explain and len(shown) < show:
                shown.append({**entry, **_seen(row), "steps": list(_steps(first, other, row, found))})
            write(entry)
            advance()
        settings = first.settings
    if not totals.n:
        raise InvalidInput(f"`{file}` holds no row")
    _tell_errors(totals)
    if json:
        document: dict[str, Any] = {"schema": "omnirl/score/1", "reward": title, **totals.as_dict()}
        document["sources"] = {name: part.as_dict() for name, part in by_source.items()}
        if compare is not None:
            document["compare"] = {"reward": compare, **others.as_dict(), "disagreements": disagreements}
        if shown:
            document["rows"] = shown
        console.emit_json(document)
        return
    if explain:
        _show_steps(shown, settings)
    elif compare is not None:
        _show_differences(shown, title, compare)
    _show_totals(totals, by_source)
    if compare is not None:
        console.line()
        console.line(
            f"{title} {totals.score / totals.n:.4f}, {compare} {others.score / others.n:.4f}: "
            f"{disagreements} of {totals.n} rows differ"
        )


def _read(file: str) -> Iterator[Row]:
    from omnirl.reward import rollouts

    return rollouts.read_lines(sys.stdin.buffer, "stdin") if file == "-" else rollouts.read(Path(file))


def _options(lines: list[str]) -> dict[str, Any]:
    import tomllib

    found: dict[str, Any] = {}
    for line in lines:
        try:
            found |= tomllib.loads(line)
        except tomllib.TOMLDecodeError as error:
            raise UsageMistake(
                f"--option `{line}` is no line of TOML: {error}", hint="--option 'format_weight = 0.1'"
            ) from error
    return found


def _entry(row: Row, found: Scored) -> dict[str, Any]:
    numbers = {name: value for name, value in found.scores.items() if not name.startswith("outcome/")}
    accuracy = numbers.pop("acc", numbers["score"])
    numbers.setdefault("accuracy", accuracy)
    return {"index": row.index, **numbers, "outcome": found.outcome, "data_source": row.data_source}


def _seen(row: Row) -> dict[str, Any]:
    return {"where": row.where, "ground_truth": row.ground_truth, "tail": (row.response or "")[-_TAIL:]}


def _steps(first: Scorer, other: Scorer | None, row: Row, found: Scored) -> Iterator[str]:
    yield from first.explain(row, found)
    if other is not None:
        yield "by the other scorer:"
        yield from other.explain(row, other.score(row))


@contextmanager
def _writing(path: Path | None) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that writes one line; the file appears when all are written."""
    if path is None:
        yield lambda _: None
        return
    from omnirl.files import disk_faults

    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with disk_faults(path):
        try:
            with partial.open("w", encoding="utf-8") as file:

                def write(entry: dict[str, Any]) -> None:
                    file.write(json_lines.dumps(entry) + "\n")

                yield write
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def _tell_errors(totals: Totals) -> None:
    from omnirl.reward import verify

    if totals.errors:
        count = totals.outcomes["scorer_error"]
        console.warn(f"the scorer failed on {count} of {totals.n} rows, such as {'; '.join(totals.errors)}")
    if verify.replaced():
        console.note(f"{verify.replaced()} math-verify workers hung, died or grew too large, and were replaced")


def _show_steps(shown: list[dict[str, Any]], settings: Settings | None) -> None:
    for entry in shown:
        console.line(f"{entry['where']}: {entry['outcome']}")
        for step in entry["steps"]:
            console.line(f"  {step}")
    console.line()
    if settings is not None and settings.scorer == "mmk12":
        from omnirl.reward import mmk12

        console.table("What a response is worth", ("response", "score"), mmk12.values(settings.format_weight))
        console.line()


def _show_differences(shown: list[dict[str, Any]], reward: str, compare: str) -> None:
    if shown:
        columns = ("where", "label", reward, compare, "end of the response")
        cells = [[e["where"], _short(e["ground_truth"]), e["score"], e["other"], e["tail"]] for e in shown]
        console.table("Rows that differ", columns, cells)
        console.line()


def _show_totals(totals: Totals, by_source: dict[str, Totals]) -> None:
    counts: Counter[str] = totals.outcomes
    console.table("Outcomes", ("outcome", "rows", "share"), [[k, v, v / totals.n] for k, v in counts.items()])
    console.line()
    parts = [*by_source.items(), *([("all", totals)] if len(by_source) > 1 else [])]
    rows = [[name, part.n, part.score / part.n, part.accuracy / part.n] for name, part in parts]
    console.table("Totals", ("data source", "rows", "mean score", "accuracy"), rows)


def _short(value: object) -> str:
    return str(value)[:_TAIL]
