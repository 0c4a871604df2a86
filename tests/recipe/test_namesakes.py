"""A user's file that stands before a shipped one of the same name, and extends it."""

from __future__ import annotations

import os

import pytest

from omnirl.errors import InvalidInput
from omnirl.recipe import registry
from omnirl.recipe.search import shipped


def test_a_users_file_wins_over_the_shipped_one(write):
    write(
        "gsm8k.toml",
        (shipped() / "gsm8k.toml").read_text().replace("max_prompt_tokens = 2048", "max_prompt_tokens = 99"),
    )
    found = registry.resolve("gsm8k", "h800x4")
    assert found.recipe.data.max_prompt_tokens == 99
    assert found.where("data.max_prompt_tokens").startswith("mine/gsm8k.toml:")


def test_a_task_extends_the_shipped_one_of_its_name(write):
    plain = {hardware: registry.resolve("avqa", hardware) for hardware in ("cpu", "h800x4")}
    write("avqa.toml", 'extends = ["avqa.toml"]\n[model]\npath = "mine"\n[on.h800x4.batch]\nprompts = 64\n')
    found = registry.resolve("avqa", "h800x4")
    assert (found.recipe.model.path, found.recipe.batch.prompts) == ("mine", 64)
    assert found.where("batch.prompts") == "mine/avqa.toml:5"
    assert found.recipe.rollout == plain["h800x4"].recipe.rollout
    # Pairs of the extended file stay.
    assert registry.resolve("avqa", "cpu").recipe.batch == plain["cpu"].recipe.batch
    offered = [pair.hardware for pair in registry.pairs() if pair.task == "avqa"]
    assert offered == ["ascend910c-x16", "cpu", "h200x1", "h200x2", "h800x4"]


def test_a_task_that_does_not_extend_the_shipped_one_hides_its_pairs(write, task):
    write("avqa.toml", 'extends = ["toy.toml"]\n[on.cpu]\n')
    assert [pair.hardware for pair in registry.pairs() if pair.task == "avqa"] == ["cpu"]


@pytest.mark.parametrize("kind", ["hardware", "algo", "tune"])
def test_a_fragment_extends_the_shipped_one_of_its_name(write, kind):
    name = {"hardware": "h800x4", "algo": "dapo", "tune": "full"}[kind]
    write(f"{kind}/{name}.toml", f'extends = ["{kind}/{name}.toml"]\n[train]\nseed = 7\n')
    asked = {} if kind == "hardware" else {kind: name}
    found = registry.resolve("gsm8k", "h800x4", **asked)
    assert (found.recipe.train.seed, kind == "hardware") in [(7, False), (42, True)]
    seed = found.origins["train.seed"]
    values = [(s.value, s.origin) for s in (seed, *seed.over)]
    assert (7, f"mine/{kind}/{name}.toml:3") in values


def test_namesakes_in_three_folders_are_taken_in_turn(write, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    (other / "toy.toml").write_text('extends = ["toy.toml"]\n[train]\nsteps = 5\nepochs = 7\n')
    write("toy.toml", 'extends = ["toy.toml"]\n[train]\nsteps = 3\n')
    monkeypatch.setenv("OMNIRL_RECIPES", os.pathsep.join([str(tmp_path / "mine"), str(other)]))
    found = registry.resolve("toy", "cpu")
    steps = found.origins["train.steps"]
    assert [steps.value, *(weaker.value for weaker in steps.over)] == [3, 5, 36]
    assert found.recipe.train.epochs == 7


def test_a_file_that_extends_itself_alone_is_a_circle(write):
    write("lonely.toml", 'extends = ["lonely.toml"]\n[on.cpu]\n')
    with pytest.raises(InvalidInput) as caught:
        registry.resolve("lonely", "cpu")
    assert "circle" in {problem.code for problem in caught.value.problems}


def test_problems_of_an_extended_namesake_are_told_at_their_line(write, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    (other / "toy.toml").write_text('extends = ["toy.toml"]\n[on.nowhere]\n')
    write("toy.toml", 'extends = ["toy.toml"]\n')
    monkeypatch.setenv("OMNIRL_RECIPES", os.pathsep.join([str(tmp_path / "mine"), str(other)]))
    there, problems = registry.offered("toy", registry.search_path())
    assert there == ["cpu"]
    assert [problem.where for problem in problems] == ["other/toy.toml:2"]
