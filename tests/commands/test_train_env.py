"""`train` and `plan` under the environment variables of the documented launchers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from omnirl.commands import _training
from omnirl.commands._training import Wanted
from omnirl.run import record
from tests.commands.test_train import sets
from tests.conftest import Cli

PAIR = ("gsm8k", "--on", "h800x4")
DRY = {"train": ("train", *PAIR, "--dry-run", "--json"), "plan": ("plan", *PAIR, "--json")}
SIZE = "data.train_batch_size"


@pytest.mark.parametrize("command", list(DRY))
def test_each_layer_is_stronger_than_the_one_before(inside: Cli, command: str) -> None:
    env = {"TRAIN_BATCH_SIZE": "64"}
    found = []
    for more in ((), ("--set", "batch.prompts = 32"), ("--set", "batch.prompts = 32", "--", f"{SIZE}=256")):
        done = inside(*DRY[command], *more, env=env)
        assert done.returncode == 0, done.stderr
        assert "TRAIN_BATCH_SIZE" in done.stderr
        found.append(json.loads(done.stdout)["overrides"][SIZE])
    assert found == [64, 32, 256]


@pytest.mark.parametrize("command", list(DRY))
def test_a_bad_value_is_refused(inside: Cli, command: str) -> None:
    done = inside(*DRY[command], env={"ROLLOUT_MEMORY_FRACTION": "80"})
    assert done.returncode == 3
    assert "env ROLLOUT_MEMORY_FRACTION" in done.stderr


def test_verl_is_told_the_experiments_name(inside: Cli) -> None:
    env = {"EXPERIMENT_NAME": "trial"}
    overrides = json.loads(inside(*DRY["train"], env=env).stdout)["overrides"]
    assert overrides["trainer.experiment_name"] == "trial"
    other = json.loads(inside(*DRY["train"], "--name", "mine", env=env).stdout)["overrides"]
    assert "trainer.experiment_name" not in other


@pytest.mark.parametrize(
    ("env", "more", "where"),
    [
        ({"OUTPUT_DIR": "out"}, (), "out"),
        ({"OUTPUT_DIR": "out", "OMNIRL_RUNS": "own"}, (), "own"),
        ({"OUTPUT_DIR": "out"}, ("--runs", "asked"), "asked"),
        ({"OUTPUT_DIR": "out"}, ("--runs", "runs"), "runs"),
        ({}, (), "runs"),
    ],
)
def test_where_runs_are_looked_for(inside: Cli, env: dict[str, str], more: tuple[str, ...], where: str) -> None:
    done = inside("train", "toy", "--on", "cpu", "--resume", *more, env=env)
    assert done.returncode == 2
    assert f"`{where}` has no run of `toy` on `cpu`" in done.stderr


def test_a_resume_finds_its_run_by_them_and_keeps_its_recipe(inside: Cli, tmp_path: Path, toy_data: Path) -> None:
    prepared = _training.prepare(Wanted("toy", "cpu", sets=sets(toy_data)))
    run = record.reserve(tmp_path / "out", "trial", stem="toy")
    _training.record(prepared, run)
    env = {"OUTPUT_DIR": "out", "EXPERIMENT_NAME": "trial", "TRAIN_BATCH_SIZE": "lots"}
    done = inside("train", "toy", "--on", "cpu", "--resume", "--dry-run", "--json", env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["overrides"][SIZE] == 8
    assert "in the environment, but a run goes on with its own recipe: TRAIN_BATCH_SIZE" in done.stderr
