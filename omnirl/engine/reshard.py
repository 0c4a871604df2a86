"""Checkpoints that a run goes on from with another number of ranks; verl's own are for as many as wrote them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Shard
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
from verl.utils.fsdp_utils import fsdp_version

from omnirl.errors import InvalidInput


class AnyRanksCheckpointManager(FSDPCheckpointManager):
    """verl's files as they are: each rank takes its own part of every tensor from the files of the ranks that saved.

    The files are mapped, so that a rank reads what it takes and no more.
    """

    def load_checkpoint(
        self, local_path: str, hdfs_path: str | None = None, del_local_after_load: bool = False
    ) -> None:
        """Load a checkpoint of any number of ranks.

        Raises:
            InvalidInput: parameters are not sharded by FSDP2, or it is of another model.
        """
        folder = Path(local_path)
        saved = saved_ranks(folder)
        if saved in (None, self.world_size):
            super().load_checkpoint(local_path, hdfs_path, del_local_after_load)
            return
        if fsdp_version(self.model) != 2:
            raise InvalidInput(
                f"the checkpoint `{folder}` is of {saved} ranks, and only FSDP2 goes on with {self.world_size}",
                hint=f'go on with {saved} devices, or set `actor.strategy = "fsdp2"` in a new run',
            )
        with torch.no_grad():
            if self.should_load_model:
                take_weights(self.model, _read(folder, "model", saved))
            if self.should_load_optimizer:
                parts = _read(folder, "optim", saved)
                self.optimizer.load_state_dict(optimizer_state(self.optimizer, parts))
        if self.should_load_extra:
            # a rank that was not there keeps the random numbers it starts with
            extra = _read(folder, "extra_state", saved)
            if self.rank < saved and "rng" in extra[self.rank]:
                self.load_rng_state(extra[self.rank]["rng"])
            if self.lr_scheduler is not None and extra[0]["lr_scheduler"] is not None:
                self.lr_scheduler.load_state_dict(extra[0]["lr_scheduler"])
        torch.distributed.barrier()


def saved_ranks(folder: Path) -> int | None:
    """How many ranks wrote the newest files of a checkpoint's folder; None where nothing says so."""
    try:
        return int(json.loads((folder / "fsdp_config.json").read_text(encoding="utf-8"))["world_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def take_weights(model: torch.nn.Module, parts: Sequence[Mapping[str, Any]]) -> None:
    """Copy this rank's part of every saved tensor into `model`.

    Raises:
        InvalidInput: names or shapes are another model's. Adapters alone may come without the weights below them.
    """
    own = model.state_dict()
    unknown = sorted(parts[0].keys() - own.keys())
    missing = sorted(own.keys() - parts[0].keys())
    if FSDPCheckpointManager.is_lora_only_state_dict(dict(parts[0])):
        missing = []
    if unknown or missing:
        raise InvalidInput(f"the checkpoint is of another model: it lacks {missing[:3]} and has {unknown[:3]}")
    for name in parts[0]:
        local = own[name].to_local() if isinstance(own[name], DTensor) else own[name]
        local.copy_(own_part([part[name] for part in parts], own[name], name))


def optimizer_state(optimizer: torch.optim.Optimizer, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The state that every rank saved, with this rank's part of each sharded tensor."""
    groups = zip(optimizer.param_groups, parts[0]["param_groups"], strict=True)
    parameters = {
        index: parameter
        for group, saved in groups
        for index, parameter in zip(saved["params"], group["params"], strict=True)
    }
    state = {}
    for index, values in parts[0]["state"].items():
        parameter = parameters[index]
        state[index] = dict(values)
        for key, value in values.items():
            if isinstance(value, DTensor):
                local = own_part([part["state"][index][key] for part in parts], parameter, f"{key} of {index}")
                state[index][key] = DTensor.from_local(
                    local.to(parameter.device),
                    parameter.device_mesh,
                    parameter.placements,
                    run_check=False,
                    shape=parameter.shape,
                    stride=parameter.stride(),
                )
    return {"state": state, "param_groups": parts[0]["param_groups"]}


def own_part(saved: Sequence[Any], own: torch.Tensor, name: str) -> torch.Tensor:
    """What this rank holds of a tensor that other ranks saved in parts.

    Args:
        saved: the tensor as each rank saved it.
        own: the tensor as it is sharded here.

    Raises:
        InvalidInput: the shapes differ, or the tensor is sharded in another way than along one and the same dimension.
    """
    if tuple(saved[0].shape) != tuple(own.shape):
        raise InvalidInput(f"the checkpoint has {name} as {tuple(saved[0].shape)}, the model as {tuple(own.shape)}")
    along, dimension = _dimension(saved[0], name), _dimension(own, name)
    pieces = [part.to_local() if isinstance(part, DTensor) else part for part in saved]
    pieces = pieces[:1] if along is None else pieces
    if not isinstance(own, DTensor) or dimension is None:
        return torch.cat(pieces, along or 0) if pieces[1:] else pieces[0]
    if along not in (None, dimension):
        raise InvalidInput(f"the checkpoint has {name} cut along dimension {along}, the model along {dimension}")
    whole, rank = own.shape[dimension], own.device_mesh.get_local_rank()
    each = -(-whole // own.device_mesh.size())
    start, stop = min(rank * each, whole), min((rank + 1) * each, whole)
    taken, at = [], 0
    for piece in pieces:
        first, last = max(start - at, 0), min(stop - at, piece.shape[dimension])
        if first < last:
            taken.append(piece.narrow(dimension, first, last - first))
        at += piece.shape[dimension]
    part = torch.cat(taken, dimension) if taken else pieces[0].narrow(dimension, 0, 0)
    if at != whole or part.shape != own.to_local().shape:
        raise InvalidInput(f"the checkpoint's parts of {name} do not make up {tuple(own.shape)}")
    return part


def _dimension(tensor: Any, name: str) -> int | None:
    """Along which dimension a tensor is sharded; None where every rank has all of it."""
    if not isinstance(tensor, DTensor):
        return None
    cuts = [placement.dim for placement in tensor.placements if isinstance(placement, Shard)]
    if len(tensor.placements) != 1:
        raise InvalidInput(f"{name} is sharded over a mesh of {len(tensor.placements)} dimensions")
    return cuts[0] if cuts else None


def _read(folder: Path, kind: str, saved: int) -> list[dict[str, Any]]:
    """A kind of file of every rank that saved."""
    names = [folder / f"{kind}_world_size_{saved}_rank_{rank}.pt" for rank in range(saved)]
    return [torch.load(name, map_location="cpu", mmap=True, weights_only=False) for name in names]
