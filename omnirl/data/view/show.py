"""Rows as a person wants to see them: messages, options, label, and what each media item is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from omnirl.data import headers, store, tokens
from omnirl.data.checks import columns, faults
from omnirl.data.checks.preflight import media_fault
from omnirl.data.sample import PLACEHOLDERS
from omnirl.errors import InvalidInput, UsageMistake

SCHEMA = "omnirl/data-show/1"
_READ = (
    *("data_source", "prompt", "images", "audios", "videos", "ability", "reward_model", "extra_info"),
    *("chosen", "rejected", "win_score", "lose_score"),
)


@dataclass(frozen=True, slots=True)
class Item:
    """One media item of a row.

    `facts` are numbers and names to show, in order; `fault` says why there are none. `data` are the bytes of an image
    that lies in the row.
    """

    kind: Literal["image", "audio", "video"]
    path: Path | None
    facts: dict[str, Any] = field(default_factory=dict)
    fault: str = ""
    data: bytes | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "path": None if self.path is None else str(self.path),
            "size_bytes": _size(self),
            "fault": self.fault or None,
            **self.facts,
        }


@dataclass(frozen=True, slots=True)
class Shown:
    """One row. `rest` are its remaining fields by name; None and empty ones are left out."""

    number: int
    data_source: str
    messages: tuple[tuple[str, str], ...]
    label: str | None
    options: tuple[str, ...]
    candidates: dict[str, str]
    media: tuple[Item, ...]
    rest: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return {
            "row": self.number,
            "data_source": self.data_source,
            "messages": [{"role": role, "content": content} for role, content in self.messages],
            "options": list(self.options),
            "ground_truth": self.label,
            "candidates": self.candidates or None,
            "media": [item.as_dict() for item in self.media],
            "rest": self.rest,
        }


def show(path: Path, first: int, count: int) -> Iterator[Shown]:
    """`count` rows from row number `first` on, or as many as there are.

    Raises:
        InvalidInput: the file is missing or unreadable, or has columns that no row has.
        UsageMistake: there is no row `first`.
    """
    facts = store.inspect(path, required=())
    if not 0 <= first < facts.rows:
        last = facts.rows - 1
        raise UsageMistake(
            f"`{path}` has no row {first}: its rows are 0 to {last}", hint=f"--row {min(max(first, 0), last)}"
        )
    wrong = columns.misfits(path)
    if "prompt" in wrong:
        raise InvalidInput(f"`{path}`: {wrong['prompt']}", hint=columns.HINT)
    wanted = [name for name in _READ if name not in wrong]
    chosen = range(first, min(first + count, facts.rows))
    for number, values in columns.read_rows(path, wanted, chosen):
        yield _shown(number, values)


def _shown(number: int, values: Mapping[str, Any]) -> Shown:
    extra = {name: value for name, value in (values.get("extra_info") or {}).items() if value not in (None, "", [])}
    scores = {name: values[name] for name in ("win_score", "lose_score") if values.get(name) is not None}
    truth = (values.get("reward_model") or {}).get("ground_truth")
    options = extra.pop("options", [])
    return Shown(
        number,
        str(values.get("data_source") or ""),
        tuple((str(said.get("role")), said.get("content") or "") for said in values.get("prompt") or () if said),
        None if truth is None else str(truth),
        tuple(map(str, options)) if isinstance(options, list) else (),
        {name: faults.said(values[name]) for name in ("chosen", "rejected") if values.get(name) is not None},
        tuple(_item(column, item) for column in PLACEHOLDERS for item in values.get(column) or ()),
        {**({"ability": values["ability"]} if values.get("ability") else {}), **scores, **extra},
    )


def _item(column: str, item: Any) -> Item:
    kind: Any = column.removesuffix("s")
    held = faults.content(item)
    if isinstance(held, bytes):
        return _described(Item(kind, None, data=held), item)
    if not held:
        return Item(kind, None, fault="neither a path nor bytes")
    why = media_fault(held)
    one = Item(kind, Path(held), fault=why)
    return one if why else _described(one, item)


def _described(item: Item, row_item: Any) -> Item:
    absent = headers.missing()
    if absent:
        return Item(item.kind, item.path, {"unknown": f"needs {', '.join(absent)}"}, data=item.data)
    try:
        facts = _facts(item, row_item if isinstance(row_item, Mapping) else {})
    except InvalidInput as error:
        return Item(item.kind, item.path, fault=error.message, data=item.data)
    return Item(item.kind, item.path, facts, data=item.data)


def _facts(item: Item, row_item: Mapping[str, Any]) -> dict[str, Any]:
    if item.kind == "image" or item.path is None:
        picture = headers.image(item.data if item.path is None and item.data is not None else item.path or Path())
        return {"width": picture.width, "height": picture.height, "format": picture.format}
    if item.kind == "audio":
        return _sound(headers.audio(item.path))
    return _video(headers.video(item.path), tokens.sampling(row_item))


def _sound(sound: headers.Audio) -> dict[str, Any]:
    seconds = None if sound.duration_s is None else round(sound.duration_s, 3)
    return {"codec": sound.codec, "duration_s": seconds, "rate_hz": sound.rate_hz, "channels": sound.channels}


def _video(video: headers.Video, wanted: Mapping[str, float]) -> dict[str, Any]:
    taken = tokens.frame_indices(video.frames, video.fps, float(wanted["fps"]), int(wanted["max_frames"]))
    height, width = tokens.fit_frame(video.height, video.width, int(wanted["min_pixels"]), int(wanted["max_pixels"]))
    return {
        "codec": video.codec,
        "width": video.width,
        "height": video.height,
        "fps": round(video.fps, 3),
        "frames": video.frames,
        "duration_s": round(video.duration_s, 3),
        "sampled_frames": len(taken),
        "sampled_times_s": [round(time, 3) for time in tokens.moments(video.times_s, taken)],
        "sampled_width": width,
        "sampled_height": height,
        "sound": None if video.sound is None else _sound(video.sound),
    }


def _size(item: Item) -> int | None:
    if item.data is not None:
        return len(item.data)
    return item.path.stat().st_size if item.path is not None and not media_fault(str(item.path)) else None
