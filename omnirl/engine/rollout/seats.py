"""Actors that hold devices of a pool for a server. Nothing heavy is imported here, as each is a process."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


class Seat:
    """Does nothing; the server is told where it is."""


def place(_: Any, resource: str) -> tuple[str, str]:
    """An actor's node, and its device of the kind that Ray calls `resource`."""
    context = ray.get_runtime_context()
    return context.get_node_id(), str(context.get_accelerator_ids()[resource][0])


def take(groups: list[PlacementGroup], places: range, *, per_node: int, share: dict[str, Any]) -> list[Any]:
    """An actor on each of a pool's devices.

    Args:
        groups: a placement group a node, with a bundle a device.
        places: devices, counted over all nodes.
        per_node: devices of a node.
        share: what each takes of its device, as options of a Ray actor.
    """
    return [
        ray.remote(Seat)
        .options(
            num_cpus=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=groups[at // per_node], placement_group_bundle_index=at % per_node
            ),
            **share,
        )
        .remote()
        for at in places
    ]
