"""Whether each node of a Ray cluster can take part in a run: `python -m omnirl.engine.nodes REQUEST.json`.

Writes one JSON object as its last line: `{ray, nodes, free, busy, looked, files, media, named}` or `{fault}`. Run as a
program, it sends its functions to the nodes as they are, so that a node without omnirl can say so.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import stat
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ray
from ray.util import list_named_actors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

MOST_MEDIA = 5000
"""Media files that each node looks at; evenly spread when the data name more."""
PACKAGES = ("omnirl", "verl", "torch", "transformers", "ray", "peft", "av", "TransferQueue", "vllm", "vllm-omni")
"""What must have one version on all nodes."""
CONTROLLER = "TransferQueueController"
"""A name that one run at a time can have in a cluster: a second one would be served the first one's samples."""

_END_BYTES = 1 << 16
_SHOWN = 3
_FREE_S = 20.0
_CHECKPOINT = ("*.json", "*.safetensors", "*.bin", "*.model", "*.txt", "*.jinja")


def main(request: str) -> int:
    """Join the cluster as a driver, look at every node that is alive, and tell what was found."""
    wanted = json.loads(Path(request).read_text(encoding="utf-8"))
    joined = threading.Event()
    threading.Thread(target=_give_up, args=(joined, wanted["join_s"]), daemon=True).start()
    try:
        ray.init(address=wanted["address"], log_to_driver=False, logging_level=logging.ERROR)
        joined.set()
        document = _facts(wanted)
    except (OSError, RuntimeError, ValueError, ImportError) as error:  # ConnectionError is an OSError
        _tell({"fault": " ".join(str(error).split())[:400] or type(error).__name__})
        return 0
    try:
        if document["looked"]:
            mark = Mark(Path(wanted["runs"]))
            try:
                expected = expectation(wanted, mark)
                found = _ask_nodes(document["nodes"], expected, wanted["look_s"])
            finally:
                mark.remove()
            for node, problems in zip(document["nodes"], found, strict=True):
                node["problems"] = problems
            document |= {"files": len(expected["files"]), "media": len(expected["media"]), "named": expected["named"]}
    except OSError as error:
        document = {"fault": f"this machine cannot read or write what the nodes are asked about: {error}"}
    finally:
        ray.shutdown()
    _tell(document)
    return 0


def _facts(wanted: dict[str, Any]) -> dict[str, Any]:
    """What the cluster has; devices that an ended run still holds get a moment to become free."""
    needs: dict[str, float] = wanted["needs"]
    until = time.monotonic() + _FREE_S
    while True:
        nodes = [
            {"id": n["NodeID"], "name": _name(n), "resources": n["Resources"], "problems": []}
            for n in ray.nodes()
            if n["Alive"]
        ]
        free = ray.available_resources()
        busy = any(actor["name"] == CONTROLLER for actor in list_named_actors(all_namespaces=True))
        has = {name: sum(node["resources"].get(name, 0) for node in nodes) for name in needs}
        enough = all(has[name] >= needed for name, needed in needs.items())
        waiting = busy or any(free.get(name, 0) < needed for name, needed in needs.items())
        if not enough or not waiting or time.monotonic() >= until:
            return {
                "ray": ray.__version__,
                "nodes": nodes,
                "free": free,
                "busy": busy,
                "looked": enough and not waiting,
            }
        time.sleep(0.5)


def _ask_nodes(
    nodes: Sequence[dict[str, Any]], expected: dict[str, Any], timeout_s: float
) -> list[list[dict[str, str]]]:
    """The problems of each node, asked all at once."""
    told = ray.put(expected)
    task = ray.remote(num_cpus=0, max_retries=0)(look)
    asked = [
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["id"], soft=False)).remote(told)
        for node in nodes
    ]
    answered, _ = ray.wait(asked, num_returns=len(asked), timeout=timeout_s)
    found = []
    for answer in asked:
        if answer not in answered:
            found.append([_problem("node-silent", f"it did not answer within {timeout_s:g} s")])
            continue
        try:
            found.append(ray.get(answer))
        except ray.exceptions.RayError as error:
            said = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            found.append([_problem("node-failed", f"it could not be looked at: {said[-1].strip()[:300]}")])
    return found


class Mark:
    """A file in the folder of runs that every node must see: the sign that the folder is shared."""

    def __init__(self, runs: Path) -> None:
        self.made = _make(runs)
        self.text = secrets.token_hex(16)
        self.path = runs / f".omnirl-nodes-{self.text[:8]}"
        self.path.write_text(self.text, encoding="ascii")

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        for folder in self.made:
            try:
                folder.rmdir()
            except OSError:  # somebody has put something there
                return


def _make(folder: Path) -> list[Path]:
    """Make a folder. Returns what did not exist before, the deepest first."""
    absent = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return absent


