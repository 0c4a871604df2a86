"""Room for runs and their checkpoints, and for checkpoints that are fetched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omnirl import machine
from omnirl.doctor.check import Check, Target, of_problem
from omnirl.doctor.model_files import TINY, hub_cache, snapshot

GB = 10**9
"""What the sizes of a plan are counted in."""


def check(target: Target) -> Iterator[Check]:
    """The folder of runs, and the cache of the hub where a recipe still has to be fetched."""
    yield runs(target.runs, target.disk)
    path = target.recipe.model.path if target.recipe else TINY
    if path != TINY and not Path(path).expanduser().is_dir() and snapshot(path, target.environ) is None:
        yield cache(hub_cache(target.environ), target.disk.get("model_gb"))


def runs(folder: Path, needed: Mapping[str, Any]) -> Check:
    """Whether runs can be made in a folder, and whether the checkpoints of one fit.

    Args:
        needed: `checkpoint_gb` and `checkpoints_gb` of the plan, one checkpoint and all that are kept, where known.
    """
    name, wanted = "disk for runs", "a folder to write in, with 1 GiB free"
    problems = machine.runs_folder(folder)
    if problems:
        return of_problem(name, problems[0], wanted)
    there = existing(folder)
    free = shutil.disk_usage(there).free / GB
    found = f"{free:.1f} GB free in {there}"
    one, kept = needed.get("checkpoint_gb"), needed.get("checkpoints_gb")
    if one is None:
        return Check(name, "ok", found)
    most = max(one, kept or 0)
    wanted = f"{most:.1f} GB for {'the checkpoints that are kept' if kept is not None else 'a checkpoint'}"
    if free >= most:
        return Check(name, "ok", found, wanted)
    few = f"--set 'train.keep_checkpoints = {max(1, int(free / one))}'" if free >= one else "--runs DIR"
    return Check(name, "warn" if free >= one else "fail", found, wanted, few)


def cache(folder: Path, model_gb: float | None) -> Check:
    """Whether a checkpoint can be fetched into the hub's cache."""
    name, there = "disk for the model", existing(folder)
    free = shutil.disk_usage(there).free / GB
    found, wanted = (
        f"{free:.1f} GB free in {there}",
        f"{model_gb:.1f} GB to fetch it" if model_gb else "room to fetch it",
    )
    if not os.access(there, os.W_OK | os.X_OK):
        return Check(name, "warn", f"{there} cannot be written", wanted, "export HF_HOME=DIR")
    if free < (model_gb or 1):
        return Check(name, "fail", found, wanted, "export HF_HOME=DIR  # on a larger disk")
    return Check(name, "ok", found, wanted)


def existing(folder: Path) -> Path:
    """A folder, or the nearest one above it that exists."""
    folder = folder.expanduser().absolute()
    return next((one for one in (folder, *folder.parents) if one.is_dir()), Path("/"))
