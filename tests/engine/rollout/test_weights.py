"""The rollout's weights are the trainer's, all of them, or the sync fails."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from verl.workers.engine.fsdp.utils import unfuse_moe_params

from omnirl.engine.rollout.weights import load_adapter, load_weights, pack_experts
from tests.engine.conftest import load_thinker
from tests.engine.test_thinker import logits


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


def test_packing_undoes_what_verl_unpacks(thinker: Any) -> None:
    packed = weights(thinker)
    named = dict(unfuse_moe_params(packed.items(), "qwen3_omni_moe"))
    assert named.keys() != packed.keys()
    # Experts may come in any order.
    again = pack_experts(dict(reversed(named.items())))
    assert again.keys() == packed.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in packed.items())


def test_packed_names_pass_through(thinker: Any) -> None:
    packed = weights(thinker)
    assert pack_experts(packed) == packed


def test_weights_arrive(new_thinker: Any, thinker: Any, encode, rows) -> None:
    prompt = encode(rows["image_audio"][0])
    changed = {name: tensor + 0.01 * torch.randn_like(tensor) for name, tensor in weights(thinker).items()}
    load_weights(new_thinker, dict(unfuse_moe_params(changed.items())), complete=True)
    found = weights(new_thinker)
    assert all(torch.equal(found[name], tensor) for name, tensor in changed.items())
    assert not torch.allclose(logits(new_thinker, prompt), logits(thinker, prompt), atol=1e-3)
    load_weights(new_thinker, {"lm_head.weight": weights(thinker)["lm_head.weight"]}, complete=False)


def test_what_does_not_fit_is_refused_and_changes_nothing(new_thinker: Any) -> None:
    before = weights(new_thinker)
    named = {name: tensor + 1 for name, tensor in before.items()}
    with pytest.raises(KeyError, match=r"1 weights are unknown .*talker\.x"):
        load_weights(new_thinker, {**named, "talker.x": torch.zeros(1)}, complete=True)
    missing = named.copy()
    del missing["model.norm.weight"]
    with pytest.raises(KeyError, match=r"1 weights never reached .*model\.norm"):
        load_weights(new_thinker, missing, complete=True)
    after = weights(new_thinker)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


@pytest.fixture
def adapter(checkpoint) -> tuple[Any, dict[str, torch.Tensor], dict[str, Any]]:
    """A trained adapter: the model that has it, its weights, its configuration as verl sends it."""
    config = LoraConfig(
        r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], exclude_modules=".*visual.*|.*audio_tower.*"
    )
    model = get_peft_model(load_thinker(checkpoint), config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    named = {name: tensor.detach().clone() for name, tensor in get_peft_model_state_dict(model).items()}
    return model, named, model.peft_config["default"].to_dict()


def test_an_adapter_answers_as_the_model_that_was_trained(adapter, new_thinker, thinker, encode, rows) -> None:
    trained, named, config = adapter
    prompt = encode(rows["video"][0])
    model = load_adapter(new_thinker, named, config)
    assert torch.equal(logits(model, prompt), logits(trained, prompt))
    assert not torch.allclose(logits(model, prompt), logits(thinker, prompt), atol=1e-3)
    # The next sync replaces the adapter and adds none.
    again = load_adapter(model, {name: torch.zeros_like(tensor) for name, tensor in named.items()}, config)
    assert again is model
    assert torch.equal(logits(model, prompt), logits(thinker, prompt))


def test_an_adapter_that_is_not_whole_is_refused(adapter, checkpoint) -> None:
    _, named, config = adapter
    first, *rest = named
    with pytest.raises(KeyError, match="1 adapter weights never reached"):
        load_adapter(load_thinker(checkpoint), {name: named[name] for name in rest}, config)
    with pytest.raises(KeyError, match="unknown to the rollout model"):
        load_adapter(load_thinker(checkpoint), {**named, first.replace("layers.0", "layers.9"): named[first]}, config)
