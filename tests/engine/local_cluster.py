"""A Ray cluster on this machine, for tests: free ports, files in a folder of its own, and no process left behind."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from omnirl.run import launch, processes
from tests.conftest import plain_environment

RAY = (sys.executable, "-m", "ray.scripts.scripts")
_START_S = 300


@dataclass
class Cluster:
    """Where it can be reached: `address` by drivers on this machine, `client` and `jobs` from anywhere."""

    address: str
    client: str
    jobs: str
    tag: str
    stack: ExitStack = field(default_factory=ExitStack)

    def add_node(self, *, before: Sequence[str] = (), **env: str) -> None:
        """A second node on the same machine; `before` are words to start it through, such as `unshare -m`."""
        count = len(alive(self.address))
        _start(self, [*before, *RAY, "start", "--block", f"--address={self.address}", *_small(0, 4)], env)
        _until(lambda: len(alive(self.address)) > count)


@contextmanager
def cluster(*, gpus: int = 1, cpus: int = 16, dashboard: bool = False, **env: str) -> Iterator[Cluster]:
    """A head node that offers so many logical devices."""
    port, client, jobs, agent = free_ports(4)
    folder = tempfile.mkdtemp(prefix="rt-", dir="/tmp")  # pytest's own has too long a name for sockets
    here = Cluster(f"127.0.0.1:{port}", f"ray://127.0.0.1:{client}", f"http://127.0.0.1:{jobs}", launch.new_tag())
    words = [
        *(*RAY, "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={port}"),
        *(f"--temp-dir={folder}", f"--ray-client-server-port={client}", f"--dashboard-port={jobs}"),
        *(f"--dashboard-agent-listen-port={agent}", f"--include-dashboard={str(dashboard).lower()}"),
        *_small(gpus, cpus),
    ]
    with here.stack as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(processes.stop, here.tag, grace_s=5)
        _start(here, words, env)
        _until(lambda: answers(here.address) and (not dashboard or answers(here.jobs)))
        yield here


def alive(address: str) -> list[str]:
    """The names of the nodes that are alive."""
    script = (
        "import sys, ray, json; ray.init(sys.argv[1], log_to_driver=False);"
        "print(json.dumps([n['NodeID'] for n in ray.nodes() if n['Alive']]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, address], env=plain_environment(), capture_output=True, text=True, timeout=60
    )
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else []


def answers(address: str) -> bool:
    host, _, port = address.rpartition("/")[2].rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1):
            return True
    except OSError:
        return False


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in servers]


def _small(gpus: int, cpus: int) -> list[str]:
    return [f"--num-gpus={gpus}", f"--num-cpus={cpus}", "--object-store-memory=100000000", "--disable-usage-stats"]


def _start(here: Cluster, words: Sequence[str], env: dict[str, str]) -> None:
    path = f"{Path(sys.executable).parent}:{plain_environment()['PATH']}"
    given = {"PATH": path, "RAY_AUTH_MODE": "disabled", processes.TAG: here.tag, **env}
    node = subprocess.Popen(words, env=plain_environment(**given), stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)

    def end() -> None:
        node.send_signal(signal.SIGTERM)
        try:
            node.wait(20)
        except subprocess.TimeoutExpired:
            node.kill()
            node.wait()

    here.stack.callback(end)


def _until(true) -> None:
    end = time.monotonic() + _START_S
    while not true():
        assert time.monotonic() < end, "the cluster did not come up"
        time.sleep(0.5)
