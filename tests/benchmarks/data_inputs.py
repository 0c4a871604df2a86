"""Made-up inputs for the converters, shaped like the real ones: MMK12 shards, AVQA files with media, GSM8K lines.

The same arguments give the same bytes. One record in a hundred is faulty, as in data that were collected by hand.
"""

from __future__ import annotations

import io
import json
import math
import struct
import wave
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

_SAID = """
circle triangle angle slope area force mass current reaction cell membrane graph figure point line given find shown
between parallel constant value ratio length speed voltage volume surface tangent axis equal total half
"""
WORDS = _SAID.split()
SHARD_ROWS = 2500
GROUP_ROWS = 100
FAULTY = 0.01
PNG_SHARE = 0.7
DRAWN = 64
"""Pictures and sounds that are made; the names beyond them are links to these, so that many take no room."""


def mmk12(folder: Path, rows: dict[str, int], seed: int = 0) -> None:
    """Parquet shards with pictures of 30 to 100 kB inside, no two of them alike."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng([seed, 1])
    pictures = [_picture(rng) for _ in range(DRAWN)]
    schema = pa.schema(
        {
            **dict.fromkeys(("id", "question", "answer", "subject"), pa.string()),
            "image": pa.struct({"bytes": pa.binary(), "path": pa.string()}),
        }
    )
    for split, count in rows.items():
        shards = max(1, math.ceil(count / SHARD_ROWS))
        for shard in range(shards):
            numbers = range(shard * SHARD_ROWS, min(count, (shard + 1) * SHARD_ROWS))
            with pq.ParquetWriter(folder / f"{split}-{shard:05}-of-{shards:05}.parquet", schema) as writer:
                for start in range(numbers.start, numbers.stop, GROUP_ROWS):
                    group = range(start, min(start + GROUP_ROWS, numbers.stop))
                    records = [_problem(rng, f"{split}-{number}", pictures) for number in group]
                    writer.write_table(pa.Table.from_pylist(records, schema=schema))


def avqa(folder: Path, rows: dict[str, int], seed: int = 0) -> None:
    """The folders `train` and `valid` with a JSON array each; every record has a PNG and a short WAV of its own."""
    rng = np.random.default_rng([seed, 2])
    for split, count in rows.items():
        images, audios = folder / split / "images", folder / split / "audios"
        images.mkdir(parents=True)
        audios.mkdir()
        for number in range(count):
            image, audio = images / f"{number}.png", audios / f"{number}.wav"
            if number < DRAWN:
                image.write_bytes(_encoded(_drawn(rng, 224, 224, 0.1), "PNG"))
                _write_sound(audio, rng)
            else:
                image.hardlink_to(images / f"{number % DRAWN}.png")
                audio.hardlink_to(audios / f"{number % DRAWN}.wav")
        with (folder / split / f"omni_rl_format_{split}.json").open("w", encoding="utf-8") as file:
            for number in range(count):
                file.write(("[\n" if number == 0 else ",\n") + json.dumps(_heard(rng, number)))
            file.write("\n]\n")


def gsm8k(folder: Path, rows: dict[str, int], seed: int = 0) -> None:
    """JSON Lines of word problems whose answers end in `#### NUMBER`."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng([seed, 3])
    for split, count in rows.items():
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(_word_problem(rng)) + "\n" for _ in range(count))


def _problem(rng: np.random.Generator, name: str, pictures: list[tuple[str, bytes]]) -> dict[str, Any]:
    kind, encoded = pictures[rng.integers(len(pictures))]
    question, answer = _sentences(rng, 3) + f" $AB={rng.integers(2, 30)}$.", _answer(rng)
    if len(answer) == 1 and answer.isalpha():
        question += "".join(f"\n{letter}. ${rng.integers(2, 90)}{letter.lower()}$" for letter in "ABCD")
    encoded = _marked(kind, encoded, name)
    if rng.random() < FAULTY:
        question, answer, encoded = ((" ", answer, encoded), (question, "", encoded), (question, answer, encoded[:50]))[
            rng.integers(3)
        ]
    return {
        "id": name,
        "question": question,
        "answer": answer,
        "subject": ("math", "physics", "chemistry", "biology")[rng.integers(4)],
        "image": {"bytes": encoded, "path": f"{name}.{kind.lower()}"},
    }


