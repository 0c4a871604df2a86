"""The memory estimate: against published peaks and measurements, how it moves with settings, and what mends it."""

from __future__ import annotations

import json
import struct
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.errors import InvalidInput
from omnirl.plan import activations, architecture, fit, generation, memory, plan, training
from omnirl.plan.fit import with_settings
from omnirl.plan.memory import estimate
from omnirl.plan.sizes import adapter_size
from omnirl.recipe import module_names, registry
from omnirl.recipe.rules import adapter

PAIRS = [(pair.task, pair.hardware) for pair in registry.pairs()]
GSM8K = registry.resolve("gsm8k", "h800x4").recipe
AVQA_FULL = registry.resolve("avqa", "ascend910c-x16").recipe
RELEASED = architecture.known("released")
KIB = 1024


def changed(recipe: Any = GSM8K, **settings: Any) -> memory.Memory:
    """An estimate with settings changed; `__` stands for a dot."""
    return estimate(with_settings(recipe, {key.replace("__", "."): value for key, value in settings.items()}))


def test_the_released_model_is_counted_whole():
    assert RELEASED.parameters == module_names.parameters()
    assert RELEASED.text.parameters == pytest.approx(30.5e9, rel=0.01)
    assert RELEASED.active_parameters == pytest.approx(3.3e9, rel=0.05)
    assert architecture.released_parameters()["thinker"] == RELEASED.parameters
    assert sum(architecture.released_parameters().values()) == pytest.approx(35.3e9, rel=0.01)
    for tower, counted in (("visual", RELEASED.vision.parameters), ("audio_tower", RELEASED.audio.parameters)):
        assert counted == sum(module.parameters for module in module_names.modules() if module.tower == tower)


@pytest.mark.skipif(find_spec("torch") is None or find_spec("transformers") is None, reason="needs the extra `train`")
def test_the_shipped_dimensions_are_those_of_the_installed_classes():
    from omnirl.engine import dimensions

    shipped = dimensions.FILE.read_text(encoding="utf-8")
    if json.loads(shipped)["transformers"] != version("transformers"):
        pytest.skip("the file was made from another transformers")
    assert dimensions.text() == shipped, "run: python -m omnirl.engine.dimensions"


# Peaks published for 4 x H800 80 GB, LoRA of rank 32, as verl's `actor/perf/max_memory_allocated_gb`.
@pytest.mark.parametrize(("task", "published", "error"), [("gsm8k", 43, 0.04), ("mmk12", 59, 0.02), ("avqa", 46, 0.04)])
def test_published_peaks(task, published, error):
    assert estimate(registry.resolve(task, "h800x4").recipe).actor_peak == pytest.approx(published, rel=error)


# KiB of a token, read off torch's allocator on an H200 with the true sizes (2 and 6 layers, 8192 and 16384 tokens).
def test_activations_are_those_measured():
    text = RELEASED.text
    assert activations.forward_bytes(text, 2) == pytest.approx(124.9 * KIB, rel=0.03)
    assert activations.checkpoint_bytes(text, 2) / text.layers == pytest.approx(4.0 * KIB, rel=0.01)
    for only, measured in ((True, 141.5), (False, 190.1)):
        kept = activations.kept_bytes(text, 2, adapters_only=only) / text.layers
        assert kept == pytest.approx(measured * KIB, rel=0.03)
    for only, measured in ((True, 254.4), (False, 294.5)):
        assert activations.backward_bytes(text, 2, adapters_only=only) == pytest.approx(measured * KIB, rel=0.03)
    assert activations.vision_kept_bytes(RELEASED.vision, trained=True) == pytest.approx(115.6 * KIB, rel=0.01)


