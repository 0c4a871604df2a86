"""Sequences that the rollout did not deliver are counted, and too many of them stop the run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from omnirl.engine.failures import ENGINE, Failures, note
from omnirl.engine.phase import ATTEMPT_DIR
from omnirl.engine.trainer import POLL_S, OmniTrainer, TooManyFailures, count_failures


@pytest.mark.parametrize(("delivered", "failed"), [(32, 0), (28, 4), (24, 8), (33, 0)])
def test_failures_are_counted(delivered: int, failed: int) -> None:
    assert count_failures(step=1, wanted=32, delivered=delivered, max_share=0.25) == {
        "training/rollout_failure/sequences": failed,
        "training/rollout_failure/share": failed / 32,
    }


@pytest.mark.parametrize(("delivered", "max_share"), [(23, 0.25), (0, 0.99), (31, 0.0)])
def test_too_many_failures(delivered: int, max_share: float) -> None:
    with pytest.raises(TooManyFailures) as caught:
        count_failures(step=7, wanted=32, delivered=delivered, max_share=max_share)
    assert str(caught.value).startswith(
        f"{32 - delivered} of 32 sequences failed in step 7, more than the {max_share:.0%} that `rollout.max_failed"
    )


def test_any_share_may_be_allowed() -> None:
    assert count_failures(step=1, wanted=8, delivered=0, max_share=1.0)["training/rollout_failure/share"] == 1.0


def test_no_step_waits_for_a_poll() -> None:
    assert POLL_S <= 0.05


def test_failures_of_media_are_named_where_they_stop_the_run() -> None:
    with pytest.raises(TooManyFailures) as caught:
        count_failures(
            step=4, wanted=8, delivered=0, max_share=0.5, part="validation", failures=["row 3: cannot read `a.png`"]
        )
    assert str(caught.value) == (
        "8 of 8 sequences failed in the validation of step 4, more than the 50% that `rollout.max_failed_share` "
        "allows; the log names each one; row 3: cannot read `a.png`"
    )


def test_a_validation_is_counted_under_its_own_name() -> None:
    assert count_failures(step=1, wanted=8, delivered=7, max_share=0.5, part="validation") == {
        "validation/rollout_failure/sequences": 1,
        "validation/rollout_failure/share": 0.125,
    }


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OmniTrainer:
    """A trainer that has no workers and can do no more than count."""
    monkeypatch.setenv(ATTEMPT_DIR, str(tmp_path))
    made = OmniTrainer.__new__(OmniTrainer)
    made.config = OmegaConf.create({"trainer": {"max_failed_share": 0.25}})
    made.global_steps = 3
    made._failures = Failures()
    made._engine_failures = Failures(ENGINE)
    return made


def validated(trainer: OmniTrainer, delivered: int) -> dict[str, float]:
    uids = [f"u{number}" for number in range(delivered)]
    expected = {("toy/image", f"u{number}"): 1 for number in range(4)}
    scores = {"reward": [1.0] * delivered, "acc": [1.0] * delivered}
    sources = ["toy/image"] * delivered
    return trainer._val_metrics_update(sources, uids, scores, [2] * delivered, expected_acc_counts=expected)


def test_what_a_validation_left_out_is_counted(trainer: OmniTrainer) -> None:
    metrics = validated(trainer, 4)
    assert metrics["val-core/toy/image/acc/mean@1"] == 1
    assert metrics["validation/rollout_failure/share"] == metrics["validation/rollout_failure/media"] == 0
    note("row 1: cannot read `a.png`")
    metrics = validated(trainer, 3)
    assert metrics["validation/rollout_failure/sequences"] == metrics["validation/rollout_failure/media"] == 1
    assert metrics["val-core/toy/image/acc/mean@1"] == 0.75


def test_a_validation_that_leaves_out_too_much_stops_the_run(trainer: OmniTrainer) -> None:
    note("row 1: cannot read `a.png`")
    with pytest.raises(
        TooManyFailures, match=r"2 of 4 .* in the validation of step 3, .*; row 1: cannot read `a\.png`"
    ):
        validated(trainer, 2)


def test_a_failure_without_media_keeps_its_own_words(trainer: OmniTrainer) -> None:
    with pytest.raises(RuntimeError, match="another reason"), trainer._naming_failures("step 3", RuntimeError):
        raise RuntimeError("another reason")
    note("row 1: cannot read `a.png`")
    words = re.escape("no sequence of step 3 is left; row 1: cannot read `a.png`")
    with pytest.raises(TooManyFailures, match=words), trainer._naming_failures("step 3", RuntimeError):
        raise RuntimeError("no materializable trajectories")


def test_a_dead_engine_is_the_reason_and_no_medium(trainer: OmniTrainer) -> None:
    note("the rollout engine died: its process ended", ENGINE)
    words = "no sequence of step 3 is left; the rollout engine died: its process ended"
    with pytest.raises(TooManyFailures, match=words), trainer._naming_failures("step 3", RuntimeError):
        raise RuntimeError("no materializable trajectories")
    note("the rollout engine reported: out of memory", ENGINE)
    assert validated(trainer, 3)["validation/rollout_failure/media"] == 0
