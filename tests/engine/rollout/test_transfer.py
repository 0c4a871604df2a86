"""Weights that are sent to a rollout on devices of its own arrive as they are, update after update."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import ray
import torch

from omnirl.engine.rollout.transfer import ProcessGroupEngine, pack, unpack

WEIGHTS = {
    "whole": torch.randn(5, 7),
    "half": torch.randn(3).to(torch.bfloat16),
    "scalar": torch.tensor(2.0),
    "empty": torch.zeros(0, 4),
    "odd": torch.arange(13, dtype=torch.uint8),
    "turned": torch.randn(4, 6).t(),
    "large": torch.randn(100),
}


@pytest.mark.parametrize("most_bytes", [1, 64, 200, 1 << 20])
def test_what_is_packed_is_unpacked(most_bytes: int) -> None:
    buckets = list(pack(WEIGHTS.items(), most_bytes))
    found = dict(pair for places, data in buckets for pair in unpack(places, data))
    assert list(found) == list(WEIGHTS)
    for name, tensor in WEIGHTS.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    assert all(len(data) <= most_bytes or len(places) == 1 for places, data in buckets)


def test_only_the_first_rank_that_trains_sends() -> None:
    senders, receivers = ProcessGroupEngine.build_topology(3, 2, [("host", 1), None, None, None, None])
    assert senders["rank"] == [0, -1, -1]
    assert receivers["rank"] == [1, 2]
    assert {*senders["world_size"], *receivers["world_size"]} == {3}
    assert {*senders["address"], *receivers["address"]} == {("host", 1)}


def test_every_update_reaches_every_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    sender, idle = ProcessGroupEngine(64, is_master=True), ProcessGroupEngine(64)
    receivers = [ProcessGroupEngine(64) for _ in range(2)]
    for step in range(3):
        metadata = [engine.prepare() for engine in (sender, idle, *receivers)]
        ours, theirs = ProcessGroupEngine.build_topology(2, 2, metadata)
        kwargs = [{name: values[at] for name, values in ours.items()} for at in range(2)]
        kwargs += [{name: values[at] for name, values in theirs.items()} for at in range(2)]
        engines = (sender, idle, *receivers)
        together(*(partial(engine.init_process_group, **told) for engine, told in zip(engines, kwargs, strict=True)))
        walked: list[str] = []
        found = together(
            partial(asyncio.run, sender.send_weights(weights(step))),
            partial(asyncio.run, idle.send_weights(weights(step, walked))),
            *(partial(asyncio.run, received(engine)) for engine in receivers),
        )
        assert walked == list(WEIGHTS)
        for got in found[2:]:
            assert list(got) == list(WEIGHTS)
            assert all(torch.equal(got[name], tensor) for name, tensor in weights(step))
        for engine in engines:
            engine.finalize()


def weights(step: int, walked: list[str] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in WEIGHTS.items():
        if walked is not None:
            walked.append(name)
        yield name, tensor + step


async def received(engine: ProcessGroupEngine) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() async for name, tensor in engine.receive_weights()}


def together(*calls: Any) -> list[Any]:
    """Each call in a thread of its own, as each is in a process of its own in a run."""
    found: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda at=at, call=call: found.__setitem__(at, call()), daemon=True)
        for at, call in enumerate(calls)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == len(calls)
    return [found[at] for at in range(len(calls))]
