"""Sampled answers carry the probabilities that the trainer computes, and obey their limits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from omnirl.engine.rollout.sampling import Prompt, Sampler, Sampling
from omnirl.engine.thinker import ban_media_tokens, media_token_ids
from tests.engine.conftest import KINDS, positions

SOME_ENDS = range(20, 90)
"""Enough tokens that answers of a random model end at every length."""


@pytest.fixture(scope="module")
def make(thinker: Any, processor: Any):
    def sampler(*, seed: int = 0, end_ids=(processor.tokenizer.eos_token_id,)) -> Sampler:
        banned = media_token_ids(thinker.config)
        return Sampler(thinker, end_ids=end_ids, banned_ids=banned, pad_id=processor.tokenizer.pad_token_id, seed=seed)

    return sampler


@pytest.fixture(scope="module")
def prompts(encode, rows) -> list[Prompt]:
    """Two prompts of each kind, each of them several times, in mixed order."""
    two = [encode(rows[kind][index]) for index in (0, 1) for kind in KINDS]
    return [*two, *two[::-1], *two[::3], two[3], two[3]]


@torch.inference_mode()
def teacher_forced(thinker: Any, processor: Any, prompt: Prompt, answer: list[int], temperature: float) -> torch.Tensor:
    """Log-probabilities of an answer from one pass over prompt and answer, as the trainer makes it."""
    ids = [*prompt.token_ids, *answer]
    output = thinker(
        input_ids=torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        position_ids=positions(processor, ids, prompt.features).unsqueeze(1),
        **prompt.features,
    )
    logits = ban_media_tokens(output.logits[0], torch.tensor(media_token_ids(thinker.config)))
    start = len(prompt.token_ids) - 1
    log_probs = (logits[start:-1] / temperature).log_softmax(-1)
    return log_probs.gather(1, torch.tensor(answer).unsqueeze(1)).squeeze(1)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probabilities_are_the_trainers(make, thinker, processor, prompts, temperature: float) -> None:
    sampling = Sampling(max_tokens=8, temperature=temperature)
    answers = make(end_ids=SOME_ENDS).sample(prompts, sampling)
    assert len({len(answer.token_ids) for answer in answers}) > 3
    assert len({tuple(answer.token_ids) for answer in answers}) > len(prompts) // 2
    for prompt, answer in zip(prompts, answers, strict=True):
        expected = teacher_forced(thinker, processor, prompt, answer.token_ids, temperature)
        torch.testing.assert_close(torch.tensor(answer.log_probs), expected, atol=1e-5, rtol=0)


def test_given_tokens_are_as_likely_as_when_they_were_drawn(make, thinker, processor, prompts) -> None:
    """Whole sequences of every kind and length, some of them twice, in one batch."""
    answers = make(end_ids=SOME_ENDS).sample(prompts, Sampling(max_tokens=8))
    sequences = []
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = [*prompt.token_ids, *answer.token_ids]
        key = prompt.key + repr(answer.token_ids).encode()
        sequences.append(Prompt(ids, positions(processor, ids, prompt.features), prompt.features, key))
    sequences += sequences[:3]
    found = make().score(sequences)
    assert found[-3:] == found[:3]
    for sequence, prompt, answer, values in zip(sequences, prompts, answers, found, strict=False):
        assert len(values) == len(sequence.token_ids) - 1
        drawn = values[len(prompt.token_ids) - 1 :]
        assert drawn == pytest.approx(answer.log_probs, abs=1e-5)
        whole = teacher_forced(thinker, processor, prompt, answer.token_ids, 1.0)
        torch.testing.assert_close(torch.tensor(drawn), whole, atol=1e-5, rtol=0)


def test_greedy_is_one_answer_a_prompt_whatever_is_beside_it(make, thinker, processor, prompts) -> None:
    sampling = Sampling(max_tokens=6, temperature=0)
    answers = make(end_ids=SOME_ENDS).sample(prompts, sampling)
    by_prompt: dict[bytes, list[int]] = {}
    for prompt, answer in zip(prompts, answers, strict=True):
        assert by_prompt.setdefault(prompt.key, answer.token_ids) == answer.token_ids
        expected = teacher_forced(thinker, processor, prompt, answer.token_ids, 1.0)
        torch.testing.assert_close(torch.tensor(answer.log_probs), expected, atol=1e-5, rtol=0)
    assert len(by_prompt) == 2 * len(KINDS)
    for prompt in prompts[: 2 * len(KINDS)]:
        (alone,) = make(end_ids=SOME_ENDS).sample([prompt], sampling)
        assert alone.token_ids == by_prompt[prompt.key]


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-6}, {"top_k": 1, "top_p": 0.5, "temperature": 2.0}])
def test_the_narrowest_choice_is_greedy(make, prompts, narrow: dict[str, float]) -> None:
    greedy = make().sample(prompts, Sampling(max_tokens=4, temperature=0))
    found = make(seed=1).sample(prompts, Sampling(max_tokens=4, **narrow))
    assert [answer.token_ids for answer in found] == [answer.token_ids for answer in greedy]


def test_a_seed_repeats_itself(make, prompts) -> None:
    one, same, other = (make(seed=seed).sample(prompts, Sampling(max_tokens=4)) for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_answers_end_where_they_must(make, prompts) -> None:
    for answer in make(end_ids=SOME_ENDS).sample(prompts * 4, Sampling(max_tokens=5)):
        ends = [token in SOME_ENDS for token in answer.token_ids]
        assert not any(ends[:-1])
        assert answer.finished == ends[-1]
        assert len(answer.token_ids) == len(answer.log_probs)
        assert 1 <= len(answer.token_ids) <= 5
        assert answer.finished or len(answer.token_ids) == 5
    (answer,) = make(end_ids=range(480)).sample(prompts[:1], Sampling(max_tokens=5))
    assert len(answer.token_ids) == 1


@pytest.mark.parametrize("sampling", [Sampling(8), Sampling(8, temperature=5.0), Sampling(8, top_k=400, top_p=0.99)])
def test_media_tokens_are_never_sampled(make, thinker, prompts, sampling: Sampling) -> None:
    answers = make().sample(prompts * 8, sampling)
    tokens = Counter(token for answer in answers for token in answer.token_ids)
    # Without the ban, seven in about five hundred tokens would be of media.
    assert tokens.total() > 1000
    assert not tokens.keys() & set(media_token_ids(thinker.config))


def first_tokens(make, prompt: Prompt, count: int, sampling: Sampling) -> torch.Tensor:
    answers = make().sample([prompt] * count, replace(sampling, max_tokens=1))
    tokens = torch.tensor([answer.token_ids[0] for answer in answers])
    return torch.bincount(tokens, minlength=496) / count


@torch.inference_mode()
def distribution(make, prompt: Prompt, temperature: float) -> torch.Tensor:
    sampler = make()
    output, _ = sampler._prefill([prompt])
    return (ban_media_tokens(output.logits[0, -1], sampler.banned_ids) / temperature).softmax(-1)


def test_frequencies_are_the_probabilities(make, prompts) -> None:
    count = 6000
    probabilities = distribution(make, prompts[1], 0.5)
    found = first_tokens(make, prompts[1], count, Sampling(1, temperature=0.5))
    likely = probabilities > 5 / count
    chi_squared = count * ((found - probabilities)[likely] ** 2 / probabilities[likely]).sum()
    freedom = int(likely.sum())
    assert freedom > 100
    assert abs(chi_squared - freedom) < 5 * (2 * freedom) ** 0.5


def test_top_k_and_top_p_cut_the_tail_and_keep_the_rest(make, prompts) -> None:
    probabilities = distribution(make, prompts[3], 1.0)
    ordered, order = probabilities.sort(descending=True)
    most = first_tokens(make, prompts[3], 4000, Sampling(1, top_k=4))
    assert set(most.nonzero().flatten().tolist()) == set(order[:4].tolist())
    torch.testing.assert_close(most[order[:4]], ordered[:4] / ordered[:4].sum(), atol=0.03, rtol=0)
    # The token that crosses the threshold still belongs to the nucleus.
    size = int((ordered.cumsum(0) < 0.03).sum()) + 1
    nucleus = first_tokens(make, prompts[3], 4000, Sampling(1, top_p=0.03))
    assert set(nucleus.nonzero().flatten().tolist()) == set(order[:size].tolist())
    torch.testing.assert_close(nucleus[order[:size]], ordered[:size] / ordered[:size].sum(), atol=0.03, rtol=0)
