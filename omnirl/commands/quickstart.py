"""`omnirl quickstart`: a tiny model learns to look and listen, on any machine, with no questions asked."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnirl import console
from omnirl.commands import _training
from omnirl.commands.recipe import AsJson

if TYPE_CHECKING:
    from omnirl.run.outcome import Outcome
    from omnirl.run.record import Run

TASK, HARDWARE = "toy", "cpu"
CHANCE, CHANCE_WITH_ONE_MEDIUM = 0.25, 0.5
SMOKE_ROWS = {"train": 64, "validation": 32}
SMOKE_SETS = (
    "train.steps = 3",
    "train.validate_every = 3",
    "train.save_every = 3",
    "model.tiny.warmup_steps = 5",
)

FILES = {"data.train": "train.parquet", "data.val": "validation.parquet", "data.probe": "probe.parquet"}

EXAMPLES = """\b
Examples:
  omnirl quickstart
  omnirl quickstart --smoke --json
"""


def quickstart(
    *,
    seed: Annotated[int, typer.Option(min=0, help="Seed of data, model and training.")] = 0,
    smoke: Annotated[bool, typer.Option("--smoke", help="Three steps, to see that everything runs.")] = False,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The run's name.")] = None,
    runs: _training.RunsFolder = Path("runs"),
    json: AsJson = False,
) -> None:
    """Train a tiny Qwen3-Omni on made-up text, image, audio and video questions, on the CPU."""
    from omnirl.run import record

    began = time.monotonic()
    with record.reserved(runs, name, stem="quickstart") as run, run.lock():
        data = run.path / "data"
        sets = [f"{key} = {_toml([str(data / file)])}" for key, file in FILES.items()]
        sets += [f"train.seed = {seed}", f"model.tiny.seed = {seed}", *(SMOKE_SETS if smoke else ())]
        prepared = _training.prepare(_training.Wanted(TASK, HARDWARE, sets=tuple(sets)))
        _training.require(prepared, (), _training.machine_problems(prepared, runs))
        _make_data(data, seed, SMOKE_ROWS if smoke else {})
        inputs, _ = _training.preflight(prepared, runs)
        _training.require(prepared, inputs, ())
        _training.record(prepared, run)
        outcome = _training.start(prepared, run)
    found = document(outcome, time.monotonic() - began)
    if json:
        console.emit_json(found)
    else:
        show(found, run, smoke=smoke)


def _make_data(folder: Path, seed: int, rows: dict[str, int]) -> None:
    from omnirl.data.prepare import prepare
    from omnirl.data.sources import Options, find

    with console.progress("making pictures, sounds and videos") as advance:
        prepare(find(TASK), input=None, output=folder, options=Options(seed=seed, rows=rows), advance=advance)


def document(outcome: Outcome, seconds: float) -> dict[str, Any]:
    """The document `omnirl/quickstart/1`; `pearson` and each `curve` are by step, accuracies are shares."""
    accuracy: dict[str, dict[str, float | None]] = {}
    curve: dict[str, list[dict[str, float]]] = {}
    for source, (first, last) in sorted(outcome.accuracy().items()):
        modality, _, probe = source.removeprefix(f"{TASK}/").partition("@")
        entry = accuracy.setdefault(modality, {"before": None, "after": None, "shuffled": None})
        if probe:
            entry[probe] = first if last is None else last
        else:
            entry.update(before=first, after=last)
            curve[modality] = [{"step": step, "accuracy": value} for step, value in outcome.curve[source]]
    return {
        "schema": "omnirl/quickstart/1",
        "run": str(outcome.run.path),
        "seconds": round(seconds, 1),
        "steps": outcome.steps,
        "pearson_min": outcome.pearson_min,
        "accuracy": accuracy,
        "pearson": list(outcome.pearson),
        "curve": curve,
        "taught": _taught(outcome.run),
        "checkpoint": str(outcome.checkpoint) if outcome.checkpoint else None,
    }


def _taught(run: Run) -> list[str]:
    """What the supervised warm-up taught the tiny model, in its own words."""
    from omnirl.files import read_json

    taught = (read_json(run.path / "model" / "warmup.json") or {}).get("taught")
    return [str(text) for text in taught] if isinstance(taught, list) else []


def show(document: dict[str, Any], run: Run, *, smoke: bool) -> None:
    """Print the report: what was taught, accuracies, two charts, and what to try next."""
    from omnirl.run.chart import chart

    if document["taught"]:
        console.line("Before reinforcement learning, a supervised warm-up taught the tiny model:")
        for text in document["taught"]:
            console.line(f"  - {text}")
        console.line("`before` is its held-out accuracy right after that.")
        console.line()
    console.table("Held-out accuracy (greedy)", ("questions", "before", "after", "chance"), _rows(document["accuracy"]))
    console.line()
    lines = {name: [(p["step"], p["accuracy"]) for p in points] for name, points in document["curve"].items()}
    console.line("held-out accuracy by step")
    for text in chart(lines, low=0.0, high=1.0):
        console.line(text)
    console.line()
    console.line("correlation of rollout and trainer probabilities (Pearson) by step")
    pearson = [(i + 1, value) for i, value in enumerate(document["pearson"]) if value is not None]
    for text in chart({"Pearson": pearson}, height=5, number="{:.7f}"):
        console.line(text)
    console.line()
    least = document["pearson_min"]
    console.line(
        f"{document['steps']} steps in {document['seconds']:.0f} s"
        + (f", least Pearson {least:.7f}" if least is not None else "")
    )
    if smoke:
        console.line("three steps show that everything runs, not that it learns: that takes `omnirl quickstart`")
    console.line()
    console.line("Try next:")
    shown = run.name if run.path.parent.resolve() == _training.default_runs().resolve() else str(run.path)
    for command in (
        f"omnirl run show {shown}",
        f"omnirl recipe show {TASK} --on {HARDWARE} --origin",
        "omnirl train gsm8k --on h800x4 --dry-run",
    ):
        console.line(f"  {command}")


def _rows(accuracy: dict[str, dict[str, float | None]]) -> list[tuple[str, Any, Any, float]]:
    rows: list[tuple[str, Any, Any, float]] = []
    for modality, values in accuracy.items():
        rows.append((modality.replace("_", " + "), values["before"], values["after"], CHANCE))
        for probe, value in values.items():
            if probe.startswith("shuffled") and value is not None:
                medium = probe.removeprefix("shuffled").strip("_")
                chance = CHANCE_WITH_ONE_MEDIUM if medium else CHANCE
                rows.append((f"  {medium or 'all media'} of another question", None, value, chance))
    return rows


def _toml(values: list[str]) -> str:
    """A list of strings in TOML, which reads JSON's escapes."""
    import json

    return json.dumps(values, ensure_ascii=True)
