"""The same promises with a real Ray below the child: its daemons and workers go too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from omnirl.run import launch, processes
from tests.conftest import plain_environment
from tests.run.test_launch import DRIVER, until

pytestmark = pytest.mark.slow

RAY = """
import os, sys, time
from pathlib import Path
from omnirl.run.processes import die_with_parent
die_with_parent(os.getppid())
os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
import tempfile
folder = tempfile.mkdtemp(prefix="omnirl-ray-")
Path(sys.argv[1], "ray_dir.txt").write_text(folder)
import ray
ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80_000_000, _temp_dir=folder, log_to_driver=False)
@ray.remote
class Worker:
    def pid(self):
        return os.getpid()
workers = [Worker.remote() for _ in range(2)]
pids = ray.get([worker.pid.remote() for worker in workers])
Path(sys.argv[1], "up").write_text(f"{os.getpid()} {' '.join(map(str, pids))}")
time.sleep(600)
"""


@pytest.fixture
def started(tmp_path: Path):
    pytest.importorskip("ray", reason="needs the extra `train`")
    tag = launch.new_tag()
    command = [sys.executable, "-c", DRIVER, str(tmp_path), tag, sys.executable, "-c", RAY, str(tmp_path)]
    process = subprocess.Popen(command, env=plain_environment())
    try:
        until(lambda: (tmp_path / "up").is_file() and (tmp_path / "up").read_text(), timeout_s=90)
        assert len(processes.find(tag)) >= 5
        yield process, tag, int((tmp_path / "up").read_text().split()[0])
    finally:
        process.kill()
        process.wait()
        processes.stop(tag, grace_s=0)


def left(tag: str) -> list[str]:
    return [" ".join(process.cmdline())[:80] for process in processes.find(tag)]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_omnirl(started, tmp_path: Path, signum: int) -> None:
    process, tag, _ = started
    process.send_signal(signum)
    assert process.wait(60) != 0
    assert left(tag) == []
    assert not Path((tmp_path / "ray_dir.txt").read_text()).exists()


def test_the_child_is_killed(started) -> None:
    process, tag, child = started
    os.kill(child, signal.SIGKILL)
    assert process.wait(60) == 0
    assert left(tag) == []


def test_a_worker_is_killed_with_everything_else_running(started) -> None:
    process, tag, _ = started
    (raylet,) = [p for p in processes.find(tag) if p.name() == "raylet"]
    raylet.kill()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert left(tag) == []


def test_omnirl_itself_is_killed(started) -> None:
    process, tag, child = started
    process.kill()
    process.wait()
    until(lambda: not psutil.pid_exists(child))
    # The engine dies with omnirl, Ray's daemons with the engine, Ray's workers when their raylet has gone.
    until(lambda: left(tag) == [], timeout_s=60)
