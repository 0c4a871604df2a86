"""The places of verl that distillation plugs into. Each message says what breaks when verl moves one."""

from __future__ import annotations

import inspect

from verl.experimental.teacher_loop import teacher_manager, teacher_model
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.workers.rollout.replica import RolloutReplica

from omnirl.engine.rollout.hf import HFReplica
from omnirl.engine.trainer import OmniTrainer


def test_a_teachers_server_is_started_by_our_replica() -> None:
    started = inspect.getsource(teacher_model.TeacherModelManager)
    assert "server.init_colocated(resource_pool)" in started, "a teacher starts in another way: it gets no processor"
    assert "is_teacher_model=True" in started, "a replica cannot tell that it is a teacher's"
    assert list(inspect.signature(RolloutReplica.init_colocated).parameters) == ["self", "resource_pool"]
    assert "init_colocated" in vars(HFReplica)


def test_a_teacher_is_asked_for_the_tokens_it_is_given() -> None:
    asked = inspect.getsource(teacher_manager._get_teacher_sampling_params)
    assert '"prompt_logprobs": num_logprobs' in asked, "teachers are asked in other words"
    told = inspect.getsource(teacher_manager.AsyncTeacherLLMServerManager.compute_teacher_logprobs_single)
    for name in ("prompt_ids", "prompt_logprobs"):
        assert f'teacher_output.extra_fields["{name}"]' in told, f"`{name}` is read elsewhere: no distillation"
    assert "len(sequence_ids)" in told, "a teacher no longer tells a value for each token"


def test_the_trainer_measures_the_distance() -> None:
    assert list(inspect.signature(PPOTrainer._compute_old_log_prob).parameters) == ["self", "batch", "metrics"]
    assert "_compute_old_log_prob" in vars(OmniTrainer)
    source = inspect.getsource(PPOTrainer)
    assert "self.use_teacher_policy = " in source, "the trainer does not know whether there is a teacher"
    assert '"is_padding"' in source, "padding sequences would count as answers"
