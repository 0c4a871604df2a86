"""Real runs from the command line to the last checkpoint: Ray, verl's trainer, gloo and a tiny Thinker.

A learning rate of 0.03 changes the model so much in a step that a rollout with old weights shows in the correlation of
its probabilities with the trainer's.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omnirl.data import store
from omnirl.data.prepare import prepare
from omnirl.data.sources import Options, find
from omnirl.run import processes
from omnirl.run.record import Run
from tests.conftest import Cli, plain_environment
from tests.engine import dense_scorer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PEARSON = "training/rollout_actor_probs_pearson_corr"
FAILED = "training/rollout_failure/share"
GROUP, PROMPTS = 4, 8
RUN_S = 500


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps' worth of toy rows of all four kinds."""
    folder = tmp_path_factory.mktemp("toy")
    prepare(find("toy"), input=None, output=folder, options=Options(seed=1, rows={"train": 16, "validation": 8}))
    return folder


def words(data: Path, name: str, *sets: str, steps: int = 3) -> list[str]:
    """A command line that trains quickly and hard."""
    settings = [
        f'data.train = "{data}/train.parquet"',
        f'data.val = "{data}/validation.parquet"',
        "data.probe = []",
        f'reward.scorer = "{dense_scorer.__file__}:score"',
        f"batch.prompts = {PROMPTS}",
        f"batch.mini_prompts = {PROMPTS}",
        f"batch.group_size = {GROUP}",
        "batch.micro_sequences = 16",
        "model.tiny.warmup_steps = 0",
        "optim.learning_rate = 0.03",
        f"train.steps = {steps}",
        f"train.validate_every = {steps}",
        f"train.save_every = {steps}",
        "train.validate_before = false",
        *sets,
    ]
    options = [word for setting in settings for word in ("--set", setting)]
    return ["train", "toy", "--on", "cpu", "--name", name, *options]


def finished(tmp_path: Path, done: subprocess.CompletedProcess[str], name: str, steps: int) -> list[dict[str, Any]]:
    """The metrics of a run that must have gone well, by step."""
    assert done.returncode == 0, done.stderr + log(tmp_path, name)
    run = Run(tmp_path / "runs" / name)
    assert run.state() == "done"
    assert (run.checkpoints / "latest_checkpointed_iteration.txt").read_text() == str(steps)
    found = metrics(run)
    assert [step for step, _ in found] == list(range(1, steps + 1))
    for step, values in found:
        assert values[PEARSON] > 0.999, step
        assert values["actor/grad_norm"] > 0, step
    nothing_left(run)
    return [values for _, values in found]


def metrics(run: Run) -> list[tuple[int, dict[str, Any]]]:
    steps: dict[int, dict[str, Any]] = {}
    for path in sorted(run.path.glob("attempts/*/metrics.jsonl")):
        for line in path.read_text().rpartition("\n")[0].splitlines():
            document = json.loads(line)
            steps[document["step"]] = document["data"]
    return sorted(steps.items())


def log(tmp_path: Path, name: str) -> str:
    return "".join(path.read_text()[-6000:] for path in sorted((tmp_path / "runs" / name).glob("attempts/*/log.txt")))


def nothing_left(run: Run) -> None:
    for attempt in run.attempts():
        assert attempt.tag
        assert processes.find(attempt.tag) == []
        assert not Path((attempt.path / "ray_dir.txt").read_text()).exists()


