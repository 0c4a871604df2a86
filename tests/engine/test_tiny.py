"""The tiny checkpoint: complete, reproducible, loadable as a released one; and its supervised warm-up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from omnirl.data.sources import toy
from omnirl.engine import media, tiny, warmup
from omnirl.errors import InvalidInput


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_thinker_loads_with_every_weight(checkpoint: Path) -> None:
    from transformers import Qwen3OmniMoeThinkerForConditionalGeneration

    thinker, report = Qwen3OmniMoeThinkerForConditionalGeneration.from_pretrained(checkpoint, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    assert 500_000 < sum(parameter.numel() for parameter in thinker.parameters()) < 800_000
    assert thinker.dtype == torch.float32


def test_the_auto_classes_know_it(checkpoint: Path) -> None:
    from transformers import AutoConfig, AutoProcessor, Qwen3OmniMoeProcessor

    config = AutoConfig.from_pretrained(checkpoint)
    assert config.model_type == "qwen3_omni_moe"
    assert not config.enable_audio_output
    processor = AutoProcessor.from_pretrained(checkpoint)
    assert isinstance(processor, Qwen3OmniMoeProcessor)
    assert processor.video_processor.do_resize is False
    assert processor.chat_template


def test_every_token_id_is_in_the_vocabulary(checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    size = config["thinker_config"]["text_config"]["vocab_size"]
    ids = {name: value for part in (config, config["thinker_config"]) for name, value in part.items()}
    ids = {name: value for name, value in ids.items() if name.endswith("token_id") and value is not None}
    assert len(ids) > 10
    assert all(value < size for value in ids.values()), ids


def test_a_seed_gives_the_same_files(tmp_path: Path, checkpoint: Path) -> None:
    again = tiny.build(tmp_path / "again", seed=3)
    other = tiny.build(tmp_path / "other", seed=4)
    assert content(again) == content(checkpoint)
    assert content(other)["model.safetensors"] != content(checkpoint)["model.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "other"]


def test_building_leaves_the_callers_random_numbers_alone(tmp_path: Path) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    tiny.build(tmp_path / "model", seed=3)
    assert torch.equal(torch.rand(3), expected)


def test_an_existing_folder_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(FileExistsError):
        tiny.build(tmp_path, seed=0)
    assert content(tmp_path) == {"mine": b"mine"}


def test_toy_questions_take_few_tokens_and_all_text_survives(checkpoint: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    assert max(len(tokenizer(text)["input_ids"]) for text in toy.wordings()) <= 20
    for text in ("Natalia sold 48 clips.", "naïve Ωmega 漢字 \U0001f600", "x = \\frac{1}{2}", "<answer>5</answer>"):
        assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text
    assert len(tokenizer("<answer>B</answer><|im_end|>")["input_ids"]) == 4


def test_the_chat_template_marks_media(processor: Any) -> None:
    kinds = ("image", "video", "audio")
    text = processor.apply_chat_template(
        [{"role": "user", "content": [*({"type": kind} for kind in kinds), {"type": "text", "text": "What?"}]}],
        add_generation_prompt=True,
        tokenize=False,
    )
    assert text == (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|><|vision_start|><|video_pad|><|vision_end|>"
        "<|audio_start|><|audio_pad|><|audio_end|>What?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_mixed_batch_gives_what_each_row_gives_alone(
    thinker: Any, processor: Any, rows: dict[str, list[dict[str, Any]]]
) -> None:
    prompts, features = [], []
    for found in rows.values():
        chat = media.messages(found[0], soundtrack=True)
        text = processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        inputs = media.processor_inputs(processor, text, *media.load(chat))
        prompts.append(inputs.pop("input_ids")[0])
        inputs.pop("attention_mask")
        features.append(inputs)
    answers = [processor.tokenizer(f"<answer>{word}</answer>")["input_ids"] for word in ("5", "A", "red low", "B")]
    pad = processor.tokenizer.pad_token_id
    with torch.no_grad():
        together, mask = warmup.answer_log_probs(thinker, warmup.collate(prompts, features, pad), answers, pad)
        for row, answer in enumerate(answers):
            batch = warmup.collate(prompts[row : row + 1], features[row : row + 1], pad)
            alone, _ = warmup.answer_log_probs(thinker, batch, [answer], pad)
            assert mask[row].sum() == len(answer)
            assert torch.allclose(together[row, : len(answer)], alone[0], atol=1e-5)


def warmed(folder: Path, toy_data: Path, **settings: Any) -> dict[str, Any]:
    tiny.build(folder, seed=3)
    arguments = {"steps": 3, "learning_rate": 3e-3, "label_accuracy": 0.25, "seed": 0} | settings
    return warmup.warm_up(folder, toy_data / "train.parquet", **arguments)


@pytest.mark.slow
def test_the_warm_up_learns_and_says_what_it_taught(tmp_path: Path, toy_data: Path, checkpoint: Path) -> None:
    short = warmed(tmp_path / "short", toy_data, steps=1)
    report = warmed(tmp_path / "model", toy_data, steps=12)
    assert json.loads((tmp_path / "model" / "warmup.json").read_text()) == report
    assert report["loss"] < short["loss"] - 1
    assert any("one case of four" in sentence for sentence in report["taught"])
    before, after = content(checkpoint), content(tmp_path / "model")
    assert {name for name in after if after[name] != before.get(name)} == {"model.safetensors", "warmup.json"}


@pytest.mark.slow
def test_the_warm_up_is_reproducible(tmp_path: Path, toy_data: Path) -> None:
    weights = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        warmed(tmp_path / name, toy_data, seed=seed)
        weights.append((tmp_path / name / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.parametrize("accuracy", [0.0, 0.25, 1.0])
def test_labels_are_right_as_often_as_asked(accuracy: float) -> None:
    import random

    nothing = torch.zeros(1)
    lesson = warmup.Lesson(nothing, nothing, {}, "B", ("A", "B", "C", "D"), "green")
    chance = random.Random(0)
    labels = [warmup._label(lesson, accuracy, chance) for _ in range(2000)]
    assert labels.count("B") / len(labels) == pytest.approx(accuracy, abs=0.03)
    others = (1 - accuracy) / 3
    assert [labels.count(label) / len(labels) for label in "ACD"] == pytest.approx([others] * 3, abs=0.03)


def test_a_description_keeps_the_media_and_asks_something_else(
    checkpoint: Path, rows: dict[str, list[dict[str, Any]]]
) -> None:
    import random

    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(checkpoint)
    lessons = warmup.Lessons(processor, rows, random.Random(0))
    for kind in toy.KINDS:
        lesson = lessons.draw(kind)
        question, description = (processor.tokenizer.decode(ids) for ids in (lesson.question, lesson.description))
        for token in tiny.MEDIA_TOKENS.values():
            assert question.count(token) == description.count(token)
        assert "Describe." in description
        assert "How many?" not in description
        assert " C " not in description


def test_rows_of_another_task_are_refused(tmp_path: Path, checkpoint: Path) -> None:
    from omnirl.data import store
    from omnirl.data.sample import Sample

    store.write_parquet(tmp_path / "train.parquet", [Sample("openai/gsm8k", "1 + 1?", "2", "math", "train", 0, "")])
    with pytest.raises(InvalidInput, match="openai/gsm8k"):
        warmup.warm_up(checkpoint, tmp_path / "train.parquet", steps=1, learning_rate=1e-3, label_accuracy=0.25, seed=0)
