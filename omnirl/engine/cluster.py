"""What a Ray cluster has: `python -m omnirl.engine.cluster ADDRESS` writes one JSON object as its last line.

A program of its own, since joining a cluster that hangs cannot be given up from inside.
"""

from __future__ import annotations

import json
import logging
import sys

import ray


def main(address: str) -> int:
    """Join the cluster as a driver that runs nothing, and tell its nodes' resources; a failure is told as `fault`."""
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:  # ConnectionError is an OSError
        document: dict[str, object] = {"fault": " ".join(str(error).split())[:400] or type(error).__name__}
    else:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        document = {"ray": ray.__version__, "nodes": nodes, "free": ray.available_resources()}
        ray.shutdown()
    sys.stdout.write("\n" + json.dumps(document) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
