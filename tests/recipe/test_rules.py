from __future__ import annotations

import pytest

from omnirl.errors import InvalidInput
from omnirl.recipe import registry, rules


def broken(task="toy", hardware="cpu", **kwargs):
    return {problem.code: problem for problem in rules.check(registry.resolve(task, hardware, **kwargs))}


CPU, GPU = ("toy", "cpu"), ("gsm8k", "h800x4")
CASES = [
    (CPU, ["batch.group_size = 1"], "group-of-one", "batch.group_size", "at least 2", "group_size = 8"),
    (CPU, ["rollout.temperature = 0.0"], "no-exploration", "rollout.temperature", "temperature 0", "1.0"),
    (GPU, ["batch.mini_prompts = 256"], "mini-batch-too-large", "batch.mini_prompts", "256 prompts", "= 128`"),
    (GPU, ["batch.mini_prompts = 48"], "mini-batch-does-not-divide", "batch.mini_prompts", "leaves 32 over", "32`"),
    (
        GPU,
        ["batch.prompts = 10", "batch.mini_prompts = 10", "batch.group_size = 3"],
        "batch-not-divisible",
        "batch.mini_prompts",
        "10 prompts x 3 responses = 30 sequences, not divisible by 4 devices",
        "= 8` or `12`",
    ),
    (GPU, ["batch.micro_sequences = 8"], "one-pass-size", "batch.max_tokens_per_device", "not both", ""),
    (
        GPU,
        ["batch.max_tokens_per_device = 4096"],
        "sequence-does-not-fit",
        "batch.max_tokens_per_device",
        "2048 prompt + 8192 response = 10240",
        "10240",
    ),
    (
        CPU,
        ["batch.micro_sequences = 24"],
        "pass-does-not-divide",
        "batch.micro_sequences",
        "8 x 8 / 1 = 64 sequences",
        "= 16` or `32`",
    ),
    (GPU, ["algo.clip_low = 0.2", "algo.clip_high = 0.28"], "clip-for-tokens", "algo.clip_high", "0.2 / 0.28", "3e-4"),
    (GPU, ["rollout.tensor_parallel = 3"], "tensor-parallel", "rollout.tensor_parallel", "copies of 3", "= 2` or `4`"),
    (GPU, ["rollout.prompt_tokens = 1024"], "prompt-cut", "rollout.prompt_tokens", "1024", "2048"),
    (GPU, ['rollout.engine = "hf"'], "engine-for-cpu", "rollout.engine", "on a CPU only", "vllm_omni"),
    (CPU, ['rollout.engine = "vllm"'], "engine-for-gpu", "rollout.engine", "accelerator", "hf"),
    (CPU, ['actor.strategy = "fsdp"'], "not-on-cpu", "actor.strategy", "fsdp", "fsdp2"),
    (CPU, ["actor.param_offload = true"], "not-on-cpu", "actor.param_offload", "host memory", "false"),
    (CPU, ["actor.optimizer_offload = true"], "not-on-cpu", "actor.optimizer_offload", "host memory", "false"),
    (CPU, ["model.remove_padding = true"], "not-on-cpu", "model.remove_padding", "flash", "false"),
    (CPU, ['model.attention = "flash_attention_2"'], "not-on-cpu", "model.attention", "needs a GPU", "sdpa"),
    (GPU, ['model.path = "tiny"'], "tiny-needs-table", "model.path", "[model.tiny]", "model.tiny.seed"),
    (CPU, ["rollout.validation.temperature = 0.7"], "greedy-or-sampled", "rollout.validation.temperature", "0.7", ""),
    (CPU, ["rollout.validation.n = 4"], "greedy-repeats", "rollout.validation.n", "4 greedy", "= 1"),
    (("gsm8k", "cpu"), ["data.soundtrack = true"], "no-video", "data.soundtrack", "no video", ""),
    (("gsm8k", "h800x4"), ['evidence = "verified"'], "evidence-without-proof", "evidence", "proof", "planned"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[2]}-{case[3]}")
def test_each_rule(case):
    pair, sets, code, key, message, hint = case
    problem = broken(*pair, sets=sets)[code]
    assert problem.key == key
    assert message in problem.message
    assert hint in (problem.hint or "")
    assert any(word.startswith(key) for word in sets) == (problem.where == "--set")


def test_dapo_with_clips_of_gspo_is_a_warning():
    sets = ["algo.clip_low = 3e-4", "algo.clip_high = 4e-4"]
    assert broken("toy", "cpu", algo="dapo", sets=sets)["clip-for-sequences"].severity == "warning"
    assert "clip-for-sequences" not in broken("toy", "cpu", algo="dapo")


def test_clips_of_ppo_with_gspo_are_a_warning():
    assert broken(sets=["algo.clip_high = 0.2"])["clip-for-tokens"].severity == "warning"


def test_every_broken_rule_is_told_at_once():
    found = broken(*GPU, sets=["batch.group_size = 1", "batch.mini_prompts = 48", "rollout.tensor_parallel = 3"])
    assert found.keys() >= {"group-of-one", "mini-batch-does-not-divide", "tensor-parallel"}


def test_require_raises_errors_and_returns_warnings():
    wide = registry.resolve("toy", "cpu", sets=["algo.clip_high = 0.2"])
    assert [problem.severity for problem in rules.require(wide)] == ["warning"]
    both = registry.resolve("toy", "cpu", sets=["algo.clip_high = 0.2", "batch.group_size = 1"])
    with pytest.raises(InvalidInput, match="2 problems") as caught:
        rules.require(both)
    assert [problem.severity for problem in caught.value.problems].count("warning") == 1


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("task", ["toy", "gsm8k"])
def test_cpu_recipes_run_on_one_and_two_devices(task, devices):
    assert broken(task, "cpu", sets=[f"hardware.devices_per_node = {devices}"]) == {}


def test_suggested_values_hold():
    for prompts in range(1, 40):
        sets = [f"batch.prompts = {prompts}", f"batch.mini_prompts = {prompts}", "batch.group_size = 3"]
        problem = broken(*GPU, sets=sets).get("batch-not-divisible")
        if problem is None:
            continue
        for number in problem.hint.replace("`", " ").replace("=", " ").split():
            if number.isdigit():
                assert int(number) * 3 % 4 == 0
