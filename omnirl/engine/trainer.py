"""verl's synchronous trainer with the Thinker's workers, counted failures and probe files; and its Ray task."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
import transfer_queue
from omegaconf import DictConfig, OmegaConf, open_dict
from torchdata.stateful_dataloader import StatefulDataLoader
from transfer_queue import KVBatchMeta
from verl.checkpoint_engine import CheckpointEngineManager
from verl.trainer.ppo.utils import Role, create_rl_dataset
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.dataset.rl_dataset import collate_fn
from verl.workers.rollout.llm_server import LLMServerManager

from omnirl.engine.distill.distance import distance
from omnirl.engine.failures import ENGINE, Failures, named
from omnirl.engine.phase import Phase, report
from omnirl.engine.workers import OmniActorRolloutRefWorker
from omnirl.reward import outcome

_log = logging.getLogger(__name__)

POLL_S = 0.02
"""Seconds between looks for finished groups; verl's own 2 s would be most of a small step."""


class TooManyFailures(RuntimeError):
    """More sequences of a step failed than the recipe allows."""


def count_failures(
    *,
    step: int,
    wanted: int,
    delivered: int,
    max_share: float,
    part: str = "training",
    failures: Sequence[str] = (),
) -> dict[str, float]:
    """Metrics of the sequences that the rollout of a step did not deliver, or that of its validation.

    Args:
        part: `training` or `validation`, the first word of the metrics' names.
        failures: rows whose media did not load and what the engine said, for the message.

    Raises:
        TooManyFailures: their share of the `wanted` sequences is above `max_share`.
    """
    failed = max(0, wanted - delivered)
    if failed > max_share * wanted:
        place = "" if part == "training" else f"the {part} of "
        raise TooManyFailures(
            f"{failed} of {wanted} sequences failed in {place}step {step}, more than the {max_share:.0%} "
            f"that `rollout.max_failed_share` allows; the log names each one{named(failures)}"
        )
    return {f"{part}/rollout_failure/sequences": failed, f"{part}/rollout_failure/share": failed / wanted}


