"""Limits of the kernel, and the network of one machine."""

from __future__ import annotations

import os
import resource
import socket
from pathlib import Path

from omnirl.doctor import limits, network
from omnirl.doctor.check import Target

INFINITE = resource.RLIM_INFINITY


def test_open_files() -> None:
    assert limits.open_files(1024, INFINITE, "cuda").found == "1024, at most unlimited"
    assert limits.open_files(1024, INFINITE, "cuda").verdict == "ok"  # Ray raises the soft limit
    assert limits.open_files(1024, 1024, "cpu").verdict == "ok"
    found = limits.open_files(256, 4096, "cuda")
    assert (found.verdict, found.found) == ("warn", "256, at most 4096")
    assert "--ulimit nofile=8192:8192" in str(found.hint)


def test_processes() -> None:
    assert limits.processes_and_threads(INFINITE, None, "cuda").found == "unlimited"
    assert limits.processes_and_threads(5000, None, "cuda").verdict == "warn"
    container = limits.processes_and_threads(INFINITE, 100, "cpu")
    assert (container.verdict, container.hint) == ("fail", "docker run --pids-limit=-1")
    assert limits.processes_and_threads(300, 90000, "cpu").hint == "ulimit -u 1024"


def test_the_limit_of_a_container(tmp_path: Path) -> None:
    file = tmp_path / "pids.max"
    assert limits.pids_limit(file) is None
    file.write_text("max\n")
    assert limits.pids_limit(file) is None
    file.write_text("512\n")
    assert limits.pids_limit(file) == 512


def test_locked_memory() -> None:
    assert limits.locked_memory(INFINITE).verdict == "ok"
    assert limits.locked_memory(8 << 20).found == "8 MiB"


def test_shared_memory_that_is_not_there(tmp_path: Path) -> None:
    (found,) = limits.shared_memory("cpu", tmp_path / "shm")
    assert found.verdict == "warn"


def test_the_checks_of_this_machine() -> None:
    target = Target(None, Path("runs"), dict(os.environ))
    assert {"open files", "processes"} <= {one.name for one in limits.check(target)}
    assert network.loopback().verdict == "ok"


def test_a_port_that_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert network.dashboard(port).verdict == "warn"
    assert network.dashboard(port).verdict == "ok"


def test_the_host_name(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("::1 gpu-7\n# 10.0.0.1 gpu-7\n10.0.0.2 other gpu-7 # mine\n127.0.0.1 laptop\n\n")
    assert network.host_name("gpu-7", {}, needed=True, hosts=hosts).found == "gpu-7 is 10.0.0.2"
    assert network.host_name("laptop", {}, needed=False, hosts=hosts).verdict == "ok"
    assert network.host_name("laptop", {}, needed=True, hosts=hosts).verdict == "warn"
    lost = network.host_name("name..invalid", os.environ, needed=False, hosts=tmp_path / "none")
    assert (lost.verdict, lost.hint) == ("warn", "echo 127.0.0.1 name..invalid | sudo tee -a /etc/hosts")


def test_a_proxy() -> None:
    assert network.proxies({}).verdict == "ok"
    assert network.proxies({"HTTPS_PROXY": "http://p:1"}).verdict == "warn"
    assert network.proxies({"https_proxy": "http://p:1", "NO_PROXY": "localhost, 127.0.0.1"}).verdict == "ok"
