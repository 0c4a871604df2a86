"""The toy task: four kinds of question that a tiny model can learn in minutes, with media made on the spot.

=============  =====================================================  ====================================
kind           question                                               what decides the answer
=============  =====================================================  ====================================
`text`         "Sam has 3 pens and gets 2 more. How many?"            two small numbers in the text
`image`        "Which colour is the square? A red B green ..."        a picture (PNG)
`image_audio`  "Colour and pitch? A red low B red high ..."           a picture (PNG) and a sound (WAV)
`video`        "Colour and pitch? A red low B red high ..."           a clip and its soundtrack (one MP4)
=============  =====================================================  ====================================

Each kind has four answers, equally frequent, so guessing is right in a quarter of the cases. The words of a question
with media are always the same: only the media tell. The split `probe` repeats the validation questions with media that
belong to other rows; a model that really looks and listens falls back to guessing there, or to one half where only one
of two media is exchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnirl.data.sample import Drop, Image, Sample, Video
from omnirl.data.sources import Options, Splits
from omnirl.data.sources.toy_media import (
    CLIP_FPS,
    CLIP_FRAMES,
    SIDE,
    TRACK_RATE_HZ,
    WAV_RATE_HZ,
    motion,
    square,
    tone,
    write_mp4,
    write_png,
    write_wav,
)
from omnirl.errors import UsageMistake

if TYPE_CHECKING:
    import numpy as np

KINDS = ("text", "image", "image_audio", "video")
ROWS = {"train": 768, "validation": 256}
"""Rows of a split over all kinds."""
SPLIT_NUMBER = {"train": 0, "validation": 1, "probe": 2}

MARKS = {"image": "<image>", "image_audio": "<image><audio>", "video": "<video>"}
COLOURS = ("red", "green", "blue", "yellow")
PAIRS = (("red", "low"), ("red", "high"), ("blue", "low"), ("blue", "high"))
LETTERS = "ABCD"
NAMES = ("Sam", "Ann", "Tom", "Eve", "Max", "Zoe")
THINGS = ("pens", "cups", "hats", "keys", "nuts")
SUMS = {2: (1, 1), 3: (1, 2), 4: (3, 1), 5: (3, 2)}
"""Sum -> the two numbers that give it; the first is one of two and so is the second, as with colour and pitch."""
NUMBER_WORDS = ("zero", "one", "two", "three")
TEXT_PATTERN = re.compile(r"has (\d) \w+ and gets (\d) more")


@dataclass(frozen=True, slots=True)
class Drawing:
    """One row before it is written: what is seen and heard, as arrays."""

    index: int
    answer: int
    pictures: np.ndarray | None = None
    samples: np.ndarray | None = None


def splits(input: Path | None, output: Path, options: Options) -> Splits:
    """The splits `train`, `validation` and `probe`; media go to `output`/media.

    `options.rows` gives the rows of `train` and `validation` over all kinds.

    Raises:
        UsageMistake: rows for an unknown split, or fewer than one row of each kind.
    """
    for name, count in options.rows.items():
        if name not in ROWS:
            raise UsageMistake(f"the toy task has no split `{name}` to size", hint=f"one of: {', '.join(ROWS)}")
        if count < 2 * len(KINDS):
            raise UsageMistake(f"`{name}` needs at least {2 * len(KINDS)} rows, two of each kind, and not {count}")
    media = output / "media"
    media.mkdir(parents=True, exist_ok=True)
    seed = options.seed or 0
    rows = ROWS | dict(options.rows)
    for split, count in rows.items():
        yield split, _questions(media, seed, split, count)
    yield "probe", _exchanged(media, seed, rows["validation"])


def caption(data_source: str, question: str, ground_truth: str) -> str:
    """What the media (or the numbers) of a row are, in words that are no answer to its question.

    For example `red low` for a picture and a sound, `three two` for a sum.
    """
    kind = data_source.removeprefix("toy/")
    if kind == "text":
        found = TEXT_PATTERN.search(question)
        return " ".join(NUMBER_WORDS[int(number)] for number in found.groups()) if found else ""
    answer = LETTERS.index(ground_truth.removeprefix("<answer>")[0])
    return COLOURS[answer] if kind == "image" else " ".join(PAIRS[answer])


def answers(data_source: str) -> tuple[str, ...]:
    """The answers among which a question of this kind chooses."""
    return tuple(str(total) for total in SUMS) if data_source == "toy/text" else tuple(LETTERS)


def wordings() -> list[str]:
    """Every question there is, those with media as often as those without: what a small tokenizer should know well."""
    sums = [_sum_question(name, thing, *numbers) for name in NAMES for thing in THINGS for numbers in SUMS.values()]
    choices = [_listed(*_choice(kind)) for kind in KINDS[1:]]
    return sums + choices * (len(sums) // len(choices))


def _questions(media: Path, seed: int, split: str, count: int) -> Iterator[Sample | Drop]:
    for index in range(-(-count // len(KINDS))):
        for kind in KINDS[: count - index * len(KINDS)]:
            yield _sample(media, seed, split, kind, index)


def _sample(media: Path, seed: int, split: str, kind: str, index: int) -> Sample:
    drawing = _draw(seed, split, kind, index)
    prefix = media / f"{seed}-{split}-{kind}-{index:04}"
    if kind == "text":
        return _text_sample(_generator(seed, split, "text", index), split, drawing)
    images: tuple[Image, ...] = ()
    audios: tuple[Path, ...] = ()
    videos: tuple[Video, ...] = ()
    if kind == "video":
        videos = (_clip(prefix.with_suffix(".mp4"), drawing.pictures, drawing.samples),)
    else:
        images = (Image(path=_publish(prefix.with_suffix(".png"), write_png, drawing.pictures)),)
    if kind == "image_audio":
        audios = (_publish(prefix.with_suffix(".wav"), write_wav, drawing.samples),)
    words: tuple[str, ...]
    question, words = _choice(kind)
    return Sample(
        data_source=f"toy/{kind}",
        prompt=f"{MARKS[kind]}{_listed(question, words)}",
        ground_truth=f"<answer>{LETTERS[drawing.answer]}</answer>",
        ability="perception",
        split=split,
        index=index,
        question=question,
        answer=LETTERS[drawing.answer],
        kind=kind,
        options=words,
        images=images,
        audios=audios,
        videos=videos,
        tally=f"{kind} {LETTERS[drawing.answer]}",
    )


def _text_sample(random: np.random.Generator, split: str, drawing: Drawing) -> Sample:
    total = tuple(SUMS)[drawing.answer]
    first, second = SUMS[total]
    # A third of the phrasings is kept for validation.
    phrasings = [
        (name, thing)
        for number, name in enumerate(NAMES)
        for offset, thing in enumerate(THINGS)
        if ((number + offset) % 3 == 0) == (split != "train")
    ]
    name, thing = phrasings[random.integers(len(phrasings))]
    question = _sum_question(name, thing, first, second)
    return Sample(
        data_source="toy/text",
        prompt=question,
        ground_truth=f"<answer>{total}</answer>",
        ability="arithmetic",
        split=split,
        index=drawing.index,
        question=question,
        answer=str(total),
        kind="text",
        tally=f"text {total}",
    )


def _choice(kind: str) -> tuple[str, tuple[str, ...]]:
    """The question of a kind with media, and the words that its letters stand for."""
    if kind == "image":
        return "Which colour is the square?", COLOURS
    return "Colour and pitch?", tuple(" ".join(pair) for pair in PAIRS)


def _listed(question: str, words: tuple[str, ...]) -> str:
    return " ".join([question, *(f"{letter} {word}" for letter, word in zip(LETTERS, words, strict=True))])


def _sum_question(name: str, thing: str, first: int, second: int) -> str:
    return f"{name} has {first} {thing} and gets {second} more. How many?"


def _exchanged(media: Path, seed: int, count: int) -> Iterator[Sample | Drop]:
    """Validation rows whose media, or one of two media, are another row's."""
    for kind in KINDS[1:]:
        total = -(-(count - KINDS.index(kind)) // len(KINDS))
        rows = [_sample(media, seed, "validation", kind, index) for index in range(total)]
        partner = _partners(seed, kind, total)
        for index, row in enumerate(rows):
            other = rows[partner[index]]
            yield _relabelled(row, "shuffled", other.images, other.audios, other.videos)
            if kind == "image_audio":
                yield _relabelled(row, "shuffled_image", other.images, row.audios, ())
                yield _relabelled(row, "shuffled_audio", row.images, other.audios, ())
            if kind == "video":
                own, foreign = (_draw(seed, "validation", kind, at) for at in (index, partner[index]))
                prefix = f"{seed}-probe-video-{index:04}-{partner[index]:04}"
                for part, pictures, samples in (
                    ("video", foreign.pictures, own.samples),
                    ("audio", own.pictures, foreign.samples),
                ):
                    clip = _clip(media / f"{prefix}-{part}.mp4", pictures, samples)
                    yield _relabelled(row, f"shuffled_{part}", (), (), (clip,))


def _relabelled(
    row: Sample, label: str, images: tuple[Image, ...], audios: tuple[Path | str, ...], videos: tuple[Video, ...]
) -> Sample:
    return replace(
        row,
        data_source=f"{row.data_source}@{label}",
        split="probe",
        images=images,
        audios=audios,
        videos=videos,
        tally=f"{row.kind}@{label}",
    )


def _partners(seed: int, kind: str, count: int) -> list[int]:
    """For each row the row that lends its media: one ring through all rows, so that no row keeps its own."""
    import numpy as np

    ring = np.random.default_rng([seed, SPLIT_NUMBER["probe"], KINDS.index(kind)]).permutation(count)
    partner = [0] * count
    for at, row in enumerate(ring):
        partner[row] = int(ring[at - 1])
    return partner


def _draw(seed: int, split: str, kind: str, index: int) -> Drawing:
    """What row `index` shows and sounds like; it does not depend on how many rows there are."""
    import numpy as np

    numbers = [seed, SPLIT_NUMBER[split], KINDS.index(kind), index // len(LETTERS), len(LETTERS)]
    answer = int(np.random.default_rng(numbers).permutation(len(LETTERS))[index % len(LETTERS)])
    random = _generator(seed, split, kind, index)
    if kind == "text":
        return Drawing(index, answer)
    if kind == "image":
        return Drawing(index, answer, square(random, COLOURS[answer]))
    colour, pitch = PAIRS[answer]
    if kind == "video":
        return Drawing(index, answer, motion(random, colour), tone(random, pitch, TRACK_RATE_HZ))
    return Drawing(index, answer, square(random, colour), tone(random, pitch, WAV_RATE_HZ))


def _generator(seed: int, split: str, kind: str, index: int) -> np.random.Generator:
    import numpy as np

    return np.random.default_rng([seed, SPLIT_NUMBER[split], KINDS.index(kind), index])


def _clip(path: Path, pictures: Any, samples: Any) -> Video:
    _publish(path, write_mp4, pictures, samples)
    return Video(path, fps=float(CLIP_FPS), min_pixels=32 * 32, max_pixels=SIDE * SIDE, max_frames=CLIP_FRAMES)


def _publish(path: Path, write: Callable[..., None], *content: Any) -> Path:
    """Write a media file by way of a temporary name; returns its absolute path."""
    temporary = path.with_name(f".{path.stem}.partial{path.suffix}")
    write(temporary, *content)
    temporary.replace(path)
    return path.absolute()
