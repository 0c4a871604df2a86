"""What the quickstart reports, from metrics such as a run writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from omnirl.commands import quickstart
from omnirl.run import record
from omnirl.run.outcome import summarize
from omnirl.run.record import Run

VALIDATION = {
    "toy/text": (0.3, 0.8),
    "toy/image": (0.25, 1.0),
    "toy/image_audio": (0.2, 0.95),
    "toy/image@shuffled": (0.24, 0.26),
    "toy/image_audio@shuffled_audio": (0.22, 0.5),
}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = record.reserve(tmp_path / "runs", None, stem="quickstart")
    run.write({"task": "toy", "hardware": "cpu", "created": record.created_now()}, {"values": {}}, [])
    attempt = run.new_attempt("tag")
    lines = [{"step": 0, "data": {f"val-core/{s}/acc/mean@1": v[0] for s, v in VALIDATION.items()}}]
    for step in (1, 2):
        data = {"critic/score/mean": step / 2, "training/rollout_actor_probs_pearson_corr": 1 - step * 1e-6}
        if step == 2:
            data |= {f"val-core/{s}/acc/mean@1": v[1] for s, v in VALIDATION.items()}
        lines.append({"step": step, "data": data})
    attempt.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    attempt.finish("done", 0, step=2, seconds=1.0)
    (run.path / "model").mkdir()
    (run.path / "model" / "warmup.json").write_text(json.dumps({"taught": ["the form of an answer"]}))
    return run


def test_the_document(run: Run) -> None:
    document = quickstart.document(summarize(run, seconds=1.0), 61.25)
    assert document["schema"] == "omnirl/quickstart/1"
    assert (document["seconds"], document["steps"], document["pearson_min"]) == (61.2, 2, 1 - 2e-6)
    assert document["accuracy"]["image"] == {"before": 0.25, "after": 1.0, "shuffled": 0.26}
    assert document["accuracy"]["text"] == {"before": 0.3, "after": 0.8, "shuffled": None}
    assert document["accuracy"]["image_audio"]["shuffled_audio"] == 0.5
    assert document["curve"]["image"] == [{"step": 0, "accuracy": 0.25}, {"step": 2, "accuracy": 1.0}]
    assert document["pearson"] == [1 - 1e-6, 1 - 2e-6]
    assert document["taught"] == ["the form of an answer"]


def test_the_report(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    quickstart.show(quickstart.document(summarize(run, seconds=1.0), 61.0), run, smoke=False)
    said = capsys.readouterr().out
    rows = {
        " ".join(line.split()[:-3]): line.split()[-3:] for line in said.splitlines() if line.endswith(("0.25", "0.5"))
    }
    assert rows["image"] == ["0.25", "1", "0.25"]
    assert rows["image + audio"] == ["0.2", "0.95", "0.25"]
    assert rows["audio of another question"] == ["-", "0.5", "0.5"]
    assert rows["all media of another question"] == ["-", "0.26", "0.25"]
    assert "the form of an answer" in said
    assert "2 steps in 61 s, least Pearson 0.9999980" in said
    commands = said.split("Try next:\n")[1].splitlines()
    assert len(commands) == 3
    assert all(command.startswith("  omnirl ") for command in commands)


def test_the_commands_to_try_next_are_right(cli, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    quickstart.show(quickstart.document(summarize(run, seconds=1.0), 61.0), run, smoke=True)
    for command in capsys.readouterr().out.split("Try next:\n")[1].splitlines():
        done = cli(*command.split()[1:])
        assert done.returncode == 0, done.stderr
