from __future__ import annotations

import pytest

from omnirl.errors import InvalidInput
from omnirl.recipe import registry, rules


def broken(task="toy", hardware="cpu", **kwargs):
    return {problem.code: problem for problem in rules.check(registry.resolve(task, hardware, **kwargs))}


CPU, GPU = ("toy", "cpu"), ("gsm8k", "h800x4")
AVQA, VIDEO = ("avqa", "h800x4"), ("nextqa", "ascend910c-x16")
TEACHER, PAIRS = ("mmk12", "ascend910c-x16x2"), ("omni-preference", "h800x4")
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
    (GPU, ["rollout.devices = 3"], "tensor-parallel", "rollout.tensor_parallel", "3 devices in a node", "= 1`"),
    (GPU, ["rollout.devices = 4"], "rollout-needs-devices", "rollout.devices", "4 of 4 devices", "devices = 3`"),
    (CPU, ["rollout.devices = 1"], "rollout-needs-devices", "rollout.devices", "1 of 1", "hardware with 2 devices"),
    (GPU, ["rollout.devices = 2", "tune.merge = false"], "adapter-from-apart", "rollout.devices", "whole", "= true"),
    (VIDEO, ["rollout.devices = 8"], "apart-on-npus", "rollout.devices", "not between NPUs", "leave out"),
    (PAIRS, ["rollout.devices = 1"], "nothing-to-generate", "rollout.devices", "without a rollout", "leave out"),
    (GPU, ["rollout.prompt_tokens = 1024"], "prompt-cut", "rollout.prompt_tokens", "1024", "2048"),
    (GPU, ['rollout.engine = "hf"'], "engine-for-cpu", "rollout.engine", "on a CPU only", "vllm_omni"),
    (
        GPU,
        ['rollout.engine = "vllm"', "tune.merge = false"],
        "adapter-for-omni",
        "tune.merge",
        "no adapter",
        'tune.merge = true` or `rollout.engine = "vllm_omni"`',
    ),
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
    (
        VIDEO,
        ["batch.prompts = 24"],
        "prompts-not-divisible",
        "batch.prompts",
        "24 prompts / 16 NPUs leaves 8 over",
        "= 16` or `32`",
    ),
    (VIDEO, ["batch.group_size = 1"], "group-of-one", "batch.group_size", "at least 2", "= 8"),
    (VIDEO, ["rollout.tensor_parallel = 3"], "tensor-parallel", "rollout.tensor_parallel", "16 devices", "= 2` or `4`"),
    (
        VIDEO,
        ["rollout.tensor_parallel = 8"],
        "heads",
        "rollout.tensor_parallel",
        "20 heads of the audio tower / 8 does not come out even",
        "= 4`",
    ),
    (
        VIDEO,
        ["rollout.tensor_parallel = 3"],
        "heads",
        "rollout.tensor_parallel",
        "32 heads of attention / 3 and 20 heads of the audio tower / 3 and 16 heads of the vision tower / 3 do not",
        "= 2` or `4`",
    ),
    (
        VIDEO,
        ["rollout.max_sequences = 2"],
        "captures-beyond",
        "rollout.capture_sizes",
        "graphs for 4 sequences are never used: 2 run at once (rollout.max_sequences)",
        "= [1, 2]`",
    ),
    (VIDEO, ["rollout.max_sequences = 8"], "captures-short", "rollout.capture_sizes", "above 4", "= [1, 2, 4, 8]`"),
    (
        VIDEO,
        ["rollout.max_sequences = 12", "rollout.capture_sizes = [1, 2, 4, 8, 12]"],
        "video-at-once",
        "rollout.max_sequences",
        "1 to 8 sequences at once, not 12",
        "= 8`",
    ),
    (
        AVQA,
        ["rollout.options.max_num_seqs = 100"],
        "captures-beyond",
        "rollout.capture_sizes",
        "graphs for 128, 256 sequences",
        "= [1, 2, 4, 8, 16, 32, 64, 100]`",
    ),
    (
        VIDEO,
        ['requires.verl = ["actor_rollout_ref.actor.fsdp_config.use_no_sink"]'],
        "verl-feature",
        "requires.verl",
        "verl 0.9.1 lacks it",
        "did you mean",
    ),
    (
        GPU,
        ["data.max_response_tokens = 65536", "batch.max_tokens_per_device = 70000"],
        "context",
        "data.max_response_tokens",
        "the model has 65536 positions: 2048 prompt + 65536 response = 67584",
        "= 63488`",
    ),
    (CPU, ["data.max_response_tokens = 4000"], "context", "data.max_response_tokens", "tiny checkpoint has", "3968"),
    (
        ("avqa", "ascend910c-x16"),
        ["batch.max_log_prob_tokens_per_device = 16000"],
        "sequence-does-not-fit",
        "batch.max_log_prob_tokens_per_device",
        "4096 prompt + 12288 response = 16384",
        "16384",
    ),
    (GPU, ["optim.warmup_steps = 5", "optim.warmup_share = 0.1"], "one-warm-up", "optim.warmup_share", "= 5`", "leave"),
    (
        GPU,
        ["train.save_every = -1", "train.keep_checkpoints = 2"],
        "nothing-to-keep",
        "train.keep_checkpoints",
        "2 checkpoints",
        "save_every = 50",
    ),
    (PAIRS, ["batch.group_size = 4"], "not-a-pair", "batch.group_size", "two answers, not 4", "= 2"),
    (PAIRS, ['rollout.engine = "vllm"'], "rollout-for-algo", "rollout.engine", "generates nothing", '"none"'),
    (PAIRS, ['reward.scorer = "choice"'], "scorer-for-algo", "reward.scorer", "scores nothing", '"none"'),
    (PAIRS, ["data.max_tokens = 70000"], "context", "data.max_tokens", "65536 positions", "= 65536"),
    (GPU, ['rollout.engine = "none"'], "rollout-for-algo", "rollout.engine", "needs responses", "vllm_omni"),
    (GPU, ['reward.scorer = "none"'], "scorer-for-algo", "reward.scorer", "needs scores", "choice"),
    (TEACHER, ["algo.teacher.nodes = 2"], "teacher-needs-nodes", "algo.teacher.nodes", "2 of 2 machines", "= 1`"),
    (
        TEACHER,
        ["algo.teacher.tensor_parallel = 8"],
        "teacher-tensor-parallel",
        "algo.teacher.tensor_parallel",
        "8 ways on 16 devices",
        "= 4`",
    ),
    (
        TEACHER,
        ["algo.teacher.max_tokens = 16448"],
        "teacher-context",
        "algo.teacher.max_tokens",
        "4160 prompt + 12288 response and writes 1: 16449 tokens, not 16448",
        "= 16449`",
    ),
    (
        TEACHER,
        ['model.path = "Qwen/Qwen3-Omni-30B-A3B-Instruct"'],
        "teacher-is-student",
        "algo.teacher.path",
        "nothing to learn",
        "model.path",
    ),
    (
        TEACHER,
        ["algo.policy_gradient = false"],
        "divergence-without-gradient",
        "algo.divergence",
        "does not depend on the teacher",
        "k3",
    ),
    (
        TEACHER,
        ['algo.divergence = "forward_kl_topk"'],
        "divergence-for-vllm",
        "algo.divergence",
        "not `vllm_omni`",
        "kl",
    ),
    (TEACHER, ["algo.clip_high = 0.2"], "clip-for-tokens", "algo.clip_high", "0.2", "4e-4"),
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