def expectation(wanted: dict[str, Any], mark: Mark) -> dict[str, Any]:
    """What every node must have, as this machine has it."""
    from omnirl.data.checks.columns import scan

    files = {path: _file(path) for path in wanted["files"]}
    if wanted["model"]:
        from omnirl.engine.checkpoint import folder

        model = folder(wanted["model"])
        files |= {str(path): _file(str(path)) for pattern in _CHECKPOINT for path in sorted(model.glob(pattern))}
    media = sorted({name for path in wanted["data"] for name in scan(Path(path), labels=False).media})
    chosen = _spread(media, wanted.get("most_media", MOST_MEDIA))
    return {
        "files": files,
        "media": {name: _size(name) for name in chosen},
        "named": len(media),
        "packages": {name: _version(name) for name in PACKAGES},
        "python": _python(),
        "code": _code(),
        "decodes": bool(media),
        "mark": [str(mark.path), mark.text],
    }


def look(expected: dict[str, Any]) -> list[dict[str, str]]:
    """Everything that is not on this node as it is expected to be; runs on each node, with the standard library."""
    return [
        *_packages(expected),
        *_files(expected["files"]),
        *_media(expected["media"]),
        *_runs(*expected["mark"]),
        *(_decoder() if expected["decodes"] else ()),
    ]


def _packages(expected: dict[str, Any]) -> Iterator[dict[str, str]]:
    if expected["python"] != _python():
        yield _problem("node-python", f"Python {_python()}, and {expected['python']} where the run starts")
    for name, version in expected["packages"].items():
        there = _version(name)
        if version and there != version:
            what = f"{name} {there}" if there else f"no {name}"
            yield _problem("node-packages", f"{what}, and {version} where the run starts")
    if _version("omnirl") and _code() != expected["code"]:
        yield _problem("node-code", "omnirl's code is not the same as where the run starts")


def _files(files: dict[str, list[Any]]) -> Iterator[dict[str, str]]:
    for path, known in files.items():
        try:
            there = _file(path)
        except OSError as error:
            yield _problem("node-file", f"`{path}`: {(error.strerror or str(error)).lower()}")
            continue
        if there != known:
            how = f"{there[0]} bytes, and {known[0]}" if there[0] != known[0] else "other content than"
            yield _problem("node-file", f"`{path}` has {how} where the run starts")


def _media(media: dict[str, int]) -> Iterator[dict[str, str]]:
    """Media are many, and mostly on a network's disk: asked for by several threads, told of by kind of fault."""
    with ThreadPoolExecutor(16) as threads:
        sizes = list(threads.map(_size, media))
    pairs = list(zip(media, sizes, strict=True))
    for fault, names in (
        ("not there", [name for name, size in pairs if size < 0]),
        ("not of the same size", [name for name, size in pairs if size >= 0 and size != media[name]]),
    ):
        if names:
            shown = ", ".join(f"`{name}`" for name in names[:_SHOWN])
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            yield _problem("node-media", f"{len(names)} of {len(pairs)} media files {fault}: {shown}{more}")


def _runs(path: str, text: str) -> Iterator[dict[str, str]]:
    folder = Path(path).parent
    try:
        seen = Path(path).read_text(encoding="ascii") == text
    except (OSError, ValueError):
        seen = False
    if not seen:
        message = f"the folder of runs `{folder}` is not the one where the run starts: it must be shared by all nodes"
        yield _problem("node-runs", message)
    elif not os.access(folder, os.W_OK):
        yield _problem("node-runs", f"the folder of runs `{folder}` cannot be written")


def _decoder() -> Iterator[dict[str, str]]:
    try:
        import av
    except (ImportError, OSError) as error:
        yield _problem("node-decoder", f"PyAV, which decodes media, cannot be imported: {error}")
        return
    if not hasattr(av, "open"):
        yield _problem("node-decoder", f"`import av` finds `{getattr(av, '__file__', None)}`, which is not PyAV")


def _file(path: str) -> list[Any]:
    """Size in bytes and a digest of the first and the last 64 KiB."""
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256(file.read(_END_BYTES))
        file.seek(max(0, size - _END_BYTES))
        digest.update(file.read(_END_BYTES))
    return [size, digest.hexdigest()]


def _size(path: str) -> int:
    """Bytes of a file; -1 where there is none."""
    try:
        status = Path(path).stat()
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def _version(package: str) -> str | None:
    """A package's version without what follows `+`: the same torch is built for CPU and for CUDA."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return None


def _python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _code() -> str:
    """A digest of omnirl's modules, which may differ at one version when it is installed from a checkout."""
    from importlib.util import find_spec

    spec = find_spec("omnirl")
    digest = hashlib.sha256()
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).rglob("*.py")):
            digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _problem(code: str, message: str) -> dict[str, str]:
    return {"code": code, "message": message}


def _spread(names: Sequence[str], most: int) -> Sequence[str]:
    return names if len(names) <= most else [names[at * len(names) // most] for at in range(most)]


def _name(node: dict[str, Any]) -> str:
    address, host = str(node.get("NodeManagerAddress", "")), str(node.get("NodeManagerHostname", ""))
    return f"{host} ({address})" if host and host != address else address or host


def _give_up(joined: threading.Event, join_s: float) -> None:
    """A cluster that never answers cannot be given up from inside Ray."""
    if not joined.wait(join_s):
        _tell({"fault": f"it did not answer within {join_s:g} s", "silent": True})
        os._exit(0)


def _tell(document: dict[str, Any]) -> None:
    sys.stdout.write("\n" + json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
