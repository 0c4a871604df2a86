"""The README: its commands exist, what it shows is what they print, its tables are those of the code."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.exceptions import TyperException

from omnirl import cli as application
from omnirl.errors import Exit
from omnirl.recipe import registry
from omnirl.recipe.search import shipped
from omnirl.recipe.variables import VARIABLES
from tests.conftest import ROOT, plain_environment

README = (ROOT / "README.md").read_text(encoding="utf-8")
SOURCES = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "omnirl").rglob("*.py"))}
SHOWN_AS_IT_IS = ("omnirl recipe ", "omnirl train ")
"""What these print does not depend on the machine, but for warnings on stderr."""


def blocks(*languages: str) -> Iterator[list[str]]:
    for language, body in re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL):
        if language in languages:
            yield body.splitlines()


def commands() -> list[str]:
    """Every `omnirl ...` of the README: in code blocks, after a prompt, in running text."""
    lines = [line.removeprefix("$ ") for body in blocks("bash", "console") for line in body]
    prose = re.sub(r"^```.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL)
    lines += re.findall(r"`(omnirl [^`]+)`", prose)
    parts = [part.strip() for line in lines for part in line.partition("  #")[0].split("&&")]
    return sorted({part for part in parts if part.startswith("omnirl ")})


def table(*heading: str) -> list[list[str]]:
    """The rows of the README's table with this heading."""
    lines = README.splitlines()
    at = lines.index(f"| {' | '.join(heading)} |")
    rows = []
    for line in lines[at + 2 :]:
        if not line.startswith("| "):
            break
        rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return rows


@pytest.mark.parametrize("line", commands())
def test_a_command_is_understood(line: str) -> None:
    command: Any = typer.main.get_command(application.app)
    words = shlex.split(line)[1:]
    if words[0] in ("--install-completion", "--show-completion"):
        return
    context = command.make_context("omnirl", words)
    while hasattr(command, "commands") and (rest := [*context._protected_args, *context.args]):
        _, command, words = command.resolve_command(context, rest)
        # A command that is only named, without a word more, need not be complete.
        context = command.make_context(command.name, words, parent=context, resilient_parsing=not words)


@pytest.mark.parametrize(
    "line", ["omnirl trian", "omnirl train toy --one cpu", "omnirl -x run list", "omnirl run show a b"]
)
def test_a_wrong_command_would_be_noticed(line: str) -> None:
    with pytest.raises(TyperException):
        test_a_command_is_understood(line)


def test_there_are_commands() -> None:
    assert len(commands()) > 15


def sessions() -> list[Any]:
    """Commands of the `console` blocks with the output shown."""
    found = []
    for body in blocks("console"):
        starts = [number for number, line in enumerate(body) if line.startswith("$ ")]
        for start, end in zip(starts, [*starts[1:], len(body)], strict=True):
            line = body[start].removeprefix("$ ")
            if line.startswith(SHOWN_AS_IT_IS):
                found.append(pytest.param(line, body[start + 1 : end], id=line))
    return found


@pytest.mark.parametrize(("line", "shown"), sessions())
def test_shown_output_is_what_is_printed(line: str, shown: list[str]) -> None:
    """`...` stands for any number of lines."""
    command = [sys.executable, "-m", *shlex.split(line)]
    done = subprocess.run(command, cwd=ROOT, env=plain_environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    parts = [".*" if text == "..." else re.escape(text) for text in shown]
    assert re.fullmatch("\n".join(parts).replace("\n.*", "(?:\n.*)?") + "\n?", done.stdout, re.DOTALL), done.stdout


def test_the_table_of_recipes_is_the_registry() -> None:
    pairs = registry.pairs([shipped()])
    assert table("task", "hardware", "algo", "tune", "evidence") == [
        [pair.task, pair.hardware, pair.algo, pair.tune, pair.evidence] for pair in pairs
    ]


def test_the_table_of_exit_codes_is_whole() -> None:
    told = {int(code) for row in table("exit code", "meaning") for code in row[0].split(", ")}
    assert told == {int(code) for code in Exit}


def test_every_variable_is_told_and_read() -> None:
    told = set(re.findall(r"\bOMNIRL_[A-Z]+\b", " ".join(row[0] for row in table("variable", "effect"))))
    texts = {path: text for path, text in SOURCES.items() if "engine" not in path.parts}
    asked = r"""(?:environ(?:\.get\(|\[)|envvar=)"(OMNIRL_[A-Z]+)"""
    read = {name for text in texts.values() for name in re.findall(asked, text)}
    for path in (ROOT / "tests").rglob("*.py"):
        read |= set(re.findall(asked, path.read_text(encoding="utf-8")))
    assert told == read


def test_what_stands_at_verls_seams_exists() -> None:
    defined = {name for text in SOURCES.values() for name in re.findall(r"^class (\w+)", text, re.MULTILINE)}
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in SOURCES}
    rows = table("seam in verl", "what stands there", "why")
    assert len(rows) > 5
    engine = " ".join(text for path, text in SOURCES.items() if {"engine", "plan"} & set(path.parts))
    for seam, ours, _ in rows:
        for name in re.findall(r"`([^`]+)`", ours):
            assert name in defined | modules, name
        for name in re.findall(r"`([^`]+)`", seam):
            assert name in engine, name


def test_the_tree_is_the_tree() -> None:
    (tree,) = (body for body in blocks("") if body[0] == "omnirl/")
    told = {line.split()[0].rstrip("/") for line in tree[1:]}
    there = {
        path.name for path in (ROOT / "omnirl").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert told == there - {"__init__.py"}


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert target.startswith(("https://", "#")) or (ROOT / target).exists(), target
    for name in re.findall(r"`((?:recipes|tests|omnirl|completions|\.ci)/[\w./]+)`", README):
        assert (ROOT / name).exists(), name


def test_extras_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = {extra for group in re.findall(r"'\.\[([\w,]+)\]'", README) for extra in group.split(",")}
    assert named == extras.keys() - {"stack"}
    hints = {extra for text in SOURCES.values() for extra in re.findall(r"omnirl\[(\w+)\]", text)}
    assert hints <= extras.keys()


def test_ci_runs_the_test_command() -> None:
    (command,) = {line for body in blocks("bash") for line in body if line.endswith("&& python -m pytest")}
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    told = [part.strip() for part in command.split("&&")]
    assert [line for line in script if line in told] == told


def test_the_quickstart_command_is_the_first_that_is_shown() -> None:
    assert next(blocks("bash")) == ["pip install -e '.[train,dev]' && omnirl quickstart"]


def test_generators_are_modules() -> None:
    for name in re.findall(r"python -m (omnirl[\w.]+)", README):
        path = ROOT / Path(*name.split("."))
        assert path.with_suffix(".py").is_file(), name


def test_the_table_of_launcher_variables_is_the_codes() -> None:
    told = [[cell.strip("`") for cell in row[:2]] for row in table("variable", "takes the place of", "what it is")]
    assert told == [[v.name, v.option or v.setting] for v in VARIABLES]
