"""`omnirl run show` and the end of `omnirl train`: curves as text and as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from omnirl.files import write_json
from omnirl.run.record import SCHEMA, Run
from tests.conftest import Cli, plain_environment

HEADING = "divergence of a token from the teacher (reverse KL) by step: 2 at first, 0.25 at last"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run that distilled, of two attempts of which the second repeats a step."""
    run = Run(tmp_path / "runs" / "mine")
    for number, values in enumerate(({1: 2.0, 2: 1.0, 3: float("nan")}, {3: 0.5, 4: 0.25}), start=1):
        attempt = run.path / "attempts" / str(number)
        attempt.mkdir(parents=True)
        lines = [
            json.dumps({"step": step, "data": {"critic/score/mean": 0.5, "distillation/reverse_kl_k3": value}})
            for step, value in values.items()
        ]
        (attempt / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    known = {"task": "toy", "hardware": "cpu", "algo": "opd", "steps_total": 4, "created": "2026"}
    write_json(run.path / "run.json", {"schema": SCHEMA, "name": "mine", **known})
    write_json(run.path / "recipe.json", {"values": {"algo": {"kind": "opd"}}})
    return run


def test_curves_when_asked_for(cli: Cli, run: Run) -> None:
    done = cli("run", "show", "mine", "--curves")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[lines.index(HEADING) - 1] == ""
    assert "2.00 |*" in done.stdout
    assert "reward of a step's answers by step: 0.5 at first, 0.5 at last" in lines


def test_a_pipe_gets_the_tables_alone(cli: Cli, run: Run) -> None:
    done = cli("run", "show", "mine")
    assert "critic" not in done.stdout and "by step" not in done.stdout
    assert "attempt" in done.stdout


@pytest.mark.parametrize(("words", "shown"), [((), True), (("--no-curves",), False)])
def test_a_terminal_gets_them_without_asking(run: Run, tmp_path: Path, words: tuple[str, ...], shown: bool) -> None:
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        command = [sys.executable, "-m", "omnirl", "run", "show", "mine", *words]
        child = subprocess.Popen(command, cwd=tmp_path, env=plain_environment(TERM="xterm"), stdout=theirs)
        os.close(theirs)
        text = b""
        try:
            while part := terminal.read(65536):
                text += part
        except OSError:  # what Linux says when the other end is closed
            pass
        assert child.wait(60) == 0
    assert (HEADING.encode() in text) is shown


def test_json_has_the_series(cli: Cli, run: Run) -> None:
    document = json.loads(cli("run", "show", "mine", "--json").stdout)
    assert document["schema"] == "omnirl/run-detail/1"
    assert document["curves"] == {
        "reward": [[1, 0.5], [2, 0.5], [3, 0.5], [4, 0.5]],
        "reverse_kl": [[1, 2.0], [2, 1.0], [3, 0.5], [4, 0.25]],
    }
    assert [step["step"] for step in document["metrics"]] == [1, 2, 3, 4]


def test_a_finished_training_prints_its_curves(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    from omnirl.commands.train import _show_outcome
    from omnirl.run.outcome import summarize

    _show_outcome(summarize(run, seconds=1.0), as_json=False)
    assert HEADING in capsys.readouterr().out.splitlines()
