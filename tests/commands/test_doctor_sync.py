"""`omnirl doctor --sync` from the command line's side: what is started, what is told, and what is left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from omnirl.commands import _sync
from omnirl.commands._training import Wanted
from omnirl.errors import ChildFailed, NegativeAnswer
from omnirl.run import record
from tests.commands.test_train import sets
from tests.conftest import Cli, plain_environment
from tests.run.test_launch import alive, until

SENT = {
    "modality": "image",
    "weights": "sent",
    "tokens": 512,
    "pearson": 0.99951234,
    "mean_difference": 0.01234,
    "verdict": "ok",
}
MISSING = {**SENT, "weights": "changed", "tokens": 0, "pearson": None, "mean_difference": None, "verdict": "missing"}
LIMITS = {"least_pearson": 0.99, "most_difference": 0.06, "tokens": 512}


def document(*agreements: dict[str, Any], message: str | None = None) -> dict[str, Any]:
    told = {"message": message, "hint": message and "look there"}
    return {"schema": "omnirl/sync/1", "limits": LIMITS, "agreements": list(agreements), **told}


ENGINE = """
import json, os, sys
from pathlib import Path
attempt = Path(os.environ["VERL_FILE_LOGGER_PATH"]).parent
run = attempt.parents[1]
files = ["run.json", "recipe.json", "overrides.txt"]
Path(sys.argv[1]).write_text(json.dumps({"run": str(run), **{name: (run / name).read_text() for name in files}}))
if sys.argv[2] != "null":
    (attempt / "sync.json").write_text(sys.argv[2])
print("out of paper")
sys.exit(int(sys.argv[3]))
"""


class Engine:
    """A program in the engine's place that finds `found` and ends with `code`."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.seen_file, self.runs, self.data = folder / "seen.json", folder / "runs", data

    def prove(self, found: dict[str, Any] | None, code: int, *more: str) -> dict[str, Any]:
        command = [sys.executable, "-c", ENGINE, str(self.seen_file), json.dumps(found), str(code)]
        return _sync.prove(Wanted("toy", "cpu", sets=(*sets(self.data), *more)), self.runs, command=command)

    @property
    def seen(self) -> dict[str, Any]:
        return json.loads(self.seen_file.read_text())

    @property
    def left(self) -> list[str]:
        return sorted(path.name for path in self.runs.rglob("*") if path.is_file())


@pytest.fixture
def engine(tmp_path: Path, toy_data: Path) -> Engine:
    return Engine(tmp_path, toy_data)


def test_a_run_is_written_as_for_training_and_not_kept(engine: Engine) -> None:
    found = engine.prove(document(SENT), 0)
    assert found == {**document(SENT), "task": "toy", "hardware": "cpu"}
    assert list(found)[:3] == ["schema", "task", "hardware"]
    assert json.loads(engine.seen["run.json"])["proof"] == {**LIMITS, "prompts": 2}
    assert json.loads(engine.seen["recipe.json"])["values"]["batch"]["group_size"] == 4
    assert "data.train_batch_size=8" in engine.seen["overrides.txt"].splitlines()
    assert engine.runs in Path(engine.seen["run"]).parents
    assert list(engine.runs.iterdir()) == []


def test_the_recipes_own_limits_count(engine: Engine) -> None:
    engine.prove(document(SENT), 0, "rollout.proof.tokens = 64", "rollout.proof.least_pearson = 0.9")
    own = {"least_pearson": 0.9, "most_difference": 0.06, "tokens": 64, "prompts": 2}
    assert json.loads(engine.seen["run.json"])["proof"] == own


def test_disagreement_is_an_answer_though_the_engine_fails(engine: Engine) -> None:
    found = engine.prove(document(MISSING, message="they disagree"), 5)
    assert found["message"] == "they disagree"
    assert list(engine.runs.iterdir()) == []


@pytest.mark.parametrize(("found", "code"), [(None, 5), (None, 0), (document(SENT), 5)])
def test_an_engine_that_fails_leaves_its_log_but_no_run(engine: Engine, capsys, found, code: int) -> None:
    how = f"with exit code {code}" if code else "well, but compared nothing"
    with pytest.raises(ChildFailed, match=f"ended {how} .log: .*log.txt") as caught:
        engine.prove(found, code)
    assert caught.value.hint == "omnirl doctor toy --on cpu"
    assert "out of paper" in capsys.readouterr().err
    assert "log.txt" in engine.left
    assert record.runs(engine.runs) == []


INTERRUPTED = """
import sys
from pathlib import Path
from omnirl import __main__, cli
from omnirl.commands import _sync
from omnirl.commands._training import Wanted

def prove(argv):
    runs, count, *rest = argv
    _sync.prove(Wanted("toy", "cpu", sets=tuple(rest[: int(count)])), Path(runs), command=rest[int(count) :])
    return 0

cli.run = prove
sys.exit(__main__.run(sys.argv[1:]))
"""


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_stops_everything_and_leaves_nothing(toy_data: Path, tmp_path: Path, signum: int, code: int) -> None:
    from tests.run.stand_in import __file__ as stand_in

    marks, given = tmp_path / "marks", sets(toy_data)
    marks.mkdir()
    engine = [sys.executable, stand_in, str(marks), "daemon", "stubborn", "wait"]
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "runs"), str(len(given)), *given, *engine]
    process = subprocess.Popen(command, env=plain_environment(), stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    until(lambda: len(list(marks.iterdir())) == 3)
    process.send_signal(signum)
    assert process.wait(30) == code
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
    assert alive(marks) == []
    assert list((tmp_path / "runs").iterdir()) == []


def test_the_table(capsys) -> None:
    _sync.tell(document(SENT), as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["modality", "weights", "tokens", "Pearson", "mean", "|dlogp|", "verdict"]
    assert lines[1].split() == ["image", "sent", "512", "0.99951", "0.0123", "ok"]
    assert lines[3] == "ok: Pearson at least 0.99, mean |dlogp| at most 0.06, 512 tokens or more"


def test_the_answer_no(capsys) -> None:
    with pytest.raises(NegativeAnswer, match="they disagree") as caught:
        _sync.tell(document(SENT, MISSING, message="they disagree"), as_json=False)
    assert (caught.value.exit, caught.value.hint) == (1, "look there")
    assert capsys.readouterr().out.splitlines()[2].split() == ["image", "changed", "0", "-", "-", "missing"]


def test_the_document(capsys) -> None:
    with pytest.raises(NegativeAnswer):
        _sync.tell(document(SENT, MISSING, message="they disagree"), as_json=True)
    assert json.loads(capsys.readouterr().out) == document(SENT, MISSING, message="they disagree")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((), 2, "`--sync` needs a task"),
        (("toy",), 2, "`--on HARDWARE` is missing"),
        (("toyy", "--on", "cpu"), 3, "toyy"),
        (("omni-preference", "--on", "cpu"), 2, "has no rollout to prove"),
        (("toy", "--on", "cpu"), 3, "omnirl data prepare toy --output data/toy"),
        (("gsm8k", "--on", "cpu", "--set", "batch.group_size = 1"), 3, "group of 1"),
        (("toy", "--on", "cpu", "--set", "rollout.proof.tokens = 0"), 3, "rollout.proof.tokens"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(
    inside: Cli, tmp_path: Path, words: tuple[str, ...], code: int, says: str
) -> None:
    done = inside("doctor", "--sync", *words)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert says in done.stderr
    assert list(tmp_path.iterdir()) == []
