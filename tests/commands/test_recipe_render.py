from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Cli, plain_environment

BASH = shutil.which("bash")
PAIR = ("gsm8k", "--on", "h800x4")


def plan(inside: Cli, *words: str, after: tuple[str, ...] = ()) -> dict[str, Any]:
    done = inside("train", *words, "--dry-run", "--json", *after)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def run_script(text: str, folder: Path, *arguments: str, python: str = sys.executable, **env: str) -> str:
    """What a script prints that is called in another folder."""
    script = folder / "run.sh"
    script.write_text(text)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    done = subprocess.run(
        [str(BASH), str(script), *arguments],
        cwd=elsewhere,
        env=plain_environment(PYTHON=python, **env),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_hydra_is_the_default_and_what_a_run_keeps(inside: Cli) -> None:
    words = (*PAIR, "--tune", "full", "--set", "train.steps = 3", "--", "trainer.log_val_generations=4")
    done = inside("recipe", "render", *words)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert {"trainer.total_training_steps=3", "trainer.log_val_generations=4"} < set(lines)
    assert "actor_rollout_ref.model.lora_rank=0" in lines
    assert len(lines) == len(plan(inside, "gsm8k", "--on", "h800x4", "--tune", "full")["overrides"]) + 2
    assert inside("recipe", "render", *PAIR, "--format", "hydra", *words[3:]).stdout == done.stdout


def test_yaml_is_the_plans_overrides_nested(inside: Cli) -> None:
    nested = yaml.safe_load(inside("recipe", "render", *PAIR, "--format", "yaml").stdout)
    overrides = plan(inside, *PAIR)["overrides"]
    for key, value in overrides.items():
        at = nested
        for name in key.split("."):
            at = at[name]
        assert at == value, key


@pytest.mark.skipif(BASH is None, reason="needs bash")
def test_the_script_starts_what_omnirl_would(inside: Cli, tmp_path: Path) -> None:
    """The script itself, with the real omnirl and a dry run, from another folder."""
    words = (*PAIR, "--algo", "dapo", "--set", 'data.train = "it\'s $mine.parquet"', "--set", "train.steps = 3")
    after = ("--", "trainer.log_val_generations=4")
    done = inside("recipe", "render", *words, "--format", "shell", *after)
    assert done.returncode == 0, done.stderr
    found = json.loads(run_script(done.stdout, tmp_path, "--dry-run", "--json"))
    expected = plan(inside, *words, after=after)
    for name in ("overrides", "env", "settings", "batch"):
        assert found[name] == expected[name]


@pytest.mark.skipif(BASH is None, reason="needs bash")
def test_variables_in_effect_become_defaults_of_the_script(inside: Cli, tmp_path: Path) -> None:
    done = inside("recipe", "render", *PAIR, "--format", "shell", env={"ROLLOUT_N": "8"})
    assert done.stderr == "from the environment: ROLLOUT_N=8 (batch.group_size)\n"
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nprintf %s "$ROLLOUT_N"\n')
    python.chmod(0o755)
    assert run_script(done.stdout, tmp_path, python=str(python)) == "8"
    assert run_script(done.stdout, tmp_path, python=str(python), ROLLOUT_N="4") == "4"


def test_user_recipes_come_along(inside: Cli, tmp_path: Path) -> None:
    env = {"OMNIRL_RECIPES": "own ones"}
    assert inside("recipe", "new", "mine", "--from", "toy", env=env).returncode == 0
    done = inside("recipe", "render", "mine", "--on", "cpu", "--format", "shell", env=env)
    assert "export OMNIRL_RECIPES='own ones'" in done.stdout.splitlines()
    assert f"cd {tmp_path}" in done.stdout.splitlines()


def test_a_recipe_that_is_not_right_is_not_rendered(inside: Cli) -> None:
    for form in ("hydra", "shell", "yaml"):
        done = inside("recipe", "render", *PAIR, "--format", form, "--set", "batch.mini_prompts = 7")
        assert (done.returncode, done.stdout) == (3, "")
        assert "batch.mini_prompts" in done.stderr
    assert inside("recipe", "render", *PAIR, "--set", "batch.promts = 7").returncode == 3
    assert inside("recipe", "render", *PAIR, "--", "trainer.no_such=1").returncode == 3


def test_warnings_go_to_stderr(inside: Cli) -> None:
    done = inside("recipe", "render", *PAIR, "--set", "algo.clip_high = 0.3")
    assert done.returncode == 0
    assert done.stderr.startswith("warning: ")
    assert "warning: " not in done.stdout


def test_mistakes_of_use(inside: Cli) -> None:
    assert inside("recipe", "render", "gsm8k").returncode == 2
    assert inside("recipe", "render", *PAIR, "--format", "json").returncode == 2
    done = inside("recipe", "render", *PAIR, "oops")
    assert done.returncode == 2
    assert "omnirl recipe render --help" in done.stderr
