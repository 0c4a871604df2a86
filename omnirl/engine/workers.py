"""verl's workers, with what the Thinker and a machine without an accelerator need."""

from __future__ import annotations

import os

import torch
from tensordict import TensorDict
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils.device import get_device_name
from verl.utils.tensordict_utils import nested_tensor_from_tensor_list
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from omnirl.engine import fsdp, platform_cpu  # noqa: F401  fsdp registers the engine in the processes that train

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
