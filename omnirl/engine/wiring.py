"""verl's configuration for one run: the recipe's overrides, and what only the engine knows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import verl
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import DictConfig, OmegaConf, open_dict

_LOCAL_CPUS = 16
"""Logical CPUs offered to Ray: a placement bundle asks for three, and they bound nothing."""
_OBJECT_STORE_BYTES = 256 * 2**20


def compose(run: Path, recipe: dict[str, Any], model: Path, ray_folder: Path) -> DictConfig:
    """Compose verl's `ppo_trainer` configuration for the run folder `run`."""
    words = (run / "overrides.txt").read_text(encoding="utf-8").splitlines()
    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        config = hydra_compose("ppo_trainer", overrides=[word for word in words if word.strip()])
    loggers = config.trainer.logger
    loggers = [loggers] if isinstance(loggers, str) else list(loggers)
    own = {
        "actor_rollout_ref.model._target_": "omnirl.engine.processor.OmniModelConfig",
        "actor_rollout_ref.model.path": str(model),
        "actor_rollout_ref.model.lora_dtype": recipe["tune"].get("dtype"),
        "actor_rollout_ref.model.target_parameters": recipe["tune"].get("target_parameters"),
        "actor_rollout_ref.model.freeze_vision_tower": bool(recipe["model"].get("freeze_vision_tower")),
        "data.custom_cls.path": "pkg://omnirl.engine.datasets",
        "data.custom_cls.name": "OmniDataset",
        "data.soundtrack": recipe["data"]["soundtrack"],
        "data.probe_files": list(recipe["data"]["probe"]),
        "trainer.default_local_dir": str(run / "checkpoints"),
        "trainer.project_name": "omnirl",
        "trainer.experiment_name": run.name,
        "trainer.resume_mode": "auto",
        "trainer.logger": loggers if "file" in loggers else [*loggers, "file"],
        "trainer.max_failed_share": recipe["rollout"]["max_failed_share"],
        "trainer.sync_proof": recipe["rollout"].get("proof"),
        "trainer.teacher_shares_devices": recipe["algo"].get("teacher", {}).get("shares_devices", False),
    }
    if not os.environ.get("RAY_ADDRESS"):
        own |= {f"ray_kwargs.ray_init.{key}": value for key, value in _local_ray(config, recipe, ray_folder).items()}
    with open_dict(config):
        for key, value in own.items():
            OmegaConf.update(config, key, value, force_add=True)
    return config


def _local_ray(config: DictConfig, recipe: dict[str, Any], ray_folder: Path) -> dict[str, Any]:
    """Arguments of `ray.init` for a cluster of this run's own."""
    arguments: dict[str, Any] = {"include_dashboard": False, "_temp_dir": str(ray_folder)}
    if recipe["hardware"]["nodes"] == 1:
        arguments["_node_ip_address"] = "127.0.0.1"
    if recipe["hardware"]["device"] == "cpu":
        arguments |= {
            "num_cpus": _LOCAL_CPUS,
            "num_gpus": sum(map(_slots, _pools(config))),
            "object_store_memory": _OBJECT_STORE_BYTES,
            "_node_ip_address": "127.0.0.1",
        }
    return arguments


def _pools(config: DictConfig) -> list[DictConfig]:
    """What has devices of its own."""
    apart = [] if config.actor_rollout_ref.hybrid_engine else [config.actor_rollout_ref.rollout]
    return [config.trainer, *apart, *([config.distillation] if config.distillation.enabled else [])]


def _slots(pool: DictConfig) -> int:
    """Logical devices of a resource pool, all of them here."""
    return int(pool.nnodes * pool.n_gpus_per_node)
