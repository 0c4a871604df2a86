"""AVQA-R1-6K: multiple-choice questions about a picture with a sound; splits `train` and `validation`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omnirl.data.sample import PLACEHOLDERS, Drop, Image, Sample
from omnirl.data.sources import Options, Splits, choices
from omnirl.data.sources.folder import Folder
from omnirl.data.sources.records import as_text, is_clean, json_array
from omnirl.errors import InvalidInput

FILES = {"train": "train/omni_rl_format_train.json", "validation": "valid/omni_rl_format_valid.json"}
SYSTEM = (
    "Look at the image and listen to the audio before you answer. Reason about what you see and hear inside "
    "<think></think>, then write only the letter of the right option inside <answer></answer>."
)

_FOLDER = "AVQA_R1"
_SOLUTION = re.compile(rf"<answer>\s*([{choices.LETTERS}])\s*</answer>", re.IGNORECASE)
_ENCODER = json.JSONEncoder(ensure_ascii=False)
_MARKS = PLACEHOLDERS["images"] + PLACEHOLDERS["audios"]
_DETAILS = ("problem_id", "problem_type", "data_source")
_WRITTEN = "{" + ", ".join(f'"{name}": %s' for name in _DETAILS) + "}"


def splits(input: Path | None, output: Path, options: Options) -> Splits:
    """The two official splits, in their order and whole; `input` is the folder `AVQA_R1` or the one that holds it.

    Raises:
        InvalidInput: a split's file is missing, is not UTF-8, or is no JSON array.
        EnvironmentLacks: a file may not be read.
    """
    assert input is not None  # the registry says that this source needs it
    root = next((folder for folder in (input, input / _FOLDER) if _present(folder)), input)
    missing = [name for name in FILES.values() if not (root / name).is_file()]
    if missing:
        layout = " and ".join(f"{_FOLDER}/{name}" for name in FILES.values())
        raise InvalidInput(f"`{root}` has no `{missing[0]}`", hint=f"the input holds {layout}", where="--input")
    for split, name in FILES.items():
        path = root / name
        yield split, _read(path, Folder(path.parent, allow_outside=options.allow_outside), split)


def convert(record: Any, folder: Folder, split: str, index: int, where: str) -> Sample | Drop:
    """One record as a row, or why not; `index` is the record's place in its split, counted from 0.

    Reasons: `invalid_record` (no object, or a problem or a detail that is no text or number), `invalid_text` (NUL or
    half a surrogate pair), `empty_problem`, `unsupported_modality`, `invalid_options` (no list of at least two texts,
    each a letter and something behind it, all letters different), `invalid_solution` (no letter of an option),
    `ambiguous_options` (another option says what the right one says), `media_placeholder`, `missing_image` and
    `missing_audio` (not named at all), and those of `Folder.resolve`.
    """
    if not isinstance(record, dict):
        return Drop("invalid_record", where)
    problem = "" if record.get("problem") is None else record["problem"]
    if not isinstance(problem, str):
        return Drop("invalid_record", where)
    problem = problem.strip()
    if not problem:
        return Drop("empty_problem", where)
    if record.get("data_type") != "image_audio":
        return Drop("unsupported_modality", where)
    options = _options(record.get("options"))
    if not options:
        return Drop("invalid_options", where)
    said = "\n".join((problem, *options.values()))
    if not is_clean(said):
        return Drop("invalid_text", where)
    solution = record.get("solution")
    match = _SOLUTION.fullmatch(solution.strip()) if isinstance(solution, str) else None
    letter = match[1].upper() if match else ""
    if letter not in options:
        return Drop("invalid_solution", where)
    if choices.is_ambiguous(options, letter, fold_case=True):
        return Drop("ambiguous_options", where)
    if "<" in said and any(mark in said for mark in PLACEHOLDERS.values()):
        return Drop("media_placeholder", where)
    details = _details(record)
    if isinstance(details, str):
        return Drop(details, where)
    names = record.get("path")
    image, reason = _medium(names, "image", folder)
    if reason:
        return Drop(reason, where)
    audio, reason = _medium(names, "audio", folder)
    if reason:
        return Drop(reason, where)
    listed = choices.listed(options)
    return Sample(
        data_source="avqa_r1_6k",
        system=SYSTEM,
        prompt="\n".join((f"{_MARKS}{problem}", "Options:", *listed)),
        ground_truth=f"<answer>{letter}</answer>",
        ability="audio_visual_qa",
        split=split,
        index=index,
        id=details["problem_id"],
        kind=details["problem_type"],
        question=problem,
        answer=options[letter],
        options=listed,
        details=_WRITTEN % tuple(map(_ENCODER.encode, details.values())),
        images=(Image(path=image),),
        audios=(audio,),
        tally=letter,
    )


def _present(folder: Path) -> bool:
    return any((folder / name).is_file() for name in FILES.values())


def _read(path: Path, folder: Folder, split: str) -> Iterator[Sample | Drop]:
    for index, (where, record) in enumerate(json_array(path)):
        yield record if isinstance(record, Drop) else convert(record, folder, split, index, where)


def _options(given: Any) -> dict[str, str]:
    """The options by letter; empty when they are none."""
    if not isinstance(given, list) or len(given) < 2:
        return {}
    options: dict[str, str] = {}
    for text in given:
        option = choices.read_option(text) if isinstance(text, str) else None
        if option is None or option[0] in options:
            return {}
        options[option[0]] = option[1]
    return options


def _details(record: dict[Any, Any]) -> dict[str, str] | str:
    """What only this data set has, as texts whatever the types in the file, or the reason why it cannot be kept."""
    details: dict[str, str] = {}
    for name in _DETAILS:
        value = record.get(name)
        text = as_text(value)
        if text is None:
            return "invalid_text" if isinstance(value, str) else "invalid_record"
        details[name] = text
    return details


def _medium(names: Any, kind: str, folder: Folder) -> tuple[str, str]:
    """The path of a medium and no reason, or none and the reason."""
    name = names.get(kind) if isinstance(names, dict) else None
    return ("", f"missing_{kind}") if name is None or name == "" else folder.locate(name)
