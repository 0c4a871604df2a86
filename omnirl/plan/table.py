"""Which setting becomes which key of verl, and what goes by another name because verl has no key."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SHORT = ("actor", "rollout", "model", "ref")


@dataclass(frozen=True, slots=True)
class Line:
    """One setting and the verl keys that get its value.

    `actor.`, `rollout.`, `model.` and `ref.` are short for the same under `actor_rollout_ref.`.

    Attributes:
        turn: changes the value first.
        also: keys with fixed values that the setting brings when it is set.
    """

    setting: str
    keys: tuple[str, ...]
    turn: Callable[[Any], Any] | None = None
    also: Mapping[str, Any] = field(default_factory=dict)


def _line(
    setting: str, *keys: str, turn: Callable[[Any], Any] | None = None, also: Mapping[str, Any] | None = None
) -> Line:
    return Line(setting, tuple(map(_full, keys)), turn, {_full(key): value for key, value in (also or {}).items()})


def _full(key: str) -> str:
    return f"actor_rollout_ref.{key}" if key.partition(".")[0] in _SHORT else key


def absolute(path: str) -> str:
    """A path as every process sees it; addresses such as `hdfs://...` stay."""
    return path if "://" in path else os.path.abspath(Path(path).expanduser())  # noqa: PTH100 - also takes out `..`


def checkpoint(path: str) -> str:
    """A folder as an absolute path; a hub name and `tiny` stay."""
    is_folder = path.startswith(("/", ".", "~")) or ("/" in path and Path(path).is_dir())
    return absolute(path) if is_folder else path


def files(paths: list[str]) -> list[str]:
    return [absolute(path) for path in paths]


TEACHER = "distillation.teacher_models.teacher_model"
_PAIR_LOSS = "actor_rollout_ref.actor.omni_loss"
_ENGINE_SEEDS = ("actor.fsdp_config.seed", "ref.fsdp_config.seed")
_DYNAMIC = ("actor.use_dynamic_bsz", "rollout.log_prob_use_dynamic_bsz")

TABLE: tuple[Line, ...] = (
    _line("data.train", "data.train_files", turn=files),
    _line("data.val", "data.val_files", turn=files),
    _line("data.max_prompt_tokens", "data.max_prompt_length"),
    _line("data.max_response_tokens", "data.max_response_length"),
    _line("data.truncation", "data.truncation"),
    _line("data.filter_overlong_prompts", "data.filter_overlong_prompts"),
    _line("data.filter_workers", "data.filter_overlong_prompts_workers"),
    _line("data.shuffle", "data.shuffle"),
    _line("data.val_shuffle", "data.validation_shuffle"),
    _line("data.val_max_rows", "data.val_max_samples"),
    _line("data.val_batch_rows", "data.val_batch_size"),
    _line("data.processor", "data.mm_processor_kwargs"),
    _line("model.path", "model.path", turn=checkpoint),
    _line("model.attention", "model.override_config.attn_implementation"),
    _line("model.remove_padding", "model.use_remove_padding"),
    _line("model.gradient_checkpointing", "model.enable_gradient_checkpointing"),
    _line("model.exclude_modules", "model.exclude_modules"),
    _line("model.freeze_vision_tower", "actor.freeze_vision_tower"),
    _line("tune.rank", "model.lora_rank"),
    _line("tune.alpha", "model.lora_alpha"),
    _line("tune.merge", "model.lora.merge"),
    _line("tune.target_modules", "model.target_modules"),
    _line("tune.dropout", "model.lora.dropout"),
    _line("optim.learning_rate", "actor.optim.lr"),
    _line("optim.weight_decay", "actor.optim.weight_decay"),
    _line("optim.clip_grad", "actor.optim.clip_grad"),
    _line("optim.warmup_steps", "actor.optim.lr_warmup_steps"),
    _line("optim.warmup_share", "actor.optim.lr_warmup_steps_ratio"),
    _line("optim.betas", "actor.optim.betas"),
    _line("algo.clip_low", "actor.clip_ratio_low"),
    _line("algo.clip_high", "actor.clip_ratio_high"),
    _line("algo.clip_c", "actor.clip_ratio_c"),
    _line("algo.loss_aggregation", "actor.loss_agg_mode"),
    _line("algo.entropy_coeff", "actor.entropy_coeff"),
    _line("algo.filter_groups", "algorithm.filter_groups.enable"),
    _line("algo.filter_metric", "algorithm.filter_groups.metric"),
    _line("algo.divergence", "distillation.distillation_loss.loss_mode"),
    _line("algo.policy_gradient", "distillation.distillation_loss.use_policy_gradient"),
    _line("algo.task_rewards", "distillation.distillation_loss.use_task_rewards"),
    _line("algo.teacher.path", f"{TEACHER}.model_path", turn=checkpoint),
    _line("algo.teacher.nodes", "distillation.nnodes"),
    _line("algo.teacher.tensor_parallel", f"{TEACHER}.inference.tensor_model_parallel_size"),
    _line("algo.teacher.memory_fraction", f"{TEACHER}.inference.gpu_memory_utilization"),
    _line("algo.teacher.max_tokens", f"{TEACHER}.inference.max_model_len"),
    _line("batch.prompts", "data.train_batch_size"),
    _line("batch.mini_prompts", "actor.ppo_mini_batch_size"),
    _line("batch.group_size", "rollout.n"),
    _line("batch.max_tokens_per_device", "actor.ppo_max_token_len_per_gpu", also=dict.fromkeys(_DYNAMIC, True)),
    _line("batch.max_log_prob_tokens_per_device", "rollout.log_prob_max_token_len_per_gpu"),
    _line(
        "batch.micro_sequences",
        "actor.ppo_micro_batch_size_per_gpu",
        "rollout.log_prob_micro_batch_size_per_gpu",
        "ref.log_prob_micro_batch_size_per_gpu",
        also=dict.fromkeys(_DYNAMIC, False),
    ),
    _line("actor.strategy", "actor.strategy", "actor.fsdp_config.strategy"),
    _line("actor.dtype", "actor.fsdp_config.model_dtype", "ref.fsdp_config.model_dtype"),
    _line("actor.param_offload", "actor.fsdp_config.param_offload"),
    _line("actor.optimizer_offload", "actor.fsdp_config.optimizer_offload"),
    _line("actor.ref_param_offload", "ref.fsdp_config.param_offload"),
    _line("actor.compile", "actor.use_torch_compile", "actor.fsdp_config.use_torch_compile"),
    _line("actor.original_parameters", "actor.fsdp_config.use_orig_params"),
    _line(
        "actor.entropy_chunk_tokens",
        "actor.entropy_from_logits_chunk_size",
        also={"actor.entropy_from_logits_with_chunking": True},
    ),
    _line("rollout.engine", "rollout.name"),
    _line("rollout.mode", "rollout.mode"),
    _line("rollout.load_format", "rollout.load_format"),
    _line("rollout.tensor_parallel", "rollout.tensor_model_parallel_size"),
    _line("rollout.memory_fraction", "rollout.gpu_memory_utilization"),
    _line("rollout.prefix_caching", "rollout.enable_prefix_caching"),
    _line("rollout.prompt_tokens", "rollout.prompt_length"),
    _line("rollout.temperature", "rollout.temperature"),
    _line("rollout.top_p", "rollout.top_p"),
    _line("rollout.top_k", "rollout.top_k"),
    _line("rollout.dtype", "rollout.dtype"),
    _line("rollout.workers", "rollout.agent.num_workers"),
    _line("rollout.capture_sizes", "rollout.cudagraph_capture_sizes"),
    _line("rollout.eager", "rollout.enforce_eager"),
    _line("rollout.max_sequences", "rollout.max_num_seqs"),
    _line("rollout.options", "rollout.engine_kwargs.{engine}"),
    _line("rollout.validation.n", "rollout.val_kwargs.n"),
    _line("rollout.validation.temperature", "rollout.val_kwargs.temperature"),
    _line("rollout.validation.top_p", "rollout.val_kwargs.top_p"),
    _line("rollout.validation.top_k", "rollout.val_kwargs.top_k"),
    _line("rollout.validation.greedy", "rollout.val_kwargs.do_sample", turn=lambda greedy: not greedy),
    _line("reward.manager", "reward.reward_manager.name"),
    _line("reward.workers", "reward.num_workers"),
    _line("reward.options", "reward.custom_reward_function.reward_kwargs"),
    _line("train.steps", "trainer.total_training_steps"),
    _line("train.epochs", "trainer.total_epochs"),
    _line("train.seed", "data.seed", "rollout.seed", "actor.data_loader_seed", *_ENGINE_SEEDS),
    _line("train.save_every", "trainer.save_freq"),
    _line("train.validate_every", "trainer.test_freq"),
    _line("train.validate_before", "trainer.val_before_train"),
    _line("train.keep_checkpoints", "trainer.max_actor_ckpt_to_keep"),
    _line("train.balance_batch", "trainer.balance_batch"),
    _line("train.loggers", "trainer.logger"),
    _line("hardware.device", "trainer.device"),
    _line("hardware.nodes", "trainer.nnodes"),
    _line("hardware.devices_per_node", "trainer.n_gpus_per_node"),
)  # fmt: skip
"""Which setting becomes which verl key. A table of settings becomes keys below the one named."""

OWN: Mapping[str, str] = {
    "data.probe": "data.probe",
    "data.soundtrack": "data.soundtrack",
    "data.max_tokens": "data.max_length",
    "data.media": "media",
    "data.modality_weights": "data.modality_weights",
    "data.one_modality_a_batch": "data.one_modality_a_batch",
    "model.tiny": "model.tiny",
    "tune.dtype": "actor_rollout_ref.model.lora_dtype",
    "tune.target_parameters": "actor_rollout_ref.model.target_parameters",
    "algo.beta": f"{_PAIR_LOSS}.beta",
    "algo.loss_type": f"{_PAIR_LOSS}.loss_type",
    "algo.label_smoothing": f"{_PAIR_LOSS}.label_smoothing",
    "algo.average_log_prob": f"{_PAIR_LOSS}.average_log_prob",
    "algo.teacher.shares_devices": "algo.teacher.shares_devices",
    "rollout.max_failed_share": "rollout.max_failed_share",
    "rollout.proof.least_pearson": "rollout.proof.least_pearson",
    "rollout.proof.most_difference": "rollout.proof.most_difference",
    "rollout.proof.prompts": "rollout.proof.prompts",
    "rollout.proof.tokens": "rollout.proof.tokens",
    "reward.scorer": "reward.scorer",
}
"""Settings that verl has no key for, and the names they go by in a plan; omnirl acts on them itself."""

_GROUP_ADVANTAGES = {
    "algorithm.adv_estimator": "grpo",
    "algorithm.use_kl_in_reward": False,
    "trainer.critic_warmup": 0,
}
IMPLIED: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("algo", "gspo"): {"actor_rollout_ref.actor.policy_loss.loss_mode": "gspo", **_GROUP_ADVANTAGES},
    ("algo", "opd"): {
        "actor_rollout_ref.actor.policy_loss.loss_mode": "gspo",
        **_GROUP_ADVANTAGES,
        "distillation.enabled": True,
    },
    ("algo", "dpo"): {},
    ("algo", "dapo"): {"actor_rollout_ref.actor.policy_loss.loss_mode": "vanilla", **_GROUP_ADVANTAGES},
    ("tune", "full"): {"actor_rollout_ref.model.lora_rank": 0},
    ("tune", "lora"): {},
}
"""What a `kind` means to verl beyond the settings of its table."""

IMPLIED_OWN: Mapping[str, Mapping[str, Any]] = {
    "dpo": {
        "algorithm.sample_source": "offline",
        "algorithm.paired_preference": True,
        f"{_PAIR_LOSS}.loss_mode": "dpo",
    },
}
"""What an algorithm means where verl has no key for it."""

ONLINE = ("actor_rollout_ref.rollout.", "reward.")
"""What verl's keys for generating and scoring begin with."""

OVERLONG: Mapping[str, str] = {"len": "overlong_tokens", "penalty_factor": "overlong_penalty", "log": "overlong_log"}
"""The keys of DAPO's penalty for overlong responses, and the settings of `algo` that give their values."""
