"""Omni-Preference records and folders for the tests of this folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omnirl.data.preference import Preference
from omnirl.data.sample import Drop
from omnirl.data.sources import Options
from omnirl.data.sources.omni_preference import splits

ROOTS = {"image": "rlaif-v-dataset", "video": "academic_source", "audio": "sounds"}
SUFFIXES = {"image": ".jpg", "video": ".mp4", "audio": ".wav"}
JUDGED = {"score_A": 3, "score_B": 8.5, "better": "B", "reasoning": "why", "final_verdict": "<answer>[[B]]</answer>"}


def prompt(path="/x", question="What is it?", one="A cat.", other="A dog.\n\nIt barks.", kind="Image") -> str:
    return (
        "You are a judge.\n### Rules\nCompare.\n### Context\n"
        f"{kind} file: {path}\nQuestion: {question}\nCandidate A: {one}\nCandidate B: {other}"
    )


def record(modality="image", name="a", judged: Any = None, content: str | None = None, **changes) -> dict[str, Any]:
    path = f"/data/{ROOTS[modality]}/{name}{SUFFIXES[modality]}"
    return {
        f"{modality}s": [path],
        "messages": [{"role": "user", "content": content or prompt(path, kind=modality.capitalize())}],
        "solution": judged if isinstance(judged, str) else json.dumps(JUDGED | (judged or {})),
    } | changes


def write(folder: Path, modality: str, records, media=()) -> Path:
    lines = folder / "dataset_jsonl" / modality / "final_rl_data.jsonl"
    lines.parent.mkdir(parents=True, exist_ok=True)
    lines.write_bytes(
        b"".join((one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n" for one in records)
    )
    places = {"image": "rlaif-v-dataset", "video": "video-dataset/academic_source", "audio": "audio_files"}
    for name in media:
        path = folder / places[modality] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return folder


def convert_all(folder: Path, **options) -> dict[str, list[Preference | Drop]]:
    return {name: list(rows) for name, rows in splits(folder, folder, Options(**options))}


def only(folder: Path, **options) -> Preference | Drop:
    ((one,),) = convert_all(folder, **options).values()
    return one


def paths_of(found) -> dict[str, set[str]]:
    return {name: {row.path.name for row in rows if isinstance(row, Preference)} for name, rows in found.items()}
