"""`train --address` and `--submit` where no cluster is needed: what is refused, recorded and submitted."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from omnirl import machine
from omnirl.commands import _cluster, _submit, _training
from omnirl.commands._training import Wanted
from omnirl.errors import ChildFailed, EnvironmentLacks, Exit, InvalidInput
from omnirl.run import record, submit
from tests.commands.test_train import sets
from tests.conftest import Cli, plain_environment

DRY = ("train", "toy", "--on", "cpu", "--dry-run", "--json")
TOY = ("train", "toy", "--on", "cpu")


def problems(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    return {problem["code"]: problem["message"] for problem in json.loads(done.stdout)["problems"]}


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("127.0.0.1:1", "answers nothing (Connection refused)"),
        ("ray://127.0.0.1:1", "answers nothing (Connection refused)"),
        ("http://127.0.0.1:8265", "the job API's address"),
        ("nonsense", "is no HOST:PORT"),
        (":6379", "is no HOST:PORT"),
        ("host:99999999", "is no HOST:PORT"),
        ("ssh://127.0.0.1:22", "does not start with `ray://`"),
        (f"{'a' * 70}.x:6379", "answers nothing"),
    ],
)
def test_a_wrong_address(inside: Cli, address: str, says: str) -> None:
    told = problems(inside(*DRY, "--address", address))["ray-address"]
    assert told.startswith(f"--address is `{address}`, ")
    assert says in told


def test_the_option_is_stronger_than_the_variable(inside: Cli) -> None:
    env = {"RAY_ADDRESS": "127.0.0.1:1"}
    assert problems(inside(*DRY, env=env))["ray-address"].startswith("RAY_ADDRESS is")
    assert "ray-address" not in problems(inside(*DRY, "--address", "local", env=env))
    with socket.create_server(("127.0.0.1", 0)) as server:
        answering = f"127.0.0.1:{server.getsockname()[1]}"
        assert "ray-address" not in problems(inside(*DRY, "--address", answering, env=env))
        assert "`127.0.0.1:2`" in problems(inside(*DRY, "--address", "127.0.0.1:2", env=env))["ray-address"]


def test_devices_of_this_machine_do_not_count_with_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def codes(address: str | None) -> set[str]:
        found = machine.check(device="npu", devices=16, nodes=2, engine="hf", runs=tmp_path, address=address)
        return {problem.code for problem in found}

    assert {"too-few-devices", "no-cluster"} <= codes(None)
    assert {"too-few-devices", "no-cluster"} <= codes("local")
    assert not {"too-few-devices", "no-cluster"} & codes("auto")


def test_without_a_cluster_no_node_is_looked_at(inside: Cli, toy_data: Path) -> None:
    words = [word for text in sets(toy_data) for word in ("--set", text)]
    done = inside(*TOY, *words, "--address", "127.0.0.1:1")
    assert done.returncode == Exit.ENVIRONMENT
    assert "looking at" not in done.stderr
    assert "--address local" in done.stderr


def test_a_run_records_its_cluster_and_goes_on_in_it(
    tmp_path: Path, toy_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    prepared = _training.prepare(Wanted("toy", "cpu", sets=sets(toy_data)))
    run = record.reserve(tmp_path / "runs", "mine", stem="toy")
    _training.record(prepared, run)
    assert run.document()["address"] == "head:6379"
    monkeypatch.delenv("RAY_ADDRESS")
    for asked, becomes in ((None, "head:6379"), ("local", "local"), ("other:6379", "other:6379")):
        again, _ = _training.prepare_resume(Wanted("toy", "cpu", address=asked), run, force=False)
        assert again.wanted.address == becomes
    assert machine.cluster("local", {"RAY_ADDRESS": "head:6379"}) is None


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--submit",), Exit.USAGE, "`--submit` needs the address of a cluster"),
        (("--submit", "--address", "local"), Exit.USAGE, "`--submit` needs the address of a cluster"),
        (("--no-wait",), Exit.USAGE, "`--no-wait` goes with `--submit`"),
        (("--submit", "--force", "--address", "auto"), Exit.USAGE, "`--force` goes with `--resume`"),
        (("--submit", "--address", "http://127.0.0.1:1"), Exit.ENVIRONMENT, "answers nothing"),
        (("--submit", "--address", "ssh://127.0.0.1:1"), Exit.ENVIRONMENT, "neither `ray://` nor `http://`"),
        (("--submit", "--address", "auto", "--set", "batch.prompts = 0"), Exit.INVALID, "batch.prompts"),
    ],
)
def test_what_is_not_submitted(inside: Cli, words: tuple[str, ...], code: int, says: str) -> None:
    done = inside(*TOY, *words)
    assert done.returncode == code
    assert says in done.stderr


def test_a_planned_engine_is_not_submitted(inside: Cli) -> None:
    words = ("train", "mmk12", "--on", "ascend910c-x16x2", "--submit")
    done = inside(*words, "--address", "http://127.0.0.1:1")
    assert done.returncode == Exit.ENVIRONMENT
    assert "is planned" in done.stderr
    assert inside(*words, "--dry-run").returncode == 0


def test_the_command_means_the_same_in_another_folder(inside: Cli, cli: Cli, tmp_path: Path) -> None:
    recipes = tmp_path / "recipes"
    recipes.mkdir()
    (recipes / "mine.toml").write_text('extends = ["toy.toml"]\n[on.cpu]\n[train]\nsteps = 7\n')
    words = ("train", "mine", "--on", "cpu", "--set", 'data.train = "it\'s $(here).parquet"', "--name", "a")
    more = ("--", "trainer.logger=[file]")
    env = {"ROLLOUT_N": "4", "LEARNING_RATE": "1e-4"}
    done = inside(*words, "--address", "auto", "--submit", "--dry-run", *more, env=env)
    assert done.returncode == 0, done.stderr
    command = shlex.split(done.stdout)
    variables = dict(word.split("=", 1) for word in command[1 : command.index("omnirl")])
    assert set(variables) == {"OMNIRL_RECIPES", submit.FINGERPRINT, *env}
    assert command[command.index("--runs") + 1] == str(tmp_path / "runs")
    assert command[command.index("--name") + 1] == "a"
    assert "--address" not in command and "--submit" not in command

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    line = done.stdout.strip().replace(" omnirl train ", f" {sys.executable} -m omnirl train --dry-run --json ", 1)
    plan = subprocess.run(
        ["sh", "-c", line], cwd=elsewhere, env=plain_environment(), capture_output=True, text=True, timeout=60
    )
    assert plan.returncode == 0, plan.stderr
    document = json.loads(plan.stdout)
    assert document["overrides"]["actor_rollout_ref.rollout.n"] == 4
    assert document["overrides"]["trainer.logger"] == ["file"]
    assert document["overrides"]["data.train_files"] == [str(tmp_path / "it's $(here).parquet")]

    other = line.replace("LEARNING_RATE=1e-4", "LEARNING_RATE=1e-5")
    refused = subprocess.run(
        ["sh", "-c", other], cwd=elsewhere, env=plain_environment(), capture_output=True, text=True, timeout=60
    )
    assert refused.returncode == Exit.INVALID
    assert "other settings than where the job was submitted" in refused.stderr


def test_a_name_from_the_environment_stays_there(inside: Cli) -> None:
    submitted = (*TOY, "--submit", "--dry-run", "--address", "auto")
    env = {"EXPERIMENT_NAME": "theirs", "OUTPUT_DIR": "/out"}
    named = shlex.split(inside(*submitted, env=env).stdout)
    assert "EXPERIMENT_NAME=theirs" in named and "--name" not in named
    assert named[named.index("--runs") + 1] == "/out"
    given = shlex.split(inside(*submitted, "--name", "mine", env=env).stdout)
    assert "EXPERIMENT_NAME=theirs" not in given
    assert given[given.index("--name") + 1] == "mine"


def test_a_resume_is_submitted_as_it_is(inside: Cli) -> None:
    words = (*TOY, "--submit", "--dry-run", "--resume", "--name", "a", "--set", "train.steps = 9", "--force")
    command = shlex.split(inside(*words, "--address", "auto").stdout)
    assert command[0] == "omnirl"
    assert command[command.index("--set") + 1] == "train.steps = 9"
    assert {"--resume", "--force"} <= set(command)


@pytest.mark.parametrize(
    ("status", "code", "raised", "says"),
    [
        ("FAILED", 3, typer.Exit, ""),
        ("FAILED", -9, typer.Exit, ""),
        ("FAILED", 127, EnvironmentLacks, "has no command `omnirl`"),
        ("FAILED", None, ChildFailed, "failed: the node died"),
        ("STOPPED", None, ChildFailed, "was stopped"),
        (None, None, ChildFailed, "can no longer be followed: gone"),
    ],
)
def test_how_a_job_ended(status: str | None, code: int | None, raised: type[Exception], says: str) -> None:
    ended = {"status": status, "exit_code": code, "message": "x\nthe node died\n"} if status else {"fault": "gone"}
    with pytest.raises(raised) as caught:
        _submit._require_good({**ended, "log": "ray job logs"})
    if isinstance(caught.value, typer.Exit):
        assert caught.value.exit_code == {3: 3, -9: 137}[code or 0]
    else:
        assert says in str(caught.value)


def test_a_job_that_went_well() -> None:
    _submit._require_good({"status": "SUCCEEDED", "exit_code": 0, "message": "", "log": ""})


def test_the_same_recipe_is_required_in_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = _training.prepare(Wanted("toy", "cpu"))
    _submit.require_same(prepared)
    monkeypatch.setenv(submit.FINGERPRINT, submit.fingerprint(prepared.resolved.recipe, ()))
    _submit.require_same(prepared)
    monkeypatch.setenv(submit.FINGERPRINT, "0" * 64)
    with pytest.raises(InvalidInput, match="other settings"):
        _submit.require_same(prepared)


def test_a_client_that_hangs_is_asked_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_cluster, "_JOIN_S", 2.0)
    prepared = _training.prepare(_training.Wanted("toy", "cpu"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"ray://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(EnvironmentLacks, match="it did not answer within 2 s"):
            _cluster._ask(address, prepared, tmp_path)
    assert capsys.readouterr().err.count("asking once more") == 1
