"""Batched ancestral sampling from a Thinker, for prompts with and without media."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from verl.utils.model import extract_multi_modal_inputs

from omnirl.engine.thinker import Thinker, ban_media_tokens


@dataclass(frozen=True)
class Prompt:
    """One prompt, ready for the model.

    Attributes:
        token_ids: with media placeholders expanded.
        positions: (4, tokens): the plain index, then temporal, height and width.
        features: the processor's media tensors.
        key: equal for prompts that are the same in tokens and media.
    """

    token_ids: list[int]
    positions: torch.Tensor
    features: dict[str, torch.Tensor] = field(default_factory=dict)
    key: bytes = b""


@dataclass(frozen=True)
class Sampling:
    """How to draw tokens. Temperature 0 is greedy; `top_k` <= 0 and `top_p` = 1 leave the distribution whole."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1


@dataclass(frozen=True)
class Answer:
    """Sampled token ids, the end token included, and the log-probability of each at the sampling temperature."""

    token_ids: list[int]
    log_probs: list[float]
    finished: bool


class Sampler:
    """Draws answers for a batch of prompts with one prefill per distinct prompt.

    The answers of a group share their prompt: it runs through towers and layers once, and its key-value cache is then
    repeated. Positions are given explicitly and are those the trainer computes for the same tokens.
    """

    def __init__(
        self, model: Thinker, *, end_ids: Sequence[int], banned_ids: Sequence[int], pad_id: int, seed: int
    ) -> None:
        self.model = model
        self.end_ids = torch.tensor(list(end_ids))
        self.banned_ids = torch.tensor(list(banned_ids))
        self.pad_id = pad_id
        self.generator = torch.Generator().manual_seed(seed)

    @torch.inference_mode()
    def sample(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Answer]:
        """Answers in the order of `prompts`."""
        distinct: dict[bytes, int] = {}
        unique: list[Prompt] = []
        for prompt in prompts:
            if prompt.key not in distinct:
                distinct[prompt.key] = len(unique)
                unique.append(prompt)
        source = torch.tensor([distinct[prompt.key] for prompt in prompts])

        output, mask = self._prefill(unique)
        cache = output.past_key_values
        logits, mask = output.logits[:, -1][source], mask[source]
        lengths = torch.tensor([len(prompt.token_ids) for prompt in unique])[source]
        offsets = torch.tensor([int(prompt.positions[1:].max()) + 1 for prompt in unique])[source]
        cache.batch_select_indices(source)

        tokens: list[list[int]] = [[] for _ in prompts]
        log_probs: list[list[float]] = [[] for _ in prompts]
        active = torch.arange(len(prompts))
        finished = torch.zeros(len(prompts), dtype=torch.bool)
        for step in range(sampling.max_tokens):
            chosen, chosen_log_probs = self._draw(logits, sampling)
            for row, token, value in zip(active.tolist(), chosen.tolist(), chosen_log_probs.tolist(), strict=True):
                tokens[row].append(token)
                log_probs[row].append(value)
            done = torch.isin(chosen, self.end_ids)
            finished[active[done]] = True
            keep = (~done).nonzero().squeeze(1)
            if step + 1 == sampling.max_tokens or not len(keep):
                break
            if len(keep) < len(active):
                cache.batch_select_indices(keep)
                active, mask, lengths, offsets, chosen = (
                    part[keep] for part in (active, mask, lengths, offsets, chosen)
                )
            mask = torch.cat([mask, mask.new_ones(len(active), 1)], dim=1)
            positions = torch.stack([lengths + step, *[offsets + step] * 3]).unsqueeze(-1)
            output = self.model(
                input_ids=chosen.unsqueeze(1),
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            )
            logits = output.logits[:, -1]
        return [
            Answer(ids, values, bool(end))
            for ids, values, end in zip(tokens, log_probs, finished.tolist(), strict=True)
        ]

    @torch.inference_mode()
    def score(self, sequences: Sequence[Prompt]) -> list[list[float]]:
        """The log-probability at temperature 1 of each token but the first, given those before it.

        Sequences that are the same run once. Media placeholders inside a sequence count as the trainer counts them:
        as tokens that are never drawn.
        """
        distinct = {sequence.key: sequence for sequence in sequences}
        logits = self._prefill(list(distinct.values()), use_cache=False)[0].logits
        found: dict[bytes, list[float]] = {}
        for row, (key, sequence) in zip(logits, distinct.items(), strict=True):
            ids = torch.tensor(sequence.token_ids)
            log_probs = ban_media_tokens(row[-len(ids) : -1].float(), self.banned_ids).log_softmax(-1)
            found[key] = log_probs.gather(1, ids[1:, None]).squeeze(1).tolist()
        return [found[sequence.key] for sequence in sequences]

    def _prefill(self, prompts: Sequence[Prompt], *, use_cache: bool = True) -> tuple[Any, torch.Tensor]:
        """Run left-padded prompts; returns the model's output with its cache, and the attention mask."""
        width = max(len(prompt.token_ids) for prompt in prompts)
        ids = torch.full((len(prompts), width), self.pad_id)
        mask = torch.zeros_like(ids)
        positions = torch.zeros(4, len(prompts), width, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            start = width - len(prompt.token_ids)
            ids[row, start:] = torch.tensor(prompt.token_ids)
            mask[row, start:] = 1
            positions[:, row, start:] = prompt.positions
        features = extract_multi_modal_inputs([prompt.features for prompt in prompts])
        output = self.model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=use_cache, **features)
        return output, mask

    def _draw(self, logits: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
        """One token a row from logits (rows, vocabulary), and its log-probability before top-k and top-p."""
        logits = ban_media_tokens(logits.float(), self.banned_ids)
        greedy = sampling.temperature == 0
        log_probs = torch.log_softmax(logits if greedy else logits / sampling.temperature, dim=-1)
        if greedy:
            chosen = log_probs.argmax(dim=-1)
        else:
            weights = _truncate(log_probs.exp(), sampling.top_k, sampling.top_p)
            chosen = torch.multinomial(weights, 1, generator=self.generator).squeeze(1)
        return chosen, log_probs.gather(1, chosen.unsqueeze(1)).squeeze(1)


def _truncate(probabilities: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """Zero all but the `top_k` likeliest tokens and all past a cumulative `top_p` (the token that crosses it stays)."""
    if 0 < top_k < probabilities.shape[-1]:
        least = probabilities.topk(top_k, dim=-1).values[..., -1:]
        probabilities = probabilities.masked_fill(probabilities < least, 0)
    if top_p < 1:
        ordered, order = probabilities.sort(dim=-1, descending=True)
        before = ordered.cumsum(-1) - ordered
        ordered = ordered.masked_fill(before >= top_p * ordered.sum(-1, keepdim=True), 0)
        probabilities = torch.zeros_like(probabilities).scatter(-1, order, ordered)
    return probabilities
