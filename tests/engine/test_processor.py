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
from tests.engine.clips import numbered, tone, write_clip, write_sound
from tests.engine.conftest import KINDS, positions

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


def row(text: str, **fields: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {"images": [], "audios": [], "videos": []}
    return {"prompt": [{"role": "user", "content": text}], **empty, **fields}


@pytest.mark.parametrize(("samples", "frames"), [(31 * 16_000, 3100), (16_001, 101), (1, 2)])
def test_sound_of_any_length_is_heard_to_its_end(
    processor: Any, config: Any, ask, tmp_path: Path, samples: int, frames: int
) -> None:
    """The feature extractor cuts at 30 s unless told not to; the trainer's side and the rollout's must both not."""
    from omnirl.engine.rollout.sampling import Sampling
    from omnirl.engine.rollout.server import HFServer, _Request

    path = write_sound(tmp_path / "a.wav", tone(samples / 16_000, hz=440), 16_000, "pcm_s16le")
    question = ask(row("<audio>What?", audios=[str(path)]))
    inputs = call(processor, question)
    assert inputs["feature_attention_mask"].sum(-1).tolist() == [frames]
    assert inputs["input_features"].shape == (1, 128, frames)
    tokens = (inputs["input_ids"] == processor.tokenizer.convert_tokens_to_ids(processor.audio_token)).sum()
    assert tokens == frames // 100 * 13 + (frames % 100 > 0)

    server = HFServer(config.actor_rollout_ref.rollout, config.actor_rollout_ref.model, 0)
    media = {"images": None, "videos": None, "audio": question["audio"], "mm_processor_kwargs": None}
    request = _Request(inputs["input_ids"][0].tolist(), media, Sampling(1), answer=None)  # type: ignore[arg-type]
    prompt = server._prompt(request)
    for name in ("input_features", "feature_attention_mask"):
        assert torch.equal(prompt.features[name], inputs[name])
    assert torch.equal(prompt.positions, positions(processor, request.prompt_ids, inputs))


@pytest.mark.parametrize("size", [(1, 1), (3, 3), (3, 5), (1, 200), (200, 1)])
def test_pictures_of_any_size(processor: Any, ask, tmp_path: Path, size: tuple[int, int]) -> None:
    from PIL import Image

    path = tmp_path / "small.png"
    Image.new("RGB", size, (255, 0, 0)).save(path)
    inputs = call(processor, ask(row("<image>What?", images=[{"image": str(path), "bytes": None}])))
    ((_, height, width),) = inputs["image_grid_thw"].tolist()
    assert (height > width) == (size[1] > size[0])
    tokens = (inputs["input_ids"] == processor.tokenizer.convert_tokens_to_ids(processor.image_token)).sum()
    assert tokens == height * width // 4
    red, green, blue = inputs["pixel_values"].reshape(height * width, 3, -1).mean((0, 2)).tolist()
    assert (red, green, blue) == pytest.approx((1, -1, -1), abs=1e-3)


@pytest.mark.parametrize("times_ms", [None, [*range(0, 30_000, 100), *range(30_000, 60_001, 1000)]])
def test_frames_and_soundtrack_of_a_minute_keep_time(
    processor: Any, thinker: Any, ask, tmp_path: Path, times_ms: list[int] | None
) -> None:
    """32 frames of a minute at less than one a second, at a constant and at a changing rate."""
    pictures = numbered(len(times_ms) if times_ms else 240, 32, 32)
    path = write_clip(tmp_path / "minute.mp4", pictures, rate=4, times_ms=times_ms, sound=tone(60.0))
    item = {"video": str(path), "fps": 1.0, "min_pixels": 1024, "max_pixels": 1024, "max_frames": 32}
    question = ask(row("<video>What?", videos=[item]))
    ((frames, metadata),) = question["videos"]
    assert len(frames) == 32
    inputs = call(processor, question)
    last_s = metadata["frames_indices"][-1] / metadata["fps"]
    assert last_s == pytest.approx(60 if times_ms else 59.75, abs=0.3)
    assert inputs["video_second_per_grid"].tolist() == pytest.approx([2 * last_s / 31], rel=1e-3)

    ids = inputs["input_ids"][0].tolist()
    temporal = positions(processor, ids, inputs)[1]
    theirs, _ = thinker.get_rope_index(
        input_ids=inputs["input_ids"],
        attention_mask=torch.ones_like(inputs["input_ids"]),
        video_grid_thw=inputs["video_grid_thw"],
        **processor.get_rope_index_kwargs(inputs),
    )
    assert torch.equal(temporal, theirs[0, 0].long())
    video_id, audio_id = processor.tokenizer.convert_tokens_to_ids([processor.video_token, processor.audio_token])
    shown = temporal[[at for at, token in enumerate(ids) if token == video_id]]
    heard = temporal[[at for at, token in enumerate(ids) if token == audio_id]]
    per_second = processor.config.position_id_per_seconds
    assert len(shown) == 16
    assert len(heard) >= 60 * per_second
    per_grid = inputs["video_second_per_grid"].item() * per_second
    for grid in range(16):
        second = metadata["frames_indices"][2 * grid] / metadata["fps"]
        # audio has a position for each thirteenth of a second
        sound = heard[round(second * 13)] - heard[0]
        assert abs((shown[grid] - shown[0]) - sound) <= 0.2 * per_grid + 1, second


def test_a_batch_of_clips_with_and_without_sound(processor: Any, thinker: Any, tmp_path: Path) -> None:
    """Sound is a matter of the prompt, not of the batch."""
    from omnirl.engine import media
    from omnirl.engine.rollout.sampling import Prompt, Sampler, Sampling
    from omnirl.engine.thinker import media_token_ids

    prompts = []
    for name, sound in (("heard", tone(2.0)), ("mute", None), ("click", tone(1 / 16_000))):
        path = write_clip(tmp_path / f"{name}.mp4", numbered(20, 32, 32), sound=sound)
        item = {"video": str(path), "fps": 2.0, "min_pixels": 1024, "max_pixels": 1024, "max_frames": 4}
        chat = media.messages(row("<video>What?", videos=[item]), soundtrack=sound is not None)
        images, videos, audios = media.load(chat)
        text = processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        inputs = call(processor, {"text": [text], "images": images, "videos": videos, "audio": audios})
        ids = inputs.pop("input_ids")[0].tolist()
        features = {key: value for key, value in inputs.items() if key not in TOKENS}
        assert ("input_features" in features) == (sound is not None)
        prompts.append(Prompt(ids, positions(processor, ids, features), features, name.encode()))
    tokenizer = processor.tokenizer
    sampler = Sampler(
        thinker,
        end_ids=[tokenizer.eos_token_id],
        banned_ids=media_token_ids(thinker.config),
        pad_id=tokenizer.pad_token_id,
        seed=0,
    )
    greedy = Sampling(max_tokens=4, temperature=0)
    together = sampler.sample(prompts, greedy)
    for prompt, answer in zip(prompts, together, strict=True):
        (alone,) = sampler.sample([prompt], greedy)
        assert alone.token_ids == answer.token_ids
        assert alone.log_probs == pytest.approx(answer.log_probs, abs=1e-4)
