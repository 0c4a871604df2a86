from __future__ import annotations

import json

from omnirl.plan import plan
from omnirl.recipe import registry


def test_the_document_of_a_plan():
    document = plan(registry.resolve("gsm8k", "h800x4", sets=["train.steps = 3"]))
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert list(document) == [
        "schema", "task", "hardware", "algo", "tune", "evidence",
        "overrides", "settings", "env", "algorithm", "batch", "adapter", "placement", "schedule", "memory", "disk",
        "problems",
    ]  # fmt: skip
    assert document["schema"] == "omnirl/plan/1"
    assert (document["algo"], document["tune"], document["evidence"]) == ("gspo", "lora", "planned")
    assert document["settings"]["actor_rollout_ref.model.lora_dtype"] == "float32"
    assert {"actor_peak_gib", "rollout_peak_gib", "components"} <= set(document["memory"])
    assert document["problems"] == []


def test_the_arithmetic_of_a_step():
    batch = plan(registry.resolve("gsm8k", "h800x4"))["batch"]
    assert batch == {
        "prompts": 128,
        "group_size": 16,
        "sequences": 2048,
        "mini_prompts": 16,
        "updates_per_step": 8,
        "devices": 4,
        "sequences_per_device": 512,
        "sequences_per_update_and_device": 64,
        "max_tokens_per_device": 20480,
        "micro_sequences": None,
        "max_tokens_per_sequence": 10240,
        "rollout_copies": 2,
        "teacher_copies": None,
        "steps": None,
        "epochs": 10,
    }


def test_the_adapter_is_counted():
    """Rank 32 on four projections of 48 layers: 48 x 32 x (6144 + 2560 + 2560 + 6144)."""
    adapter = plan(registry.resolve("gsm8k", "h800x4"))["adapter"]
    assert adapter == {"modules": {"text": 192}, "target_parameters": 0, "parameters": 26_738_688}
    assert plan(registry.resolve("gsm8k", "h800x4", tune="full"))["adapter"] is None
    assert plan(registry.resolve("toy", "cpu", tune="lora"))["adapter"] is None


def test_an_adapter_on_128_experts_a_layer_shows_its_size():
    adapter = plan(registry.resolve("omni-preference", "h800x4"))["adapter"]
    experts = 48 * 128 * 32 * ((1536 + 2048) + (2048 + 768))
    assert adapter == {"modules": {"text": 192}, "target_parameters": 96, "parameters": 26_738_688 + experts}


def test_a_teachers_machines_do_not_train():
    batch = plan(registry.resolve("mmk12", "ascend910c-x16x2"))["batch"]
    assert (batch["devices"], batch["sequences_per_device"], batch["rollout_copies"]) == (16, 128, 8)
    assert batch["teacher_copies"] == 8
    assert plan(registry.resolve("mmk12", "ascend910c-x16"))["batch"]["teacher_copies"] is None


def test_pairs_of_answers_need_no_rollout():
    batch = plan(registry.resolve("omni-preference", "h800x4"))["batch"]
    assert (batch["group_size"], batch["sequences"], batch["rollout_copies"]) == (2, 64, None)
    assert batch["max_tokens_per_sequence"] == 4096


def test_problems_of_rules_and_words_are_listed():
    resolved = registry.resolve("toy", "cpu", sets=["batch.group_size = 1"])
    problems = plan(resolved, ["data.train_batch_size=4"])["problems"]
    assert {problem["code"] for problem in problems} >= {"group-of-one", "shadows-a-setting"}
    assert {"code", "severity", "key", "where", "message", "hint"} == set(problems[0])
