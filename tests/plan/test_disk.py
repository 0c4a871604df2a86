"""What checkpoints take on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from omnirl.plan import architecture, plan
from omnirl.plan.disk import disk
from omnirl.plan.fit import with_settings
from omnirl.recipe import registry

RELEASED = architecture.known("released")
LORA = registry.resolve("gsm8k", "h800x4").recipe
FULL = registry.resolve("nextqa", "ascend910c-x16").recipe


def test_a_checkpoint_of_an_adapter_has_the_frozen_weights_too():
    found = disk(LORA, RELEASED, saved=12)
    assert found.weights == pytest.approx(2 * RELEASED.parameters, rel=0.01)
    assert found.optimizer < 0.01 * found.weights
    assert found.total == 12 * found.checkpoint


def test_full_training_saves_both_moments():
    found = disk(FULL, RELEASED, saved=25)
    assert found.weights == 2 * RELEASED.parameters
    assert found.optimizer == pytest.approx(2 * found.weights)
    frozen = disk(with_settings(FULL, {"model.freeze_vision_tower": True}), RELEASED, saved=25)
    assert found.optimizer - frozen.optimizer == 4 * RELEASED.vision.parameters


@pytest.mark.parametrize(
    ("keep", "every", "saved", "kept"),
    [(1, 20, 25, 1), (3, 20, 2, 2), (None, 20, 25, 25), (None, 20, None, None), (2, 20, None, 2), (None, -1, 0, 0)],
)
def test_how_many_are_kept(keep, every, saved, kept):
    recipe = with_settings(FULL, {"train.keep_checkpoints": keep, "train.save_every": every})
    found = disk(recipe, RELEASED, saved=saved)
    assert found.kept == kept
    assert found.total == (None if kept is None else kept * found.checkpoint)


def test_the_model_is_loaded_whole():
    assert disk(LORA, RELEASED, saved=None).model == 2 * sum(architecture.released_parameters().values())


def test_the_document_says_it_in_gb():
    found = plan(registry.resolve("nextqa", "ascend910c-x16"))["disk"]
    assert found["checkpoint_gb"] == pytest.approx(found["weights_gb"] + found["optimizer_gb"])
    assert found["checkpoints_gb"] == pytest.approx(found["checkpoints"] * found["checkpoint_gb"])
    assert (found["checkpoints"], round(found["checkpoint_gb"])) == (1, 190)


def test_the_tiny_checkpoint_is_as_large_as_the_one_built(tmp_path: Path):
    pytest.importorskip("transformers")
    from omnirl.engine import tiny

    built = tiny.build(tmp_path / "tiny", seed=0)
    size = (built / "model.safetensors").stat().st_size
    recipe = registry.resolve("toy", "cpu").recipe
    assert disk(recipe, architecture.known("tiny"), saved=None).model == pytest.approx(size, rel=0.05)
    assert architecture.of(str(built)).parameters == architecture.known("tiny").parameters
