"""verl's rollout interface over vllm-omni: the driver's side and the training worker's side."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import ray
import torch
import zmq
from omegaconf import OmegaConf
from verl.plugin.platform import get_platform
from verl.single_controller.ray import RayResourcePool
from verl.utils.device import get_device_name, get_resource_name, is_support_ipc
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutMode, RolloutReplica

from omnirl.engine.rollout import seats
from omnirl.engine.rollout.calls import EngineFailure
from omnirl.engine.rollout.names import transfer_key
from omnirl.engine.rollout.omni_server import OmniServer

_MODEL_CONFIG = "omnirl.engine.processor.OmniModelConfig"
REPLY_S = 300.0
"""Longest wait of a trainer for its rollout worker to take a bucket of weights."""


def _server_name(replica_rank: int, suffix: str = "") -> str:
    return f"omnirl_vllm_omni_server_{replica_rank}{suffix}"


class OmniReplica(RolloutReplica):
    """Starts the server actor on the node and the devices of its training workers."""

    server: type[OmniServer] = OmniServer

    async def init_colocated(self, resource_pool: RayResourcePool) -> None:
        """Start a server that stands by itself, such as a teacher's: its weights come from its checkpoint alone.

        verl would start a worker with torch for each device, to hand over weights that never come.
        """
        self.rollout_mode = RolloutMode.COLOCATED
        self.resource_pool = resource_pool
        if self.is_teacher_model:
            # verl tells nothing of a teacher but its path
            self.model_config = OmegaConf.merge(self.model_config, {"_target_": _MODEL_CONFIG})
        self.workers = _seats(resource_pool)
        await self.launch_servers()

    async def launch_servers(self) -> None:
        if self.nnodes > 1:
            raise ValueError(f"a copy of the rollout engine stays on one machine, and {self.world_size} devices do not")
        places = await asyncio.gather(
            *[worker.__ray_call__.remote(seats.place, get_resource_name()) for worker in self.workers]
        )
        suffix = "_teacher" * self.is_teacher_model + "_reward" * self.is_reward_model + self.name_suffix
        environment = {**dict.fromkeys(get_platform().ray_noset_envvars(), "1"), **get_platform().rollout_env_vars()}
        server = (
            ray.remote(self.server)
            .options(
                name=_server_name(self.replica_rank, suffix),
                num_cpus=0,
                max_concurrency=self.max_concurrency,
                runtime_env={"env_vars": environment},
                scheduling_strategy=ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                    node_id=places[0][0], soft=False
                ),
            )
            .remote(
                self.config,
                self.model_config,
                self.rollout_mode,
                self.replica_rank,
                ",".join(device for _, device in places),
            )
        )
        self.servers = [server]
        self._server_handle = server
        self._server_address = await server.launch.remote()


def _seats(pool: RayResourcePool) -> list[Any]:
    """An actor on each device of a pool, or of a part of one."""
    first = getattr(pool, "start_bundle_index", 0)
    return seats.take(
        pool.get_placement_groups(device_name=get_device_name()),
        range(first, first + pool.world_size),
        per_node=pool.store[0],
        share=get_platform().ray_resource_options(1 / pool.max_colocate_count),
    )


class OmniAdapter(BaseRollout):
    """Hands a training worker's weights to the rollout worker on the same device, in buckets through device memory."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        rank = int(os.environ["RANK"])
        self.ranks = config.tensor_model_parallel_size * config.data_parallel_size * config.pipeline_model_parallel_size
        self.replica_rank = rank // self.ranks if replica_rank == -1 else replica_rank
        self.is_leader = rank % self.ranks == 0
        self.sleep_level = 2
        local_rank = rank % self.ranks % int(os.environ["RAY_LOCAL_WORLD_SIZE"])
        job = transfer_key(ray.get_runtime_context().get_job_id())
        self._socket = f"ipc:///tmp/rl-colocate-zmq-{job}-replica-{self.replica_rank}-rank-{local_rank}.sock"
        self._by_host = not is_support_ipc()

    async def _server(self) -> Any:
        return await asyncio.to_thread(ray.get_actor, _server_name(self.replica_rank))

    async def resume(self, tags: list[str]) -> None:
        if self.config.free_cache_engine and self.is_leader:
            await (await self._server()).wake_up.remote(tags)

    async def release(self) -> None:
        if self.config.free_cache_engine and self.is_leader:
            await (await self._server()).sleep.remote()

    @torch.no_grad()
    async def update_weights(
        self,
        weights: Iterator[tuple[str, torch.Tensor]],
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        **options: Any,
    ) -> None:
        """Send weights, full or of an adapter, and forget what older ones computed.

        Raises:
            ValueError: a wire format other than named tensors.
            EngineFailure: the rollout worker did not take them.
        """
        if wire_format != "named_tensors":
            raise ValueError(f"the {self.config.name} rollout takes named tensors, not `{wire_format}`")
        server = await self._server() if self.is_leader else None
        receiving = None
        if server is not None:
            options["use_shm"] = self._by_host
            receiving = server.collective_rpc.remote("update_weights_from_ipc", kwargs=options)
        sender = _sender(self._socket, self.config.checkpoint_engine.update_weights_bucket_megabytes, self._by_host)
        try:
            await sender.async_send_weights(weights)
        except zmq.Again as error:
            failure = EngineFailure(f"the rollout worker took no weights for {REPLY_S:g} s")
            if receiving is not None:
                done, _ = ray.wait([receiving], timeout=0)
                if done:
                    ray.get(receiving)  # raises what went wrong there
            raise failure from error
        if server is not None:
            await receiving
            await server.clear_kv_cache.remote()
            if global_steps is not None:
                await server.set_global_steps.remote(global_steps)


class VllmAdapter(OmniAdapter):
    """The same for the rollout `vllm`, whose server verl has named."""

    async def _server(self) -> Any:
        return await asyncio.to_thread(ray.get_actor, f"vllm_server_{self.replica_rank}_0")


def _sender(socket: str, bucket_mib: int, by_host: bool) -> Any:
    """verl's sender with a bound on its waits: a worker that failed would never answer."""
    from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender

    class Sender(BucketedWeightSender):
        def _init_socket(self) -> None:
            super()._init_socket()
            self.socket.setsockopt(zmq.RCVTIMEO, int(REPLY_S * 1000))
            self.socket.setsockopt(zmq.SNDTIMEO, int(REPLY_S * 1000))
            self.socket.setsockopt(zmq.LINGER, 0)

    return Sender(zmq_handle=socket, bucket_size_mb=bucket_mib, use_shm=by_host)
