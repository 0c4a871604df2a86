"""The data sets that omnirl converts, by name. A source's module is imported only when it is used.

A source module has one function::

    def splits(input: Path | None, output: Path, options: Options) -> Iterator[tuple[str, Iterator[Row | Drop]]]

It yields each split's name (the parquet's path below `output` without `.parquet`) with the stream of its records. A
stream is read to its end before the next split is asked for. A source checks what a record says; whether the media
files that it names are there and decode is judged afterwards, for all sources in one way. A source that makes its own
media writes them below `output`, which exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, cast

from omnirl.data.sample import Drop, Row
from omnirl.errors import EnvironmentLacks, UsageMistake

Splits = Iterator[tuple[str, Iterator[Row | Drop]]]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How frames are taken from a video: frames a second, pixels per frame after resizing, and most frames.

    The pixel bounds are 32 and 128 squares of 28 x 28, as NExT-QA's recipe documents them.
    """

    fps: float = 1.0
    min_pixels: int = 32 * 28 * 28
    max_pixels: int = 128 * 28 * 28
    max_frames: int = 32


@dataclass(frozen=True, slots=True)
class Options:
    """What the user may vary in a conversion.

    `seed` None is the source's own; `rows` overrides the rows per split of a source that makes its own data. With
    `allow_outside` the names and links of media may lead out of the input folder. `video` is how videos are sampled.
    """

    seed: int | None = None
    rows: Mapping[str, int] = field(default_factory=dict)
    allow_outside: bool = False
    video: Sampling = Sampling()


class SplitsFunction(Protocol):
    def __call__(self, input: Path | None, output: Path, options: Options) -> Splits: ...


@dataclass(frozen=True, slots=True)
class Source:
    """A data set by name.

    `layout` says what its input folder holds, or is empty when the source makes its own data; `reads` are the patterns
    of the files in it, media apart, that decide what comes out.
    """

    name: str
    summary: str
    module: str
    layout: str = ""
    reads: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    """Modules beyond the base install, which the extra `train` brings."""

    @property
    def needs_input(self) -> bool:
        return bool(self.layout)

    def load(self) -> SplitsFunction:
        """The source's `splits`; raises EnvironmentLacks when a package that it needs is not installed."""
        absent = [name for name in self.packages if find_spec(name) is None]
        if absent:
            names = ", ".join(f"`{name}`" for name in absent)
            raise EnvironmentLacks(f"making `{self.name}` data needs {names}", hint="pip install 'omnirl[train]'")
        return cast(SplitsFunction, import_module(self.module).splits)


SOURCES = {
    source.name: source
    for source in (
        Source(
            "gsm8k",
            "school maths word problems with a number as the answer",
            "omnirl.data.sources.gsm8k",
            layout="train.jsonl and test.jsonl, or train*.parquet and test*.parquet",
            reads=("train*.jsonl", "test*.jsonl", "train*.parquet", "test*.parquet"),
        ),
        Source(
            "mmk12",
            "school mathematics and science with a picture, answered by a number, a formula or a letter",
            "omnirl.data.sources.mmk12",
            layout="train-*.parquet and test-*.parquet",
            reads=("train*.parquet", "test*.parquet"),
        ),
        Source(
            "avqa",
            "questions about a picture and a sound, with lettered options (AVQA-R1-6K)",
            "omnirl.data.sources.avqa",
            layout="AVQA_R1/train/omni_rl_format_train.json and AVQA_R1/valid/omni_rl_format_valid.json",
            reads=("train/*.json", "valid/*.json", "AVQA_R1/train/*.json", "AVQA_R1/valid/*.json"),
        ),
        Source(
            "nextqa",
            "questions about videos with their soundtracks, with five options",
            "omnirl.data.sources.nextqa",
            layout="NextQA/repo/{train.csv,val.csv,map_vid_vidorID.json} and NextQA/NExTVideo/<dir>/<id>.mp4",
            reads=("repo/*.csv", "repo/*.json", "NextQA/repo/*.csv", "NextQA/repo/*.json"),
        ),
        Source(
            "omni-preference",
            "pairs of answers about images, videos and sounds, of which one is preferred",
            "omnirl.data.sources.omni_preference",
            layout="dataset_jsonl/{image,video,audio}/final_rl_data.jsonl, rlaif-v-dataset, video-dataset, audio_files",
            # a sound is looked for by its name alone, so every file there counts
            reads=("dataset_jsonl/*/final_rl_data.jsonl", "audio_files/**/*"),
        ),
        Source(
            "toy",
            "small made-up questions about text, images, sounds and videos",
            "omnirl.data.sources.toy",
            packages=("numpy", "av", "PIL"),
        ),
    )
}


def find(name: str) -> Source:
    """The source called `name`; raises UsageMistake with the nearest names."""
    if name in SOURCES:
        return SOURCES[name]
    near = get_close_matches(name, SOURCES, n=1)
    hint = f"did you mean `{near[0]}`?" if near else f"one of: {', '.join(SOURCES)}"
    raise UsageMistake(f"no data source is called `{name}`", hint=hint, where="SOURCE")
