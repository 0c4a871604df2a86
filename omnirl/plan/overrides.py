"""Recipe settings as verl's configuration: one table says which setting becomes which key."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omnirl.errors import InvalidInput, Problem
from omnirl.plan import hydra
from omnirl.recipe import verl_keys
from omnirl.recipe.model import SCORERS
from omnirl.recipe.registry import Resolved

_SHORT = ("actor", "rollout", "model", "ref")
EXTRA = "after `--`"
"""The place of a word given after `--`."""


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


def _absolute(path: str) -> str:
    """A path as every process sees it; addresses such as `hdfs://...` stay."""
    return path if "://" in path else os.path.abspath(Path(path).expanduser())  # noqa: PTH100 - also takes out `..`


def _checkpoint(path: str) -> str:
    """A folder as an absolute path; a hub name and `tiny` stay."""
    is_folder = path.startswith(("/", ".", "~")) or ("/" in path and Path(path).is_dir())
    return _absolute(path) if is_folder else path


def _files(paths: list[str]) -> list[str]:
    return [_absolute(path) for path in paths]


_ENGINE_SEEDS = ("actor.fsdp_config.seed", "ref.fsdp_config.seed")
_DYNAMIC = ("actor.use_dynamic_bsz", "rollout.log_prob_use_dynamic_bsz")

TABLE: tuple[Line, ...] = (
    _line("data.train", "data.train_files", turn=_files),
    _line("data.val", "data.val_files", turn=_files),
    _line("data.max_prompt_tokens", "data.max_prompt_length"),
    _line("data.max_response_tokens", "data.max_response_length"),
    _line("data.truncation", "data.truncation"),
    _line("data.filter_overlong_prompts", "data.filter_overlong_prompts"),
    _line("data.shuffle", "data.shuffle"),
    _line("data.val_max_rows", "data.val_max_samples"),
    _line("data.val_batch_rows", "data.val_batch_size"),
    _line("data.processor", "data.mm_processor_kwargs"),
    _line("model.path", "model.path", turn=_checkpoint),
    _line("model.attention", "model.override_config.attn_implementation"),
    _line("model.remove_padding", "model.use_remove_padding"),
    _line("model.gradient_checkpointing", "model.enable_gradient_checkpointing"),
    _line("model.exclude_modules", "model.exclude_modules"),
    _line("model.freeze_vision_tower", "actor.freeze_vision_tower"),
    _line("tune.rank", "model.lora_rank"),
    _line("tune.alpha", "model.lora_alpha"),
    _line("tune.merge", "model.lora.merge"),
    _line("tune.target_modules", "model.target_modules"),
    _line("optim.learning_rate", "actor.optim.lr"),
    _line("optim.weight_decay", "actor.optim.weight_decay"),
    _line("optim.clip_grad", "actor.optim.clip_grad"),
    _line("optim.warmup_steps", "actor.optim.lr_warmup_steps"),
    _line("optim.betas", "actor.optim.betas"),
    _line("algo.clip_low", "actor.clip_ratio_low"),
    _line("algo.clip_high", "actor.clip_ratio_high"),
    _line("algo.clip_c", "actor.clip_ratio_c"),
    _line("algo.loss_aggregation", "actor.loss_agg_mode"),
    _line("algo.entropy_coeff", "actor.entropy_coeff"),
    _line("algo.filter_groups", "algorithm.filter_groups.enable"),
    _line("algo.filter_metric", "algorithm.filter_groups.metric"),
    _line("batch.prompts", "data.train_batch_size"),
    _line("batch.mini_prompts", "actor.ppo_mini_batch_size"),
    _line("batch.group_size", "rollout.n"),
    _line("batch.max_tokens_per_device", "actor.ppo_max_token_len_per_gpu", also=dict.fromkeys(_DYNAMIC, True)),
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
    "model.tiny": "model.tiny",
    "tune.dtype": "actor_rollout_ref.model.lora_dtype",
    "rollout.max_failed_share": "rollout.max_failed_share",
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
    ("algo", "dapo"): {"actor_rollout_ref.actor.policy_loss.loss_mode": "vanilla", **_GROUP_ADVANTAGES},
    ("tune", "full"): {"actor_rollout_ref.model.lora_rank": 0},
    ("tune", "lora"): {},
}
"""What a `kind` means to verl beyond the settings of its table."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A recipe as verl takes it.

    Attributes:
        overrides: value by verl's dotted key, without Hydra's `+`.
        settings: value by name, for what verl has no key for.
        env: environment variables of the run.
        problems: warnings.
    """

    overrides: dict[str, Any]
    settings: dict[str, Any]
    env: dict[str, str]
    problems: tuple[Problem, ...] = ()


def render(resolved: Resolved, *, extra: Sequence[str] = ()) -> Rendered:
    """Turn a recipe into verl's overrides.

    Weakest first: the settings, the recipe's `[verl]` table, and the Hydra words in `extra`.

    Raises:
        InvalidInput: words that are not Hydra's, keys that verl does not have, values of a wrong type or that Hydra
            cannot take; with every problem.
    """
    recipe = resolved.recipe
    values = recipe.model_dump(mode="json")
    overrides = dict(_from_table(values))
    from_verl = dict(_spread(recipe.verl))
    from_extra, problems = _read(extra)
    problems += verl_keys.check(from_verl, lambda key: resolved.where(f"verl.{key}"))
    wrong = {problem.key for problem in problems}
    shadowing = [
        *_shadowed(from_verl, overrides, lambda key: resolved.where(f"verl.{key}"), "verl."),
        *_shadowed(from_extra, overrides, lambda _: EXTRA, ""),
    ]
    problems += [problem for problem in shadowing if problem.key not in wrong]
    overrides |= from_verl | from_extra
    problems += _unwritable(overrides)
    if any(problem.severity == "error" for problem in problems):
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise InvalidInput(f"verl cannot take these overrides ({count})", problems=tuple(problems))
    settings = {name: _at(values, setting) for setting, name in OWN.items()}
    settings["data.probe"] = _files(recipe.data.probe)
    settings = {name: value for name, value in _spread(settings) if value is not None}
    return Rendered(overrides, settings, dict(recipe.env), tuple(problems))


def hydra_words(overrides: Mapping[str, Any]) -> list[str]:
    """One `key=value` word a key; `+` where verl's configuration lacks the key, as Hydra wants it."""
    return [f"{'' if key in verl_keys.types() else '+'}{key}={hydra.write(value)}" for key, value in overrides.items()]


