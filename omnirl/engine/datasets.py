"""verl's dataset for rows with images, audio and video."""

from __future__ import annotations

import logging
from typing import Any

from datasets import Dataset
from omegaconf import DictConfig
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.utils.tokenizer import build_multimodal_processor_inputs

from omnirl.engine import media
from omnirl.engine.cache import BoundedCache
from omnirl.engine.failures import note
from omnirl.errors import InvalidInput

_log = logging.getLogger(__name__)

_DECODED_CACHE_BYTES = 512 * 2**20
_ROW = "row"
"""Key of a media item under which the name of its row travels."""
_decoded = BoundedCache(_DECODED_CACHE_BYTES)


class OmniDataset(RLHFDataset):
    """Rows become chat messages; media are decoded once per process and shared by the answers of a group."""

    def _build_messages(self, example: dict[str, Any], key: str) -> list[media.Message]:
        name = _row_name(example)
        try:
            messages = media.messages(
                {**example, "prompt": example[key]}, soundtrack=bool(self.config.get("soundtrack", False))
            )
        except InvalidInput as error:
            raise InvalidInput(f"{name}: {error.message}", hint=error.hint) from error
        for item in _media_items(messages):
            item[_ROW] = name
        return messages

    def maybe_filter_out_long_prompts(self, dataframe: Dataset) -> Dataset:
        """Leave out prompts that are too long, if the recipe says so, and nothing else.

        verl's own filter also leaves out rows whose media do not decode. Here they stay, and fail where failures count.
        """
        if not self.filter_overlong_prompts:
            return dataframe
        # one worker is this process: a pool of one would fork it, threads and all, and may never come back
        workers = self.num_workers if self.num_workers and self.num_workers > 1 else None
        kept = dataframe.filter(self._fits, num_proc=workers)
        if len(kept) < len(dataframe):
            left_out = len(dataframe) - len(kept)
            _log.warning(f"left out {left_out} of {len(dataframe)} prompts: over {self.max_prompt_length} tokens")
        return kept

    def _fits(self, example: dict[str, Any]) -> bool:
        messages = self._build_messages(example, self.prompt_key)
        try:
            images, videos, audios = _load(messages)
        except InvalidInput as error:
            _log.warning(f"{error.message}; the prompt is kept, and fails when it is drawn")
            return True
        text = self.processor.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False, **self.apply_chat_template_kwargs
        )
        inputs = build_multimodal_processor_inputs(
            self.processor,
            text=[text],
            images=images,
            videos=videos,
            audio=audios,
            mm_processor_kwargs=self.mm_processor_kwargs,
        )
        return len(inputs["input_ids"][0]) <= self.max_prompt_length

    @classmethod
    def _process_multi_modal_info(
        cls, messages: list[media.Message], image_patch_size: int, config: DictConfig
    ) -> tuple[list[Any] | None, list[media.Video] | None, list[Any] | None]:
        """Decode the media of one prompt: RGB images, (frames, metadata) videos, 16 kHz mono audio.

        Raises:
            InvalidInput: a file is missing or does not decode, or a video has no sound and the recipe's
                `data.soundtrack` says that it is listened to. It is noted for the trainer, and the prompt fails.
        """
        try:
            return _load(messages)
        except InvalidInput as error:
            note(error.message)
            raise


def _load(messages: list[media.Message]) -> tuple[list[Any] | None, list[media.Video] | None, list[Any] | None]:
    """The media of one prompt, from the cache where they are in it; the message of InvalidInput starts with the row."""
    try:
        return _decoded.get(_media_key(messages), lambda: media.load(messages))
    except InvalidInput as error:
        row = next(item.get(_ROW, "a row") for item in _media_items(messages))
        raise InvalidInput(f"{row}: {error.message}", hint=error.hint) from error


def _row_name(example: dict[str, Any]) -> str:
    """The row as a reader of the data finds it: its source, its number and its own name, as far as it has them."""
    extra = example.get("extra_info") or {}
    words = [f"row of `{example.get('data_source')}`"]
    if extra.get("index") is not None:
        words.append(f"index {extra['index']}")
    if extra.get("id"):
        words.append(f"id `{extra['id']}`")
    return ", ".join(words)


def _media_items(messages: list[media.Message]) -> list[media.Message]:
    return [
        item
        for message in messages
        if not isinstance(message["content"], str)
        for item in message["content"]
        if item["type"] != "text"
    ]


def _media_key(messages: list[media.Message]) -> str:
    """Identifies what is to be decoded: paths and settings, and the bytes of inline images; rows may share it."""
    return repr([sorted((key, value) for key, value in item.items() if key != _ROW) for item in _media_items(messages)])
