"""Checkpoints of a run, as verl's FSDP engines write them: which are complete, and where a resume starts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from omnirl.errors import InvalidInput
from omnirl.files import write_text

TRACKER = "latest_checkpointed_iteration.txt"

_SHARD = re.compile(r"(?P<kind>\w+?)_world_size_(?P<world>\d+)_rank_(?P<rank>\d+)\.pt")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The folder of one saved step; `missing` names what a resume would need and is absent or cut short."""

    step: int
    path: Path
    missing: tuple[str, ...]


def find(folder: Path) -> list[Checkpoint]:
    """Every checkpoint in the folder, oldest first."""
    steps = ((p, p.name.removeprefix("global_step_")) for p in folder.glob("global_step_*")) if folder.is_dir() else ()
    found = [Checkpoint(int(step), path, tuple(_missing(path))) for path, step in steps if step.isdecimal()]
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def latest_complete(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that lacks nothing; None if there is none."""
    return next((checkpoint for checkpoint in reversed(find(folder)) if not checkpoint.missing), None)


def settle(folder: Path, *, force: bool = False) -> tuple[Checkpoint | None, str | None]:
    """Make verl's tracker file name the newest complete checkpoint.

    Returns:
        That checkpoint (None if no step was ever saved), and what to tell the user if it is not what the tracker said.

    Raises:
        InvalidInput: the tracker names a checkpoint that is damaged or gone, and `force` is not set.
    """
    there = find(folder)
    complete = latest_complete(folder)
    tracker = folder / TRACKER
    said = tracker.read_text(encoding="utf-8", errors="replace").strip()[:40] if tracker.is_file() else None
    if said is None and complete is None:
        told = f"step {there[-1].step} was being saved and is not complete" if there else None
        return None, told
    named = next((checkpoint for checkpoint in there if str(checkpoint.step) == said), None)
    if said is not None and (named is None or named.missing) and not force:
        fault = f"which lacks {', '.join(named.missing[:4])}" if named else "which is not there"
        start = f"the newest complete one, step {complete.step}" if complete else "the first step"
        raise InvalidInput(
            f"the latest checkpoint is `{said}`, {fault}", where=str(tracker), hint=f"`--force` goes on from {start}"
        )
    if complete is None:
        tracker.unlink()
        return None, "no checkpoint is complete"
    if said == str(complete.step):
        return complete, None
    write_text(tracker, str(complete.step))
    return complete, f"step {complete.step} is the newest complete checkpoint; `{TRACKER}` said {said or 'nothing'}"


def _missing(path: Path) -> list[str]:
    """What is absent or cut short. torch's files are ZIP archives, whose directory comes last."""
    from zipfile import is_zipfile

    actor = path / "actor"
    files = {file.name: file for file in actor.iterdir() if file.is_file()} if actor.is_dir() else {}
    shards = [(match, file) for name, file in files.items() if (match := _SHARD.fullmatch(name))]
    lacking = [f"actor/{file.name} (cut short)" for _, file in shards if not is_zipfile(file)]
    worlds = {int(match["world"]) for match, _ in shards}
    if not any(match["kind"] == "model" for match, _ in shards):
        lacking.append("actor/model shards")
    for kind in sorted({match["kind"] for match, _ in shards}):
        for world in worlds:
            names = (f"{kind}_world_size_{world}_rank_{rank}.pt" for rank in range(world))
            lacking += [f"actor/{name}" for name in names if name not in files]
    if not is_zipfile(path / "data.pt"):  # written after every shard
        lacking.append("data.pt")
    return lacking
