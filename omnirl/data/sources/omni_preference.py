"""Omni-Preference: pairs of answers about an image, a video or a sound, with a judge's scores; split by media file."""

from __future__ import annotations

import hashlib
import heapq
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from omnirl.data.preference import Modality, Preference
from omnirl.data.sample import PLACEHOLDERS, Drop
from omnirl.data.sources import Options, Splits
from omnirl.data.sources.omni_media import Found, MediaFiles
from omnirl.data.sources.records import is_clean, json_lines
from omnirl.errors import InvalidInput

MODALITIES: tuple[Modality, ...] = get_args(Modality)
RECORDS = "final_rl_data.jsonl"
SEED = 42
TEST_SHARE = 0.1
MOST_POINTS = 10

_CONTEXT = re.compile(r"(?<!\S)### Context:?[ \t\r]*$", re.MULTILINE)
_FILE = re.compile(r"^<?(Image|Video|Audio)>? file:", re.MULTILINE)
_QUESTION = re.compile(r"^Question:", re.MULTILINE)
_CANDIDATE = re.compile(r"^Candidate ([AB]):", re.MULTILINE)
_VERDICT = re.compile(r"\[\[(\w{1,16})\]\]")


def splits(input: Path | None, output: Path, options: Options) -> Splits:
    """`MODALITY/train` and `MODALITY/test` of each modality whose records are there; one is enough.

    A tenth of the media files that are there and that a usable record is about are those of the test split, at least
    one of two; a modality with a single such file has no test split. Which ones is decided by the seed and the files'
    names alone. Every record about such a file is a test record, usable or not; all others are training records. The
    records are read three times and never held.

    Raises:
        InvalidInput: no modality has records, records are in another encoding than UTF-8, a folder of media leads out.
        EnvironmentLacks: a file may not be read.
    """
    assert input is not None  # the registry says that this source needs it
    folder = input / "dataset_jsonl"
    records = {modality: path for modality in MODALITIES if (path := folder / modality / RECORDS).is_file()}
    if not records:
        raise InvalidInput(
            f"`{input}` has no `dataset_jsonl/{{{','.join(MODALITIES)}}}/{RECORDS}`",
            hint="the input holds dataset_jsonl/, and beside it rlaif-v-dataset/, video-dataset/ and audio_files/",
            where="--input",
        )
    seed = SEED if options.seed is None else options.seed
    for modality, path in records.items():
        files = MediaFiles(input, modality, allow_outside=options.allow_outside)
        test = _test_keys(path, modality, files, seed)
        for split in ("train", "test") if test else ("train",):
            yield f"{modality}/{split}", _read(path, modality, files, split, test)


def convert(
    record: Any, modality: Modality, files: MediaFiles, split: str, index: int, where: str
) -> Preference | Drop:
    """One record as a row, or why not; `index` is the record's place in its file, counted from 0.

    Reasons: `invalid_record` (a field is missing or of a wrong type), `invalid_text` (NUL or half a surrogate pair),
    `unsupported_modality` (media of another kind, or several), those of `MediaFiles.find`, `invalid_prompt` (not one
    question and one candidate A and one B below `### Context`), `empty_problem`, `empty_candidate`,
    `media_placeholder`, `identical_candidates`, and those of `judgement`.
    """
    found = medium(record, modality, files)
    if isinstance(found, str):
        return Drop(found, where)
    content, solution = _message(record.get("messages")), record.get("solution")
    if content is None or not isinstance(solution, str):
        return Drop("invalid_record", where)
    if not is_clean(content) or not is_clean(solution):
        return Drop("invalid_text", where)
    asked = _parts(content, modality)
    if isinstance(asked, str):
        return Drop(asked, where)
    judged = judgement(solution)
    if isinstance(judged, str):
        return Drop(judged, where)
    question, *answers = asked
    chosen, rejected = answers if judged.better == "A" else reversed(answers)
    return Preference(
        data_source=f"omni_preference/{modality}",
        modality=modality,
        prompt=f"{PLACEHOLDERS[f'{modality}s']}{question}",
        path=found.path,
        chosen=chosen,
        rejected=rejected,
        win_score=judged.win,
        lose_score=judged.lose,
        ability=f"{modality}_preference",
        ground_truth=judged.better,
        split=split,
        index=index,
        question=question,
        id=f"{modality}_{index}",
        details=json.dumps({"path": record[f"{modality}s"][0], "reasoning": judged.reasoning}, ensure_ascii=False),
        tally=judged.better,
    )


