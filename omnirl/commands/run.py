"""`omnirl run`: look at runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnirl import console
from omnirl.commands import _curves, _training
from omnirl.commands.recipe import AsJson

if TYPE_CHECKING:
    from omnirl.run.record import Run

app = typer.Typer(name="run", help="List runs and look at one.", no_args_is_help=True, rich_markup_mode=None)

_SHOWN = (
    ("reward", ("critic/score/mean", "critic/rewards/mean")),
    ("Pearson", ("training/rollout_actor_probs_pearson_corr",)),
    ("loss", ("actor/pg_loss",)),
    ("grad norm", ("actor/grad_norm",)),
    ("tokens", ("response_length/mean",)),
    ("tokens/s", ("perf/throughput",)),
    ("seconds", ("timing_s/step",)),
)


def _names(incomplete: str) -> list[str]:
    from omnirl.run import record

    return [run.name for run in record.runs(_training.default_runs()) if run.name.startswith(incomplete)]


@app.command("list")
def list_runs(*, runs: _training.RunsFolder = Path("runs"), json: AsJson = False) -> None:
    """List the runs in a folder."""
    from omnirl.run import record

    entries = [_entry(run) for run in record.runs(runs)]
    if json:
        console.emit_json({"schema": "omnirl/runs/1", "runs": entries})
        return
    if not entries:
        console.note(f"no runs in {runs}; make one: omnirl quickstart")
        return
    columns = ("name", "task", "hardware", "algo", "state", "step", "path")
    rows = [[e["name"], e["task"], e["hardware"], e["algo"], e["state"], _of(e), e["path"]] for e in entries]
    console.table("Runs", columns, rows)


@app.command("show")
def show_run(
    name: Annotated[str, typer.Argument(metavar="RUN", help="A run's name or folder.", autocompletion=_names)],
    *,
    runs: _training.RunsFolder = Path("runs"),
    curves: Annotated[
        bool | None,
        typer.Option("--curves/--no-curves", help="Draw what matters for the algorithm; by default on a terminal."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Show a run's attempts, metrics and curves."""
    from omnirl.files import read_json
    from omnirl.run import curves as run_curves
    from omnirl.run import metrics, record

    run = record.find(runs, name)
    attempts = run.attempts()
    steps = metrics.read(attempt.metrics for attempt in attempts)
    drawn = run_curves.curves(steps, run.algo())
    ended = {attempt.number: read_json(attempt.path / "exit.json") or {} for attempt in attempts}
    entry = _entry(run)
    if json:
        console.emit_json(
            {
                "schema": "omnirl/run-detail/1",
                **entry,
                "record": run.document(),
                "attempts": [
                    {
                        "number": a.number,
                        "log": str(a.log),
                        **(read_json(a.path / "attempt.json") or {}),
                        **ended[a.number],
                    }
                    for a in attempts
                ],
                "metrics": [{"step": step.step, "values": step.values} for step in steps],
                "curves": run_curves.as_dict(drawn),
            }
        )
        return
    console.line(
        f"{entry['name']}: {entry['task']} on {entry['hardware']}, {entry['algo']}, {entry['state']}, step {_of(entry)}"
    )
    console.line(f"{entry['path']}")
    console.line()
    rows = []
    for attempt in attempts:
        end = ended[attempt.number]
        rows.append(
            [attempt.number, end.get("state", "-"), end.get("code"), end.get("step"), end.get("seconds"), attempt.log]
        )
    console.table("Attempts", ("attempt", "state", "code", "step", "seconds", "log"), rows)
    console.line()
    _show_steps(steps)
    if sys.stdout.isatty() if curves is None else curves:
        _curves.show(drawn)


def _show_steps(steps: list[Any]) -> None:
    trained = [step for step in steps if step.trained]
    columns = [(title, names) for title, names in _SHOWN if any(step.first(names) is not None for step in trained)]
    if trained:
        rows = [[step.step, *(step.first(names) for _, names in columns)] for step in trained]
        console.table("Steps", ("step", *(title for title, _ in columns)), rows)
    sources = sorted({source for step in steps for source in step.accuracy()})
    if sources:
        console.line()
        scored = [(step.step, step.accuracy()) for step in steps if step.accuracy()]
        rows = [[number, *(accuracy.get(source) for source in sources)] for number, accuracy in scored]
        console.table("Held-out accuracy", ("step", *sources), rows)


def _entry(run: Run) -> dict[str, Any]:
    from omnirl.run import metrics

    known = run.document()
    steps = metrics.read(attempt.metrics for attempt in run.attempts())
    return {
        "name": run.name,
        "task": known.get("task"),
        "hardware": known.get("hardware"),
        "algo": known.get("algo"),
        "tune": known.get("tune"),
        "state": run.state(),
        "step": metrics.last_trained(steps),
        "steps_total": known.get("steps_total"),
        "created": known.get("created"),
        "path": str(run.path),
    }


def _of(entry: dict[str, Any]) -> str:
    total = entry["steps_total"]
    return f"{entry['step']}/{total}" if total is not None else str(entry["step"])