@pytest.mark.parametrize(("task", "hardware"), PAIRS)
def test_components_add_up_and_every_pair_fits(task, hardware):
    found = plan(registry.resolve(task, hardware))["memory"]
    assert found["fits"] in (True, None)
    assert (found["fits"] is None) == (found["limit_gib"] is None)
    for side in ("actor", "rollout", "teacher"):
        parts = [size for name, size in found["components"].items() if name.startswith(f"{side}.")]
        assert all(size >= 0 for size in parts)
        assert sum(parts) == pytest.approx(found[f"{side}_peak_gib"] or 0.0, abs=1e-4)
    assert found["actor_peak_gib"] == pytest.approx(max(found["stages"].values()), abs=1e-5)
    assert found["host_gib"] == pytest.approx(sum(found["host"].values()), abs=1e-4)
    assert (found["rollout_peak_gib"] is None) == (task == "omni-preference")
    assert (found["teacher_peak_gib"] is None) == (hardware != "ascend910c-x16x2")


tokens = st.integers(10240, 60000)


@given(tokens, tokens)
def test_more_tokens_never_take_less(first, second):
    few, many = sorted((first, second))
    for recipe in (GSM8K, with_settings(AVQA_FULL, {"batch.max_log_prob_tokens_per_device": None})):
        less, more = (changed(recipe, batch__max_tokens_per_device=n) for n in (few, many))
        assert less.actor_peak <= more.actor_peak
        assert all(sum(less.actor[stage].values()) <= sum(more.actor[stage].values()) for stage in less.actor)


@given(st.integers(1, 40000), st.integers(1, 40000))
def test_smaller_chunks_never_take_more(first, second):
    small, large = sorted((first, second))
    assert (
        changed(actor__entropy_chunk_tokens=small).actor_peak <= changed(actor__entropy_chunk_tokens=large).actor_peak
    )


@given(st.floats(0.05, 1.0), st.floats(0.05, 1.0))
def test_a_larger_share_is_a_larger_cache_and_peak(first, second):
    low, high = (changed(rollout__memory_fraction=share) for share in sorted((first, second)))
    assert low.rollout["generate"]["kv_cache"] <= high.rollout["generate"]["kv_cache"]
    assert low.rollout_peak <= high.rollout_peak
    assert low.cache_sequences <= high.cache_sequences
    assert low.actor_peak == high.actor_peak


@given(st.integers(1, 512), st.integers(1, 512))
def test_a_higher_rank_takes_no_less(first, second):
    low, high = (changed(tune__rank=rank) for rank in sorted((first, second)))
    assert low.actor_peak <= high.actor_peak
    assert low.host["optimizer"] <= high.host["optimizer"]


@given(st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([1, 2, 4, 8, 16]))
def test_more_devices_hold_smaller_shards(first, second):
    few, many = (changed(AVQA_FULL, hardware__devices_per_node=n) for n in sorted((first, second)))
    assert few.actor_peak >= many.actor_peak
    assert few.host["optimizer"] == pytest.approx(many.host["optimizer"])


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]))
def test_wider_copies_hold_less(first, second):
    narrow, wide = (changed(rollout__tensor_parallel=n) for n in sorted((first, second)))
    assert narrow.rollout["sync"]["weights"] >= wide.rollout["sync"]["weights"]
    assert narrow.cache_sequences <= wide.cache_sequences


def test_what_is_offloaded_moves_to_the_host():
    here = changed(AVQA_FULL, actor__param_offload=False, actor__optimizer_offload=False)
    away = estimate(AVQA_FULL)
    assert here.actor["log_prob"]["optimizer"] > 0 == away.actor["log_prob"]["optimizer"]
    assert here.actor["loss"] == away.actor["loss"], "an update needs all of it on the device"
    assert here.rollout["generate"]["training"] > away.rollout["generate"]["training"]
    assert {"parameters", "optimizer"} <= set(away.host)
    assert not {"parameters", "optimizer"} & set(here.host)


def test_without_checkpointing_every_layer_is_kept():
    assert changed(model__gradient_checkpointing=False).actor_peak > 2 * estimate(GSM8K).actor_peak


