"""Where a run stands before its first step, told through a small file that the command line watches."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path

from omnirl.files import write_json

ATTEMPT_DIR = "OMNIRL_ATTEMPT_DIR"


class Phase(StrEnum):
    MODEL = "model"
    RAY = "ray"
    WORKERS = "workers"
    PROOF = "proof"
    TRAINING = "training"
    DONE = "done"


def report(phase: Phase, detail: str = "") -> None:
    """Replace `phase.json` of the attempt named by `OMNIRL_ATTEMPT_DIR`."""
    write_json(Path(os.environ[ATTEMPT_DIR]) / "phase.json", {"phase": phase.value, "detail": detail})
