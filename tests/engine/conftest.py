"""Fixtures of the engine's tests: the tiny checkpoint, its processor and model, and toy rows as prompts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from omnirl.data import store
from tests.conftest import plain_environment

# What the engine sets before it imports verl.
os.environ |= {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "omnirl.engine.plugin", "HF_HUB_OFFLINE": "1"}

KINDS = ("text", "image", "image_audio", "video")


class _NeedsTrain(pytest.Module):
    def collect(self) -> Iterator[pytest.Item]:
        pytest.skip("needs the extra `train`", allow_module_level=True)
        yield from ()


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return None if find_spec("verl") else _NeedsTrain.from_parent(parent, path=module_path)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random checkpoint."""
    from omnirl.engine import tiny

    return tiny.build(tmp_path_factory.mktemp("checkpoint") / "model", seed=3)


@pytest.fixture(scope="session")
def processor(checkpoint: Path) -> Any:
    from omnirl.engine.processor import load_processor

    return load_processor(str(checkpoint))


def load_thinker(checkpoint: Path) -> Any:
    from transformers import AutoConfig

    from omnirl.engine.thinker import Thinker, thinker_config

    config = thinker_config(AutoConfig.from_pretrained(checkpoint))
    return Thinker.from_pretrained(checkpoint, config=config, attn_implementation="sdpa").eval()


@pytest.fixture
def new_thinker(checkpoint: Path) -> Any:
    """A Thinker that the test may change."""
    return load_thinker(checkpoint)


@pytest.fixture(scope="session")
def thinker(checkpoint: Path) -> Any:
    """A Thinker that no test changes."""
    return load_thinker(checkpoint).requires_grad_(False)


@pytest.fixture(scope="session")
def rows(toy_data: Path) -> dict[str, list[dict[str, Any]]]:
    """The toy task's training rows by kind of question."""
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for row in store.read_rows(toy_data / "train.parquet"):
        found[row["data_source"].removeprefix("toy/")].append(row)
    return found


@pytest.fixture(scope="session")
def ask(processor: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A row as the arguments of verl's processor call: expanded text and decoded media."""
    from omnirl.engine import media

    def make(row: dict[str, Any]) -> dict[str, Any]:
        chat = media.messages(row, soundtrack=True)
        images, videos, audios = media.load(chat)
        text = processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        return {"text": [text], "images": images, "videos": videos, "audio": audios}

    return make


@pytest.fixture(scope="session")
def encode(processor: Any, ask: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[dict[str, Any]], Any]:
    """A row as what the sampler takes."""
    from verl.utils.tokenizer import build_multimodal_processor_inputs

    from omnirl.engine.cache import content_key
    from omnirl.engine.rollout.sampling import Prompt

    def make(row: dict[str, Any]) -> Prompt:
        question = ask(row)
        features = dict(build_multimodal_processor_inputs(processor, **question))
        ids = features.pop("input_ids")[0].tolist()
        for name in ("attention_mask", "mm_token_type_ids"):
            features.pop(name, None)
        key = content_key(ids, question["images"], question["videos"], question["audio"])
        return Prompt(ids, positions(processor, ids, features), features, key)

    return make


def positions(processor: Any, ids: list[int], features: dict[str, Any]) -> Any:
    """(4, tokens): the plain index and the three of the Thinker, as the trainer's side builds them."""
    import torch

    row = torch.tensor([ids])
    three, _ = processor.get_rope_index(
        input_ids=row,
        attention_mask=torch.ones_like(row),
        image_grid_thw=features.get("image_grid_thw"),
        video_grid_thw=features.get("video_grid_thw"),
        **processor.get_rope_index_kwargs(features),
    )
    return torch.cat([torch.arange(len(ids)).unsqueeze(0), three[:, 0]])


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory, toy_data: Path) -> Path:
    """A run folder as `omnirl train` leaves it for the engine."""
    from omnirl.commands import _training
    from omnirl.run import record

    sets = [
        *(f'data.{key} = "{toy_data}/{name}.parquet"' for key, name in FILES.items()),
        *("batch.prompts = 8", "batch.mini_prompts = 8", "batch.group_size = 4", "train.steps = 3"),
        "rollout.max_failed_share = 0.25",
    ]
    prepared = _training.prepare(_training.Wanted("toy", "cpu", sets=tuple(sets)))
    run = record.reserve(tmp_path_factory.mktemp("runs"), "mine", stem="toy")
    _training.record(prepared, run)
    return run.path


FILES = {"train": "train", "val": "validation", "probe": "probe"}


@pytest.fixture(scope="session")
def config(run_folder: Path, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """verl's configuration of `run_folder`."""
    from omnirl.engine.wiring import compose

    recipe = json.loads((run_folder / "recipe.json").read_text())["values"]
    return compose(run_folder, recipe, checkpoint, tmp_path_factory.mktemp("ray"))


def python(script: str, *words: object, **env: str) -> Any:
    """What a script prints as JSON, run in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, words)],
        env=plain_environment(**env),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