def _from_table(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for table in ("tune", "algo"):
        yield from IMPLIED[table, values[table]["kind"]].items()
    yield from _kl(values["algo"]["kl_loss_coef"])
    yield from _reward(values["reward"]["scorer"])
    if values["rollout"]["validation"]["greedy"]:
        # verl's V1 trainer never reads do_sample: it is the temperature that makes validation greedy.
        yield "actor_rollout_ref.rollout.val_kwargs.temperature", 0.0
    for line in TABLE:
        value = _at(values, line.setting)
        if value is None or value == {}:
            continue
        for key in line.keys:
            target = key.format(engine=values["rollout"]["engine"])
            yield from _spread({target: line.turn(value) if line.turn else value})
        yield from line.also.items()


def _kl(coefficient: float) -> Iterator[tuple[str, Any]]:
    yield "actor_rollout_ref.actor.use_kl_loss", coefficient > 0
    if coefficient > 0:
        yield "actor_rollout_ref.actor.kl_loss_coef", coefficient


def _reward(scorer: str) -> Iterator[tuple[str, Any]]:
    function = "reward.custom_reward_function"
    if scorer in SCORERS:
        yield f"{function}.path", "pkg://omnirl.reward.score"
        yield f"{function}.name", "compute_score"
        yield f"{function}.reward_kwargs.scorer", scorer
    else:
        path, _, name = scorer.rpartition(":")
        yield f"{function}.path", _absolute(path)
        yield f"{function}.name", name


def _at(values: Mapping[str, Any], setting: str) -> Any:
    found: Any = values
    for name in setting.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _spread(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Dictionaries as dotted keys."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _spread({f"{key}.{name}": inner for name, inner in value.items()})
        else:
            yield key, value


def _read(extra: Sequence[str]) -> tuple[dict[str, Any], list[Problem]]:
    found: dict[str, Any] = {}
    problems: list[Problem] = []
    for word in extra:
        try:
            key, value, is_new = hydra.parse(word)
        except ValueError as error:
            hint = "verl's overrides look like `trainer.save_freq=10`"
            problems.append(Problem("not-an-override", f"`{word}` {error}", where=EXTRA, hint=hint))
            continue
        spread = dict(_spread({key: value}))
        found |= spread
        for problem in verl_keys.check(spread, lambda _: EXTRA, table=""):
            if is_new and problem.code == "unknown-verl-key":
                message = f"{problem.message}; it is passed on because of the `+`"
                problem = Problem(problem.code, message, "warning", problem.key, problem.where, problem.hint)  # noqa: PLW2901
            problems.append(problem)
    return found, problems


def _shadowed(
    values: Mapping[str, Any], rendered: Mapping[str, Any], where: Callable[[str], str | None], table: str
) -> Iterator[Problem]:
    """A key that a setting gives as well: the rules never see the value that wins."""
    setting_of = {key: line.setting for line in TABLE for key in line.keys}
    for key, value in values.items():
        if key in setting_of and key in rendered and rendered[key] != value:
            setting = setting_of[key]
            message = f"takes the place of `{setting}`, so the recipe's rules do not see it"
            hint = f"use `--set '{setting} = ...'`"
            yield Problem("shadows-a-setting", message, "warning", table + key, where(key), hint)


def _unwritable(overrides: Mapping[str, Any]) -> Iterator[Problem]:
    for key, value in overrides.items():
        try:
            hydra.write(value)
        except ValueError as error:
            yield Problem("not-for-hydra", str(error), key=key)
