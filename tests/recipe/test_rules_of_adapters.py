"""Filters of LoRA against the modules of the real architecture."""

from __future__ import annotations

import pytest

from omnirl.recipe import registry, rules

from .test_rules import broken

LORA = [
    ('model.exclude_modules = ["audio_tower", "visual"]', {"exclude-matches-nothing": 2, "lora-in-tower": 1}),
    ('model.exclude_modules = "talker|audio_tower|visual"', {"exclude-matches-nothing": 1, "lora-in-tower": 1}),
    ('model.exclude_modules = ".*audio_towr.*"', {"exclude-matches-nothing": 1, "lora-in-tower": 1}),
    ('model.exclude_modules = ".*audio_tower.*"', {}),
    ('tune.target_modules = ["q_proj", "qkv"]', {"lora-matches-nothing": 1}),
    ('tune.target_modules = ["q_porj"]', {"lora-matches-nothing": 1}),
    ('tune.target_modules = "all-linear"', {}),
    ('tune.target_modules = "model.layers.*"', {"lora-unsupported": 3}),
    ('tune.target_modules = ".*mlp.gate"', {"lora-unsupported": 1}),
    ('tune.target_modules = "thinker.*q_proj"', {"lora-matches-nothing": 1}),
    ('tune.target_modules = "(q_proj"', {"not-a-regular-expression": 1}),
    ('tune.target_parameters = ["gate_up_proj", "up_proj"]', {"lora-matches-nothing": 1}),
    (r"tune.target_modules = 'model\.layers\.[0-9]\..*_proj'", {}),
]  # fmt: skip


@pytest.mark.parametrize(("word", "codes"), LORA)
@pytest.mark.parametrize(("task", "hardware"), [("gsm8k", "h800x4"), ("toy", "cpu")])
def test_filters_of_lora_are_checked_against_the_modules(task, hardware, word, codes):
    found = rules.check(registry.resolve(task, hardware, tune="lora", sets=[word]))
    counted = {code: [problem.code for problem in found].count(code) for code in {problem.code for problem in found}}
    assert counted == codes
    for problem in found:
        assert problem.severity == "error"
        assert problem.key in ("tune.target_modules", "tune.target_parameters", "model.exclude_modules")


def test_lora_in_a_tower_names_modules_and_the_mend():
    problem = broken("gsm8k", "h800x4", sets=['model.exclude_modules = ".*visual.*"'])["lora-in-tower"]
    assert "96 modules of the audio tower: `audio_tower.layers.0.self_attn." in problem.message
    assert ".*audio_tower.*" in problem.hint


def test_a_misspelt_target_gets_the_nearest():
    sets = ['tune.target_modules = ["q_porj", "k_proj"]']
    assert broken("gsm8k", "h800x4", sets=sets)["lora-matches-nothing"].hint == "did you mean `q_proj`?"
