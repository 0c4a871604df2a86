"""The curves of a run, out of the metrics files that its attempts left."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from omnirl.files import write_json
from omnirl.run import metrics
from omnirl.run.curves import Curve, as_dict, curves
from omnirl.run.outcome import summarize
from omnirl.run.record import Run

REWARD = "critic/score/mean"
IMAGE = "val-core/toy/image/acc/mean@1"
VARIANTS = {"kind": "dapo", "filter_groups": True, "overlong_buffer": True}


def write(run: Path, *attempts: dict[int, dict[str, Any]], algo: dict[str, Any] | None = None) -> Run:
    """A run's folder whose attempts wrote these values by step."""
    for number, steps in enumerate(attempts, start=1):
        file = run / "attempts" / str(number) / "metrics.jsonl"
        file.parent.mkdir(parents=True)
        lines = [json.dumps({"step": step, "data": data}) for step, data in steps.items()]
        file.write_text("".join(f"{line}\n" for line in lines))
    if algo is not None:
        write_json(run / "recipe.json", {"values": {"algo": algo}})
    return Run(run)


def found(run: Run) -> list[Curve]:
    return curves(metrics.read(attempt.metrics for attempt in run.attempts()), run.algo())


def series(run: Run) -> dict[str, Any]:
    return as_dict(found(run))


def test_reward_and_accuracy_of_every_algorithm(tmp_path: Path) -> None:
    steps = {
        0: {IMAGE: 0.25, "val-core/toy/text/acc/mean@1": 0.5},
        1: {REWARD: 0.3, "response_length/mean": 9.0},
        2: {REWARD: 0.6, "response_length/mean": 8.0, IMAGE: 0.75, "val-core/toy/text/acc/mean@1": 0.5},
    }
    run = write(tmp_path, steps, algo={"kind": "gspo"})
    assert series(run) == {
        "reward": [(1, 0.3), (2, 0.6)],
        "accuracy/toy/image": [(0, 0.25), (2, 0.75)],
        "accuracy/toy/text": [(0, 0.5), (2, 0.5)],
    }
    reward, accuracy = (list(curve.text()) for curve in found(run))
    assert reward[0] == "reward of a step's answers by step: 0.3 at first, 0.6 at last"
    assert accuracy[0] == "held-out accuracy by step"
    assert accuracy[1].startswith("1.00 |")
    assert accuracy[-1].split() == ["*", "toy/image", "o", "toy/text"]
    assert summarize(run, seconds=1.0).as_dict()["curves"] == series(run)


def test_dapo_shows_what_its_switches_do(tmp_path: Path) -> None:
    dropped = "training/filter_groups/evicted_samples"
    steps = {
        1: {REWARD: 0.1, dropped: 7.0, "response_length/mean": 20.0},
        2: {REWARD: 0.2, "response_length/mean": 12.0},
    }
    on = series(write(tmp_path / "on", steps, algo=VARIANTS))
    assert on["dropped_groups"] == [(1, 7.0), (2, 0.0)]
    assert on["response_tokens"] == [(1, 20.0), (2, 12.0)]
    off = write(tmp_path / "off", steps, algo={"kind": "dapo", "filter_groups": False, "overlong_buffer": False})
    assert list(series(off)) == ["reward"]


def test_distillation_shows_the_divergence(tmp_path: Path) -> None:
    steps = {step: {REWARD: 0.1, "distillation/reverse_kl_k3": 2.5 / step} for step in (1, 2, 5)}
    run = write(tmp_path, steps, algo={"kind": "opd"})
    assert series(run)["reverse_kl"] == [(1, 2.5), (2, 1.25), (5, 0.5)]
    heading = next(found(run)[-1].text())
    assert heading == "divergence of a token from the teacher (reverse KL) by step: 2.5 at first, 0.5 at last"


def test_of_overlapping_attempts_the_later_counts(tmp_path: Path) -> None:
    one = {step: {REWARD: step / 10, IMAGE: 0.1} for step in range(1, 8)}
    # from the checkpoint of step 4, whose validation is repeated, and stopped before the first attempt's last step
    two: dict[int, dict[str, Any]] = {4: {IMAGE: 0.4}, 5: {REWARD: 0.9}, 6: {REWARD: 0.95}}
    shown = series(write(tmp_path, one, two, algo={"kind": "gspo"}))
    assert shown["reward"] == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4), (5, 0.9), (6, 0.95)]
    assert shown["accuracy/toy/image"] == [(1, 0.1), (2, 0.1), (3, 0.1), (4, 0.4)]


