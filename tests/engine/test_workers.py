"""Positions of a batch of equal lengths survive TransferQueue; without the repair verl's own split fails."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from transfer_queue.utils.serial_utils import MsgpackDecoder, MsgpackEncoder
from verl.utils.tensordict_utils import chunk_tensordict, maybe_fix_3d_position_ids, nested_tensor_from_tensor_list

from omnirl.engine.workers import OmniActorRolloutRefWorker, OmniTrainingWorker, repair_equal_length_positions

LENGTHS = {
    "equal": [5, 5, 5, 5],
    "ragged": [5, 3, 4, 5],
    "as long as the batch has rows": [16, 16, 16, 16],
    "four tokens": [4, 4],
    "single tokens": [1, 1, 1, 1],
}
EQUAL = [name for name in LENGTHS if name != "ragged"]


def sent(lengths: list[int]) -> tuple[list[torch.Tensor], TensorDict]:
    """Positions as the agent loop makes them, and the batch as a worker receives it."""
    positions = [torch.arange(4 * length).view(4, length) + 100 * row for row, length in enumerate(lengths)]
    batch = TensorDict(
        {"position_ids": nested_tensor_from_tensor_list(positions, ragged_idx=2)}, batch_size=[len(lengths)]
    )
    return positions, MsgpackDecoder().decode(MsgpackEncoder().encode(batch))


def split(batch: TensorDict) -> list[torch.Tensor]:
    """What verl's workers do with a batch: mark the ragged dimension and cut mini-batches."""
    maybe_fix_3d_position_ids(batch)
    return [row for part in chunk_tensordict(batch, 2) for row in part["position_ids"].unbind()]


@pytest.mark.parametrize("name", LENGTHS)
def test_positions_are_what_was_sent(name: str) -> None:
    positions, batch = sent(LENGTHS[name])
    repair_equal_length_positions(batch)
    found = split(batch)
    assert len(found) == len(positions)
    assert all(torch.equal(one, other) for one, other in zip(found, positions, strict=True))


@pytest.mark.parametrize("name", LENGTHS)
def test_a_second_repair_changes_nothing(name: str) -> None:
    positions, batch = sent(LENGTHS[name])
    repair_equal_length_positions(batch)
    repair_equal_length_positions(batch)
    assert all(torch.equal(one, other) for one, other in zip(split(batch), positions, strict=True))


@pytest.mark.parametrize("name", EQUAL)
def test_the_repair_is_still_needed(name: str) -> None:
    """Once this fails, verl or TransferQueue has mended it, and `repair_equal_length_positions` can go."""
    positions, batch = sent(LENGTHS[name])
    try:
        found = split(batch)
    except RuntimeError:
        return
    # Worse than an error: with as many tokens as the batch has rows of positions, other positions come out.
    assert not all(one.equal(other) for one, other in zip(found, positions, strict=True))


def test_batches_without_such_positions_are_left_alone() -> None:
    for batch in (
        TensorDict({"input_ids": torch.zeros(2, 3)}, batch_size=[2]),
        TensorDict({"position_ids": torch.zeros(2, 3)}, batch_size=[2]),
        TensorDict({"position_ids": nested_tensor_from_tensor_list([torch.zeros(2), torch.zeros(3)])}, batch_size=[2]),
    ):
        before = batch.get("position_ids", None)
        repair_equal_length_positions(batch)
        assert batch.get("position_ids", None) is before


def test_the_workers_train_with_the_repair() -> None:
    assert OmniActorRolloutRefWorker.actor_worker_cls is OmniTrainingWorker
    assert OmniActorRolloutRefWorker.ref_worker_cls is OmniTrainingWorker


def test_disturbed_weights_settle_to_what_they_were() -> None:
    from types import SimpleNamespace

    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    module[0].bias.data.zero_()
    module[1].weight.requires_grad_(False)
    worker = SimpleNamespace(actor=SimpleNamespace(engine=SimpleNamespace(module=module)))
    worker._trained_weights = lambda: OmniActorRolloutRefWorker._trained_weights(worker)
    before = {name: weight.clone() for name, weight in module.named_parameters()}
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        OmniActorRolloutRefWorker.disturb_weights(worker, 0.3, 7)
    finally:
        torch.distributed.destroy_process_group()
    moved = {name: (weight - before[name]).detach().abs().max().item() for name, weight in module.named_parameters()}
    assert moved["1.weight"] == 0
    assert min(value for name, value in moved.items() if name != "1.weight") > 1e-3
    OmniActorRolloutRefWorker.settle_weights(worker)
    assert all(torch.equal(weight, before[name]) for name, weight in module.named_parameters())
