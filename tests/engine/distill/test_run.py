"""A real run that distils: student, teacher and trainer in processes of their own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from omnirl.data import store
from omnirl.run.record import Run
from tests.conftest import Cli
from tests.engine.test_runs import RUN_S, data, finished, words

__all__ = ["data"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KL = "distillation/reverse_kl_k3"


@pytest.fixture
def twins(data: Path, tmp_path: Path) -> list[str]:
    """Settings for a student, and a teacher with the same weights elsewhere."""
    from omnirl.engine import tiny

    prompts = [message["content"] for row in store.read_rows(data / "train.parquet") for message in row["prompt"]]
    student = tiny.build(tmp_path / "student", seed=3, corpus=prompts)
    shutil.copytree(student, tmp_path / "teacher")
    return [f'model.path = "{student}"', f'algo.teacher.path = "{tmp_path / "teacher"}"']


def test_a_student_that_leaves_its_teacher(cli: Cli, data: Path, twins: list[str], tmp_path: Path) -> None:
    """At first teacher and student agree on every token, after pictures, sounds and videos too; then one of them learns
    something else, from the task's rewards."""
    sets = [*twins, "algo.task_rewards = true"]
    done = cli(*words(data, "opd", *sets), "--algo", "opd", timeout_s=RUN_S)
    values = finished(tmp_path, done, "opd", 3)
    assert values[0][KL] < 1e-6
    assert abs(values[0]["distillation/reverse_kl"]) < 1e-4
    assert all(step[KL] > 1e-3 for step in values[1:])
    assert all("actor/distillation/abs_loss" in step for step in values)


def test_another_tokenizer_is_refused_before_ray_starts(cli: Cli, data: Path, twins: list[str], tmp_path: Path) -> None:
    path = tmp_path / "teacher" / "tokenizer.json"
    document = json.loads(path.read_text())
    vocabulary = document["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    path.write_text(json.dumps(document))
    done = cli(*words(data, "other", *twins), "--algo", "opd", timeout_s=RUN_S)
    assert done.returncode == 5
    assert "do not share a tokenizer: 2 have other ids" in done.stderr
    assert "distil from a teacher with the student's own tokenizer" in done.stderr
    assert Run(tmp_path / "runs" / "other").attempts()[0].phase()[0] == "model"