class OmniTrainer(PPOTrainerSync):
    def __init__(self, config: DictConfig) -> None:
        # verl's own name for a rollout on the devices that train
        self._enable_hybrid_replicas = bool(config.actor_rollout_ref.hybrid_engine)
        super().__init__(config)
        self._failures = Failures()
        self._engine_failures = Failures(ENGINE)

    def _setup(self) -> None:
        super()._setup()
        if not self._enable_hybrid_replicas:
            settings = self.config.actor_rollout_ref.rollout.checkpoint_engine
            self.llm_server_manager = LLMServerManager.create(config=self.config)
            self.checkpoint_manager = CheckpointEngineManager(
                config=omega_conf_to_dataclass(settings),
                actor_wg=self.actor_rollout_wg,
                replicas=self.llm_server_manager.get_replicas(),
            )

    def _get_n_gpus_for_throughput(self) -> int:
        rollout = self.config.actor_rollout_ref.rollout
        apart = 0 if self._enable_hybrid_replicas else rollout.nnodes * rollout.n_gpus_per_node
        return int(super()._get_n_gpus_for_throughput()) + apart

    def fit(self, agent_loop_manager: Any) -> None:
        settings = self.config.trainer.get("sync_proof", None)
        if settings and self.global_steps < self.total_training_steps:
            from omnirl.engine.proof import prove

            report(Phase.PROOF)
            self.agent_loop_manager = agent_loop_manager
            with self._naming_failures("the sync proof", RuntimeError):
                prove(self, settings)
        if not self.config.trainer.get("only_sync_proof", False):
            report(Phase.TRAINING, f"step {self.global_steps} of {self.total_training_steps}")
            super().fit(agent_loop_manager)

    def _build_replay_buffer(self) -> ReplayBuffer:
        buffer = super()._build_replay_buffer()
        buffer.poll_interval = POLL_S
        return buffer

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        if self.config.trainer.get("teacher_shares_devices", False):
            manager = self.resource_pool_manager
            manager.resource_pool_spec.pop(self.mapping[Role.TeacherModel])
            self.mapping[Role.TeacherModel] = next(iter(manager.resource_pool_spec))
        for role in (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef, Role.RefPolicy):
            if role in self.role_worker_mapping:
                self.role_worker_mapping[role] = ray.remote(OmniActorRolloutRefWorker)

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        # verl leaves its loop without a last save or validation when the epochs end before the steps do
        available = self.steps_per_epoch * self.config.trainer.total_epochs
        if self.total_training_steps > available:
            self.total_training_steps = available
            with open_dict(self.config):
                self.config.actor_rollout_ref.actor.optim.total_training_steps = available
        self._plain_val_dataloader = self.val_dataloader
        self._probe_dataloader = self._make_probe_dataloader()

    def _make_probe_dataloader(self) -> StatefulDataLoader | None:
        files = list(self.config.data.get("probe_files", None) or [])
        if not files:
            return None
        rows = create_rl_dataset(
            [*self.config.data.val_files, *files],
            self.config.data,
            self.tokenizer,
            self.processor,
            is_train=False,
            max_samples=-1,
        )
        return StatefulDataLoader(rows, batch_size=len(rows), collate_fn=collate_fn, shuffle=False, drop_last=False)

    def _validate(self) -> dict[str, float]:
        """Validate; after the last step on the probe files too."""
        last = self.global_steps >= self.total_training_steps
        probing = last and self._probe_dataloader is not None
        self.val_dataloader = self._probe_dataloader if probing else self._plain_val_dataloader
        with self._naming_failures(f"the validation of step {self.global_steps}", ValueError):
            return super()._validate()

    def _val_metrics_update(
        self, *arguments: Any, expected_acc_counts: dict[tuple[str, str], int] | None = None
    ) -> dict[str, float]:
        """Count what a validation did not deliver too: verl takes it for wrong, or leaves it out without `acc`."""
        _, uids, *_ = arguments
        metrics = self._counted("validation", sum((expected_acc_counts or {}).values()), len(uids))
        return metrics | super()._val_metrics_update(*arguments, expected_acc_counts=expected_acc_counts)

    def _step_once(self, *arguments: Any, **options: Any) -> KVBatchMeta:
        with self._naming_failures(f"step {self.global_steps}", RuntimeError):
            return super()._step_once(*arguments, **options)

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict[str, Any], **kwargs: Any) -> KVBatchMeta:
        """Count what the rollout failed to deliver before anything is trained on the rest: verl drops it in silence."""
        wanted = self.config.data.train_batch_size * self.config.actor_rollout_ref.rollout.n
        metrics |= self._counted("training", wanted, len(batch.keys))
        fields = transfer_queue.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=["extra_fields"]
        )
        told = fields.pop("extra_fields").tolist()
        metrics |= outcome.shares(one.get("reward_extra_info", {}) for one in told if isinstance(one, dict))
        return super()._balance_batch(batch, metrics, **kwargs)

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Beside the student's own log-probabilities, how far they are from its teacher's."""
        batch = super()._compute_old_log_prob(batch, metrics)
        if self.use_teacher_policy:
            fields = ["old_log_probs", "teacher_logprobs"]
            data = transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
            real = [at for at, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]
            student, teacher = (data[field].unbind(0) for field in fields)
            metrics |= distance([student[at] for at in real], [teacher[at] for at in real])
        return batch

    def _counted(self, part: str, wanted: int, delivered: int) -> dict[str, float]:
        failures = self._failures.new()
        for failure in failures:
            _log.warning(f"step {self.global_steps}, {part}: {failure}")
        counted = count_failures(
            step=self.global_steps,
            wanted=wanted,
            delivered=delivered,
            max_share=float(self.config.trainer.get("max_failed_share", 1.0)),
            part=part,
            failures=self._engine_failures.new() + failures,
        )
        return counted | {f"{part}/rollout_failure/media": len(failures)}

    @contextmanager
    def _naming_failures(self, what: str, raised: type[Exception]) -> Iterator[None]:
        """verl fails without a reason where not one sequence is left; name the media, or what the engine said."""
        try:
            yield
        except TooManyFailures:
            raise
        except raised as error:
            # those of a batch that had some sequences left have been counted before anything else could fail
            if failures := self._engine_failures.new() + self._failures.new():
                raise TooManyFailures(f"no sequence of {what} is left{named(failures)}") from error
            raise


@ray.remote(num_cpus=0)
class OmniTaskRunner:
    """The Ray task that holds the trainer. verl's own picks the trainer by a mode name with further meanings."""

    def run(self, config: DictConfig) -> None:
        from verl.trainer.ppo.v1 import AgentLoopManagerTQ
        from verl.utils.logging_utils import configure_verl_logging

        configure_verl_logging()
        config.transfer_queue.enable = True
        OmegaConf.resolve(config)
        transfer_queue.init(config.transfer_queue)
        trainer = OmniTrainer(config=config)
        succeeded = False
        try:
            report(Phase.WORKERS)
            trainer.init()
            manager = AgentLoopManagerTQ.create(
                config=config,
                llm_client=trainer.get_llm_client(),
                teacher_client=trainer.get_teacher_client(),
                reward_loop_worker_handles=trainer.get_reward_handles(),
            )
            trainer.fit(manager)
            succeeded = True
        finally:
            tracking = getattr(trainer, "logger", None)
            if tracking is not None:
                tracking.finish(exit_code=0 if succeeded else 1)
            transfer_queue.close()
