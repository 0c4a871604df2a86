"""verl's configuration holds what the recipe says, and what the engine alone knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from omnirl.engine.wiring import compose


@pytest.fixture(scope="module")
def values(run_folder: Path) -> dict[str, Any]:
    return json.loads((run_folder / "recipe.json").read_text())["values"]


def test_every_override_arrives(config: Any, run_folder: Path) -> None:
    from omnirl.commands import _training
    from omnirl.run.record import Run

    prepared, _ = _training.prepare_resume(_training.Wanted("toy", "cpu"), Run(run_folder), force=False)
    own = {"actor_rollout_ref.model.path", "trainer.logger"}
    plain = OmegaConf.to_container(config, resolve=False)
    missing = object()
    for key, value in prepared.rendered.overrides.items():
        found: Any = plain
        for part in key.split("."):
            found = found.get(part, missing) if isinstance(found, dict) else missing
        if key not in own:
            assert found == value, key


def test_the_engines_own_keys(
    config: Any, run_folder: Path, checkpoint: Path, toy_data: Path, values: dict[str, Any]
) -> None:
    for key, expected in {
        "actor_rollout_ref.model._target_": "omnirl.engine.processor.OmniModelConfig",
        "actor_rollout_ref.model.path": str(checkpoint),
        "data.custom_cls.path": "pkg://omnirl.engine.datasets",
        "data.custom_cls.name": "OmniDataset",
        "data.soundtrack": True,
        "data.probe_files": [str(toy_data / "probe.parquet")],
        "data.train_batch_size": 8,
        "trainer.default_local_dir": str(run_folder / "checkpoints"),
        "trainer.experiment_name": "mine",
        "trainer.resume_mode": "auto",
        "trainer.max_failed_share": 0.25,
        "trainer.teacher_shares_devices": False,
        "trainer.logger": ["console", "file"],
        "trainer.total_training_steps": 3,
        "reward.custom_reward_function.name": "compute_score",
    }.items():
        assert OmegaConf.select(config, key) == expected, key
    assert values["rollout"]["max_failed_share"] == 0.25


def test_a_cluster_of_its_own(config: Any) -> None:
    ray = config.ray_kwargs.ray_init
    assert Path(ray._temp_dir).is_dir()
    assert (ray.include_dashboard, ray.num_gpus, ray._node_ip_address) == (False, 1, "127.0.0.1")


def test_a_teacher_has_slots_of_its_own(
    run_folder: Path, checkpoint: Path, values: dict[str, Any], tmp_path: Path
) -> None:
    words = (run_folder / "overrides.txt").read_text()
    teacher = "distillation.enabled=true\ndistillation.nnodes=1\ndistillation.n_gpus_per_node=3\n"
    (tmp_path / "overrides.txt").write_text(words + teacher)
    assert compose(tmp_path, values, checkpoint, tmp_path).ray_kwargs.ray_init.num_gpus == 4


def test_a_users_cluster_gets_no_arguments(
    run_folder: Path, checkpoint: Path, values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    config = compose(run_folder, values, checkpoint, tmp_path)
    assert not {"_temp_dir", "num_gpus", "_node_ip_address", "object_store_memory"} & set(config.ray_kwargs.ray_init)


def test_a_file_logger_is_added_once(
    run_folder: Path, checkpoint: Path, values: dict[str, Any], tmp_path: Path
) -> None:
    words = (run_folder / "overrides.txt").read_text().splitlines()
    for asked, expected in (("file", ["file"]), ("[file,console]", ["file", "console"]), ("wandb", ["wandb", "file"])):
        changed = [word for word in words if "trainer.logger=" not in word]
        (tmp_path / "overrides.txt").write_text("\n".join([*changed, f"trainer.logger={asked}", ""]))
        assert list(compose(tmp_path, values, checkpoint, tmp_path).trainer.logger) == expected


def test_ray_has_a_slot_for_each_device_of_each_part(config: Any) -> None:
    from omnirl.engine.wiring import _local_ray

    recipe = {"hardware": {"nodes": 1, "device": "cpu"}}
    apart = OmegaConf.merge(
        config, {"actor_rollout_ref": {"hybrid_engine": False, "rollout": {"nnodes": 1, "n_gpus_per_node": 2}}}
    )
    assert [_local_ray(found, recipe, Path())["num_gpus"] for found in (config, apart)] == [1, 3]
