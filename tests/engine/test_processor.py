"""The engine's processor gives what the stock one gives, from a cache, and positions like the Thinker's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoProcessor, Qwen3OmniMoeProcessor
from verl.utils.model import extract_multi_modal_inputs
from verl.utils.tokenizer import build_multimodal_processor_inputs

from omnirl.engine.processor import OmniProcessor
from tests.engine.conftest import KINDS

FEATURES = {
    "text": set(),
    "image": {"pixel_values", "image_grid_thw"},
    "image_audio": {"pixel_values", "image_grid_thw", "input_features", "feature_attention_mask"},
    "video": {
        *("pixel_values_videos", "video_grid_thw", "video_second_per_grid"),
        *("input_features", "feature_attention_mask"),
    },
}
TOKENS = {"input_ids", "attention_mask", "mm_token_type_ids"}


@pytest.fixture(scope="module")
def stock(checkpoint: Path) -> Any:
    return Qwen3OmniMoeProcessor.from_pretrained(checkpoint)


def call(processor: Any, question: dict[str, Any]) -> dict[str, torch.Tensor]:
    return dict(build_multimodal_processor_inputs(processor, **question))


@pytest.mark.parametrize("kind", KINDS)
def test_equal_to_the_stock_processor(processor: Any, stock: Any, ask, rows, kind: str) -> None:
    for row in rows[kind][:2]:
        question = ask(row)
        ours, theirs = call(processor, question), call(stock, question)
        assert set(ours) - TOKENS == FEATURES[kind]
        assert set(theirs) - set(ours) <= {"mm_token_type_ids"}
        for name in set(ours) - {"video_second_per_grid"}:
            assert ours[name].dtype == theirs[name].dtype
            assert torch.equal(ours[name], theirs[name]), name


def test_the_time_of_a_video_is_that_of_the_frames_taken(processor: Any, ask, rows) -> None:
    question = ask(rows["video"][0])
    ((frames, metadata),) = question["videos"]
    # Two frames of eight a second, taken every 3rd: 8 / 3 a second.
    metadata = {**metadata, "fps": 8.0, "frames_indices": [0, 3], "total_num_frames": 4}
    question["videos"] = [(frames[[0, 3]], metadata)]
    inputs = call(processor, question)
    assert inputs["video_second_per_grid"].tolist() == pytest.approx([2 / (8 / 3)])
    assert inputs["video_grid_thw"].tolist() == [[1, 4, 4]]


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_second_call_comes_from_the_cache(checkpoint: Path, ask, rows, kind: str, monkeypatch) -> None:
    from omnirl.engine.cache import BoundedCache
    from omnirl.engine.processor import load_processor

    monkeypatch.setattr(OmniProcessor, "_features", BoundedCache(2**24))
    fresh = load_processor(str(checkpoint))
    first = call(fresh, ask(rows[kind][0]))
    assert len(fresh._features) == 1
    # Decoded anew: equal content, other objects.
    second = call(fresh, ask(rows[kind][0]))
    assert len(fresh._features) == 1
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name])
        if name not in TOKENS:
            assert second[name].data_ptr() == first[name].data_ptr()
    call(fresh, ask(rows[kind][1]))
    assert len(fresh._features) == 2


def test_the_text_around_media_is_free(processor: Any, stock: Any, ask, rows) -> None:
    question = ask(rows["image"][0])
    call(processor, question)
    question["text"] = ["more " + question["text"][0] + " and more"]
    assert torch.equal(call(processor, question)["input_ids"], call(stock, question)["input_ids"])


@pytest.mark.parametrize("kind", KINDS)
def test_positions_are_the_thinkers(processor: Any, thinker: Any, ask, rows, kind: str) -> None:
    inputs = call(processor, ask(rows[kind][0]))
    ids = inputs["input_ids"]
    arguments = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "image_grid_thw": inputs.get("image_grid_thw"),
        "video_grid_thw": inputs.get("video_grid_thw"),
        **processor.get_rope_index_kwargs(inputs),
    }
    ours, deltas = processor.get_rope_index(**arguments, mm_token_type_ids=None)
    theirs, their_deltas = thinker.get_rope_index(**arguments)
    assert ours.shape == (3, 1, ids.shape[1])
    assert ours.dtype == torch.int64
    assert torch.equal(ours, theirs.long())
    assert torch.equal(deltas, their_deltas)
    flat = torch.arange(ids.shape[1]).expand(3, 1, -1)
    assert torch.equal(ours, flat) == (kind == "text")


def test_a_batch_of_every_kind_has_the_positions_of_each_alone(processor: Any, encode, rows) -> None:
    prompts = [encode(rows[kind][0]) for kind in KINDS]
    width = max(len(prompt.token_ids) for prompt in prompts)
    ids = torch.full((len(prompts), width), processor.tokenizer.pad_token_id)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt.token_ids) :] = torch.tensor(prompt.token_ids)
        mask[row, width - len(prompt.token_ids) :] = 1
    joined = extract_multi_modal_inputs([prompt.features for prompt in prompts])
    found, _ = processor.get_rope_index(
        input_ids=ids,
        attention_mask=mask,
        image_grid_thw=joined["image_grid_thw"],
        video_grid_thw=joined["video_grid_thw"],
        **processor.get_rope_index_kwargs(joined),
    )
    for row, prompt in enumerate(prompts):
        assert torch.equal(found[:, row, mask[row].bool()], prompt.positions[1:])


def test_saved_it_is_a_stock_processor(processor: Any, ask, rows, tmp_path: Path) -> None:
    processor.save_pretrained(tmp_path)
    loaded = AutoProcessor.from_pretrained(tmp_path)
    assert type(loaded) is Qwen3OmniMoeProcessor
    question = ask(rows["image_audio"][0])
    assert torch.equal(call(loaded, question)["input_ids"], call(processor, question)["input_ids"])


def test_verls_model_configuration_carries_it(config: Any) -> None:
    from verl.utils.config import omega_conf_to_dataclass

    made = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    assert type(made).__name__ == "OmniModelConfig"
    assert made.model_type == "omni_model"
    assert isinstance(made.processor, OmniProcessor)
    assert made.processor.chat_template == made.tokenizer.chat_template
