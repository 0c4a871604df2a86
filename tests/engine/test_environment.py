"""The processes of a run get what they need, and nothing of the user's is touched."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import python

SCRIPT = """
import json, os, sys
from pathlib import Path
from omnirl.engine import environment
before = dict(os.environ)
recipe = {"hardware": {"device": sys.argv[2]}, "model": {"path": sys.argv[3]}}
folder = environment.prepare(recipe, Path(sys.argv[1]))
print(json.dumps([str(folder), before, dict(os.environ)]))
"""


@pytest.fixture
def prepare(tmp_path: Path):
    def run(device: str = "cpu", model: str = "tiny", **env: str) -> tuple[Path, dict[str, str], set[str]]:
        folder, before, after = python(SCRIPT, tmp_path, device, model, TMPDIR=str(tmp_path), **env)
        changed = {name: value for name, value in after.items() if before.get(name) != value}
        return Path(folder), changed, set(before) - set(after)

    return run


def test_on_a_cpu(prepare: Any, tmp_path: Path) -> None:
    ray, changed, removed = prepare(CUDA_VISIBLE_DEVICES="")
    assert changed.pop("RAY_AUTH_MODE") == "token"
    assert re.fullmatch("[0-9a-f]{64}", changed.pop("RAY_AUTH_TOKEN"))
    assert changed == {
        "OMNIRL_ATTEMPT_DIR": str(tmp_path),
        "VERL_USE_EXTERNAL_MODULES": "omnirl.engine.plugin",
        "VERL_FILE_LOGGER_PATH": str(tmp_path / "metrics.jsonl"),
        "HF_DATASETS_CACHE": str(ray / "datasets"),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "VERL_PLATFORM": "cpu",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    assert removed == {"CUDA_VISIBLE_DEVICES"}
    assert ray.parent == tmp_path
    assert (tmp_path / "ray_dir.txt").read_text() == str(ray)
    # Ray's own names below it take 65 of the 107 characters of a socket's path.
    assert len(ray.name) <= 24
    shutil.rmtree(ray)


def test_each_attempt_has_its_own_token_and_folder(prepare: Any) -> None:
    (one, first, _), (two, second, _) = prepare(), prepare()
    assert one != two
    assert first["RAY_AUTH_TOKEN"] != second["RAY_AUTH_TOKEN"]


def test_on_an_accelerator_devices_and_threads_are_left_alone(prepare: Any) -> None:
    _, changed, removed = prepare("cuda", "some/model", CUDA_VISIBLE_DEVICES="1,2")
    assert not changed.keys() & {"VERL_PLATFORM", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS", "HF_HUB_OFFLINE"}
    assert not removed


def test_a_users_cluster_keeps_its_own_credentials(prepare: Any) -> None:
    _, changed, _ = prepare(RAY_ADDRESS="10.0.0.1:6379")
    assert not changed.keys() & {"RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"}


def test_the_loopback_is_for_a_ray_of_the_runs_own(prepare: Any) -> None:
    _, changed, _ = prepare(RAY_ADDRESS="auto")
    assert changed["VERL_PLATFORM"] == "cpu"
    assert "GLOO_SOCKET_IFNAME" not in changed


@pytest.mark.parametrize("address", ["", "local"])
def test_an_address_that_names_no_cluster_goes(prepare: Any, address: str) -> None:
    _, changed, removed = prepare(RAY_ADDRESS=address)
    assert "RAY_AUTH_TOKEN" in changed
    assert "RAY_ADDRESS" in removed


def test_what_the_nodes_of_a_cluster_are_told(tmp_path: Path) -> None:
    script = """
import json, os, sys
from pathlib import Path
from omnirl.engine import environment
recipe = {"hardware": {"device": "cpu"}, "model": {"path": "tiny"}}
environment.prepare(recipe, Path(sys.argv[1]))
print(json.dumps([environment.cluster(), environment.for_nodes(["WANDB_MODE", "NOT_SET"])]))
"""
    given = {"RAY_ADDRESS": "h:1", "OMNIRL_ATTEMPT": "tag", "WANDB_MODE": "offline", "CUDA_VISIBLE_DEVICES": "0"}
    address, told = python(script, tmp_path, TMPDIR=str(tmp_path), **given)
    assert address == "h:1"
    assert told["OMNIRL_ATTEMPT_DIR"] == str(tmp_path)
    assert told["VERL_USE_EXTERNAL_MODULES"] == "omnirl.engine.plugin"
    assert (told["OMNIRL_ATTEMPT"], told["WANDB_MODE"]) == ("tag", "offline")
    assert not {"RAY_ADDRESS", "NOT_SET", "CUDA_VISIBLE_DEVICES", "PATH"} & set(told)


def test_a_users_threads_count(prepare: Any) -> None:
    _, changed, _ = prepare(OMP_NUM_THREADS="3")
    assert "OMP_NUM_THREADS" not in changed