def test_full_training_holds_weights_gradients_and_moments():
    update = estimate(AVQA_FULL).actor["backward"]
    assert update["gradients"] == pytest.approx(update["weights"], rel=0.03)
    assert update["optimizer"] == pytest.approx(2 * update["gradients"])
    lora = estimate(GSM8K).actor["backward"]
    assert lora["gradients"] + lora["optimizer"] + lora["adapter"] < 0.2
    assert lora["gradient_buffers"] == 0 < update["gradient_buffers"]


def test_gradients_that_stay_whole_between_passes():
    deferred = AVQA_FULL.model_copy(update={"verl": {training.DEFERRED: True}})
    whole = estimate(deferred).actor["backward"]["gradients"]
    assert whole == pytest.approx(4 * RELEASED.parameters / 2**30, rel=0.03)
    assert estimate(deferred).excess
    table = registry.resolve("avqa", "ascend910c-x16", sets=[f"verl.{training.DEFERRED} = true"]).recipe
    assert estimate(table).actor == estimate(deferred).actor, "keys may be written as nested tables"


def test_a_kl_term_brings_a_reference_to_the_host_of_a_full_run():
    assert "reference" not in estimate(AVQA_FULL).host
    with_kl = changed(AVQA_FULL, algo__kl_loss_coef=0.01)
    assert with_kl.host["reference"] == with_kl.host["parameters"]
    assert "reference" not in changed(algo__kl_loss_coef=0.01).host, "an adapter is switched off instead"


def test_a_rollout_that_keeps_its_weights_asleep_has_them_in_host_memory():
    assert "sleeping_rollout" not in estimate(GSM8K).host
    copies = changed(tune__merge=False).host["sleeping_rollout"] / (2 * RELEASED.parameters / 2**30)
    assert copies == pytest.approx(2)
    assert "sleeping_rollout" in estimate(AVQA_FULL).host, "engines on NPUs sleep at level 1 only"


def test_media_take_their_part():
    text = registry.resolve("nextqa", "ascend910c-x16").recipe
    bare = text.model_copy(update={"task": text.task.model_copy(update={"modalities": ["text"]})})
    bare = with_settings(bare, {"data.soundtrack": False})
    assert estimate(bare).actor["loss"]["media"] == 0 < estimate(text).actor["loss"]["media"]
    frozen = with_settings(text, {"model.freeze_vision_tower": True})
    assert estimate(frozen).actor["loss"]["media"] < estimate(text).actor["loss"]["media"]


def test_an_adapter_is_counted_as_the_rules_count_it():
    assert adapter_size(GSM8K, RELEASED) == adapter.size(GSM8K)["parameters"]
    experts = registry.resolve("omni-preference", "h800x4").recipe
    assert adapter_size(experts, RELEASED) > 1e9
    assert estimate(experts).actor["backward"]["expert_updates"] > 0
    tiny = registry.resolve("toy", "cpu", tune="lora").recipe
    assert 0 < adapter_size(tiny, architecture.known("tiny")) < 100_000


def test_the_cache_of_a_token():
    assert generation.cache_bytes(RELEASED.text, 2, 1) == 48 * 2 * 4 * 128 * 2
    assert generation.cache_bytes(RELEASED.text, 2, 2) == 48 * 2 * 2 * 128 * 2
    assert generation.cache_bytes(RELEASED.text, 2, 8) == 48 * 2 * 1 * 128 * 2, "heads are not split"


def teaching(*sets, hardware="ascend910c-x16x2"):
    return plan(registry.resolve("mmk12", hardware, algo="opd", sets=sets))["memory"]


def test_a_teacher_takes_no_graphs_and_the_logits_of_a_pass():
    found = teaching()
    assert found["components"]["teacher.graphs"] == 0
    logits = 8192 * RELEASED.text.vocabulary * 6 / generation.GIB
    assert found["components"]["teacher.logits"] == pytest.approx(logits, abs=1e-5)
    budget = 0.6 * 64
    assert found["teacher_peak_gib"] == pytest.approx(budget + logits + 1.6, abs=1e-4)
    one = 16640 * generation.cache_bytes(RELEASED.text, 2, 2) / generation.GIB
    cache = found["components"]["teacher.kv_cache"]
    assert found["teacher_kv_cache_sequences"] == pytest.approx(cache / one, abs=0.05)
    inference = "distillation.teacher_models.teacher_model.inference"
    found = teaching(f'verl."{inference}.enforce_eager" = false', f'verl."{inference}.max_num_batched_tokens" = 2048')
    assert found["components"]["teacher.graphs"] > 0
    assert found["components"]["teacher.logits"] == pytest.approx(logits / 4, abs=1e-5)