def _answer(rng: np.random.Generator) -> str:
    draw, first, second = rng.random(), rng.integers(2, 60), rng.integers(2, 12)
    if draw < 0.4:
        return "ABCD"[rng.integers(4)]
    if draw < 0.7:
        return str(first) if draw < 0.6 else f"{first}.{second}"
    return (f"$\\frac{{{first}}}{{{second}}}$", f"${first}\\sqrt{{{second}}}$", f"{first} or {second}")[rng.integers(3)]


def _heard(rng: np.random.Generator, number: int) -> dict[str, Any]:
    record: dict[str, Any] = {
        "problem_id": number,
        "problem": _sentences(rng, 1),
        "data_type": "image_audio",
        "problem_type": "multiple choice",
        "options": [f"{letter}. {rng.choice(WORDS)} {number + place}" for place, letter in enumerate("ABCD")],
        "solution": f"<answer>{'ABCD'[rng.integers(4)]}</answer>",
        "path": {"image": f"images/{number}.png", "audio": f"audios/{number}.wav"},
        "data_source": "AVQA",
    }
    if rng.random() < FAULTY:
        faults: tuple[dict[str, Any], ...] = (
            {"problem": ""},
            {"solution": "<answer>Z</answer>"},
            {"data_type": "text"},
        )
        record |= faults[rng.integers(3)]
    return record


def _word_problem(rng: np.random.Generator) -> dict[str, str]:
    factors = rng.integers(2, 90, (int(rng.integers(2, 6)), 2))
    steps = [f"{_sentences(rng, 1)} {a}*{b}=<<{a}*{b}={a * b}>>{a * b}" for a, b in factors]
    answer = "many" if rng.random() < FAULTY else f"{rng.integers(1, 9999):,}"
    return {"question": _sentences(rng, 3), "answer": "\n".join([*steps, f"#### {answer}"])}


def _sentences(rng: np.random.Generator, count: int) -> str:
    return " ".join(" ".join(rng.choice(WORDS, rng.integers(8, 18))).capitalize() + "." for _ in range(count))


def _picture(rng: np.random.Generator) -> tuple[str, bytes]:
    """An encoded drawing of 30 to 100 kB, and its format."""
    while True:
        kind = "PNG" if rng.random() < PNG_SHARE else "JPEG"
        drawn = _drawn(rng, int(rng.integers(220, 420)), int(rng.integers(300, 640)), rng.uniform(0.05, 0.25))
        encoded = _encoded(drawn, kind)
        if 30_000 <= len(encoded) <= 100_000:
            return kind, encoded


def _drawn(rng: np.random.Generator, height: int, width: int, noisy: float) -> Image.Image:
    """Boxes on paper, part of which is noise: that is what steers the size of the file."""
    paper = np.full((height, width, 3), 245, np.uint8)
    band = max(1, int(height * noisy))
    paper[:band] = rng.integers(190, 255, (band, width, 3), dtype=np.uint8)
    for _ in range(10):
        top, left = rng.integers(0, height - 9), rng.integers(0, width - 9)
        paper[top : top + int(rng.integers(3, height)), left : left + 3] = rng.integers(0, 90)
    return Image.fromarray(paper)


def _encoded(picture: Image.Image, kind: str) -> bytes:
    held = io.BytesIO()
    options: dict[str, Any] = {"compress_level": 1} if kind == "PNG" else {"quality": 97, "subsampling": 0}
    picture.save(held, kind, **options)
    return held.getvalue()


def _marked(kind: str, encoded: bytes, name: str) -> bytes:
    """The same picture with a comment in it."""
    said = name.encode()
    if kind == "JPEG":
        return encoded[:2] + b"\xff\xfe" + struct.pack(">H", len(said) + 2) + said + encoded[2:]
    chunk = b"tEXtid\0" + said
    whole = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    end = encoded.rindex(b"IEND") - 4
    return encoded[:end] + whole + encoded[end:]


def _write_sound(path: Path, rng: np.random.Generator) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes((rng.standard_normal(16_000) * 3000).astype("<i2").tobytes())


def pictures_in(paths: list[Path], id_path: str) -> Iterator[tuple[str, bytes]]:
    """Every row's id and the bytes of its picture, whether it stands in `image` or first in `images`.

    `id_path` is `id`, or `extra_info.id`.
    """
    for path in paths:
        with pq.ParquetFile(path) as file:
            column = "image" if "image" in file.schema_arrow.names else "images"
            for batch in file.iter_batches(64, columns=[id_path, column]):
                for row in batch.to_pylist():
                    image = row[column] if column == "image" else row[column][0]
                    yield row["id"] if id_path == "id" else row["extra_info"]["id"], image["bytes"]
