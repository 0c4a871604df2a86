"""The one row that every converter writes: what verl reads, one declared Arrow schema for all tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

ROW_SCHEMA = "omnirl/row/1"
"""Name and version of the row; kept in the parquet's key-value metadata under `omnirl.schema`."""

PLACEHOLDERS = {"images": "<image>", "audios": "<audio>", "videos": "<video>"}
"""Media column -> the mark in the prompt's text that stands for one item of it."""

REQUIRED_COLUMNS = ("data_source", "prompt", "reward_model")
"""What a file must have to be trained on, whoever wrote it."""


@cache
def schema() -> pa.Schema:
    """The Arrow schema of a row.

    It is declared, never inferred: a file whose rows all lack images keeps the type of a file that has them, so
    files of different tasks can be read together.
    """
    import pyarrow as pa

    text = pa.string()
    return pa.schema(
        {
            "data_source": text,
            "prompt": pa.list_(pa.struct({"role": text, "content": text})),
            "images": pa.list_(pa.struct({"bytes": pa.binary(), "image": text})),
            "audios": pa.list_(text),
            "videos": pa.list_(
                pa.struct(
                    {
                        "video": text,
                        "fps": pa.float64(),
                        "min_pixels": pa.int64(),
                        "max_pixels": pa.int64(),
                        "max_frames": pa.int64(),
                    }
                )
            ),
            "ability": text,
            "reward_model": pa.struct({"style": text, "ground_truth": text}),
            "extra_info": pa.struct(
                {
                    "split": text,
                    "index": pa.int64(),
                    "id": text,
                    "kind": text,
                    "question": text,
                    "answer": text,
                    "options": pa.list_(text),
                    "details": text,
                }
            ),
        },
        metadata={"omnirl.schema": ROW_SCHEMA},
    )


Kind = Literal["image", "audio", "video", "soundtrack"]
"""What a media file must be good for; a soundtrack is the first audio stream of a video whose frames are used too."""


class Medium(NamedTuple):
    """One media item of a row: what it must be good for, and the absolute path of its file or its encoded bytes."""

    kind: Kind
    content: str | bytes


class Row(Protocol):
    """What a converter yields and a parquet file holds."""

    @property
    def prompt(self) -> str: ...

    @property
    def tally(self) -> str: ...

    @staticmethod
    def schema() -> pa.Schema: ...

    def media(self) -> tuple[Medium, ...]: ...

    def to_row(self) -> dict[str, Any]: ...

    def size_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Image:
    """One image: the encoded bytes inside the row, or the absolute path of a file."""

    path: Path | str | None = None
    data: bytes | None = None

    def content(self) -> str | bytes:
        return self.data or b"" if self.path is None else str(self.path)

    def to_row(self) -> dict[str, Any]:
        return {"bytes": self.data, "image": None if self.path is None else str(self.path)}


@dataclass(frozen=True, slots=True)
class Video:
    """One video file and how it is sampled; pixels are per frame, after resizing."""

    path: Path
    fps: float
    min_pixels: int
    max_pixels: int
    max_frames: int

    def to_row(self) -> dict[str, Any]:
        return {
            "video": str(self.path),
            "fps": self.fps,
            "min_pixels": self.min_pixels,
            "max_pixels": self.max_pixels,
            "max_frames": self.max_frames,
        }


@dataclass(frozen=True, slots=True)
class Sample:
    """One question with a checkable answer.

    `prompt` is the user's message with one placeholder per media item, in the order of the items; media paths are
    absolute. `ground_truth` is what the task's scorer compares with. `details` is a JSON text for what only one data
    set has. `tally` is the label under which the report counts this row, and `soundtrack` says that the first audio
    stream of each video is listened to; neither is stored.
    """

    data_source: str
    prompt: str
    ground_truth: str
    ability: str
    split: str
    index: int
    question: str
    answer: str = ""
    id: str = ""
    kind: str = ""
    options: tuple[str, ...] = ()
    details: str = ""
    system: str = ""
    images: tuple[Image, ...] = ()
    audios: tuple[Path | str, ...] = ()
    videos: tuple[Video, ...] = ()
    soundtrack: bool = field(default=False, compare=False)
    tally: str = field(default="", compare=False)

    @staticmethod
    def schema() -> pa.Schema:
        return schema()

    def media(self) -> tuple[Medium, ...]:
        """Every media item of the row, in the order images, audios, videos."""
        found = [Medium("image", image.content()) for image in self.images]
        found += [Medium("audio", str(path)) for path in self.audios]
        if self.videos:
            kind: Kind = "soundtrack" if self.soundtrack else "video"
            found += [Medium(kind, str(video.path)) for video in self.videos]
        return tuple(found)

    def to_row(self) -> dict[str, Any]:
        """The row as `schema()` declares it."""
        messages = [{"role": "user", "content": self.prompt}]
        if self.system:
            messages.insert(0, {"role": "system", "content": self.system})
        return {
            "data_source": self.data_source,
            "prompt": messages,
            "images": [image.to_row() for image in self.images],
            "audios": [str(path) for path in self.audios],
            "videos": [video.to_row() for video in self.videos],
            "ability": self.ability,
            "reward_model": {"style": "rule", "ground_truth": self.ground_truth},
            "extra_info": {
                "split": self.split,
                "index": self.index,
                "id": self.id,
                "kind": self.kind,
                "question": self.question,
                "answer": self.answer,
                "options": list(self.options),
                "details": self.details,
            },
        }

    def size_bytes(self) -> int:
        """About how much room the row takes in memory; what bounds a row group."""
        texts = (self.prompt, self.system, self.question, self.answer, self.details, self.ground_truth, *self.options)
        paths = len(self.images) + len(self.audios) + len(self.videos)
        size = sum(map(len, texts)) + 128 * paths + 256
        for image in self.images:
            if image.data is not None:
                size += len(image.data)
        return size


@dataclass(frozen=True, slots=True)
class Drop:
    """A record that could not become a row: a stable reason in snake_case, and where the record stands."""

    reason: str
    where: str
