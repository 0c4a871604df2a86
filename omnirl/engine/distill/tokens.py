"""Whether a teacher reads a student's tokens as the student wrote them.

A teacher gets token ids, not text. What counts is therefore that each id is the same text to both; the sizes of
embeddings do not, as they are padded at will.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from transformers import AutoTokenizer

from omnirl.errors import InvalidInput

_SHOWN = 3


def token_map(folder: Path) -> dict[str, int]:
    """Id by token of the tokenizer in a checkpoint folder, special tokens included.

    Raises:
        InvalidInput: there is no tokenizer, or it does not load.
    """
    try:
        return dict(AutoTokenizer.from_pretrained(folder, local_files_only=True).get_vocab())
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InvalidInput(f"the tokenizer in `{folder}` does not load: {reason}") from error


def difference(student: Mapping[str, int], teacher: Mapping[str, int]) -> str:
    """Where two token maps differ, in words; empty when they are the same."""
    parts = []
    for one, other, whose in ((student, teacher, "student"), (teacher, student, "teacher")):
        if alone := sorted(one.keys() - other.keys(), key=one.__getitem__):
            named = ", ".join(json.dumps(token, ensure_ascii=False) for token in alone[:_SHOWN])
            parts.append(f"{len(alone)} tokens are the {whose}'s alone, such as {named}")
    moved = [token for token in student if token in teacher and teacher[token] != student[token]]
    if moved:
        first = moved[0]
        name = json.dumps(first, ensure_ascii=False)
        parts.append(f"{len(moved)} have other ids, such as {name}: {student[first]} and {teacher[first]}")
    return "; ".join(parts)


def require_same(student: Path, teacher: Path) -> None:
    """Raises InvalidInput when the tokenizers in two checkpoint folders give any token different ids."""
    found = difference(token_map(student), token_map(teacher))
    if found:
        raise InvalidInput(
            f"teacher `{teacher}` and student `{student}` do not share a tokenizer: {found}",
            hint="distil from a teacher with the student's own tokenizer",
        )
