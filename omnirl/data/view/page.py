"""Rows as one HTML page that stands alone: media inside it, no script, nothing fetched, everything escaped."""

from __future__ import annotations

import base64
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omnirl.data.headers import image_format
from omnirl.data.view.show import Item, Shown
from omnirl.errors import EnvironmentLacks
from omnirl.files import write_text

ITEM_BYTES = 8 << 20
"""Largest media item that is put into the page."""
PAGE_BYTES = 64 << 20
"""What all media of a page come to at most."""

_TYPES = (
    (0, b"RIFF", "audio/wav"),
    (0, b"fLaC", "audio/flac"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"\xff\xfb", "audio/mpeg"),
    (0, b"\xff\xf3", "audio/mpeg"),
    (0, b"\xff\xf1", "audio/aac"),
    (0, b"OggS", "audio/ogg"),
    (0, b"\x1a\x45\xdf\xa3", "video/webm"),
    (4, b"ftyp", "video/mp4"),
)


@dataclass(frozen=True, slots=True)
class _Figure:
    """One media item as the template takes it; `uri` is empty for one that is only named."""

    kind: str
    name: str
    said: str
    fault: str
    uri: str


def write(output: Path, rows: Iterable[Shown], *, title: str, item_bytes: int = ITEM_BYTES) -> int:
    """Write the page, by atomic rename; returns how many rows are on it.

    Media of more than `item_bytes`, and those beyond what a page may hold, are named with their size.

    Raises:
        EnvironmentLacks: `output` cannot be written, or jinja2 is not installed.
    """
    if find_spec("jinja2") is None:
        raise EnvironmentLacks("a page needs `jinja2`", hint="pip install jinja2")
    from jinja2 import Environment, StrictUndefined

    room = [PAGE_BYTES]
    shown = [_fields(row, item_bytes, room) for row in rows]
    source = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(source)
    numbers = [row["number"] for row in shown]
    summary = (
        f"rows {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"row {numbers[0]}" if numbers else "no rows"
    )
    write_text(output, template.render(title=title, summary=summary, rows=shown))
    return len(shown)


def _fields(row: Shown, item_bytes: int, room: list[int]) -> dict[str, Any]:
    return {
        "number": row.number,
        "data_source": row.data_source,
        "messages": row.messages,
        "options": row.options,
        "label": row.label,
        "candidates": row.candidates,
        "rest": row.rest,
        "media": [_figure(item, item_bytes, room) for item in row.media],
    }


def _figure(item: Item, item_bytes: int, room: list[int]) -> _Figure:
    name = "in the row" if item.path is None else str(item.path)
    said = ", ".join(said_of(item))
    data = None if item.fault else _bytes(item, min(item_bytes, room[0]))
    if data is None:
        return _Figure(item.kind, name, said + ("" if item.fault else " · too large for this page"), item.fault, "")
    kind = _type(item.kind, data)
    if not kind:
        return _Figure(item.kind, name, said + " · not of a kind that a page can play", item.fault, "")
    room[0] -= len(data)
    return _Figure(item.kind, name, said, "", f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}")


def said_of(item: Item) -> Iterator[str]:
    """What is known of a media item, in a few words each."""
    facts = item.as_dict()
    if facts.get("width"):
        yield f"{facts['width']} x {facts['height']} pixels"
    yield from (str(facts[name]) for name in ("format", "codec") if facts.get(name))
    if facts.get("duration_s") is not None:
        yield f"{facts['duration_s']} s"
    if facts.get("rate_hz"):
        yield f"{facts['rate_hz']} Hz"
        yield f"{facts['channels']} channel{'' if facts['channels'] == 1 else 's'}"
    if facts.get("frames"):
        yield f"{facts['frames']} frames at {facts['fps']} a second"
        times = facts["sampled_times_s"]
        listed = ", ".join(map(str, times[:8])) + (f", ... {times[-1]}" if len(times) > 8 else "")
        yield f"{len(times)} taken at {facts['sampled_width']} x {facts['sampled_height']} (s: {listed})"
        sound = facts["sound"]
        yield f"sound {sound['codec']} {sound['rate_hz']} Hz" if sound else "no sound"
    if facts.get("size_bytes") is not None:
        yield f"{facts['size_bytes']} bytes"
    if facts.get("unknown"):
        yield str(facts["unknown"])


def _bytes(item: Item, most: int) -> bytes | None:
    """What the item holds; None when that is more than `most` bytes or no file."""
    if item.data is not None:
        return item.data if len(item.data) <= most else None
    assert item.path is not None
    if not stat.S_ISREG(item.path.stat().st_mode):
        return None
    with item.path.open("rb") as file:
        data = file.read(most + 1)
    return data if len(data) <= most else None


def _type(kind: str, data: bytes) -> str:
    """The MIME type by the first bytes, so that no other file of this machine gets into a page; empty for any other."""
    if kind == "image":
        found = image_format(data[:16])
        return f"image/{found}" if found else ""
    for at, mark, mime in _TYPES:
        if data[at : at + len(mark)] == mark:
            return f"{kind}/{mime.partition('/')[2]}"
    return ""
