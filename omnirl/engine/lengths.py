"""How many tokens each prompt has, media included, without decoding the media.

    python -m omnirl.engine.lengths < request.json

The request is one JSON object: `files` (a list of `{"path", "rows"}`, where `rows` is null or sorted row numbers),
`model` (a checkpoint folder or hub name that is on this machine, or `tiny`), `corpus` (the parquet whose prompts the
tiny tokenizer learns, or null), `soundtrack`, and `processor` (keyword arguments as in `data.processor`).

One JSON object a row goes to stdout: `{"file": n, "row": n, "text": n, "media": n}`, where `text` counts the tokens of
the words and the marks around media; or `{"file": n, "row": n, "fault": "..."}`. A request that cannot be served ends
with `{"error": "..."}` and exit code 4.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from omnirl.data import headers, tokens
from omnirl.data.checks.columns import read_rows
from omnirl.data.checks.preflight import media_fault
from omnirl.errors import Exit, InvalidInput, OmniError
from omnirl.run.processes import die_with_parent

_BATCH_ROWS = 256
_SURE_SAMPLES = 800
"""Sounds of fewer samples at 16 kHz are decoded: resamplers lose some of so few."""
_COLUMNS = ("prompt", "images", "audios", "videos")


@dataclass
class Counter:
    """Counts the tokens of rows with one processor; facts of media files are remembered by path."""

    processor: Any
    soundtrack: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    _known: dict[tuple[str, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._image = _vision(self.processor.image_processor, _options(self.options, "images_kwargs"))
        self._video = _vision(self.processor.video_processor, {})
        template = self.processor.chat_template or self.processor.tokenizer.chat_template
        self.processor.chat_template = template

    def count(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """For each row `{"text": tokens, "media": tokens}`, or `{"fault": why}`."""
        found: list[dict[str, Any]] = []
        texts: list[str] = []
        for row in rows:
            try:
                text, media, marks = self._prepare(row)
            except InvalidInput as error:
                found.append({"fault": error.message})
                texts.append("")
            else:
                # each medium's mark in the text is one token already
                found.append({"text": -marks, "media": media})
                texts.append(text)
        encoded = self.processor.tokenizer(texts, add_special_tokens=False, return_attention_mask=False)["input_ids"]
        for outcome, ids in zip(found, encoded, strict=True):
            if "text" in outcome:
                outcome["text"] += len(ids)
            yield outcome

    def _prepare(self, row: Mapping[str, Any]) -> tuple[str, int, int]:
        """The text as the chat template writes it, the tokens of its media, and how many media there are."""
        from omnirl.engine import media

        chat = media.messages(row, soundtrack=self.soundtrack)
        items = [item for message in chat if not isinstance(message["content"], str) for item in message["content"]]
        counted = [self._item(item) for item in items if item["type"] != "text"]
        try:
            text = self.processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        except (TypeError, ValueError, KeyError) as error:
            raise InvalidInput(f"the chat template refuses the messages: {error}") from error
        return text, sum(counted), len(counted)

    def _item(self, item: Mapping[str, Any]) -> int:
        kind = item["type"]
        content = _content(item[kind])
        if isinstance(content, bytes):
            return self._image_tokens(content)
        why = media_fault(content)
        if why:
            raise InvalidInput(f"`{content}` is {why}")
        key = kind, repr((content, sorted(tokens.sampling(item).items()) if kind == "video" else ""))
        if key not in self._known:
            measure = {"image": self._image_tokens, "audio": self._audio_tokens}.get(kind)
            path = Path(content)
            self._known[key] = measure(path) if measure else self._video_tokens(path, item)
        return self._known[key]

    def _image_tokens(self, content: Path | bytes) -> int:
        facts = headers.image(content)
        try:
            return self._image.image_tokens(facts.height, facts.width)
        except ValueError as error:
            raise InvalidInput(str(error)) from error

    def _audio_tokens(self, path: Path) -> int:
        from omnirl.engine.audio import audio

        samples = headers.samples_16khz(path)
        # a resampler gives one sample more or less than the rates say, and only now and then does that matter
        possible = {_heard(samples + more) for more in (-1, 0, 1)} if samples > _SURE_SAMPLES else set()
        return possible.pop() if len(possible) == 1 else _heard(audio(path).size)

    def _video_tokens(self, path: Path, item: Mapping[str, Any]) -> int:
        facts = headers.video(path)
        wanted = tokens.sampling(item)
        taken = tokens.frame_indices(facts.frames, facts.fps, float(wanted["fps"]), int(wanted["max_frames"]))
        size = tokens.fit_frame(facts.height, facts.width, int(wanted["min_pixels"]), int(wanted["max_pixels"]))
        return self._video.video_tokens(len(taken), *size)


def _heard(samples: int) -> int:
    """Tokens of so many samples at 16 kHz."""
    from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import _get_feat_extract_output_lengths

    from omnirl.engine.audio import LEAST_SAMPLES

    return int(_get_feat_extract_output_lengths(tokens.mel_frames(max(samples, LEAST_SAMPLES))))


def load(model: str, corpus: str | None) -> Any:
    """The processor of a checkpoint on this machine; nothing is downloaded and no code of the checkpoint is run.

    Raises InvalidInput when the folder holds no processor of Qwen3-Omni.
    """
    from transformers import Qwen3OmniMoeProcessor

    if model == "tiny":
        from omnirl.engine import tiny

        return tiny.make_processor(
            tiny.make_tokenizer(tiny.toy.wordings() if corpus is None else _corpus(Path(corpus)))
        )
    folder = Path(model).expanduser()
    try:
        return Qwen3OmniMoeProcessor.from_pretrained(
            str(folder) if folder.exists() else model, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0].partition(". ")[0]
        raise InvalidInput(f"`{model}` holds no processor of Qwen3-Omni: {first[:200]}") from error


def _corpus(train: Path) -> list[str]:
    """What a run's tiny tokenizer learns from, without what is no text."""
    from omnirl.engine.main import _CORPUS_ROWS

    rows = itertools.islice(read_rows(train, ["prompt"]), _CORPUS_ROWS)
    said = [message.get("content") for _, row in rows for message in row.get("prompt") or () if message]
    return [text for text in said if isinstance(text, str)]


