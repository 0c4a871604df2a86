"""Idle towers cost nothing but time, and no answer holds a media token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from verl.utils.model import extract_multi_modal_inputs

from omnirl.engine.thinker import BANNED_LOGIT, ban_media_tokens, media_token_ids, thinker_config
from tests.engine.conftest import KINDS

TOWERS = ("visual.", "audio_tower.")


def logits(model: Any, prompt: Any) -> torch.Tensor:
    return model(
        input_ids=torch.tensor([prompt.token_ids]),
        attention_mask=torch.ones(1, len(prompt.token_ids), dtype=torch.long),
        position_ids=prompt.positions.unsqueeze(1),
        **extract_multi_modal_inputs([prompt.features]),
    ).logits


@pytest.mark.parametrize("kind", KINDS)
def test_idle_towers_add_exactly_nothing(new_thinker: Any, encode, rows, kind: str) -> None:
    prompt = encode(rows[kind][0])
    with torch.no_grad():
        without = logits(new_thinker, prompt)
        new_thinker.towers_always = True
        assert torch.equal(logits(new_thinker, prompt), without)


@pytest.mark.parametrize("kind", KINDS)
def test_idle_towers_have_gradients_of_zero(new_thinker: Any, encode, rows, kind: str) -> None:
    new_thinker.towers_always = True
    logits(new_thinker, encode(rows[kind][0])).logsumexp(-1).sum().backward()
    idle = {"text": TOWERS, "image": TOWERS[1:], "image_audio": (), "video": ()}[kind]
    seen = dict.fromkeys(TOWERS, 0.0)
    for name, parameter in new_thinker.named_parameters():
        tower = next((tower for tower in TOWERS if name.startswith(tower)), None)
        if tower is not None:
            assert parameter.grad is not None, name
            seen[tower] += float(parameter.grad.abs().sum())
    assert {tower for tower, total in seen.items() if total == 0} == set(idle)


def test_without_them_an_idle_tower_has_no_gradients(new_thinker: Any, encode, rows) -> None:
    logits(new_thinker, encode(rows["text"][0])).sum().backward()
    assert all(p.grad is None for name, p in new_thinker.named_parameters() if name.startswith(TOWERS))


def test_media_tokens(thinker: Any, processor: Any) -> None:
    vocabulary = processor.tokenizer
    names = [f"<|{name}|>" for name in ("image_pad", "video_pad", "audio_pad")]
    names += [f"<|{kind}_{edge}|>" for kind in ("vision", "audio") for edge in ("start", "end")]
    banned = media_token_ids(thinker.config)
    assert banned == sorted(vocabulary.convert_tokens_to_ids(names))
    assert len(banned) == 7
    assert vocabulary.eos_token_id not in banned


def test_a_full_configuration_gives_the_thinkers(checkpoint) -> None:
    from transformers import AutoConfig

    full = AutoConfig.from_pretrained(checkpoint)
    thinker = thinker_config(full)
    assert thinker is full.thinker_config
    assert thinker_config(thinker) is thinker
    assert media_token_ids(full) == media_token_ids(thinker)


def test_banned_logits() -> None:
    scores = torch.randn(2, 3, 10, requires_grad=True)
    found = ban_media_tokens(scores, torch.tensor([1, 7]))
    assert (found[..., [1, 7]] == BANNED_LOGIT).all()
    rest = [0, 2, 3, 4, 5, 6, 8, 9]
    assert torch.equal(found[..., rest], scores[..., rest])
    probabilities = found.softmax(-1)
    assert (probabilities[..., [1, 7]] == 0).all()
    entropy = -(probabilities * found.log_softmax(-1)).sum()
    entropy.backward()
    assert torch.isfinite(entropy)
    assert torch.isfinite(scores.grad).all()
    assert (scores.grad[..., [1, 7]] == 0).all()
