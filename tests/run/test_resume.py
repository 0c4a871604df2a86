"""Which settings a resumed run may change."""

from __future__ import annotations

import pytest

from omnirl.errors import InvalidInput
from omnirl.recipe import registry
from omnirl.run import resume


@pytest.fixture(scope="module")
def document() -> dict:
    return registry.resolve("toy", "cpu", sets=["train.steps = 5"]).as_json()


def test_the_record_alone_gives_the_recipe_back(document: dict) -> None:
    recipe = resume.recorded_recipe(document).recipe
    assert recipe.model_dump(mode="json") == document["values"]
    assert recipe.train.steps == 5


def test_more_steps_are_allowed_and_named(document: dict) -> None:
    wanted = resume.recorded_recipe(document, ["train.steps = 9"]).recipe.model_dump(mode="json")
    found = resume.differences(document["values"], wanted)
    assert found == [resume.Difference("train.steps", 5, 9)]
    resume.require_allowed(found, run="x")


def test_what_makes_it_another_run_is_refused_with_every_difference(document: dict) -> None:
    sets = ["batch.group_size = 2", "hardware.memory_gib = 2.0", "train.steps = 9", 'verl."data.seed" = 7']
    wanted = resume.recorded_recipe(document, sets).recipe.model_dump(mode="json")
    with pytest.raises(InvalidInput, match="made with other settings") as caught:
        resume.require_allowed(resume.differences(document["values"], wanted), run="x")
    keys = {problem.key for problem in caught.value.problems}
    assert keys == {"batch.group_size", "hardware.memory_gib", "verl.data.seed"}


def test_a_run_may_go_on_with_other_devices(document: dict) -> None:
    sets = ["hardware.devices_per_node = 2", "rollout.devices = 1", "rollout.tensor_parallel = 1"]
    wanted = resume.recorded_recipe(document, sets).recipe.model_dump(mode="json")
    found = resume.differences(document["values"], wanted)
    assert {difference.key for difference in found} == {"hardware.devices_per_node", "rollout.devices"}
    resume.require_allowed(found, run="x")


def test_another_kind_is_a_difference(document: dict) -> None:
    wanted = resume.recorded_recipe(
        document,
        ["tune = { kind = 'lora', rank = 4, alpha = 8, dtype = 'fp32', merge = true, target_modules = 'all-linear' }"],
    ).recipe.model_dump(mode="json")
    keys = {difference.key for difference in resume.differences(document["values"], wanted)}
    assert {"tune.kind", "tune.rank"} <= keys


def test_a_wrong_set_is_an_input_error(document: dict) -> None:
    with pytest.raises(InvalidInput):
        resume.recorded_recipe(document, ["train.stepz = 9"])


def test_data_that_changed_is_a_difference() -> None:
    found = resume.changed_data({"/a": "1", "/b": "2", "/c": "3"}, {"/a": "1", "/b": "9"})
    assert [difference.key for difference in found] == ["sha256 of /b", "sha256 of /c"]
    assert not any(difference.allowed for difference in found)
