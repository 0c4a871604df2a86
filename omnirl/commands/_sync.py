"""`omnirl doctor --sync`: the proof that rollout and trainer agree, in a run that trains nothing and is not kept."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnirl import console
from omnirl.commands import _attempt, _cluster, _training
from omnirl.errors import ChildFailed, NegativeAnswer, UsageMistake

if TYPE_CHECKING:
    from omnirl.commands._training import Prepared, Wanted
    from omnirl.run.record import Run

COLUMNS = ("modality", "weights", "tokens", "Pearson", "mean |dlogp|", "verdict")


def prove(wanted: Wanted, runs: Path, *, command: Sequence[str] | None = None) -> dict[str, Any]:
    """Check and start what `omnirl train` would, for the proof alone. Returns the document `omnirl/sync/1`.

    Args:
        runs: where the folder is made that the engine works in; it stays only if the engine failed.
        command: the program that proves; the engine when not given.

    Raises:
        UsageMistake: the recipe has no rollout.
        InvalidInput, EnvironmentLacks: as before a training run.
        ChildFailed: the engine failed before it could tell.
    """
    from omnirl.recipe.model import NO_ENGINE

    prepared = _training.prepare(wanted)
    if prepared.resolved.recipe.rollout.engine == NO_ENGINE:
        raise UsageMistake(f"`{wanted.task}` on `{wanted.hardware}` has no rollout to prove", hint="omnirl recipe list")
    inputs, machine = _training.preflight(prepared, runs)
    _training.require(prepared, inputs, machine)
    _cluster.check_nodes(prepared, runs)
    with _temporary(runs) as run:
        _record(prepared, run)
        return _agreements(prepared, run, command)


def tell(document: Mapping[str, Any], *, as_json: bool) -> None:
    """Print what was found; raises NegativeAnswer when a verdict is not ok."""
    if as_json:
        console.emit_json(document)
    else:
        console.table("Sync proof", COLUMNS, [_row(found) for found in document["agreements"]])
        limits = document["limits"]
        console.line()
        console.line(
            f"ok: Pearson at least {limits['least_pearson']}, mean |dlogp| at most {limits['most_difference']}, "
            f"{limits['tokens']} tokens or more"
        )
    if document["message"]:
        raise NegativeAnswer(document["message"], hint=document["hint"])


def _row(found: Mapping[str, Any]) -> tuple[Any, ...]:
    pearson, difference = found["pearson"], found["mean_difference"]
    return (
        found["modality"],
        found["weights"],
        found["tokens"],
        None if pearson is None else f"{pearson:.5f}",
        None if difference is None else f"{difference:.4f}",
        found["verdict"],
    )


@contextmanager
def _temporary(runs: Path) -> Iterator[Run]:
    """A run's folder inside a hidden one, where no list of runs shows it."""
    from omnirl.files import disk_faults
    from omnirl.run.record import Run

    with disk_faults(runs):
        runs.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".doctor-", dir=runs))
        run = Run(folder / "sync")
        run.path.mkdir()
    log_is_wanted = False
    try:
        yield run
    except ChildFailed:
        log_is_wanted = True
        raise
    finally:
        if not log_is_wanted:
            shutil.rmtree(folder, ignore_errors=True)


def _record(prepared: Prepared, run: Run) -> None:
    """Write the run as for training, and that it is for the proof alone."""
    from omnirl.files import write_json
    from omnirl.recipe.model import Proof

    _training.record(prepared, run)
    proof = prepared.resolved.recipe.rollout.proof or Proof()
    write_json(run.path / "run.json", {**run.document(), "proof": proof.model_dump(mode="json")})


def _agreements(prepared: Prepared, run: Run, command: Sequence[str] | None) -> dict[str, Any]:
    from omnirl.files import read_json
    from omnirl.run import launch
    from omnirl.run.progress import Watch

    tag = launch.new_tag()
    attempt = run.new_attempt(tag)
    program = command or launch.engine_command(run.path)
    env, address = prepared.rendered.env, prepared.wanted.address
    ended = _attempt.follow(attempt, program, env=env, address=address, tag=tag, watch=Watch(attempt, None))
    found = read_json(attempt.path / "sync.json")
    # disagreement is an error of the engine's too, but an answer here
    if found is None or (ended.code and not found["message"]):
        wanted = prepared.wanted
        message, hint = _attempt.why_failed(attempt, ended.code, did="compared nothing")
        raise ChildFailed(
            f"{message} (log: {attempt.log})", hint=hint or f"omnirl doctor {wanted.task} --on {wanted.hardware}"
        )
    named = {"schema": found.pop("schema"), "task": prepared.resolved.task, "hardware": prepared.resolved.hardware}
    return {**named, **found}
