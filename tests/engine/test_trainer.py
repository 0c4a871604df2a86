"""Sequences that the rollout did not deliver are counted, and too many of them stop the run."""

from __future__ import annotations

import pytest

from omnirl.engine.trainer import POLL_S, TooManyFailures, count_failures


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
