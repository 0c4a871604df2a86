"""A teacher out of a run has the run's weights, put together from all ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from omnirl.engine.distill.teacher import export, whole
from omnirl.errors import InvalidInput, UsageMistake
from tests.conftest import plain_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Two ranks on gloo write what verl's checkpoint manager writes: the sharded state of an FSDP2 module.
SHARDED = """
import sys, torch
from pathlib import Path
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoConfig
from omnirl.engine.thinker import Thinker, thinker_config
rank, world, store, model, out = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
config = thinker_config(AutoConfig.from_pretrained(model))
thinker = Thinker.from_pretrained(model, config=config, dtype=torch.float32)
with torch.no_grad():
    for value in thinker.parameters():
        value.add_(1)
mesh = init_device_mesh("cpu", (world,))
fully_shard(thinker, mesh=mesh)
torch.save(thinker.state_dict(), Path(out) / f"model_world_size_{world}_rank_{rank}.pt")
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module", params=[1, 2])
def run(request: pytest.FixtureRequest, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder whose checkpoint has each weight of its model plus one, from so many ranks."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "model").symlink_to(checkpoint)
    step = folder / "checkpoints" / "global_step_4"
    (step / "actor").mkdir(parents=True)
    words = [str(request.param), str(folder / "store"), str(checkpoint), str(step / "actor")]
    ranks = [
        subprocess.Popen([sys.executable, "-c", SHARDED, str(rank), *words], env=plain_environment())
        for rank in range(request.param)
    ]
    assert [rank.wait(100) for rank in ranks] == [0] * request.param
    torch.save({}, step / "data.pt")
    return folder


def test_the_weights_of_a_run(run: Path, thinker: Any, checkpoint: Path, tmp_path: Path) -> None:
    from tests.engine.conftest import load_thinker

    assert export(run, tmp_path / "teacher") == 4
    wanted = {name: value + 1 for name, value in thinker.state_dict().items()}
    found = load_thinker(tmp_path / "teacher").state_dict()
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[name].float(), rtol=0, atol=0)
    names = {file.name for file in (tmp_path / "teacher").iterdir()}
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= names
    assert names == {file.name for file in checkpoint.iterdir()} - {"ready", "warmup.json"}
    with pytest.raises(UsageMistake, match="exists"):
        export(run, tmp_path / "teacher")


def test_every_rank_counts(run: Path, thinker: Any) -> None:
    found = whole(run / "checkpoints" / "global_step_4" / "actor")
    assert {name: value.shape for name, value in found.items()} == {
        name: value.shape for name, value in thinker.state_dict().items()
    }


def test_a_run_without_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no whole checkpoint"):
        export(tmp_path, tmp_path / "teacher")
    assert not (tmp_path / "teacher").exists()
