"""Runs from the command line's side: what is recorded, how an attempt ends, and what a resume accepts."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from omnirl.commands import _training
from omnirl.commands._training import Prepared, Wanted
from omnirl.errors import ChildFailed, EnvironmentLacks, Exit, InvalidInput, Problem, UsageMistake
from omnirl.files import read_json
from omnirl.machine import NO_PACKAGES
from omnirl.run import record
from omnirl.run.record import Run
from tests.conftest import Cli, plain_environment
from tests.run.stand_in import __file__ as stand_in_file
from tests.run.test_checkpoints import save
from tests.run.test_launch import alive, until

SMALL = ("batch.prompts = 8", "batch.mini_prompts = 8", "batch.group_size = 4", "train.steps = 3")


def sets(data: Path) -> tuple[str, ...]:
    files = {"train": "train", "val": "validation", "probe": "probe"}
    return (*SMALL, *(f'data.{key} = "{data}/{name}.parquet"' for key, name in files.items()))


@pytest.fixture
def prepared(toy_data: Path) -> Prepared:
    return _training.prepare(Wanted("toy", "cpu", sets=sets(toy_data)))


@pytest.fixture
def run(tmp_path: Path, prepared: Prepared) -> Run:
    run = record.reserve(tmp_path / "runs", "mine", stem="toy")
    _training.record(prepared, run)
    return run


@pytest.fixture
def stand_in(tmp_path: Path) -> Callable[..., list[str]]:
    folder = tmp_path / "marks"
    folder.mkdir()
    return lambda *words: [sys.executable, stand_in_file, str(folder), *words]


def test_the_record_makes_the_run_repeatable(run: Run, prepared: Prepared, toy_data: Path) -> None:
    document = run.document()
    assert document["schema"] == "omnirl/run/1"
    assert (document["name"], document["task"], document["hardware"]) == ("mine", "toy", "cpu")
    assert (document["algo"], document["tune"], document["seed"]) == (
        "gspo",
        "full",
        prepared.resolved.recipe.train.seed,
    )
    assert document["steps_total"] == 3
    assert {"python", "omnirl", "torch", "verl"} <= set(document["versions"])
    train = toy_data / "train.parquet"
    assert document["data"][str(train)] == hashlib.sha256(train.read_bytes()).hexdigest()
    assert run.recipe()["values"]["batch"]["group_size"] == 4
    assert "data.train_batch_size=8" in (run.path / "overrides.txt").read_text().splitlines()


def test_a_finished_attempt(run: Run, prepared: Prepared, stand_in) -> None:
    outcome = _training.start(prepared, run, command=stand_in("metrics=3", "exit=0"))
    assert run.state() == "done"
    ended = read_json(run.attempts()[0].path / "exit.json")
    assert ended is not None
    assert (ended["state"], ended["code"], ended["step"]) == ("done", 0, 3)
    document = outcome.as_dict()
    assert document["steps"] == 3
    assert document["reward"] == {"first": 0.1, "last": 0.3}
    assert document["pearson_min"] == 1.0
    assert document["accuracy"] == {"toy/image": {"before": 0.1, "after": 0.3}}
    assert document["checkpoint"] is None


def test_a_failed_attempt_shows_the_logs_end(run: Run, prepared: Prepared, stand_in, capsys) -> None:
    with pytest.raises(ChildFailed) as caught:
        _training.start(prepared, run, command=stand_in("metrics=1", "say=out of paper", "exit=9"))
    assert caught.value.exit == Exit.CHILD
    assert "exit code 9" in caught.value.message
    assert "attempts/1/log.txt" in caught.value.message
    assert caught.value.hint == f"omnirl train toy --on cpu --resume --name mine --runs {run.path.parent}"
    assert "out of paper" in capsys.readouterr().err
    assert run.state() == "failed"


def test_a_failure_that_the_engine_explains(run: Run, prepared: Prepared, stand_in, capsys) -> None:
    script = 'import os, sys; open(sys.argv[1], \'w\').write(\'{"message": "no room", "hint": "df"}\'); sys.exit(1)'
    where = run.path / "attempts" / "1" / "error.json"
    with pytest.raises(ChildFailed, match="no room") as caught:
        _training.start(prepared, run, command=[sys.executable, "-c", script, str(where)])
    assert caught.value.hint == "df"


def test_a_killed_attempt_is_a_failure(run: Run, prepared: Prepared) -> None:
    script = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(ChildFailed, match="signal 9"):
        _training.start(prepared, run, command=[sys.executable, "-c", script])


def test_success_without_a_step_is_a_failure(run: Run, prepared: Prepared, stand_in) -> None:
    with pytest.raises(ChildFailed, match="0 steps"):
        _training.start(prepared, run, command=stand_in("exit=0"))
    assert run.state() == "failed"


def test_ending_early_is_said(run: Run, prepared: Prepared, stand_in, capsys) -> None:
    _training.start(prepared, run, command=stand_in("metrics=2", "exit=0"))
    assert "at step 2 of 3" in capsys.readouterr().err


INTERRUPTED = """
import sys
from pathlib import Path
from omnirl import __main__, cli
from omnirl.commands import _training
from omnirl.run.record import Run

