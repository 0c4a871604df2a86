"""Small real clips under many names, and a NExT-QA folder made of them.

One clip of each flavour is encoded, then linked under every name that wants it, so hundreds take a second or two.
`python -m tests.data_prepare.clips --table val.csv --map map_vid_vidorID.json --out DIR` prints what a conversion must
come to.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import av
import numpy as np

REASONS = {
    "good": "",
    "silent": "",
    "mute": "no_audio",
    "garbage": "undecodable_audio",
    "second": "undecodable_audio",
    "sound": "no_video",
    "cut": "truncated_video",
    "headless": "undecodable_video",
    "empty": "empty_video",
    "missing": "missing_video",
}
"""Flavour of a clip -> the reason for which a video with its soundtrack is dropped; empty when it is usable.

`garbage` has an audio stream of damaged packets, `second` a sound one behind it, `sound` no pictures; `cut` ends in the
middle of its media, `headless` before its index.
"""

_FPS = 8
_RATE_HZ = 16_000


def encode(
    path: Path, *, seconds: float = 1.0, side: int = 64, pictures: bool = True, tracks: Iterable[float] = (0.3,)
) -> None:
    """Write an mp4 with its index in front: noise as pictures, and a tone for each of `tracks`, its loudness 0 to 1."""
    random = np.random.default_rng(0)
    with av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"}) as container:
        streams = []
        if pictures:
            codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
            video = container.add_stream(codec, rate=_FPS)
            video.width = video.height = side
            video.pix_fmt = "yuv420p"
            streams.append(video)
        loudness = list(tracks)
        sounds = [container.add_stream("aac", rate=_RATE_HZ, layout="mono") for _ in loudness]
        if pictures:
            for _ in range(round(seconds * _FPS)):
                picture = random.integers(0, 256, (side, side, 3), dtype=np.uint8)
                container.mux(video.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        time = np.arange(round(seconds * _RATE_HZ)) / _RATE_HZ
        for sound, loud in zip(sounds, loudness, strict=True):
            samples = (loud * np.sin(2 * np.pi * 440 * time)).astype(np.float32)
            for start in range(0, samples.size, 1024):
                piece = av.AudioFrame.from_ndarray(samples[None, start : start + 1024], format="fltp", layout="mono")
                piece.sample_rate, piece.pts = _RATE_HZ, start
                container.mux(sound.encode(piece))
        for stream in (*streams, *sounds):
            container.mux(stream.encode(None))


def make_clip(path: Path, flavour: str, **options: float) -> None:
    """Write the clip of one flavour of `REASONS`; nothing for `missing`."""
    if flavour == "missing":
        return
    if flavour == "empty":
        path.touch()
        return
    tracks = {"mute": (), "silent": (0.0,), "second": (0.3, 0.3)}.get(flavour, (0.3,))
    encode(path, pictures=flavour != "sound", tracks=tracks, **options)
    content = bytearray(path.read_bytes())
    if flavour in ("garbage", "second"):
        with av.open(str(path)) as container:
            first = container.streams.audio[0]
            places = [(packet.pos, packet.size) for packet in container.demux(first) if packet.size]
        for at, size in places:
            content[at : at + size] = b"\xff" * size
    if flavour == "cut":
        del content[content.index(b"mdat") + (len(content) - content.index(b"mdat")) // 2 :]
    if flavour == "headless":
        del content[content.index(b"moov") :]
    path.write_bytes(content)


def make_clips(root: Path, flavours: Mapping[str, str], suffix: str = ".mp4", **options: float) -> None:
    """Write `root`/NAME`suffix` for each name, `dir/id` say, in the flavour that it maps to."""
    with tempfile.TemporaryDirectory(dir=_made(root)) as folder:
        for flavour in sorted(set(flavours.values())):
            make_clip(Path(folder, f"{flavour}.mp4"), flavour, **options)
        for name, flavour in flavours.items():
            path = root / f"{name}{suffix}"
            _made(path.parent)
            if flavour != "missing":
                _link(Path(folder, f"{flavour}.mp4"), path)


def lay_out(out: Path, table: Path, names: Path, *, split: str = "validation", every: int = 10) -> dict[str, int]:
    """Make `out`/NextQA of a real table and map, where every `every`-th video is of a bad flavour; all good for 0.

    Returns how many rows end with each reason, those kept with none.
    """
    root = out / "NextQA"
    repo = _made(root / "repo")
    shutil.copyfile(table, repo / {"train": "train.csv", "validation": "val.csv"}[split])
    shutil.copyfile(names, repo / "map_vid_vidorID.json")
    mapped = json.loads(names.read_text(encoding="utf-8"))
    with table.open(encoding="utf-8-sig", newline="") as file:
        rows = Counter(row["video"] for row in csv.DictReader(file))
    bad = [flavour for flavour in REASONS if flavour != "good"]
    flavours = {
        video: bad[at // every % len(bad)] if every and at % every == 0 else "good"
        for at, video in enumerate(sorted(rows))
    }
    make_clips(root / "NExTVideo", {mapped[video]: flavour for video, flavour in flavours.items()})
    outcomes: Counter[str] = Counter()
    for video, count in rows.items():
        outcomes[REASONS[flavours[video]]] += count
    return dict(outcomes)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--map", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--every", type=int, default=10, help="0 makes no bad clip")
    words = parser.parse_args()
    json.dump(lay_out(words.out, words.table, words.map, every=words.every), sys.stdout, indent=2)


if __name__ == "__main__":
    main()
