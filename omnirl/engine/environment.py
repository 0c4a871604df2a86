"""The environment every process of a run inherits; set before verl, Ray or transformers are imported."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from omnirl.engine.phase import ATTEMPT_DIR
from omnirl.run.processes import TAG

PLUGIN = "omnirl.engine.plugin"
_OWN = (
    *(ATTEMPT_DIR, TAG, "VERL_USE_EXTERNAL_MODULES", "VERL_FILE_LOGGER_PATH", "VERL_PLATFORM", "GLOO_SOCKET_IFNAME"),
    *("HF_DATASETS_CACHE", "HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "TOKENIZERS_PARALLELISM", "OMP_NUM_THREADS"),
)
_LOCAL = ("", "local")


def cluster() -> str | None:
    """The address of the cluster that the run joins; None when it starts a Ray of its own."""
    address = os.environ.get("RAY_ADDRESS", "")
    return None if address in _LOCAL else address


def for_nodes(names: Iterable[str]) -> dict[str, str]:
    """What the processes of a run need on nodes that were started before it, by someone else.

    Args:
        names: variables of the recipe.
    """
    return {name: os.environ[name] for name in (*_OWN, *names) if name in os.environ}


def prepare(recipe: dict[str, Any], attempt: Path) -> Path:
    """Set `os.environ` for a run.

    Returns: a folder for Ray and for caches, which goes when the attempt ends. It lies in the system's temporary
    folder, because Ray's socket names may have 107 characters in all.
    """
    ray_folder = Path(tempfile.mkdtemp(prefix="omnirl-ray-"))
    (attempt / "ray_dir.txt").write_text(str(ray_folder), encoding="utf-8")
    device = recipe["hardware"]["device"]
    os.environ |= {
        ATTEMPT_DIR: str(attempt),
        "VERL_USE_EXTERNAL_MODULES": PLUGIN,
        "VERL_FILE_LOGGER_PATH": str(attempt / "metrics.jsonl"),
        # caches of converted parquet belong to the attempt, not to the user's home
        "HF_DATASETS_CACHE": str(ray_folder / "datasets"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if Path(recipe["model"]["path"]).expanduser().is_dir() or recipe["model"]["path"] == "tiny":
        os.environ["HF_HUB_OFFLINE"] = "1"
    if not cluster():
        os.environ.pop("RAY_ADDRESS", None)
        # nobody else on this machine may submit work to the run's own Ray
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    if device == "cpu":
        os.environ["VERL_PLATFORM"] = "cpu"
        if not cluster():
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        # a tiny model gains little from a second thread, and loses a factor of ten to one that waits for a busy core
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        # Ray refuses logical devices when this is set but empty
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    return ray_folder
