"""The house rules that a tool can check: lint, types, layers, module size, nothing of one developer's machine."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

MODULES = sorted((ROOT / "omnirl").rglob("*.py"))
MOST_LINES = 400
SOMEONES_FOLDER = re.compile(r"(?<![\w./$}-])/(?:home|Users|root|work|mnt)/\w[\w.-]*")
A_READERS_OWN = "/home/me/"
"""Whose folder the README shows in the output of commands."""


def tool(name: str) -> str:
    """The program `name` beside this interpreter, or on the path; the test is skipped where it is not installed."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: pip install -e '.[dev]'")
    return found


def tracked() -> list[Path]:
    """Every file of the checkout that git tracks or would track."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


@pytest.mark.parametrize(
    "words",
    [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"], ["lint-imports"]],
    ids=" ".join,
)
def test_the_tools_are_content(words: list[str]) -> None:
    program = tool(words[0])
    done = subprocess.run([program, *words[1:]], cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_modules_are_small() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {str(path.relative_to(ROOT)): n for path, n in lines.items() if n > MOST_LINES} == {}


def test_modules_say_what_they_are() -> None:
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        if text:
            assert text.startswith(('"""', 'r"""')), path
            assert "\nfrom __future__ import annotations\n" in text, path


def test_no_file_names_a_developers_folder() -> None:
    found = []
    for path in tracked():
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            for match in SOMEONES_FOLDER.finditer(line.replace(A_READERS_OWN, "")):
                found.append(f"{path.relative_to(ROOT)}:{number}: {match[0]}")
    assert found == []
