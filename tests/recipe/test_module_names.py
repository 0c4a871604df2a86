"""The vendored list of modules is that of the installed classes, and filters mean what PEFT takes them for."""

from __future__ import annotations

import re
from importlib.metadata import version
from importlib.util import find_spec

import pytest

from omnirl.recipe import module_names
from omnirl.recipe.module_names import Module

NEEDS_TRAIN = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("torch", "transformers", "peft")), reason="needs the extra `train`"
)
FILTERS = [
    (["q_proj", "k_proj", "v_proj", "o_proj"], ".*talker.*|.*code2wav.*|.*code_predictor.*|.*visual.*|.*audio_tower.*"),
    (["q_proj", "proj"], None),
    (["self_attn.q_proj", "fc1"], ["audio_tower", "visual"]),
    (["mlp.0", "lm_head"], ["visual.merger.mlp.0"]),
    (r"model\.layers\.4[0-7]\..*_proj", None),
    (".*proj", "talker|audio_tower|visual"),
]


def test_the_numbers_of_the_released_thinker():
    assert module_names.heads() == {"attention": 32, "key_value": 4, "audio_tower": 20, "visual": 16}
    assert module_names.context(tiny=False) == 65536
    assert 31.5e9 < module_names.parameters() < 32e9


def test_layers_are_counted_out():
    names = [module.name for module in module_names.modules()]
    assert len(names) == len(set(names))
    for pattern, count in ((r"model\.layers\.\d+\.mlp\.gate", 48), (r"audio_tower\.layers\.\d+\.fc1", 32)):
        assert sum(re.fullmatch(pattern, name) is not None for name in names) == count
    assert {"visual.blocks.26.attn.qkv", "visual.merger.mlp.0", "visual.merger.mlp.2", "lm_head"} <= set(names)
    assert not any("*" in name for name in names)
    assert {module.tower for module in module_names.modules()} == {None, "audio_tower", "visual"}


@pytest.fixture(scope="module")
def skeleton():
    from omnirl.engine import skeleton

    return skeleton


@NEEDS_TRAIN
def test_the_list_is_that_of_the_installed_classes(skeleton):
    shipped = skeleton.FILE.read_text(encoding="utf-8")
    if f'"transformers": "{version("transformers")}"' not in shipped:
        pytest.skip("the list was made from another transformers")
    assert skeleton.text() == shipped, "run: python -m omnirl.engine.skeleton"


@NEEDS_TRAIN
@pytest.mark.parametrize(("targets", "exclude"), FILTERS, ids=range(len(FILTERS)))
def test_filters_mean_what_peft_takes_them_for(targets, exclude):
    from peft import LoraConfig
    from peft.tuners.tuners_utils import check_target_module_exists

    config = LoraConfig(target_modules=targets, exclude_modules=exclude)

    def ours(module: Module) -> bool:
        return module_names.targeted(module, targets) and not module_names.excluded(module, exclude)

    taken = [module.name for module in module_names.modules() if check_target_module_exists(config, module.name)]
    assert taken == [module.name for module in module_names.modules() if ours(module)]
    assert taken


@NEEDS_TRAIN
def test_all_linear_is_what_peft_takes_it_for(skeleton):
    from peft import LoraConfig
    from peft.tuners.tuners_utils import _maybe_include_all_linear_layers

    config = _maybe_include_all_linear_layers(LoraConfig(target_modules="all-linear"), skeleton.build())
    ours = [module.name for module in module_names.modules() if module_names.targeted(module, "all-linear")]
    assert sorted(ours) == sorted(config.target_modules)
