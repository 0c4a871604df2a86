"""verl's dataset for rows with images, audio and video."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig
from verl.utils.dataset.rl_dataset import RLHFDataset

from omnirl.engine import media
from omnirl.engine.cache import BoundedCache

_DECODED_CACHE_BYTES = 512 * 2**20
_decoded = BoundedCache(_DECODED_CACHE_BYTES)


class OmniDataset(RLHFDataset):
    """Rows become chat messages; media are decoded once per process and shared by the answers of a group."""

    def _build_messages(self, example: dict[str, Any], key: str) -> list[media.Message]:
        row = {**example, "prompt": example[key]}
        return media.messages(row, soundtrack=bool(self.config.get("soundtrack", False)))

    @classmethod
    def _process_multi_modal_info(
        cls, messages: list[media.Message], image_patch_size: int, config: DictConfig
    ) -> tuple[list[Any] | None, list[media.Video] | None, list[Any] | None]:
        """Decode the media of one prompt: RGB images, (frames, metadata) videos, 16 kHz mono audio.

        Raises:
            InvalidInput: a file is missing or does not decode; verl then counts the prompt as failed.
        """
        return _decoded.get(_media_key(messages), lambda: media.load(messages))


def _media_key(messages: list[media.Message]) -> str:
    """Identifies what is to be decoded: paths and settings, and the bytes of inline images."""
    items = [
        sorted(item.items())
        for message in messages
        if not isinstance(message["content"], str)
        for item in message["content"]
        if item["type"] != "text"
    ]
    return repr(items)