def test_a_rollout_on_devices_of_its_own_shares_none_of_its_memory():
    together, apart = changed(), changed(rollout__devices=2)
    assert apart.rollout["generate"]["training"] == apart.rollout["sync"]["training"] == 0
    assert together.rollout["sync"]["training"] > 0
    assert apart.beside == pytest.approx(generation.CONTEXT_BYTES / generation.GIB)
    # it does not sleep, so its cache is there while weights come in
    assert apart.rollout["sync"]["kv_cache"] == apart.rollout["generate"]["kv_cache"] > 0
    assert together.rollout["sync"]["kv_cache"] == 0
    # the same shards over half the devices
    assert apart.actor["step"]["weights"] == pytest.approx(2 * together.actor["step"]["weights"])


def test_a_teacher_on_the_devices_that_train_is_beside_both():
    apart = teaching("algo.teacher.devices = 2", "algo.teacher.tensor_parallel = 2", hardware="h800x4")
    shared = teaching("algo.teacher.shares_devices = true", hardware="h800x4")
    teacher = shared["teacher_peak_gib"]
    assert teacher == pytest.approx(apart["teacher_peak_gib"])
    assert shared["components"]["rollout.teacher"] == pytest.approx(teacher)
    assert shared["beside_actor_gib"] == pytest.approx(apart["beside_actor_gib"] + teacher, abs=1e-4)
    assert apart["fits"] and not shared["fits"]


OVERFULL = [
    ("gsm8k", "h800x4", ["hardware.memory_gib = 40.0"]),
    ("gsm8k", "h800x4", ["rollout.memory_fraction = 0.38"]),
    ("gsm8k", "h800x4", ["rollout.memory_fraction = 0.99"]),
    ("gsm8k", "h800x4", ["batch.max_tokens_per_device = 80000"]),
    ("mmk12", "h800x4", ["batch.max_log_prob_tokens_per_device = 65536"]),
    ("avqa", "ascend910c-x16", ["batch.max_tokens_per_device = 45000"]),
    ("avqa", "ascend910c-x16", ["model.gradient_checkpointing = false"]),
    ("mmk12", "ascend910c-x16x2", ["algo.teacher.memory_fraction = 0.48"]),
    ("omni-preference", "h800x4", ["hardware.memory_gib = 30.0"]),
    ("omni-preference", "h800x4", ["batch.micro_sequences = 4", "model.gradient_checkpointing = false"]),
]


@pytest.mark.parametrize(("task", "hardware", "sets"), OVERFULL)
def test_what_does_not_fit_is_told_with_settings_that_mend_it(task, hardware, sets):
    resolved = registry.resolve(task, hardware, sets=sets)
    document = plan(resolved)
    problems = [problem for problem in document["problems"] if problem["code"] == fit.CODE]
    assert len(problems) == 1
    assert problems[0]["severity"] == "error"
    assert "GiB" in problems[0]["message"]
    mends = document["memory"]["mends"]
    assert mends
    for mend in mends:
        assert 1 <= len(mend["settings"]) <= 2
        words = [f"{key} = {json.dumps(value)}" for key, value in mend["settings"].items()]
        assert all(f"--set '{word}'" in problems[0]["hint"] for word in words)
        again = plan(registry.resolve(task, hardware, sets=[*sets, *words]))
        assert again["memory"]["fits"] is True
        assert not [problem for problem in again["problems"] if problem["severity"] == "error"]