def test_a_penalty_as_long_as_the_response():
    sets = ["algo.overlong_buffer = true", "algo.overlong_tokens = 12288", 'reward.manager = "naive"']
    found = broken("avqa", "h800x4", algo="dapo", sets=sets)
    assert found["overlong-buffer"].hint == "try `algo.overlong_tokens = 3072`"
    assert found["overlong-manager"].key == "reward.manager"
    assert "overlong-buffer" not in broken("avqa", "h800x4", algo="dapo", sets=sets[1:])


@pytest.mark.parametrize(("task", "algo"), [("gsm8k", "dpo"), ("omni-preference", "gspo"), ("omni-preference", "opd")])
def test_an_algorithm_for_other_rows_is_refused(task, algo):
    problem = broken(task, "cpu", algo=algo)["rows-for-algo"]
    assert problem.severity == "error"
    assert algo in problem.message


def test_a_teacher_on_one_machine():
    found = broken("mmk12", "h800x4", algo="opd")
    hint = found["teacher-needs-nodes"].hint
    assert hint == "it takes hardware with 2 machines, or `algo.teacher.devices = 2` on this"
    shared = broken("mmk12", "h800x4", algo="opd", sets=["algo.teacher.devices = 2"])
    assert shared.keys() == {"teacher-is-student"}
    wrong = broken("mmk12", "h800x4", algo="opd", sets=["algo.teacher.devices = 4"])["teacher-needs-devices"]
    assert wrong.message == "4 of 4 devices for the teacher leaves none for the student"
    assert wrong.hint == "try `algo.teacher.devices = 3`"
    odd = broken("mmk12", "h800x4", algo="opd", sets=["algo.teacher.devices = 1"])
    assert "the teacher cannot be split 2 ways on 1 devices" in odd["teacher-tensor-parallel"].message
    assert "3 devices in a node cannot be split into copies of 2" in odd["tensor-parallel"].message


