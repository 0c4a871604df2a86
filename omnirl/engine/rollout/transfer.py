"""Weights from the trainer to a rollout on devices of its own, by a process group of NCCL or gloo.

verl's own engine for NCCL needs cupy and a GPU.
"""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import timedelta
from typing import Any

import ray
import torch
from torch import distributed
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry
from verl.utils.device import get_device_id, get_device_name

from omnirl.engine import platform_cpu

WAIT = timedelta(minutes=10)
"""Longest wait of one side for the other."""
_ALIGNED = 16
"""A tensor starts at a multiple of these bytes, so that it can be viewed in any type."""

Place = tuple[str, torch.Size, torch.dtype, int]
"""Name, shape, type and first byte of a tensor in a bucket."""


@CheckpointEngineRegistry.register("omnirl")
class ProcessGroupEngine(CheckpointEngine):
    """The first rank that trains sends buckets of whole tensors; every device of the rollout receives them.

    Other ranks that train are in no group, but must walk through the weights too: gathering one is a collective.
    """

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self.bucket_size = bucket_size
        self.is_master = is_master
        self.rank = -1
        self.updates = 0
        self.buckets = 0
        self._store: distributed.TCPStore | None = None
        self._group: Any = None

    def prepare(self) -> tuple[str, int] | None:
        """The sender's address; None of the others."""
        if not self.is_master:
            return None
        host = ray.util.get_node_ip_address().strip("[]")
        if self._store is None:
            self._store = distributed.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=WAIT)
        return host, self._store.port

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[tuple[str, int] | None]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        def told(ranks: list[int]) -> dict[str, list[Any]]:
            size = 1 + rollout_world_size
            return {"rank": ranks, "world_size": [size] * len(ranks), "address": [metadata[0]] * len(ranks)}

        return told([0] + [-1] * (actor_wg_world_size - 1)), told(list(range(1, 1 + rollout_world_size)))

    def init_process_group(self, rank: int, world_size: int, address: tuple[str, int]) -> None:
        self.rank = rank
        if rank < 0 or self._group is not None:
            return
        if self._store is None:
            self._store = distributed.TCPStore(*address, is_master=False, wait_for_workers=False, timeout=WAIT)
        kind = distributed.ProcessGroupGloo if _on_cpu() else distributed.ProcessGroupNCCL
        self._group = kind(distributed.PrefixStore("group", self._store), rank, world_size, timeout=WAIT)

    def finalize(self) -> None:
        """Nothing to do: buckets go when they are used up, and the group stays."""

    @torch.no_grad()
    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None) -> None:
        if self.rank < 0:
            for _ in weights:
                pass
            return
        # what the receivers were told last time has been read
        for bucket in range(self.buckets):
            self._store.delete_key(self._key(bucket))
        self.updates, self.buckets = self.updates + 1, 0
        for places, data in pack(weights, self.bucket_size):
            self._store.set(self._key(self.buckets), pickle.dumps((places, len(data))))
            self._broadcast(data)
            self.buckets += 1
        self._store.set(self._key(self.buckets), pickle.dumps(None))
        self.buckets += 1

    @torch.no_grad()
    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        self.updates += 1
        bucket = 0
        while (told := pickle.loads(self._store.get(self._key(bucket)))) is not None:
            places, size = told
            data = torch.empty(size, dtype=torch.uint8, device=get_device_id())
            self._broadcast(data)
            for name, tensor in unpack(places, data):
                yield name, tensor
            bucket += 1

    def _key(self, bucket: int) -> str:
        return f"update {self.updates} bucket {bucket}"

    def _broadcast(self, data: torch.Tensor) -> None:
        self._group.broadcast(data, 0).wait()
        if not _on_cpu():
            torch.cuda.synchronize()


def pack(weights: Iterable[tuple[str, torch.Tensor]], most_bytes: int) -> Iterator[tuple[list[Place], torch.Tensor]]:
    """Whole tensors in buckets of up to `most_bytes`; a larger tensor has a bucket of its own."""
    places: list[Place] = []
    parts: list[torch.Tensor] = []
    size = 0
    for name, tensor in weights:
        data = tensor.detach().contiguous().view(-1).view(torch.uint8)
        if parts and size + len(data) > most_bytes:
            yield places, torch.cat(parts)
            places, parts, size = [], [], 0
        places.append((name, tensor.shape, tensor.dtype, size))
        parts += [data, data.new_zeros(-len(data) % _ALIGNED)]
        size += len(data) + len(parts[-1])
    if parts:
        yield places, torch.cat(parts)


def unpack(places: Iterable[Place], data: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a bucket, as views of it."""
    for name, shape, dtype, first in places:
        yield name, data[first : first + shape.numel() * dtype.itemsize].view(dtype).view(shape)


def _on_cpu() -> bool:
    return bool(get_device_name() == platform_cpu.NAME)
