from __future__ import annotations

import os
import tomllib

import pytest

from omnirl.errors import InvalidInput
from omnirl.recipe import registry, rules
from omnirl.recipe.model import settings
from omnirl.recipe.variables import VARIABLES, given, in_effect

VALUES = {
    "MODEL_PATH": ("models/mine", "models/mine"),
    "TRAIN_FILE": ("mine/train.parquet", ["mine/train.parquet"]),
    "VAL_FILE": ("['a.parquet', \"b.parquet\"]", ["a.parquet", "b.parquet"]),
    "N_GPUS_PER_NODE": ("8", 8),
    "NNODES": (" 2 ", 2),
    "ROLLOUT_TP": ("4", 4),
    "TRAIN_BATCH_SIZE": ("64", 64),
    "ROLLOUT_N": ("8", 8),
    "TOTAL_TRAINING_STEPS": ("20", 20),
    "LEARNING_RATE": ("1e-5", 1e-5),
    "ROLLOUT_MEMORY_FRACTION": (".5", 0.5),
    "ROLLOUT_MAX_NUM_SEQS": ("8", 8),
    "EXPERIMENT_NAME": ("trial", "trial"),
}
ORDINARY = [variable for variable in VARIABLES if variable.setting]


@pytest.mark.parametrize("variable", ORDINARY, ids=lambda variable: variable.name)
def test_a_variable_stands_above_the_recipe(variable):
    text, value = VALUES[variable.name]
    plain = registry.resolve("nextqa", "ascend910c-x16")
    found = registry.resolve("nextqa", "ascend910c-x16", variables={variable.name: text})
    setting = found.origins[variable.setting]
    assert (setting.value, setting.origin) == (value, f"env {variable.name}")
    before = plain.origins[variable.setting]
    if before.origin != registry.DEFAULT:
        assert setting.over[0].value == before.value
        assert setting.over[0].origin == before.origin
    assert found.where(variable.setting) == f"env {variable.name}"


def test_the_table_names_settings_that_there_are():
    known = set(settings())
    for variable in ORDINARY:
        assert variable.setting in known or variable.setting.startswith("verl."), variable
    assert len({variable.name for variable in VARIABLES}) == len(VARIABLES)


def test_the_documented_variables_are_there(shared):
    facts = tomllib.loads((shared / "facts" / "recipes.toml").read_text(encoding="utf-8"))
    assert set(facts["gspo/nextqa/npu"]["env_overrides"]) <= {variable.name for variable in VARIABLES}


def test_from_recipe_to_set():
    both = {"LEARNING_RATE": "1e-4", "ROLLOUT_N": "8"}
    found = registry.resolve("gsm8k", "h800x4", tune="full", sets=["batch.group_size = 2"], variables=both)
    rate = found.origins["optim.learning_rate"]
    assert (rate.value, rate.origin, rate.over[0].value) == (1e-4, "env LEARNING_RATE", 1e-6)
    size = found.origins["batch.group_size"]
    assert [size.origin, *(weaker.origin for weaker in size.over)][:2] == ["--set", "env ROLLOUT_N"]
    used, beaten = in_effect(both, found.origins)
    assert ([v.name for v in used], [v.name for v in beaten]) == (["LEARNING_RATE"], ["ROLLOUT_N"])


def test_a_set_to_the_same_value_is_what_counts():
    found = registry.resolve("gsm8k", "cpu", sets=["batch.group_size = 8"], variables={"ROLLOUT_N": "8"})
    assert found.origins["batch.group_size"].origin == "--set"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("TRAIN_BATCH_SIZE", "lots", 'must be a whole number, not the text `"lots"`'),
        ("TRAIN_BATCH_SIZE", "12.5", 'must be a whole number, not the text `"12.5"`'),
        ("TRAIN_BATCH_SIZE", "0", "must be at least 1, not `0`"),
        ("TRAIN_BATCH_SIZE", "9" * 5000, "must be a whole number"),
        ("TRAIN_BATCH_SIZE", "٣", "must be a whole number"),
        ("LEARNING_RATE", "nan", "must be a number"),
        ("LEARNING_RATE", "1e999", "finite number"),
        ("LEARNING_RATE", "-1e-6", "must be above 0"),
        ("ROLLOUT_MEMORY_FRACTION", "80", "must be at most 1"),
        ("ROLLOUT_MAX_NUM_SEQS", "-1", "must be at least 1"),
        ("TRAIN_FILE", "[1, 2]", "must be text"),
        ("TRAIN_FILE", "[]", "needs at least 1 item"),
        ("MODEL_PATH", "half\udcff", "is not valid"),
    ],
)
def test_a_bad_value_names_its_variable(name, text, said):
    with pytest.raises(InvalidInput) as caught:
        registry.resolve("gsm8k", "h800x4", variables={name: text})
    assert {problem.where for problem in caught.value.problems} == {f"env {name}"}
    assert any(said in problem.message for problem in caught.value.problems)
    assert all(len(problem.message) < 300 for problem in caught.value.problems)


