"""The completion scripts that are shipped, and what they answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from omnirl.commands import shell
from tests.conftest import ROOT, Cli

REWRITE = (
    'python -c "from pathlib import Path; from omnirl.commands import shell; '
    "[Path('completions', f).write_text(shell.script(s) + chr(10)) for s, f in shell.FILES.items()]\""
)


@pytest.mark.parametrize("name", list(shell.FILES))
def test_shipped_scripts_are_current(name: str) -> None:
    shipped = (ROOT / "completions" / shell.FILES[name]).read_text()
    assert shipped == shell.script(name) + "\n", f"write them again: {REWRITE}"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("omnirl tr", {"train"}),
        ("omnirl ", {"quickstart", "plan", "train", "doctor", "run", "score", "recipe", "data", "noise"}),
        ("omnirl train gs", {"gsm8k"}),
        ("omnirl train toy --on c", {"cpu"}),
        ("omnirl train toy --algo ", {"gspo", "dapo", "opd", "dpo"}),
        ("omnirl train toy --set train.st", {"train.steps = "}),
        ("omnirl train toy --dry", {"--dry-run"}),
    ],
)
def test_bash_is_answered(cli: Cli, line: str, expected: set[str]) -> None:
    words = line.split(" ")
    env = {"_OMNIRL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = cli(env=env)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()) == expected


@pytest.mark.parametrize("name", list(shell.FILES))
def test_show_completion_takes_the_shells_name(cli: Cli, name: str) -> None:
    done = cli("--show-completion", name)
    assert done.returncode == 0
    assert done.stdout == shell.script(name) + "\n"


def test_unknown_shell(cli: Cli) -> None:
    done = cli("--show-completion", "csh")
    assert done.returncode == 2
    assert done.stderr.startswith("error: there is no completion for the shell `csh`")


@pytest.mark.parametrize(("name", "start_up"), [("bash", ".bashrc"), ("zsh", ".zshrc")])
def test_installing_twice_changes_the_start_up_file_once(cli: Cli, tmp_path: Path, name: str, start_up: str) -> None:
    home = {"HOME": str(tmp_path)}
    (tmp_path / start_up).write_text("alias ll='ls -l'\n")
    assert cli("--install-completion", name, env=home).returncode == 0
    once = (tmp_path / start_up).read_text()
    assert once.startswith("alias ll='ls -l'\n")
    assert "omnirl" in once or ".zfunc" in once
    assert cli("--install-completion", name, env=home).returncode == 0
    assert (tmp_path / start_up).read_text() == once


def test_a_home_that_cannot_be_written_is_said(cli: Cli) -> None:
    done = cli("--install-completion", "bash", env={"HOME": "/proc/nowhere"})
    assert done.returncode == 4
    assert done.stderr.startswith("error: the completion could not be installed")
    assert "Traceback" not in done.stderr
