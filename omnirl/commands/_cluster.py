"""The cluster that a run joins: whether it has the devices, and whether every node of it can take part."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnirl import console
from omnirl.errors import EnvironmentLacks, InvalidInput, Problem
from omnirl.machine import NO_CLUSTER

if TYPE_CHECKING:
    from omnirl.commands._training import Prepared

PROBE = "omnirl.engine.nodes"
_JOIN_S = 30.0
_LOOK_S = 120.0
_MORE_S = 60.0
"""For imports, for devices that become free, and for a scan of the data."""
_SHOWN = 30
_INPUT = frozenset({"node-file", "node-media", "node-runs"})
_HINTS = {
    "node-runs": "--runs DIR, in a folder that all nodes share",
    "node-file": "keep data and checkpoints in a folder that all nodes share, under the same path",
    "node-media": "keep media in a folder that all nodes share, under the same path",
    "node-decoder": "pip install --force-reinstall av",
}


def check_nodes(prepared: Prepared, runs: Path) -> None:
    """Look at every node of the cluster that the run is to join; a run with a Ray of its own is left alone.

    Raises:
        EnvironmentLacks: the cluster cannot be joined, lacks devices, is taken, or a node lacks a package.
        InvalidInput: a node does not see the run's files as this machine does.
    """
    from omnirl import machine

    address = machine.cluster(prepared.wanted.address, os.environ)
    if address is None:
        return
    console.note(f"looking at the nodes of `{address}`")
    document = _ask(address, prepared, runs)
    _require_devices(address, document, prepared)
    _require_nodes(address, document)
    nodes, files, media, named = len(document["nodes"]), document["files"], document["media"], document["named"]
    part = f"{media} of {named}" if media < named else str(media)
    console.note(
        f"{nodes} node{'' if nodes == 1 else 's'}: the same packages, the folder of runs, {files} files"
        + (f" and {part} media files" if media else "")
    )


def _ask(address: str, prepared: Prepared, runs: Path) -> dict[str, Any]:
    from omnirl.doctor.child import ask_module

    with tempfile.TemporaryDirectory(prefix="omnirl-nodes-") as folder:
        request = Path(folder) / "request.json"
        request.write_text(json.dumps(_request(address, prepared, runs)), encoding="utf-8")
        environ = {**os.environ, "RAY_ADDRESS": address}
        timeout_s = _JOIN_S + _LOOK_S + _MORE_S
        answer, fault = ask_module(PROBE, str(request), timeout_s=timeout_s, environ=environ)
        # The process that Ray starts on the head for each client was seen to crash, and then nothing ever answers.
        if address.startswith("ray://") and answer is not None and answer.get("silent"):
            console.note("it did not answer; asking once more")
            answer, fault = ask_module(PROBE, str(request), timeout_s=timeout_s, environ=environ)
    if answer is None or "fault" in answer:
        why = answer["fault"] if answer else fault
        raise EnvironmentLacks(f"the cluster `{address}` cannot be used: {why}", hint=NO_CLUSTER)
    return answer


def _request(address: str, prepared: Prepared, runs: Path) -> dict[str, Any]:
    from omnirl.commands._training import TINY
    from omnirl.doctor.ray_cluster import RESOURCE

    recipe = prepared.resolved.recipe
    data = [str(Path(name).expanduser()) for name in (*recipe.data.train, *recipe.data.val, *recipe.data.probe)]
    scorer, is_file, _ = recipe.reward.scorer.rpartition(":")
    hardware = recipe.hardware
    return {
        "address": address,
        "join_s": _JOIN_S,
        "look_s": _LOOK_S,
        "needs": {RESOURCE[hardware.device]: hardware.devices_per_node * hardware.nodes},
        "runs": str(runs.expanduser().absolute()),
        "data": [str(Path(name).absolute()) for name in data],
        "files": [str(Path(name).absolute()) for name in (*data, *([scorer] if is_file else []))],
        "model": "" if recipe.model.path == TINY else recipe.model.path,
    }


def _require_devices(address: str, document: Mapping[str, Any], prepared: Prepared) -> None:
    from omnirl.doctor import ray_cluster

    nodes = [node["resources"] for node in document["nodes"]]
    found = ray_cluster.resources(address, nodes, document["free"], prepared.resolved.recipe.hardware)
    if document["busy"] and found.verdict != "fail":
        message = f"another run trains in the cluster `{address}`, and verl's queue serves one run a cluster"
        raise EnvironmentLacks(message, hint="wait until it has ended, or name another cluster with `--address`")
    if found.verdict != "ok":
        raise EnvironmentLacks(found.found, hint=found.hint)


def _require_nodes(address: str, document: Mapping[str, Any]) -> None:
    found = [
        Problem(problem["code"], problem["message"], where=node["name"])
        for node in document["nodes"]
        for problem in node["problems"]
    ]
    if not found:
        return
    bad = sum(bool(node["problems"]) for node in document["nodes"])
    kind = InvalidInput if any(problem.code in _INPUT for problem in found) else EnvironmentLacks
    total = len(document["nodes"])
    more = f", the first {_SHOWN} of {len(found)} problems" if len(found) > _SHOWN else ""
    raise kind(
        f"{bad} of {total} node{'' if total == 1 else 's'} of `{address}` cannot take part{more}",
        problems=tuple(found[:_SHOWN]),
        hint=_HINTS.get(found[0].code, "install the same versions on every node"),
    )
