from __future__ import annotations

import json
from pathlib import Path

import pytest

from omnirl.commands import _training
from omnirl.commands._training import Wanted
from omnirl.run import record
from omnirl.run.record import Run
from tests.commands.test_train import sets
from tests.conftest import Cli


@pytest.fixture
def run(tmp_path: Path, toy_data: Path) -> Run:
    prepared = _training.prepare(Wanted("toy", "cpu", sets=sets(toy_data), words=("trainer.log_val_generations=4",)))
    run = record.reserve(tmp_path / "runs", "mine", stem="toy")
    _training.record(prepared, run)
    return run


def test_two_pairs(inside: Cli) -> None:
    done = inside("recipe", "diff", "gsm8k/h800x4", "avqa/h800x4")
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
    lines = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in done.stdout.splitlines()]
    assert lines[0] == ["setting", "gsm8k/h800x4", "from", "avqa/h800x4", "from"]
    found = {line[0]: line[1:] for line in lines[1:]}
    assert found["data.max_prompt_tokens"][0::2] == ["2048", "4096"]
    assert found["rollout.options.max_num_seqs"][:3] == ["-", "-", "256"]
    assert "model.path" not in found


def test_as_json(inside: Cli) -> None:
    done = inside("recipe", "diff", "avqa/h800x4", "avqa/h800x4/dapo", "--json")
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "omnirl/recipe-diff/1"
    assert document["a"] == {"name": "avqa/h800x4", "kind": "pair", "task": "avqa", "hardware": "h800x4"}
    found = {entry["setting"]: entry for entry in document["differences"]}
    assert found["algo.kind"]["a"]["value"] == "gspo"
    assert found["algo.kind"]["b"]["value"] == "dapo"
    assert found["algo.kind"]["b"]["origin"].endswith("recipes/algo/dapo.toml:7")
    assert found["algo.entropy_coeff"]["a"] is None


def test_equal_is_zero(inside: Cli) -> None:
    done = inside("recipe", "diff", "toy/cpu", "toy/cpu/gspo/full")
    assert (done.returncode, done.stdout) == (0, "toy/cpu and toy/cpu/gspo/full are equal\n")
    document = json.loads(inside("recipe", "diff", "toy/cpu", "toy/cpu", "--json").stdout)
    assert document["differences"] == []


def test_sets_change_both_pairs(inside: Cli) -> None:
    words = ("recipe", "diff", "gsm8k/h800x4", "gsm8k/h200x1", "--json")
    plain = {entry["setting"] for entry in json.loads(inside(*words).stdout)["differences"]}
    same = inside(*words, "--set", "batch.prompts = 64", "--set", "train.steps = 3")
    assert plain - {entry["setting"] for entry in json.loads(same.stdout)["differences"]} == {"batch.prompts"}


@pytest.mark.parametrize("side", ["mine", "{path}", "{path}/", "{path}/recipe.json"])
def test_a_pair_and_a_run(inside: Cli, run: Run, side: str) -> None:
    done = inside("recipe", "diff", "toy/cpu", side.format(path=run.path), "--json")
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert (document["b"]["kind"], document["b"]["task"], document["b"]["hardware"]) == ("run", "toy", "cpu")
    found = {entry["setting"]: entry for entry in document["differences"]}
    assert set(found) == {
        *("data.train", "data.val", "data.probe"),
        *("batch.prompts", "batch.group_size", "train.steps", "words after --"),
    }
    assert found["train.steps"]["b"] == {"value": 3, "origin": "--set"}
    assert found["words after --"] == {
        "setting": "words after --",
        "a": None,
        "b": {"value": ["trainer.log_val_generations=4"], "origin": "run.json"},
    }


def test_a_run_and_itself(inside: Cli, run: Run) -> None:
    assert inside("recipe", "diff", "mine", str(run.path)).returncode == 0
    assert inside("recipe", "diff", "mine", "mine", "--set", "train.steps = 3").returncode == 2
    assert inside("recipe", "diff", "mine", "mine", "--runs", "elsewhere").returncode == 2


def test_the_environment_does_not_count(inside: Cli) -> None:
    assert inside("recipe", "diff", "toy/cpu", "toy/cpu", env={"ROLLOUT_N": "x"}).returncode == 0


@pytest.mark.parametrize(
    ("sides", "code", "message", "hint"),
    [
        (("gsm8j/cpu", "toy/cpu"), 2, "`gsm8j/cpu` is neither TASK/HARDWARE nor a run", "did you mean `gsm8k/cpu`?"),
        (("gsm8k", "toy/cpu"), 2, "`gsm8k` lacks its hardware", "`gsm8k/HARDWARE`"),
        (("gsm8k/cpu/dap", "toy/cpu"), 2, "`dap` in `gsm8k/cpu/dap`", "did you mean `dapo`?"),
        (("gsm8k/cpuu", "toy/cpu"), 3, "there is no hardware `cpuu`", "did you mean `cpu`?"),
        (("toy/cpu", "no-run"), 2, "`no-run` is neither", "omnirl recipe list; omnirl run list"),
        (("", "toy/cpu"), 2, "`` is neither", ""),
    ],
)
def test_what_is_neither(inside: Cli, sides: tuple[str, str], code: int, message: str, hint: str) -> None:
    done = inside("recipe", "diff", *sides)
    assert done.returncode == code
    assert done.stdout == ""
    assert message in done.stderr
    assert hint in done.stderr


@pytest.mark.parametrize("text", ["", "[]", '{"values": 3}', '{"values": {"a": [1]}', "\0"])
def test_a_damaged_record(inside: Cli, run: Run, text: str) -> None:
    (run.path / "recipe.json").write_text(text)
    done = inside("recipe", "diff", "toy/cpu", "mine")
    assert done.returncode == 3
    assert "is missing or damaged" in done.stderr
