"""verl's workers, with what the Thinker and a machine without an accelerator need."""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch
from tensordict import TensorDict
from torch.distributed.tensor import DTensor
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils.device import get_device_name
from verl.utils.tensordict_utils import nested_tensor_from_tensor_list
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from omnirl.engine import fsdp, platform_cpu  # noqa: F401  fsdp registers the engine in the processes that train

_SIZE_OF_ZEROS = 0.05
"""Root mean square of the noise on a weight of zeros."""

_POSITION_ROWS = 4
"""The plain index, and the temporal, height and width positions."""


def repair_equal_length_positions(batch: TensorDict) -> None:
    """Give nested position ids (sequences, 4, ragged) their ragged dimension back.

    When all sequences of a batch have one length, what comes out of TransferQueue takes the four position rows for the
    ragged dimension, and splitting the batch then fails. Equal prompts with answers at the length cap are enough.
    """
    positions = batch.get("position_ids", None)
    if positions is None or not positions.is_nested or positions.dim() != 3:
        return
    values, sequences = positions.values(), len(positions.offsets()) - 1
    if values.shape[0] == int(positions.offsets()[-1]) == _POSITION_ROWS * sequences:
        whole = values.view(sequences, _POSITION_ROWS, values.shape[1])
        batch["position_ids"] = nested_tensor_from_tensor_list(list(whole.unbind(0)), ragged_idx=2)


class OmniTrainingWorker(TrainingWorker):
    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="train"), blocking=False)
    def train_mini_batch(self, data: TensorDict) -> TensorDict:
        repair_equal_length_positions(data)
        return super().train_mini_batch(data)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="train"), blocking=False)
    def infer_batch(self, data: TensorDict) -> TensorDict:
        repair_equal_length_positions(data)
        return super().infer_batch(data)


class OmniActorRolloutRefWorker(ActorRolloutRefWorker):
    actor_worker_cls = OmniTrainingWorker
    ref_worker_cls = OmniTrainingWorker

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        if get_device_name() == platform_cpu.NAME and not torch.distributed.is_initialized():
            # verl would join "cpu:gloo" to "<device>:<backend>", and torch refuses the CPU twice; it keeps a group
            # that exists
            torch.distributed.init_process_group(
                "gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"])
            )
        super().init_model()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @torch.no_grad()
    def disturb_weights(self, share: float, seed: int) -> None:
        """Add noise to every weight that is trained, by a share of the weight's own size; what was there is kept.

        A weight of zeros, as an adapter's second half is at first, gets a size of its own.
        """
        random = torch.Generator().manual_seed(seed + torch.distributed.get_rank())
        self._before_noise = {}
        for name, local in self._trained_weights():
            self._before_noise[name] = local.cpu().clone()
            size = float(local.float().pow(2).mean().sqrt()) or _SIZE_OF_ZEROS / share
            noise = torch.randn(local.shape, generator=random, dtype=torch.float32)
            local.add_((noise * size * share).to(local.device, local.dtype))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @torch.no_grad()
    def settle_weights(self) -> None:
        """Put back exactly what `disturb_weights` found."""
        for name, local in self._trained_weights():
            local.copy_(self._before_noise[name])
        self._before_noise = {}

    def _trained_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """This rank's share of each weight that is trained, wherever it lies just now."""
        for name, weight in self.actor.engine.module.named_parameters():
            if weight.requires_grad:
                yield name, weight.to_local() if isinstance(weight, DTensor) else weight.data
