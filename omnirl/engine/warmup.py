"""Supervised warm-up of the tiny checkpoint on the toy task.

A random model never writes a well-formed answer, so reinforcement learning would see no reward at all. The warm-up
teaches two things and not the task: the form `<answer>X</answer>`, with letters drawn by lot, and to describe in words,
on another question, what media or numbers are given. Which letter or digit answers the question is left to
reinforcement learning: with a label accuracy of 0.25, that of a draw among four answers, the labels tell nothing.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from omnirl.data import store
from omnirl.data.sources import toy
from omnirl.engine import media
from omnirl.engine.thinker import ban_media_tokens, media_token_ids
from omnirl.errors import InvalidInput
from omnirl.files import write_json

DESCRIBED = 24
ASKED = 12
"""Sequences of a step: descriptions, and task questions with labels drawn by lot."""
# Colours of a picture alone and numbers take longer than what comes with a sound, which two kinds share.
DESCRIBED_KINDS = ("text", "image", "image_audio", "video", "text", "image_audio", "image", "video")
RISING_STEPS = 5
FINAL_RATE = 0.2
"""The learning rate rises over the first steps and falls in a line to this share at the last."""
CLIP_GRAD = 1.0
FLAT_FIELDS = ("pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw", "video_second_per_grid")


@dataclass(frozen=True, slots=True)
class Lesson:
    """One row, ready for the model.

    `question` and `description` are the token ids of the two prompts, (tokens,); `features` the media of both.
    """

    question: torch.Tensor
    description: torch.Tensor
    features: dict[str, torch.Tensor]
    answer: str
    answers: tuple[str, ...]
    caption: str


def warm_up(
    model_dir: Path,
    train_parquet: Path,
    *,
    steps: int,
    learning_rate: float,
    label_accuracy: float,
    seed: int,
    threads: int = 1,
) -> dict[str, Any]:
    """Train the checkpoint in `model_dir` in place and describe it in `model_dir`/warmup.json.

    Args:
        model_dir: a checkpoint that `tiny.build` made.
        train_parquet: rows of the toy task.
        steps: optimizer steps of 36 sequences.
        label_accuracy: probability that the label of a task question is the right one, else it is one of the others
            with equal chance.
        seed: of the order of rows, labels and words.
        threads: threads of torch while it runs. The model is so small that threads wait for each other more than they
            compute: two are slower than one by far where the cores have other work.

    Returns:
        What warmup.json holds: `taught` (plain sentences), `steps`, `label_accuracy`, `seconds`, `loss` (mean negative
        log-likelihood of a token at the last step), `caption_loss` (the same of the descriptions alone).

    Raises:
        InvalidInput: the rows are not the toy task's, or a file does not decode.
    """
    from transformers import AutoProcessor, Qwen3OmniMoeForConditionalGeneration

    started = time.monotonic()
    former_threads = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        processor = AutoProcessor.from_pretrained(model_dir)
        model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(model_dir, dtype=torch.float32)
        lessons = Lessons(processor, _rows(train_parquet), random.Random(seed))
        loss, caption_loss = _train(model.thinker, lessons, steps, learning_rate, label_accuracy)
        _replace_weights(model, model_dir)
    finally:
        torch.set_num_threads(former_threads)
    report = {
        "taught": _taught(label_accuracy),
        "steps": steps,
        "label_accuracy": label_accuracy,
        "seconds": round(time.monotonic() - started, 1),
        "loss": round(loss, 4),
        "caption_loss": round(caption_loss, 4),
    }
    write_json(model_dir / "warmup.json", report)
    return report


class Lessons:
    """The rows by kind, each encoded once, when it is first drawn; `chance` draws them."""

    def __init__(self, processor: Any, rows: dict[str, list[dict[str, Any]]], chance: random.Random) -> None:
        self.processor = processor
        self.rows = rows
        self.chance = chance
        self._encoded: dict[tuple[str, int], Lesson] = {}

    def draw(self, kind: str) -> Lesson:
        number = self.chance.randrange(len(self.rows[kind]))
        if (kind, number) not in self._encoded:
            self._encoded[kind, number] = self.encode(self.rows[kind][number])
        return self._encoded[kind, number]

    def encode(self, row: dict[str, Any]) -> Lesson:
        chat = media.messages(row, soundtrack=True)
        images, videos, audios = media.load(chat)
        inputs = media.processor_inputs(self.processor, self._text(chat), images, videos, audios)
        question = inputs.pop("input_ids")[0]
        inputs.pop("attention_mask")
        truth = row["reward_model"]["ground_truth"]
        return Lesson(
            question=question,
            description=self._description(chat, question),
            features=inputs,
            answer=truth.removeprefix("<answer>").removesuffix("</answer>"),
            answers=toy.answers(row["data_source"]),
            caption=toy.caption(row["data_source"], row["extra_info"]["question"], truth),
        )

    def _text(self, chat: list[media.Message]) -> str:
        return str(self.processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False))

    def _description(self, chat: list[media.Message], question: torch.Tensor) -> torch.Tensor:
        """The prompt that asks for a description of the same media, whose tokens stand as often as in `question`."""
        content = [dict(part) for message in chat for part in message["content"]]
        for part in content:
            if part["type"] == "text":
                told = part["text"].removesuffix("How many?")
                part["text"] = "Describe." if len(content) > 1 else f"{told}Describe."
        short = self.processor.tokenizer(self._text([{"role": "user", "content": content}]))["input_ids"]
        tokenizer = self.processor.tokenizer
        pads = {
            tokenizer.convert_tokens_to_ids(getattr(tokenizer, f"{kind}_token")) for kind in ("image", "video", "audio")
        }
        runs = iter(_run_lengths(question.tolist(), pads))
        expanded = [token for one in short for token in [one] * (next(runs) if one in pads else 1)]
        return torch.tensor(expanded)


def collate(
    prompts: Sequence[torch.Tensor], features: Sequence[dict[str, torch.Tensor]], pad: int
) -> dict[str, torch.Tensor]:
    """One batch, padded on the left: `input_ids` and `attention_mask` (batch, tokens), and all media in order."""
    longest = max(map(len, prompts))
    input_ids = torch.full((len(prompts), longest), pad)
    attention_mask = torch.zeros(len(prompts), longest, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        input_ids[row, longest - len(prompt) :] = prompt
        attention_mask[row, longest - len(prompt) :] = 1
    batch = {"input_ids": input_ids, "attention_mask": attention_mask}
    for name in FLAT_FIELDS:
        if values := [one[name] for one in features if name in one]:
            batch[name] = torch.cat(values)
    if heard := [one for one in features if "input_features" in one]:
        frames = max(one["input_features"].shape[-1] for one in heard)
        for name in ("input_features", "feature_attention_mask"):
            padded = [torch.nn.functional.pad(one[name], (0, frames - one[name].shape[-1])) for one in heard]
            batch[name] = torch.cat(padded)
    return batch


def answer_log_probs(
    thinker: Any, batch: dict[str, torch.Tensor], answers: Sequence[Sequence[int]], pad: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the answers' tokens (batch, longest answer), 0 where padded; and the mask of tokens."""
    longest = max(map(len, answers))
    tokens = torch.full((len(answers), longest), pad)
    mask = torch.zeros(len(answers), longest, dtype=torch.long)
    for row, answer in enumerate(answers):
        tokens[row, : len(answer)] = torch.tensor(answer)
        mask[row, : len(answer)] = 1
    inputs = batch | {
        "input_ids": torch.cat([batch["input_ids"], tokens], 1),
        "attention_mask": torch.cat([batch["attention_mask"], mask], 1),
    }
    logits = thinker(**inputs, use_cache=False).logits[:, -longest - 1 : -1].float()
    logits = ban_media_tokens(logits, torch.tensor(media_token_ids(thinker.config)))
    return logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0] * mask, mask


