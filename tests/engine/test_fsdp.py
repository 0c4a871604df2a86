"""The engine on one rank and on two, whose rows bring other kinds of media: gradients, packing, towers and adapters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import plain_environment
from tests.engine.ranks import LORA

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

OWN = {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "omnirl.engine.plugin", "GLOO_SOCKET_IFNAME": "lo"}
ORDER = ("text", "image_audio", "video", "text")
"""On two ranks: text, then a picture with a sound; a video with its sound, then text."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, encode: Any, rows: Any) -> dict[int, list[Any]]:
    """What each rank of one, and of two, has left."""
    folder = tmp_path_factory.mktemp("ranks")
    prompts = [encode(rows[kind][index]) for index, kind in enumerate(ORDER)]
    torch.save(
        [{"token_ids": one.token_ids, "positions": one.positions, "features": one.features} for one in prompts],
        folder / "rows.pt",
    )
    (folder / "checkpoint.txt").write_text(str(checkpoint))
    for world in (1, 2):
        command = [sys.executable, "-m", "tests.engine.ranks", str(folder)]
        running = [
            subprocess.Popen(
                [*command, str(rank), str(world)],
                env=plain_environment(**OWN, OMP_NUM_THREADS="1"),
                cwd=Path(__file__).parents[2],
                stderr=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
            )
            for rank in range(world)
        ]
        for process in running:
            try:
                _, errors = process.communicate(timeout=800)
            except subprocess.TimeoutExpired:
                for other in running:
                    other.kill()
                pytest.fail(f"{world} ranks wait for each other")
            assert process.returncode == 0, errors[-3000:]
    return {
        world: [torch.load(folder / f"{world}-{rank}.pt", weights_only=False) for rank in range(world)]
        for world in (1, 2)
    }


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor], *, rtol: float, atol: float) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        torch.testing.assert_close(value, right[name], rtol=rtol, atol=atol, msg=lambda text, name=name: name + text)


@pytest.mark.parametrize("deferred", [True, False])
def test_ranks_with_other_media_have_the_gradients_of_one(found: dict[int, list[Any]], deferred: bool) -> None:
    (alone,) = found[1]
    key = f"gradients, deferred {deferred}"
    assert any(name.startswith("visual.") for name in alone["full"][key])
    for rank in found[2]:
        assert_same(rank["full"][key], alone["full"][key], rtol=1e-3, atol=1e-5)


def test_packed_rows_and_chunks_give_what_padded_rows_give(found: dict[int, list[Any]]) -> None:
    for rank in (*found[1], *found[2]):
        for how in ("packed", "chunked"):
            assert_same(rank["full"][how], rank["full"]["plain"], rtol=1e-4, atol=1e-4)


def test_a_frozen_vision_tower_stays_as_it_is(found: dict[int, list[Any]]) -> None:
    for rank in (*found[1], *found[2]):
        for names in (rank["full"]["frozen has gradients"], rank["full"]["frozen moved"]):
            assert not any(name.startswith("visual.") for name in names)
            assert any(name.startswith("audio_tower.") for name in names)
            assert any(name.startswith("model.") for name in names)


def test_an_adapter_in_float32_learns_on_a_base_in_bfloat16(found: dict[int, list[Any]]) -> None:
    for rank in (*found[1], *found[2]):
        before, after = rank["adapter"]["before"], rank["adapter"]["after"]
        assert {after[name].dtype for name in after if "lora_" in name} == {torch.float32}
        assert {after[name].dtype for name in after if "lora_" not in name} == {torch.bfloat16}
        assert rank["adapter"]["optimizer"] == ["torch.float32"] * 2 * len([name for name in after if "lora_" in name])
        moved = {name for name in after if not torch.equal(after[name], before[name])}
        assert moved == {name for name in after if "lora_" in name}


def test_two_ranks_train_the_adapter_that_one_trains(found: dict[int, list[Any]]) -> None:
    (alone,) = found[1]
    for rank in found[2]:
        for name, weight in rank["adapter"]["after"].items():
            # Adam's first steps are as long whatever the gradient, so rounding turns the sign of the smallest ones
            close = (weight.float() - alone["adapter"]["after"][name].float()).abs() < 2e-3
            assert close.float().mean() > 0.95, name


def test_merged_weights_are_base_and_update_rounded_once(found: dict[int, list[Any]]) -> None:
    for rank in (*found[1], *found[2]):
        after, merged = rank["adapter"]["after"], rank["adapter"]["merged"]
        assert rank["adapter"]["unharmed"]
        changed = 0
        for name, base in after.items():
            if ".base_layer." not in name:
                continue
            stem = name.removesuffix(".base_layer.weight")
            update = after[f"{stem}.lora_B.default.weight"] @ after[f"{stem}.lora_A.default.weight"]
            wanted = (base.float() + update * LORA["lora_alpha"] / LORA["lora_rank"]).to(torch.bfloat16)
            sent = merged[f"{stem.removeprefix('base_model.model.')}.weight"]
            assert sent.dtype == torch.bfloat16
            torch.testing.assert_close(sent, wanted, rtol=2**-8, atol=0)
            assert (sent == wanted).float().mean() > 0.999
            changed += int(not torch.equal(sent, base))
        assert changed > 0