def test_two_ranks_killed_at_an_epochs_end_and_resumed(cli: Cli, data: Path, tmp_path: Path) -> None:
    command = words(data, "two", "hardware.devices_per_node = 2", "train.save_every = 2", steps=4)
    run = Run(tmp_path / "runs" / "two")
    process = subprocess.Popen(
        [sys.executable, "-m", "omnirl", *command],
        cwd=tmp_path,
        env=plain_environment(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        end = time.monotonic() + RUN_S / 2
        while 2 not in dict(metrics(run)):  # a step is saved before it is logged
            assert process.poll() is None and time.monotonic() < end, log(tmp_path, "two")
            time.sleep(0.05)
        (first,) = run.attempts()
        assert first.phase()[0] == "training"
        assert first.tag
        (engine,) = [p for p in processes.find(first.tag) if "omnirl.engine.main" in p.cmdline()]
        os.kill(engine.pid, signal.SIGKILL)
        assert process.wait(60) == 5
    finally:
        process.kill()
        _, said = process.communicate()
    assert "signal 9" in said
    assert "--resume --name two" in said
    nothing_left(run)
    kept = first.metrics.read_text()
    before = dict(metrics(run))
    assert 4 not in before

    done = cli("train", "toy", "--on", "cpu", "--name", "two", "--resume", timeout_s=RUN_S)
    assert "going on from step 2" in done.stderr
    values = finished(tmp_path, done, "two", 4)
    assert first.metrics.read_text() == kept
    assert values[:2] == [before[1], before[2]]
    second = [json.loads(line)["step"] for line in run.attempts()[1].metrics.read_text().splitlines()]
    assert second == [3, 4]
    assert run.document()["steps_total"] == 4
    assert [step[FAILED] for step in values] == [0] * 4
    assert {name.split("/")[2] for name in values[-1] if name.startswith("val-core/toy/")} == {
        *("text", "image", "image_audio", "video")
    }


def test_what_two_ranks_saved_goes_on_with_one_as_if_it_had_not_stopped(cli: Cli, data: Path, tmp_path: Path) -> None:
    # The likeliest token each time, and one answer a prompt: nothing is left to chance but the order of sums.
    sets = ("rollout.top_k = 1", "hardware.devices_per_node = 2", "train.save_every = 2", "optim.learning_rate = 0.01")
    alone = ("--", "actor_rollout_ref.rollout.n=1")
    done = cli(
        *words(data, "two", *sets, "batch.micro_sequences = 4", steps=4), "--tune", "lora", *alone, timeout_s=RUN_S
    )
    through = finished(tmp_path, done, "two", 4)

    runs = tmp_path / "runs"
    shutil.copytree(runs / "two", runs / "one", symlinks=True)
    checkpoints = runs / "one" / "checkpoints"
    shutil.rmtree(checkpoints / "global_step_4")
    (checkpoints / "latest_checkpointed_iteration.txt").write_text("2")
    fewer = ("--set", "hardware.devices_per_node = 1")
    done = cli("train", "toy", "--on", "cpu", "--name", "one", "--resume", *fewer, timeout_s=RUN_S)
    assert "going on from step 2" in done.stderr
    values = finished(tmp_path, done, "one", 4)
    assert (checkpoints / "global_step_4" / "actor" / "model_world_size_1_rank_0.pt").is_file()
    for step in (2, 3):
        for name in ("actor/pg_loss", "actor/grad_norm", "critic/score/mean"):
            assert values[step][name] == pytest.approx(through[step][name], rel=1e-3, abs=1e-5), (step, name)


def test_a_rollout_on_a_slot_of_its_own(cli: Cli, data: Path, tmp_path: Path) -> None:
    sets = ("hardware.devices_per_node = 2", "rollout.devices = 1")
    values = finished(tmp_path, cli(*words(data, "apart", *sets), timeout_s=RUN_S), "apart", 3)
    assert [step[FAILED] for step in values] == [0] * 3


@pytest.mark.parametrize("merge", ["true", "false"])
def test_lora(cli: Cli, data: Path, tmp_path: Path, merge: str) -> None:
    done = cli(*words(data, "lora", f"tune.merge = {merge}"), "--tune", "lora", timeout_s=RUN_S)
    values = finished(tmp_path, done, "lora", 3)
    assert [step[FAILED] for step in values] == [0] * 3
    assert values[-1]["validation/rollout_failure/sequences"] == 0


BROKEN = {"bytes": b"\x89PNG\r\n\x1a\nand no more", "image": None}


def rewrite(source: Path, target: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = change(list(store.read_rows(source)))
    pq.write_table(pa.Table.from_pylist(rows, pq.read_schema(source)), target)


@pytest.fixture
def one_row_broken(data: Path, tmp_path: Path) -> Path:
    """The data with a picture in the second step's rows that no decoder reads; nothing before training decodes it."""

    def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        at = next(index for index, row in enumerate(rows) if index >= PROMPTS and row["images"])
        rows[at]["images"] = [BROKEN]
        return rows

    folder = tmp_path / "broken"
    folder.mkdir()
    rewrite(data / "train.parquet", folder / "train.parquet", change)
    (folder / "validation.parquet").symlink_to(data / "validation.parquet")
    return folder


@pytest.fixture
def no_validation(data: Path, tmp_path: Path) -> Path:
    """The data with a validation of which no picture is read."""

    def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row | {"images": [BROKEN]} for row in rows if row["images"]]

    folder = tmp_path / "broken"
    folder.mkdir()
    rewrite(data / "validation.parquet", folder / "validation.parquet", change)
    (folder / "train.parquet").symlink_to(data / "train.parquet")
    return folder


def test_dapo_with_a_reference_and_a_broken_picture(cli: Cli, one_row_broken: Path, tmp_path: Path) -> None:
    sets = ("algo.kl_loss_coef = 0.01", "algo.filter_groups = true", "rollout.max_failed_share = 0.2")
    done = cli(*words(one_row_broken, "dapo", *sets), "--algo", "dapo", timeout_s=RUN_S)
    values = finished(tmp_path, done, "dapo", 3)
    # The reference is the model of the first step.
    assert abs(values[0]["actor/kl_loss"]) < 1e-6
    assert all(step["actor/kl_loss"] > 1e-6 for step in values[1:])
    share = [step[FAILED] for step in values]
    assert share[0] == 0
    assert GROUP / (GROUP * PROMPTS) in share[1:]


def test_too_many_failures_stop_the_run(cli: Cli, one_row_broken: Path, tmp_path: Path) -> None:
    done = cli(*words(one_row_broken, "stop", "rollout.max_failed_share = 0.1"), timeout_s=RUN_S)
    assert done.returncode == 5
    assert "4 of 32 sequences failed in step 2, more than the 10% that `rollout.max_failed_share` allows" in done.stderr
    run = Run(tmp_path / "runs" / "stop")
    assert run.state() == "failed"
    assert [step for step, _ in metrics(run)] == [1]
    assert re.search(r"; row of `toy/image\w*`, index \d+.*: cannot read picture in the row as an image", done.stderr)
    assert "cannot read picture in the row as an image" in run.attempts()[0].log.read_text()
    nothing_left(run)


def test_a_validation_that_does_not_load_stops_the_run(cli: Cli, no_validation: Path, tmp_path: Path) -> None:
    done = cli(*words(no_validation, "val", "train.validate_before = true"), timeout_s=RUN_S)
    assert done.returncode == 5
    assert re.search(
        r"no sequence of the validation of step 0 is left; row of `toy/image\w*`, index \d+.*: cannot read", done.stderr
    )
    assert metrics(Run(tmp_path / "runs" / "val")) == []
    nothing_left(Run(tmp_path / "runs" / "val"))


def test_quickstart(cli: Cli, tmp_path: Path) -> None:
    done = cli("quickstart", "--smoke", "--json", "--name", "quick", timeout_s=RUN_S)
    assert done.returncode == 0, done.stderr + log(tmp_path, "quick")
    document = json.loads(done.stdout)
    assert document["schema"] == "omnirl/quickstart/1"
    assert document["steps"] == 3
    assert document["pearson_min"] > 0.999
    assert set(document["accuracy"]) == {"text", "image", "image_audio", "video"}
    for kind, accuracy in document["accuracy"].items():
        assert 0 <= accuracy["before"] <= 1
        assert 0 <= accuracy["after"] <= 1
        assert (accuracy["shuffled"] is None) == (kind == "text")
    assert {"shuffled_image", "shuffled_audio"} <= set(document["accuracy"]["image_audio"])
    assert document["taught"]
    assert Path(document["checkpoint"]).name == "global_step_3"
    nothing_left(Run(tmp_path / "runs" / "quick"))


def test_gsm8k(cli: Cli, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for split, count in (("train", 24), ("test", 4)):
        records = [
            {
                "question": f"A baker makes {number} rolls and sells {number // 2} of them. How many rolls are left?",
                "answer": f"{number} - {number // 2} = <<{number}-{number // 2}={number - number // 2}>>"
                f"{number - number // 2}\n#### {number - number // 2}",
            }
            for number in range(10, 10 + count)
        ]
        (source / f"{split}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    output = tmp_path / "data"
    done = cli("data", "prepare", "gsm8k", "--input", str(source), "--output", str(output))
    assert done.returncode == 0, done.stderr
    sets = [f'data.train = "{output}/train.parquet"', f'data.val = "{output}/test.parquet"', "train.steps = 3"]
    options = [word for setting in sets for word in ("--set", setting)]
    done = cli("train", "gsm8k", "--on", "cpu", "--name", "gsm8k", *options, "--json", timeout_s=RUN_S)
    assert done.returncode == 0, done.stderr + log(tmp_path, "gsm8k")
    document = json.loads(done.stdout)
    assert (document["schema"], document["state"], document["steps"]) == ("omnirl/train/1", "done", 3)
    assert document["pearson_min"] > 0.999
    assert (tmp_path / document["checkpoint"] / "actor").is_dir()
    run = Run(tmp_path / "runs" / "gsm8k")
    assert [step for step, _ in metrics(run)] == [1, 2, 3]
    nothing_left(run)
