"""Media files shared by the tests of this folder."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from omnirl.data.media import Judge
from tests.data_prepare.media import zoo as animals


@pytest.fixture(scope="session")
def programs() -> None:
    """Skips a test where the ffmpeg programs are missing."""
    if not shutil.which("ffmpeg") or not shutil.which("ffprobe"):
        pytest.skip("needs the programs ffmpeg and ffprobe: apt-get install ffmpeg")


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory, programs: None) -> tuple[Path, animals.Expected]:
    """A folder with every kind of file, and what is expected of each."""
    folder = tmp_path_factory.mktemp("zoo")
    return folder, animals.build(folder)


@pytest.fixture
def without_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No ffmpeg or ffprobe can be found."""
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert shutil.which("ffmpeg") is None


@pytest.fixture
def tone(tmp_path: Path) -> Path:
    path = tmp_path / "tone.wav"
    animals.write_wav(path, 1)
    return path


@pytest.fixture
def judge() -> Judge:
    with Judge(workers=1) as one:
        yield one


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (ProcessLookupError, FileNotFoundError):
        return False


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