def serve(request: Mapping[str, Any], output: TextIO) -> None:
    """Answer one request; see the module."""
    counter = Counter(
        load(request["model"], request.get("corpus")), bool(request.get("soundtrack")), request.get("processor") or {}
    )
    for number, file in enumerate(request["files"]):
        batch: list[tuple[int, dict[str, Any]]] = []
        for numbered in read_rows(Path(file["path"]), _COLUMNS, file.get("rows")):
            batch.append(numbered)
            if len(batch) == _BATCH_ROWS:
                _answer(counter, number, batch, output)
                batch = []
        _answer(counter, number, batch, output)


def _answer(counter: Counter, file: int, batch: Sequence[tuple[int, dict[str, Any]]], output: TextIO) -> None:
    if not batch:
        return
    outcomes = counter.count([row for _, row in batch])
    for (row, _), outcome in zip(batch, outcomes, strict=True):
        output.write(json.dumps({"file": file, "row": row, **outcome}) + "\n")
    output.flush()


def _content(value: Any) -> str | bytes:
    """Where the media of one item are: encoded bytes (of an image) or a path."""
    found = value
    if isinstance(value, Mapping):
        found = next((value[key] for key in ("bytes", "image", "path") if value.get(key)), None)
    if isinstance(found, bytes) or (isinstance(found, str) and found):
        return found
    raise InvalidInput("a media item holds neither bytes nor a path")


def _options(options: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Flat processor arguments with those of a group, such as `images_kwargs`, on top."""
    return {**options, **(options.get(group) or {})}


def _vision(processor: Any, options: Mapping[str, Any]) -> tokens.Vision:
    size = options.get("size") or processor.size
    least, most = size["shortest_edge"], size["longest_edge"]
    if options.get("min_pixels") is not None and options.get("max_pixels") is not None:
        least, most = options["min_pixels"], options["max_pixels"]
    return tokens.Vision(
        processor.patch_size,
        processor.merge_size,
        processor.temporal_patch_size,
        int(least),
        int(most),
        bool(options.get("do_resize", processor.do_resize)),
    )


def main() -> int:
    """Serve the request on stdin; returns the exit code."""
    die_with_parent(os.getppid())
    # what libraries print must not get between the answers
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        serve(json.load(sys.stdin), answers)
    except (OmniError, ImportError) as error:
        answers.write(json.dumps({"error": str(error)}) + "\n")
        answers.flush()
        return Exit.ENVIRONMENT
    except BrokenPipeError:  # the check was stopped
        return Exit.NO
    return Exit.OK


if __name__ == "__main__":
    sys.exit(main())