def test_bad_values_are_told_with_every_other_mistake():
    both = {"ROLLOUT_N": "x", "NNODES": "y"}
    with pytest.raises(InvalidInput) as caught:
        registry.resolve("gsm8k", "h800x4", sets=["train.step = 3"], variables=both)
    assert [problem.where for problem in caught.value.problems] == ["--set", "env NNODES", "env ROLLOUT_N"]


def test_a_broken_rule_names_the_variable():
    resolved = registry.resolve("gsm8k", "h800x4", variables={"TRAIN_BATCH_SIZE": "100"})
    (problem,) = rules.check(resolved)
    assert problem.key == "batch.mini_prompts"
    assert problem.message.endswith("; `batch.prompts` is from env TRAIN_BATCH_SIZE")
    (problem,) = rules.check(registry.resolve("gsm8k", "h800x4", variables={"ROLLOUT_N": "1"}))
    assert (problem.where, problem.key) == ("env ROLLOUT_N", "batch.group_size")


@pytest.mark.parametrize("text", ["", "  ", "\t\n"])
def test_blank_is_not_set(text):
    assert given({"ROLLOUT_N": text, "TRAIN_BATCH_SIZE": "3", "HOME": "/"}) == {"TRAIN_BATCH_SIZE": "3"}
    assert registry.resolve("toy", "cpu", variables={"ROLLOUT_N": text}) == registry.resolve("toy", "cpu")


def test_only_what_is_passed_counts(monkeypatch):
    before = registry.resolve("toy", "cpu")
    monkeypatch.setenv("ROLLOUT_N", "2")
    assert registry.resolve("toy", "cpu") == before
    assert registry.resolve("toy", "cpu", variables=os.environ).recipe.batch.group_size == 2


@pytest.mark.parametrize(("limit", "sizes"), [("8", [1, 2, 4, 8]), ("4", [1, 2, 4]), ("3", [1, 2, 3]), ("1", [1])])
def test_graphs_follow_concurrency(limit, sizes):
    found = registry.resolve("nextqa", "ascend910c-x16", variables={"ROLLOUT_MAX_NUM_SEQS": limit})
    assert found.recipe.rollout.capture_sizes == sizes
    assert found.origins["rollout.capture_sizes"].origin == "env ROLLOUT_MAX_NUM_SEQS"
    assert not [problem for problem in rules.check(found) if problem.code.startswith("captures")]


def test_a_limit_among_the_engines_own_options_follows():
    found = registry.resolve("avqa", "h800x4", variables={"ROLLOUT_MAX_NUM_SEQS": "20"})
    assert found.recipe.rollout.options["max_num_seqs"] == found.recipe.rollout.max_sequences == 20
    assert found.recipe.rollout.capture_sizes == [1, 2, 4, 8, 16, 20]
    assert rules.check(found) == ()


def test_nothing_follows_where_the_recipe_sets_nothing():
    found = registry.resolve("gsm8k", "h800x4", variables={"ROLLOUT_MAX_NUM_SEQS": "20"})
    assert found.recipe.rollout.capture_sizes is None
    assert "max_num_seqs" not in found.recipe.rollout.options


def test_a_clash_in_a_file_is_told_once(task):
    task("[on.cpu.batch.prompts]\na = 1\n")
    with pytest.raises(InvalidInput) as with_variable:
        registry.resolve("mine", "cpu", variables={"TOTAL_TRAINING_STEPS": "3"})
    with pytest.raises(InvalidInput) as without:
        registry.resolve("mine", "cpu")
    assert with_variable.value.problems == without.value.problems
