"""Fixtures that every test may use: the command line as a process, a small toy data set, the shared folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine is no failure.
settings.register_profile("busy", deadline=None, max_examples=50)
settings.load_profile("busy")

ROOT = Path(__file__).resolve().parent.parent
_INHERITED = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR", "VIRTUAL_ENV")

Cli = Callable[..., subprocess.CompletedProcess[str]]


def plain_environment(**extra: str) -> dict[str, str]:
    """An environment without the variables that change what the command line does."""
    kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **extra}


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Run `omnirl WORDS...` as a process in the test's own folder."""

    def run(*words: str, env: dict[str, str] | None = None, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "omnirl", *words],
            cwd=tmp_path,
            env=plain_environment(**(env or {})),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    return run


@pytest.fixture(scope="session")
def toy_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small toy data set: train.parquet, validation.parquet, probe.parquet and media."""
    from omnirl.data.prepare import prepare
    from omnirl.data.sources import Options, find

    folder = tmp_path_factory.mktemp("toy")
    prepare(find("toy"), input=None, output=folder, options=Options(seed=0, rows={"train": 32, "validation": 16}))
    return folder


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with data too large for the repository; a test that needs it is skipped where it is absent."""
    folder = Path(os.environ.get("OMNIRL_SHARED") or ROOT.parent / "shared")
    if not folder.is_dir():
        pytest.skip(f"needs the shared folder ({folder}); set OMNIRL_SHARED")
    return folder