def train(argv):
    run = Run(Path(argv[0]))
    prepared, _ = _training.prepare_resume(_training.Wanted("toy", "cpu"), run, force=False)
    with run.lock():
        _training.start(prepared, run, command=argv[1:])
    return 0

cli.run = train
sys.exit(__main__.run(sys.argv[1:]))
"""


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_stops_everything_and_leaves_a_run_to_resume(run: Run, stand_in, tmp_path: Path, signum, code) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(run.path), *stand_in("metrics=2", "daemon", "stubborn", "wait")]
    process = subprocess.Popen(command, env=plain_environment(), stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    until(lambda: len(list((tmp_path / "marks").iterdir())) == 3)
    assert run.state() == "running"
    process.send_signal(signum)
    assert process.wait(30) == code
    assert process.stderr is not None
    said = process.stderr.read()
    assert "interrupted at step 2; go on with: omnirl train toy --on cpu --resume --name mine" in said
    assert "Traceback" not in said
    assert alive(tmp_path / "marks") == []
    assert run.state() == "interrupted"


@pytest.mark.parametrize(
    ("more", "words", "said"),
    [
        (["batch.group_size = 1"], (), "group of 1"),
        (["batch.prompts = 64", "batch.mini_prompts = 64"], (), "dataset smaller than batch"),
        (['model.path = "/nowhere"'], (), "no model folder `/nowhere`"),
        (['reward.scorer = "/nowhere.py:f"'], (), "the reward file `/nowhere.py` does not exist"),
        (['data.val = "/nowhere.parquet"'], (), "no such file"),
        ([], ("trainer.lager=[file]",), "trainer.lager"),
        ([], ("word",), "neither an option"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(toy_data: Path, tmp_path: Path, more, words, said) -> None:
    with pytest.raises((InvalidInput, UsageMistake)) as caught:
        wanted = Wanted("toy", "cpu", sets=(*sets(toy_data), *more), words=words)
        prepared = _training.prepare(wanted)
        _training.require(prepared, *_training.preflight(prepared, tmp_path))
    assert said in " ".join([caught.value.message, *(problem.message for problem in caught.value.problems)])


def test_a_ray_address_that_answers_nothing(prepared: Prepared, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(EnvironmentLacks, match="answers nothing") as caught:
        _training.require(prepared, (), _training.machine_problems(prepared, tmp_path))
    assert caught.value.hint == "unset RAY_ADDRESS"


def test_what_no_input_can_mend_comes_first(prepared: Prepared) -> None:
    absent = Problem(NO_PACKAGES, "training needs `torch`", hint="pip install 'omnirl[train]'")
    no_file = Problem("data-unreadable", "no such file", key="data.train")
    with pytest.raises(EnvironmentLacks, match="training needs `torch`") as caught:
        _training.require(prepared, (no_file,), (absent,))
    assert (caught.value.hint, caught.value.problems) == ("pip install 'omnirl[train]'", ())
    full = Problem("disk-full", "no room")
    with pytest.raises(EnvironmentLacks) as refused:
        _training.require(prepared, (no_file,), (absent, full))
    assert refused.value.problems == (absent, full)
    with pytest.raises(InvalidInput) as refused_input:
        _training.require(prepared, (no_file,), (full,))
    assert refused_input.value.problems == (no_file, full)
    broken = replace(prepared, problems=(Problem("group-of-one", "a group of 1", key="batch.group_size"),))
    with pytest.raises(InvalidInput, match="3 problems"):
        _training.require(broken, (no_file,), (absent,))


def test_an_engine_that_is_not_installed_is_refused_whatever_else_is_missing(cli: Cli) -> None:
    done = cli("train", "gsm8k", "--on", "h800x4")
    assert done.returncode == 4
    assert "the rollout engine `vllm_omni` needs `vllm` and `vllm_omni`" in done.stderr
    assert "model.path" not in done.stderr
    assert done.stderr.rstrip().endswith("hint: pip install 'omnirl[gpu]'")


def test_a_dry_run_starts_and_writes_nothing(cli: Cli, toy_data: Path, tmp_path: Path) -> None:
    words = [word for setting in sets(toy_data) for word in ("--set", setting)]
    before = sorted(tmp_path.rglob("*"))
    done = cli("train", "toy", "--on", "cpu", *words, "--dry-run", "--json", "--", "trainer.project_name=x")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "omnirl/plan/1"
    assert document["overrides"]["data.train_batch_size"] == 8
    assert document["overrides"]["trainer.project_name"] == "x"
    assert document["batch"]["sequences"] == 32
    assert sorted(tmp_path.rglob("*")) == before
    plain = cli("train", "toy", "--on", "cpu", *words, "--dry-run")
    assert "overrides  data.train_batch_size=8" in plain.stdout.splitlines()


def test_a_dry_run_of_a_broken_recipe_shows_the_plan_and_fails(cli: Cli) -> None:
    done = cli("train", "gsm8k", "--on", "h800x4", "--set", "batch.prompts = 10", "--dry-run", "--json")
    assert done.returncode == 3
    assert any(problem["severity"] == "error" for problem in json.loads(done.stdout)["problems"])
    assert done.stderr.count("error: ") == 1


def test_a_dry_run_needs_no_devices_and_says_what_is_missing(cli: Cli) -> None:
    def codes(**env: str) -> set[str]:
        given = {"CUDA_VISIBLE_DEVICES": "", **env}
        done = cli("train", "gsm8k", "--on", "h800x4", "--dry-run", "--json", env=given)
        assert done.returncode == 0, done.stderr
        return {problem["code"] for problem in json.loads(done.stdout)["problems"]}

    assert {"too-few-devices", "no-engine-packages"} <= codes()
    # the devices of a cluster are not those of this machine
    named = codes(RAY_ADDRESS="127.0.0.1:1")
    assert {"no-engine-packages", "ray-address"} <= named
    assert "too-few-devices" not in named


def resume(cli: Cli, run: Run, *words: str):
    return cli("train", "toy", "--on", "cpu", "--runs", str(run.path.parent), "--resume", *words)


@pytest.fixture
def finished(run: Run, prepared: Prepared, stand_in) -> Run:
    _training.start(prepared, run, command=stand_in("metrics=3", "exit=0"))
    save(run.checkpoints, 3)
    (run.checkpoints / "latest_checkpointed_iteration.txt").write_text("3")
    return run


def test_nothing_to_do(cli: Cli, finished: Run) -> None:
    done = resume(cli, finished, "--json")
    assert done.returncode == 0, done.stderr
    assert "nothing to do: run mine is at step 3 of 3" in done.stderr
    assert (json.loads(done.stdout)["state"], json.loads(done.stdout)["steps"]) == ("done", 3)
    assert len(finished.attempts()) == 1


def test_another_run_is_not_resumed(cli: Cli, finished: Run) -> None:
    done = resume(cli, finished, "--set", "batch.group_size = 2", "--set", "train.steps = 4")
    assert done.returncode == 3
    assert "batch.group_size" in done.stderr and "was `4`, now `2`" in done.stderr
    assert "train.steps" not in done.stderr
    done = resume(cli, finished, "--algo", "dapo")
    assert done.returncode == 2
    assert "made with `gspo`" in done.stderr
    done = cli("train", "gsm8k", "--on", "cpu", "--runs", str(finished.path.parent), "--resume", "--name", "mine")
    assert done.returncode == 2
    assert "trains `toy` on `cpu`" in done.stderr


def test_changed_data_is_refused(cli: Cli, finished: Run) -> None:
    document = finished.document()
    document["data"] = dict.fromkeys(document["data"], "0" * 64)
    (finished.path / "run.json").write_text(json.dumps(document))
    done = resume(cli, finished)
    assert done.returncode == 3
    assert "sha256 of" in done.stderr


def test_a_damaged_checkpoint_is_refused(cli: Cli, finished: Run) -> None:
    (finished.checkpoints / "global_step_3" / "data.pt").unlink()
    done = resume(cli, finished, "--set", "train.steps = 5")
    assert done.returncode == 3
    assert "lacks data.pt" in done.stderr
    assert "hint: `--force` goes on from the first step" in done.stderr


def test_a_resume_raises_the_steps(finished: Run) -> None:
    prepared, changed = _training.prepare_resume(Wanted("toy", "cpu", sets=("train.steps = 4",)), finished, force=False)
    assert [difference.key for difference in changed] == ["train.steps"]
    assert _training.steps_total(prepared) == 4
    assert prepared.rendered.overrides["trainer.total_training_steps"] == 4
    created = finished.document()["created"]
    _training.record(prepared, finished, created=created)
    assert finished.document()["created"] == created
    assert finished.document()["steps_total"] == 4


def test_runs_are_listed_and_shown(cli: Cli, finished: Run) -> None:
    document = json.loads(cli("run", "list", "--runs", "runs", "--json").stdout)
    assert document["schema"] == "omnirl/runs/1"
    (entry,) = document["runs"]
    expected = {"name": "mine", "task": "toy", "hardware": "cpu", "algo": "gspo", "state": "done", "step": 3}
    assert {key: entry[key] for key in expected} == expected
    assert entry["steps_total"] == 3
    assert Path(entry["path"]).name == "mine"
    shown = cli("run", "show", "mine")
    assert shown.returncode == 0, shown.stderr
    assert "toy/image" in shown.stdout and "0.3" in shown.stdout
    detail = json.loads(cli("run", "show", "mine", "--json").stdout)
    assert [step["step"] for step in detail["metrics"]] == [1, 2, 3]
    assert detail["attempts"][0]["state"] == "done"
