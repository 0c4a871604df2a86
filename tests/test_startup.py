"""Help, completion and the version must not wait for packages that only training needs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import plain_environment

HEAVY = (
    *("torch", "verl", "ray", "vllm", "transformers", "peft", "pyarrow", "numpy", "av", "PIL", "psutil"),
    *("omegaconf", "hydra", "math_verify", "rich", "pydantic", "omnirl.recipe.model", "omnirl.engine"),
)

PROBE = """
import io, json, sys, contextlib
sys.argv = {argv!r}
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    from omnirl.__main__ import run
    code = run(sys.argv[1:])
print(json.dumps([code, sorted(sys.modules)]))
"""


def loaded(*words: str, env: dict[str, str] | None = None) -> tuple[int, set[str]]:
    """The exit code of `omnirl WORDS...` and the modules that it imported."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(argv=["omnirl", *words])],
        env=plain_environment(**(env or {})),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout, done.stderr
    code, modules = json.loads(done.stdout)
    return code, set(modules)


@pytest.mark.parametrize(
    "words",
    [["--help"], ["train", "--help"], ["quickstart", "--help"], ["recipe", "list", "--help"], ["data", "--help"]],
)
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    code, modules = loaded(*words)
    assert code == 0
    # Typer reads the global options with pydantic before it comes to a sub-command.
    assert sorted(modules & set(HEAVY) - ({"pydantic"} if len(words) > 1 else set())) == []


@pytest.mark.parametrize(
    ("line", "at"),
    [("omnirl tr", 1), ("omnirl train to", 2), ("omnirl train toy --on c", 4), ("omnirl train toy --se", 3)],
)
def test_completion_imports_nothing_heavy(line: str, at: int) -> None:
    env = {"_OMNIRL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(at)}
    code, modules = loaded(env=env)
    assert code == 0
    # Typer itself imports rich and pydantic where it needs them.
    assert sorted(modules & set(HEAVY) - {"rich", "pydantic"}) == []


@pytest.mark.parametrize("words", [["--version"], ["-V"], ["--version", "--json"]])
def test_the_version_is_told_before_typer_is_imported(words: list[str]) -> None:
    code, modules = loaded(*words)
    assert code == 0
    assert sorted(modules & {"typer", *HEAVY}) == []
