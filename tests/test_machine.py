"""What keeps a run from starting on this machine."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from omnirl import machine
from omnirl.errors import Problem


def check(runs: Path, **changed) -> dict[str, Problem]:
    asked = {"device": "cpu", "devices": 1, "nodes": 1, "engine": "hf", "runs": runs, **changed}
    return {problem.code: problem for problem in machine.check(**asked)}


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_too_few_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    problem = check(tmp_path, device="cuda", devices=4)["too-few-devices"]
    assert problem.message == "the recipe needs 4 NVIDIA GPUs, this machine has 0"
    assert problem.severity == "error"
    assert "--dry-run" in str(problem.hint)


def test_an_engine_that_does_not_run_yet(tmp_path: Path) -> None:
    assert "without a rollout" in check(tmp_path, engine="none")["engine-planned"].message
    for engine in ("vllm", "vllm_omni"):
        assert "on `npu` is planned" in check(tmp_path, engine=engine, device="npu")["engine-planned"].message
        assert "engine-planned" not in check(tmp_path, engine=engine, device="cuda")


def test_an_engine_whose_packages_are_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(machine.ENGINE_MODULES, "vllm_omni", ("json", "no_such_engine"))
    problem = check(tmp_path, engine="vllm_omni", device="cuda")["no-engine-packages"]
    assert problem.message == "the rollout engine `vllm_omni` needs `no_such_engine`"
    assert problem.hint == "pip install 'omnirl[gpu]'"
    monkeypatch.setitem(machine.ENGINE_MODULES, "vllm_omni", ("json",))
    assert not {"no-engine-packages", "engine-planned"} & check(tmp_path, engine="vllm_omni", device="cuda").keys()


def test_many_machines_need_a_cluster(tmp_path: Path) -> None:
    assert "no-cluster" in check(tmp_path, device="npu", nodes=2)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nonsense", "host:99999999"])
def test_a_cluster_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    problem = check(tmp_path)["ray-address"]
    assert f"`{address}`" in problem.message
    assert problem.hint == "unset RAY_ADDRESS"


def test_a_cluster_that_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{server.getsockname()[1]}")
        assert "ray-address" not in check(tmp_path)


def test_a_runs_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "is not a folder" in check(tmp_path / "file" / "runs")["runs-folder"].message
    assert "runs-folder" not in check(tmp_path / "a" / "b")


def test_versions_name_what_is_absent() -> None:
    versions = machine.versions()
    assert versions["python"]
    assert set(machine.PACKAGES) < set(versions)
    assert machine.version("no-such-package-at-all") is None