def _rows(train_parquet: Path) -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = {kind: [] for kind in toy.KINDS}
    for row in store.read_rows(train_parquet):
        kind = row["data_source"].removeprefix("toy/")
        if kind not in rows:
            raise InvalidInput(
                f"the warm-up knows the toy task alone, and `{train_parquet}` has rows of `{row['data_source']}`",
                hint="set `model.tiny.warmup_steps = 0`",
            )
        rows[kind].append(row)
    if missing := [kind for kind, found in rows.items() if not found]:
        raise InvalidInput(f"`{train_parquet}` has no toy rows of the kinds {', '.join(missing)}")
    return rows


def _train(
    thinker: Any, lessons: Lessons, steps: int, learning_rate: float, label_accuracy: float
) -> tuple[float, float]:
    """Returns the mean loss of a token at the last step, over all sequences and over the descriptions."""
    tokenizer = lessons.processor.tokenizer
    pad = tokenizer.pad_token_id
    parameters = list(thinker.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    thinker.train()
    losses = torch.zeros(2)
    for step in range(steps):
        rate = learning_rate * min(1.0, (step + 1) / RISING_STEPS) * (1 - (1 - FINAL_RATE) * step / steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        described = [lessons.draw(DESCRIBED_KINDS[at % len(DESCRIBED_KINDS)]) for at in range(DESCRIBED)]
        asked = [lessons.draw(toy.KINDS[at % len(toy.KINDS)]) for at in range(ASKED)]
        prompts = [lesson.description for lesson in described] + [lesson.question for lesson in asked]
        words = [_in_any_order(lesson.caption, lessons.chance) for lesson in described]
        words += [_label(lesson, label_accuracy, lessons.chance) for lesson in asked]
        answers = [tokenizer(f"<answer>{word}</answer>{tokenizer.eos_token}")["input_ids"] for word in words]
        batch = collate(prompts, [lesson.features for lesson in described + asked], pad)
        log_probs, mask = answer_log_probs(thinker, batch, answers, pad)
        loss = -log_probs.sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, CLIP_GRAD)
        optimizer.step()
        losses = torch.stack([loss.detach(), -log_probs[:DESCRIBED].detach().sum() / mask[:DESCRIBED].sum()])
    return losses[0].item(), losses[1].item()


def _label(lesson: Lesson, accuracy: float, chance: random.Random) -> str:
    if chance.random() < accuracy:
        return lesson.answer
    return chance.choice([answer for answer in lesson.answers if answer != lesson.answer])


def _in_any_order(caption: str, chance: random.Random) -> str:
    """The words of a description shuffled, so that the first word already needs all that is given."""
    words = caption.split()
    return " ".join(chance.sample(words, len(words)))


def _run_lengths(tokens: Sequence[int], counted: set[int]) -> list[int]:
    """Lengths of the runs of equal tokens among `counted`, in order."""
    runs: list[int] = []
    before = None
    for token in tokens:
        if token in counted:
            if token == before:
                runs[-1] += 1
            else:
                runs.append(1)
        before = token
    return runs


def _replace_weights(model: Any, model_dir: Path) -> None:
    """Write the weights beside the old ones, then put them in their place in one step."""
    scratch = Path(tempfile.mkdtemp(prefix=".warmup.", dir=model_dir))
    try:
        model.save_pretrained(scratch)
        (scratch / "model.safetensors").replace(model_dir / "model.safetensors")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _taught(label_accuracy: float) -> list[str]:
    chance = abs(label_accuracy - 1 / len(toy.LETTERS)) < 1e-9
    labels = (
        "drawn by lot, so right in one case of four"
        if chance
        else f"right in {label_accuracy:.0%} of the cases and otherwise drawn by lot"
    )
    return [
        f"to write `<answer>X</answer>` and stop, with X {labels}",
        "to describe on request (`Describe.`), in words and in any order, the colour of a square, the pitch of a sound "
        "and the two numbers of a sum (`red low`, `three two`)",
    ]
