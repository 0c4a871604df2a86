"""What is wrong with one row, by itself: its messages, its label or its two candidates, its media items."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from omnirl.data.sample import PLACEHOLDERS
from omnirl.data.sources.choices import find_options
from omnirl.errors import InvalidInput
from omnirl.reward import choice, score

ROLES = ("system", "user", "assistant", "tool")

_MARKUP = re.compile(
    r"<\|(?:(?:image|audio|video|vision)_pad|(?:vision|audio)_(?:start|end|bos|eos)|AUDIO|IMAGE|VIDEO)\|>"
    r"|<\|(?:im_start|im_end|endoftext)\|>"
)
# full stop, colon or bracket after a letter, also in the width that Chinese texts use
_AFTER = r"[ \t]*[.\uff0e\u3001:\uff1a)\uff09]"
_OPTION = re.compile(rf"\s*\(?([A-Za-z]){_AFTER}")
_SCORERS_BY_SOURCE = (
    (re.compile(r"(?:openai/)?gsm8k"), "gsm8k"),
    (re.compile(r"mmk12"), "mmk12"),
    (re.compile(r"(?:toy|avqa|nextqa)\b|avqa_"), "choice"),
)


class Fault(NamedTuple):
    """One thing that is wrong with a row: a stable code, what it is, and what mends it."""

    code: str
    message: str
    hint: str | None = None


def guess_scorer(data_source: object) -> str | None:
    """The built-in scorer that rows of a data set are meant for; None where its name tells nothing."""
    if not isinstance(data_source, str):
        return None
    named = (scorer for pattern, scorer in _SCORERS_BY_SOURCE if pattern.match(data_source))
    return next((scorer for scorer in named if scorer in score.SCORERS), None)


def built_in(scorer: str) -> str | None:
    """The scorer of a recipe if it comes with omnirl; the labels of any other are its own affair."""
    return scorer if scorer in score.SCORERS else None


def prompt(row: Mapping[str, Any]) -> Iterator[Fault]:
    """Faults of the messages, and of their placeholders against the media that the row holds."""
    messages = [message for message in row.get("prompt") or () if message]
    texts = [message.get("content") or "" for message in messages]
    if not any(text.strip() for text in texts):
        yield Fault("prompt-empty", "the prompt is empty")
        return
    roles = [message.get("role") for message in messages]
    for role in sorted({str(role) for role in roles if role not in ROLES}):
        yield Fault("role-unknown", f"`{role[:40]}` is the role of a message", f"one of {', '.join(ROLES)}")
    if "user" not in roles:
        yield Fault("no-user-message", "no message is the user's")
    written = sorted({mark for text in texts for mark in _MARKUP.findall(text)})
    if written:
        yield Fault(
            "markup-in-text",
            f"the text holds {', '.join(f'`{mark}`' for mark in written)}, which the model reads as markup",
            "take it out of the text; media are named by `<image>`, `<audio>` and `<video>`",
        )
    for column, mark in PLACEHOLDERS.items():
        marks = sum(text.count(mark) for text in texts)
        held = len(row.get(column) or ())
        if marks != held:
            yield Fault(
                "placeholders",
                f"{marks} `{mark}` in the prompt and {held} in `{column}`",
                "one placeholder stands for each media item, in order",
            )


def label(row: Mapping[str, Any], scorer: str | None) -> Iterator[Fault]:
    """Why no response to the row could ever be rewarded."""
    truth = (row.get("reward_model") or {}).get("ground_truth")
    if truth is None or truth in ("", [], {}) or (isinstance(truth, str) and not truth.strip()):
        yield Fault("label-empty", "the ground truth is empty")
        return
    if scorer is None:
        return
    if isinstance(truth, str | int | float):
        why = _unusable(scorer, truth)
        if why:
            yield Fault("label-unusable", *why)
            return
    if isinstance(truth, str):
        yield from _not_offered(truth, row, scorer)


def candidates(row: Mapping[str, Any]) -> Iterator[Fault]:
    """Faults of a preference: what is preferred must differ from what is not, and have the higher score."""
    chosen, rejected = (said(row.get(name)).strip() for name in ("chosen", "rejected"))
    for name, text in (("chosen", chosen), ("rejected", rejected)):
        if not text:
            yield Fault("candidate-empty", f"`{name}` is empty")
    if chosen and chosen == rejected:
        yield Fault("candidates-equal", "`chosen` and `rejected` are the same")
    win, lose = row.get("win_score"), row.get("lose_score")
    if not (_number(win) and _number(lose) and win > lose):  # type: ignore[operator]
        yield Fault("scores-order", f"`win_score` {win} is not above `lose_score` {lose}")


def content(item: object) -> str | bytes | None:
    """Where the media of one item are: a path, or encoded bytes; None when it names neither."""
    if isinstance(item, Mapping):
        values = [item.get(key) for key in ("bytes", "path", "image", "audio", "video")]
        held = [value for value in values if isinstance(value, str | bytes)]
        return next((value for value in held if value), held[0] if held else None)
    return item if isinstance(item, str | bytes) else None


def said(candidate: object) -> str:
    """The text of a candidate, given as text, as one message, or as a list of messages."""
    if isinstance(candidate, Mapping):
        return said(candidate.get("content"))
    if isinstance(candidate, Sequence) and not isinstance(candidate, str | bytes):
        return "\n".join(map(said, candidate))
    return candidate if isinstance(candidate, str) else ""


def _number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


@lru_cache(maxsize=1 << 16)
def _unusable(scorer: str, truth: str | int | float) -> tuple[str, str | None] | None:
    try:
        score.check_label(scorer, truth)
    except InvalidInput as error:
        return error.message, error.hint
    return None


def _options(row: Mapping[str, Any]) -> dict[str, str]:
    """The letters that a row offers, each with its text: those that it lists, else those in the prompt."""
    listed = [option for option in (row.get("extra_info") or {}).get("options") or () if isinstance(option, str)]
    if not listed:
        return find_options(_text(row))
    found = [_OPTION.match(option) for option in listed]
    if all(found):
        return {one[1]: text[one.end() :].strip() for one, text in zip(found, listed, strict=True) if one}
    return {chr(ord("A") + at): text.strip() for at, text in enumerate(listed[:26])}


def _not_offered(truth: str, row: Mapping[str, Any], scorer: str) -> Iterator[Fault]:
    options = _options(row)
    answer = choice.payload(truth)
    if scorer != "choice":
        # letters are read generously there, and options that only the picture shows are not listed
        answer = (answer or truth).strip().upper()
        options |= find_options(_text(row))
        if len(answer) != 1 or not "A" <= answer <= "Z":
            return
    if answer is None or not options or answer in options or answer in options.values():
        return
    offered = ", ".join(options)
    if answer.swapcase() in options:
        yield Fault(
            "label-case",
            f"the ground truth is `{answer}` and the options are {offered}: case counts",
            f"`<answer>{answer.swapcase()}</answer>`",
        )
    else:
        yield Fault("label-not-offered", f"the ground truth `{answer[:40]}` is none of the options {offered}")


def _text(row: Mapping[str, Any]) -> str:
    return "\n".join(message.get("content") or "" for message in row.get("prompt") or () if message)
