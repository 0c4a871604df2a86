"""Which checkpoint a resume starts from, and when it must not start."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from omnirl.errors import InvalidInput
from omnirl.run import checkpoints
from omnirl.run.checkpoints import TRACKER


def save(folder: Path, step: int, *, world: int = 1) -> Path:
    path = folder / f"global_step_{step}"
    (path / "actor").mkdir(parents=True)
    names = [
        f"actor/{k}_world_size_{world}_rank_{r}.pt" for k in ("model", "optim", "extra_state") for r in range(world)
    ]
    for name in (*names, "data.pt"):
        with zipfile.ZipFile(path / name, "w") as archive:
            archive.writestr("data.pkl", "x" * 100)
    return path


def test_nothing_saved_starts_from_the_first_step(tmp_path: Path) -> None:
    assert checkpoints.settle(tmp_path / "absent") == (None, None)


def test_the_tracker_is_followed_when_it_is_right(tmp_path: Path) -> None:
    save(tmp_path, 2)
    save(tmp_path, 10, world=2)
    (tmp_path / TRACKER).write_text("10")
    saved, told = checkpoints.settle(tmp_path)
    assert (saved and saved.step, told) == (10, None)


def test_a_missing_tracker_is_written_and_said(tmp_path: Path) -> None:
    save(tmp_path, 2)
    save(tmp_path, 4)
    saved, told = checkpoints.settle(tmp_path)
    assert saved and saved.step == 4
    assert told and "step 4 is the newest complete checkpoint" in told
    assert (tmp_path / TRACKER).read_text() == "4"


def test_a_checkpoint_saved_after_the_tracker_counts(tmp_path: Path) -> None:
    save(tmp_path, 2)
    save(tmp_path, 4)
    (tmp_path / TRACKER).write_text("2")
    saved, told = checkpoints.settle(tmp_path)
    assert saved and saved.step == 4
    assert told and "said 2" in told


def test_a_save_cut_short_falls_back_to_the_one_before(tmp_path: Path) -> None:
    save(tmp_path, 2)
    cut = save(tmp_path, 4) / "actor" / "optim_world_size_1_rank_0.pt"
    cut.write_bytes(cut.read_bytes()[:50])
    (tmp_path / TRACKER).write_text("2")
    saved, told = checkpoints.settle(tmp_path)
    assert (saved and saved.step, told) == (2, None)


def test_a_first_save_cut_short_starts_over(tmp_path: Path) -> None:
    (save(tmp_path, 2) / "data.pt").unlink()
    saved, told = checkpoints.settle(tmp_path)
    assert saved is None
    assert told and "not complete" in told


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda path: (path / "actor" / "model_world_size_2_rank_1.pt").unlink(), "actor/model_world_size_2_rank_1.pt"),
        (lambda path: (path / "actor" / "model_world_size_2_rank_1.pt").write_bytes(b""), "cut short"),
        (lambda path: (path / "data.pt").unlink(), "data.pt"),
    ],
)
def test_a_damaged_latest_checkpoint_is_refused_by_name(tmp_path: Path, damage, named: str) -> None:
    save(tmp_path, 2, world=2)
    damage(save(tmp_path, 4, world=2))
    (tmp_path / TRACKER).write_text("4")
    with pytest.raises(InvalidInput) as caught:
        checkpoints.settle(tmp_path)
    assert named in caught.value.message
    assert "step 2" in str(caught.value.hint)
    saved, _ = checkpoints.settle(tmp_path, force=True)
    assert saved and saved.step == 2


@pytest.mark.parametrize("text", ["abc", "99", ""])
def test_a_tracker_that_names_nothing_is_refused(tmp_path: Path, text: str) -> None:
    save(tmp_path, 2)
    (tmp_path / TRACKER).write_text(text)
    with pytest.raises(InvalidInput, match="not there"):
        checkpoints.settle(tmp_path)
