"""The command line inside the test's own process: as `cli`, but without the start-up of an interpreter."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from omnirl import cli as application
from tests.conftest import Cli, plain_environment


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run `omnirl WORDS...` in the test's own folder and in a plain environment."""

    def run(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        wanted = plain_environment(**(env or {}))
        with monkeypatch.context() as patched:
            patched.chdir(tmp_path)
            for name in os.environ.keys() - wanted.keys() - {"PYTEST_CURRENT_TEST"}:
                patched.delenv(name)
            for name, text in wanted.items():
                patched.setenv(name, text)
            capsys.readouterr()
            code = application.run(list(words))
        said = capsys.readouterr()
        return subprocess.CompletedProcess(words, code, said.out, said.err)

    return run