def medium(record: Any, modality: Modality, files: MediaFiles) -> Found | str:
    """The one media file that a record is about, or the reason why there is none."""
    if not isinstance(record, dict):
        return "invalid_record"
    if any(record.get(f"{other}s") for other in MODALITIES if other != modality):
        return "unsupported_modality"
    names = record.get(f"{modality}s")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        return "invalid_record"
    return files.find(names[0]) if len(names) == 1 else "unsupported_modality"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the judge said; points are 0 to 10."""

    better: str
    win: float
    lose: float
    reasoning: str


def judgement(solution: str) -> Judgement | str:
    """The judge's JSON text as a judgement, or the reason why there is none.

    Reasons: `invalid_solution` (no JSON object, no `better`, no verdict in `final_verdict`), `tie`, `invalid_score` (no
    number of 0 to 10), `contradictory_verdict` (the better one has fewer points, or the final verdict is another).
    Equal points are no contradiction, and a missing `final_verdict` says nothing.
    """
    try:
        said = json.loads(solution)
    except (ValueError, RecursionError):
        return "invalid_solution"
    if not isinstance(said, dict):
        return "invalid_solution"
    better = said.get("better")
    if better == "equal":
        return "tie"
    if better not in ("A", "B"):
        return "invalid_solution"
    win, lose = (_score(said.get(f"score_{letter}")) for letter in ("AB" if better == "A" else "BA"))
    if win is None or lose is None:
        return "invalid_score"
    final = said.get("final_verdict")
    if final is not None:
        verdicts = set(_VERDICT.findall(final)) if isinstance(final, str) else set()
        if not verdicts:
            return "invalid_solution"
        if verdicts != {better}:
            return "contradictory_verdict"
    if win < lose:
        return "contradictory_verdict"
    reasoning = said.get("reasoning")
    kept = reasoning if isinstance(reasoning, str) and is_clean(reasoning) else ""
    return Judgement(better, win, lose, kept)


def _score(value: Any) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST_POINTS:
        return float(value)
    return None


def _message(messages: Any) -> str | None:
    """The text of the one message of a user."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return None
    said = [message.get("content") for message in messages if message.get("role") == "user"]
    return said[0] if len(said) == 1 and isinstance(said[0], str) else None


def _parts(content: str, modality: Modality) -> tuple[str, str, str] | str:
    """The question and the candidates A and B, or the reason why they cannot be told."""
    context = _CONTEXT.search(content)
    if context is None:
        return "invalid_prompt"
    candidates = list(_CANDIDATE.finditer(content, context.end()))
    if [mark[1] for mark in candidates] != ["A", "B"]:
        return "invalid_prompt"
    first, second = candidates
    question = _QUESTION.search(content, context.end(), first.start())
    if question is None:
        return "invalid_prompt"
    file = _FILE.search(content, context.end(), question.start())
    if file is not None and file[1].lower() != modality:
        return "unsupported_modality"
    asked = content[question.end() : first.start()].strip()
    one, other = content[first.end() : second.start()].strip(), content[second.end() :].strip()
    if not asked:
        return "empty_problem"
    if not one or not other:
        return "empty_candidate"
    if any(mark in text for mark in PLACEHOLDERS.values() for text in (asked, one, other)):
        return "media_placeholder"
    if one.split() == other.split():
        return "identical_candidates"
    return asked, one, other


def _read(
    path: Path, modality: Modality, files: MediaFiles, split: str, test: frozenset[bytes]
) -> Iterator[Preference | Drop]:
    for index, (where, record) in enumerate(json_lines(path)):
        found = "" if isinstance(record, Drop) else medium(record, modality, files)
        is_test = isinstance(found, Found) and found.key in test
        if is_test == (split == "test"):
            yield record if isinstance(record, Drop) else convert(record, modality, files, split, index, where)


def _test_keys(path: Path, modality: Modality, files: MediaFiles, seed: int) -> frozenset[bytes]:
    """The keys of the media files of the test split: those that come first when the seed has shuffled all."""
    keys: set[bytes] = set()
    for where, record in json_lines(path):
        found = "" if isinstance(record, Drop) else medium(record, modality, files)
        if isinstance(found, str) or not found.exists or found.key in keys:
            continue
        if isinstance(convert(record, modality, files, "", 0, where), Preference):
            keys.add(found.key)
    if len(keys) < 2:
        return frozenset()
    count = max(1, round(len(keys) * TEST_SHARE))
    return frozenset(heapq.nsmallest(count, keys, key=lambda key: hashlib.sha256(b"%d:%b" % (seed, key)).digest()))
