from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from omnirl.errors import InvalidInput
from omnirl.plan import hydra_words, render, table
from omnirl.recipe import model, registry, verl_keys

from .test_hydra import VALUES

PAIRS = [(pair.task, pair.hardware) for pair in registry.pairs()]
DESCRIPTIVE = {
    "task.rows",
    "task.summary",
    "task.modalities",
    "data.source",
    "hardware.summary",
    "hardware.memory_gib",
    "evidence",
    "proof",
}
ELSEWHERE = {
    *("env", "verl", "requires.verl", "tune.kind", "algo.kind", "algo.kl_loss_coef", "algo.overlong_buffer"),
    "algo.teacher.devices",
    "rollout.devices",
    *(f"algo.{setting}" for setting in table.OVERLONG.values()),
}

COMPOSE = """
import json, sys
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
asked = json.load(sys.stdin)
found = {}
with initialize_config_dir(asked["folder"], version_base=None):
    for name, words in asked["words"].items():
        config = compose("ppo_trainer", overrides=words)
        found[name] = OmegaConf.to_container(config, resolve=False)
json.dump(found, sys.stdout)
"""


def toy(*sets, **kwargs):
    return registry.resolve("toy", "cpu", sets=sets, **kwargs)


def at(config, key):
    for name in key.split("."):
        config = config[name]
    return config


@pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed")
def test_verl_composes_every_recipe_and_every_nasty_value():
    """verl's own configuration, composed by Hydra from our words, holds exactly the values of the plan."""
    folder = Path(find_spec("verl").submodule_search_locations[0]) / "trainer" / "config"
    wanted = {"-".join(pair): render(registry.resolve(*pair)).overrides for pair in PAIRS}
    other = toy("algo.kl_loss_coef = 0.01", "data.processor.sampling_rate = 16000", algo="dapo", tune="lora")
    wanted["other"] = render(other).overrides
    both = ["algo.filter_groups = true", "algo.overlong_buffer = true", 'algo.filter_metric = "accuracy"']
    wanted["dapo"] = render(registry.resolve("avqa", "h800x4", algo="dapo", sets=both)).overrides
    wanted["nasty"] = {f"data.mm_processor_kwargs.k{number}": value for number, value in enumerate(VALUES)}
    asked = {"folder": str(folder), "words": {name: hydra_words(values) for name, values in wanted.items()}}
    done = subprocess.run(
        [sys.executable, "-c", COMPOSE], input=json.dumps(asked), capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    composed = json.loads(done.stdout)
    for name, values in wanted.items():
        for key, value in values.items():
            assert at(composed[name], key) == value, (name, key)
            assert type(at(composed[name], key)) is type(value), (name, key)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_every_key_is_verls_and_rendering_is_stable(pair):
    rendered = render(registry.resolve(*pair))
    assert rendered.problems == ()
    assert verl_keys.check(rendered.overrides, lambda _: None) == []
    assert rendered == render(registry.resolve(*pair))


def test_every_setting_goes_somewhere():
    rendered = {line.setting for line in table.TABLE} | set(table.OWN)
    for key in dict.fromkeys(model.settings()):
        homes = [home for home in rendered if key == home or key.startswith(f"{home}.")]
        assert len(homes) + (key in DESCRIPTIVE) + (key in ELSEWHERE) == 1, key


def test_the_table_names_settings_and_keys_that_exist():
    settings = set(model.settings())
    for line in table.TABLE:
        assert line.setting in settings, line.setting
        for key in (*line.keys, *line.also):
            name = key.format(engine="vllm")
            assert name in verl_keys.types() or verl_keys.is_open(name), name
    for implied in table.IMPLIED.values():
        assert implied.keys() <= verl_keys.types().keys()


def test_unset_settings_are_not_rendered():
    found = render(toy()).overrides
    for key in (
        "data.val_max_samples",
        "actor_rollout_ref.actor.optim.lr_warmup_steps",
        "trainer.max_actor_ckpt_to_keep",
    ):
        assert key not in found
    assert render(toy("optim.warmup_steps = 5")).overrides["actor_rollout_ref.actor.optim.lr_warmup_steps"] == 5


def test_paths_are_absolute_but_names_and_addresses_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "m").mkdir(parents=True)
    found = render(toy('data.train = ["a/../b.parquet", "hdfs://x/y"]', 'data.probe = "p.parquet"'))
    assert found.overrides["data.train_files"] == [str(tmp_path / "b.parquet"), "hdfs://x/y"]
    assert found.settings["data.probe"] == [str(tmp_path / "p.parquet")]
    for path, rendered in (("tiny", "tiny"), ("org/name", "org/name"), ("models/m", str(tmp_path / "models/m"))):
        assert render(toy(f'model.path = "{path}"')).overrides["actor_rollout_ref.model.path"] == rendered


def test_batch_sizes_by_tokens_or_by_sequences():
    by_sequences = render(toy()).overrides
    assert by_sequences["actor_rollout_ref.actor.use_dynamic_bsz"] is False
    assert by_sequences["actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu"] == 32
    by_tokens = render(registry.resolve("gsm8k", "h800x4")).overrides
    assert by_tokens["actor_rollout_ref.rollout.log_prob_use_dynamic_bsz"] is True
    assert "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu" not in by_tokens


def test_kl_brings_the_reference_model():
    assert render(toy()).overrides["actor_rollout_ref.actor.use_kl_loss"] is False
    found = render(toy("algo.kl_loss_coef = 0.01")).overrides
    assert found["actor_rollout_ref.actor.use_kl_loss"] is True
    assert found["actor_rollout_ref.actor.kl_loss_coef"] == 0.01


