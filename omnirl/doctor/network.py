"""What processes of one run need to find each other: loopback, the machine's name, an address for other machines."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from omnirl.doctor.check import Check, Target
from omnirl.doctor.child import ask

DASHBOARD_PORT = 8265
_LOOKUP_S = 5.0
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def check(target: Target) -> Iterator[Check]:
    """Ports, names and addresses of this machine."""
    nodes = target.recipe.hardware.nodes if target.recipe else 1
    yield loopback()
    yield dashboard()
    yield host_name(socket.gethostname(), target.environ, needed=nodes > 1)
    if nodes > 1:
        yield addresses()
    yield proxies(target.environ)


def loopback() -> Check:
    """Whether a server can be started on 127.0.0.1 and reached."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=3),
        ):
            return Check("loopback", "ok", "127.0.0.1 can be bound and reached")
    except OSError as error:
        found = f"127.0.0.1 cannot be used: {error.strerror or error}"
        return Check("loopback", "fail", found, "a loopback interface with IPv4", "sudo ip link set lo up")


def dashboard(port: int = DASHBOARD_PORT) -> Check:
    """Whether another Ray seems to run here, by its dashboard's port. A run of omnirl starts no dashboard."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            found = f"port {port} answers: another Ray seems to run here"
            return Check("Ray dashboard", "warn", found, "devices that no other Ray hands out", "ray status")
    except OSError:
        return Check("Ray dashboard", "ok", f"no other Ray's on port {port}")


def host_name(name: str, environ: Mapping[str, str], *, needed: bool, hosts: Path = Path("/etc/hosts")) -> Check:
    """Whether the machine's own name has an address; looked for in /etc/hosts first, then as the system does."""
    address = _in_hosts(name, hosts)
    if address is None:
        words = [sys.executable, "-c", "import socket, sys; print(socket.gethostbyname(sys.argv[1]))", name]
        answer = ask(words, timeout_s=_LOOKUP_S, environ=environ)
        address = answer.out.strip() if not answer.fault else None
    if address is None:
        hint = f"echo 127.0.0.1 {name} | sudo tee -a /etc/hosts"
        return Check("host name", "fail" if needed else "warn", f"{name} has no address", "an IPv4 address", hint)
    if needed and address.startswith("127."):
        found = f"{name} is {address}, which other machines cannot reach"
        return Check("host name", "warn", found, "an address of a network card", f"getent hosts {name}; ip -4 addr")
    return Check("host name", "ok", f"{name} is {address}")


def addresses() -> Check:
    """Whether other machines can reach this one by IPv4."""
    import psutil

    found: dict[socket.AddressFamily, list[str]] = {socket.AF_INET: [], socket.AF_INET6: []}
    for card, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if entry.family in found and not entry.address.startswith(("127.", "::1", "fe80")):
                found[entry.family].append(f"{entry.address} ({card})")
    if found[socket.AF_INET]:
        return Check("addresses", "ok", ", ".join(found[socket.AF_INET][:3]))
    only = f"only IPv6: {found[socket.AF_INET6][0]}" if found[socket.AF_INET6] else "none beside loopback"
    return Check("addresses", "fail", only, "IPv4 between the machines", "ip -4 addr")


def proxies(environ: Mapping[str, str]) -> Check:
    """Whether a proxy would stand between the processes of one machine, which talk over HTTP and gRPC."""
    lower = {name.lower(): value for name, value in environ.items()}
    set_here = [name for name in _PROXIES if lower.get(name)]
    spared = {part.strip() for part in lower.get("no_proxy", "").split(",")}
    if set_here and not spared & {"*", "127.0.0.1", "127.0.0.0/8"}:
        found = f"{', '.join(set_here)} set, and no_proxy does not spare 127.0.0.1"
        return Check("proxy", "warn", found, "no proxy on loopback", "export no_proxy=127.0.0.1,localhost,$no_proxy")
    return Check("proxy", "ok", "none between local processes")


def _in_hosts(name: str, hosts: Path) -> str | None:
    try:
        lines = hosts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.partition("#")[0].split()
        if name in words[1:] and "." in words[0]:
            return words[0]
    return None
