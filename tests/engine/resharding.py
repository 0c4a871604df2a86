"""Trains a small sharded model on gloo and goes on with it on other numbers of ranks: `resharding.py FOLDER`.

Prints the losses of the last steps, by the ranks that they were computed on: a run without a stop has `2`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import start_processes
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

from omnirl.engine.reshard import AnyRanksCheckpointManager

STEPS, STOP = 5, 3
ROWS = 12
"""Of every batch, over all ranks."""


class Model(torch.nn.Module):
    """Sizes that two and three ranks cannot halve or share evenly, a frozen weight and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(5, 7)
        self.frozen = torch.nn.Linear(7, 7).requires_grad_(False)
        self.last = torch.nn.Linear(7, 1, bias=False)
        self.register_buffer("scale", torch.tensor([2.0]))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.frozen(self.first(rows)))) * self.scale


def run(rank: int, ranks: int, folder: str, port: int) -> None:
    """Train all steps and save in between on two ranks; on another number go on from what two have saved."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    model = Model()
    for part in (model.first, model.frozen, model.last, model):
        fully_shard(part)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.05)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    checkpoints = Path(folder) / "actor"
    first = 0
    if ranks != 2:
        model.first.weight.data.mul_(0)
        config = {"load_contents": ["model", "optimizer", "extra"], "save_contents": ["model"]}
        manager = AnyRanksCheckpointManager(model, optimizer, scheduler, object(), config)
        manager.load_checkpoint(str(checkpoints))
        first = STOP
    losses = []
    for step in range(first, STEPS):
        rows = torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(step)).chunk(ranks)[rank]
        loss = ((model(rows) - rows.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        whole = loss.detach() / ranks
        dist.all_reduce(whole)
        losses.append(whole.item())
        if ranks == 2 and step + 1 == STOP:
            save(checkpoints, rank, model, optimizer, scheduler)
    if rank == 0:
        (Path(folder) / f"{ranks}.json").write_text(json.dumps(losses[STOP - first :]))
    dist.destroy_process_group()


def save(folder: Path, rank: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer, scheduler: object) -> None:
    """The files that verl writes."""
    folder.mkdir(exist_ok=True)
    extra = {"lr_scheduler": scheduler.state_dict(), "rng": FSDPCheckpointManager.get_rng_state()}
    parts = {"model": model.state_dict(), "optim": optimizer.state_dict(), "extra_state": extra}
    for kind, state in parts.items():
        torch.save(state, folder / f"{kind}_world_size_2_rank_{rank}.pt")
    (folder / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 2}')


def main(folder: str) -> None:
    for at, ranks in enumerate((2, 1, 3)):
        # forked, so that verl is imported once
        start_processes(run, (ranks, folder, 20_000 + os.getpid() % 20_000 + at), ranks, start_method="fork")
    found = {ranks: json.loads((Path(folder) / f"{ranks}.json").read_text()) for ranks in (2, 1, 3)}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