def test_dapo():
    found = render(toy("algo.filter_groups = true", algo="dapo")).overrides
    assert found["actor_rollout_ref.actor.policy_loss.loss_mode"] == "vanilla"
    assert found["actor_rollout_ref.actor.loss_agg_mode"] == "token-mean"
    assert found["actor_rollout_ref.actor.entropy_coeff"] == 0
    assert found["algorithm.filter_groups.enable"] is True
    assert found["algorithm.filter_groups.metric"] == "acc"


def test_the_reward_manager_follows_dapos_switches():
    key = "reward.reward_manager.name"
    assert render(toy(algo="dapo")).overrides[key] == "naive"
    assert render(toy("algo.filter_groups = true", algo="dapo")).overrides[key] == "dapo"
    kept = toy("algo.filter_groups = true", 'reward.manager = "naive"', algo="dapo")
    assert render(kept).overrides[key] == "naive"


def test_entropy_in_chunks():
    found = render(toy("actor.entropy_chunk_tokens = 64")).overrides
    assert found["actor_rollout_ref.actor.entropy_from_logits_with_chunking"] is True
    assert found["actor_rollout_ref.actor.entropy_from_logits_chunk_size"] == 64
    assert "actor_rollout_ref.actor.entropy_from_logits_with_chunking" not in render(toy()).overrides


def test_greedy_validation_has_no_temperature():
    found = render(toy()).overrides
    assert found["actor_rollout_ref.rollout.val_kwargs.do_sample"] is False
    assert found["actor_rollout_ref.rollout.val_kwargs.temperature"] == 0
    sampled = render(toy("rollout.validation.greedy = false", "rollout.validation.temperature = 0.7")).overrides
    assert sampled["actor_rollout_ref.rollout.val_kwargs.do_sample"] is True
    assert sampled["actor_rollout_ref.rollout.val_kwargs.temperature"] == 0.7


def test_scorers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function = "reward.custom_reward_function"
    ours = render(toy("reward.options.strict = true")).overrides
    assert ours[f"{function}.path"] == "pkg://omnirl.reward.score"
    assert ours[f"{function}.reward_kwargs.scorer"] == "choice"
    assert ours[f"{function}.reward_kwargs.strict"] is True
    own = render(toy('reward.scorer = "my/score.py:grade"')).overrides
    assert own[f"{function}.path"] == str(tmp_path / "my" / "score.py")
    assert own[f"{function}.name"] == "grade"
    assert f"{function}.reward_kwargs.scorer" not in own


def test_engine_options_go_to_the_engine_in_use():
    found = render(registry.resolve("gsm8k", "h800x4", sets=['rollout.engine = "vllm"'])).overrides
    assert found["actor_rollout_ref.rollout.engine_kwargs.vllm.output_mode"] == "ar"


def test_the_verl_table_and_words_come_last():
    sets = ['verl."trainer.resume_mode" = "disable"', 'verl."trainer.log_val_generations" = 3']
    found = render(
        toy(*sets), extra=["trainer.log_val_generations=5", "actor_rollout_ref.actor.optim={lr_scheduler_type:cosine}"]
    )
    assert found.overrides["trainer.resume_mode"] == "disable"
    assert found.overrides["trainer.log_val_generations"] == 5
    assert found.overrides["actor_rollout_ref.actor.optim.lr_scheduler_type"] == "cosine"
    assert found.problems == ()


def test_words_that_are_wrong_are_told_together():
    extra = ["actor.optm.lr=1e-6", "trainer.save_freq=often", "~trainer.logger", "nonsense", "k=a,b", "+my.key=1"]
    with pytest.raises(InvalidInput) as caught:
        render(toy(), extra=extra)
    found = caught.value.problems
    assert [problem.code for problem in found] == [
        "unknown-verl-key",
        "wrong-type",
        "not-an-override",
        "not-an-override",
        "not-an-override",
        "unknown-verl-key",
    ]
    assert [problem.severity for problem in found].count("warning") == 1
    assert found[0].hint == "did you mean `actor_rollout_ref.actor.optim.lr`?"
    assert {problem.where for problem in found} == {"after `--`"}


def test_a_plus_passes_an_unknown_key_on_with_a_warning():
    found = render(toy(), extra=["+my.own.key=[1,x]"])
    assert found.overrides["my.own.key"] == [1, "x"]
    assert [problem.severity for problem in found.problems] == ["warning"]
    assert "+my.own.key=[1,x]" in hydra_words(found.overrides)


def test_a_word_that_hides_a_setting_is_a_warning():
    found = render(toy(), extra=["data.train_batch_size=4"])
    (problem,) = found.problems
    assert (problem.severity, problem.hint) == ("warning", "use `--set 'batch.prompts = ...'`")
    assert found.overrides["data.train_batch_size"] == 4
    same = f"data.train_batch_size={toy().recipe.batch.prompts}"
    assert render(toy(), extra=[same]).problems == ()


def test_a_line_break_is_refused_before_anything_starts():
    with pytest.raises(InvalidInput) as caught:
        render(toy('reward.options.note = "a\\nb"', 'rollout.options = { "a b" = [{ "c d" = 1 }] }'))
    assert [problem.code for problem in caught.value.problems] == ["not-for-hydra", "not-for-hydra"]


def test_environment_is_handed_on():
    assert render(registry.resolve("gsm8k", "h800x4")).env == {"WANDB_MODE": "offline"}
    assert render(toy('env.A = "b"')).env == {"A": "b"}


def test_a_plus_stands_exactly_before_new_keys():
    words = hydra_words(
        {"trainer.save_freq": 1, "ray_kwargs.ray_init.num_gpus": 1, "data.mm_processor_kwargs.x": "a b"}
    )
    assert words == ["trainer.save_freq=1", "+ray_kwargs.ray_init.num_gpus=1", "+data.mm_processor_kwargs.x='a b'"]
