"""What verl loads in each of its processes (`VERL_USE_EXTERNAL_MODULES=omnirl.engine.plugin`).

Registers the CPU platform and the rollout engines; everything heavier is registered where it is used, because each
import here is paid once per process of a run.
"""

from __future__ import annotations

import os

from verl.workers.rollout.base import _ROLLOUT_REGISTRY
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

from omnirl.engine import platform_cpu


def _hf_replica() -> type[RolloutReplica]:
    from omnirl.engine.rollout.hf import HFReplica

    return HFReplica


def _omni_replica() -> type[RolloutReplica]:
    from omnirl.engine.rollout.vllm_omni import OmniReplica

    return OmniReplica


def _vllm_replica() -> type[RolloutReplica]:
    from omnirl.engine.rollout.vllm import ThinkerReplica

    return ThinkerReplica


# verl offers no public call to add the worker-side half of a rollout engine
if os.environ.get("VERL_PLATFORM") == platform_cpu.NAME:
    _ROLLOUT_REGISTRY["hf", "async"] = "omnirl.engine.rollout.hf.HFAdapter"
    RolloutReplicaRegistry.register("hf", _hf_replica)
_ROLLOUT_REGISTRY["vllm_omni", "async"] = "omnirl.engine.rollout.vllm_omni.OmniAdapter"
RolloutReplicaRegistry.register("vllm_omni", _omni_replica)
# in the place of verl's own, which stops at the Thinker's configuration
_ROLLOUT_REGISTRY["vllm", "async"] = "omnirl.engine.rollout.vllm_omni.VllmAdapter"
RolloutReplicaRegistry.register("vllm", _vllm_replica)
