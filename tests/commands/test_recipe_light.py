"""`omnirl recipe` is for a laptop: nothing heavy, and completion for what its commands take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from omnirl.commands import _completion
from omnirl.run import record
from tests.conftest import Cli, plain_environment

COMMANDS = [
    "env",
    "diff gsm8k/h800x4 avqa/h800x4",
    "new mine --from gsm8k",
    "render nextqa --on ascend910c-x16 --format shell",
    "render nextqa --on ascend910c-x16 --format yaml",
    "show gsm8k --on h800x4 --origin",
    "check",
]


@pytest.mark.parametrize("line", COMMANDS)
def test_nothing_heavy_is_loaded(tmp_path: Path, line: str) -> None:
    code = (
        "import sys; from omnirl import cli; code = cli.run(sys.argv[1:]);"
        "heavy = {'torch', 'verl', 'ray', 'pyarrow', 'transformers', 'numpy', 'yaml', 'omegaconf', 'hydra', 'rich'};"
        "found = heavy & set(sys.modules);"
        "print(f'heavy: {sorted(found)}, code: {code}')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "recipe", *line.split()],
        cwd=tmp_path,
        env=plain_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    code = 1 if line.startswith("diff") else 0
    assert done.stdout.splitlines()[-1] == f"heavy: [], code: {code}", done.stderr


def test_completion_of_both_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMNIRL_RECIPES", raising=False)
    monkeypatch.delenv("OMNIRL_RUNS", raising=False)
    run = record.reserve(tmp_path / "runs", "top", stem="toy")
    run.write({}, {"values": {}}, [])
    assert _completion.sides("to") == ["toy/", "top"]
    assert _completion.sides("gsm8k/h") == ["gsm8k/h200x1", "gsm8k/h200x2", "gsm8k/h800x4"]
    assert _completion.sides("avqa/") == [
        "avqa/ascend910c-x16",
        "avqa/cpu",
        "avqa/h200x1",
        "avqa/h200x2",
        "avqa/h800x4",
    ]
    assert _completion.sides("nothing/") == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("omnirl recipe diff gsm8k/h800x4 toy/", {"toy/cpu"}),
        ("omnirl recipe new mine --from gs", {"gsm8k"}),
        ("omnirl recipe render gsm8k --format ", {"hydra", "shell", "yaml"}),
        ("omnirl recipe render gsm8k --on h2", {"h200x1", "h200x2"}),
        ("omnirl recipe ", {"list", "show", "check", "schema", "env", "diff", "new", "render"}),
    ],
)
def test_bash_is_answered(cli: Cli, line: str, expected: set[str]) -> None:
    words = line.split(" ")
    env = {"_OMNIRL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = cli(env=env)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()) == expected
