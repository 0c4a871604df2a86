"""NExT-QA: questions about a video and its soundtrack with five options; the official train and validation tables."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omnirl.data.sample import PLACEHOLDERS, Drop, Sample, Video
from omnirl.data.sources import Options, Sampling, Splits
from omnirl.data.sources.folder import Folder
from omnirl.data.sources.records import is_clean
from omnirl.data.sources.tables import csv_rows
from omnirl.errors import EnvironmentLacks, InvalidInput

TABLES = {"train": "train.csv", "validation": "val.csv"}
MAP = "map_vid_vidorID.json"
VIDEOS = "NExTVideo"
LETTERS = "ABCDE"
SYSTEM = (
    "Watch the video and listen to its soundtrack. Reason about what you see and hear inside <think></think>, "
    "then write only the letter of the right option inside <answer></answer>."
)
COLUMNS = ("video", "frame_count", "width", "height", "question", "answer", "qid", "type", "a0", "a1", "a2", "a3", "a4")
MAX_MAP_BYTES = 8 << 20
"""The published map has a third of a megabyte."""

_LAYOUT = f"NextQA/repo/{{train.csv,val.csv,{MAP}}} and NextQA/{VIDEOS}/<dir>/<id>.mp4"
_ANSWERS = {str(number): letter for number, letter in enumerate(LETTERS)}


def splits(input: Path | None, output: Path, options: Options) -> Splits:
    """The splits whose table is there, whole and in the order of the tables; one of the two is enough.

    Raises:
        InvalidInput: no table, no map or no folder of videos, the videos lie one folder too deep, the map is damaged, a
            table is in another encoding than UTF-8 or lacks a column.
        EnvironmentLacks: a file may not be read.
    """
    assert input is not None  # the registry says that this source needs it
    root = _root(input)
    tables = {split: path for split, name in TABLES.items() if (path := root / "repo" / name).is_file()}
    if not tables:
        names = " and no ".join(f"`{name}`" for name in TABLES.values())
        raise InvalidInput(f"`{root / 'repo'}` has no {names}", hint=f"the input holds {_LAYOUT}")
    videos = Videos(_videos(root, options), _read_map(root / "repo" / MAP), allow_outside=options.allow_outside)
    for split, path in tables.items():
        yield split, _read(path, split, videos, options.video)


class Videos:
    """The files of the videos by the ids of the tables; ids are text, so `0123` is not `123`."""

    def __init__(self, folder: Path, names: Mapping[str, Any], *, allow_outside: bool = False) -> None:
        self._folder = Folder(folder, allow_outside=allow_outside)
        self._names = names

    def find(self, video: str) -> Path | str:
        """The absolute path of a video, or why it has none: `unmapped_video`, or a reason of `Folder.resolve`."""
        if video not in self._names:
            return "unmapped_video"
        name = self._names[video]
        return self._folder.resolve(f"{name}.mp4" if isinstance(name, str) and name.strip() else None)


def convert(
    record: Mapping[str, str], videos: Videos, sampling: Sampling, split: str, index: int, where: str
) -> Sample | Drop:
    """One record as a row, or why not; `index` is the record's place in its table, counted from 0.

    Reasons: `invalid_text` (NUL or half a surrogate pair), `empty_problem`, `invalid_options` (not five texts),
    `invalid_solution` (not 0 to 4), `ambiguous_options` (another option says what the right one says),
    `media_placeholder`, and those of `Videos.find`.
    """
    if not is_clean("".join(record.values())):
        return Drop("invalid_text", where)
    question = record["question"].strip()
    if not question:
        return Drop("empty_problem", where)
    answers = tuple(" ".join(record[f"a{number}"].split()) for number in range(len(LETTERS)))
    if not all(answers):
        return Drop("invalid_options", where)
    letter = _ANSWERS.get(record["answer"].strip())
    if letter is None:
        return Drop("invalid_solution", where)
    right = answers[LETTERS.index(letter)]
    if sum(answer.casefold() == right.casefold() for answer in answers) > 1:
        return Drop("ambiguous_options", where)
    if any(mark in text for mark in PLACEHOLDERS.values() for text in (question, *answers)):
        return Drop("media_placeholder", where)
    video = record["video"].strip()
    path = videos.find(video)
    if isinstance(path, str):
        return Drop(path, where)
    listed = "\n".join(f"{mark}. {answer}" for mark, answer in zip(LETTERS, answers, strict=True))
    size = {name: _number(record[name]) for name in ("frame_count", "width", "height")}
    return Sample(
        data_source="nextqa",
        system=SYSTEM,
        prompt=f"{PLACEHOLDERS['videos']}{question}\nOptions:\n{listed}",
        ground_truth=f"<answer>{letter}</answer>",
        ability="video_qa",
        split=split,
        index=index,
        id=f"{video}_{record['qid'].strip()}",
        kind=record["type"].strip(),
        question=question,
        answer=right,
        options=answers,
        details=json.dumps({"type": record["type"].strip(), **size, "video": video}, ensure_ascii=False),
        videos=(Video(path, sampling.fps, sampling.min_pixels, sampling.max_pixels, sampling.max_frames),),
        soundtrack=True,
        tally=letter,
    )


def _read(path: Path, split: str, videos: Videos, sampling: Sampling) -> Iterator[Sample | Drop]:
    for index, (where, record) in enumerate(csv_rows(path, COLUMNS)):
        yield record if isinstance(record, Drop) else convert(record, videos, sampling, split, index, where)


def _number(text: str) -> int | str:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text


def _root(input: Path) -> Path:
    for folder in (input / "NextQA", input):
        if (folder / "repo").is_dir():
            return folder
    raise InvalidInput(f"`{input}` has no folder `NextQA/repo`", hint=f"the input holds {_LAYOUT}", where="--input")


def _videos(root: Path, options: Options) -> Path:
    """The folder of the videos, which is there, holds them without another folder between, and is inside of `root`."""
    folder = root / VIDEOS
    if not folder.is_dir():
        raise InvalidInput(f"`{root}` has no folder `{VIDEOS}`", hint=f"the input holds {_LAYOUT}")
    nested = folder / VIDEOS
    if nested.is_dir():
        inner, outer = shlex.quote(str(nested)), shlex.quote(str(folder))
        raise InvalidInput(
            f"the videos lie one folder too deep, in `{nested}`", hint=f"mv {inner}/* {outer}/ && rmdir {inner}"
        )
    if isinstance(Folder(root, allow_outside=options.allow_outside).resolve(VIDEOS), str):
        raise InvalidInput(
            f"`{folder}` is a link that leads out of the input", hint="give `--allow-outside` if that is meant"
        )
    return folder


def _read_map(path: Path) -> dict[str, Any]:
    """Video id to `dir/id`; single values are checked when they are asked for."""
    hint = f"fetch {MAP} of NExT-QA again: it maps each video id to `dir/id`"
    if not path.is_file():
        raise InvalidInput(f"`{path.parent}` has no `{path.name}`", hint=hint)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_MAP_BYTES + 1)
    except OSError as error:
        raise EnvironmentLacks(f"`{path}` cannot be read: {error.strerror}", hint=f"ls -l {path}") from error
    if len(content) > MAX_MAP_BYTES:
        raise InvalidInput(f"`{path}` is larger than {MAX_MAP_BYTES >> 20} MiB", hint=hint)
    try:
        names = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InvalidInput(f"`{path}` is not UTF-8", hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"`{path}` is not JSON: {str(error)[:200]}", hint=hint) from error
    if not isinstance(names, dict):
        raise InvalidInput(f"`{path}` is no JSON object but a {type(names).__name__}", hint=hint)
    return names
