"""`omnirl doctor` as a process."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import Cli, plain_environment
from tests.doctor.test_devices import FOUR, program

HEAVY = {"torch", "verl", "ray", "vllm", "transformers", "peft", "av", "math_verify", "omegaconf", "hydra"}


def document(done: subprocess.CompletedProcess[str]) -> dict:
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["schema"] == "omnirl/doctor/1"
    for check in found["checks"]:
        assert set(check) == {"name", "verdict", "found", "wanted", "hint"}
        assert check["verdict"] in ("ok", "warn", "fail")
        assert check["verdict"] == "ok" or check["hint"], check
    names = [check["name"] for check in found["checks"]]
    assert len(set(names)) == len(names)
    assert found["counts"]["fail"] == sum(check["verdict"] == "fail" for check in found["checks"])
    return found


def test_this_machine(cli: Cli) -> None:
    done = cli("doctor", "--json")
    found = document(done)
    assert done.returncode == (4 if found["counts"]["fail"] else 0)
    assert (found["task"], found["hardware"]) == (None, None)


def test_the_table_shows_the_worst_first(cli: Cli) -> None:
    done = cli("doctor", "avqa", "--on", "h800x4")
    assert done.returncode == 4
    verdicts = [
        line.split("  ")[0] for line in done.stdout.splitlines() if line.split("  ")[0] in ("fail", "warn", "ok")
    ]
    assert verdicts == sorted(verdicts, key=["fail", "warn", "ok"].index)
    assert "omnirl data prepare avqa --input DIR --output data/avqa" in done.stdout
    assert done.stdout.splitlines()[-1].startswith(f"{verdicts.count('fail')} fail, ")


def test_a_recipe_that_fits(cli: Cli, toy_data: Path) -> None:
    if find_spec("verl") is None:
        pytest.skip("needs the packages of training")
    files = {"train": "train", "val": "validation", "probe": "probe"}
    sets = [f"--set=data.{key} = {json.dumps(str(toy_data / f'{name}.parquet'))}" for key, name in files.items()]
    found = document(cli("doctor", "toy", "--on", "cpu", *sets, "--json"))
    by_name = {check["name"]: check for check in found["checks"]}
    assert by_name["data.train"]["found"] == "32 rows in 1 file"
    for name in ("packages", "data.train", "data.val", "model", "rollout engine", "attention", "verl's keys", "PyAV"):
        assert by_name[name]["verdict"] == "ok", by_name[name]


def test_gpus_by_a_program_on_the_path(cli: Cli, tmp_path: Path) -> None:
    program(tmp_path / "bin", "nvidia-smi", FOUR)
    environ = {"PATH": str(tmp_path / "bin"), "CUDA_VISIBLE_DEVICES": "0-3"}
    found = document(cli("doctor", "gsm8k", "--on", "h800x4", "--json", env=environ))
    by_name = {check["name"]: check for check in found["checks"]}
    assert by_name["GPU memory"]["verdict"] == "ok"
    assert by_name["CUDA_VISIBLE_DEVICES"]["hint"] == "export CUDA_VISIBLE_DEVICES=0,1,2,3"
    assert by_name["GPUs"]["verdict"] == "fail"
    assert by_name["ffmpeg"]["verdict"] == "warn"


def test_a_cluster_that_is_gone(cli: Cli) -> None:
    done = cli("doctor", "--json", env={"RAY_ADDRESS": "127.0.0.1:1"})
    assert done.returncode == 4
    assert document(done)["checks"][0]["hint"] == "unset RAY_ADDRESS"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["toy"], 2, "`--on HARDWARE` is missing"),
        (["--on", "cpu"], 2, "`--on` needs a task"),
        (["toyy", "--on", "cpu"], 3, "toyy"),
    ],
)
def test_mistakes(cli: Cli, words: list[str], code: int, says: str) -> None:
    done = cli("doctor", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr


def test_nothing_heavy_is_imported() -> None:
    code = """
import contextlib, io, json, sys
from omnirl.__main__ import run
with contextlib.redirect_stdout(io.StringIO()):
    run(["doctor", "toy", "--on", "cpu"])
print(json.dumps(sorted(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=plain_environment(), capture_output=True, text=True, timeout=100
    )
    assert set(json.loads(done.stdout.splitlines()[-1])) & HEAVY == set()