@pytest.mark.parametrize("algo", [None, VARIANTS, {"kind": "opd"}])
def test_a_run_without_metrics_has_no_curves(tmp_path: Path, algo: dict[str, Any] | None) -> None:
    assert found(write(tmp_path, {}, algo=algo)) == []
    assert found(Run(tmp_path / "absent")) == []


@pytest.mark.parametrize("recipe", ["", "[]", '{"values": []}', '{"values": {"algo": 3}}'])
def test_a_damaged_recipe_leaves_the_reward(tmp_path: Path, recipe: str) -> None:
    run = write(tmp_path, {1: {REWARD: 0.5}})
    (tmp_path / "recipe.json").write_text(recipe)
    assert series(run) == {"reward": [(1, 0.5)]}


def test_what_is_no_number_is_counted_not_drawn(tmp_path: Path) -> None:
    (curve,) = found(
        write(tmp_path, {1: {REWARD: math.nan}, 2: {REWARD: 0.5}, 3: {REWARD: math.inf}, 4: {REWARD: 0.7}})
    )
    heading, *drawn = curve.text()
    assert heading.endswith(": 0.5 at first, 0.7 at last (2 that are no number left out)")
    assert "nan" not in "".join(drawn).lower()
    (curve,) = found(write(tmp_path / "nothing", {1: {REWARD: math.nan}}))
    assert list(curve.text())[1:] == ["(nothing to plot)"]


def test_one_point_is_drawn(tmp_path: Path) -> None:
    heading, *drawn = found(write(tmp_path, {1: {REWARD: 0.5}}))[0].text()
    assert heading == "reward of a step's answers by step"
    assert any("*" in line for line in drawn[:10])


def test_a_probe_is_no_curve_unless_all_are_scored_once(tmp_path: Path) -> None:
    probe = "val-core/toy/image@shuffled/acc/mean@1"
    run = write(tmp_path / "both", {0: {IMAGE: 0.2}, 3: {IMAGE: 0.9, probe: 0.25}})
    (curve,) = found(run)
    assert curve.shown == ("accuracy/toy/image",)
    assert set(curve.lines) == {"accuracy/toy/image", "accuracy/toy/image@shuffled"}
    (curve,) = found(write(tmp_path / "once", {3: {IMAGE: 0.9, probe: 0.25}}))
    assert len(curve.shown) == 2


def test_values_that_are_no_shares_have_their_own_range(tmp_path: Path) -> None:
    (curve,) = found(write(tmp_path, {0: {IMAGE: -3.0}, 3: {IMAGE: 40.0}}))
    assert list(curve.text())[1].startswith("40.0 |")


def test_a_long_run_is_drawn_by_the_means_of_its_columns(tmp_path: Path) -> None:
    steps = {step: {REWARD: step / 6000 + (1.0 if step % 2 else -1.0)} for step in range(1, 6001)}
    (curve,) = found(write(tmp_path, steps))
    assert len(curve.lines["reward"]) == 6000
    lines = list(curve.text())
    assert lines[-2].split() == ["1", "6000"]
    columns = ["".join(text.split("|")[1].ljust(60)[at] for text in lines[1:11]) for at in range(60)]
    assert all(column.count("*") == 1 for column in columns)
    heights = [column.index("*") for column in columns]
    assert heights == sorted(heights, reverse=True) and (heights[0], heights[-1]) == (9, 0)


@pytest.mark.parametrize(
    ("values", "label"), [((0.0, 1000.0), "1000"), ((0.0, 0.03), "0.0300"), ((0.0, 1e-9), "1e-09")]
)
def test_labels_tell_small_and_large_ranges_apart(tmp_path: Path, values: tuple[float, float], label: str) -> None:
    (curve,) = found(write(tmp_path, {step: {REWARD: value} for step, value in enumerate(values, start=1)}))
    assert list(curve.text())[1].split(" |")[0].strip() == label
