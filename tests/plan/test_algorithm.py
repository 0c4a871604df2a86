"""A plan tells which parts of an algorithm are on."""

from __future__ import annotations

from typing import Any

import pytest

from omnirl.plan.algorithm import parts
from omnirl.recipe import registry


def told(task: str, hardware: str, algo: str | None = None, sets: tuple[str, ...] = ()) -> dict[str, Any]:
    recipe = registry.resolve(task, hardware, algo=algo, sets=sets).recipe
    return {part["part"]: part["how"] if part["on"] else False for part in parts(recipe)}


def test_gspo():
    assert told("toy", "cpu") == {
        "loss": "one ratio a sequence, clipped to 0.9997-1.0004, seq-mean-token-mean",
        "KL term": False,
    }


def test_dapo_and_its_switches():
    plain = told("toy", "cpu", "dapo")
    assert plain == {
        "loss": "one ratio a token, clipped to 0.8-1.28, token-mean",
        "dynamic sampling": False,
        "overlong buffer": False,
        "entropy bonus": False,
        "KL term": False,
    }
    sets = ("algo.filter_groups = true", "algo.overlong_buffer = true", "algo.overlong_tokens = 4")
    found = told("toy", "cpu", "dapo", (*sets, "algo.entropy_coeff = 0.01", "algo.kl_loss_coef = 0.1"))
    assert found == {
        "loss": plain["loss"],
        "dynamic sampling": "groups of equal `acc` are replaced",
        "overlong buffer": "up to 1 off over the last 4 of 8 tokens",
        "entropy bonus": "0.01",
        "KL term": "0.1 x divergence from the first model",
    }


@pytest.mark.parametrize(("hardware", "rewards"), [("cpu", False), ("ascend910c-x16x2", True)])
def test_opd(hardware: str, rewards: bool):
    found = told("mmk12", hardware, "opd")
    assert found["teacher"].startswith("`kl` from ")
    assert found["teacher"].endswith("as a reward of each token, whose ratio is clipped to 0.8-1.2")
    assert bool(found["task rewards"]) == rewards


def test_dpo():
    found = told("omni-preference", "h800x4")
    assert found == {"loss": "sigmoid of a pair's margin, beta 0.1", "label smoothing": "0.1"}
