"""verl's rollout interface over transformers: one Ray actor per replica, for machines without an accelerator."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import ray
import torch
from omegaconf import OmegaConf
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutMode, RolloutReplica
from verl.workers.rollout.utils import ensure_async_iterator

from omnirl.engine.rollout.server import HFServer

_MODEL_CONFIG = "omnirl.engine.processor.OmniModelConfig"


def _server_name(replica_rank: int, suffix: str = "") -> str:
    return f"omnirl_hf_server_{replica_rank}{suffix}"


class HFReplica(RolloutReplica):
    """The driver's side: starts the server actor."""

    async def init_colocated(self, resource_pool: Any) -> None:
        """Start a server that stands by itself, such as a teacher's: its weights come from its checkpoint alone.

        verl would start a worker process for each device as well, to hand over weights that never come.
        """
        self.rollout_mode = RolloutMode.COLOCATED
        self.resource_pool = resource_pool
        if self.is_teacher_model:
            # verl tells nothing of a teacher but its path
            options = {"_target_": _MODEL_CONFIG, "override_config": {"attn_implementation": "sdpa"}}
            self.model_config = OmegaConf.merge(self.model_config, options)
        await self.launch_servers()

    async def launch_servers(self) -> None:
        server = (
            ray.remote(HFServer)
            .options(
                name=_server_name(self.replica_rank, self.name_suffix),
                num_cpus=0,
                max_concurrency=self.max_concurrency,
            )
            .remote(self.config, self.model_config, self.replica_rank)
        )
        self.servers = [server]
        self._server_handle = server
        self._server_address = await server.address.remote()


class HFAdapter(BaseRollout):
    """The training worker's side: hands full weights to the replica's actor through Ray's object store."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        rank = int(os.environ["RANK"])
        ranks_per_replica = (
            self.config.tensor_model_parallel_size
            * self.config.data_parallel_size
            * self.config.pipeline_model_parallel_size
        )
        self.replica_rank = rank // ranks_per_replica if replica_rank == -1 else replica_rank
        self.is_leader = rank % ranks_per_replica == 0
        self.sleep_level = 1

    async def resume(self, tags: list[str]) -> None:
        return None

    async def release(self) -> None:
        return None

    @torch.no_grad()
    async def update_weights(
        self,
        weights: Iterator[tuple[str, torch.Tensor]],
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        peft_config: dict[str, Any] | None = None,
        base_sync_done: bool = True,
        **_: Any,
    ) -> None:
        """Send weights to the server. Every rank drains the generator, since gathering a tensor is a collective.

        Raises:
            ValueError: a wire format other than full named tensors.
            KeyError: from the server, when names do not match.
        """
        if wire_format != "named_tensors":
            raise ValueError(f"the hf rollout takes full weights, not `{wire_format}`")
        named = {}
        async for name, tensor in ensure_async_iterator(weights):
            if self.is_leader:
                named[name] = tensor.detach().to("cpu", torch.float32)
        if self.is_leader:
            server = await asyncio.to_thread(ray.get_actor, _server_name(self.replica_rank))
            await server.update_weights.remote(named, global_steps, peft_config if base_sync_done else None)
