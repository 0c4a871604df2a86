"""What a teacher tells of the tokens that it is given, as verl reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def told(token_ids: Sequence[int], log_probs: Sequence[float]) -> dict[str, list[list[Any]]]:
    """Extra fields of a teacher's answer: each place is about the token after it, and the last about none.

    Args:
        token_ids: of the student's sequence, prompt and answer.
        log_probs: of each of them but the first, given those before it.
    """
    return {
        "prompt_ids": [[token] for token in (*token_ids[1:], 0)],
        "prompt_logprobs": [[value] for value in (*log_probs, 0.0)],
    }


def of_prompt(
    token_ids: Sequence[int], entries: Sequence[Mapping[int, Any] | None] | None
) -> dict[str, list[list[Any]]]:
    """The same out of vLLM's `prompt_logprobs`, whose first entry is None.

    Raises:
        ValueError: the engine read other tokens, as when it gives media another number of placeholders.
    """
    if entries is None:
        raise ValueError("the teacher's engine tells nothing of its prompt")
    if len(entries) != len(token_ids):
        raise ValueError(f"the teacher read {len(entries)} tokens where the student has {len(token_ids)}")
    log_probs = []
    for place, (token, entry) in enumerate(zip(token_ids, entries, strict=True)):
        if place == 0:
            continue
        if entry is None or token not in entry:
            raise ValueError(f"the teacher read another token than the student's {token} at place {place}")
        log_probs.append(float(entry[token].logprob))
    return told(token_ids, log_probs)
