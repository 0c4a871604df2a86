"""Idle towers cost nothing but time, and no answer holds a media token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from verl.utils.model import extract_multi_modal_inputs

from omnirl.engine.head import BANNED_LOGIT
from omnirl.engine.thinker import ban_media_tokens, media_token_ids, thinker_config
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


@pytest.mark.parametrize("kind", KINDS)
def test_without_logits_the_same_comes_out(new_thinker: Any, encode, rows, kind: str) -> None:
    prompt = encode(rows[kind][0])
    temperature, ids = 0.8, torch.tensor(prompt.token_ids)
    banned = torch.tensor(media_token_ids(new_thinker.config))
    wanted = torch.log_softmax(ban_media_tokens(logits(new_thinker, prompt)[0], banned) / temperature, dim=-1)
    labels = ids.roll(-1)
    chosen = wanted.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    answer = ~torch.isin(labels, banned)
    (chosen[answer].sum() - (wanted.exp() * wanted).sum()).backward()
    plain = {name: p.grad for name, p in new_thinker.named_parameters() if p.grad is not None}
    new_thinker.zero_grad(set_to_none=True)

    inputs = {
        "input_ids": ids.unsqueeze(0),
        "attention_mask": torch.ones(1, len(ids), dtype=torch.long),
        "position_ids": prompt.positions.unsqueeze(1),
        **extract_multi_modal_inputs([prompt.features]),
    }
    output = new_thinker(**inputs, temperature=temperature)
    assert output.get("logits") is None
    torch.testing.assert_close(output.log_probs[0][answer], chosen[answer], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(output.entropy[0], -(wanted.exp() * wanted).sum(-1), rtol=1e-4, atol=1e-4)
    given = new_thinker(**inputs, temperature=temperature, shift_labels=labels.unsqueeze(0))
    assert torch.equal(given.log_probs, output.log_probs)

    (output.log_probs[0][answer].sum() + output.entropy.sum()).backward()
    fused = {name: p.grad for name, p in new_thinker.named_parameters() if p.grad is not None}
    assert plain.keys() == fused.keys()
    for name, grad in plain.items():
        torch.testing.assert_close(fused[name], grad, rtol=2e-3, atol=2e-3, msg=name)
    assert logits(new_thinker, prompt).shape[-1] == new_thinker.config.text_config.vocab_size


def test_packed_sequences_do_not_see_each_other(new_thinker: Any, encode, rows) -> None:
    """What remove-padding does: one row of several sequences, told apart by their positions alone."""
    prompts = [encode(rows[kind][index]) for kind in KINDS for index in (0, 1)]
    with torch.no_grad():
        alone = [logits(new_thinker, prompt)[0] for prompt in prompts]
        packed = new_thinker(
            input_ids=torch.tensor([token for prompt in prompts for token in prompt.token_ids]).unsqueeze(0),
            attention_mask=None,
            position_ids=torch.cat([prompt.positions for prompt in prompts], dim=1).unsqueeze(1),
            use_cache=False,
            **extract_multi_modal_inputs([prompt.features for prompt in prompts]),
        ).logits[0]
    torch.testing.assert_close(packed, torch.cat(alone), rtol=1e-4, atol=1e-4)
