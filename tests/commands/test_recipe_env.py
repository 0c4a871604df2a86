"""Environment variables of the documented launchers, as the command line takes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from omnirl.commands import _recipe_variables, _training
from omnirl.commands._training import Wanted
from omnirl.errors import UsageMistake
from omnirl.recipe.variables import VARIABLES
from omnirl.run import record
from tests.commands.test_train import sets
from tests.conftest import Cli

Set = Callable[..., None]


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Set:
    """Sets variables of the table, and takes all others out."""

    def _set(**values: str) -> None:
        for variable in VARIABLES:
            monkeypatch.delenv(variable.name, raising=False)
        for name, text in values.items():
            monkeypatch.setenv(name, text)

    _set()
    return _set


def test_the_table_says_what_is_set(inside: Cli) -> None:
    done = inside("recipe", "env", env={"ROLLOUT_N": "4"})
    assert done.returncode == 0, done.stderr
    lines = [line.split("  ") for line in done.stdout.splitlines()]
    assert [line[0] for line in lines[1:]] == [variable.name for variable in VARIABLES]
    (line,) = (line for line in lines if line[0] == "ROLLOUT_N")
    assert line[-1].strip() == "4"
    document = json.loads(inside("recipe", "env", "--json", env={"ROLLOUT_N": "4"}).stdout)
    assert document["schema"] == "omnirl/recipe-env/1"
    found = {entry["name"]: entry for entry in document["variables"]}
    assert found["ROLLOUT_N"]["value"] == "4"
    assert found["ROLLOUT_N"]["setting"] == "batch.group_size"
    assert found["OUTPUT_DIR"] == {
        "name": "OUTPUT_DIR",
        "setting": None,
        "option": "--runs",
        "meaning": "folder where runs are kept",
        "also": [],
        "value": None,
    }


def test_show_tells_what_is_in_effect(inside: Cli) -> None:
    env = {"TRAIN_BATCH_SIZE": "64", "ROLLOUT_N": "4", "LEARNING_RATE": ""}
    words = ("recipe", "show", "gsm8k", "--on", "h800x4", "--origin", "--set", "batch.group_size = 2")
    done = inside(*words, env=env)
    assert done.returncode == 0, done.stderr
    assert "batch.prompts = 64  # env TRAIN_BATCH_SIZE (was 128 at " in done.stdout
    assert "batch.group_size = 2  # --set (was 4 at env ROLLOUT_N)" in done.stdout
    assert done.stderr.splitlines() == [
        "from the environment: TRAIN_BATCH_SIZE=64 (batch.prompts)",
        "in the environment, but `--set` is stronger: ROLLOUT_N (batch.group_size)",
    ]
    assert inside("-q", *words, env=env).stderr == ""
    assert inside(*words).stderr == ""


def test_a_bad_value_is_one_error_that_names_the_variable(inside: Cli) -> None:
    done = inside("recipe", "show", "gsm8k", "--on", "h800x4", env={"TRAIN_BATCH_SIZE": "lots"})
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.splitlines()[1].split()[:3] == ["env", "TRAIN_BATCH_SIZE", "batch.prompts"]


def test_check_of_one_pair_counts_them_and_of_all_does_not(inside: Cli) -> None:
    env = {"TRAIN_BATCH_SIZE": "100"}
    one = inside("recipe", "check", "gsm8k", "--on", "h800x4", env=env)
    assert one.returncode == 1
    assert "`batch.prompts` is from env TRAIN_BATCH_SIZE" in one.stdout
    assert one.stderr == "from the environment: TRAIN_BATCH_SIZE=100 (batch.prompts)\n"
    for words in (["gsm8k"], ["--all"]):
        every = inside("recipe", "check", *words, env=env)
        assert (every.returncode, every.stderr) == (0, "")


def test_a_run_records_them_and_goes_on_without_them(tmp_path: Path, toy_data: Path, variables: Set, capsys) -> None:
    variables(LEARNING_RATE="0.5", TOTAL_TRAINING_STEPS="7")
    prepared = _training.prepare(Wanted("toy", "cpu", sets=sets(toy_data), variables=_recipe_variables.given()))
    run = record.reserve(tmp_path / "runs", "mine", stem="toy")
    _training.record(prepared, run)
    assert run.document()["variables"] == {"TOTAL_TRAINING_STEPS": "7", "LEARNING_RATE": "0.5"}
    origins = run.recipe()["origins"]
    assert origins["optim.learning_rate"]["origin"] == "env LEARNING_RATE"
    assert origins["train.steps"]["origin"] == "--set"
    said = capsys.readouterr().err
    assert "from the environment: LEARNING_RATE=0.5 (optim.learning_rate)" in said
    assert "`--set` is stronger: TOTAL_TRAINING_STEPS (train.steps)" in said

    variables(LEARNING_RATE="0.25", EXPERIMENT_NAME="mine", OUTPUT_DIR=str(tmp_path / "runs"))
    again, changed = _training.prepare_resume(
        Wanted("toy", "cpu", variables=_recipe_variables.given()), run, force=False
    )
    assert again.resolved.recipe.optim.learning_rate == 0.5
    assert again.resolved.origins["optim.learning_rate"].origin == "env LEARNING_RATE"
    assert changed == []
    said = capsys.readouterr().err
    assert said == "in the environment, but a run goes on with its own recipe: LEARNING_RATE\n"
    _training.record(again, run)
    assert run.document()["variables"] == {"TOTAL_TRAINING_STEPS": "7", "LEARNING_RATE": "0.5"}


def test_nobody_is_asked_who_does_not_ask(toy_data: Path, variables: Set, capsys) -> None:
    """As the quickstart: its settings are its own."""
    variables(LEARNING_RATE="0.5", ROLLOUT_N="x")
    prepared = _training.prepare(Wanted("toy", "cpu", sets=sets(toy_data)))
    assert prepared.resolved.recipe.optim.learning_rate != 0.5
    assert "environment" not in capsys.readouterr().err


def test_a_runs_name_and_folder(variables: Set, capsys) -> None:
    here = Path("runs")
    assert _recipe_variables.for_a_run(None, here, asked_runs=False) == (None, here, {})
    variables(EXPERIMENT_NAME="trial", OUTPUT_DIR="/out", ROLLOUT_N="4")
    whole = {"ROLLOUT_N": "4", "EXPERIMENT_NAME": "trial", "OUTPUT_DIR": "/out"}
    assert _recipe_variables.for_a_run(None, here, asked_runs=False) == ("trial", Path("/out"), whole)
    assert capsys.readouterr().err == "from the environment: OUTPUT_DIR=/out (--runs)\n"
    # Options are stronger; verl is then told the run's own name.
    name, runs, counted = _recipe_variables.for_a_run("mine", Path("/mine"), asked_runs=True)
    assert (name, runs) == ("mine", Path("/mine"))
    assert "EXPERIMENT_NAME" not in counted
    assert capsys.readouterr().err == ""


def test_a_name_that_cannot_be_a_runs(variables: Set) -> None:
    variables(EXPERIMENT_NAME="../up")
    with pytest.raises(UsageMistake) as caught:
        _recipe_variables.for_a_run(None, Path("runs"), asked_runs=False)
    assert caught.value.where == "env EXPERIMENT_NAME"
