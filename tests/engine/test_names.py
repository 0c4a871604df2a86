"""Weights under the names of a full checkpoint, prompts with one token a medium."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omnirl.engine.rollout.names import (
    checkpoint_name,
    checkpoint_weights,
    collapse_media,
    split_experts,
    transfer_key,
)
from omnirl.engine.rollout.weights import pack_experts


@pytest.mark.parametrize(
    ("own", "of_checkpoint"),
    [
        ("model.norm.weight", "thinker.model.norm.weight"),
        ("lm_head.weight", "thinker.lm_head.weight"),
        ("visual.blocks.0.attn.qkv.weight", "thinker.visual.blocks.0.attn.qkv.weight"),
        ("thinker.model.norm.weight", "thinker.model.norm.weight"),
        ("model.layers.0.q_proj.base_layer.weight", "thinker.model.layers.0.q_proj.base_layer.weight"),
        (
            "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
            "base_model.model.thinker.model.layers.0.self_attn.q_proj.lora_A.weight",
        ),
    ],
)
def test_names(own: str, of_checkpoint: str) -> None:
    assert checkpoint_name(own) == of_checkpoint
    assert checkpoint_name(of_checkpoint) == of_checkpoint


def test_every_weight_of_a_thinker_gets_the_name_that_its_checkpoint_has(thinker: Any, checkpoint: Any) -> None:
    from safetensors import safe_open

    sent = dict(checkpoint_weights(thinker.state_dict().items()))
    with safe_open(checkpoint / "model.safetensors", "pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no dictionary
    assert sent.keys() == stored.keys()
    assert all(torch.equal(sent[name], stored[name]) for name in stored)


@given(experts=st.integers(1, 5), inner=st.integers(1, 4), hidden=st.integers(1, 4))
def test_split_experts_pack_to_what_they_were(experts: int, inner: int, hidden: int) -> None:
    packed = {
        "a.mlp.experts.gate_up_proj": torch.randn(experts, 2 * inner, hidden),
        "a.mlp.experts.down_proj": torch.randn(experts, hidden, inner),
        "b.weight": torch.randn(2),
    }
    split = dict(split_experts(packed.items()))
    assert len(split) == 3 * experts + 1
    again = pack_experts(split)
    assert again.keys() == packed.keys()
    assert all(torch.equal(again[name], packed[name]) for name in packed)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4)])
def test_a_block_that_holds_no_experts_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="holds no experts"):
        list(split_experts([("x.mlp.experts.gate_up_proj", torch.zeros(shape))]))


@given(st.lists(st.sampled_from([1, 2, 90, 91])))
def test_runs_of_a_placeholder_become_one(tokens: list[int]) -> None:
    short = collapse_media(tokens, {90, 91})
    assert [token for token in short if token < 90] == [token for token in tokens if token < 90]
    assert not any(one == other and one >= 90 for one, other in itertools.pairwise(short))
    assert collapse_media(short, {90, 91}) == short


def test_runs_on_one_machine_have_sockets_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = set()
    for folder in ("/runs/a/attempts/1", "/runs/b/attempts/1"):
        monkeypatch.setenv("OMNIRL_ATTEMPT_DIR", folder)
        assert transfer_key("01000000") == transfer_key("01000000")
        keys.add(transfer_key("01000000"))
    assert len(keys) == 2
