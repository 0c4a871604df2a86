"""A checkpoint of two ranks goes on, on fewer and on more ranks, as if the run had never stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from omnirl.engine.reshard import own_part, saved_ranks, take_weights
from omnirl.errors import InvalidInput
from tests.conftest import plain_environment
from tests.engine import resharding


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_losses_on_one_and_three_ranks_are_those_of_two(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(Path(resharding.__file__)), str(tmp_path)],
        env=plain_environment(VERL_PLATFORM="cpu", VERL_USE_EXTERNAL_MODULES="omnirl.engine.plugin"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    losses = json.loads(done.stdout.splitlines()[-1])
    assert len(losses["2"]) == resharding.STEPS - resharding.STOP
    for ranks in ("1", "3"):
        assert losses[ranks] == pytest.approx(losses["2"], rel=1e-5)


@pytest.mark.parametrize("text", ["", "{}", '{"world_size": "two"}', "[2]"])
def test_a_folder_that_does_not_say_its_ranks(tmp_path: Path, text: str) -> None:
    assert saved_ranks(tmp_path) is None
    (tmp_path / "fsdp_config.json").write_text(text)
    assert saved_ranks(tmp_path) is None


def test_tensors_that_every_rank_has_whole() -> None:
    value = torch.arange(3.0)
    assert torch.equal(own_part([value, value], torch.zeros(3), "scale"), value)


@pytest.mark.parametrize("saved", [{"weight": torch.zeros(2)}, {"weight": torch.zeros(3), "more": torch.zeros(1)}, {}])
def test_another_models_weights_are_refused(saved: dict[str, Any]) -> None:
    module: Any = SimpleNamespace(state_dict=lambda: {"weight": torch.zeros(3)})
    with pytest.raises(InvalidInput):
        take_weights(module, [saved, saved])