def test_a_teacher_on_the_devices_that_train():
    shares = "algo.teacher.shares_devices = true"
    assert broken("mmk12", "h800x4", algo="opd", sets=[shares]).keys() == {"teacher-is-student"}
    both = broken("mmk12", "h800x4", algo="opd", sets=[shares, "algo.teacher.devices = 2"])
    assert both["teacher-devices"].message == "a teacher on the devices that train has none of its own, not 2"
    apart = broken("mmk12", "ascend910c-x16x2", sets=[shares])["teacher-needs-nodes"]
    assert apart.message == "with `algo.teacher.shares_devices` the teacher is on all of the 2 machines, not on 1"


def test_a_switch_that_does_nothing():
    sets = ["algo.overlong_tokens = 4"]
    found = broken("toy", "cpu", algo="dapo", sets=sets)["overlong-idle"]
    assert found.message == "`algo.overlong_tokens` does nothing without `algo.overlong_buffer`"
    assert broken("toy", "cpu", algo="dapo", sets=[*sets, "algo.overlong_buffer = true"]) == {}


def test_a_teacher_on_a_cpu_tells_given_tokens_alone():
    found = broken("toy", "cpu", algo="opd", sets=['algo.divergence = "forward_kl_topk"'])
    assert "not `hf`" in found["divergence-for-vllm"].message


def test_a_teacher_that_shares_machines_is_on_all_of_them():
    found = broken(*TEACHER, sets=["algo.teacher.devices = 4"])["teacher-needs-nodes"]
    assert "on all of the 2 machines, not on 1" in found.message
    assert found.hint == "try `algo.teacher.nodes = 2`"


def test_checkpoints_of_every_parameter_fill_a_disk():
    """31.7e9 parameters in two bytes, with two moments: 190 GB, each 20 steps of 500."""
    sets = ["train.steps = 500", "train.save_every = 20"]
    problem = broken("gsm8k", "h800x4", tune="full", sets=sets)["checkpoints-unbounded"]
    assert problem.severity == "warning"
    assert "500 steps leave 25 checkpoints of 31.7e9 parameters x 2 bytes x 3 = 190 GB: 4.8 TB" in problem.message
    assert "checkpoints-unbounded" not in broken(*VIDEO)
    kept = [*sets, "train.keep_checkpoints = 2"]
    assert "checkpoints-unbounded" not in broken("gsm8k", "h800x4", tune="full", sets=kept)


def test_ten_broken_rules_are_told_together_each_at_its_line(write):
    text = (
        'extends = ["common/thinker.toml", "algo/gspo.toml", "tune/lora.toml"]\n'
        '[task]\nsummary = "ten mistakes"\nmodalities = ["text"]\n'
        '[data]\nsource = "x"\ntrain = ["t.parquet"]\nval = ["v.parquet"]\n'
        "max_prompt_tokens = 2048\n"
        "max_response_tokens = 64000\n"  # context
        "soundtrack = true\n"  # no-video
        "[model]\n"
        'exclude_modules = "audio_tower|visual"\n'  # exclude-matches-nothing
        "[tune]\n"
        'target_modules = ["q_proj", "v_porj"]\n'  # lora-matches-nothing, lora-in-tower
        "[optim]\nwarmup_steps = 3\n"
        "warmup_share = 0.1\n"  # one-warm-up
        "[algo]\n"
        "clip_high = 0.2\n"  # clip-for-tokens
        "[batch]\n"
        "prompts = 30\n"  # batch-not-divisible
        "mini_prompts = 16\n"  # mini-batch-does-not-divide
        "group_size = 3\n"
        "max_tokens_per_device = 4096\n"  # sequence-does-not-fit
        "[rollout]\n"
        "tensor_parallel = 3\n"  # tensor-parallel, heads
        "max_sequences = 4\n"
        "capture_sizes = [8]\n"  # captures-beyond
        '[reward]\nscorer = "choice"\n[train]\nsave_every = 10\nvalidate_before = false\n[on.h800x4]\n'
    )
    write("mine.toml", text)
    lines = text.splitlines()
    found = rules.check(registry.resolve("mine", "h800x4"))
    told = {}
    for problem in found:
        file, _, line = problem.where.rpartition(":")
        assert file == "mine/mine.toml"
        assert lines[int(line) - 1].startswith(problem.key.rpartition(".")[2])
        told.setdefault(problem.key, set()).add(problem.code)
    assert told == {
        "data.max_response_tokens": {"context"},
        "data.soundtrack": {"no-video"},
        "model.exclude_modules": {"exclude-matches-nothing"},
        "tune.target_modules": {"lora-matches-nothing", "lora-in-tower"},
        "optim.warmup_share": {"one-warm-up"},
        "algo.clip_high": {"clip-for-tokens"},
        "batch.prompts": {"batch-not-divisible"},
        "batch.mini_prompts": {"mini-batch-does-not-divide"},
        "batch.max_tokens_per_device": {"sequence-does-not-fit"},
        "rollout.tensor_parallel": {"tensor-parallel", "heads"},
        "rollout.capture_sizes": {"captures-beyond"},
    }
