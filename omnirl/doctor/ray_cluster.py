"""The Ray cluster that RAY_ADDRESS names: whether it answers, and whether it has what a recipe needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from omnirl import machine
from omnirl.doctor.check import Check, Target, of_problem
from omnirl.doctor.child import ask_module

if TYPE_CHECKING:
    from omnirl.recipe.model import Hardware

PROBE = "omnirl.engine.cluster"
_TIMEOUT_S = 20.0
BUNDLE_CPUS = 3
"""CPUs that verl asks for with each device."""
RESOURCE = {"cuda": "GPU", "npu": "NPU", "cpu": "GPU"}
"""Ray's name for the devices of a recipe; on the CPU a run counts logical devices under the name of GPUs."""


def check(target: Target) -> Iterator[Check]:
    """The address, and the resources behind it."""
    address = target.environ.get("RAY_ADDRESS")
    wanted = target.recipe.hardware if target.recipe else None
    if not address:
        if wanted and wanted.nodes > 1:
            found = f"RAY_ADDRESS is not set, and the recipe needs {wanted.nodes} machines"
            yield Check("Ray cluster", "fail", found, "a cluster", "export RAY_ADDRESS=HOST:6379")
        else:
            yield Check("Ray cluster", "ok", "none named: a run starts its own")
        return
    problem = machine.ray_address(address)
    if problem:
        yield of_problem("Ray cluster", problem, "a cluster that answers, or no RAY_ADDRESS")
        return
    answer, fault = ask_module(PROBE, address, timeout_s=_TIMEOUT_S, environ=target.environ)
    if answer is None or "fault" in answer:
        found = f"RAY_ADDRESS is `{address}`, which cannot be joined: {answer['fault'] if answer else fault}"
        hint = f"unset RAY_ADDRESS  # or see: timeout 30 ray status --address {address}"
        yield Check("Ray cluster", "fail", found, "a cluster of this version of Ray", hint)
        return
    yield resources(address, answer["nodes"], answer["free"], wanted)


def resources(
    address: str, nodes: Sequence[Mapping[str, float]], free: Mapping[str, float], wanted: Hardware | None
) -> Check:
    """Whether the nodes of a cluster have a recipe's devices, and whether they are free.

    Args:
        nodes: what each node has, by Ray's names.
        free: what nobody has taken, in the whole cluster.
    """
    cpus = sum(node.get("CPU", 0) for node in nodes)
    told = f"{address}: {len(nodes)} node{'' if len(nodes) == 1 else 's'}, {cpus:g} CPU"
    if wanted is None:
        devices = ((name, sum(node.get(name, 0) for node in nodes)) for name in ("GPU", "NPU"))
        return Check("Ray cluster", "ok", told + "".join(f", {there:g} {name}" for name, there in devices if there))
    name, each = RESOURCE[wanted.device], wanted.devices_per_node
    total, left = sum(node.get(name, 0) for node in nodes), free.get(name, 0)
    fit = sum(node.get(name, 0) >= each and node.get("CPU", 0) >= each * BUNDLE_CPUS for node in nodes)
    needed = each * wanted.nodes
    needs = f"{needed} {name}" + (f" ({each} on each of {wanted.nodes} nodes)" if wanted.nodes > 1 else "")
    device = f"--num-gpus={each}" if name == "GPU" else f"--resources='{{\"{name}\": {each}}}'"
    start = f"ray start --address {address} --num-cpus={each * BUNDLE_CPUS} {device}"
    if total < needed:
        return Check("Ray cluster", "fail", f"{told}; needs {needs}, cluster has {total:g}", needs, start)
    if fit < wanted.nodes:
        each_node = f"{each} {name} and {each * BUNDLE_CPUS} CPU"
        found = f"{told}, {total:g} {name}; {fit} node{'' if fit == 1 else 's'} with {each_node}, needs {wanted.nodes}"
        return Check("Ray cluster", "fail", found, f"{wanted.nodes} with {each_node}", start)
    if left < needed:
        found = f"{told}; {left:g} of {total:g} {name} are free: a run would wait"
        return Check("Ray cluster", "warn", found, needs, f"ray status --address {address}")
    return Check("Ray cluster", "ok", f"{told}, {total:g} {name}", needs)