def test_the_nearest_value_is_offered():
    limit = registry.resolve("gsm8k", "h800x4", sets=["batch.max_tokens_per_device = 80000"])
    mends = plan(limit)["memory"]["mends"]
    tokens = next(mend["settings"] for mend in mends if "batch.max_tokens_per_device" in mend["settings"])
    slightly = tokens["batch.max_tokens_per_device"] + 1024
    assert estimate(with_settings(limit.recipe, {"batch.max_tokens_per_device": slightly})).excess


def test_hopeless_hardware_is_called_so():
    document = plan(registry.resolve("gsm8k", "h800x4", sets=["hardware.memory_gib = 8.0"]))
    problem = next(problem for problem in document["problems"] if problem["code"] == fit.CODE)
    assert document["memory"]["mends"] == []
    assert "hardware" in problem["hint"]


def test_adapters_are_offered_where_every_parameter_is_too_much():
    document = plan(registry.resolve("gsm8k", "h200x1", tune="full"))
    problem = next(problem for problem in document["problems"] if problem["code"] == fit.CODE)
    assert problem["hint"] == "`--tune lora`"
    assert plan(registry.resolve("gsm8k", "h200x1", tune="lora"))["memory"]["fits"]


def whole(thinker: dict[str, Any]) -> dict[str, Any]:
    return {"architectures": ["Qwen3OmniMoeForConditionalGeneration"], **thinker}


@pytest.fixture
def config() -> dict[str, Any]:
    path = Path(architecture.__file__).with_name("dimensions.json")
    return json.loads(path.read_text(encoding="utf-8"))["released"]


def folder(path: Path, config: Any, tensors: dict[str, list[int]] | None = None) -> str:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
    if tensors is not None:
        header = {name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, 0]} for name, shape in tensors.items()}
        text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
        (path / "model-00001-of-00001.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    return str(path)


def test_a_folder_says_its_own_sizes(tmp_path, config):
    config["thinker_config"]["text_config"]["num_hidden_layers"] = 24
    model = with_settings(GSM8K, {"model.path": folder(tmp_path / "half", whole(config))})
    assert estimate(model).actor_peak < estimate(GSM8K).actor_peak - 5
    thinker_alone = with_settings(GSM8K, {"model.path": folder(tmp_path / "thinker", config["thinker_config"])})
    assert estimate(thinker_alone).actor_peak == estimate(model).actor_peak


def test_headers_count_exactly_and_only_the_thinker(tmp_path, config):
    tensors = {"thinker.lm_head.weight": [100, 7], "thinker.model.norm.weight": [11], "talker.x": [5000]}
    assert architecture.of(folder(tmp_path / "m", whole(config), tensors)).parameters == 711
    (tmp_path / "m" / "model-00002-of-00002.safetensors").write_bytes(struct.pack("<Q", 1 << 40) + b"{")
    assert architecture.of(str(tmp_path / "m")).parameters == RELEASED.parameters, "a damaged header counts for nothing"


@pytest.mark.parametrize(
    "broken",
    ["", "[]", "{}", "{" * 100_000, '{"thinker_config": {"text_config": 3}}', '{"thinker_config": []}'],
)  # fmt: skip
def test_a_folder_of_another_model_is_named_and_not_estimated(tmp_path, broken):
    path = folder(tmp_path / "odd", broken)
    with pytest.raises(InvalidInput):
        architecture.of(path)
    document = plan(registry.resolve("gsm8k", "h800x4", sets=[f"model.path = {json.dumps(path)}"]))
    assert document["memory"] is None
    assert [(p["code"], p["severity"]) for p in document["problems"]] == [("model-unknown", "warning")]


@pytest.mark.parametrize("value", [0, -1, 1 << 40, "48", None, 1.5, True])
def test_dimensions_that_are_none(tmp_path, config, value):
    config["thinker_config"]["text_config"]["num_hidden_layers"] = value
    with pytest.raises(InvalidInput, match="num_hidden_layers"):
        architecture.of(folder(tmp_path / "odd", config))
