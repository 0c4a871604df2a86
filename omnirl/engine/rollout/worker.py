"""What is added to a worker of vLLM or vllm-omni (`worker_extension_cls`). Imported in the engine's processes only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from omnirl.engine.rollout.names import checkpoint_weights
from omnirl.engine.thinker import media_token_ids, thinker_config


class OmniWorkerExtension(vLLMColocateWorkerExtension):
    """verl's extension with the Thinker's names, buffers that outlive deep sleep, and positions to compare.

    vLLM refuses an extension whose names are the worker's own, so none of these is.
    """

    def _update_weights(self, weights: list[tuple[str, torch.Tensor]], **options: Any) -> None:
        super()._update_weights(list(checkpoint_weights(weights)), **options)

    def save_buffers(self) -> int:
        """Copy the model's buffers to the host; vllm-omni's worker drops them in deep sleep. Returns how many."""
        self._saved_buffers = {name: value.cpu().clone() for name, value in self.model_runner.model.named_buffers()}
        return len(self._saved_buffers)

    def restore_buffers(self) -> int:
        """Copy back what `save_buffers` kept."""
        saved = getattr(self, "_saved_buffers", {})
        for name, value in self.model_runner.model.named_buffers():
            if name in saved:
                value.data.copy_(saved[name])
        return len(saved)

    def media_positions(self, token_ids: list[int], media: list[dict[str, Any]]) -> list[list[int]]:
        """The engine's three rows of positions for a prompt with these media, for comparison with the trainer's.

        Args:
            media: `modality`, `offset` and `length` of the placeholders, and `data`, the processor's fields of it.
        """
        features = [
            SimpleNamespace(
                modality=item["modality"],
                mm_position=SimpleNamespace(offset=item["offset"], length=item["length"]),
                data={key: SimpleNamespace(data=torch.tensor(value)) for key, value in item["data"].items()},
            )
            for item in media
        ]
        positions, _ = self.model_runner.model.get_mrope_input_positions(token_ids, features)
        return [[int(value) for value in row] for row in positions.tolist()]

    def memory_in_use(self) -> int:
        """Bytes of the device in use, by whatever process."""
        free, total = torch.cuda.mem_get_info()
        return int(total - free)


class ThinkerWorkerExtension(OmniWorkerExtension):
    """The same under verl's own server, which knows the placeholders of pictures only."""

    def monkey_patch_model(self, vocab_size: int, banned_token_ids: list[int] | None = None) -> None:
        """Ban every placeholder; tokens past the tokenizer's stay, as they do in the trainer's distribution."""
        config = self.model_runner.vllm_config.model_config.hf_config
        super().monkey_patch_model(thinker_config(config).text_config.vocab_size, media_token_ids(config))
