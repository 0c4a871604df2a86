"""Ray: the cluster that is named, and what runs left behind."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from omnirl.doctor import ray_cluster, ray_leftovers
from omnirl.doctor.check import Target
from omnirl.recipe import registry
from omnirl.recipe.model import Hardware
from omnirl.run.processes import TAG


def hardware(device: str, devices: int, nodes: int = 1) -> Hardware:
    return Hardware(summary="for a test", **{"device": device, "devices_per_node": devices, "nodes": nodes})


def named(address: str | None) -> Target:
    environ = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return Target(None, Path("runs"), environ if address is None else {**environ, "RAY_ADDRESS": address})


def test_no_cluster_named() -> None:
    (found,) = ray_cluster.check(named(None))
    assert found.verdict == "ok"
    many = registry.resolve("mmk12", "ascend910c-x16x2").recipe
    (found,) = ray_cluster.check(Target(many, Path("runs"), {}))
    assert (found.verdict, found.hint) == ("fail", "export RAY_ADDRESS=HOST:6379")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nonsense"])
def test_a_cluster_that_is_gone(address: str) -> None:
    (found,) = ray_cluster.check(named(address))
    assert (found.verdict, found.hint) == ("fail", "unset RAY_ADDRESS")
    assert f"`{address}`" in found.found


@pytest.mark.parametrize(
    ("nodes", "wanted", "verdict", "says"),
    [
        ([{"CPU": 16, "GPU": 4}], hardware("cuda", 4), "ok", "1 node, 16 CPU, 4 GPU"),
        ([{"CPU": 16}], hardware("cuda", 4), "fail", "needs 4 GPU, cluster has 0"),
        ([{"CPU": 2, "GPU": 1}], hardware("cpu", 1), "fail", "0 nodes with 1 GPU and 3 CPU, needs 1"),
        ([{"CPU": 8, "GPU": 2}] * 2, hardware("cuda", 4), "fail", "0 nodes with 4 GPU and 12 CPU, needs 1"),
        (
            [{"CPU": 64, "NPU": 16}],
            hardware("npu", 16, 2),
            "fail",
            "needs 32 NPU (16 on each of 2 nodes), cluster has 16",
        ),
        ([{"CPU": 64, "NPU": 16}] * 2, hardware("npu", 16, 2), "ok", "2 nodes, 128 CPU, 32 NPU"),
    ],
)
def test_what_a_cluster_has(nodes: list[dict[str, float]], wanted: Hardware, verdict: str, says: str) -> None:
    free = {name: sum(node.get(name, 0) for node in nodes) for name in ("CPU", "GPU", "NPU")}
    found = ray_cluster.resources("head:6379", nodes, free, wanted)
    assert (found.verdict, says in found.found) == (verdict, True), found
    if verdict == "ok":
        busy = ray_cluster.resources("head:6379", nodes, {**free, "GPU": 1, "NPU": 1}, wanted)
        assert busy.verdict == "warn"


@pytest.mark.slow
def test_a_real_cluster() -> None:
    pytest.importorskip("ray")
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # pytest's own has too long a name for sockets
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    words = [
        "-m",
        "ray.scripts.scripts",
        "start",
        "--head",
        "--block",
        f"--port={port}",
        "--num-cpus=4",
        "--num-gpus=2",
    ]
    more = ["--include-dashboard=false", "--object-store-memory=80000000", f"--temp-dir={folder}"]
    environ = {**named(None).environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    head = subprocess.Popen([sys.executable, *words, *more], env=environ, stdout=subprocess.DEVNULL)
    try:
        target = named(f"127.0.0.1:{port}")
        until = time.monotonic() + 80
        while (found := next(iter(ray_cluster.check(target)))).verdict != "ok" and time.monotonic() < until:
            time.sleep(1)
        assert found.found == f"127.0.0.1:{port}: 1 node, 4 CPU, 2 GPU"
    finally:
        head.send_signal(signal.SIGTERM)
        head.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def test_room_for_rays_files(tmp_path: Path) -> None:
    assert ray_leftovers.room(Path("/tmp")).verdict in ("ok", "warn")
    deep = tmp_path / ("a" * 60)
    deep.mkdir()
    found = ray_leftovers.room(deep)
    assert (found.verdict, found.hint) == ("fail", "export TMPDIR=/tmp")
    assert found.wanted == "at most 23, for Ray's sockets"
    assert ray_leftovers.room(tmp_path / "nowhere").verdict == "fail"
    assert ray_leftovers.temporary({"TMPDIR": "", "TMP": "/x"}) == Path("/x")
    assert ray_leftovers.temporary({}) == Path("/tmp")


def test_the_longest_name_of_a_socket_is_the_kernels() -> None:
    rest = 107 - ray_leftovers.LONGEST_PATH
    for length, error in ((ray_leftovers.LONGEST_PATH, FileNotFoundError), (ray_leftovers.LONGEST_PATH + 1, OSError)):
        with socket.socket(socket.AF_UNIX) as end, pytest.raises(error) as raised:
            end.connect("x" * (length + rest))
        assert ("too long" in str(raised.value)) == (length > ray_leftovers.LONGEST_PATH)


def test_folders_of_killed_runs(tmp_path: Path) -> None:
    old, used, other = (tmp_path / name for name in ("omnirl-ray-old", "omnirl-ray-used", "ray"))
    for folder in (old, used, other):
        folder.mkdir()
    (tmp_path / "omnirl-ray-link").symlink_to(other)
    waiting = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(300)", f"--temp-dir={used}"], stdout=subprocess.DEVNULL
    )
    try:
        assert list(ray_leftovers.left_folders(tmp_path, ray_leftovers.seen())) == []  # all are young
        (found,) = ray_leftovers.left_folders(tmp_path, ray_leftovers.seen(), young_s=0)
    finally:
        waiting.kill()
        waiting.wait()
    assert (found.verdict, found.hint) == ("warn", f"rm -r {old}")


def test_processes_of_killed_runs() -> None:
    tag = "a-test-of-the-doctor"
    code = "import time; time.sleep(300)"
    environ = {**os.environ, TAG: tag}
    left = subprocess.Popen([sys.executable, "-c", code], env=environ)
    try:
        mine = [one for one in ray_leftovers.seen() if one.tag == tag]
        (found,) = ray_leftovers.left_processes(mine)
        assert found.hint == f"kill {left.pid}"
        trainer = subprocess.Popen([sys.executable, "-c", code, "omnirl.engine.main"], env=environ)
        try:
            mine = [one for one in ray_leftovers.seen() if one.tag == tag]
            assert len(mine) == 2
            assert list(ray_leftovers.left_processes(mine)) == []
        finally:
            trainer.kill()
            trainer.wait()
    finally:
        left.kill()
        left.wait()
