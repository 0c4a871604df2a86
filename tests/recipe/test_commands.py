from __future__ import annotations

import json
import subprocess
import sys
import tomllib

import pytest
from typer.testing import CliRunner

from omnirl.commands import _completion, recipe
from omnirl.errors import InvalidInput, UsageMistake
from omnirl.recipe import registry


@pytest.fixture
def run():
    def _run(*args, code=0):
        result = CliRunner().invoke(recipe.app, args, catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result.stdout

    return _run


def test_list(run, task):
    task()
    lines = [line.split() for line in run("list").splitlines()]
    assert lines[0] == ["task", "hardware", "algo", "tune", "evidence"]
    assert ["mine", "cpu", "gspo", "full", "planned"] in lines
    document = json.loads(run("list", "--json"))
    assert document["schema"] == "omnirl/recipes/1"
    assert {"task": "mine", "hardware": "cpu", "algo": "gspo", "tune": "full", "evidence": "planned"} in document[
        "pairs"
    ]


def test_show_prints_toml_that_reads_back(run):
    values = tomllib.loads(
        run(
            *("show", "toy", "--on", "cpu", "--set", "train.steps = 7"),
            *("--set", 'verl."ray_kwargs.ray_init.x" = ["a[b]", { c = 1 }]'),
        )
    )
    assert values["train"]["steps"] == 7
    assert values["verl"]["ray_kwargs.ray_init.x"] == ["a[b]", {"c": 1}]
    assert "val_batch_rows" not in values["data"]


def test_show_with_origins(run, task):
    task("[on.cpu.batch]\nmini_prompts = 4\n")
    lines = run("show", "mine", "--on", "cpu", "--origin", "--set", "batch.mini_prompts = 2").splitlines()
    (line,) = [line for line in lines if line.startswith("batch.mini_prompts")]
    assert line.startswith("batch.mini_prompts = 2  # --set (was 4 at mine/mine.toml:")
    assert "(was 8 at mine/mine.toml:" in line
    assert "(was 16 at " in line
    assert "rollout.max_failed_share = 0.1  # default" in lines


def test_show_as_json(run):
    assert json.loads(run("show", "toy", "--on", "cpu", "--json"))["values"]["model"]["path"] == "tiny"


def test_show_needs_hardware(run):
    with pytest.raises(UsageMistake, match="--on"):
        run("show", "toy")


def test_check_of_everything(run):
    count = len(registry.pairs())
    assert count > 15
    assert run("check") == run("check", "--all") == f"{count} recipes are right\n"
    assert run("check", "gsm8k", "--on", "cpu") == "1 recipe is right\n"
    document = json.loads(run("check", "--json"))
    assert document == {"schema": "omnirl/recipe-check/1", "pairs": count, "errors": 0, "problems": []}


def test_check_tells_every_problem_of_every_recipe(run, task, write):
    task("[on.cpu.train]\nstep = 1\n[on.cpu.batch]\ngroup_size = 1\n[on.nowhere]\n")
    write("broken.toml", "a = \n")
    write("unused.toml", "[task]\nsummary = 'no hardware'\n")
    out = run("check", code=1)
    for text in ("train.step", "train.steps", "batch.group_size", "nowhere", "mine/broken.toml:1", "no-pair"):
        assert text in out
    problems = json.loads(run("check", "--json", code=1))["problems"]
    assert {"mine", "broken", "unused"} == {problem["task"] for problem in problems}
    assert {"code", "severity", "key", "where", "message", "hint", "task", "hardware"} == set(problems[0])


def test_check_with_warnings_alone_is_right(run, task):
    task("[on.cpu.algo]\nclip_high = 0.3\n")
    assert "clip-for-tokens" in run("check", "mine")


def test_check_of_an_unknown_task(run):
    with pytest.raises(InvalidInput, match="gsm8j") as caught:
        run("check", "gsm8j")
    assert caught.value.hint == "did you mean `gsm8k`?"
    with pytest.raises(UsageMistake):
        run("check", "--on", "cpu")
    with pytest.raises(UsageMistake):
        run("check", "toy", "--all")


def test_schema(run):
    assert json.loads(run("schema"))["title"] == "omnirl recipe"


def test_completion_offers_names_and_settings(task, write):
    task()
    write("hardware/cpu9.toml", "")
    assert _completion.tasks("") == ["avqa", "gsm8k", "mine", "mmk12", "nextqa", "omni-preference", "toy"]
    assert _completion.tasks("mi") == ["mine"]
    assert _completion.hardware("cpu") == ["cpu", "cpu9"]
    assert _completion.algos("") == ["dapo", "dpo", "gspo", "opd"]
    assert _completion.tunes("l") == ["lora"]
    assert _completion.settings("train.st") == ["train.steps = "]
    assert "algo.entropy_coeff = " in _completion.settings("algo.")
    assert "model.tiny.seed = " in _completion.settings("model.")


def test_completion_and_commands_load_nothing_heavy():
    code = (
        "import sys; from omnirl.commands import _completion; _completion.tasks(''); _completion.settings('');"
        "assert 'pydantic' not in sys.modules, 'pydantic';"
        "assert 'omnirl.recipe.model' not in sys.modules;"
        "import omnirl.commands.recipe;"
        "heavy = {'omegaconf', 'hydra', 'torch', 'verl', 'ray', 'pyarrow', 'omnirl.recipe.model'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
