"""Which device does what, and the arithmetic of steps and passes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.plan import plan
from omnirl.plan.fit import with_settings
from omnirl.plan.placement import placement, schedule
from omnirl.recipe import registry

GSM8K = registry.resolve("gsm8k", "h800x4").recipe


def changed(**settings: Any) -> Any:
    return with_settings(GSM8K, {key.replace("__", "."): value for key, value in settings.items()})


def test_every_device_is_in_one_copy():
    found = placement(GSM8K)
    assert found["nodes"] == [{"node": 0, "role": "train and generate", "devices": 4, "copies": [[0, 1], [2, 3]]}]
    assert (found["shards"], found["sharding"], found["rollout_engine"]) == (4, "fsdp2", "vllm_omni")


def test_a_teacher_has_a_machine_of_its_own():
    found = placement(registry.resolve("mmk12", "ascend910c-x16x2").recipe)
    assert [node["role"] for node in found["nodes"]] == ["train and generate", "teach"]
    assert found["shards"] == 16
    for node in found["nodes"]:
        assert sorted(device for copy in node["copies"] for device in copy) == list(range(16))


def test_a_teacher_on_devices_of_a_shared_machine():
    sets = ["algo.teacher.devices = 2", "algo.teacher.tensor_parallel = 1"]
    recipe = registry.resolve("mmk12", "h800x4", algo="opd", sets=sets).recipe
    found = placement(recipe)
    assert found["nodes"] == [
        {"node": 0, "role": "train and generate", "devices": 2, "copies": [[0, 1]]},
        {"node": 0, "role": "teach", "devices": 2, "copies": [[2], [3]]},
    ]
    assert found["shards"] == recipe.devices == 2


def test_a_teacher_on_the_devices_that_train():
    recipe = registry.resolve("mmk12", "h800x4", algo="opd", sets=["algo.teacher.shares_devices = true"]).recipe
    copies = [[0, 1], [2, 3]]
    assert placement(recipe)["nodes"] == [
        {"node": 0, "role": "train and generate", "devices": 4, "copies": copies},
        {"node": 0, "role": "teach", "devices": 4, "copies": copies},
    ]
    assert placement(recipe)["shards"] == recipe.devices == 4


def test_a_rollout_on_devices_of_its_own():
    document = plan(registry.resolve("gsm8k", "h800x4", sets=["rollout.devices = 2", "rollout.tensor_parallel = 1"]))
    assert document["placement"]["nodes"] == [
        {"node": 0, "role": "train", "devices": 2, "copies": []},
        {"node": 0, "role": "generate", "devices": 2, "copies": [[2], [3]]},
    ]
    assert document["placement"]["shards"] == document["batch"]["devices"] == 2
    assert document["batch"]["rollout_copies"] == 2
    rollout = "actor_rollout_ref.rollout"
    told = document["overrides"]
    assert {key: told[key] for key in told if key.rpartition(".")[2] in ("nnodes", "n_gpus_per_node", "backend")} == {
        "trainer.nnodes": 1,
        "trainer.n_gpus_per_node": 2,
        f"{rollout}.nnodes": 1,
        f"{rollout}.n_gpus_per_node": 2,
        f"{rollout}.checkpoint_engine.backend": "omnirl",
    }
    assert told["actor_rollout_ref.hybrid_engine"] is False


def test_a_rollout_and_a_teacher_each_on_devices_of_their_own():
    sets = ["algo.teacher.devices = 1", "algo.teacher.tensor_parallel = 1", "rollout.devices = 2"]
    recipe = registry.resolve("mmk12", "h800x4", algo="opd", sets=sets).recipe
    assert [(part["role"], part["devices"], part["copies"]) for part in placement(recipe)["nodes"]] == [
        ("train", 1, []),
        ("generate", 2, [[1, 2]]),
        ("teach", 1, [[3]]),
    ]


def test_training_from_given_answers_generates_nothing():
    recipe = registry.resolve("omni-preference", "h800x4").recipe
    assert placement(recipe)["nodes"] == [{"node": 0, "role": "train", "devices": 4, "copies": []}]
    assert placement(recipe)["rollout_engine"] is None
    assert schedule(recipe)["log_prob_passes"] is None


def test_npus_have_scripts_to_source_and_gpus_none():
    assert placement(GSM8K)["scripts"] == []
    scripts = placement(registry.resolve("nextqa", "ascend910c-x16").recipe)["scripts"]
    assert [script.rpartition("/")[2] for script in scripts] == ["set_env.sh"] * 2
    assert ["ascend-toolkit" in scripts[0], "atb" in scripts[1]] == [True, True]


def test_steps_and_updates_of_an_epoch():
    found = schedule(GSM8K, rows=7473)
    assert (found["steps_per_epoch"], found["steps"]) == (58, 580)
    assert (found["updates_per_step"], found["updates_per_epoch"], found["updates"]) == (8, 464, 4640)
    assert (found["validations"], found["checkpoints"]) == (58, 12)
    capped = schedule(changed(train__steps=100), rows=7473)
    assert (capped["steps"], capped["updates"], capped["checkpoints"]) == (100, 800, 2)
    few = schedule(changed(train__steps=1000), rows=7473)
    assert few["steps"] == 580, "the data end first"


def test_without_data_only_a_cap_says_how_many_steps():
    found = schedule(GSM8K)
    assert [found[name] for name in ("rows", "steps_per_epoch", "steps", "updates", "checkpoints")] == [None] * 5
    assert schedule(changed(train__steps=30))["updates"] == 240


def test_passes():
    found = schedule(GSM8K)
    # 16 x 16 / 4 = 64 sequences of up to 10240 tokens; two of the longest in 20480.
    assert found["passes_per_update"] == [1, 32]
    assert found["log_prob_passes"] == [1, 256]
    one_at_a_time = schedule(changed(batch__max_log_prob_tokens_per_device=10240))
    assert one_at_a_time["log_prob_passes"] == [1, 512]
    toy = registry.resolve("toy", "cpu").recipe
    assert schedule(toy)["passes_per_update"] == [2, 2]


@given(st.integers(1, 100_000), st.integers(1, 100_000))
def test_more_rows_are_no_fewer_steps(first, second):
    few, many = (schedule(GSM8K, rows=rows) for rows in sorted((first, second)))
    assert few["steps"] <= many["steps"]
    assert few["steps"] * GSM8K.batch.prompts <= min(first, second) * GSM8K.train.epochs


@pytest.mark.parametrize("pair", registry.pairs(), ids=lambda pair: f"{pair.task}-{pair.hardware}")
def test_the_document_agrees_with_the_recipe(pair):
    document = plan(registry.resolve(pair.task, pair.hardware), rows=10_000)
    batch, steps, where = document["batch"], document["schedule"], document["placement"]
    assert where["shards"] == batch["devices"]
    assert sum(node["devices"] for node in where["nodes"] if node["role"] != "teach") == batch["devices"]
    copies = sum(len(node["copies"]) for node in where["nodes"] if node["role"] == "train and generate")
    assert copies == (batch["rollout_copies"] or 0)
    least, most = steps["passes_per_update"]
    assert 1 <= least <= most <= batch["sequences_per_update_and_device"]
    assert steps["updates_per_step"] == batch["updates_per_step"]
