from __future__ import annotations

import json

from omnirl.plan import plan
from omnirl.recipe import registry


def test_the_document_of_a_plan():
    document = plan(registry.resolve("gsm8k", "h800x4", sets=["train.steps = 3"]))
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert list(document) == [
        "schema", "task", "hardware", "algo", "tune", "evidence",
        "overrides", "settings", "env", "batch", "memory", "problems",
    ]  # fmt: skip
    assert document["schema"] == "omnirl/plan/1"
    assert (document["algo"], document["tune"], document["evidence"]) == ("gspo", "lora", "planned")
    assert document["settings"]["actor_rollout_ref.model.lora_dtype"] == "float32"
    assert document["memory"] is None
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
        "steps": None,
        "epochs": 10,
    }


def test_problems_of_rules_and_words_are_listed():
    resolved = registry.resolve("toy", "cpu", sets=["batch.group_size = 1"])
    problems = plan(resolved, ["data.train_batch_size=4"])["problems"]
    assert {problem["code"] for problem in problems} >= {"group-of-one", "shadows-a-setting"}
    assert {"code", "severity", "key", "where", "message", "hint"} == set(problems[0])
