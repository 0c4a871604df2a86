"""A teacher on vllm-omni: verl's own teacher manager over a stand-in of the engine, on the device that trains."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from omegaconf import OmegaConf, open_dict

from omnirl.engine.distill.told import of_prompt
from omnirl.engine.rollout.vllm_omni import OmniReplica
from tests.engine.omni_core import fake_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROMPT = [4, 5, 6, 7]


class Replica(OmniReplica):
    server = fake_server()


@pytest.fixture(scope="module")
def distillation(config: Any, checkpoint: Any) -> Any:
    """verl's configuration of a run whose teacher stands on the one device that trains."""
    changed = OmegaConf.create(OmegaConf.to_container(config, resolve=False))
    teacher = "distillation.teacher_models.teacher_model"
    with open_dict(changed):
        for key, value in {
            "actor_rollout_ref.rollout.name": "vllm_omni",
            "trainer.teacher_shares_devices": True,
            "distillation.enabled": True,
            "distillation.nnodes": 1,
            "distillation.n_gpus_per_node": 1,
            "distillation.distillation_loss.loss_mode": "kl",
            "distillation.distillation_loss.use_policy_gradient": True,
            f"{teacher}.model_path": str(checkpoint),
            f"{teacher}.inference.name": "vllm_omni",
            f"{teacher}.inference.tensor_model_parallel_size": 1,
            f"{teacher}.inference.max_model_len": 4096,
        }.items():
            OmegaConf.update(changed, key, value, force_add=True)
    OmegaConf.resolve(changed)
    return changed


@pytest.fixture(scope="module")
def trainer(distillation: Any) -> Any:
    from omnirl.engine.trainer import OmniTrainer

    trainer = OmniTrainer.__new__(OmniTrainer)
    trainer.config = distillation
    trainer._init_resource_pool_mgr()
    return trainer


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(num_cpus=8, num_gpus=1, include_dashboard=False, _node_ip_address="127.0.0.1", object_store_memory=2**27)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def teacher(cluster: None, distillation: Any, trainer: Any) -> Any:
    """The client that verl asks a teacher by. A training worker takes its place on the device first."""
    from verl.experimental.teacher_loop import MultiTeacherModelManager
    from verl.experimental.teacher_loop.teacher_manager import AsyncTeacherLLMServerManager
    from verl.trainer.ppo.utils import Role
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    trainer.resource_pool_manager.create_resource_pool()
    pool = trainer.resource_pool_manager.get_resource_pool(Role.TeacherModel)
    (group,) = pool.get_placement_groups(device_name="cpu")
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
    worker = ray.remote(SimpleNamespace).options(num_gpus=1 / 3, scheduling_strategy=strategy).remote()
    known = RolloutReplicaRegistry._registry["vllm_omni"]
    RolloutReplicaRegistry.register("vllm_omni", lambda: Replica)
    try:
        manager = MultiTeacherModelManager(config=distillation, resource_pool=pool)
    finally:
        RolloutReplicaRegistry.register("vllm_omni", known)
    asked = AsyncTeacherLLMServerManager(distillation, manager.get_client())
    return SimpleNamespace(asked=asked, keeps=(manager, worker))


def test_student_and_teacher_share_one_pool(trainer: Any) -> None:
    from verl.trainer.ppo.utils import Role

    assert trainer.resource_pool_manager.resource_pool_spec == {"global_pool": [1]}
    assert trainer.mapping[Role.TeacherModel] == trainer.mapping[Role.ActorRollout] == "global_pool"


def test_a_teacher_tells_how_likely_the_given_tokens_are(teacher: Any) -> None:
    ids, log_probs = asyncio.run(teacher.asked.compute_teacher_logprobs_single(PROMPT))
    assert ids.tolist() == [[5], [6], [7], [0]]
    assert log_probs.shape == (4, 1)
    assert log_probs.flatten().tolist() == pytest.approx([-0.5, -0.6, -0.7, 0.0])


def test_media_are_read_as_the_student_read_them(teacher: Any, thinker: Any) -> None:
    pad = thinker.config.image_token_id
    sequence = [4, pad, pad, pad, 6, 7]
    ids, log_probs = asyncio.run(
        teacher.asked.compute_teacher_logprobs_single(sequence, multi_modal_data={"images": ["three"]})
    )
    assert ids.flatten().tolist() == [pad, pad, pad, 6, 7, 0]
    assert log_probs.flatten().tolist()[3:] == pytest.approx([-0.6, -0.7, 0.0])


def test_a_teacher_that_expands_media_otherwise_is_an_error(teacher: Any, thinker: Any) -> None:
    pad = thinker.config.image_token_id
    with pytest.raises(Exception, match="the teacher read 4 tokens where the student has 5"):
        asyncio.run(
            teacher.asked.compute_teacher_logprobs_single([4, pad, pad, pad, 6], multi_modal_data={"images": ["two"]})
        )


def test_other_tokens_are_an_error() -> None:
    entry = SimpleNamespace(logprob=-1.0)
    assert of_prompt([3, 4], [None, {4: entry}]) == {"prompt_ids": [[4], [0]], "prompt_logprobs": [[-1.0], [0.0]]}
    with pytest.raises(ValueError, match="another token than the student's 5 at place 1"):
        of_prompt([3, 5], [None, {4: entry}])
    with pytest.raises(ValueError, match="tells nothing of its prompt"):
        of_prompt([3, 5], None)
