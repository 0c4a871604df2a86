"""Runs in a cluster that was there before them: joined, refused, looked at node by node, and submitted as jobs."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnirl.engine.nodes import CONTROLLER
from omnirl.errors import Exit
from omnirl.run import processes
from omnirl.run.record import Run
from tests.conftest import ROOT, Cli, plain_environment
from tests.engine.local_cluster import RAY, Cluster, cluster
from tests.engine.test_runs import RUN_S, data, finished, words

__all__ = ["data"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def one() -> Iterator[Cluster]:
    with cluster(dashboard=True) as started:
        yield started


def job_of(said: str) -> str:
    return said.splitlines()[0].removeprefix("job ")


def ray_job(here: Cluster, *words: str) -> str:
    command = [*RAY, "job", *words, "--address", here.jobs]
    return subprocess.run(
        command, env=plain_environment(), capture_output=True, text=True, timeout=120, check=True
    ).stdout


@pytest.mark.parametrize("way", ["address", "client", "variable"])
def test_too_few_devices(one: Cluster, cli: Cli, data: Path, tmp_path: Path, way: str) -> None:
    command = words(data, "few", "hardware.devices_per_node = 2")
    named = {"address": ["--address", one.address], "client": ["--address", one.client], "variable": []}[way]
    env = {"RAY_ADDRESS": one.address} if way == "variable" else {}
    done = cli(*command, *named, env=env, timeout_s=300)
    assert done.returncode == Exit.ENVIRONMENT, done.stderr
    assert "needs 2 GPU, cluster has 1" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_another_run_in_the_cluster(one: Cluster, cli: Cli, data: Path, tmp_path: Path) -> None:
    script = f"""
import sys, time, ray
ray.init(sys.argv[1], log_to_driver=False)
held = ray.remote(num_cpus=0)(type("Held", (), {{}})).options(name={CONTROLLER!r}, namespace="transfer_queue").remote()
ray.get(held.__ray_ready__.remote())
print("up", flush=True)
time.sleep(300)
"""
    command = [sys.executable, "-c", script, one.address]
    with subprocess.Popen(command, env=plain_environment(), stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None and "up" in other.stdout.readline()
            done = cli(*words(data, "second"), "--address", one.address, timeout_s=300)
        finally:
            other.kill()
    assert done.returncode == Exit.ENVIRONMENT, done.stderr
    assert "another run trains in the cluster" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_run_as_a_job(one: Cluster, cli: Cli, data: Path, tmp_path: Path) -> None:
    done = cli(*words(data, "job"), "--address", one.jobs, "--submit", timeout_s=RUN_S)
    assert "1 node: the same packages, the folder of runs, 3 files and" in done.stderr
    finished(tmp_path, done, "job", 3)
    assert json.loads((tmp_path / "runs" / "job" / "run.json").read_text())["address"]
    assert "SUCCEEDED" in ray_job(one, "list")


def test_a_job_that_fails_gives_its_exit_code(one: Cluster, cli: Cli, data: Path, tmp_path: Path) -> None:
    command = words(data, "absent", f'data.train = "{tmp_path}/absent.parquet"')
    done = cli(*command, "--address", one.jobs, "--submit", "--json", timeout_s=300)
    assert done.returncode == Exit.INVALID, done.stderr
    assert "absent.parquet" in done.stderr
    document = json.loads(done.stdout)
    assert (document["schema"], document["status"], document["exit"]) == ("omnirl/job/1", "FAILED", Exit.INVALID)


def test_ctrl_c_leaves_the_job_and_stopping_it_leaves_nothing(
    one: Cluster, cli: Cli, data: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "omnirl", *words(data, "left"), "--address", one.address, "--submit"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=plain_environment(), **pipes) as follower:
        assert follower.stderr is not None and follower.stdout is not None
        seen = ""
        while "starting the workers" not in seen:
            line = follower.stderr.readline()
            assert line, seen
            seen += line
        follower.send_signal(signal.SIGINT)
        assert follower.wait(30) == 130
        job = job_of(follower.stdout.read())
        assert f"the job goes on; follow it with: ray job logs {job} --follow" in follower.stderr.read()
    assert "RUNNING" in ray_job(one, "status", job)
    ray_job(one, "stop", job)
    run = Run(tmp_path / "runs" / "left")
    (attempt,) = run.attempts()
    end = time.monotonic() + 180
    while not (attempt.path / "exit.json").exists() and time.monotonic() < end:
        time.sleep(0.2)
    assert (json.loads((attempt.path / "exit.json").read_text())["state"]) == "interrupted"
    assert attempt.tag and processes.find(attempt.tag) == []


def test_a_job_that_is_not_waited_for(one: Cluster, cli: Cli, data: Path, tmp_path: Path) -> None:
    command = words(data, "absent", f'data.train = "{tmp_path}/absent.parquet"')
    done = cli(*command, "--address", one.jobs, "--submit", "--no-wait", timeout_s=300)
    assert done.returncode == 0, done.stderr
    job = job_of(done.stdout)
    end = time.monotonic() + 180
    while "failed" not in (status := ray_job(one, "status", job)):
        assert time.monotonic() < end, status
        time.sleep(1)


def test_nodes_that_differ(cli: Cli, data: Path, tmp_path: Path) -> None:
    apart = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none "$0" && mount -t tmpfs none "$1" && shift && exec "$@"']
    if subprocess.run([*apart[:4], "mount -t tmpfs none /mnt"], capture_output=True).returncode:
        pytest.skip("needs the right to mount in a namespace of its own")
    runs = tmp_path / "runs"
    runs.mkdir()
    other = tmp_path / "other"
    shutil.copytree(ROOT / "omnirl", other / "omnirl", ignore=shutil.ignore_patterns("__pycache__"))
    with (other / "omnirl" / "__init__.py").open("a") as file:
        file.write("# changed\n")
    with cluster() as here:
        alike = cli(*words(data, "a"), "--address", here.address, "--dry-run", timeout_s=60)
        assert alike.returncode == 0
        here.add_node(before=[*apart, str(data / "media"), str(runs)], PYTHONPATH=str(other))
        done = cli(*words(data, "a"), "--address", here.address, timeout_s=240)
    assert done.returncode == Exit.INVALID, done.stderr
    assert "1 of 2 nodes" in done.stderr
    assert "media files not there" in done.stderr
    assert f"the folder of runs `{runs}` is not the one where the run starts" in done.stderr
    assert "omnirl's code is not the same" in done.stderr
    assert list(runs.iterdir()) == []
